"""A results table of FactWorld: what stands beside its rows, and what all its experiments share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from finegrained_lab.experiments.factworld.curves import curve, last_step, mean_height, validations
from finegrained_lab.experiments.results_table import ResultsTable, setting_of
from finegrained_rlhf.factworld.report import RATES, REWARD_MODELS, exported_validation, mean_error, run_seconds
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory

SHARED_RUNS = ("sft", *(f"reward_models/{kind}" for kind in REWARD_MODELS))
"""What `pipeline=factworld/models` trains for all tables."""
WITHOUT_PREFERENCE = tuple(run for run in SHARED_RUNS if run != "reward_models/preference")


@dataclass(frozen=True)
class Table(ResultsTable):
    """Collects a FactWorld experiment of several seeds; `runs` are those it trains beside `shared`."""

    world: ClassVar[str] = "FactWorld"
    shared: ClassVar[tuple[str, ...]] = SHARED_RUNS

    def conditions(self, roots: Mapping[int, Path]) -> dict[str, Any]:
        """The annotator's noise, which must be the same for all seeds."""
        return {"annotator_noise": float(setting_of(roots, "noise"))}

    def introduction(self, result: Mapping[str, Any]) -> str:
        """What was measured, and the annotator's noise."""
        return f"{super().introduction(result)} Annotator noise {result['annotator_noise']:g}."

    def _timed(self) -> dict[str, tuple[str, ...]]:
        return {"table": self.runs, "shared_models": self.shared}

    def took(self, result: Mapping[str, Any]) -> str:
        """How long this table's runs and the shared ones took."""
        own, shared = (sum(result["seconds"][part].values()) / 60 for part in ("table", "shared_models"))
        return (
            f"Training steps and validations of this table's runs ({', '.join(self.runs)}), all seeds together: "
            f"{own:.1f} minutes, one run after the other; what several tables show is counted in each. SFT and reward "
            f"models, on which all tables stand: {shared:.1f} minutes. Loading, sampling, annotating and evaluating "
            "are not counted."
        )


def trained_row(root: Path, run: str) -> dict[str, Any]:
    """What a PPO run says of itself on the dev questions: of the policy that it exports, and of its training.

    Returns:
        The true rates, `mean_error`, `error_during_training`, `proxy_reward`, `tokens`, `best_step`, `steps`, `kl` and
        `seconds`.

    Raises:
        DataError: the run has no validations, or none by the oracle.
    """
    directory = RunDirectory(root / run)
    exported, last = exported_validation(directory), last_step(directory)
    return {
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
