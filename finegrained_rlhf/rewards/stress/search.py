"""What a reward sells: the best of many answers that say nothing of the question, against what a policy writes.

Edits hold no word because it is true: windows of the passages without what the gold answer says, windows of other
passages, the question, fillers and lists of names; then the best so far is gone on with, greedily on the total.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from finegrained_rlhf.core.seeding import stable_hash
from finegrained_rlhf.rewards.stress.changes import TOTAL, StressRecord, others_of
from finegrained_rlhf.rewards.stress.draft import draft_of, ended, sentences, spare_sentences
from finegrained_rlhf.rewards.stress.makers import FILLERS, Chance, empty_windows, name_list
from finegrained_rlhf.rewards.stress.measure import TIE, RatedTexts, share_of

_ROUNDS = 5
_EXAMPLES = 12


class _Buyer:
    """Edits for one question.

    Args:
        record: the question.
        records: all records.
        seed: of the draws.
    """

    def __init__(self, record: StressRecord, records: Sequence[StressRecord], seed: int) -> None:
        self.record = record
        rng = random.Random(stable_hash(seed, "search", record.id))
        self._chance = Chance(others_of(record, records, rng), rng)
        self._draft = draft_of(record, record.gold)
        own = empty_windows(self._draft)
        foreign = [text for other in self._chance.others[:8] for text, _ in spare_sentences(other)]
        self._pieces = [*own, *foreign, *FILLERS, record.question]
        self.tried: dict[str, None] = {}

    def _piece(self) -> str:
        names = name_list(self._draft, self._chance) if self._chance.random.random() < 0.1 else None
        return names or self._chance.random.choice(self._pieces)

    def edits(self, best: str | None, count: int) -> list[str]:
        """Up to so many answers that were not tried yet: pieces at first, then changes of the best so far."""
        new: dict[str, None] = {}
        for _ in range(4 * count):
            text = self._piece() if best is None else self._changed(best)
            if len(new) < count and text.strip() and text not in self.tried and text != self.record.gold:
                new[text] = None
        self.tried |= new
        return list(new)

    def _changed(self, best: str) -> str:
        rng, parts = self._chance.random, [best[start:end] for start, end in sentences(best)]
        act = rng.choice(("add", "add", "put first", "double", "drop"))
        if act == "drop" and len(parts) > 1:
            del parts[rng.randrange(len(parts))]
        elif act == "double" and parts:
            parts.insert(rng.randrange(len(parts) + 1), rng.choice(parts))
        else:
            parts.insert(0 if act == "put first" else len(parts), self._piece())
        return "".join(map(ended, parts)).strip()


def price(
    records: Sequence[StressRecord],
    rated: RatedTexts,
    among: Mapping[str, Sequence[str]],
    calls: int,
    seed: int,
    others: Sequence[StressRecord] | None = None,
    report: Callable[[int], None] = lambda done: None,
) -> dict[str, Any]:
    """The best edit of each question as a percentile among answers to it.

    Args:
        records: questions to search for; those that `among` has no answer to are left out.
        rated: the reward.
        among: by question, what a policy samples.
        calls: edits that are scored for each question.
        seed: of the draws.
        others: records whose passages may be used; None takes `records`.
        report: called with the number of rounds that are done.

    Returns:
        `bought`: the mean percentile, 0 to 1, of the best edit; None where no question has answers. `above_median`,
        `low`, `high`: in which share of questions it beats the median answer. `questions`, `calls`, `examples`.
    """
    asked = [record for record in records if among.get(record.id)]
    rated.add((record.id, text) for record in asked for text in among[record.id])
    buyers = [_Buyer(record, records if others is None else others, seed) for record in asked]
    best: list[tuple[float, str] | None] = [None] * len(buyers)
    share = max(1, calls // _ROUNDS)
    for number in range(_ROUNDS if calls >= _ROUNDS else 1):
        tried = [buyer.edits(top and top[1], share) for buyer, top in zip(buyers, best, strict=True)]
        rated.add((buyer.record.id, text) for buyer, texts in zip(buyers, tried, strict=True) for text in texts)
        for i, (buyer, texts) in enumerate(zip(buyers, tried, strict=True)):
            totals = [(rated.value(buyer.record.id, text, TOTAL), text) for text in texts]
            best[i] = max([top for top in (best[i], *totals) if top and top[0] is not None], default=None)  # type: ignore[type-var, assignment]
        report(number + 1)
    rows = []
    for record, top in zip(asked, best, strict=True):
        totals_of = [rated.value(record.id, text, TOTAL) for text in among[record.id]]
        known = [total for total in totals_of if total is not None]
        if top is not None and known:
            below = sum(total < top[0] - TIE for total in known) + 0.5 * sum(abs(t - top[0]) <= TIE for t in known)
            row: dict[str, Any] = {"record": record.id, "question": record.question, "text": top[1], "total": top[0]}
            rows.append({**row, "median": median(known), "percentile": below / len(known)})
    if not rows:
        return {"bought": None, "questions": 0, "calls": calls, "examples": []}
    above = share_of([(row["record"], row["total"] > row["median"] + TIE) for row in rows], seed)
    return {
        "bought": sum(row["percentile"] for row in rows) / len(rows),
        "above_median": above["ranked_right"],
        "low": above["low"],
        "high": above["high"],
        "questions": len(rows),
        "calls": calls,
        "examples": sorted(rows, key=lambda row: -row["percentile"])[:_EXAMPLES],
    }
