"""Asking a scorer of texts: each text once, the shortest first, and what it says is checked."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.rewards.texts.protocol import TextScorer


def distinct_scores(scorer: TextScorer, texts: Iterable[str]) -> dict[str, float]:
    """The score of each text. Every text goes to the scorer once, all in one call, the shortest first.

    Args:
        scorer: set up.
        texts: none empty; may hold a text twice.

    Raises:
        ConfigError: the scorer gave something else than a number in [0, 1] for each text.
        FineGrainedError: a text could not be scored.
    """
    wanted = sorted(set(texts), key=lambda text: (len(text), text))
    if not wanted:
        return {}
    scores = [float(score) for score in scorer.score_texts(wanted)]
    if len(scores) != len(wanted):
        raise ConfigError(f"{scorer.identity} gave {len(scores)} scores for {len(wanted)} texts")
    for text, score in zip(wanted, scores, strict=True):
        if not (math.isfinite(score) and 0.0 <= score <= 1.0):
            raise ConfigError(f"{scorer.identity} gave {score} for a text of {len(text)} characters, not 0 to 1")
    return dict(zip(wanted, scores, strict=True))


def known_scores(scorer: TextScorer, texts: Iterable[str]) -> tuple[dict[str, float], str | None]:
    """The scores of those texts that the scorer can judge; texts that it refuses (DataError) are not among them.

    Where it refuses some of many, halves are asked until it is known which.

    Args:
        scorer: set up.
        texts: none empty; may hold a text twice.

    Returns:
        A score by text, and why the last text that has none was refused; None where all have one.

    Raises:
        FineGrainedError: anything else than a text is wrong: the service is away, or the key.
    """
    wanted = sorted(set(texts), key=lambda text: (len(text), text))
    try:
        return distinct_scores(scorer, wanted), None
    except DataError as error:
        reason = str(error)
    if len(wanted) == 1:
        return {}, reason
    halves: Sequence[Sequence[str]] = (wanted[: len(wanted) // 2], wanted[len(wanted) // 2 :])
    scores: dict[str, float] = {}
    for half in halves:
        half_scores, why = known_scores(scorer, half)
        scores |= half_scores
        reason = why or reason
    return scores, reason
