"""TREC CAsT 2019 to 2021: topics of questions, in 2021 with the text of the passage that answered each.

Reads the published topic files (`evaluation_topics_v1.0.json`, `2020_manual_evaluation_topics_v1.0.json`, …), the
resolved questions of 2019 (`*_resolved_v1.0.tsv`) and TREC's judgements. The answers in a history are empty where the
topics have no `passage`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from finegrained_lab.published.questions.cast22 import gold_of, topics_of
from finegrained_lab.published.questions.turns import PublishedTurn
from finegrained_rlhf.conqrr.data import RewriteReading, as_turn, optional_text
from finegrained_rlhf.core.checks import as_list, as_object, get_field, require, require_text
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.retrieval.runs import read_judgements

RESULTS = ("manual_canonical_result_id", "canonical_result_id", "automatic_canonical_result_id")
"""Where the topics of 2020 and 2021 name the passage that the system answered with, the people's choice first."""
NO_REWRITE = "no resolved question"


def read_cast(
    path: str | Path,
    rewrites: str | Path | None = None,
    qrels: str | Path | None = None,
    min_relevance: int = 1,
) -> RewriteReading:
    """Read a file of topics; one example a turn, with ids `TOPIC_TURN` as in the judgements.

    The rewrite is `manual_rewritten_utterance` (2020, 2021) or the line of `rewrites` (2019), the answer `passage`
    (2021). Gold passages are the relevant ones of `qrels`, whose grades are kept (in 2021 documents); without it, the
    canonical result that the topics of 2020 and 2021 name. Topics are about many pages, so topic shifts stay unknown.

    Args:
        path: the topics.
        rewrites: resolved questions, `TOPIC_TURN<tab>QUESTION` a line.
        qrels: judgements, `TOPIC_TURN 0 PASSAGE GRADE` a line.
        min_relevance: the lowest grade (of 0 to 4, at least 1) that makes a passage gold, as trec_eval's `-l`; lower
            grades above 0 still count in nDCG.

    Raises:
        DataError: naming file, record (topic, or line from 0) and field.
    """
    resolved = {} if rewrites is None else read_resolved(rewrites)
    judged = None if qrels is None else read_judgements(qrels)
    notes: Counter[str] = Counter()

    def turns_of(name: str, topic: Mapping[str, Any]) -> list[PublishedTurn]:
        return _turns(name, topic, resolved, judged, min_relevance, notes)

    topics = list(topics_of(path, _number, turns_of, notes))
    return RewriteReading.of([example for _, part in topics for example in part], len(topics), {}, notes, path)


def _number(topic: Mapping[str, Any]) -> str:
    return str(as_turn(get_field(topic, "number"), "number"))


def _turns(
    name: str,
    topic: Mapping[str, Any],
    resolved: Mapping[str, str],
    judged: Mapping[str, Mapping[str, int]] | None,
    min_relevance: int,
    notes: Counter[str],
) -> list[PublishedTurn]:
    turns: list[PublishedTurn] = []
    history: tuple[str, ...] = ()
    for i, item in enumerate(as_list(get_field(topic, "turn"), "turn")):
        field = f"turn[{i}]"
        item = as_object(item, field)
        require(not _is_cast22(item), "a turn of CAsT 2022, which format cast22 reads", field)
        number = as_turn(get_field(item, "number", f"{field}."), f"{field}.number")
        require(not turns or number > turns[-1].turn, f"expected turns in rising order, got {number}", field)
        question = require_text(get_field(item, "raw_utterance", f"{field}."), f"{field}.raw_utterance").strip()
        rewrite = optional_text(item.get("manual_rewritten_utterance"), f"{field}.manual_rewritten_utterance")
        rewrite = rewrite or resolved.get(f"{name}_{number}")
        notes[NO_REWRITE] += rewrite is None
        results = (optional_text(item.get(key), f"{field}.{key}") for key in RESULTS)
        named = [result for result in results if result is not None][:1]
        gold, grades = gold_of(f"{name}_{number}", judged, min_relevance, named, notes)
        answer = optional_text(item.get("passage"), f"{field}.passage")
        turns.append(PublishedTurn(number, history, question, rewrite, answer, gold, source="trec", grades=grades))
        history = (*history, question, answer or "")
    return turns


def _is_cast22(turn: Mapping[str, Any]) -> bool:
    """Whether a turn is one of CAsT 2022: its number names a place in a tree (`1-1`), its question is `utterance`."""
    return "raw_utterance" not in turn and "utterance" in turn


def read_resolved(path: str | Path) -> dict[str, str]:
    """Resolved questions by `TOPIC_TURN`.

    Raises:
        DataError: a line is not an id, a tab and a question, or an id occurs twice.
    """
    questions: dict[str, str] = {}
    for i, line in enumerate(_lines(path)):
        name, tab, question = line.partition("\t")
        if not tab or not question.strip():
            raise DataError("expected TOPIC_TURN, a tab and a question", file=path, record=i)
        if name in questions:
            raise DataError(f"{name} occurs twice", file=path, record=i)
        questions[name] = question.strip()
    return questions


def _lines(path: str | Path) -> list[str]:
    """The lines of a text file that are not blank.

    Raises:
        DataError: the file is missing or is not UTF-8.
    """
    try:
        return [line for line in Path(path).read_text(encoding="utf-8").split("\n") if line.strip()]
    except (FileNotFoundError, IsADirectoryError):
        raise DataError("no such file", file=path) from None
    except UnicodeDecodeError as error:
        raise DataError(f"not UTF-8 text ({error.reason} at byte {error.start})", file=path) from None
