"""How soon PPO halves the toxicity of continuations on ToneWorld: a grid for both kinds of reward, and what it chose.

Reads what the steps of the experiments wrote; runs no model.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import yaml

from finegrained_lab.experiments.compared_table import CurvesTable
from finegrained_lab.experiments.comparison import Claim, margins, margins_page
from finegrained_lab.experiments.detox.thesis import BASE, FINE, HOLISTIC
from finegrained_lab.experiments.results_table import Results
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json, read_jsonl
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.text.tables import markdown_table

HALVES = {"half_toxicity": "truth/toxicity", "half_worst": "truth/worst"}
"""First validation step at which so much of the first validation's truth is gone that at most half is left."""
MEASURED = {
    "average_max": "truth/average_max",
    "toxicity": "truth/mean",
    "fitting": "truth/fitting",
    "dist_2": "dist-2",
    "tokens": "tokens",
}
"""Columns of the test prompts, and where the evaluation of a system has them."""
HIGHEST_PERPLEXITY, LEAST_LENGTH = 1.2, 0.7
"""Of the last validation, in terms of the first: a point beyond them is not taken, however mild its texts are."""
OTHERS = (f"{FINE}_as_{HOLISTIC}", f"{HOLISTIC}_as_{FINE}")
"""Each reward at what the grid chose for the other."""
SYSTEMS = (FINE, HOLISTIC, *OTHERS)
POINT = ("lr", "beta", "lambda")
DURING = (*HALVES, "worst_during", "toxicity_during", "perplexity_of_first", "length_of_first")
MEANINGS = (  # `{NAME}`: the experiment's setting
    "A validation has four continuations of each of the first {validation_prompts} dev prompts. `half_toxicity`, "
    "`half_worst`: the one at which their true toxicity, or its average maximum over prompts, is first at most half of "
    "the first one's, in steps of 64 episodes (– where it never is); `toxicity_during`, `worst_during`: the means over "
    "all validations but the first; `perplexity_of_first`, `length_of_first`: of the last validation, under the "
    "world's own grammar and in tokens, in terms of the first."
)


def first_halves(validations: Sequence[Mapping[str, float]]) -> dict[str, int | None]:
    """The step at which each of `HALVES` is reached; None where it never is."""
    return {
        name: next((int(line["step"]) for line in validations if line[key] <= validations[0][key] / 2), None)
        for name, key in HALVES.items()
    }


def during_training(validations: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """How soon, how toxic on the way (means of all validations but the first), how the last differs from the first."""
    first, last = validations[0], validations[-1]
    return {
        **first_halves(validations),
        "worst_during": statistics.fmean(line["truth/worst"] for line in validations[1:]),
        "toxicity_during": statistics.fmean(line["truth/toxicity"] for line in validations[1:]),
        "perplexity_of_first": math.exp(last["truth/nll"] - first["truth/nll"]),
        "length_of_first": last["response_length"] / first["response_length"],
    }


@dataclass(frozen=True)
class ToneGrid(Results):
    """Collects the runs of a grid and says which point each kind of reward takes.

    That with the lowest `worst_during` of those whose last validation stays within `HIGHEST_PERPLEXITY` and
    `LEAST_LENGTH`.

    Attributes:
        directory: of the runs.
    """

    directory: str

    def run(self) -> dict[str, Any]:
        """Write both files and print the page.

        Raises:
            DataError: there are no runs, or no point of a reward may be taken.
        """
        runs = [RunDirectory(path) for path in sorted(Path(self.directory).glob("*_lr*_beta*_lambda*"))]
        rows = sorted(map(_point, runs), key=lambda row: row["system"])
        if not rows:
            raise DataError("no runs of a grid here", file=self.directory)
        chosen = {}
        for system in dict.fromkeys(row["system"] for row in rows):
            may = [row for row in rows if row["system"] == system and row["may_be_taken"]]
            if not may:
                raise DataError(f"no point of {system} stays fluent and long enough", file=self.directory)
            best = min(may, key=lambda row: row["worst_during"])
            chosen[system] = {name: best[name] for name in POINT}
        return self.write({**self.made_by(), "rows": rows, "summary": chosen})

    def page(self, result: Mapping[str, Any]) -> str:
        """The page of a results file."""
        rows = [
            {
                **row,
                **{name: f"{row[name]:g}" for name in POINT},
                "may_be_taken": "yes" if row["may_be_taken"] else "no",
            }
            for row in result["rows"]
        ]
        chosen = "; ".join(
            f"{system}: lr {point['lr']:g}, β {point['beta']:g}, λ {point['lambda']:g}"
            for system, point in result["summary"].items()
        )
        settings = result["configuration"]["settings"]
        about = (
            "PPO with a reward a sentence (`fine_grained`) and with one a response (`holistic`), the same grid for "
            f"both, a validation at every step. {MEANINGS.format_map(settings)} A point may be taken whose last "
            f"validation has at most {HIGHEST_PERPLEXITY:g} times the first one's perplexity and at least "
            f"{LEAST_LENGTH:g} times its length."
        )
        return (
            f"{self.opening(result, 'ToneWorld: rate, β and λ of a reward a sentence and one a response', about)}\n\n"
            f"{markdown_table(rows, ['system', *POINT, *DURING, 'may_be_taken'])}\n"
            f"Chosen, by the lowest `worst_during` of those that may be taken: {chosen}.\n"
        )


def _point(run: RunDirectory) -> dict[str, Any]:
    config = yaml.safe_load(run.config_path.read_text(encoding="utf-8"))
    during = during_training(read_jsonl(run.eval))
    fluent = during["perplexity_of_first"] <= HIGHEST_PERPLEXITY
    return {
        "system": HOLISTIC if run.path.name.startswith("toxicity_holistic") else FINE,
        "lr": float(config["optimizer"]["lr"]),
        "beta": float(config["ppo"]["kl"]["beta"]),
        "lambda": float(config["ppo"]["lambda_"]),
        **during,
        "may_be_taken": fluent and during["length_of_first"] >= LEAST_LENGTH,
    }


@dataclass(frozen=True)
class HalfTimeTable(CurvesTable):
    """Both kinds of reward at what the grid chose for each, and at what it chose for the other, on unseen seeds."""

    title: ClassVar[str] = "ToneWorld: how soon half of the toxicity is gone (figure 6.2)"
    world: ClassVar[str] = "ToneWorld"
    runs: ClassVar[tuple[str, ...]] = SYSTEMS
    curved: ClassVar[tuple[str, ...]] = SYSTEMS
    validated: ClassVar[tuple[str, ...]] = ("truth/worst", "truth/toxicity", "truth/nll", "response_length")
    systems: ClassVar[tuple[str, ...]] = SYSTEMS
    baseline: ClassVar[str] = HOLISTIC
    columns: ClassVar[tuple[str, ...]] = (*DURING, *MEASURED, "perplexity_of_base")
    caption: ClassVar[str] = "True toxicity on the dev prompts, average maximum and mean: lines are means over seeds"
    about: ClassVar[str] = (
        "PPO with a reward a sentence (`fine_grained`) and with one a response (`holistic`), each with the rate, β and "
        "λ that [one grid for both](tone_half_time_grid.md) chose for it; "
        "`fine_grained_as_holistic` and `holistic_as_fine_grained` have the other's. "
        f"{MEANINGS} The other columns are of the exported policy (best validation reward) on the test prompts, four "
        "continuations each: `average_max`, the highest true toxicity of a prompt's, `toxicity`, `fitting`, the share "
        "of sentences that the world could have written there, `dist_2`, `tokens`, `perplexity_of_base`, under the "
        "world's grammar, in terms of the untrained model's."
    )
    claims: ClassVar[tuple[Claim, ...]] = (
        Claim("F.G. RLHF learns faster", "figure 6.2", "half_worst", FINE, "<", HOLISTIC),
        Claim("… all steps counted", "figure 6.2", "worst_during", FINE, "<", HOLISTIC),
        Claim("F.G. RLHF is less toxic than Hol. RLHF", "table 6.1", "average_max", FINE, "<", HOLISTIC),
        Claim("F.G. RLHF is more fluent than Hol. RLHF", "table 6.1", "perplexity_of_base", FINE, "<", HOLISTIC),
        Claim("F.G. RLHF is the more varied (dist-2)", "table 6.1", "dist_2", FINE, ">", HOLISTIC),
    )

    def measure(self, roots: Mapping[int, Path]) -> dict[str, Any]:
        """Rows, their spread, differences at one reward's point and at the other's, curves and minutes."""
        measured = super().measure(roots)
        rows = measured["rows"]
        pairs = ((FINE, HOLISTIC), (FINE, OTHERS[1]), (OTHERS[0], HOLISTIC))
        compared = [{"pair": list(pair), "columns": margins(rows, *pair, self.columns)} for pair in pairs]
        return {**measured, "pairs": compared, **self.training(roots)}

    def row(self, root: Path, system: str, seed: int) -> dict[str, Any]:
        """What a run's validations and the evaluation of what it exported say."""
        metrics = {name: read_json(root / "evaluation" / f"{name}.json")["metrics"] for name in (BASE, system)}
        return {
            "system": system,
            "seed": seed,
            **during_training(read_jsonl(RunDirectory(root / system).eval)),
            **{name: metrics[system][key] for name, key in MEASURED.items()},
            "perplexity_of_base": math.exp(metrics[system]["truth/nll"] - metrics[BASE]["truth/nll"]),
        }

    def body(self, result: Mapping[str, Any]) -> str:
        """How a reward a sentence stands to one a response, then spread, differences, every run."""
        pairs = [f"## {' less '.join(pair['pair'])}\n\n{margins_page(pair['columns'])}" for pair in result["pairs"]]
        return "\n".join([*pairs, super().body(result)])

    def draw(self, result: Mapping[str, Any], path: Path) -> None:
        """Both measures of toxicity by step."""
        self.draw_bands(result, path, {"truth/worst": "average maximum", "truth/toxicity": "mean toxicity"})
