"""Figures of CORESET's runs, as the table takes them. Reads summaries; knows no page."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from finegrained_lab.protocols.coreset.run import ERRORS
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json

MAIN = "mixed"
"""The scenario of the first table."""
WINDOW = 5
"""Turns that a point of a curve is the mean of."""
DRAWN_COUNT = "10"
"""Documents of the conversations in the figure."""
ERRORS_WINDOW = 10
"""Turns that a row of the table of errors is of."""


def figures_of(root: Path, scenario: str, count: str, system: str) -> dict[str, Any]:
    """What a run says of an agent in a scenario with N documents.

    Raises:
        DataError: it says nothing of it.
    """
    file = root / "run" / "summary.json"
    try:
        figures: dict[str, Any] = read_json(file)["figures"][scenario][count][system]
    except KeyError as error:
        raise DataError(f"the run has no {error}", file=file, record=f"{scenario}, {count}, {system}") from None
    return figures


def document_counts(root: Path) -> list[str]:
    """The numbers of documents, as the summary has them."""
    return list(read_json(root / "run" / "summary.json")["figures"][MAIN])


def over_seeds(roots: Mapping[int, Path], scenario: str, count: str, system: str, name: str) -> float:
    """A figure's mean over seeds."""
    return statistics.fmean(figures_of(root, scenario, count, system)[name] for root in roots.values())


def by_remarks_table(roots: Mapping[int, Path], systems: Sequence[str]) -> list[dict[str, Any]]:
    """Precision and recall of `partial` by the number of remarks that hold, means over seeds."""
    rows = []
    for count in document_counts(next(iter(roots.values()))):
        for system in systems:
            by_root = [figures_of(root, "partial", count, system)["by_remarks"] for root in roots.values()]
            rows += [
                {
                    "documents": int(count),
                    "system": system,
                    "remarks": int(remarks),
                    **{
                        name: statistics.fmean(one[remarks][name] for one in by_root)
                        for name in ("precision", "recall")
                    },
                }
                for remarks in by_root[0]
            ]
    return rows


def last_turn_table(roots: Mapping[int, Path], systems: Sequence[str]) -> list[dict[str, Any]]:
    """Precision and recall of `changes` at its last turn, means over seeds."""
    return [
        {
            "documents": int(count),
            "system": system,
            **{
                name: statistics.fmean(
                    figures_of(root, "changes", count, system)["by_turn"][name][-1] for root in roots.values()
                )
                for name in ("precision", "recall")
            },
        }
        for count in document_counts(next(iter(roots.values())))
        for system in systems
    ]


def places_table(roots: Mapping[int, Path]) -> list[dict[str, Any]]:
    """The share of single answers that are the first document's, and of each other document's on average, by seed."""
    rows = []
    for count in document_counts(next(iter(roots.values()))):
        for seed, root in roots.items():
            shares = figures_of(root, "position", count, "no_feedback")["places"]
            others = sum(shares[1:]) / (len(shares) - 1)
            rows.append({"documents": int(count), "seed": seed, "first": shares[0], "others": others})
    return rows


def windowed_curve(root: Path, scenario: str, system: str) -> dict[str, float]:
    """The mean of precision and recall over each `WINDOW` turns, by the turn that ends them."""
    by_turn = figures_of(root, scenario, DRAWN_COUNT, system)["by_turn"]
    both = [statistics.fmean(pair) for pair in zip(by_turn["precision"], by_turn["recall"], strict=True)]
    return {str(end): statistics.fmean(both[end - WINDOW : end]) for end in range(WINDOW, len(both) + 1, WINDOW)}


def errors_table(roots: Mapping[int, Path], systems: Sequence[str]) -> list[dict[str, Any]]:
    """Shares of the main scenario's turns with each error, of each `ERRORS_WINDOW` turns, means over seeds."""
    rows = []
    for system in systems:
        by_root = [figures_of(root, MAIN, DRAWN_COUNT, system)["errors_by_turn"] for root in roots.values()]
        length = len(by_root[0][ERRORS[0]])
        for begin in range(0, length, ERRORS_WINDOW):
            end = begin + ERRORS_WINDOW
            shares = {name: statistics.fmean(sum((one[name][begin:end] for one in by_root), [])) for name in ERRORS}
            rows.append({"system": system, "turns": f"{begin + 1} to {min(end, length)}", **shares})
    return rows
