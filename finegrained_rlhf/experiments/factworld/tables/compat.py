"""The original code's choices that `ppo.compat` brings back, each alone against none, on the dev questions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finegrained_rlhf.experiments.factworld.base import Table
from finegrained_rlhf.experiments.factworld.curves import curve, last_step, mean_height, validations
from finegrained_rlhf.experiments.factworld.evaluated import compared, compared_page
from finegrained_rlhf.experiments.factworld.results import RATES, exported_validation, mean_error
from finegrained_rlhf.experiments.results_table import run_seconds
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory

NONE = "fine_grained_rlhf"
SWITCHES = ("whiten_by_root_std", "update_dropout", "micro_batch_sums")


@dataclass(frozen=True)
class CompatTable(Table):
    """What each switch changes."""

    title = "FactWorld: the original code's choices, one at a time"
    about = (
        "True errors by the oracle on the dev questions, greedy decoding, of the policy that each run exports (best "
        "validation reward, step `best_step`). `fine_grained_rlhf` has no switch on; `compat_NAME` has "
        "`ppo.compat.NAME` on and is the same run otherwise, `micro_batch_sums` in eight micro-batches instead of two, "
        "which changes nothing where the switch is off. `error_during_training` is the mean of the curve over all "
        "episodes, `kl` the last step's in nats an episode, `proxy_reward` the exported policy's reward."
    )
    runs = (NONE, *(f"compat_{name}" for name in SWITCHES))
    columns = (*RATES, "mean_error", "error_during_training", "proxy_reward", "tokens", "best_step", "steps", "kl")

    def measure(self, roots: Mapping[int, Path]) -> dict[str, Any]:
        """A row a run."""
        rows = [self._row(root, run, seed) for run in self.runs for seed, root in roots.items()]
        return {"rows": rows, **compared(rows, self.runs, self.columns, NONE)}

    def _row(self, root: Path, run: str, seed: int) -> dict[str, Any]:
        directory = RunDirectory(root / run)
        exported, last = exported_validation(directory), last_step(directory)
        return {
            "system": run,
            "seed": seed,
            **{name: exported[name] for name in RATES},
            "mean_error": mean_error(exported),
            "error_during_training": mean_height(curve(validations(directory.path), mean_error)),
            "proxy_reward": exported["reward/total"],
            "tokens": exported["response_length"],
            "best_step": exported["step"],
            "steps": last["step"],
            "kl": last["kl"],
            "seconds": run_seconds(directory),
        }

    def body(self, result: Mapping[str, Any]) -> str:
        """Spread, differences, every run."""
        return compared_page(result, self.columns, NONE)
