"""Fine-grained RLHF without one of its rewards: table 6.5 of the thesis, with the true errors beside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finegrained_lab.experiments.comparison import Claim
from finegrained_lab.experiments.factworld.evaluated import ON_TEST, EvaluatedTable
from finegrained_lab.figures import Bars, draw_bars

FULL = "fine_grained_rlhf"
NO_REL, NO_FACT, NO_COMP = (f"without_{name}" for name in ("relevance", "factuality", "completeness"))


@dataclass(frozen=True)
class AblationTable(EvaluatedTable):
    """Leave one reward out."""

    title = "FactWorld: without one of the three rewards (table 6.5)"
    about = (
        f"{ON_TEST} Greedy decoding. The thesis measured its ablation on the development set; here the development set "
        "chooses each run's step, so the test questions are used. `without_NAME`: that reward's weight is 0."
    )
    runs = (FULL, NO_REL, NO_FACT, NO_COMP)
    systems = ("sft", FULL, NO_REL, NO_FACT, NO_COMP)
    baseline = FULL
    caption = "What leaving one reward out does: true errors and length"
    claims = (
        Claim(
            "without relevance, its reward falls", "table 6.5", "rel_reward", NO_REL, "<", FULL, thesis=(0.249, 0.516)
        ),
        Claim("… answers get longer", "table 6.5", "mean_tokens", NO_REL, ">", FULL, thesis=(179.31, 101.76)),
        Claim("… and score higher on completeness", "table 6.5", "comp_reward", NO_REL, ">", FULL, (0.742, 0.266)),
        Claim("… Rouge falls", "table 6.5", "rouge_lsum", NO_REL, "<", FULL, thesis=(38.52, 44.29)),
        Claim("without factuality, its reward falls", "table 6.5", "fact_reward", NO_FACT, "<", FULL, (0.640, 0.825)),
        Claim("… relevance scores higher", "table 6.5", "rel_reward", NO_FACT, ">", FULL, thesis=(0.716, 0.516)),
        Claim("… there are more factual errors", "6.4.6", "factual_error_rate", NO_FACT, ">", FULL),
        Claim("… answers get shorter", "table 6.5", "mean_tokens", NO_FACT, "<", FULL, thesis=(78.08, 101.76)),
        Claim("without completeness, its reward falls", "table 6.5", "comp_reward", NO_COMP, "<", FULL, (0.123, 0.266)),
        Claim("… answers give less of what was asked", "6.4.6", "completeness", NO_COMP, "<", FULL),
        Claim("… answers get shorter", "table 6.5", "mean_tokens", NO_COMP, "<", FULL, thesis=(93.92, 101.76)),
        Claim("… Rouge falls", "table 6.5", "rouge_lsum", NO_COMP, "<", FULL, thesis=(43.61, 44.29)),
    )

    def draw(self, result: Mapping[str, Any], path: Path) -> None:
        """The three true rates and the length."""
        titles = {
            "relevance_error_rate": "relevance error rate",
            "factual_error_rate": "factual error rate",
            "completeness": "asked facts given",
            "mean_tokens": "tokens an answer",
        }
        short = {"sft": "SFT", FULL: "all three", NO_REL: "no rel.", NO_FACT: "no fact.", NO_COMP: "no comp."}
        summary = result["summary"]
        draw_bars(path, [Bars(t, {short[s]: summary[s][name] for s in self.systems}) for name, t in titles.items()])
