"""TREC CAsT 2022: trees of questions with answers, of which every path from the first question is written out.

Reads the published `2022_evaluation_topics_flattened_duplicated_v1.0.json` (and the `automatic` one, which has no human
rewrites) and TREC's judgements.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from finegrained_lab.published.questions.turns import PublishedTurn, examples_of
from finegrained_rlhf.conqrr.data import RewriteExample, RewriteReading, optional_text
from finegrained_rlhf.core.checks import as_list, as_object, get_field, require, require_text, text_list
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json
from finegrained_rlhf.retrieval.runs import read_judgements

UNJUDGED = "no relevant passage judged"


def gold_of(
    name: str,
    judged: Mapping[str, Mapping[str, int]] | None,
    min_relevance: int,
    named: Sequence[str],
    notes: Counter[str],
) -> tuple[tuple[str, ...], dict[str, int]]:
    """The gold passages of a turn and the grades above 0 of all its judged passages.

    Args:
        name: of the turn, as in the judgements.
        judged: grades by turn and passage; None where there are none.
        min_relevance: the lowest grade that makes a passage gold.
        named: passages that the topics themselves name; gold without judgements.
        notes: counts turns of which no passage is judged relevant.
    """
    if judged is None:
        return tuple(dict.fromkeys(named)), {}
    grades = {key: grade for key, grade in judged.get(name, {}).items() if grade > 0}
    gold = relevant_of(grades, min_relevance)
    notes[UNJUDGED] += not gold
    return gold, grades


def relevant_of(grades: Mapping[str, int], min_relevance: int = 1) -> tuple[str, ...]:
    """Ids of the passages whose grade is at least `min_relevance`, best grade first, equal ones by id."""
    return tuple(
        passage for _, passage in sorted((-grade, key) for key, grade in grades.items() if grade >= min_relevance)
    )


def topics_of(
    path: str | Path,
    name_of: Callable[[Mapping[str, Any]], str],
    turns_of: Callable[[str, Mapping[str, Any]], Sequence[PublishedTurn]],
    notes: Counter[str],
    once: bool = True,
) -> Iterator[tuple[str, list[RewriteExample]]]:
    """Name and examples of each topic, in the order of the file.

    Args:
        path: the file.
        name_of: a topic's name.
        turns_of: a topic's turns, by its name and its record.
        notes: see `examples_of`.
        once: whether a topic stands in the file once.

    Raises:
        DataError: no array, or naming file, record (the topic, or its place from 0 where it may occur twice or has no
            name) and field: a damaged topic, or one that occurs twice.
    """
    topics = read_json(path)
    if not isinstance(topics, list):
        raise DataError(f"expected a JSON array of topics, got {type(topics).__name__}", file=path)
    names: set[str] = set()
    for i, value in enumerate(topics):
        record: str | int = i
        try:
            topic = as_object(value, "(topic)")
            name = name_of(topic)
            if once:
                record = name
                require(name not in names, f"topic {name} occurs twice", "number")
            names.add(name)
            examples = examples_of(name, turns_of(name, topic), notes)
        except DataError as error:
            raise error.at(file=path, record=record) from None
        yield name, examples


SHARED = "turn of several paths of a topic, read once"
BRANCHES = "answered otherwise in a later path"


def read_cast22(path: str | Path, qrels: str | Path | None = None, min_relevance: int = 1) -> RewriteReading:
    """Read a file of paths; one example a turn of a topic, with ids `TOPIC_TURN` as in the judgements (`132_2-1`).

    A topic's paths begin alike. A turn that stands in several is read once, with the first of its answers; its number
    is its place in the path. The dialogue is the topic. Gold passages are the relevant ones of `qrels`; without it,
    `provenance`, from which the answer (or either) was written. Topic shifts stay unknown.

    Args:
        path: the paths of all topics.
        qrels: judgements, `TOPIC_TURN 0 PASSAGE GRADE` a line.
        min_relevance: the lowest grade that makes a passage gold; lower grades above 0 still count in nDCG.

    Raises:
        DataError: naming file, record (from 0) and field.
    """
    judged = None if qrels is None else read_judgements(qrels)
    notes: Counter[str] = Counter()
    merged: dict[str, RewriteExample] = {}
    topics: set[str] = set()

    def turns_of(name: str, topic: Mapping[str, Any]) -> list[PublishedTurn]:
        return _turns(name, topic, judged, min_relevance)

    paths = topics_of(path, lambda topic: _number(topic, "number", "number"), turns_of, notes, once=False)
    for i, (name, examples) in enumerate(paths):
        topics.add(name)
        for example in examples:
            known = merged.get(example.id)
            try:
                merged[example.id] = example if known is None else _merged(known, example)
            except DataError as error:
                raise error.at(file=path, record=i) from None
            notes[SHARED] += known is not None
            notes[BRANCHES] += known is not None and known.answer != example.answer
    if judged is not None:
        notes[UNJUDGED] = sum(not example.gold for example in merged.values())
    return RewriteReading.of(list(merged.values()), len(topics), {}, notes, path)


def _merged(known: RewriteExample, example: RewriteExample) -> RewriteExample:
    """A turn that stands in two paths: the first answer, the gold passages of both.

    Raises:
        DataError: more than the answer differs.
    """
    gold = tuple(dict.fromkeys((*known.gold, *example.gold)))
    alike = replace(example, answer=known.answer, gold=known.gold) == known
    require(alike, f"turn {example.id} differs from that of an earlier path", "turn")
    return replace(known, gold=gold)


def _turns(
    name: str,
    topic: Mapping[str, Any],
    judged: Mapping[str, Mapping[str, int]] | None,
    min_relevance: int,
) -> list[PublishedTurn]:
    turns: list[PublishedTurn] = []
    history: tuple[str, ...] = ()
    numbers: set[str] = set()
    for i, item in enumerate(as_list(get_field(topic, "turn"), "turn")):
        field = f"turn[{i}]"
        item = as_object(item, field)
        number = _number(item, "number", f"{field}.number")
        require(number not in numbers, f"turn {number} occurs twice in the path", f"{field}.number")
        numbers.add(number)
        question = require_text(get_field(item, "utterance", f"{field}."), f"{field}.utterance").strip()
        answer = optional_text(item.get("response"), f"{field}.response")
        named = text_list(item.get("provenance") or [], f"{field}.provenance")
        gold, grades = gold_of(f"{name}_{number}", judged, min_relevance, named, Counter())
        rewrite = optional_text(item.get("manual_rewritten_utterance"), f"{field}.manual_rewritten_utterance")
        turns.append(
            PublishedTurn(i + 1, history, question, rewrite, answer, gold, source="trec", grades=grades, name=number)
        )
        history = (*history, question, answer or "")
    return turns


def _number(row: Mapping[str, Any], key: str, field: str) -> str:
    """A number of a topic (132) or turn ("2-1") as text without white space."""
    value = get_field(row, key, field.removesuffix(key))
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else require_text(value, field)
    require(text.split() == [text], f"expected a number, got {value!r}", field)
    return text
