"""What tables of evaluated systems share: a row a system and seed from its answers to the test questions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from finegrained_rlhf.experiments.comparison import compared, compared_page
from finegrained_rlhf.experiments.factworld.answers import TEST_COLUMNS, evaluated_row
from finegrained_rlhf.experiments.factworld.base import Table

ON_TEST = (
    "True errors by the oracle and the opinion of the seed's reward models (`rel_reward`, `fact_reward`: share of "
    "sub-sentences, of sentences, found free of error; `comp_reward`: mean score) on held-out test questions."
)


@dataclass(frozen=True)
class EvaluatedTable(Table):
    """A table of systems whose answers to the test questions were evaluated."""

    systems: ClassVar[tuple[str, ...]]
    baseline: ClassVar[str]
    """The system that the others are compared with, seed by seed."""
    columns: ClassVar[tuple[str, ...]] = TEST_COLUMNS

    def measure(self, roots: Mapping[int, Path]) -> dict[str, Any]:
        """Rows, their spread, and the differences from the baseline."""
        rows = [self.row(root, system, seed) for system in self.systems for seed, root in roots.items()]
        return {"rows": rows, **compared(rows, self.systems, self.columns, self.baseline)}

    def row(self, root: Path, system: str, seed: int) -> dict[str, Any]:
        """One row."""
        return evaluated_row(root, system, seed)

    def body(self, result: Mapping[str, Any]) -> str:
        """Spread, differences, every run."""
        return compared_page(result, self.columns, self.baseline)
