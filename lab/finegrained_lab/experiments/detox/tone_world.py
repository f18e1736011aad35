"""Detoxification on ToneWorld: table 6.1 and figure 6.2 of the thesis in small.

Reads what the steps of the experiment wrote; runs no model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from finegrained_lab.experiments.compared_table import CurvesTable
from finegrained_lab.experiments.comparison import Claim, compared_page
from finegrained_lab.experiments.detox.half_time import HALVES, first_halves
from finegrained_lab.experiments.detox.thesis import BASE, BEST, DEXPERTS, FINE, GEDI, HOLISTIC, RLOO, WORDS, table_6_1
from finegrained_rlhf.core.files import read_json, read_jsonl
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.text.tables import cell, markdown_table

FINE_AS_HOLISTIC, HOLISTIC_AS_FINE = "fine_grained_as_holistic", "holistic_as_fine_grained"
TRAINED = (FINE, HOLISTIC, FINE_AS_HOLISTIC, HOLISTIC_AS_FINE, RLOO)
COLUMNS = {
    "average_max": "truth/average_max",
    "any_toxic": "truth/any_toxic",
    "toxicity": "truth/mean",
    "average_max_reward": "reward/average_max",
    "judge_perplexity": "perplexity/mean",
    "fitting": "truth/fitting",
    "dist_2": "dist-2",
    "dist_3": "dist-3",
    "tokens": "tokens",
    "repetition": "repetition",
    "apology": "truth/apology",
    "quoted": "truth/quoted",
    "variant": "truth/variant",
}
"""Columns of the table, and where the evaluation of a system has them."""
WANTED_RATIO = 0.7
"""Of the steps that sentence rewards need to halve the toxicity to those that one reward a response needs."""
WANTED_PERPLEXITY = 1.1
"""Of a chosen checkpoint's perplexity under the grammar to the base model's."""
PAIRS = (
    ("the thesis's pair", FINE, HOLISTIC),
    ("β 0.1, λ 0.95", FINE, HOLISTIC_AS_FINE),
    ("β 0.3, λ 0.99", FINE_AS_HOLISTIC, HOLISTIC),
)


@dataclass(frozen=True)
class ToneWorldTable(CurvesTable):
    """All systems on the test prompts of each seed's world."""

    title: ClassVar[str] = "ToneWorld: a reward a sentence, a reward a response, and what needs no training"
    world: ClassVar[str] = "ToneWorld"
    runs: ClassVar[tuple[str, ...]] = TRAINED
    curved: ClassVar[tuple[str, ...]] = TRAINED
    validated: ClassVar[tuple[str, ...]] = ("truth/worst", "truth/toxicity", "truth/nll", "reference_perplexity")
    systems: ClassVar[tuple[str, ...]] = (BASE, WORDS, BEST, GEDI, DEXPERTS, *TRAINED)
    baseline: ClassVar[str] = BASE
    columns: ClassVar[tuple[str, ...]] = (*COLUMNS, "grammar_perplexity")
    caption: ClassVar[str] = "Average maximum toxicity and perplexity on the dev prompts during training"
    about: ClassVar[str] = (
        "Four continuations of each test prompt, of 48 tokens at most, by nucleus sampling (p 0.9). `base`: a "
        "tiny GPT-2 trained on the world's texts. `word_list`: base without the world's eight insults, which are "
        "words elsewhere too. `best_of`: of four draws the one with the lowest score by the classifier that is "
        "the reward. `gedi`, `dexperts`: base steered by language models of toxic and mild texts. `fine_grained`: "
        "PPO with a reward a sentence, what it adds to the classifier's score of the text so far; `holistic`: PPO "
        "with one reward a response. Their β and λ are the thesis's (0.1 and 0.95 against 0.3 and 0.99); "
        "`fine_grained_as_holistic` and `holistic_as_fine_grained` have the other's. `rloo_dense`: RLOO with a "
        "reward a sentence, without a value model, β 0.1. `average_max`: the highest true toxicity of a prompt's "
        "continuations, mean over prompts; `any_toxic`: share of prompts with one of at least .5; `toxicity`: "
        "mean; `average_max_reward`: as average_max, by the classifier. `grammar_perplexity`: of a token under "
        "the world's own grammar; `judge_perplexity`: under a larger language model trained on other texts, mean "
        "over continuations; `fitting`: share of sentences that the world could have written there. "
        "`half_toxicity`, `half_worst`: the first of the validations (every two steps) at which the dev prompts' true "
        "toxicity, or average maximum, is at most half of the first one's."
    )
    claims: ClassVar[tuple[Claim, ...]] = (
        *table_6_1("average_max", "judge_perplexity", "dist_2"),
        Claim("F.G. RLHF learns faster", "figure 6.2", "half_worst", FINE, "<", HOLISTIC),
    )

    def measure(self, roots: Mapping[int, Path]) -> dict[str, Any]:
        """Rows, their spread, the three comparisons of speed, curves and minutes."""
        compared, training = super().measure(roots), self.training(roots)
        rows = compared["rows"]
        steps = [line["step"] for line in training["curves"][FINE][0][:2]]
        return {
            **compared,
            "validate_every": steps[1] - steps[0],
            "speed": [_speed(rows, steps[1] - steps[0], *pair) for pair in PAIRS],
            "fluency": {system: _fluency(rows, system) for system in TRAINED},
            **training,
        }

    def row(self, root: Path, system: str, seed: int) -> dict[str, Any]:
        """What the evaluation says of a system, and of a trained one how soon half of the toxicity was gone."""
        metrics = read_json(root / "evaluation" / f"{system}.json")["metrics"]
        row = {"system": system, "seed": seed, **{name: metrics[key] for name, key in COLUMNS.items()}}
        row["grammar_perplexity"] = math.exp(metrics["truth/nll"])
        validations = read_jsonl(RunDirectory(root / system).eval) if system in TRAINED else []
        return {**row, **(first_halves(validations) if validations else dict.fromkeys(HALVES))}

    def body(self, result: Mapping[str, Any]) -> str:
        """Speed and fluency, spread, differences, every run, minutes."""
        return "\n\n".join(
            [
                f"## How soon half of the toxicity is gone\n\n{_speed_page(result)}",
                f"## Fluency of the chosen checkpoints\n\n{_fluency_page(result)}",
                compared_page(result, self.columns, self.baseline).strip(),
                self.longest(result),
            ]
        )

    def draw(self, result: Mapping[str, Any], path: Path) -> None:
        """Average maximum toxicity and perplexity under the reference by step: mean and range over seeds."""
        titles = {"truth/worst": "average maximum toxicity (true)", "reference_perplexity": "perplexity under base"}
        self.draw_bands(result, path, titles)


def _by_seed(rows: Sequence[Mapping[str, Any]], system: str, column: str) -> dict[int, Any]:
    return {row["seed"]: row[column] for row in rows if row["system"] == system}


def _speed(rows: Sequence[Mapping[str, Any]], every: float, settings: str, fine: str, holistic: str) -> dict[str, Any]:
    """Of each seed the steps of both systems and their ratio, where both have halved it.

    A validation every so many steps says no more than that the half was reached since the one before: `lowest` and
    `highest` are what the ratio may be.
    """
    speed: dict[str, Any] = {"settings": settings, "fine": fine, "holistic": holistic}
    for column in HALVES:
        of_fine, of_holistic = _by_seed(rows, fine, column), _by_seed(rows, holistic, column)
        both = {seed: (of_fine[seed], of_holistic[seed]) for seed in of_fine if of_fine[seed] and of_holistic[seed]}
        speed[column] = {
            "fine": of_fine,
            "holistic": of_holistic,
            "ratio": {seed: a / b for seed, (a, b) in both.items()},
            "lowest": {seed: (a - every + 1) / b for seed, (a, b) in both.items()},
            "highest": {seed: a / (b - every + 1) for seed, (a, b) in both.items()},
        }
    return speed


def _speed_page(result: Mapping[str, Any]) -> str:
    steps = [
        {"system": system, **{name: _listed(_by_seed(result["rows"], system, name)) for name in HALVES}}
        for system in TRAINED
    ]
    ratios = [
        {"settings": pair["settings"], **{name: _ratios(pair[name]) for name in HALVES}} for pair in result["speed"]
    ]
    first, count = result["speed"][0]["half_toxicity"], len(result["seeds"])
    held, surely = (sum(ratio <= WANTED_RATIO for ratio in first[name].values()) for name in ("ratio", "highest"))
    return (
        f"{markdown_table(steps, list(steps[0]))}\nSteps of 64 episodes, seed by seed; – where it was never reached. "
        "What a reward a sentence needs, of what a reward a response needs, where both have halved it; in brackets "
        f"what it may be, since there is a validation every {result['validate_every']:g} steps:\n\n"
        f"{markdown_table(ratios, list(ratios[0]))}\n"
        f"At the thesis's pair a reward a sentence needed at most {WANTED_RATIO:g} times the steps of a reward a "
        f"response in {held} of {count} seeds, in {surely} of them whatever happened between the validations."
    )


def _ratios(ratios: Mapping[str, Mapping[Any, float]]) -> str:
    return ", ".join(
        f"{cell(ratio)} ({cell(low)} to {cell(high)})"
        for ratio, low, high in zip(*(ratios[name].values() for name in ("ratio", "lowest", "highest")), strict=True)
    )


def _listed(values: Mapping[Any, Any]) -> str:
    return ", ".join("–" if value is None else cell(value) for value in values.values())


def _fluency(rows: Sequence[Mapping[str, Any]], system: str) -> dict[int, float]:
    base = _by_seed(rows, BASE, "grammar_perplexity")
    return {seed: value / base[seed] for seed, value in _by_seed(rows, system, "grammar_perplexity").items()}


def _fluency_page(result: Mapping[str, Any]) -> str:
    lines = [
        {"system": system, "perplexity under the grammar, of base's": _listed(ratios)}
        for system, ratios in result["fluency"].items()
    ]
    ratios = result["fluency"][FINE].values()
    held = sum(ratio <= WANTED_PERPLEXITY for ratio in ratios)
    return (
        f"{markdown_table(lines, list(lines[0]))}\nSeed by seed. fine_grained stays within {WANTED_PERPLEXITY:g} times "
        f"the base model's perplexity in {held} of {len(ratios)} seeds."
    )
