"""Notes in the prompt and training on edits, together and apart: a known user, a new one, a changed taste."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

from finegrained_lab.experiments.comparison import differences, differences_page, spread_heading, spread_table
from finegrained_lab.experiments.results_table import ResultsTable
from finegrained_lab.worlds.style.streams import STREAMS
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_jsonl
from finegrained_rlhf.text.tables import markdown_table, summarise_rows

SYSTEMS: Mapping[str, tuple[str, str]] = {
    "writer": ("writer", "no_learning"),
    "writer, notes": ("writer", "cipher_5"),
    "writer, true notes": ("writer", "oracle"),
    "trained": ("sft", "no_learning"),
    "trained, notes": ("sft", "cipher_5"),
    "trained with notes": ("sft_noted", "no_learning"),
    "trained with notes, notes": ("sft_noted", "cipher_5"),
    "trained with notes, true notes": ("sft_noted", "oracle"),
}
"""Row → policy, and the agent that puts notes into its prompts, or none."""
MEASURES = ("cost", "first", "last", "untouched")
_PART = 20


@dataclass(frozen=True)
class NotesAndTrainingTable(ResultsTable):
    """Every policy with and without notes, on the same rounds of three users."""

    title: ClassVar[str] = "StyleWorld: notes in the prompt and training on edits, together and apart"
    world: ClassVar[str] = "StyleWorld"
    runs: ClassVar[tuple[str, ...]] = ("sft", "sft_noted")
    stated_settings: ClassVar[tuple[str, ...]] = ("used", "measured", "earlier", "foreign")
    about: ClassVar[str] = (
        "A tiny T5 writes StyleWorld's texts in any style, and in the one that a note in its prompt describes "
        "(`writer`). CIPHER (k = 5) puts what it learnt from edits into its prompts for {used} rounds, and the "
        "texts that the readers made of these drafts train it: `trained` on the context alone, `trained with notes` "
        "with the notes that were in the prompts. Then three users, {measured} rounds each, the same contexts: a "
        "*known* one, whose sources' readers are those of training and whose memory has {earlier} earlier rounds; a "
        "*new* one, who has no memory and wants of each source what another source's reader wants; one whose taste "
        "*changed*, with the known one's memory and the new one's wishes. `…, notes`: CIPHER's, learnt as it goes; "
        "`true notes`: the oracle's, a bound of notes. Only the drafts are a policy's: a script without errors says "
        "what edits show, and combines it, and the reader is scripted. `cost`: words and marks changed a draft; "
        "`first` and `last`: of the first and last 20 measured rounds; `untouched`: share of drafts that needed no "
        "edit."
    )

    def introduction(self, result: Mapping[str, Any]) -> str:
        """What was played, by the settings."""
        return self.about.format_map(result["settings"])

    def measure(self, roots: Mapping[int, Path]) -> dict[str, Any]:
        """By user: rows, their spread, differences from the writer and from training alone.

        Raises:
            DataError: a run has no such agent.
        """
        by_user = {}
        rows = [row for seed, root in roots.items() for row in _rows(root, seed)]
        for user in STREAMS:
            own = [row for row in rows if row["user"] == user]
            summary = {
                name: summarise_rows([row for row in own if row["system"] == name], MEASURES) for name in SYSTEMS
            }
            gaps = {base: differences(own, base, MEASURES) for base in ("writer, notes", "trained")}
            by_user[user] = {"summary": summary, "differences": gaps}
        return {"rows": rows, "users": by_user}

    def body(self, result: Mapping[str, Any]) -> str:
        """By user: means and differences; then every run."""
        seeds: Sequence[int] = result["seeds"]
        parts = []
        for user, of in result["users"].items():
            parts.append(f"## User: {user}\n\n{spread_heading(seeds)}")
            parts.append(spread_table(of["summary"], "system", MEASURES, seeds))
            for base, gaps in of["differences"].items():
                parts.append(f"Difference from `{base}`, mean over seeds ± its standard error:")
                parts.append(differences_page(gaps, MEASURES))
        runs = markdown_table(result["rows"], ["user", "system", "seed", *MEASURES])
        return "\n\n".join(part.strip() for part in [*parts, f"## Every run\n\n{runs}"]) + "\n"


def _rows(root: Path, seed: int) -> list[dict[str, Any]]:
    rows = []
    for user in STREAMS:
        measured = len(list(read_jsonl(root / "streams" / "new.jsonl")))
        for system, (policy, agent) in SYSTEMS.items():
            file = root / "played" / f"{policy}_{user}" / "rounds.jsonl"
            rounds = [one for one in read_jsonl(file) if one["agent"] == agent][-measured:]
            if not rounds:
                raise DataError("the run has no such agent", file=file, record=agent)
            costs = [float(one["distance"]) for one in rounds]
            rows.append(
                {
                    "user": user,
                    "system": system,
                    "seed": seed,
                    "cost": fmean(costs),
                    "first": fmean(costs[:_PART]),
                    "last": fmean(costs[-_PART:]),
                    "untouched": fmean(float(cost == 0) for cost in costs),
                }
            )
    return rows
