"""Preference models beside cues, the oracle and the ceiling: how well each orders pairs of answers on dev questions.

Cues order pairs as an annotator does and need no training. Reads what `pipeline=factworld/preference_models` made of a
seed: dev outputs and feedback, and the models. Scores the dev answers with them.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from finegrained_lab.experiments.comparison import compared, compared_page
from finegrained_lab.experiments.results_table import ResultsTable, setting_of
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.factworld.annotate import FACT_RATE, SENTENCE_RATE, SUB_SENTENCE_RATE, prefer
from finegrained_rlhf.factworld.oracle import Judgement, judge_outputs
from finegrained_rlhf.feedback.outputs import OutputRecord, read_outputs
from finegrained_rlhf.feedback.reading import read_feedback
from finegrained_rlhf.feedback.records import FIRST, PAIR_ORDER, TIE
from finegrained_rlhf.rewards.protocol import Scorer
from finegrained_rlhf.text.segmentation import SpacySegmenter
from finegrained_rlhf.text.tables import markdown_table

Order = Callable[[Judgement, Judgement], float]
"""Above 0 where the first answer is held to be the better one, below 0 where the second is, 0 where neither."""


def error_counts(judgement: Judgement, noise: float) -> NDArray[np.float64]:
    """How many errors an annotator finds in a judged answer: P(n) for n = 0 … N, float64 [N + 1].

    N is the number of labels that the annotator gives: sub-sentences, sentences and asked facts. They are given
    independently, each wrong at its rate (`annotate.mislabel`), so the count is a sum of N coins.

    Args:
        judgement: the oracle's.
        noise: dial of the annotator.
    """
    wrong = {piece.sentence for piece in judgement.sub_sentences if piece.c2 is not None}
    labels = [
        *((piece.c1 is not None, SUB_SENTENCE_RATE) for piece in judgement.sub_sentences),
        *((sentence in wrong, SENTENCE_RATE) for sentence in range(len(judgement.sentences))),
        *((not covered, FACT_RATE) for covered in judgement.given),
    ]
    counts = np.ones(1)
    for error, rate in labels:
        probability = 1.0 - rate * noise if error else rate * noise
        counts = np.convolve(counts, [1.0 - probability, probability])
    return counts


def ceiling(noise: float) -> Order:
    """The best order that anybody can give without knowing the annotator's mistakes.

    P(first is preferred) − P(second is preferred), from the true errors of both and the rates of mistake. It prefers
    the shorter of two answers with equally many errors: fewer words leave fewer places to mark by mistake.
    """

    def order(first: Judgement, second: Judgement) -> float:
        a, b = error_counts(first, noise), error_counts(second, noise)
        both = np.outer(a, b)
        gap = float(np.triu(both, 1).sum() - np.tril(both, -1).sum())
        return gap if abs(gap) > 1e-12 else 0.0

    return order


CUES: Mapping[str, Order] = {
    "shorter": lambda first, second: len(second.text.split()) - len(first.text.split()),
    "fewer_sentences": lambda first, second: len(second.sentences) - len(first.sentences),
    "fewer_sub_sentences": lambda first, second: len(second.sub_sentences) - len(first.sub_sentences),
    "oracle": lambda first, second: second.errors - first.errors,
}
"""Orders that need no training: fewer words, sentences, sub-sentences; and fewer true errors."""


def pair_gaps(scores: Sequence[float]) -> tuple[float, ...]:
    """The differences, first − second, of the scores of four answers to one question, pair by pair."""
    return tuple(scores[i] - scores[j] for i, j in PAIR_ORDER)


def judged_gaps(judged: Sequence[Judgement], order: Order) -> tuple[float, ...]:
    """What `order` says of four answers to one question, pair by pair."""
    return tuple(order(judged[i], judged[j]) for i, j in PAIR_ORDER)


def agreement(gaps: Sequence[Sequence[float]], preferences: Sequence[Sequence[int | None]]) -> float:
    """Share of the decided pairs that are ordered as preferred; a pair with gap 0 counts one half, as a coin would.

    Args:
        gaps: of each record, one a pair, above 0 for the first answer.
        preferences: of each record, as the feedback file has them; ties and unjudged pairs are left out.

    Raises:
        ValueError: no pair is decided.
    """
    decided = [
        np.sign(gap) * (1 if value == FIRST else -1)
        for row, values in zip(gaps, preferences, strict=True)
        for gap, value in zip(row, values, strict=True)
        if value not in (None, TIE)
    ]
    if not decided:
        raise ValueError("no pair is decided")
    return float(np.mean([(sign + 1.0) / 2.0 for sign in decided]))


COLUMNS = ("dev_pairs", "true_pairs")
WEIGHTS = {"relevance": 0.5, "factuality": 0.5, "completeness": 0.3}
"""Of the three models' rewards, as in `reward=factworld`."""
Open = Callable[..., Scorer]
"""From `path` to the reward model in it, as a component of a reward."""


@dataclass(frozen=True)
class PreferenceModelsTable(ResultsTable):
    """How well preference models, cues, the other reward models and the oracle order the dev pairs.

    Attributes:
        models: name on the page → run directory of a preference model, below the seed's; the first one is what the
            others are compared with.
        segment_model: opens a model of segments.
        answer_model: opens a model of whole answers; takes `mean` and `std` of its scores, too.
    """

    title: ClassVar[str] = "FactWorld: what a preference model can learn"
    about: ClassVar[str] = (
        "Pairs of four sampled answers to each dev question. `dev_pairs`: share of the pairs that the annotator "
        "decided and the row orders alike; `true_pairs`: the same of the pairs that the oracle decides, by the number "
        "of all errors; a pair without an order counts one half. Spread: standard deviation of a model's raw scores of "
        "the dev answers. `ceiling` knows the true errors and the annotator's rates of mistake, and no mistake: nobody "
        "can expect to order more of the annotator's pairs. `three_models` is the summed reward of the relevance, "
        "factuality and completeness models, which learnt from fine-grained labels."
    )
    world: ClassVar[str] = "FactWorld"

    models: Mapping[str, str] = field(kw_only=True)
    segment_model: Open = field(kw_only=True)
    answer_model: Open = field(kw_only=True)

    def conditions(self, roots: Mapping[int, Path]) -> dict[str, Any]:
        """The annotator's noise, which must be the same for all seeds."""
        return {"annotator_noise": float(setting_of(roots, "noise"))}

    def introduction(self, result: Mapping[str, Any]) -> str:
        """What was measured, and the annotator's noise."""
        return f"{self.about} Annotator noise {result['annotator_noise']:g}."

    def measure(self, roots: Mapping[int, Path]) -> dict[str, Any]:
        """Rows by judge and seed, their spread, and the differences from the first model."""
        rows = [row for seed, root in roots.items() for row in self.judge_rows(root, seed)]
        judges = list(dict.fromkeys(row["system"] for row in rows))
        rows.sort(key=lambda row: judges.index(row["system"]))
        return {"rows": rows, **compared(rows, judges, COLUMNS, next(iter(self.models)))}

    def judge_rows(self, root: Path, seed: int) -> list[dict[str, Any]]:
        """One row a judge of a seed's dev pairs: models, the three models together, cues, oracle and ceiling.

        Raises:
            DataError: outputs or feedback are missing, or not what they should be.
            ModelError: a model is missing.
        """
        segmenter = SpacySegmenter()
        outputs = read_outputs(root / "outputs_dev.jsonl")
        judged = [judge_outputs(record, segmenter) for record in outputs]
        preferred = [record.preferences for record in read_feedback(root / "feedback_dev.json")]
        truth = [prefer(judgements) for judgements in judged]

        def row(system: str, gaps: Sequence[Sequence[float]], spread: float | None = None) -> dict[str, Any]:
            agreements = {"dev_pairs": agreement(gaps, preferred), "true_pairs": agreement(gaps, truth)}
            return {"system": system, "seed": seed, **agreements, "score_std": spread}

        rows = []
        for name, directory in self.models.items():
            scores = scores_of(self.answer_model(path=str(root / directory), mean=0.0, std=1.0), outputs)
            spread = statistics.pstdev(score for answers in scores for score in answers)
            rows.append(row(name, [pair_gaps(answers) for answers in scores], spread))
        rows.append(row("three_models", [pair_gaps(answers) for answers in self._three(root, outputs)]))
        noise = float(setting_of({seed: root}, "noise"))
        for name, order in {**CUES, "ceiling": ceiling(noise)}.items():
            rows.append(row(name, [judged_gaps(judgements, order) for judgements in judged]))
        return rows

    def _three(self, root: Path, outputs: Sequence[OutputRecord]) -> list[list[float]]:
        """The weighted reward that fine-grained RLHF would pay for each answer of each record."""
        total = [[0.0] * len(record.outputs) for record in outputs]
        for name, weight in WEIGHTS.items():
            make = self.answer_model if name == "completeness" else self.segment_model
            scores = scores_of(make(path=str(root / "reward_models" / name)), outputs)
            total = [[a + weight * b for a, b in zip(*rows, strict=True)] for rows in zip(total, scores, strict=True)]
        return total

    def body(self, result: Mapping[str, Any]) -> str:
        """Spread, differences, every row, and how far the models' scores lie apart."""
        spreads: dict[str, dict[str, Any]] = {}
        for row in result["rows"]:
            if row["score_std"] is not None:
                spreads.setdefault(row["system"], {"system": row["system"]})[f"seed {row['seed']}"] = row["score_std"]
        columns = ["system", *(f"seed {seed}" for seed in result["seeds"])]
        shown = [{key: _small(value) for key, value in row.items()} for row in spreads.values()]
        return (
            f"{compared_page(result, COLUMNS, result['differences']['from'])}\n"
            f"## Standard deviation of the raw scores\n\n{markdown_table(shown, columns)}"
        )

    def _timed(self) -> dict[str, tuple[str, ...]]:
        return {"table": tuple(self.models.values())}

    def took(self, result: Mapping[str, Any]) -> str:
        """How long the preference models took."""
        minutes = sum(result["seconds"]["table"].values()) / 60
        return (
            f"Training steps and validations of the preference models, all seeds together: {minutes:.1f} minutes, one "
            "run after the other."
        )


def _small(value: Any) -> Any:
    """A number with two significant digits, so that a collapsed spread does not read as 0."""
    return f"{value:.2g}" if isinstance(value, float) else value


def scores_of(scorer: Scorer, outputs: Sequence[OutputRecord]) -> list[list[float]]:
    """The summed reward of each answer of each record."""
    import torch

    scorer.setup(torch.device("cpu"))
    prompts = [
        Prompt(record.id, record.text, (), {"question": record.question, "passages": record.passages})
        for record in outputs
        for _ in record.outputs
    ]
    values = iter(scorer.score(prompts, [text for record in outputs for text in record.outputs]).values)
    return [[sum(next(values)) for _ in record.outputs] for record in outputs]
