"""Lists of passages by their ids: each once, of earlier turns, with the gold ones among them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from finegrained_rlhf.inscit.data.records import InscitTurn


def unique(names: Iterable[str]) -> list[str]:
    """Each of them once, in order."""
    return list(dict.fromkeys(names))


def earlier_ids(turn: InscitTurn, newest_first: bool) -> list[str]:
    """The ids of the evidence of earlier turns, each once."""
    order = reversed(turn.earlier) if newest_first else turn.earlier
    return unique(passage.id for part in order for passage in part)


def with_gold(ids: Sequence[str], gold: Sequence[str], most: int) -> list[str]:
    """The ids with all of the gold ones among them, in place of the last others where there is no room."""
    missing = [name for name in gold if name not in ids][:most]
    kept, room = list(ids), most - len(missing)
    for name in reversed(ids):
        if len(kept) <= room:
            break
        if name not in gold:
            kept.remove(name)
    return [*kept[:room], *missing]
