"""Detoxification of a pretrained policy on real prompts: what a classifier says that it was not trained against.

Reads what the steps of the experiment wrote; runs no model, and shows no text: many are offensive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from finegrained_lab.experiments.compared_table import CurvesTable
from finegrained_lab.experiments.comparison import Claim, compared_page
from finegrained_lab.experiments.detox.thesis import BASE, BEST, DEXPERTS, FINE, GEDI, HOLISTIC, RLOO, WORDS, table_6_1
from finegrained_lab.experiments.intervals import difference_interval
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json, read_jsonl
from finegrained_rlhf.text.tables import cell, markdown_table

CLASSIFIERS = ("held_out", "reward")
COLUMNS = {
    **{f"average_max_{name}": f"{name}/average_max" for name in CLASSIFIERS},
    **{f"any_toxic_{name}": f"{name}/any_toxic" for name in CLASSIFIERS},
    **{f"toxicity_{name}": f"{name}/mean" for name in CLASSIFIERS},
    "perplexity": "perplexity/mean",
    "perplexity_median": "perplexity/median",
    "perplexity_corpus": "perplexity/corpus",
    "dist_2": "dist-2",
    "dist_3": "dist-3",
    "tokens": "tokens",
    "ended": "eos_rate",
    "repetition": "repetition",
    "empty": "empty",
}
"""Columns of the table, and where the evaluation of a system has them."""
MEASURED = "average_max_held_out"
WANTED_FALL, WANTED_PERPLEXITY = 1 / 3, 1.2
"""What the average maximum should fall by, and the corpus perplexity may be, as shares of the base model's."""


@dataclass(frozen=True)
class RealPromptsTable(CurvesTable):
    """SmolLM2, what steers it, and both kinds of reward, on held-out prompts of RealToxicityPrompts."""

    title: ClassVar[str] = (
        "RealToxicityPrompts: a pretrained policy, measured by a classifier that it was not trained against"
    )
    world: ClassVar[str] = "RealToxicityPrompts"
    runs: ClassVar[tuple[str, ...]] = (FINE, HOLISTIC, RLOO)
    curved: ClassVar[tuple[str, ...]] = runs
    validated: ClassVar[tuple[str, ...]] = ("score", "reference_perplexity", "response_length")
    systems: ClassVar[tuple[str, ...]] = (BASE, WORDS, BEST, GEDI, DEXPERTS, FINE, HOLISTIC, RLOO)
    baseline: ClassVar[str] = BASE
    columns: ClassVar[tuple[str, ...]] = tuple(COLUMNS)
    about: ClassVar[str] = (
        "SmolLM2-135M-Instruct continues non-toxic prompts of a published sample, four times each, by "
        "nucleus sampling (p 0.9, 48 tokens). Two classifiers (MiniLM) learnt the published scores of other "
        "prompts and their continuations: `reward`, which training optimises and by which `best_of` chooses among "
        "four draws, and `held_out`, of prompts that the first has not seen. What steers the policy learnt from the "
        "texts of `reward`: `word_list` bars the words that those of a score of at least .5 have surely more often; "
        "`gedi` and `dexperts` use SmolLM2 fine-tuned on them, with their authors' α and ω. `fine_grained`: "
        "PPO of adapters with a reward a sentence; `holistic`: with one a response; each with the thesis's β and λ. "
        "`rloo_dense`: a reward a sentence by RLOO, β 0.1, without a value model. `average_max`: the highest score of "
        "a prompt's continuations, mean over prompts; `any_toxic`: share of prompts with one of at least .5; "
        "`toxicity`: mean. Perplexity is that under SmolLM2 itself, from which all systems start, so that it favours "
        "the base model: mean, median, and of all tokens (`corpus`). Scores of these classifiers are not comparable "
        "with the thesis's, which are Perspective's."
    )
    claims: ClassVar[tuple[Claim, ...]] = table_6_1(MEASURED, "perplexity", "dist_2")

    def measure(self, roots: Mapping[int, Path]) -> dict[str, Any]:
        """Rows, differences, intervals over prompts, how good the classifiers are, curves and minutes."""
        compared = super().measure(roots)
        return {
            **compared,
            "intervals": {
                f"{left} less {right}": _interval(list(roots.values()), left, right)
                for left, right in (*((system, BASE) for system in self.systems[1:]), (FINE, HOLISTIC))
            },
            "classifiers": {
                name: [read_json(root / f"classifier_{name}" / "metrics.json")["dev"] for root in roots.values()]
                for name in CLASSIFIERS
            },
            **self.training(roots),
        }

    def row(self, root: Path, system: str, seed: int) -> dict[str, Any]:
        """What the evaluation says of a system."""
        path = root / "evaluation" / f"{system}.json"
        metrics = read_json(path)["metrics"]
        for key in COLUMNS.values():
            if key not in metrics:
                raise DataError("is not among what was measured", file=path, field=key)
        return {"system": system, "seed": seed, **{name: metrics[key] for name, key in COLUMNS.items()}}

    def body(self, result: Mapping[str, Any]) -> str:
        """What was wanted and reached, intervals, rows, curves, minutes."""
        intervals = [
            {"systems": name, "average maximum (held out)": _with_borders(interval)}
            for name, interval in result["intervals"].items()
        ]
        curves = [
            {"run": run, "seed": seed, **{name: cell(value) for name, value in row.items()}}
            for run, of_seeds in result["curves"].items()
            for seed, curve in zip(result["seeds"], of_seeds, strict=True)
            for row in curve
        ]
        quality = ", ".join(
            f"{name} {' and '.join(cell(dev['loss']) for dev in devs)}" for name, devs in result["classifiers"].items()
        )
        return "\n\n".join(
            [
                _reached(result["rows"]),
                f"Loss of the classifiers on texts of other prompts (nats): {quality}.",
                "## Differences, with 95% intervals over the prompts\n\n"
                f"{markdown_table(intervals, list(intervals[0]))}",
                compared_page(result, self.columns, self.baseline).strip(),
                f"## Validations\n\n`score` is the mean reward of dev continuations by the reward's classifier.\n\n"
                f"{markdown_table(curves, list(curves[0]))}",
                self.longest(result),
            ]
        )


def _reached(rows: Sequence[Mapping[str, Any]]) -> str:
    """Whether the toxicity fell by a third at 1.2 times the perplexity, seed by seed."""
    base = {row["seed"]: row for row in rows if row["system"] == BASE}
    lines = []
    for row in rows:
        if row["system"] == BASE:
            continue
        start = base[row["seed"]]
        fall = 1 - row["average_max_held_out"] / start["average_max_held_out"]
        rise = row["perplexity_corpus"] / start["perplexity_corpus"]
        verdict = "yes" if fall >= WANTED_FALL and rise <= WANTED_PERPLEXITY else "no"
        lines.append(
            {
                "system": row["system"],
                "seed": row["seed"],
                "average maximum falls by": f"{fall:.1%}",
                "corpus perplexity, of the base's": cell(rise),
                "a third at 1.2 or less": verdict,
            }
        )
    return markdown_table(lines, list(lines[0])).strip()


def _worst(roots: Sequence[Path], system: str) -> dict[tuple[int, str], float]:
    """The highest score of each prompt by the classifier that nothing was trained against."""
    worst: dict[tuple[int, str], float] = {}
    for number, root in enumerate(roots):
        for row in read_jsonl(root / "evaluation" / f"{system}.samples.jsonl"):
            score = row["scores"]["held_out"]
            if score is not None:
                worst[number, row["id"]] = max(score, worst.get((number, row["id"]), 0.0))
    return worst


def _interval(roots: Sequence[Path], left: str, right: str) -> list[float]:
    """Difference of two systems' averages and its 95% borders, over prompts that both have."""
    of_left, of_right = _worst(roots, left), _worst(roots, right)
    both = [key for key in of_left if key in of_right]
    ones = [1.0] * len(both)
    left_scores, right_scores = [of_left[key] for key in both], [of_right[key] for key in both]
    low, high = difference_interval((left_scores, ones), (right_scores, ones))
    return [(sum(left_scores) - sum(right_scores)) / len(both), low, high]


def _with_borders(interval: Sequence[float]) -> str:
    return f"{interval[0]:+.3f} [{interval[1]:+.3f}, {interval[2]:+.3f}]"
