"""What is measured of an agent's rounds: cost, untouched drafts, inferred preferences, retrieval, expense.

Source: Gao et al. 2024, section 4.1 and appendix C.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from finegrained_rlhf.core.generation.protocol import words_and_marks

BIN = 20
"""Rounds of which the share of untouched drafts is given together."""
Similarity = Callable[[str, str], float]


@dataclass(frozen=True)
class Round:
    """One round of one agent.

    Attributes:
        agent: its name.
        number: t, from 0.
        context: id of the context.
        source: that the context comes from.
        preference: f_t that the draft was written by; empty for none.
        closest: the source whose true preference is most similar to it; None for an empty one, or where several are.
        draft: y_t.
        edited: y'_t.
        distance: c_t, in tokens.
        normalised: c_t over the tokens of the longer text.
        retrieved: sources of the contexts of the retrieved notes, the nearest first.
        calls: of the language model, for the draft and for learning.
        tokens_in: of their prompts.
        tokens_out: of their replies.
        odd: of their replies, those that could not be used, asked for again or not.
        unanswered: who gave no reply that can be used at all, the agent or the user, and why; empty where none lacked.
            Such a round has no cost, and counts as a draft of which nothing was kept.
    """

    agent: str
    number: int
    context: str
    source: str
    preference: str
    closest: str | None
    draft: str
    edited: str
    distance: int
    normalised: float
    retrieved: tuple[str, ...]
    calls: int
    tokens_in: int
    tokens_out: int
    odd: int = 0
    unanswered: str = ""

    @property
    def untouched(self) -> bool:
        """Whether the user left a draft as it was."""
        return self.distance == 0 and not self.unanswered


def word_overlap(left: str, right: str) -> float:
    """F1 of the words that two texts share, counted with repetitions, from 0 to 1."""
    left_words, right_words = (
        Counter(word.lower() for word in words_and_marks(text) if word.isalnum()) for text in (left, right)
    )
    shared = sum((left_words & right_words).values())
    return 2 * shared / (left_words.total() + right_words.total()) if shared else 0.0


def closest_source(preference: str, true: Mapping[str, str], similarity: Similarity = word_overlap) -> str | None:
    """argmax_d similarity(f_t, F(d)) over sources d.

    Args:
        preference: f_t.
        true: F, the true preference by source.
        similarity: BERTScore in the paper; words in common by default.

    Returns:
        The source; None where the preference is empty, or no single source is the closest.
    """
    if not preference:
        return None
    scores = {source: similarity(preference, wanted) for source, wanted in true.items()}
    best = [source for source, score in scores.items() if score == max(scores.values())]
    return best[0] if len(best) == 1 else None


def agent_figures(rounds: Sequence[Round]) -> dict[str, Any]:
    """The figures of one agent.

    Returns:
        `rounds`; `cost`: Σ c_t in tokens; `normalised`: mean of the normalised costs; `untouched`: share of rounds with
        c_t = 0, and `untouched_by_20` of each 20 rounds; `preference_accuracy`: share of rounds whose preference is
        closest to the true one (None for an agent that names none); `retrieval_accuracy`: share of retrieved contexts
        that are of the round's source (None for one that retrieves none); `calls`, `tokens_in`, `tokens_out`.

    Raises:
        ValueError: there is no round.
    """
    if not rounds:
        raise ValueError("expected at least one round")
    untouched = [one.untouched for one in rounds]
    retrieved = [source == one.source for one in rounds for source in one.retrieved]
    names = any(one.preference for one in rounds)
    return {
        "rounds": len(rounds),
        "cost": sum(one.distance for one in rounds),
        "normalised": statistics.fmean(one.normalised for one in rounds),
        "untouched": statistics.fmean(untouched),
        "untouched_by_20": [
            statistics.fmean(untouched[start : start + BIN]) for start in range(0, len(untouched), BIN)
        ],
        "preference_accuracy": statistics.fmean(one.closest == one.source for one in rounds) if names else None,
        "retrieval_accuracy": statistics.fmean(retrieved) if retrieved else None,
        "calls": sum(one.calls for one in rounds),
        "tokens_in": sum(one.tokens_in for one in rounds),
        "tokens_out": sum(one.tokens_out for one in rounds),
    }
