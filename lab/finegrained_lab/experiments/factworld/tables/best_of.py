"""Best of n samples of SFT under the fine-grained reward, the baseline without training, against fine-grained RLHF."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finegrained_lab.experiments.factworld.answers import TEST_COLUMNS
from finegrained_lab.experiments.factworld.evaluated import ON_TEST, EvaluatedTable
from finegrained_lab.figures import Lines, draw_lines

TRAINED = "fine_grained_rlhf"
SAMPLES = {f"best_of_{n}": n for n in (1, 2, 4, 8, 16)}


@dataclass(frozen=True)
class BestOfTable(EvaluatedTable):
    """What choosing costs and brings."""

    title = "FactWorld: best of n samples against training"
    about = (
        f"{ON_TEST} `best_of_N`: of N samples of SFT (temperature 0.7, top-k 20) the one with the highest reward, the "
        "three components with the weights that RLHF trains on; `sft` and `fine_grained_rlhf` decode greedily. "
        "`samples`: answers drawn a prompt, which is what decoding costs; a reward model scores each when there is a "
        "choice."
    )
    runs = (TRAINED,)
    systems = ("sft", *SAMPLES, TRAINED)
    baseline = TRAINED
    columns = ("samples", *TEST_COLUMNS)
    caption = (
        "True errors by the number of samples; greedy fine-grained RLHF as a level; bands are the range over seeds"
    )

    def row(self, root: Path, system: str, seed: int) -> dict[str, Any]:
        """With the samples drawn a prompt."""
        return super().row(root, system, seed) | {"samples": SAMPLES.get(system, 1)}

    def body(self, result: Mapping[str, Any]) -> str:
        """Says first from which n on choosing is as good as training."""
        return f"{reached(result)}\n\n{super().body(result)}"

    def draw(self, result: Mapping[str, Any], path: Path) -> None:
        """Mean error and factual errors by n."""
        titles = {
            "mean_error": "true mean error",
            "factual_error_rate": "factual error rate",
            "completeness": "facts given",
        }
        panels = []
        for name, title in titles.items():
            chosen = [result["summary"][system][name] for system in SAMPLES]
            trained = result["summary"][TRAINED][name]
            ends = [float(n) for n in SAMPLES.values()]
            bands = {
                "best of n": {"episodes": ends, **{k: [c[k] for c in chosen] for k in ("mean", "min", "max")}},
                "fine-grained RLHF": {
                    "episodes": ends,
                    **{k: [trained[k]] * len(ends) for k in ("mean", "min", "max")},
                },
            }
            panels.append(Lines(title, title, bands))
        draw_lines(path, panels, x_label="samples a prompt")


def reached(result: Mapping[str, Any]) -> str:
    """From how many samples on the mean error over seeds is no higher than the trained policy's."""
    errors = {system: spread["mean_error"]["mean"] for system, spread in result["summary"].items()}
    enough = [n for system, n in SAMPLES.items() if errors[system] <= errors[TRAINED]]
    best = min(SAMPLES, key=lambda system: errors[system])
    if enough:
        return (
            f"Best of {min(enough)} is the first with a mean error ({errors[f'best_of_{min(enough)}']:.3f}) no higher "
            f"than that of fine-grained RLHF ({errors[TRAINED]:.3f}), which draws one answer a prompt."
        )
    return (
        f"No number of samples tried reaches the mean error of fine-grained RLHF ({errors[TRAINED]:.3f}); the lowest "
        f"is that of best of {SAMPLES[best]}: {errors[best]:.3f}."
    )
