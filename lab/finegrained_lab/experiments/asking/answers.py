"""What systems answer from folders that nothing was chosen on, question by question."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finegrained_lab.experiments.asking.folders import INJECTED, Folders, OpenFolder, System, holds
from finegrained_lab.worlds.folders.make import Asked
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import read_json, write_json
from finegrained_rlhf.core.markers import InputFile, OutputDirectory
from finegrained_rlhf.inscit.asking.evidence import EvidenceWeights

if TYPE_CHECKING:
    from finegrained_rlhf.inscit.asking.assistant import DocumentAssistant


@dataclass(frozen=True, kw_only=True)
class AnswerFolders(Settings):
    """Ask every system the questions of every folder.

    Attributes:
        folders: that are made.
        systems: by name.
        weights: file of `FitEvidence`; a system that has none takes those of `all`.
        directory: of folders and, of each, `answers.json`, which later runs find.
    """

    folders: Folders
    systems: Mapping[str, System]
    weights: InputFile
    directory: OutputDirectory

    def run(self) -> None:
        """Make, ask, write; a line a folder."""
        weights = {name: weights_of(row) for name, row in read_json(self.weights).items()}
        root = Path(self.directory)
        for style, seed in self.folders.names():
            file = root / f"{style}_{seed}" / "answers.json"
            if file.is_file():
                continue
            opened = {flag: self.folders.open(root, style, seed, injected=flag) for flag in (False, True)}
            encoders = self.folders.encoders()
            rows: dict[str, Any] = {}
            for name, system in self.systems.items():
                folder = opened[system.injected]
                start = time.perf_counter()
                made = folder.with_system(system, weights.get(name, weights["all"]), weights["first"], encoders)
                rows[name] = [_row(made, folder, asked) for asked in folder.questions]
                held, refused = (
                    sum(r["held"] for r in rows[name]),
                    sum(r["refused"] for r in rows[name] if not r["stated"]),
                )
                print(f"{style} {seed} {name}: {held} held, {refused} refused, {time.perf_counter() - start:.0f} s")
            write_json(file, rows)


def weights_of(row: Mapping[str, Any]) -> EvidenceWeights:
    """Weights as `FitEvidence` writes them."""
    return EvidenceWeights(row["bias"], row["weights"], row["threshold"], row["close"])


def _row(assistant: DocumentAssistant, folder: OpenFolder, asked: Asked) -> dict[str, Any]:
    answer = assistant.ask(asked.text)
    right = [one.file == asked.file and holds(asked.fact, one.text) for one in answer.citations]
    for one in answer.citations:
        text = (folder.docs / one.file).read_text(encoding="utf-8")
        assert text[one.start : one.end] == one.text, f"{one.file}: {one.start}-{one.end} is another place"
    first = answer.searched.passages[0] if answer.searched.passages else None
    return {
        "kind": asked.kind,
        "stated": asked.fact is not None,
        "type": answer.type,
        "held": answer.type == "answer" and any(right),
        "refused": answer.type == "not in these documents",
        "citations": len(right) if answer.type == "answer" else 0,
        "precise": sum(right) if answer.type == "answer" else 0,
        "best_file": first is not None and first.passage.file == asked.file,
        "injected": any(INJECTED in one.text for one in answer.citations),
    }
