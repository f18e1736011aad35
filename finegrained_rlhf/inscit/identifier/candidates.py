"""The passages that evidence is looked for in, and how much of the evidence is among them.

Source: thesis, section 5.4.2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from finegrained_rlhf.inscit.data.ids import earlier_ids, unique
from finegrained_rlhf.inscit.data.records import InscitTurn
from finegrained_rlhf.inscit.evaluation.scoring import mean_percent
from finegrained_rlhf.retrieval.protocol import Hit

SELECTED = 4
"""Most passages that the identifier selects for a turn."""


def candidate_ids(turn: InscitTurn, hits: Sequence[Hit], most: int, earlier: bool = True) -> list[str]:
    """The ids of a turn's candidates, each once.

    Args:
        turn: the turn.
        hits: what was retrieved for it, best first.
        most: at most so many.
        earlier: whether the evidence of earlier turns comes before, the oldest turn's first.
    """
    before = earlier_ids(turn, newest_first=False) if earlier else []
    return unique([*before, *(hit.id for hit in hits)])[:most]


def candidate_recall(
    turns: Sequence[InscitTurn], ids: Mapping[str, Sequence[str]], selected: int = SELECTED
) -> dict[str, Any]:
    """How much of the evidence is among the candidates: what bounds an identifier from above.

    Args:
        turns: at least one.
        ids: the candidates of each turn, by its name.
        selected: most passages that may be selected of them.

    Returns:
        `turns`; `turns_with_gold`, over which `hit_rate` (any gold passage of any label is a candidate) and `recall`
        (share of the gold passages of all labels that are) are means; over all turns `passages` (candidates a turn) and
        `pi_f1_bound`, the PI-F1 of who selects a label's evidence wherever it is a candidate. Percent; None of nothing.
    """
    hits, recalls, bounds = [], [], []
    for turn in turns:
        gold, known = frozenset(turn.gold), frozenset(ids[turn.name])
        if gold:
            hits.append(float(bool(gold & known)))
            recalls.append(len(gold & known) / len(gold))
        reached = [(min(len(label.passages & known), selected), len(label.passages)) for label in turn.labels]
        bounds.append(max(2 * covered / (covered + size) if covered else 0.0 for covered, size in reached))
    return {
        "turns": len(turns),
        "turns_with_gold": len(hits),
        "passages": sum(len(ids[turn.name]) for turn in turns) / len(turns),
        "hit_rate": mean_percent(hits),
        "recall": mean_percent(recalls),
        "pi_f1_bound": mean_percent(bounds),
    }
