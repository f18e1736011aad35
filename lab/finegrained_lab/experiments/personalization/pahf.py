"""PAHF on PahfWorld: how often an agent is right, by the feedback that it uses, before and after preferences change.

Reads what the steps of the experiment wrote; asks no language model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from finegrained_lab.experiments.compared_table import ComparedTable
from finegrained_lab.figures import Lines, band, draw_lines
from finegrained_lab.protocols.pahf.measures import LEARNING, MEASURES
from finegrained_lab.protocols.pahf.run import final_figures
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json
from finegrained_rlhf.personalization.learners.pahf import FEEDBACK_SETTINGS
from finegrained_rlhf.text.tables import markdown_table

WORLD_SETTINGS = ("users", "scenes", "drift", "noise", "overreach", "terse")
"""Of the experiment: what the page says of them."""


@dataclass(frozen=True)
class PahfTable(ComparedTable):
    """Every setting on the same scenes of each seed's world, beside those who look at nothing."""

    title: ClassVar[str] = "PAHF on PahfWorld: questions before and corrections after an action"
    world: ClassVar[str] = "PahfWorld"
    runs: ClassVar[tuple[str, ...]] = ()
    stated_settings: ClassVar[tuple[str, ...]] = WORLD_SETTINGS
    systems: ClassVar[tuple[str, ...]] = (*FEEDBACK_SETTINGS, "chance", "constant", "oracle")
    baseline: ClassVar[str] = "none"
    columns: ClassVar[tuple[str, ...]] = (
        *("first1", "success1", "acpe1", "frequency1", "success2"),
        *("first3", "success3", "acpe3", "frequency3", "success4"),
    )
    caption: ClassVar[str] = "Success rate, feedback frequency and ACPE by iteration of the two learning phases"
    about: ClassVar[str] = (
        "The language model is scripted and so is the user: the table compares algorithms, and says nothing about "
        "language. The number behind a name is the phase: 1 learn, 2 test, 3 learn after the change, 4 test. `first`: "
        "success rate in the first iteration of a learning phase; `success`: in its last one, or in the test; `acpe`: "
        "average cumulative personalization error, the mean of the error rates of all iterations; `frequency`: share "
        "of scenes of the last iteration in which the user was asked or gave feedback, whatever was stored of it. "
        "`none` has no memory, `pre` asks, `post` is corrected, `both` is PAHF; `chance` takes any option, `constant` "
        "the same place in the list, the best one in hindsight, and `oracle` the intent. A test writes nothing: the "
        "files of every memory were compared byte by byte before and after."
    )

    def introduction(self, result: Mapping[str, Any]) -> str:
        """What the scenes were, by the settings, and what is measured."""
        settings = result["settings"]
        return (
            f"{settings['users']} users, {settings['scenes']} scenes of each in each phase; {settings['drift']:.0%} "
            "of a user's "
            f"rules have changed in phases 3 and 4. Of the language model's steps {settings['noise']:.0%} go wrong, "
            "and in "
            f"{settings['overreach']:.0%} of the situations it takes what holds in general to be enough. Of a wrong "
            "action "
            f"the user says in {settings['terse']:.0%} of the cases only that it was wrong. {self.about}"
        )

    def row(self, root: Path, system: str, seed: int) -> dict[str, Any]:
        """What the run says of a setting."""
        file = root / "run" / "summary.json"
        summary = read_json(file)
        if not summary["unchanged_in_tests"]:
            raise DataError("a memory has changed in a test", file=file)
        figures = final_figures(summary).get(system)
        if figures is None:
            raise DataError("the run has no such setting", file=file, record=system)
        return {"system": system, "seed": seed, **{name: figures[name] for name in self.columns}}

    def measure(self, roots: Mapping[int, Path]) -> dict[str, Any]:
        """Rows, their spread, the differences from no memory, curves, and what each setting asked of the model."""
        summaries = {seed: read_json(root / "run" / "summary.json")["settings"] for seed, root in roots.items()}
        curves = {
            f"{name}{phase}": {
                setting: [figures[setting][f"phase{phase}"][name] for figures in summaries.values()]
                for setting in FEEDBACK_SETTINGS
            }
            for phase in LEARNING
            for name in MEASURES
        }
        users = [
            {
                "setting": setting,
                "seed": seed,
                **{f"{name}{phase}": figures[setting][f"phase{phase}"][f"{name}_se"][-1] for name, phase in _ERRORS},
                **{name: figures[setting][name] for name in ("calls", "tokens_in", "tokens_out")},
            }
            for setting in FEEDBACK_SETTINGS
            for seed, figures in summaries.items()
        ]
        return {**super().measure(roots), "curves": curves, "errors_over_users": users}

    def body(self, result: Mapping[str, Any]) -> str:
        """Spread, differences, every run; standard errors over users, and the expense."""
        columns = [
            "setting",
            "seed",
            *(f"{name}{phase}" for name, phase in _ERRORS),
            "calls",
            "tokens_in",
            "tokens_out",
        ]
        return (
            f"{super().body(result)}\n## Standard errors over users, and expense\n\n"
            f"{markdown_table(result['errors_over_users'], columns)}"
        )

    def draw(self, result: Mapping[str, Any], path: Path) -> None:
        """A row a learning phase, as in the paper's figures 5 and 6: mean and range over seeds."""
        panels = [
            Lines(f"phase {phase}: {title}", title, bands=_bands(result["curves"][f"{name}{phase}"]))
            for phase in LEARNING
            for name, title in MEASURES.items()
        ]
        iterations = max(len(curve) for curves in result["curves"].values() for own in curves.values() for curve in own)
        ticks = {float(number): str(number) for number in range(1, iterations + 1)}
        draw_lines(path, panels, x_label="iterations", ticks=ticks, columns=len(MEASURES))

    def took(self, result: Mapping[str, Any]) -> str:
        """That nothing is trained."""
        return "No model is trained or loaded; the settings of a seed take some seconds on a CPU core."


_ERRORS = (("success", 1), ("acpe", 1), ("success", 2), ("success", 3), ("acpe", 3), ("success", 4))


def _bands(curves: Mapping[str, Sequence[Sequence[float]]]) -> dict[str, Any]:
    return {
        setting: band([dict(enumerate(values, start=1)) for values in of_seeds]) for setting, of_seeds in curves.items()
    }
