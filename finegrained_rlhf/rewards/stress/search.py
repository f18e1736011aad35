"""What a reward sells: the best of many answers that say nothing of the question, against what a policy writes.

Edits hold no word because it is true: windows of the passages without what the gold answer says, windows of other
passages, the question, fillers and lists of names; then the best so far is gone on with, greedily on the total.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median
from typing import Any

from finegrained_rlhf.core.seeding import stable_hash
from finegrained_rlhf.rewards.stress.changes import TOTAL, StressRecord, others_of
from finegrained_rlhf.rewards.stress.draft import draft_of, ended, sentences, spare_sentences
from finegrained_rlhf.rewards.stress.makers import FILLERS, empty_windows, name_list
from finegrained_rlhf.rewards.stress.measure import TIE, RatedTexts, share_of

_ROUNDS = 5
_EXAMPLES = 12


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
        report: called with the number of questions that were searched for since.

    Returns:
        `bought`: the mean percentile, 0 to 1, of the best edit; None where no question has answers. `above_median`,
        `low`, `high`: in which share of questions it beats the median answer. `questions`, `calls`, `examples`.
    """
    asked = [record for record in records if among.get(record.id)]
    rated.add((record.id, text) for record in asked for text in among[record.id])
    rows = []
    for record in asked:
        best = _best_edit(record, records if others is None else others, rated, calls, seed)
        values = [rated.value(record.id, text, TOTAL) for text in among[record.id]]
        known = [total for total in values if total is not None]
        report(1)
        if best is not None and known:
            total, text = best
            below = sum(one < total - TIE for one in known) + 0.5 * sum(abs(one - total) <= TIE for one in known)
            row: dict[str, Any] = {"record": record.id, "question": record.question, "text": text, "total": total}
            rows.append({**row, "median": median(known), "percentile": below / len(known)})
    if not rows:
        return {"bought": None, "questions": 0, "calls": calls, "examples": []}
    above = share_of([(row["record"], row["total"] > row["median"] + TIE) for row in rows], seed)
    return {
        "bought": fmean(row["percentile"] for row in rows),
        "above_median": above["ranked_right"],
        "low": above["low"],
        "high": above["high"],
        "questions": len(rows),
        "calls": calls,
        "examples": sorted(rows, key=lambda row: -row["percentile"])[:_EXAMPLES],
    }


def _best_edit(
    record: StressRecord, records: Sequence[StressRecord], rated: RatedTexts, calls: int, seed: int
) -> tuple[float, str] | None:
    """The total of the best of so many edits, and its words: pieces in the first round, then changes of the best."""
    rng = random.Random(stable_hash(seed, "search", record.id))
    others, draft = others_of(record, records, rng), draft_of(record, record.gold)
    foreign = [text for other in others[:8] for text, _ in spare_sentences(other)]
    pieces = [*empty_windows(draft), *foreign, *FILLERS, record.question]

    def piece() -> str:
        return (name_list(draft, others, rng) if rng.random() < 0.1 else "") or rng.choice(pieces)

    best: tuple[float, str] | None = None
    tried: set[str] = {record.gold}
    share = max(1, calls // _ROUNDS)
    for _ in range(_ROUNDS if calls >= _ROUNDS else 1):
        new: dict[str, None] = {}
        for _ in range(4 * share):
            text = piece() if best is None else _changed(best[1], piece, rng)
            if len(new) < share and text.strip() and text not in tried:
                new[text] = None
        tried |= new.keys()
        rated.add((record.id, text) for text in new)
        totals = [(rated.value(record.id, text, TOTAL), text) for text in new]
        best = max([*([best] if best else []), *((v, text) for v, text in totals if v is not None)], default=None)
    return best


def _changed(text: str, piece: Callable[[], str], rng: random.Random) -> str:
    """A text with a sentence less, one twice, or a piece more."""
    parts = [text[start:end] for start, end in sentences(text)]
    act = rng.choice(("add", "add", "put first", "double", "drop"))
    if act == "drop" and len(parts) > 1:
        del parts[rng.randrange(len(parts))]
    elif act == "double" and parts:
        parts.insert(rng.randrange(len(parts) + 1), rng.choice(parts))
    else:
        parts.insert(0 if act == "put first" else len(parts), piece())
    return "".join(map(ended, parts)).strip()
