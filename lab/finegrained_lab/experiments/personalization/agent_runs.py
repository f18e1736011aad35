"""Agents of several runs of PRELUDE on the same rounds of each seed's world, side by side.

Reads what the steps of an experiment wrote; asks no language model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from finegrained_lab.experiments.comparison import differences, differences_page, spread_heading, spread_table
from finegrained_lab.experiments.results_table import ResultsTable
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json
from finegrained_rlhf.text.tables import markdown_table, summarise_rows


@dataclass(frozen=True)
class AgentRunsTable(ResultsTable):
    """One agent of one run after the other."""

    world: ClassVar[str] = "StyleWorld"
    runs: ClassVar[tuple[str, ...]] = ()
    systems: ClassVar[Mapping[str, tuple[str, str]]]
    """Row → directory of the run in a seed's, and the agent."""
    measures: ClassVar[tuple[str, ...]]
    baselines: ClassVar[tuple[str, ...]]
    """Rows that the others are compared with."""

    def introduction(self, result: Mapping[str, Any]) -> str:
        """What was played, by the settings."""
        return self.about.format_map(result["settings"])

    def measure(self, roots: Mapping[int, Path]) -> dict[str, Any]:
        """Rows, their spread, and the differences from the baselines.

        Raises:
            DataError: a run has no such agent.
        """
        rows = [self._row(root, name, seed) for name in self.systems for seed, root in roots.items()]
        summary = {}
        for name in self.systems:
            own = [row for row in rows if row["system"] == name]
            known = [one for one in self.measures if all(row[one] is not None for row in own)]
            summary[name] = summarise_rows(own, known)
        gaps = {baseline: differences(rows, baseline, self.measures) for baseline in self.baselines}
        return {"rows": rows, "summary": summary, "differences": gaps}

    def body(self, result: Mapping[str, Any]) -> str:
        """Means, differences, every run."""
        seeds: Sequence[int] = result["seeds"]
        gaps = "\n".join(
            f"## Difference from {baseline}, mean over seeds ± its standard error\n\n"
            f"{differences_page(by, self.measures)}"
            for baseline, by in result["differences"].items()
        )
        return (
            f"## {spread_heading(seeds)}\n\n{spread_table(result['summary'], 'row', self.measures, seeds)}\n{gaps}\n"
            f"## Every run\n\n{markdown_table(result['rows'], ['system', 'seed', *self.measures])}"
        )

    def took(self, result: Mapping[str, Any]) -> str:
        """That nothing is trained."""
        return "No model is trained; a seed takes some minutes of a CPU core."

    def _row(self, root: Path, name: str, seed: int) -> dict[str, Any]:
        run, agent = self.systems[name]
        file = root / run / "summary.json"
        figures = read_json(file)["agents"].get(agent)
        if figures is None:
            raise DataError("the run has no such agent", file=file, record=agent)
        return {"system": name, "seed": seed, **{measure: figures.get(measure) for measure in self.measures}}
