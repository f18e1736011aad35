"""Results tables of systems: one row a system and seed, how far each is from a baseline, how training went."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from finegrained_lab.experiments.comparison import compared, compared_page
from finegrained_lab.experiments.results_table import ResultsTable
from finegrained_lab.figures import Lines, band, curve_of, draw_lines
from finegrained_rlhf.core.files import read_jsonl
from finegrained_rlhf.factworld.report import run_seconds
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory


@dataclass(frozen=True)
class ComparedTable(ResultsTable):
    """A table with a row a system and seed, whose systems are compared with one of them, seed by seed."""

    systems: ClassVar[tuple[str, ...]]
    baseline: ClassVar[str]
    """The system that the others are compared with."""
    columns: ClassVar[tuple[str, ...]]
    """What the page shows of the rows."""

    @abstractmethod
    def row(self, root: Path, system: str, seed: int) -> dict[str, Any]:
        """One row: `system`, `seed` and numbers.

        Args:
            root: the directory of the seed.
            system: one of `systems`.
            seed: of the experiment.

        Raises:
            DataError: a step's result is missing or is not what it should be.
        """

    def rows(self, roots: Mapping[int, Path]) -> list[dict[str, Any]]:
        """Every row, system by system."""
        return [self.row(root, system, seed) for system in self.systems for seed, root in roots.items()]

    def shown_columns(self, rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
        """The columns of these rows that the page shows."""
        return self.columns

    def compare(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """`rows`, `summary` by system and `differences` from the baseline."""
        columns = self.shown_columns(rows)
        return {"rows": rows, **compared(rows, self.systems, columns, self.baseline)}

    def measure(self, roots: Mapping[int, Path]) -> dict[str, Any]:
        """Rows, their spread, and the differences from the baseline."""
        return self.compare(self.rows(roots))

    def body(self, result: Mapping[str, Any]) -> str:
        """Spread, differences, every run."""
        return compared_page(result, self.shown_columns(result["rows"]), self.baseline)


@dataclass(frozen=True)
class CurvesTable(ComparedTable):
    """A table of trained systems that shows how their validations went, in a second figure beside its own."""

    curved: ClassVar[tuple[str, ...]]
    """The runs whose curves are kept."""
    validated: ClassVar[tuple[str, ...]]
    """What a curve holds of each validation."""

    def training(self, roots: Mapping[int, Path]) -> dict[str, Any]:
        """`curves` by run and seed, and the `minutes` that each run spent in training steps and validations."""
        seeds = roots.values()
        return {
            "curves": {run: [read_curve(root / run, self.validated) for root in seeds] for run in self.curved},
            "minutes": {run: [run_seconds(RunDirectory(root / run)) / 60 for root in seeds] for run in self.runs},
        }

    @property
    def curves_path(self) -> Path:
        """Where the figure of the curves goes."""
        return self.figure_path.with_name(f"{self.figure_path.stem}_curves.svg")

    @property
    def curves_image(self) -> str:
        """The figure of the curves, on the page."""
        return f"![Validation during training]({self.curves_path.name})"

    def longest(self, result: Mapping[str, Any]) -> str:
        """How long the longest run took, in a sentence."""
        return f"The longest run took {max(max(minutes) for minutes in result['minutes'].values()):.1f} minutes."

    def draw_bands(self, result: Mapping[str, Any], path: Path, titles: Mapping[str, str]) -> None:
        """Draw a panel a validated column: of each run the mean and the range over seeds.

        Args:
            result: of the table.
            path: of the figure.
            titles: column → title of its panel.

        Raises:
            ConfigError: matplotlib is not installed.
        """
        panels = []
        for name, title in titles.items():
            curves = {run: [curve_of(curve, name) for curve in result["curves"][run]] for run in self.curved}
            panels.append(Lines(title, title, bands={run: band(of) for run, of in curves.items()}))
        draw_lines(path, panels, x_label="training steps")

    def draw_curves(self, result: Mapping[str, Any], labels: Mapping[str, str], titles: Mapping[str, str]) -> None:
        """Draw a panel a validated column, a line a seed: the mean of runs of which one failed lies where none is.

        Args:
            result: of the table.
            labels: run → label of its line.
            titles: column → title of its panel.

        Raises:
            ConfigError: matplotlib is not installed.
        """
        curves = result["curves"]
        panels = []
        for name, title in titles.items():
            runs = {label: [curve_of(curve, name) for curve in curves[run]] for run, label in labels.items()}
            panels.append(Lines(title, title, runs=runs))
        draw_lines(self.curves_path, panels, x_label="training steps")


def read_curve(directory: Path, columns: Sequence[str]) -> list[dict[str, float]]:
    """The step and some columns of each validation of a run."""
    return [{name: row[name] for name in ("step", *columns)} for row in read_jsonl(RunDirectory(directory).eval)]
