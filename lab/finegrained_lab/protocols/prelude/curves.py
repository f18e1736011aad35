"""PRELUDE's rounds as curves: what edits have cost so far, and how many drafts needed none.

Reads `rounds.jsonl`.
"""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path

from finegrained_lab.figures import Lines, draw_lines
from finegrained_lab.protocols.prelude.measures import BIN, Round
from finegrained_rlhf.core.files import read_jsonl


def cost_curves(rounds: Path) -> tuple[dict[str, dict[int, float]], dict[str, dict[int, float]]]:
    """By agent: Σ c_t by round, in tokens; and the share of untouched drafts among the `BIN` rounds that end there.

    Args:
        rounds: FILE of rounds, as `RunPrelude` writes it.

    Raises:
        DataError: the file is missing or damaged.
    """
    played: dict[str, list[Round]] = {}
    for row in read_jsonl(rounds):
        played.setdefault(row["agent"], []).append(Round(**row))
    summed = {
        agent: dict(enumerate(accumulate(float(one.distance) for one in own), start=1)) for agent, own in played.items()
    }
    untouched = {
        agent: {end: sum(one.untouched for one in own[end - BIN : end]) / BIN for end in range(BIN, len(own) + 1, BIN)}
        for agent, own in played.items()
    }
    return summed, untouched


def draw_cost_curves(rounds: Path, path: Path) -> None:
    """Both curves of every agent, side by side.

    Args:
        rounds: FILE of rounds.
        path: to write, `.svg` or `.png`.

    Raises:
        ConfigError: matplotlib is not installed.
        DataError: the file is missing or damaged.
    """
    summed, untouched = cost_curves(rounds)
    panels = [Lines("cumulative cost", "words and marks", runs={agent: [curve] for agent, curve in summed.items()})]
    if any(untouched.values()):
        share = f"share of the last {BIN}"
        panels.append(Lines("untouched drafts", share, runs={agent: [curve] for agent, curve in untouched.items()}))
    draw_lines(path, panels, x_label="rounds")
