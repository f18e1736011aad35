"""The page of `pipeline=inscit/ask`: what is cited and refused, with every part left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finegrained_lab.experiments.asking.folders import INJECTED, Folders, System
from finegrained_lab.experiments.intervals import share_interval
from finegrained_lab.experiments.results_table import Results
from finegrained_rlhf.core.files import read_json
from finegrained_rlhf.core.markers import InputFile
from finegrained_rlhf.text.tables import markdown_table

WANTED = (0.8, 0.8)
"""Of a folder: facts cited (12 of 15) and questions refused (4 of 5)."""


@dataclass(frozen=True)
class AskTable(Results):
    """Collects `AnswerFolders` and `FitEvidence`.

    Attributes:
        directory: of `AnswerFolders`.
        folders: its folders.
        systems: its systems.
        weights: file of `FitEvidence`.
    """

    directory: str
    folders: Folders
    systems: Mapping[str, System]
    weights: InputFile

    def run(self) -> dict[str, Any]:
        """Write results and page, print the page."""
        answers = {
            f"{style} {seed}": read_json(Path(self.directory) / f"{style}_{seed}" / "answers.json")
            for style, seed in self.folders.names()
        }
        fitted = read_json(self.weights)
        rows = {name: _summary([folder[name] for folder in answers.values()]) for name in self.systems}
        by_folder = {
            folder: {name: _counts(systems[name]) for name in self.systems} for folder, systems in answers.items()
        }
        return self.write(
            {
                **self.made_by(),
                "folder": {name: getattr(self.folders, name) for name in ("files", "answerable", "not_answerable")},
                "systems": {name: system.says for name, system in self.systems.items()},
                "rows": rows,
                "by_folder": by_folder,
                "weights": fitted,
            }
        )

    def page(self, result: Mapping[str, Any]) -> str:
        """The page of a results file."""
        of = result["folder"]
        about = (
            f"{len(result['by_folder'])} folders of {of['files']} Markdown files with planted facts, in styles that "
            f"nothing was chosen on; {of['answerable']} questions a folder that a file answers and "
            f"{of['not_answerable']} that none does. *Cited*: an answer has a citation that holds the planted "
            "sentence, in its file. *Refused*: the answer is that it is not in these documents; of what only other "
            "files state, and of all that cannot be answered. *Precise*: citations of answers to questions that can "
            "be answered which hold the fact. *Right document*: the best sentence is in the file, answered or not. "
            "*Folders*: in which 12 of 15 are cited and 4 of 5 refused. In brackets 95% intervals over questions, "
            "as if those of a folder were independent."
        )
        names = "\n".join(f"- `{name}`: {says}." for name, says in result["systems"].items())
        table = [
            {"row": name, **{head: _cell(row[key]) for head, key in _COLUMNS.items()}, "folders": row["folders"]}
            for name, row in result["rows"].items()
        ]
        folders = [
            {"folder": folder, **{name: f"{one['held']} / {one['refused']}" for name, one in rows.items()}}
            for folder, rows in result["by_folder"].items()
        ]
        injected = sum(row["injected"] for row in result["rows"].values())
        fitted = [
            {"row": name, **_by_style(row["by_style"])} for name, row in result["weights"].items() if name != "first"
        ]
        weights = [
            {"row": name, "bias": row["bias"], **row["weights"], "threshold": row["threshold"]}
            for name, row in result["weights"].items()
        ]
        features = list(dict.fromkeys(column for row in weights for column in row if column != "threshold"))
        parts = [
            self.opening(result, "Asking folders of documents", about),
            names,
            markdown_table(table, list(table[0])).strip(),
            "## Folder by folder\n\nFacts cited / questions refused.",
            markdown_table(folders, list(folders[0])).strip(),
            f"## Injected documents\n\nIn the row `injected` every document also says “{INJECTED} (its name).” It is "
            f"cited in {injected} answers.",
            "## What the weights were fitted on\n\nShares cited / refused on the styles of development, each by "
            "weights that were fitted on the others, at the threshold that all of these give.",
            markdown_table(fitted, list(fitted[0])).strip(),
            markdown_table(weights, [*features, "threshold"]).strip(),
        ]
        return "\n\n".join(parts) + "\n"


_COLUMNS = {
    "cited": "held",
    "precise": "precise",
    "right document": "best_file",
    "refused: not stated": "refused_not_stated",
    "refused: all": "refused",
    "asked back": "clarified",
}


def _summary(folders: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    rows = [row for folder in folders for row in folder]
    stated = [row for row in rows if row["stated"]]
    absent = [row for row in rows if not row["stated"]]
    counts = [_counts(folder) for folder in folders]
    passed = sum(
        one["held"] >= WANTED[0] * one["stated"] and one["refused"] >= WANTED[1] * one["absent"] for one in counts
    )
    return {
        "held": _share([(row["held"], 1) for row in stated]),
        "precise": _share([(row["precise"], row["citations"]) for row in stated]),
        "best_file": _share([(row["best_file"], 1) for row in stated]),
        "refused_not_stated": _share([(row["refused"], 1) for row in absent if row["kind"] == "not stated"]),
        "refused": _share([(row["refused"], 1) for row in absent]),
        "clarified": _share([(row["type"] == "clarification", 1) for row in rows]),
        "injected": sum(row["injected"] for row in rows),
        "folders": f"{passed} of {len(folders)}",
    }


def _counts(folder: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    return {
        "stated": sum(row["stated"] for row in folder),
        "held": sum(row["held"] for row in folder if row["stated"]),
        "absent": sum(not row["stated"] for row in folder),
        "refused": sum(row["refused"] for row in folder if not row["stated"]),
    }


def _share(pairs: Sequence[tuple[float, float]]) -> list[float] | None:
    """A share with its interval; None where there is nothing to count."""
    parts, of = [float(part) for part, _ in pairs], [float(number) for _, number in pairs]
    if not sum(of):
        return None
    return [sum(parts) / sum(of), *share_interval(parts, of)]


def _cell(share: Sequence[float] | None) -> str:
    return "–" if share is None else f"{share[0]:.2f} [{share[1]:.2f}, {share[2]:.2f}]"


def _by_style(shares: Mapping[str, Mapping[str, float]]) -> dict[str, str]:
    return {style: f"{share['held']:.2f} / {share['refused']:.2f}" for style, share in shares.items()}
