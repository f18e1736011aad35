"""Dense against holistic reward by episodes: figure 6.2 of the thesis, on FactWorld's dev questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finegrained_lab.experiments.compared_table import ComparedTable
from finegrained_lab.experiments.comparison import Claim, values_of
from finegrained_lab.experiments.factworld.base import WITHOUT_PREFERENCE, Table, trained_row
from finegrained_lab.experiments.factworld.curves import curve, first_below, validations
from finegrained_lab.figures import Lines, band, draw_lines
from finegrained_rlhf.factworld.report import RATES, mean_error
from finegrained_rlhf.text.tables import markdown_table

DENSE, SAME_LAMBDA, PAPERS_LAMBDA = "fine_grained_rlhf", "holistic_lambda_0.95", "holistic_lambda_0.99"
LEVELS = (0.30, 0.25, 0.20, 0.15, 0.10)
"""Of the mean error; SFT starts at about 0.34."""
NAMES = {
    DENSE: "dense, λ 0.95",
    SAME_LAMBDA: "holistic, λ 0.95",
    PAPERS_LAMBDA: "holistic, λ 0.99",
}


@dataclass(frozen=True)
class EfficiencyTable(Table, ComparedTable):
    """What the same rewards teach by where they are placed."""

    title = "FactWorld: sample efficiency of dense and holistic reward (figure 6.2)"
    about = (
        "True errors by the oracle on the dev questions, greedy decoding, at every validation. `fine_grained_rlhf` "
        "gives each segment's reward where the segment ends; `holistic_lambda_…` gives the same rewards, summed, at "
        "the last token; each has the learning rate and β that are best for it of the same twelve points. "
        "`mean_error` is of the policy that the run exports (best validation reward, step `best_step`), "
        "`error_during_training` the mean of the curve over all episodes, `kl` the last step's in nats an episode, "
        "`proxy_reward` the exported policy's reward."
    )
    shared = WITHOUT_PREFERENCE
    runs = (DENSE, SAME_LAMBDA, PAPERS_LAMBDA)
    systems = runs
    baseline = DENSE
    columns = ("error_during_training", "mean_error", *RATES, "proxy_reward", "best_step", "steps", "kl")
    caption = "Mean error and reward on the dev questions by episodes; lines are means over seeds, bands their range"
    claims = (
        Claim(
            "dense reward learns faster than holistic: lower error during training",
            "figure 6.2",
            "error_during_training",
            DENSE,
            "<",
            PAPERS_LAMBDA,
        ),
        Claim("… with the same λ", "figure 6.2", "error_during_training", DENSE, "<", SAME_LAMBDA),
        Claim(
            "dense reward ends with fewer errors than holistic", "table 6.1", "mean_error", DENSE, "<", PAPERS_LAMBDA
        ),
        Claim("… with the same λ", "table 6.1", "mean_error", DENSE, "<", SAME_LAMBDA),
    )

    def measure(self, roots: Mapping[int, Path]) -> dict[str, Any]:
        """A row a run, episodes to each level, and the curves."""
        by_run = {run: {seed: validations(root / run) for seed, root in roots.items()} for run in self.runs}
        errors = {run: {seed: curve(rows, mean_error) for seed, rows in of.items()} for run, of in by_run.items()}
        rewards = {
            run: [curve(rows, lambda row: float(row["reward/total"])) for rows in by_run[run].values()]
            for run in self.runs
        }
        return {
            **super().measure(roots),
            "levels": list(LEVELS),
            "curves": {
                "mean_error": {run: band(list(of.values())) for run, of in errors.items()},
                "proxy_reward": {run: band(of) for run, of in rewards.items()},
            },
        }

    def row(self, root: Path, system: str, seed: int) -> dict[str, Any]:
        """One run of one seed, with the episodes to each level."""
        trained = trained_row(root, system)
        errors = curve(validations(root / system), mean_error)
        return {
            "system": system,
            "seed": seed,
            **{name: trained[name] for name in self.columns},
            **{f"episodes_to_{level:g}": first_below(errors, level) for level in LEVELS},
            "seconds": trained["seconds"],
        }

    def body(self, result: Mapping[str, Any]) -> str:
        """With the episodes to each level."""
        rows = [
            {
                "system": run,
                **{f"{level:g}": _by_seed(result["rows"], run, level, result["seeds"]) for level in result["levels"]},
            }
            for run in self.runs
        ]
        columns = ["system", *(f"{level:g}" for level in result["levels"])]
        return (
            f"## Episodes until a validation's mean error is at most …\n\n{markdown_table(rows, columns)}\n"
            f"One number a seed, in their order; – where the run never was.\n\n{super().body(result)}"
        )

    def draw(self, result: Mapping[str, Any], path: Path) -> None:
        """Error and proxy reward."""
        titles = {"mean_error": "true mean error", "proxy_reward": "reward of the three models"}
        panels = [
            Lines(title, title, {NAMES[run]: curves for run, curves in result["curves"][name].items()})
            for name, title in titles.items()
        ]
        draw_lines(path, panels)


def _by_seed(rows: Sequence[Mapping[str, Any]], run: str, level: float, seeds: Sequence[int]) -> str:
    episodes = values_of(rows, run, f"episodes_to_{level:g}")
    return ", ".join("–" if episodes[seed] is None else f"{episodes[seed]:.0f}" for seed in seeds)
