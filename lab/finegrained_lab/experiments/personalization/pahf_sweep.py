"""PAHF by how good the agent is and how forthcoming the user, and by what finds its notes, on PahfWorld.

Reads what the steps of the experiment wrote; asks no language model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from finegrained_lab.experiments.comparison import spread_heading, spread_table
from finegrained_lab.experiments.results_table import ResultsTable
from finegrained_lab.protocols.pahf.run import final_figures
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json
from finegrained_rlhf.personalization.learners.pahf import FEEDBACK_SETTINGS
from finegrained_rlhf.text.tables import markdown_table, summarise_rows

SWEPT = ("agent", "user", "setting")
COLUMNS = ("success2", "first3", "acpe3", "frequency3", "success4")


@dataclass(frozen=True)
class PahfSweepTable(ResultsTable):
    """Every agent with every user, and every memory, on the same scenes of each seed's world.

    Attributes:
        agents: shares of the agent's steps that go wrong, as in the names of the runs, `swept/NOISE_TERSE`.
        users: shares of wrong actions of which the user says only that they were wrong.
        memories: runs of what finds notes, `memory/NAME`.
    """

    title: ClassVar[str] = "PAHF on PahfWorld: agents, users and memories"
    world: ClassVar[str] = "PahfWorld"
    runs: ClassVar[tuple[str, ...]] = ()
    stated_settings: ClassVar[tuple[str, ...]] = ("persons", "scenes", "drift", "overreach", "noise", "terse")
    about: ClassVar[str] = (
        "{persons} users, {scenes} scenes of each in each of four phases (1 learn, 2 test, 3 learn after "
        "{drift:.0%} of a user's rules have changed, 4 test). Agent and user are scripted: the table says what "
        "errors of either do to the algorithm, and nothing about language. `agent`: share of the agent's steps that "
        "go wrong; `user`: of a wrong action, the share of cases in which the user says only that it was wrong. "
        "`none` has no memory, `pre` asks, `post` is corrected, `both` is PAHF. `success`: success rate in a test; "
        "`first3`: in the first iteration after the change; `acpe3`: the mean error rate of all iterations of phase "
        "3; `frequency3`: share of scenes of its last iteration with a question or feedback. Memories, with "
        "{noise:.0%} and {terse:.0%}: hashed words or all-MiniLM-L6-v2, notes found exactly or by FAISS."
    )

    agents: Sequence[float] = ()
    users: Sequence[float] = ()
    memories: Sequence[str] = ()

    def introduction(self, result: Mapping[str, Any]) -> str:
        """What was played, by the settings."""
        return self.about.format_map(result["settings"])

    def measure(self, roots: Mapping[int, Path]) -> dict[str, Any]:
        """Rows of every run, and their spread by agent, user and setting, and by memory.

        Raises:
            DataError: a run is not there, or a memory has changed in a test.
        """
        swept = [
            {"agent": noise, "user": terse, **row}
            for noise in self.agents
            for terse in self.users
            for row in _rows(roots, f"swept/{noise}_{terse}", FEEDBACK_SETTINGS)
        ]
        memories = [
            {"memory": name, **row} for name in self.memories for row in _rows(roots, f"memory/{name}", ("both",))
        ]
        return {
            "rows": swept,
            "memory_rows": memories,
            "summary": _spread(swept, SWEPT),
            "memory_summary": _spread(memories, ("memory",)),
        }

    def body(self, result: Mapping[str, Any]) -> str:
        """Spread by agent and user, spread by memory, every run."""
        seeds: Sequence[int] = result["seeds"]
        spread = spread_heading(seeds)
        return (
            f"## {spread}: agents and users\n\n{spread_table(result['summary'], ', '.join(SWEPT), COLUMNS, seeds)}\n"
            f"## {spread}: memories\n\n{spread_table(result['memory_summary'], 'memory', COLUMNS, seeds)}\n"
            f"## Every run\n\n{markdown_table(result['rows'], [*SWEPT, 'seed', *COLUMNS])}\n"
            f"{markdown_table(result['memory_rows'], ['memory', 'setting', 'seed', *COLUMNS])}"
        )

    def took(self, result: Mapping[str, Any]) -> str:
        """That nothing is trained."""
        return "No model is trained; a run takes some seconds on a CPU core."


def _rows(roots: Mapping[int, Path], run: str, settings: Sequence[str]) -> list[dict[str, Any]]:
    rows = []
    for seed, root in roots.items():
        file = root / run / "summary.json"
        summary = read_json(file)
        if not summary["unchanged_in_tests"]:
            raise DataError("a memory has changed in a test", file=file)
        figures = final_figures(summary)
        rows += [
            {"setting": name, "seed": seed, **{column: figures[name][column] for column in COLUMNS}}
            for name in settings
        ]
    return rows


def _spread(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, dict[str, dict[str, float]]]:
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(", ".join(str(row[name]) for name in names), []).append(row)
    return {key: summarise_rows(own, COLUMNS) for key, own in groups.items()}
