"""Reading what an annotator saved: seconds of a file of many tasks.

Examples:
    python benchmarks/annotation_reading.py out=benchmarks/results/annotation_reading.json
    python benchmarks/annotation_reading.py tasks=50 out=small.json

Every task has two marks with evidence, something missing, a correction and a ranking, as the annotation page saves
them. Timed is the whole of `finegrained read-annotations`'s job: the project, the export, the checks and what it
writes.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.command import read_arguments, run_main
from benchmarks.retrieval import timed
from finegrained_rlhf.annotation.items import AnnotationItem
from finegrained_rlhf.annotation.project import EXPORT_FORMAT, Project, assign
from finegrained_rlhf.annotation.reading import ReadAnnotations
from finegrained_rlhf.core.files import write_json
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.feedback.taxonomy import QA_FEEDBACK
from finegrained_rlhf.runtime.directory.provenance import nameless_hardware

KEYS = ("out", "tasks")
LAKE = Passage("", "The lake", ("It is three kilometres wide.", "Its water stays cold.", "Few people swim in it."))
ANSWER = "The lake is wide, and in summer many people swim. Its water stays warm all year."
OTHER = "The lake is three kilometres wide."


def finished(task: dict[str, Any]) -> dict[str, Any]:
    """What is done to a task."""
    spans = []
    for piece, kind, evidence in (("many people swim", "Irrelevant", []), ("stays warm", "Wrong-Grounding", [[1, 2]])):
        start = ANSWER.index(piece)
        span = {"start": start, "end": start + len(piece), "text": piece, "type": kind}
        spans.append({**span, "evidence": evidence, "note": "see there"})
    made = {key: task[key] for key in ("item", "hash", "order", "marked")}
    made |= {"status": "done", "seconds": 61.0, "spans": spans, "no_error": False, "nothing_missing": False}
    missing = [{"type": "Missing-Answer", "passage": 1, "sentences": [1]}]
    return {**made, "missing": missing, "correction": OTHER, "ranking": [[1], [0]]}


def main(arguments: Sequence[str]) -> dict[str, Any]:
    """Make a project and an export, read it, print, write."""
    given = read_arguments(arguments, KEYS)
    count = int(given.get("tasks", 10_000))
    items = {f"q{i}": AnnotationItem(f"q{i}", "What is it like?", (LAKE,), (ANSWER, OTHER)) for i in range(count)}
    project = Project("benchmark", QA_FEEDBACK, items, assign(list(items.values()), ["ann"], 0))
    payload = project.payload("ann")
    keys = ("project", "annotator", "guideline_version")
    export: dict[str, Any] = {"format": EXPORT_FORMAT, **{key: payload[key] for key in keys}, "taxonomy": "qa_feedback"}
    export["tasks"] = [finished(task) for task in payload["tasks"]]
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        project.write(directory / "tasks")
        write_json(directory / "ann.json", export)
        job = ReadAnnotations([str(directory / "ann.json")], str(directory / "tasks"), str(directory / "a.jsonl"))
        wall, processor = timed(job.run)
        result: dict[str, Any] = {
            "tasks": count,
            "export_bytes": (directory / "ann.json").stat().st_size,
            "seconds": wall,
            "processor_seconds": processor,
            "hardware": nameless_hardware(),
        }
    print(f"{count:,} tasks read in {wall:.1f} s, {processor:.1f} s of one processor")
    if "out" in given:
        write_json(given["out"], result)
    return result


if __name__ == "__main__":
    run_main(main)
