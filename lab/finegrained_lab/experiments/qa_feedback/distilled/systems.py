"""Systems side by side on held-out questions: means over samples, the best of n, trivial answers, differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from finegrained_lab.experiments.gate import CUT_LEAD, GOLD
from finegrained_lab.experiments.intervals import crossed_interval, difference_interval
from finegrained_lab.experiments.qa_feedback.distilled.pool import (
    CUT_GOLD,
    MEASURES,
    TOTAL,
    Pooled,
    best_of_n,
    totals,
    trivial_of,
)
from finegrained_lab.experiments.qa_feedback.measures import Measured, measured_answers
from finegrained_lab.experiments.qa_feedback.trivial import BEST_SENTENCE
from finegrained_rlhf.text.tables import markdown_table

if TYPE_CHECKING:
    from reward_models.bottleneck.model import Bottleneck

Systems = dict[str, list[Measured]]
"""By system the measures of each question, what reward models give among them."""


def sampled_systems(
    pools: Mapping[str, Sequence[Pooled]], columns: Sequence[str], counts: Sequence[int] = ()
) -> Systems:
    """Of each pool the mean sample, and the best of n by the reward: of `counts`, and of all samples."""
    systems: Systems = {}
    for name, pool in pools.items():
        most = min(len(one.measures) for one in pool)
        for n in sorted({1, *(n for n in counts if n < most), most}):
            systems[f"{name}, best of {n}" if n > 1 else name] = [
                {c: best_of_n(one.rewards[TOTAL], _values(one, c), n) for c in columns} for one in pool
            ]
    return systems


def trivial_systems(models: Mapping[str, Bottleneck], pool: Sequence[Pooled]) -> Systems:
    """Gold answers, their first words, and copies, to the questions of a pool; `models` by the name of their column."""
    systems: Systems = {name: [] for name in (GOLD, CUT_GOLD, CUT_LEAD, BEST_SENTENCE)}
    for record in (one.record for one in pool):
        texts = trivial_of(record)
        for name, rows in systems.items():
            row = measured_answers(record.question, record.passages, record.references[0], [texts[name]])[0]
            given = {column: totals(model, record, [texts[name]])[TOTAL][0] for column, model in models.items()}
            rows.append({**row, **given})
    return systems


def _values(one: Pooled, column: str) -> Sequence[float | None]:
    return [of[column] for of in one.measures] if column in MEASURES else one.rewards[column]


def means(rows: Sequence[Measured], columns: Sequence[str]) -> dict[str, float | None]:
    """Over the questions where a column is known."""
    known = {c: [value for row in rows if (value := row[c]) is not None] for c in columns}
    return {c: fmean(of) if of else None for c, of in known.items()}


def differences(
    ours: Sequence[Measured], theirs: Sequence[Measured], columns: Sequence[str]
) -> dict[str, list[float] | None]:
    """By column the mean difference over the questions where both are known, with 95% borders; None where none is."""
    return {c: _difference([row[c] for row in ours], [row[c] for row in theirs]) for c in columns}


def _difference(ours: Sequence[float | None], theirs: Sequence[float | None]) -> list[float] | None:
    pairs = [(a, b) for a, b in zip(ours, theirs, strict=True) if a is not None and b is not None]
    if not pairs:
        return None
    first, second, ones = [a for a, _ in pairs], [b for _, b in pairs], [1.0] * len(pairs)
    return [fmean(first) - fmean(second), *difference_interval((first, ones), (second, ones))]


def differences_page(rows: Sequence[Mapping[str, object]], columns: Sequence[str]) -> str:
    """A table of `differences`."""
    return markdown_table(
        [{"system": row["system"], **{c: _shown(row[c]) for c in columns}} for row in rows], ["system", *columns]
    )


def _shown(difference: object) -> str:
    if not isinstance(difference, Sequence):
        return "–"
    value, low, high = difference
    return f"{value:+.3f} [{low:+.2f}, {high:+.2f}]"


def differences_over_seeds(
    ours: Mapping[int, Sequence[Measured]], theirs: Mapping[int, Sequence[Measured]], columns: Sequence[str]
) -> dict[str, list[float] | None]:
    """`differences` of systems by seed, of the same questions in one order: questions and seeds are drawn again."""
    if len(ours) == 1:
        return differences(next(iter(ours.values())), next(iter(theirs.values())), columns)
    found: dict[str, list[float] | None] = {}
    for c in columns:
        first, second = (
            np.array([[row[c] for row in of[seed]] for seed in ours], dtype=float) for of in (ours, theirs)
        )
        gaps = first - second
        found[c] = [float(np.nanmean(gaps)), *crossed_interval(first, second)] if np.isfinite(gaps).any() else None
    return found
