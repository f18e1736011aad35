"""What tables of evaluated systems share: a row a system and seed from its answers to the test questions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from finegrained_lab.experiments.compared_table import ComparedTable
from finegrained_lab.experiments.factworld.answers import TEST_COLUMNS, evaluated_row
from finegrained_lab.experiments.factworld.base import Table

ON_TEST = (
    "True errors by the oracle and the opinion of the seed's reward models (`rel_reward`, `fact_reward`: share of "
    "sub-sentences, of sentences, found free of error; `comp_reward`: mean score) on held-out test questions."
)


@dataclass(frozen=True)
class EvaluatedTable(Table, ComparedTable):
    """A table of systems whose answers to the test questions were evaluated."""

    columns: ClassVar[tuple[str, ...]] = TEST_COLUMNS

    def row(self, root: Path, system: str, seed: int) -> dict[str, Any]:
        """One row."""
        return evaluated_row(root, system, seed)
