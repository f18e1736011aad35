"""From the runs of a grid over learning rate and β, on one seed or several, to a file that says what each system takes.

Reads validations on the dev questions only.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from finegrained_lab.experiments.results_table import Results
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_jsonl
from finegrained_rlhf.core.markers import Seed
from finegrained_rlhf.factworld.report import RATES, exported_validation, mean_error
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.text.tables import markdown_table

COLUMNS = ("system", "lr", "beta", *RATES, "mean_error", "best_step", "steps", "kl")
MEANS = (*RATES, "mean_error", "kl")


@dataclass(frozen=True)
class FactWorldGrid(Results):
    """Collects the runs `SYSTEM_lr…_beta…` below a directory a seed.

    A system takes the point with the lowest mean error over seeds, of the points that were run on all of them.

    Attributes:
        directory: of the runs; `{seed}` in it becomes the seed.
        seeds: of the draws.
    """

    directory: str
    seeds: Sequence[Seed]

    def run(self) -> dict[str, Any]:
        """Write both files and print the page.

        Raises:
            DataError: there are no runs of a seed, or no point of a system was run on all seeds.
        """
        rows = [row for seed in self.seeds for row in self._rows(seed)]
        points = mean_points(rows, len(self.seeds))
        best = {
            system: min((p for p in points if p["system"] == system), key=lambda p: p["mean_error"], default=None)
            for system in sorted({row["system"] for row in rows})
        }
        for system, point in best.items():
            if point is None:
                raise DataError(f"no point of {system} was run on all of the seeds {self.seeds}", file=self.directory)
        result = {
            **self.made_by(),
            "seeds": list(self.seeds),
            "rows": rows,
            "points": points,
            "summary": {system: {"lr": p["lr"], "beta": p["beta"]} for system, p in best.items() if p},
        }
        return self.write(result)

    def page(self, result: Mapping[str, Any]) -> str:
        """The page of a results file."""
        rows = [{**row, "lr": f"{row['lr']:g}", "beta": f"{row['beta']:g}"} for row in result["rows"]]
        chosen = "; ".join(f"{s}: lr {v['lr']:g}, β {v['beta']:g}" for s, v in result["summary"].items())
        title = "FactWorld: the grid over learning rate and β"
        about = (
            "True errors by the oracle on the dev questions, of the policy that each run exports (best validation "
            "reward); `kl` is the last step's, in nats an episode."
        )
        several = len(result["seeds"]) > 1
        columns = ("system", "seed", *COLUMNS[1:]) if several else COLUMNS
        means = ""
        if several:
            points = [{**p, "lr": f"{p['lr']:g}", "beta": f"{p['beta']:g}"} for p in result["points"]]
            means = (
                f"## Mean over seeds, of the points that were run on all\n\n"
                f"{markdown_table(points, ('system', 'lr', 'beta', *MEANS))}\n"
            )
        return (
            f"{self.opening(result, title, about)}\n\n"
            f"{markdown_table(rows, columns)}\n{means}"
            f"Chosen, by the lowest mean error: {chosen}.\n"
        )

    def _rows(self, seed: int) -> list[dict[str, Any]]:
        directory = Path(self.directory.replace("{seed}", str(seed)))
        runs = [RunDirectory(path) for path in sorted(directory.glob("*_lr*_beta*"))]
        if not runs:
            raise DataError("no runs of a grid here", file=directory)
        return [self._row(run, seed) for run in runs]

    def _row(self, run: RunDirectory, seed: int) -> dict[str, Any]:
        config = yaml.safe_load(run.config_path.read_text(encoding="utf-8"))
        validation, steps = exported_validation(run), read_jsonl(run.metrics)
        return {
            "system": run.path.name.partition("_lr")[0],
            "seed": seed,
            "lr": float(config["optimizer"]["lr"]),
            "beta": float(config["ppo"]["kl"]["beta"]),
            **{name: validation[name] for name in RATES},
            "mean_error": mean_error(validation),
            "best_step": validation["step"],
            "steps": steps[-1]["step"],
            "kl": steps[-1]["kl"],
        }


def mean_points(rows: Sequence[Mapping[str, Any]], seeds: int) -> list[dict[str, Any]]:
    """The mean over seeds of each point (system, lr, β) that was run on all of so many seeds, in the rows' order."""
    points: dict[tuple[str, float, float], list[Mapping[str, Any]]] = {}
    for row in rows:
        points.setdefault((row["system"], row["lr"], row["beta"]), []).append(row)
    return [
        {"system": system, "lr": lr, "beta": beta, **{name: statistics.fmean(r[name] for r in runs) for name in MEANS}}
        for (system, lr, beta), runs in points.items()
        if len(runs) == seeds
    ]
