"""Which answers to annotate next: reward models after so many annotated answers, chosen by each strategy.

Reads what the steps of the experiment wrote; runs no model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from finegrained_lab.experiments.comparison import compared, differences, spread_heading, spread_table
from finegrained_lab.experiments.intervals import borders, resampled
from finegrained_lab.experiments.results_table import ResultsTable
from finegrained_lab.figures import Lines, band, draw_lines
from finegrained_rlhf.core.files import read_json, read_jsonl
from finegrained_rlhf.text.tables import cell, markdown_table

COUNTS = (50, 150, 400)
STRATEGIES = ("random", "uncertain", "disagree", "drift", "diverse")
SYSTEMS = ("first", *(f"{name}_{count}" for name in STRATEGIES for count in COUNTS), "all")
KINDS = ("relevance", "factuality", "completeness")
COLUMNS = ("relevance_f1", "factuality_f1", "relevance", "factuality", "completeness")
MEASURED = ("relevance_f1", "factuality_f1", "completeness")
"""What is compared and drawn: F1 of "has error" of the segment models, accuracy of the model of pairs."""


@dataclass(frozen=True)
class SelectionTable(ResultsTable):
    """Reward models after 50, 150 and 400 annotated answers of a policy, by what chose the answers."""

    title: ClassVar[str] = "FactWorld: which answers should be annotated next?"
    world: ClassVar[str] = "FactWorld"
    runs: ClassVar[tuple[str, ...]] = ("policy", *(f"{system}/{kind}" for system in SYSTEMS for kind in KINDS))
    about: ClassVar[str] = (
        "Reward models that learnt from {first} annotated answers of SFT (`first`) train a policy by PPO. Of its "
        "answers to the {train_questions:,} training questions some are annotated, by the oracle, chosen by chance "
        "(`random`), by the mean entropy of the models (`uncertain`), by their disagreement with models of another "
        "seed (`disagree`), by the rise of the reward since SFT where trust in the models fell (`drift`), or by "
        "greedy k-centre on the models' hidden states (`diverse`); 30% are chosen by chance everywhere. Reward models"
        " then learn from scratch from all that is annotated; `all`: from all of them. They are held against the "
        "oracle on the policy's answers to {dev_questions} dev questions: F1 of has error (`_f1`), and accuracy over "
        "segments or pairs."
    )
    caption: ClassVar[str] = "Reward models by annotated answers: mean over seeds, band from the lowest to the highest"

    def measure(self, roots: Mapping[int, Path]) -> dict[str, Any]:
        """Rows, their spread, differences from chance with as many answers, and their intervals over questions."""
        rows = [_row(root, system, seed) for system in SYSTEMS for seed, root in roots.items()]
        by_count = {}
        for count in COUNTS:
            names = [f"{name}_{count}" for name in STRATEGIES]
            of_count = [row for row in rows if row["system"] in names]
            by_count[str(count)] = differences(of_count, f"random_{count}", MEASURED)
        return {
            "rows": rows,
            "summary": compared(rows, SYSTEMS, COLUMNS, "first")["summary"],
            "from_random": by_count,
            "intervals": {
                f"{name}_{count}": {
                    measure: _interval(roots, f"{name}_{count}", f"random_{count}", measure) for measure in MEASURED
                }
                for name in STRATEGIES[1:]
                for count in COUNTS
            },
        }

    def body(self, result: Mapping[str, Any]) -> str:
        """Spread, differences from chance, every run."""
        lines = []
        for systems in result["from_random"].values():
            for system, columns in systems.items():
                line = {"system": system}
                for name, gap in columns.items():
                    low, high = result["intervals"][system][name]
                    over = f"{gap['higher']} of {gap['seeds']}"
                    line[name] = f"{gap['mean']:+.3f} [{low:+.3f}, {high:+.3f}] (higher in {over})"
                lines.append(line)
        seeds = result["seeds"]
        rows = [{key: cell(value) for key, value in row.items()} for row in result["rows"]]
        return (
            f"## {spread_heading(seeds)}\n\n{spread_table(result['summary'], 'system', COLUMNS, seeds)}\n"
            "## Difference from as many answers chosen by chance\n\nMean over seeds, 95% interval over the dev "
            f"questions of all seeds.\n\n{markdown_table(lines, ['system', *MEASURED])}\n{_verdict(result)}\n\n"
            f"## Every run\n\n{markdown_table(rows, ['system', 'seed', *COLUMNS])}"
        )

    def took(self, result: Mapping[str, Any]) -> str:
        """How long training took, in a sentence or two."""
        runs = result["seconds"]["table"]
        minutes = sum(runs.values()) / 60
        return (
            f"Training steps and validations of the policy and of {len(runs) - 1} reward models, all seeds together: "
            f"{minutes:.1f} minutes, one run after the other. SFT, annotation and evaluation are not counted."
        )

    def draw(self, result: Mapping[str, Any], path: Path) -> None:
        """A panel a measure, a line a strategy, from no annotated answer of the policy to 400.

        Raises:
            ConfigError: matplotlib is not installed.
        """
        rows = {(row["system"], row["seed"]): row for row in result["rows"]}
        panels = []
        for measure, title in zip(MEASURED, ("relevance", "factuality", "completeness"), strict=True):
            bands = {}
            for name in STRATEGIES:
                points = {0: "first", **{count: f"{name}_{count}" for count in COUNTS}}
                curves = [
                    {count: rows[system, seed][measure] for count, system in points.items()} for seed in result["seeds"]
                ]
                bands[name] = band(curves)
            panels.append(Lines(title, "F1 of has error" if measure.endswith("_f1") else "accuracy", bands=bands))
        draw_lines(path, panels, x_label="annotated answers of the policy")


def _row(root: Path, system: str, seed: int) -> dict[str, Any]:
    row: dict[str, Any] = {"system": system, "seed": seed}
    for kind in KINDS:
        report = read_json(root / "accuracy" / f"{system}_{kind}.json")
        row[kind] = report["accuracy"]
        if kind != "completeness":
            row[f"{kind}_f1"] = report["f1"]
    return row


def _interval(roots: Mapping[int, Path], system: str, other: str, measure: str) -> list[float]:
    """The 95% interval of a difference, the dev questions of all seeds drawn again, both systems' together."""
    kind = measure.removesuffix("_f1")
    of_system, of_other = (
        np.concatenate([_counts(root / "accuracy" / f"{name}_{kind}.jsonl") for root in roots.values()])
        for name in (system, other)
    )
    drawn = resampled(np.stack([of_system, of_other], axis=1))
    shares = drawn[..., 0] / np.maximum(drawn[..., 1], 1)
    return list(borders(shares[:, 0] - shares[:, 1]))


def _counts(path: Path) -> NDArray[np.float64]:
    """Of each question, what the measure divides: twice the errors found and all named and real ones; right pairs."""
    rows = []
    for row in read_jsonl(path):
        if row["gaps"]:
            rows.append((sum(gap > 0 for gap in row["gaps"]), len(row["gaps"])))
        else:
            both = zip(row["has_error"], row["claims"], strict=True)
            rows.append((2 * sum(a and b for a, b in both), sum(row["has_error"]) + sum(row["claims"])))
    return np.array(rows, dtype=np.float64)


def _verdict(result: Mapping[str, Any]) -> str:
    """Which strategies are better than chance in every seed and by their interval, made from the numbers."""
    better, worse = [], []
    for systems in result["from_random"].values():
        for system, columns in systems.items():
            for name, gap in columns.items():
                low, high = result["intervals"][system][name]
                if low > 0 and gap["higher"] == gap["seeds"]:
                    better.append(f"{system} ({name})")
                if high < 0 and gap["lower"] == gap["seeds"]:
                    worse.append(f"{system} ({name})")
    compared_with = sum(len(columns) for systems in result["from_random"].values() for columns in systems.values())
    return (
        f"Of {compared_with} comparisons, better than chance in every seed and by the interval: "
        f"{', '.join(better) or 'none'}; worse: {', '.join(worse) or 'none'}. An interval that excludes 0 is expected "
        f"in one of twenty where nothing differs."
    )
