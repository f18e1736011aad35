"""How well knowledge was identified, over all dialogues and by group, and how much of the documents was searched.

Measured are exact match, F1 and passage accuracy. Two limits leave text out, of which nothing is said:
`search.max_passages` whole passages, `inputs.max_length` the spans at the end of a passage.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.extensions import load_part, parts
from finegrained_rlhf.dialki.records import DialogueExample
from finegrained_rlhf.text.scores import exact_match, token_f1

CONTEXT_EDGES = (2, 5)
"""Turns before the last one: 0–2 short, 3–5 medium, more long (thesis, figure 3.4)."""
DOCUMENT_EDGES = (500, 1000)
"""Tokens of a document: up to 500 short, up to 1,000 medium (thesis, figure 3.4, Doc2Dial)."""


def length_edges(format: str) -> dict[str, tuple[int, int]]:
    """What is short and what is medium in the thesis's figures, for `context` and `document`.

    Args:
        format: of the data; formats that have no borders of their own take Doc2Dial's.
    """
    own = format in parts("document_edges")
    return {"context": CONTEXT_EDGES, "document": load_part("document_edges", format) if own else DOCUMENT_EDGES}


@dataclass(frozen=True)
class KnowledgeScore:
    """One answer against its gold.

    Attributes:
        exact: 1 where the text equals a reference after SQuAD's normalisation, else 0.
        f1: highest word F1 against a reference, in [0, 1].
        passage: 1 where the passage holds gold, else 0.
    """

    exact: float
    f1: float
    passage: float


def score_answer(example: DialogueExample, passage: int, text: str) -> KnowledgeScore:
    """Compare an identified passage and text with the gold of an example.

    Of several references the best one counts, as in SQuAD. They are the words of the gold entries, or what the data set
    compares with (`DialogueExample.references`): on Doc2Dial one text, from the first span that is referred to to the
    last, which no answer from one section equals where they lie in two. Normalisation is SQuAD's (lower case, no
    punctuation, no articles); two empty texts match.

    Raises:
        DataError: the example is not labelled.
    """
    if not example.gold:
        raise DataError("is not labelled, so an answer cannot be scored", record=example.id, field="gold")
    return KnowledgeScore(
        exact=float(any(exact_match(text, reference) for reference in example.reference_texts)),
        f1=max(token_f1(text, reference) for reference in example.reference_texts),
        passage=float(any(gold.passage == passage for gold in example.gold)),
    )


def summary(scores: Sequence[KnowledgeScore]) -> dict[str, float]:
    """Means in [0, 1] and the number of answers; 0 where there are none."""
    count = len(scores)
    return {
        "examples": count,
        "exact_match": _mean([score.exact for score in scores]),
        "f1": _mean([score.f1 for score in scores]),
        "passage_accuracy": _mean([score.passage for score in scores]),
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def summaries(
    examples: Sequence[DialogueExample],
    scores: Sequence[KnowledgeScore],
    document_lengths: Sequence[int],
    edges: Mapping[str, tuple[int, int]],
) -> dict[str, dict[str, float]]:
    """Summaries of all answers and of those of each group that has any.

    Args:
        examples: what was answered.
        scores: of each.
        document_lengths: tokens of all passages of each example, in whatever tokens the edges are meant.
        edges: for `context` the last number of turns (without the last user turn) that is short, and that is medium;
            for `document` the same of tokens (`length_edges`).

    Returns:
        Keys: `all`; `seen`, `unseen`; `context/short`, `context/medium`, `context/long`; `document/short`, …
    """
    if not len(examples) == len(scores) == len(document_lengths):
        raise ValueError(f"{len(examples)} examples, {len(scores)} scores and {len(document_lengths)} lengths")
    groups: dict[str, list[KnowledgeScore]] = {name: [] for name in _names()}
    for example, score, length in zip(examples, scores, document_lengths, strict=True):
        names = ["all", f"context/{_size(len(example.turns) - 1, edges['context'])}"]
        names.append(f"document/{_size(length, edges['document'])}")
        if example.unseen is not None:
            names.append("unseen" if example.unseen else "seen")
        for name in names:
            groups[name].append(score)
    return {name: summary(members) for name, members in groups.items() if members}


def _names() -> Iterable[str]:
    sizes = ("short", "medium", "long")
    return ("all", "seen", "unseen", *(f"{kind}/{size}" for kind in ("context", "document") for size in sizes))


def _size(value: int, edges: tuple[int, int]) -> str:
    return "short" if value <= edges[0] else "medium" if value <= edges[1] else "long"


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Searched:
    """What an answer was looked for in.

    Attributes:
        passages: passages of the dialogue that were searched, at least in part.
        total_passages: passages of the dialogue.
        spans: spans that could be part of the answer.
        total_spans: spans of all its passages.
    """

    passages: int
    total_passages: int
    spans: int
    total_spans: int

    @property
    def dropped_spans(self) -> int:
        """Spans that could not be part of the answer."""
        return self.total_spans - self.spans

    def to_json(self) -> dict[str, int]:
        """The fields of a prediction."""
        return {
            "searched_passages": self.passages,
            "total_passages": self.total_passages,
            "dropped_spans": self.dropped_spans,
        }


@dataclass(frozen=True)
class Coverage:
    """The same over many dialogues; sums.

    Attributes:
        dialogues: answered.
        partly_searched: dialogues of which something was left out.
        searched_passages: passages that were searched, at least in part.
        total_passages: passages of all dialogues.
        dropped_spans: spans that could not be part of an answer.
        total_spans: spans of all passages.
    """

    dialogues: int = 0
    partly_searched: int = 0
    searched_passages: int = 0
    total_passages: int = 0
    dropped_spans: int = 0
    total_spans: int = 0

    @classmethod
    def of(cls, parts: Iterable[Searched]) -> Coverage:
        """The sums over dialogues."""
        rows = list(parts)
        return cls(
            dialogues=len(rows),
            partly_searched=sum(row.dropped_spans > 0 for row in rows),
            searched_passages=sum(row.passages for row in rows),
            total_passages=sum(row.total_passages for row in rows),
            dropped_spans=sum(row.dropped_spans for row in rows),
            total_spans=sum(row.total_spans for row in rows),
        )

    def to_json(self) -> dict[str, Any]:
        """The sums by name."""
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"{self.partly_searched} of {self.dialogues} dialogues were searched in part: {self.searched_passages} of "
            f"{self.total_passages} passages, {self.dropped_spans} of {self.total_spans} spans left out"
        )

    def warn(self) -> None:
        """Log a warning where something was left out."""
        if self.partly_searched:
            logger.warning("%s (dialki.search.max_passages and dialki.inputs.max_length say what fits)", self)
