"""CORESET where the user is wrong several times: which selection bears how many wrong remarks.

Reads what the steps of the experiment wrote; asks no language model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from finegrained_lab.experiments.compared_table import ComparedTable
from finegrained_lab.experiments.personalization.coreset_figures import figures_of
from finegrained_lab.experiments.results_table import setting_of
from finegrained_lab.figures import Lines, band, draw_lines

SCENARIO = "strays"
STRAYS_SETTINGS = ("conversations", "documents", "overlap", "noise", "forgets", "resolves", "misjudges")
"""Of the experiment: what the page says of them."""
MEASURES = ("precision", "recall")


@dataclass(frozen=True)
class StraysTable(ComparedTable):
    """Every agent on the same conversations, by the number of wrong remarks.

    Attributes:
        wrong: numbers of wrong remarks; the runs of each lie in `wrong_N/`.
    """

    title: ClassVar[str] = "CORESET on BiosWorld: how many wrong remarks a selection bears"
    world: ClassVar[str] = "BiosWorld"
    runs: ClassVar[tuple[str, ...]] = ()
    stated_settings: ClassVar[tuple[str, ...]] = STRAYS_SETTINGS
    systems: ClassVar[tuple[str, ...]] = (
        *("no_feedback", "full_memory", "coreset_recency_model", "coreset_greedy_model"),
        *("coreset_recency_exact", "coreset_greedy_exact", "coreset_largest_exact", "random_window"),
        *("holding_remarks", "everything"),
    )
    baseline: ClassVar[str] = "full_memory"
    columns: ClassVar[tuple[str, ...]] = ()
    caption: ClassVar[str] = "Precision and recall of six agents by the number of wrong remarks"
    drawn: ClassVar[tuple[str, ...]] = (
        *("full_memory", "coreset_recency_exact", "coreset_greedy_exact", "coreset_largest_exact"),
        *("random_window", "holding_remarks"),
    )
    about: ClassVar[str] = (
        "The language model is scripted and so is the user: the table compares what algorithms do with the same "
        "errors, and says nothing about language. `precision_K`, `recall_K`: of the set of answers, with K wrong "
        "remarks, mean over turns. `coreset_A_B`: selection A (`recency` is algorithm 1, `greedy` algorithm 2 as "
        "printed, `largest` the objective that the paper states for it, exactly, among the 16 newest) with conflicts "
        "found by B (the language `model`, or `exact`, by the documents' facts). `random_window`: as many successive "
        "remarks as algorithm 1, from anywhere. `holding_remarks` is told which remarks are right. `everything` "
        "asks no language model."
    )
    wrong: Sequence[int] = ()

    def introduction(self, result: Mapping[str, Any]) -> str:
        """What the conversations were, by the settings, and what is measured."""
        settings = result["settings"]
        return (
            f"{settings['conversations']} conversations of 50 turns with each number of wrong remarks, about "
            f"{settings['documents']} people of one name, {settings['overlap']:.0%} of whose facts are another's. "
            "Every five turns, ten times, the user states a fact of who is meant; K remarks between them state a "
            f"fact of somebody else, at places drawn at random, none behind the last right one. Dials of the language "
            f"model: "
            f"{settings['noise']:.0%} of its judgements go wrong, {settings['forgets']:.0%} of the statements are "
            f"overlooked for each 1,000 tokens behind them, it settles {settings['resolves']:.0%} of the "
            f"contradictions in favour of what is newer and answers by anything that was said in the others, and "
            f"{settings['misjudges']:.0%} of its answers about conflicts are wrong. {self.about}"
        )

    def conditions(self, roots: Mapping[int, Path]) -> dict[str, Any]:
        """The settings, and the numbers of wrong remarks."""
        settings = {name: setting_of(roots, name) for name in STRAYS_SETTINGS}
        return {"settings": {**settings, "wrong": list(self.wrong)}}

    def shown_columns(self, rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
        """Precision and recall with every number of wrong remarks."""
        return tuple(name for name in rows[0] if name.startswith(MEASURES))

    def row(self, root: Path, system: str, seed: int) -> dict[str, Any]:
        """What the runs say of an agent."""
        documents = str(setting_of({seed: root}, "documents"))
        row: dict[str, Any] = {"system": system, "seed": seed}
        for count in self.wrong:
            figures = figures_of(root / f"wrong_{count}", SCENARIO, documents, system)
            row |= {f"{name}_{count}": figures[name] for name in MEASURES}
        return row

    def draw(self, result: Mapping[str, Any], path: Path) -> None:
        """Precision and recall by the number of wrong remarks: mean and range over seeds."""
        wrong = result["settings"]["wrong"]
        panels = [
            Lines(
                name,
                name,
                bands={
                    system: band(
                        [{k: row[f"{name}_{k}"] for k in wrong} for row in result["rows"] if row["system"] == system]
                    )
                    for system in self.drawn
                },
            )
            for name in MEASURES
        ]
        draw_lines(path, panels, x_label="wrong remarks, beside ten right ones")

    def took(self, result: Mapping[str, Any]) -> str:
        """That nothing is trained."""
        return "No model is trained or loaded; a seed takes some minutes on a CPU core."
