"""Measuring the regret of every case: many runs of each, their mean and its standard error beside the formula."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from finegrained_lab.worlds.regret.cases import RegretCase, regret_cases
from finegrained_lab.worlds.regret.policies import play_rounds
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import write_json
from finegrained_rlhf.core.markers import OutputDirectory, Seed, at_least
from finegrained_rlhf.core.seeding import stable_hash
from finegrained_rlhf.runtime.console import ProgressBar
from finegrained_rlhf.text.tables import markdown_table

MARGIN = 3.0
"""Standard errors by which a measured regret may lie beyond a bound that is kept."""


def measured_case(case: RegretCase, seed: int, runs: int) -> dict[str, Any]:
    """The regret of one case.

    Args:
        case: which.
        seed: of its random numbers, with its name.
        runs: R.

    Returns:
        The case by name, its formula and bound, and what was measured: `errors` (mean over runs), `error_se` (its
        standard error), `questions` (mean), `z` ((errors − formula) / error_se; None where all runs are alike),
        `agrees` (|z| ≤ 3; or, where all runs are alike, within 3 / R, as what is not seen in R runs may be so likely),
        `kept` (the bound, within 3 standard errors; None without one).
    """
    drawn = case.world.draw([seed, stable_hash("regret", case.name) % 2**32], runs)
    errors, questions = play_rounds(case.make(), drawn)
    mean, error = float(errors.mean()), float(errors.std(ddof=1) / math.sqrt(runs))
    z = (mean - case.expected) / error if error else None
    return {
        "statement": case.statement,
        "group": case.group,
        "x": case.x,
        "policy": case.policy,
        "formula": case.expected,
        "side": case.side,
        "bound": case.bound,
        "follows": case.follows,
        "errors": mean,
        "error_se": error,
        "questions": float(questions.mean()),
        "z": z,
        "agrees": abs(mean - case.expected) <= MARGIN / runs if z is None else abs(z) <= MARGIN,
        "kept": case.keeps(mean, MARGIN * error + 1e-9),
    }


@dataclass(frozen=True)
class MeasureRegret(Settings):
    """Measure the regret of PAHF's policies where it can be computed.

    Writes `summary.json` to `output_dir`: every case with its formula, the paper's bound and what was measured.

    Attributes:
        output_dir: where the results go.
        seed: of the random numbers.
        runs: R, of each case.
        progress: show a progress bar.
    """

    every_process: ClassVar[bool] = False

    output_dir: OutputDirectory
    seed: Seed = 0
    runs: Annotated[int, at_least(2)] = 2000
    progress: bool = True

    def run(self) -> dict[str, Any]:
        """Measure every case, write the results, print a table."""
        cases = regret_cases()
        rows: list[dict[str, Any]] = []
        with ProgressBar("regret", len(cases), "cases", self.progress) as bar:
            for case in cases:
                rows.append(measured_case(case, self.seed, self.runs))
                bar.update()
        summary = {"seed": self.seed, "runs": self.runs, "cases": rows}
        write_json(Path(self.output_dir) / "summary.json", summary)
        shown = ["group", "x", "policy", "formula", "errors", "error_se", "z", "side", "bound", "kept"]
        print(f"{markdown_table(_shown(rows), shown)}\n{len(rows)} cases -> {Path(self.output_dir) / 'summary.json'}")
        return summary


def _shown(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**row, "kept": {True: "yes", False: "no", None: ""}[row["kept"]]} for row in rows]
