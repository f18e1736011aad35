"""CORESET on BiosWorld: how right agents are about who is meant, by what of the conversation they show their model.

Reads what the steps of the experiment wrote; asks no language model.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from finegrained_lab.experiments.compared_table import ComparedTable
from finegrained_lab.experiments.personalization.coreset_figures import (
    MAIN,
    by_remarks_table,
    document_counts,
    errors_table,
    figures_of,
    last_turn_table,
    over_seeds,
    places_table,
    windowed_curve,
)
from finegrained_lab.experiments.results_table import setting_of
from finegrained_lab.figures import Lines, band, draw_lines
from finegrained_rlhf.core.files import read_json
from finegrained_rlhf.personalization.learners.coreset import DEFAULT_AGENTS
from finegrained_rlhf.text.tables import cell, markdown_table

BIOS_SETTINGS = ("conversations", "overlap", "noise", "forgets", "resolves", "first_bias", "misjudges", "threshold")
"""Of the experiment: what the page says of them."""
TOLD_NOTHING = ("everything", "most_frequent", "first_document", "oracle")
"""Those who ask no language model."""
PAPERS = {
    "Llama-3-70B": {
        "icl": (0.69, 0.72),
        "cot": (0.36, 0.68),
        "full_memory": (0.72, 0.76),
        "scratchpad": (0.16, 0.29),
        "summarised_memory": (0.72, 0.77),
        "coreset": (0.79, 0.83),
    },
    "Claude 3 Sonnet": {
        "icl": (0.85, 0.90),
        "cot": (0.49, 0.60),
        "full_memory": (0.94, 0.95),
        "scratchpad": (0.39, 0.65),
        "summarised_memory": (0.89, 0.92),
        "coreset": (0.95, 0.98),
    },
}
"""Table 2, Bios: precision and recall."""
PAPERS_AGENT = "coreset_recency_model"
"""What stands for the paper's CORESET, which finds conflicts by a language model."""
DRAWN_SYSTEMS = ("icl", "full_memory", "summarised_memory", "coreset_recency_model", "random_window", "holding_remarks")
DRAWN_SCENARIOS = ("persistence", "change", MAIN, "stray")


@dataclass(frozen=True)
class CoresetTable(ComparedTable):
    """Every agent on the same conversations of each seed's world, beside those who ask no language model."""

    title: ClassVar[str] = "CORESET on BiosWorld: which of the user's remarks a language model should see"
    world: ClassVar[str] = "BiosWorld"
    runs: ClassVar[tuple[str, ...]] = ()
    systems: ClassVar[tuple[str, ...]] = (*DEFAULT_AGENTS, *TOLD_NOTHING)
    baseline: ClassVar[str] = "full_memory"
    columns: ClassVar[tuple[str, ...]] = (
        *("precision", "recall", "precision_3", "recall_3", "precision_10", "recall_10", "precision_20", "recall_20"),
        *("tokens_in", "tokens_out", "calls"),
    )
    caption: ClassVar[str] = "Mean of precision and recall of six agents by turn in four scenarios, ten documents"
    about: ClassVar[str] = (
        "The language model is scripted and so is the user: the table compares what algorithms do with the "
        "same errors, and says nothing about language. How often the script overlooks, contradicts and "
        "misjudges is set by dials of ours, and with other settings the order may be another. `precision`, "
        "`recall`: of the set of answers against the answers of all documents that can be meant, mean over "
        "turns; the first two columns are means over the numbers of documents, the others of one. "
        "`tokens_in`, `tokens_out`, `calls`: of a conversation, conflict checks, notes and summaries "
        "included. `coreset_A_B`: selection A (`recency` is algorithm 1, `greedy` algorithm 2 as printed, "
        "`largest` the objective that the paper states for it, exactly) with conflicts found by B (the "
        "language `model`, words in common as an `embedding`, or `exact`, by the documents' facts). "
        "Controls: `no_feedback` sees no remark; `random_window` takes as many successive remarks as "
        "algorithm 1, from anywhere; `everything`, `most_frequent` and `first_document` ask no language "
        "model. `holding_remarks` is told which remarks hold, the ceiling of every selection; `oracle` gives "
        "the true answers."
    )

    def conditions(self, roots: Mapping[int, Path]) -> dict[str, Any]:
        """The settings of world and language model, and the paper's figures."""
        counts = [int(count) for count in document_counts(next(iter(roots.values())))]
        settings = {name: setting_of(roots, name) for name in BIOS_SETTINGS}
        return {"settings": {**settings, "documents": counts}, "paper": PAPERS}

    def introduction(self, result: Mapping[str, Any]) -> str:
        """What the conversations were, by the settings, and what is measured."""
        settings = result["settings"]
        return (
            f"{settings['conversations']} conversations of each scenario with each of "
            f"{_listed(settings['documents'])} documents about people of one name; {settings['overlap']:.0%} of their "
            f"facts are another's. Dials of the language model: {settings['noise']:.0%} of its judgements go "
            f"wrong, {settings['forgets']:.0%} of the statements are overlooked for each 1,000 tokens behind "
            f"them, it settles {settings['resolves']:.0%} of the contradictions in favour of what is newer and "
            f"answers by anything that was said in the others, {settings['misjudges']:.0%} of its answers about "
            f"conflicts are wrong, and {settings['first_bias']:.0%} of single answers are the first document's. "
            f"The main table is of the scenario `{MAIN}`: 50 turns, a remark every five turns that states one "
            f"fact of who is meant, and another person is meant after turn 25. {self.about}"
        )

    def row(self, root: Path, system: str, seed: int) -> dict[str, Any]:
        """What the run says of an agent in the main scenario."""
        by_count = {count: figures_of(root, MAIN, count, system) for count in document_counts(root)}
        row: dict[str, Any] = {"system": system, "seed": seed}
        for name in ("precision", "recall"):
            row[name] = statistics.fmean(figures[name] for figures in by_count.values())
            row |= {f"{name}_{count}": figures[name] for count, figures in by_count.items()}
        for name in ("tokens_in", "tokens_out", "calls"):
            row[name] = statistics.fmean(figures[name] for figures in by_count.values())
        return row

    def measure(self, roots: Mapping[int, Path]) -> dict[str, Any]:
        """Rows, their spread, differences from unfiltered memory; orders, challenges, single answers, and curves."""
        compared = super().measure(roots)
        named = [name for name in self.systems if name not in ("oracle", "holding_remarks")]
        rows = compared["rows"]
        orders = {str(seed): sorted(named, key=lambda name: -_mean_of_both(rows, name, seed)) for seed in roots}
        first = next(iter(roots.values()))
        figures = read_json(first / "run" / "summary.json")["figures"]
        scenarios = [
            {
                "scenario": scenario,
                "documents": int(count),
                "system": system,
                **{name: over_seeds(roots, scenario, count, system, name) for name in ("precision", "recall")},
                "unsatisfiable": over_seeds(roots, scenario, count, system, "unsatisfiable"),
            }
            for scenario, by_count in figures.items()
            for count in by_count
            for system in self.systems
        ]
        return {
            **compared,
            "orders": orders,
            "scenarios": scenarios,
            "partial": by_remarks_table(roots, self.systems),
            "at_30": last_turn_table(roots, ("full_memory", PAPERS_AGENT, "coreset_recency_exact", "random_window")),
            "places": places_table(roots),
            "errors": errors_table(roots, DRAWN_SYSTEMS),
            "curves": {
                scenario: {
                    system: [windowed_curve(root, scenario, system) for root in roots.values()]
                    for system in DRAWN_SYSTEMS
                }
                for scenario in DRAWN_SCENARIOS
            },
        }

    def body(self, result: Mapping[str, Any]) -> str:
        """The order beside the paper's, spread, differences, every run; the other scenarios and the challenges."""
        orders = [{"seed": seed, "highest first": ", ".join(order)} for seed, order in result["orders"].items()]
        papers = [
            {
                "paper": model,
                "highest first": ", ".join(
                    f"{name} ({precision:.2f}, {recall:.2f})"
                    for name, (precision, recall) in sorted(by_method.items(), key=lambda item: -sum(item[1]))
                ),
            }
            for model, by_method in result["paper"].items()
        ]
        ours = [{"seed": seed, "highest first": _like_the_paper(order)} for seed, order in result["orders"].items()]
        columns = ["scenario", "documents", "system", "precision", "recall", "unsatisfiable"]
        others = [row for row in result["scenarios"] if row["scenario"] not in (MAIN, "position")]
        return (
            f"## Order by the mean of precision and recall, {MAIN}\n\n"
            f"{markdown_table(orders, ['seed', 'highest first'])}\n"
            f"The paper's (its table 2, Bios, precision and recall), and the same agents here:\n\n"
            f"{markdown_table(papers, ['paper', 'highest first'])}\n{markdown_table(ours, ['seed', 'highest first'])}\n"
            f"{_verdict(result)}\n\n"
            f"{super().body(result)}\n"
            f"## Partial disambiguation: by the number of remarks so far (the paper's table 6)\n\n"
            f"{markdown_table(result['partial'], ['documents', 'system', 'remarks', 'precision', 'recall'])}\n"
            f"## After three changes, at turn 30 (the paper's table 7)\n\n"
            f"{markdown_table(result['at_30'], ['documents', 'system', 'precision', 'recall'])}\n"
            f"## Single answers: share of the first document's, and of the other documents' on average\n\n"
            f"{markdown_table(result['places'], ['documents', 'seed', 'first', 'others'])}\n"
            f"{_errors(result)}"
            f"## Every scenario, means over seeds\n\n{markdown_table(others, columns)}"
        )

    def draw(self, result: Mapping[str, Any], path: Path) -> None:
        """The mean of precision and recall over turns: mean and range over seeds."""
        panels = [
            Lines(
                scenario,
                "mean of precision and recall",
                bands={
                    system: band([{int(end): value for end, value in curve.items()} for curve in of_seeds])
                    for system, of_seeds in by_system.items()
                },
            )
            for scenario, by_system in result["curves"].items()
        ]
        draw_lines(path, panels, x_label="turns")

    def took(self, result: Mapping[str, Any]) -> str:
        """That nothing is trained."""
        return "No model is trained or loaded; a seed takes some minutes on a CPU core."


def _mean_of_both(rows: Sequence[Mapping[str, Any]], system: str, seed: int) -> float:
    (row,) = (row for row in rows if row["system"] == system and row["seed"] == seed)
    return float(row["precision"] + row["recall"]) / 2


def _errors(result: Mapping[str, Any]) -> str:
    """What wrong answers come from; nothing of a results file from before that was counted."""
    if "errors" not in result:
        return ""
    return (
        f"## Errors by turn, {MAIN}, ten documents\n\nShares of turns whose answers are not the true ones: `missed`, a "
        "remark that holds was not shown; `believed`, one that does not hold was; `other`, neither, or what was taken "
        f"in is not known (a model's own notes).\n\n{markdown_table(result['errors'], list(result['errors'][0]))}\n"
    )


def _like_the_paper(order: Sequence[str]) -> str:
    known = PAPERS["Claude 3 Sonnet"]
    named = ["coreset" if name == PAPERS_AGENT else name for name in order]
    return ", ".join(name for name in named if name in known)


def _verdict(result: Mapping[str, Any]) -> str:
    """Where the orders agree and where not, from the numbers."""
    seeds = [_like_the_paper(order).split(", ") for order in result["orders"].values()]
    pairs = 0
    same = 0
    reversed_pairs: dict[str, int] = {}
    paper = sorted(PAPERS["Claude 3 Sonnet"].items(), key=lambda item: -sum(item[1]))
    for i, (higher, _) in enumerate(paper):
        for lower, _ in paper[i + 1 :]:
            held = sum(order.index(higher) < order.index(lower) for order in seeds)
            pairs, same = pairs + 1, same + (held == len(seeds))
            if held < len(seeds):
                reversed_pairs[f"{higher} above {lower}"] = held
    differ = ", ".join(f"{pair} (in {held} of {len(seeds)})" for pair, held in reversed_pairs.items())
    return (
        f"Of the {pairs} pairs of agents, {same} stand in every seed as in the paper's table for Claude 3 Sonnet. Not "
        f"in every seed: {differ or 'none'}."
    )


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(cell(number) for number in numbers)
