"""CIPHER whose preferences a small model chooses, on StyleWorld: what the user's edits cost.

Reads what the steps of the experiment wrote; asks no language model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from finegrained_lab.experiments.comparison import differences, differences_page, spread_heading, spread_table
from finegrained_lab.experiments.results_table import ResultsTable
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json
from finegrained_rlhf.text.tables import markdown_table, summarise_rows

ROWS: Mapping[str, tuple[str, str]] = {
    "oracle": ("script", "oracle"),
    "no_learning": ("script", "no_learning"),
    **{kind: (kind, "cipher_5") for kind in ("script", "examples", "shuffled", "zero_shot", "chance")},
}
"""Row → who chooses, which is the directory of the run, and the agent."""
MEASURES = ("cost", "normalised", "untouched", "preference_accuracy")
ABOUT = (
    "{contexts} rounds of CIPHER with k = 5, a context each, of five sources in mixed order. What an edit shows is "
    "chosen among the five preferences that readers have: by {model} behind {shots} answered examples, by how far the "
    "edit raises an answer's log-probability (`examples`), behind the same with each other's answers (`shuffled`), "
    "behind a sentence alone (`zero_shot`), at random (`chance`), or by a script that reads the edit (`script`, the "
    "ceiling of who chooses). All else is scripted: the drafts, which follow the preference that they are given, how "
    "five preferences are combined, dimension by dimension, and the reader. `oracle` is told the true preference, "
    "`no_learning` learns none. `cost`: Levenshtein's distance of draft and edited text in words and marks, summed "
    "over rounds; `normalised`: over the longer text, mean; `untouched`: share of drafts that needed no edit; "
    "`preference_accuracy`: share of rounds whose preference is closer to the true one than to any other source's."
)


@dataclass(frozen=True)
class ChosenPreferencesTable(ResultsTable):
    """CIPHER with one who chooses after the other, on the same rounds of each seed's world."""

    title: ClassVar[str] = "CIPHER whose preferences a small pretrained model chooses"
    world: ClassVar[str] = "StyleWorld"
    runs: ClassVar[tuple[str, ...]] = ()
    stated_settings: ClassVar[tuple[str, ...]] = ("contexts", "shots", "model")

    def introduction(self, result: Mapping[str, Any]) -> str:
        """What was played, by the settings."""
        return ABOUT.format_map(result["settings"])

    def measure(self, roots: Mapping[int, Path]) -> dict[str, Any]:
        """Rows, their spread, and the differences from chance and from shuffled examples.

        Raises:
            DataError: a run has no such agent.
        """
        rows = [_row(root, name, seed) for name in ROWS for seed, root in roots.items()]
        summary = {}
        for name in ROWS:
            own = [row for row in rows if row["system"] == name]
            summary[name] = summarise_rows(own, [one for one in MEASURES if all(row[one] is not None for row in own)])
        gaps = {baseline: differences(rows, baseline, MEASURES) for baseline in ("chance", "shuffled")}
        return {"rows": rows, "summary": summary, "differences": gaps}

    def body(self, result: Mapping[str, Any]) -> str:
        """Means, differences, every run."""
        seeds: Sequence[int] = result["seeds"]
        gaps = "\n".join(
            f"## Difference from {baseline}, mean over seeds ± its standard error\n\n{differences_page(by, MEASURES)}"
            for baseline, by in result["differences"].items()
        )
        return (
            f"## {spread_heading(seeds)}\n\n{spread_table(result['summary'], 'row', MEASURES, seeds)}\n{gaps}\n"
            f"## Every run\n\n{markdown_table(result['rows'], ['system', 'seed', *MEASURES])}"
        )

    def took(self, result: Mapping[str, Any]) -> str:
        """That nothing is trained."""
        return "No model is trained; a seed takes some minutes of a CPU core."


def _row(root: Path, name: str, seed: int) -> dict[str, Any]:
    kind, agent = ROWS[name]
    file = root / kind / "summary.json"
    figures = read_json(file)["agents"].get(agent)
    if figures is None:
        raise DataError("the run has no such agent", file=file, record=agent)
    return {"system": name, "seed": seed, **{measure: figures.get(measure) for measure in MEASURES}}
