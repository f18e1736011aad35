"""Each reward during fine-grained RLHF: figure 6.4 of the thesis, with the true rates beside."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finegrained_lab.experiments.comparison import Claim, spread_heading, spread_table
from finegrained_lab.experiments.factworld.base import Table
from finegrained_lab.experiments.factworld.curves import (
    Curve,
    Measure,
    curve,
    reward_of,
    reward_per_segment,
    validations,
    z_normalised,
)
from finegrained_lab.figures import Lines, band, draw_lines
from finegrained_rlhf.factworld.report import RATES
from finegrained_rlhf.text.tables import markdown_table, summarise_rows

RUN = "fine_grained_rlhf"
REL, FACT, COMP = "reward_relevance", "reward_factuality", "reward_completeness"
REL_SEGMENT, FACT_SEGMENT = "per_segment_relevance", "per_segment_factuality"


def _column(name: str) -> Measure:
    return lambda row: float(row[name])


SERIES: Mapping[str, Measure] = {
    REL: reward_of("relevance"),
    FACT: reward_of("factuality"),
    COMP: reward_of("completeness"),
    REL_SEGMENT: reward_per_segment("relevance"),
    FACT_SEGMENT: reward_per_segment("factuality"),
    **{name: _column(name) for name in RATES},
    "tokens": _column("response_length"),
}
PANELS = {
    "reward an answer (z)": {"relevance": REL, "factuality": FACT, "completeness": COMP},
    "mean reward of segments (z)": {"relevance": REL_SEGMENT, "factuality": FACT_SEGMENT, "completeness": COMP},
    "true rates, by the oracle": dict(
        zip(("relevance errors", "factual errors", "asked facts given"), RATES, strict=True)
    ),
}
PAIRS = ((REL_SEGMENT, COMP), (FACT_SEGMENT, COMP), (REL_SEGMENT, FACT_SEGMENT))
Z = (REL, FACT, COMP, REL_SEGMENT, FACT_SEGMENT)
"""What the figure shows z-normalised."""


@dataclass(frozen=True)
class DynamicsTable(Table):
    """Do the rewards compete?"""

    title = "FactWorld: each reward during fine-grained RLHF (figure 6.4)"
    about = (
        "Greedy answers to the dev questions at every validation of `fine_grained_rlhf`. `reward_NAME`: the "
        "component's reward, summed over an answer, mean over answers, unweighted; `per_segment_NAME`: its mean over "
        "all segments; the others are true, by the oracle. `start` is the SFT policy, `lowest_at` and `highest_at` are "
        "episodes. In the figure each seed's rewards are z-normalised: mean 0 and variance 1 over its validations. A "
        "statement of the thesis is one that a curve of white noise meets in half of the cases, so that by chance it "
        "holds in three of three seeds once in eight times: that a curve was once above its start, nine such curves in "
        "ten meet."
    )
    runs = (RUN,)
    columns = ("start", "lowest", "highest", "end", "lowest_at", "highest_at")
    caption = "Rewards of the three components and true rates during training; means over seeds, bands their range"
    claims = (
        Claim(
            "factuality ends above where it began", "figure 6.4", "end", FACT_SEGMENT, ">", FACT_SEGMENT, None, "start"
        ),
        Claim("relevance ends above where it began", "figure 6.4", "end", REL_SEGMENT, ">", REL_SEGMENT, None, "start"),
        Claim("… and peaks before completeness does", "figure 6.4", "highest_at", REL_SEGMENT, "<", COMP),
        Claim(
            "completeness is lowest before it is highest",
            *("figure 6.4", "lowest_at", COMP, "<", COMP),
            right_column="highest_at",
        ),
    )

    def measure(self, roots: Mapping[int, Path]) -> dict[str, Any]:
        """A row a series and seed, and the curves."""
        by_seed = {seed: validations(root / RUN) for seed, root in roots.items()}
        curves = {name: [curve(rows, measure) for rows in by_seed.values()] for name, measure in SERIES.items()}
        rows = [
            {"system": name, "seed": seed, **turning_points(of_seed)}
            for name, of_name in curves.items()
            for seed, of_seed in zip(by_seed, of_name, strict=True)
        ]
        return {
            "rows": rows,
            "summary": {n: summarise_rows([r for r in rows if r["system"] == n], self.columns) for n in SERIES},
            "curves": {name: band(of_name) for name, of_name in curves.items()},
            "correlations": [
                {"rewards": f"{a}, {b}", "seed": seed, "correlation": moves_together(curves[a][i], curves[b][i])}
                for a, b in PAIRS
                for i, seed in enumerate(by_seed)
            ],
            "z_normalised": {name: band([z_normalised(of_seed) for of_seed in curves[name]]) for name in Z},
        }

    def body(self, result: Mapping[str, Any]) -> str:
        """Spread, and every seed."""
        rows = [{**row, "series": row["system"]} for row in result["rows"]]
        pairs = dict.fromkeys(row["rewards"] for row in result["correlations"])
        together = [
            {
                "rewards": pair,
                **{f"seed {r['seed']}": r["correlation"] for r in result["correlations"] if r["rewards"] == pair},
            }
            for pair in pairs
        ]
        seeds = result["seeds"]
        return (
            f"## {spread_heading(seeds)}\n\n{spread_table(result['summary'], 'series', self.columns, seeds)}\n"
            "## Do they compete?\n\nCorrelation of the changes of two rewards from one validation to the next: below 0 "
            "where one rises when the other falls.\n\n"
            f"{markdown_table(together, ['rewards', *(f'seed {seed}' for seed in result['seeds'])])}\n"
            f"## Every seed\n\n{markdown_table(rows, ['series', 'seed', *self.columns])}"
        )

    def draw(self, result: Mapping[str, Any], path: Path) -> None:
        """Rewards an answer, rewards a segment, and the truth."""
        known = {**result["curves"], **result["z_normalised"]}
        panels = [
            Lines(title, "z" if "(z)" in title else "share", {label: known[name] for label, name in of.items()})
            for title, of in PANELS.items()
        ]
        draw_lines(path, panels)


def turning_points(of_seed: Curve) -> dict[str, float]:
    """First, lowest, highest and last value; the episodes of lowest and highest, the first of equal ones."""
    points: Sequence[int] = sorted(of_seed)
    lowest, highest = min(points, key=lambda at: of_seed[at]), max(points, key=lambda at: of_seed[at])
    return {
        "start": of_seed[points[0]],
        "lowest": of_seed[lowest],
        "highest": of_seed[highest],
        "end": of_seed[points[-1]],
        "lowest_at": lowest,
        "highest_at": highest,
    }


def moves_together(a: Curve, b: Curve) -> float:
    """Pearson correlation of two curves' changes between validations; 0 where one of them changes evenly."""
    changes = [[of[y] - of[x] for x, y in itertools.pairwise(sorted(of))] for of in (a, b)]
    try:
        return statistics.correlation(*changes)
    except statistics.StatisticsError:
        return 0.0
