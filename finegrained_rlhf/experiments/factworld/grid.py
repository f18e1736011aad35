"""From the runs of a grid over learning rate and β to a results file that says which one each system takes.

Reads validations on the dev questions only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_jsonl
from finegrained_rlhf.experiments.factworld.results import RATES, exported_validation, mean_error
from finegrained_rlhf.experiments.results_table import Results
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.text.tables import markdown_table

COLUMNS = ("system", "lr", "beta", *RATES, "mean_error", "best_step", "steps", "kl")


@dataclass(frozen=True)
class FactWorldGrid(Results):
    """Collects the runs `SYSTEM_lr…_beta…` below a directory.

    Attributes:
        directory: of the runs.
        seed: of the draw.
    """

    directory: str
    seed: int

    def run(self) -> dict[str, Any]:
        """Write both files and print the page.

        Raises:
            DataError: there are no runs.
        """
        runs = [RunDirectory(path) for path in sorted(Path(self.directory).glob("*_lr*_beta*"))]
        if not runs:
            raise DataError("no runs of a grid here", file=self.directory)
        rows = [self._row(run) for run in runs]
        systems = sorted({row["system"] for row in rows})
        best = {s: min((r for r in rows if r["system"] == s), key=lambda r: r["mean_error"]) for s in systems}
        result = {
            **self.made_by(),
            "seeds": [self.seed],
            "rows": rows,
            "summary": {system: {"lr": row["lr"], "beta": row["beta"]} for system, row in best.items()},
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
        return (
            f"{self.opening(result, title, about)}\n\n"
            f"{markdown_table(rows, COLUMNS)}\n"
            f"Chosen, by the lowest mean error: {chosen}.\n"
        )

    def _row(self, run: RunDirectory) -> dict[str, Any]:
        config = yaml.safe_load(run.config_path.read_text(encoding="utf-8"))
        validation, steps = exported_validation(run), read_jsonl(run.metrics)
        return {
            "system": run.path.name.partition("_lr")[0],
            "seed": self.seed,
            "lr": float(config["optimizer"]["lr"]),
            "beta": float(config["ppo"]["kl"]["beta"]),
            **{name: validation[name] for name in RATES},
            "mean_error": mean_error(validation),
            "best_step": validation["step"],
            "steps": steps[-1]["step"],
            "kl": steps[-1]["kl"],
        }
