"""Answers to the questions of feedback records that nobody has to learn."""

from __future__ import annotations

import random
from collections.abc import Sequence

from finegrained_rlhf.feedback.records import FeedbackRecord
from finegrained_rlhf.text.trivial import best_sentence, cut_lead

CUT_LEAD, BEST_SENTENCE, RESTATED, FOREIGN, CUT_GOLD = (
    "cut_lead",
    "best_sentence",
    "restated question",
    "gold of another question",
    "gold, 30 words",
)
GOLD_WORDS = 30


def trivial_answers(records: Sequence[FeedbackRecord], seed: int) -> list[dict[str, str | None]]:
    """Of each record, by name; None where it has no passage, or no gold answer.

    - `cut_lead`: the first 35 words of the first passage, the question not read;
    - `best_sentence`: the passage sentence nearest to the question;
    - `restated question`; `gold of another question`, drawn; `gold, 30 words`: the gold answer cut off.
    """
    drawn = random.Random(seed)
    golds = [record.gold for record in records if record.gold]
    rows = []
    for record in records:
        passages = [passage.text for passage in record.passages]
        others = [gold for gold in (drawn.choice(golds) for _ in range(8)) if gold != record.gold] if golds else []
        rows.append(
            {
                CUT_GOLD: " ".join(record.gold.split()[:GOLD_WORDS]) if record.gold else None,
                BEST_SENTENCE: best_sentence(record.question, passages),
                CUT_LEAD: cut_lead(passages),
                RESTATED: record.question,
                FOREIGN: others[0] if others else None,
            }
        )
    return rows
