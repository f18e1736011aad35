"""What is searched for in a turn.

The authors publish what BM25 found, not what they searched for: choose on dev, and say which.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from finegrained_rlhf.dialogue.records import PART_SEPARATOR

EvidenceQuery = Literal["last_turn", "recent", "context", "first_last", "turns", "recent_turns"]
DenseQuery = Literal["turns", "recent_turns"]
"""What a trained dense retriever reads: every utterance, or the last three."""

RECENT = 3
"""Utterances of `recent` and `recent_turns`: what the user said, was answered, and says."""


def evidence_query(context: Sequence[str], query: EvidenceQuery) -> str:
    """A query.

    Args:
        context: what was said, the user first and last.
        query: `last_turn`; `recent`, the last three utterances; `context`, everything; `first_last`, what the user said
            first and last; `turns`, everything with ` [SEP] ` between the utterances, as dense retrievers read it;
            `recent_turns`, the last three like that.
    """
    if query == "last_turn":
        return context[-1]
    if query == "recent":
        return " ".join(context[-RECENT:])
    if query == "first_last":
        return " ".join(dict.fromkeys((context[0], context[-1])))
    if query == "turns" or query == "recent_turns":
        return PART_SEPARATOR.join(read_turns(context, query))
    return " ".join(context)


def read_turns(context: Sequence[str], query: DenseQuery) -> Sequence[str]:
    """The utterances that a dense retriever reads, oldest first."""
    return context if query == "turns" else context[-RECENT:]
