"""The original code's choices that `ppo.compat` brings back, each alone against none, on the dev questions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finegrained_lab.experiments.compared_table import ComparedTable
from finegrained_lab.experiments.factworld.base import Table, trained_row
from finegrained_rlhf.factworld.report import RATES

NONE = "fine_grained_rlhf"
SWITCHES = ("whiten_by_root_std", "update_dropout", "micro_batch_sums")


@dataclass(frozen=True)
class CompatTable(Table, ComparedTable):
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
    systems = runs
    baseline = NONE
    columns = (*RATES, "mean_error", "error_during_training", "proxy_reward", "tokens", "best_step", "steps", "kl")

    def row(self, root: Path, system: str, seed: int) -> dict[str, Any]:
        """One run of one seed."""
        trained = trained_row(root, system)
        return {"system": system, "seed": seed, **{name: trained[name] for name in (*self.columns, "seconds")}}
