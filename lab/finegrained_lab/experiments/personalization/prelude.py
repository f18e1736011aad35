"""PRELUDE on StyleWorld: what the edits of a user cost whose preferences agents learn, agent by agent.

Reads what the steps of the experiment wrote; asks no language model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from finegrained_lab.experiments.compared_table import ComparedTable
from finegrained_lab.experiments.comparison import differences, differences_page
from finegrained_lab.figures import Lines, band, draw_lines
from finegrained_lab.protocols.prelude.curves import cost_curves
from finegrained_lab.protocols.prelude.measures import BIN
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json
from finegrained_rlhf.personalization.learners.prelude import AGENTS
from finegrained_rlhf.text.tables import cell, markdown_table, summarise_rows

SETTINGS = ("contexts", "foreign", "slips", "misreads", "notices")
"""Of the experiment: what the page says of them."""
DRAWN = ("oracle", "no_learning", "continual", "icl_edit_5", "cipher_1", "cipher_5")
"""Agents in the figure, which has six colours."""


@dataclass(frozen=True)
class PreludeTable(ComparedTable):
    """Every agent on the same rounds of each seed's world."""

    title: ClassVar[str] = "PRELUDE on StyleWorld: what a user's edits cost while agents learn from them"
    world: ClassVar[str] = "StyleWorld"
    runs: ClassVar[tuple[str, ...]] = ()
    stated_settings: ClassVar[tuple[str, ...]] = SETTINGS
    systems: ClassVar[tuple[str, ...]] = AGENTS
    baseline: ClassVar[str] = "no_learning"
    columns: ClassVar[tuple[str, ...]] = (
        "cost",
        "normalised",
        "untouched",
        "untouched_last",
        "preference_accuracy",
        "retrieval_accuracy",
        "calls",
        "tokens_in",
        "tokens_out",
    )
    caption: ClassVar[str] = "Cumulative cost of the edits of six agents, and share of untouched drafts, by round"
    about: ClassVar[str] = (
        "The language model is scripted and so is the reader: the table compares algorithms, and says nothing about"
        " language. `cost`: Levenshtein's distance of draft and edited text in words and marks, summed over rounds;"
        " `normalised`: over the longer text's tokens, mean; `untouched`: share of drafts that needed no edit, "
        "`untouched_last` in the last 20 rounds; `preference_accuracy`: share of rounds in which the preference "
        "that the draft was written by has more words in common with the true one than with any other source's; "
        "`retrieval_accuracy`: share of retrieved contexts that are of the round's source; `calls`, `tokens_in`, "
        "`tokens_out`: of the language model. `oracle` is told the true preference; `no_learning` is the constant "
        "baseline."
    )

    def introduction(self, result: Mapping[str, Any]) -> str:
        """What the rounds were, by the settings, and what is measured."""
        settings = result["settings"]
        return (
            f"{settings['contexts']} rounds, a context each, of five sources in mixed order; the reader wants each "
            "source's texts in another style, and agents are not told the source. Of a context's sentences "
            f"{settings['foreign']:.0%} are another source's. The language model does not follow "
            f"{settings['slips']:.0%} of "
            f"what a preference says, takes {settings['misreads']:.0%} of an edit's traits for others, and sees "
            f"{settings['notices']:.0%} of those that the draft had already. {self.about}"
        )

    def row(self, root: Path, system: str, seed: int) -> dict[str, Any]:
        """What the run says of an agent."""
        file = root / "run" / "summary.json"
        figures = read_json(file)["agents"].get(system)
        if figures is None:
            raise DataError("the run has no such agent", file=file, record=system)
        last = figures["untouched_by_20"][-1]
        shown = {name: figures[name] for name in self.columns if name in figures}
        return {"system": system, "seed": seed, **shown, "untouched_last": last}

    def compare(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """As for every table, but of each agent only what it has: some name no preference, some retrieve nothing."""
        summary = {}
        for system in self.systems:
            own = [row for row in rows if row["system"] == system]
            there = [column for column in self.columns if all(row.get(column) is not None for row in own)]
            summary[system] = summarise_rows(own, there)
        compared = differences(rows, self.baseline, self.columns)
        return {"rows": rows, "summary": summary, "differences": {"from": self.baseline, "systems": compared}}

    def measure(self, roots: Mapping[int, Path]) -> dict[str, Any]:
        """Rows, their spread, the differences from no learning, the order of the agents by cost, and curves."""
        compared = super().measure(roots)
        orders = {
            str(seed): [
                row["system"] for row in sorted(compared["rows"], key=lambda row: row["cost"]) if row["seed"] == seed
            ]
            for seed in roots
        }
        curves: dict[str, dict[str, list[dict[str, float]]]] = {"cost": {}, "untouched": {}}
        for root in roots.values():
            summed, untouched = cost_curves(root / "run" / "rounds.jsonl")
            for agent, shares in untouched.items():
                curves["cost"].setdefault(agent, []).append({str(end): int(summed[agent][end]) for end in shares})
                curves["untouched"].setdefault(agent, []).append({str(end): share for end, share in shares.items()})
        return {**compared, "orders": orders, "curves": curves}

    def body(self, result: Mapping[str, Any]) -> str:
        """The order of the agents, means with standard errors, differences, every run."""
        several = len(result["seeds"]) > 1
        orders = [{"seed": seed, "lowest cost first": ", ".join(order)} for seed, order in result["orders"].items()]
        gaps = differences_page(result["differences"]["systems"], self.columns)
        return (
            f"## Order by cost\n\n{markdown_table(orders, ['seed', 'lowest cost first'])}\n"
            f"## Mean{' ± standard error over seeds' * several}\n\n"
            f"{_means(result['summary'], self.columns, len(result['seeds']))}\n"
            f"## Difference from {self.baseline}{', mean over seeds ± its standard error' * several}\n\n{gaps}\n"
            f"## Every run\n\n{markdown_table(result['rows'], ['system', 'seed', *self.columns])}"
        )

    def draw(self, result: Mapping[str, Any], path: Path) -> None:
        """Cumulative cost of `DRAWN`, and their share of untouched drafts by 20 rounds: mean and range over seeds."""
        titles = {"cost": "cumulative cost (tokens)", "untouched": f"untouched drafts of the last {BIN}"}
        panels = [
            Lines(
                title,
                title,
                bands={
                    agent: band([{int(end): value for end, value in curve.items()} for curve in curves])
                    for agent, curves in ((agent, result["curves"][name][agent]) for agent in DRAWN)
                },
            )
            for name, title in titles.items()
        ]
        draw_lines(path, panels, x_label="rounds")

    def took(self, result: Mapping[str, Any]) -> str:
        """That nothing is trained."""
        return "No model is trained or loaded; the agents of a seed take some seconds on a CPU core."


def _means(summary: Mapping[str, Mapping[str, Mapping[str, float]]], columns: Sequence[str], seeds: int) -> str:
    def text(spread: Mapping[str, float]) -> str:
        return cell(spread["mean"]) + (f" ± {cell(spread['std'] / seeds**0.5)}" if seeds > 1 else "")

    rows = [{"agent": name, **{column: text(spread) for column, spread in by.items()}} for name, by in summary.items()]
    return markdown_table(rows, ["agent", *columns])
