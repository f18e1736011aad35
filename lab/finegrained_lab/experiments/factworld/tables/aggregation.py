"""Length-fair rewards: what the sum, the mean or a fixed budget of an answer's segment values teaches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finegrained_lab.experiments.factworld.answers import TEST_COLUMNS, evaluation_path
from finegrained_lab.experiments.factworld.evaluated import ON_TEST, EvaluatedTable
from finegrained_lab.figures import Bars, draw_bars
from finegrained_rlhf.core.files import read_json

SUM, MEAN, BUDGET = "fine_grained_rlhf", "aggregation_mean", "aggregation_budget"


@dataclass(frozen=True)
class AggregationTable(EvaluatedTable):
    """Whether more segments can earn more."""

    title = "FactWorld: length-fair rewards"
    about = (
        f"{ON_TEST} Greedy decoding. `fine_grained_rlhf` adds the values of an answer's segments up (the paper); "
        "`aggregation_mean` divides each by their number, `aggregation_budget` scales them so that their absolute "
        "values add up to a fixed number; both for relevance and factuality, the rest alike. `sub_sentences`: mean "
        "number an answer."
    )
    runs = (SUM, MEAN, BUDGET)
    systems = ("sft", SUM, MEAN, BUDGET)
    baseline = SUM
    columns = (*TEST_COLUMNS, "sub_sentences")
    caption = "What aggregation does: true errors and length"

    def row(self, root: Path, system: str, seed: int) -> dict[str, Any]:
        """With the number of sub-sentences an answer."""
        measured = read_json(evaluation_path(root, system))
        return super().row(root, system, seed) | {
            "sub_sentences": measured["reward/relevance/segments"] / measured["examples"]
        }

    def draw(self, result: Mapping[str, Any], path: Path) -> None:
        """Mean error, the lengths."""
        titles = {
            "mean_error": "true mean error",
            "completeness": "asked facts given",
            "mean_tokens": "tokens an answer",
        }
        short = {"sft": "SFT", SUM: "sum", MEAN: "mean", BUDGET: "budget"}
        summary = result["summary"]
        draw_bars(path, [Bars(t, {short[s]: summary[s][name] for s in self.systems}) for name, t in titles.items()])
