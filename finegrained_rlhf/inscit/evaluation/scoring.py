"""How good predictions are, turn by turn and in all: passages found (PI-F1), responses (BLEU, RG-F1).

After eval/eval.py of the authors' repository.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finegrained_rlhf.inscit.data.records import RESPONSE_TYPES, InscitTurn
from finegrained_rlhf.inscit.evaluation.predictions import InscitPrediction
from finegrained_rlhf.metrics.functions import sacre_bleu
from finegrained_rlhf.retrieval.ranking import RankingMetrics, mean_of_turns
from finegrained_rlhf.retrieval.runs import Run
from finegrained_rlhf.text.scores import token_f1
from finegrained_rlhf.text.segmentation import english_tokens


@dataclass(frozen=True)
class ScoredTurn:
    """A turn with what a system said, and its scores in [0, 1].

    Attributes:
        turn: the turn.
        prediction: of the system.
        pi_f1: F1 of the passages, best of the labels.
        rg_f1: F1 of the response's words, best of the labels.
    """

    turn: InscitTurn
    prediction: InscitPrediction
    pi_f1: float
    rg_f1: float

    @property
    def references(self) -> list[str]:
        """The labels' responses as BLEU reads them; of one label, its response twice."""
        texts = [_plain(label.response) for label in self.turn.labels]
        return texts * 2 if len(texts) == 1 else texts

    @property
    def response(self) -> str:
        """The system's response as BLEU reads it."""
        return _plain(self.prediction.response)


def scored_turn(turn: InscitTurn, prediction: InscitPrediction, empty: float = 0.0) -> ScoredTurn:
    """Score a turn.

    Args:
        turn: with its labels.
        prediction: for it.
        empty: PI-F1 of an empty prediction where a label's evidence is empty too; 0 as the authors' code has it, so
            that even the labels themselves stay below 100%.
    """
    pi = max(passage_f1(prediction.evidence, label.passages, empty) for label in turn.labels)
    rg = max(response_f1(prediction.response, label.response) for label in turn.labels)
    return ScoredTurn(turn, prediction, pi, rg)


def passage_f1(predicted: Collection[str], gold: Collection[str], empty: float = 0.0) -> float:
    """2 |P ∩ G| / (|P| + |G|) of two sets of passages; `empty` where both have none."""
    claimed, right = set(predicted), set(gold)
    return 2 * len(claimed & right) / (len(claimed) + len(right)) if claimed or right else empty


def response_f1(predicted: str, gold: str) -> float:
    """F1 of two responses' words, each as often as it occurs: spaCy's tokens, normalised as SQuAD's evaluation does."""
    return token_f1(_tokenised(_plain(predicted)), _tokenised(_plain(gold)))


@lru_cache(maxsize=100_000)
def _tokenised(text: str) -> str:
    return " ".join(english_tokens(text))


def _plain(text: str) -> str:
    """In small letters, white space collapsed."""
    return " ".join(text.lower().split())


def mean_percent(values: Sequence[float]) -> float | None:
    """The mean in percent; None of nothing."""
    return 100 * sum(values) / len(values) if values else None


def responses_bleu(turns: Sequence[ScoredTurn]) -> tuple[float, str]:
    """BLEU of all responses in [0, 100] and its signature; a turn with one label counts it as both references."""
    return sacre_bleu([one.response for one in turns], [one.references for one in turns])


def bleu_counts(one: ScoredTurn) -> NDArray[np.int64]:
    """What a turn adds to a corpus's BLEU: matched and all n-grams of 1 to 4 words, both lengths, [10]."""
    from sacrebleu.metrics import BLEU

    bleu = BLEU(effective_order=True).sentence_score(one.response, one.references)
    return np.array([*bleu.counts, *bleu.totals, bleu.sys_len, bleu.ref_len], dtype=np.int64)


def bleu_of_counts(counts: NDArray[np.int64]) -> float:
    """BLEU in [0, 100] of a corpus whose counts are these, summed."""
    from sacrebleu.metrics import BLEU

    numbers = counts.tolist()
    made: Any = BLEU.compute_bleu(numbers[:4], numbers[4:8], numbers[8], numbers[9], smooth_method="exp")
    return float(made.score)


def retrieval_scores(turns: Sequence[InscitTurn], run: Run, cutoffs: Sequence[int]) -> dict[str, float]:
    """`mrr`, `recall@k` and `hit_rate@k` in percent, of the passages that any label names, and how many `turns` count.

    Turns without such passages are left out. `hit_rate@k` is the thesis's HIT@k.

    Args:
        turns: all turns of a file.
        run: what was found, by `InscitTurn.name`.
        cutoffs: the k.

    Raises:
        ConfigError: pytrec_eval is not installed.
    """
    gold = {turn.name: {name: 1 for label in turn.labels for name in label.passages} for turn in turns}
    metrics = RankingMetrics(recall_at=tuple(cutoffs), ndcg_at=())
    means = mean_of_turns(metrics.of_turns(run, gold, [turn.name for turn in turns]))
    return {name: value if name == "turns" else 100 * value for name, value in means.items()}


def type_scores(rows: Sequence[tuple[str | None, str | None]]) -> dict[str, Any]:
    """`accuracy` and `macro_f1` in percent, and `confusion` (gold, then said), of (gold, said) types.

    The macro F1 is the mean over the types that occur on either side.
    """
    f1 = []
    for kind in RESPONSE_TYPES:
        hits = sum(gold == predicted == kind for gold, predicted in rows)
        named = sum(gold == kind for gold, _ in rows) + sum(predicted == kind for _, predicted in rows)
        if named:
            f1.append(2 * hits / named)
    return {
        "accuracy": mean_percent([float(gold == predicted) for gold, predicted in rows]),
        "macro_f1": mean_percent(f1),
        "confusion": {
            gold: {predicted: sum(row == (gold, predicted) for row in rows) for predicted in RESPONSE_TYPES}
            for gold in RESPONSE_TYPES
        },
    }
