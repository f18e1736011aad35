"""When dense rewards are paid: where segments end, or as corrections of prefixes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from finegrained_lab.experiments.factworld.answers import TRUTH
from finegrained_lab.experiments.factworld.base import SHARED_RUNS, trained_row
from finegrained_lab.experiments.factworld.evaluated import EvaluatedTable
from finegrained_lab.experiments.factworld.tables.algorithms import best_until, processor_seconds
from finegrained_lab.figures import Bars, draw_bars
from finegrained_rlhf.factworld.report import mean_error
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory

ON_DEV = ("error_during_training", "processor_s", "best_step", "kl")


@dataclass(frozen=True)
class CreditTable(EvaluatedTable):
    """The same rewards, paid at other tokens."""

    title = "FactWorld: when dense rewards are paid"
    about = (
        "True errors by the oracle on held-out test questions, greedy decoding, of the policy that each run exports "
        "(best validation reward, at `best_step`). RLOO with `credit=returns`, the same reward models, weights and "
        "episodes; rate and β of each system from one grid on dev questions of another seed ([grid](credit_grid.md)). "
        "`end`: a segment's reward at its end, though later text may change it. `revised`: prefixes are scored where "
        "segments may end, and what the reward is worth by then is corrected; the sum is the whole answer's reward, "
        "completeness included, which `end` pays at the last token. `error_during_training`: the mean error on dev "
        "questions over all episodes. `processor_s`: processor time of the training steps, on one thread. `kl`: the "
        "last step's, in nats an episode."
    )
    runs: ClassVar[tuple[str, ...]] = ("end", "revised")
    systems: ClassVar[tuple[str, ...]] = ("sft", "end", "revised")
    baseline = "end"
    columns = (*TRUTH, "mean_tokens", *ON_DEV)
    caption = "True errors by when rewards are paid, on test questions"

    def _timed(self) -> dict[str, tuple[str, ...]]:
        shared = tuple(run for run in SHARED_RUNS if run != "reward_models/preference")  # none is trained here
        return {"table": self.runs, "shared_models": shared}

    def row(self, root: Path, system: str, seed: int) -> dict[str, Any]:
        """With what the run says of its training; `sft` is where all of them begin."""
        row = super().row(root, system, seed)
        if system not in self.runs:
            start = mean_error(best_until(RunDirectory(root / self.baseline), 0.0))
            return row | dict.fromkeys(ON_DEV, 0.0) | {"error_during_training": start}
        trained = trained_row(root, system)
        spent = processor_seconds(RunDirectory(root / system))[-1]
        return row | {"processor_s": spent} | {name: trained[name] for name in ON_DEV if name != "processor_s"}

    def draw(self, result: Mapping[str, Any], path: Path) -> None:
        """The true rates and the length."""
        titles = {
            "mean_error": "mean error",
            "relevance_error_rate": "relevance error rate",
            "factual_error_rate": "factual error rate",
            "completeness": "asked facts given",
        }
        summary = result["summary"]
        draw_bars(path, [Bars(t, {s: summary[s][name] for s in self.systems}) for name, t in titles.items()])


@dataclass(frozen=True)
class FreeCreditTable(CreditTable):
    """The same in the setting of `FreeFormTable`, with the whole reward at the last token beside."""

    title = "FactWorld with open questions and free gold answers: when dense rewards are paid"
    about = (
        CreditTable.about.replace("(credit_grid.md)", "(free_credit_grid.md)")
        + " `outcome`: the whole answer's reward at its last token, of which `revised` pays the same sum earlier."
    )
    runs = ("end", "revised", "outcome")
    systems = ("sft", "end", "revised", "outcome")
