"""SFT, SFT-Full, preference RLHF and fine-grained RLHF: table 6.3, figure 6.3 and table 6.2 of the thesis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from finegrained_lab.experiments.comparison import Claim, margins, margins_page
from finegrained_lab.experiments.factworld.answers import (
    MEASURES,
    OUTCOMES,
    TEST_COLUMNS,
    factual_error_by_sub_sentence,
    read_judged,
    win_tie_lose,
)
from finegrained_lab.experiments.factworld.evaluated import ON_TEST, EvaluatedTable
from finegrained_lab.figures import Bars, draw_bars
from finegrained_rlhf.text.tables import markdown_table, summarise_rows

OURS = "fine_grained_rlhf"
PREFERENCE = "preference_rlhf"
OTHERS = ("sft", "sft_full", PREFERENCE)
FACT = "factual_error_by_sub_sentence"
REL = "relevance_error_rate"
GOLD, FEW = "gold", "sft_few"
NAMES = {
    GOLD: "gold",
    "sft": "SFT",
    FEW: "SFT, few gold",
    "sft_full": "SFT-Full",
    "preference_rlhf": "Pref. RLHF",
    OURS: "F.G. RLHF",
}
THESIS_WINS = {"sft": (0.23, 0.655, 0.115), "sft_full": (0.22, 0.61, 0.17), "preference_rlhf": (0.195, 0.71, 0.095)}
"""Table 6.2: win, tie, lose of fine-grained RLHF on completeness, 200 questions judged by people."""


@dataclass(frozen=True)
class SystemsTable(EvaluatedTable):
    """The four systems of the thesis."""

    title = "FactWorld: the thesis's systems (table 6.3, figure 6.3, table 6.2)"
    about = (
        f"{ON_TEST} Greedy decoding. `{FACT}`: share of the sub-sentences with a factual error, those with only a "
        "relevance error left out, as in figure 6.3 (`factual_error_rate` counts sentences). `sft_full` learnt from "
        "the error-free gold answers of all training questions."
    )
    runs: ClassVar[tuple[str, ...]] = ("sft_full", "preference_rlhf", "fine_grained_rlhf")
    systems: ClassVar[tuple[str, ...]] = (*OTHERS, OURS)
    baseline: ClassVar[str] = "sft"
    columns = (FACT, *TEST_COLUMNS)
    caption = "True error rates of four systems, by the oracle"
    claims = (
        Claim("fine-grained RLHF makes fewer factual errors than SFT", "figure 6.3", FACT, OURS, "<", "sft"),
        Claim("… than preference RLHF", "figure 6.3", FACT, OURS, "<", "preference_rlhf"),
        Claim("… than SFT-Full", "figure 6.3", FACT, OURS, "<", "sft_full"),
        Claim("preference RLHF makes fewer factual errors than SFT", "6.4.4", FACT, "preference_rlhf", "<", "sft"),
        Claim("fine-grained RLHF makes fewer relevance errors than SFT", "figure 6.3", REL, OURS, "<", "sft"),
        Claim("… than preference RLHF", "figure 6.3", REL, OURS, "<", "preference_rlhf"),
        Claim("preference RLHF makes more relevance errors than SFT", "6.4.4", REL, "preference_rlhf", ">", "sft"),
        Claim("fine-grained RLHF is more complete than SFT", "table 6.2", "completeness", OURS, ">", "sft"),
        Claim("… than preference RLHF", "table 6.2", "completeness", OURS, ">", "preference_rlhf"),
        Claim("… than SFT-Full", "table 6.2", "completeness", OURS, ">", "sft_full"),
        Claim(
            "preference RLHF scores lower on relevance than SFT",
            "table 6.3",
            "rel_reward",
            "preference_rlhf",
            "<",
            "sft",
            (0.482, 0.513),
        ),
        Claim(
            "fine-grained RLHF scores highest on factuality: above preference RLHF",
            "table 6.3",
            "fact_reward",
            OURS,
            ">",
            "preference_rlhf",
            (0.816, 0.781),
        ),
        Claim("… above SFT-Full", "table 6.3", "fact_reward", OURS, ">", "sft_full", (0.816, 0.756)),
        Claim(
            "fine-grained RLHF scores highest on completeness: above preference RLHF",
            "table 6.3",
            "comp_reward",
            OURS,
            ">",
            "preference_rlhf",
            (0.139, 0.101),
        ),
        Claim("… above SFT-Full", "table 6.3", "comp_reward", OURS, ">", "sft_full", (0.139, 0.044)),
    )

    def row(self, root: Path, system: str, seed: int) -> dict[str, Any]:
        """With the factual error rate by sub-sentence."""
        return super().row(root, system, seed) | {FACT: factual_error_by_sub_sentence(read_judged(root, system))}

    def measure(self, roots: Mapping[int, Path]) -> dict[str, Any]:
        """With the pairwise comparisons of table 6.2."""
        pairs = []
        for seed, root in roots.items():
            ours = read_judged(root, OURS)
            for other in OTHERS:
                of_other = read_judged(root, other)
                pairs += [
                    {"versus": other, "measure": name, "seed": seed, **win_tie_lose(ours, of_other, measure)}
                    for name, measure in MEASURES.items()
                ]
        summary = {
            name: {
                other: summarise_rows([p for p in pairs if (p["versus"], p["measure"]) == (other, name)], OUTCOMES)
                for other in OTHERS
            }
            for name in MEASURES
        }
        measured = super().measure(roots)
        margin = margins(measured["rows"], OURS, PREFERENCE, self.columns)
        return {**measured, "against_preference": margin, "pairs": pairs, "pairs_summary": summary}

    def body(self, result: Mapping[str, Any]) -> str:
        """With what it is all about, and both tables of pairs."""
        margin = margins(result["rows"], OURS, PREFERENCE, self.columns)
        over = "Mean difference over seeds ± its standard error.\n\n" if len(result["seeds"]) > 1 else ""
        rows = []
        for measure, by_system in result["pairs_summary"].items():
            for other, outcomes in by_system.items():
                row = {"ours vs.": other, "judged by": measure, **{name: outcomes[name]["mean"] for name in OUTCOMES}}
                if measure == "completeness":
                    row |= {"thesis": " / ".join(f"{share:.1%}" for share in THESIS_WINS[other])}
                rows.append(row)
        return (
            f"## Fine-grained RLHF minus preference RLHF\n\n{over}{margins_page(margin)}\n{super().body(result)}\n"
            "## Fine-grained RLHF against each other system, question by question\n\n"
            "Share of the test questions on which the oracle finds fine-grained RLHF's answer better, as good, worse; "
            "mean over seeds. `completeness`: asked facts given. `errors`: sub-sentences with a relevance error, "
            "sentences with a factual error and missing facts together. The thesis's numbers are people's, for "
            f"completeness.\n\n{markdown_table(rows, ['ours vs.', 'judged by', *OUTCOMES, 'thesis'])}"
        )

    def draw(self, result: Mapping[str, Any], path: Path) -> None:
        """Figure 6.3, with completeness beside."""
        titles = {
            REL: "sub-sentences with a relevance error",
            FACT: "sub-sentences with a factual error",
            "completeness": "asked facts given",
        }
        draw_bars(
            path,
            [
                Bars(title, {NAMES[system]: spread[name] for system, spread in result["summary"].items()})
                for name, title in titles.items()
            ],
        )


@dataclass(frozen=True)
class FreeFormTable(SystemsTable):
    """The same systems where gold answers are free in form and far from complete, and auxiliary facts useful."""

    title = "FactWorld with open questions and free gold answers: the thesis's systems"
    about = (
        f"{ON_TEST} Greedy decoding. `{FACT}`: as in figure 6.3. Every question is open: an answer that gives the "
        "auxiliary facts too is more complete, and `completeness` counts them. Gold answers state facts in three "
        "forms, in any order, one or two a sentence, and half of the auxiliary ones; `gold` is the gold answers "
        "themselves, what faultless imitation of them would reach. `sft` learnt from texts of the imperfect "
        "writer. `sft_full` goes on from there with the gold answers to all questions that both RLHF systems' feedback "
        "is on, `sft_few` with {gold}, as many as people write in the time of that feedback (thesis, section 6.4.1: 15 "
        "and 6 minutes a question)."
    )
    runs = (FEW, *SystemsTable.runs)
    caption = "True error rates of five systems and of the gold answers, by the oracle"
    systems = (GOLD, "sft", FEW, "sft_full", PREFERENCE, OURS)
