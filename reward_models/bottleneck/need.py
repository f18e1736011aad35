"""Learning what a question needs: a distribution over the sentences of its passages, from what people's answers say.

A softmax over the sentences of each question is fitted to the gold answer's shares of them, so that sentences compete
within a question; or to those of the gold answer and of people's corrected answers. Which features are read and how
strongly the vectors' weights are held to 0 is chosen by inner folds of questions. Where a sentence stands, and how many
others repeat it, may only be read where that tells needed sentences better *and* the cut beginning of the first passage
gains nothing by it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.feedback.records import FeedbackRecord
from finegrained_rlhf.metrics.grounding import facts_recalled
from finegrained_rlhf.text.trivial import cut_lead
from reward_models.bottleneck.features import NEED, Array, Flags, Source, stems
from reward_models.bottleneck.model import Bottleneck, Head, relative
from reward_models.config import BottleneckConfig
from reward_models.training.logistic import INNER_FOLDS, RatedList, fit_lists

RIDGE = 10.0
"""Of the features that are no vectors, on features of spread 1."""
VECTOR_RIDGES = (100.0, 300.0, 1000.0, 3000.0, np.inf)
"""Of the vectors' products; with the last they are left out."""
DIRECTIONS = 64
"""So many directions of the vectors' products are read: those in which the sentences of a question differ most."""
PLACES: tuple[tuple[str, ...], ...] = ((), ("place",), ("shared",), ("place", "shared"))
_EVEN = 1e-6


@dataclass(frozen=True)
class NeedChoice:
    """What inner folds say of one way to tell what is needed.

    Attributes:
        read: the groups of `NEED` that are read beside words.
        vector_ridge: of the vectors' products; infinite where they are left out.
        precision: mean average precision of the held-out questions' sentences; sentences that the gold answer says are
            the right ones.
        above_lead: in which share of the questions whose cut lead lacks the gold answer's facts the gold answer says
            more of what is needed than the cut lead.
        needs: of each question's sentences, told without the question.
    """

    read: tuple[str, ...]
    vector_ridge: float
    precision: float
    above_lead: float
    needs: Sequence[Array] = field(repr=False)


@dataclass(frozen=True)
class LearntNeed:
    """What is needed, as it was learnt.

    Attributes:
        choice: by inner folds.
        corrected: whether people's corrected answers taught it beside gold answers.
        head: on all questions.
        held: of each question's sentences, told without the question.
    """

    choice: NeedChoice
    corrected: bool
    head: Head
    held: Mapping[Source, Array] = field(repr=False)

    def give(self, model: Bottleneck) -> None:
        """Let a model take the head, and hold what was told of the questions that it was fitted to."""
        model.set_need(self.head)
        model.hold(self.held)

    def to_json(self) -> dict[str, Any]:
        """What was chosen, and what inner folds say of it; a ridge of null leaves the vectors out."""
        choice = self.choice
        ridge = choice.vector_ridge if np.isfinite(choice.vector_ridge) else None
        known = {"corrected": self.corrected, "read": list(choice.read), "vector_ridge": ridge}
        return {**known, "average_precision": choice.precision, "above_lead": choice.above_lead}


@dataclass(frozen=True)
class _Question:
    source: Source
    rows: Array
    target: Array
    needed: Flags
    gap: Array | None
    """How much more of each sentence the gold answer has than the cut lead; None where the lead has facts of it."""


def learn_need(
    model: Bottleneck, records: Sequence[FeedbackRecord], config: BottleneckConfig, corrected: bool = False
) -> LearntNeed:
    """Learn what is needed.

    Args:
        model: whose encoder reads the questions.
        records: with gold answers; others are left out.
        config: of the bottleneck.
        corrected: learn from people's corrected answers too.

    Raises:
        DataError: no two records have a gold answer that says a sentence of its passages.
    """
    questions = [_question(model, record, config.needed, corrected) for record in records if record.gold is not None]
    questions = [one for one in questions if one.target.any()]
    if len(questions) < 2 or not any(one.needed.any() for one in questions):
        raise DataError(
            "fewer than two records have a gold answer that says a sentence of its passages, which tells what is needed"
        )
    basis = _basis(questions)
    read = [replace(one, rows=one.rows @ basis) for one in questions]
    choice = chosen([_inner(read, *one) for one in product(PLACES if config.place else PLACES[:1], VECTOR_RIDGES)])
    head = Head(basis @ _fit(read, choice.read, choice.vector_ridge))
    held = {one.source: need for one, need in zip(questions, choice.needs, strict=True)}
    return LearntNeed(choice, corrected, head, held)


def _basis(questions: Sequence[_Question]) -> Array:
    """What is read of a sentence as a linear function of its features, [Σ NEED + D, Σ NEED + DIRECTIONS].

    Features of spread 1 within a question, and the first principal directions of those that are vectors' products.
    """
    rows = np.concatenate([one.rows - one.rows.mean(0) for one in questions])
    spread, plain = rows.std(0), sum(NEED.values())
    scale = np.where(spread > _EVEN, spread, 1.0)
    vectors = rows[:, plain:] / scale[plain:]
    directions = np.linalg.eigh(vectors.T @ vectors)[1][:, ::-1][:, :DIRECTIONS]
    basis = np.zeros((len(scale), plain + directions.shape[1]))
    basis[:plain, :plain], basis[plain:, plain:] = np.eye(plain), directions
    return np.asarray(basis / scale[:, None])


def chosen(choices: Sequence[NeedChoice]) -> NeedChoice:
    """The most precise choice; one that reads place or repetition must not be worse against the cut lead than without.

    What it is held against is the most precise choice without them.
    """
    bare = max((one for one in choices if not one.read), key=lambda one: one.precision)
    rest = [one for one in choices if one.precision > bare.precision and one.above_lead >= bare.above_lead]
    return max(rest, key=lambda one: one.precision, default=bare)


def said_shares(source: Source, answer: str, pieces: Sequence[str]) -> Array:
    """How far an answer says each sentence, [N]: the mean of what it has of the sentence, and the sentence of it.

    Args:
        source: the question.
        answer: the answer, of people.
        pieces: its sub-sentences.
    """
    words_of = [frozenset(stems(piece)) - source.asked for piece in pieces]
    return source.shares(frozenset(stems(answer)) - source.asked, [words for words in words_of if len(words) > 1])


def average_precision(values: Array, right: Flags) -> float:
    """Of items in the order of falling values, the mean of the share of right ones down to each right one."""
    hits = right[np.argsort(-values, kind="stable")]
    return float((np.cumsum(hits) / np.arange(1, len(hits) + 1))[hits].mean())


def _question(model: Bottleneck, record: FeedbackRecord, needed: float, corrected: bool) -> _Question:
    assert record.gold is not None
    source = model.source(record.question, record.passages)
    texts = [one.corrected_prediction for one in record.marked.values() if corrected and one.corrected_prediction]
    shares = [
        said_shares(source, text, [text[a:b] for a, b in model.segmenter.sub_sentences(text)])
        for text in (record.gold, *texts)
    ]
    lead = cut_lead([passage.text for passage in record.passages]) or ""
    recalled, facts = facts_recalled(lead, (record.gold,), record.question)
    gap = None if recalled or not facts else source.covered_by(record.gold) - source.covered_by(lead)
    target = np.sum([of * (of > needed) for of in shares], axis=0)
    return _Question(source, source.need_rows, target, shares[0] > needed, gap)


def _inner(questions: Sequence[_Question], read: tuple[str, ...], vector_ridge: float) -> NeedChoice:
    needs: dict[int, Array] = {}
    for fold in range(INNER_FOLDS):
        inside = [one for i, one in enumerate(questions) if i % INNER_FOLDS != fold]
        held_out = range(fold, len(questions), INNER_FOLDS)
        if inside and held_out:
            weights = _fit(inside, read, vector_ridge)
            needs |= {i: relative(questions[i].rows @ weights) for i in held_out}
    ordered = [needs[i] for i in range(len(questions))]
    pairs = list(zip(ordered, questions, strict=True))
    precision = [average_precision(need, one.needed) for need, one in pairs if one.needed.any()]
    above = [bool(need @ one.gap > 0) for need, one in pairs if one.gap is not None]
    return NeedChoice(read, vector_ridge, float(np.mean(precision)), float(np.mean(above)) if above else 0.0, ordered)


def _fit(questions: Sequence[_Question], read: Sequence[str], vector_ridge: float) -> Array:
    columns = _columns(questions[0].rows.shape[1], read, vector_ridge)
    ridge = np.where(columns < sum(NEED.values()), RIDGE, vector_ridge)
    weights = np.zeros(questions[0].rows.shape[1])
    lists = [RatedList(one.rows[:, columns], one.target / one.target.sum()) for one in questions]
    weights[columns] = fit_lists(lists, ridge)
    return weights


def _columns(width: int, read: Sequence[str], vector_ridge: float) -> NDArray[np.intp]:
    groups = [name for name, size in NEED.items() for _ in range(size)]
    kept = [i for i, name in enumerate(groups) if name == "words" or name in read]
    return np.array([*kept, *range(len(groups), width if np.isfinite(vector_ridge) else len(groups))])
