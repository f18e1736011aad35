"""TREC iKAT: conversations with a person of whom some statements are known, with resolved questions and answers.

Reads the published topic files of 2023 and 2024 (`turns`, `utterance`, `response_provenance`) and of 2025 (`responses`,
`user_utterance`, `citations`), and TREC's judgements.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from finegrained_lab.published.questions.cast22 import gold_of, topics_of
from finegrained_lab.published.questions.turns import PublishedTurn
from finegrained_rlhf.conqrr.data import RewriteReading, as_turn, optional_text
from finegrained_rlhf.core.checks import as_list, as_object, get_field, require, require_text, text_list
from finegrained_rlhf.retrieval.runs import read_judgements

NO_RESOLVED = "no resolved utterance"


def read_ikat(path: str | Path, qrels: str | Path | None = None, min_relevance: int = 1) -> RewriteReading:
    """Read a file of topics; one example a turn, with ids `NUMBER_TURN` (`9-1_3`) as in the judgements.

    The rewrite is `resolved_utterance`. What is known of the person (`ptkb`) stands in `published` before the turns, in
    the order of the file. Gold passages are the relevant ones of `qrels`; without it, those that the answer was written
    from. Topic shifts stay unknown.

    Args:
        path: the topics.
        qrels: judgements, `NUMBER_TURN 0 PASSAGE GRADE` a line.
        min_relevance: the lowest grade that makes a passage gold; lower grades above 0 still count in nDCG.

    Raises:
        DataError: naming file, record (topic, or its place from 0) and field.
    """
    judged = None if qrels is None else read_judgements(qrels)
    notes: Counter[str] = Counter()

    def turns_of(name: str, topic: Mapping[str, Any]) -> list[PublishedTurn]:
        return _turns(name, topic, judged, min_relevance, notes)

    topics = list(topics_of(path, _number, turns_of, notes))
    return RewriteReading.of([example for _, part in topics for example in part], len(topics), {}, notes, path)


def _number(topic: Mapping[str, Any]) -> str:
    value = get_field(topic, "number")
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return require_text(value, "number")


def _turns(
    name: str,
    topic: Mapping[str, Any],
    judged: Mapping[str, Mapping[str, int]] | None,
    min_relevance: int,
    notes: Counter[str],
) -> list[PublishedTurn]:
    of_2025 = "turns" not in topic and "responses" in topic
    place, utterance, source = (
        ("responses", "user_utterance", "citations") if of_2025 else ("turns", "utterance", "response_provenance")
    )
    about = _statements(topic.get("ptkb"))
    turns: list[PublishedTurn] = []
    history: tuple[str, ...] = ()
    for i, item in enumerate(as_list(get_field(topic, place), place)):
        field = f"{place}[{i}]"
        item = as_object(item, field)
        number = as_turn(get_field(item, "turn_id", f"{field}."), f"{field}.turn_id")
        require(not turns or number > turns[-1].turn, f"expected turns in rising order, got {number}", field)
        question = require_text(get_field(item, utterance, f"{field}."), f"{field}.{utterance}").strip()
        rewrite = optional_text(item.get("resolved_utterance"), f"{field}.resolved_utterance")
        notes[NO_RESOLVED] += rewrite is None
        answer = optional_text(item.get("response"), f"{field}.response")
        named = text_list(item.get(source) or [], f"{field}.{source}")
        gold, grades = gold_of(f"{name}_{number}", judged, min_relevance, named, notes)
        turns.append(
            PublishedTurn(number, history, question, rewrite, answer, gold, source="trec", grades=grades, about=about)
        )
        history = (*history, question, answer or "")
    return turns


def _statements(value: Any) -> tuple[str, ...]:
    """What is known of the person: a list of texts, or an object of them by number; null is nothing."""
    if isinstance(value, Mapping):
        return tuple(require_text(text, f"ptkb.{key}") for key, text in value.items())
    return tuple(require_text(text, f"ptkb[{i}]") for i, text in enumerate(text_list(value or [], "ptkb")))
