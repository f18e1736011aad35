"""Simulated annotators of a project: the oracle with human error rates, each with errors of his own.

They keep to the instructions: no C2 mark where there is a C1 mark, evidence for what is wrong, a quote of what is
repeated.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finegrained_rlhf.annotation.items import AnnotationItem
from finegrained_rlhf.annotation.project import EXPORT_FORMAT, Project
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import atomic_directory, write_json
from finegrained_rlhf.core.markers import InputFile, OutputDirectory, Seed
from finegrained_rlhf.core.seeding import stable_hash
from finegrained_rlhf.factworld.annotate import Annotator, mislabel
from finegrained_rlhf.factworld.grammar import FactSource
from finegrained_rlhf.factworld.oracle import Judgement, SubSentence, judge, source_of, to_feedback
from finegrained_rlhf.feedback.outputs import OutputRecord
from finegrained_rlhf.text.segmentation import DEFAULT_SEGMENTER, Segmenter, SpacySegmenter


@dataclass(frozen=True)
class SimulateAnnotators(Settings):
    """Write what each annotator of a FactWorld project would export from the annotation page.

    Attributes:
        tasks: directory of the project.
        output_dir: directory of the exports, a file an annotator.
        noise: of each annotator against the oracle (`Annotator.noise`); errors of different annotators are independent.
        seed: of the errors.
        segmenter: cuts answers into what is marked.
    """

    tasks: InputFile
    output_dir: OutputDirectory
    noise: float = 0.55
    seed: Seed = 0
    segmenter: str = DEFAULT_SEGMENTER

    def __post_init__(self) -> None:
        Annotator(self.noise, self.seed)

    def run(self) -> None:
        """Annotate and write, everything or nothing; prints one line.

        Raises:
            DataError: the project is damaged, or its questions or passages are not FactWorld's.
        """
        project, segmenter = Project.read(self.tasks), SpacySegmenter(self.segmenter)
        with atomic_directory(Path(self.output_dir)) as directory:
            for number, name in enumerate(project.annotators):
                try:
                    export = simulated_export(project, name, self.noise, self.seed, segmenter)
                except DataError as error:
                    raise error.at(file=Path(self.tasks) / "items.jsonl") from None
                write_json(directory / f"{number + 1}-{re.sub(r'[^A-Za-z0-9_-]', '_', name)}.json", export)
        print(f"{len(project.annotators)} simulated annotators -> {self.output_dir}")


def simulated_export(project: Project, annotator: str, noise: float, seed: int, segmenter: Segmenter) -> dict[str, Any]:
    """What one annotator exports.

    Raises:
        DataError: an item's question or passages do not follow the grammar.
    """
    tasks = []
    for assignment in project.annotators[annotator]:
        item = project.items[assignment.item]
        source = source_of(OutputRecord(item.id, item.question, item.passages, (), "", item.answers), segmenter)
        judged = [
            mislabel(judge(source, text, segmenter), noise, random.Random(stable_hash(seed, annotator, item.id, text)))
            for text in item.answers
        ]
        tasks.append(_task(item, assignment.order, judged, source))
    return {
        "format": EXPORT_FORMAT,
        "project": project.name,
        "annotator": annotator,
        "guideline_version": project.guideline_version,
        "taxonomy": project.taxonomy.name,
        "tasks": tasks,
    }


def _task(
    item: AnnotationItem, order: Sequence[int], judged: Sequence[Judgement], source: FactSource
) -> dict[str, Any]:
    assert item.marked is not None
    judgement = judged[item.marked]
    spans = [span for piece in judgement.sub_sentences if (span := _span(piece, judgement, source)) is not None]
    feedback = to_feedback(judgement, source)
    missing = [
        {"type": gap.error_type, "passage": gap.passage_id, "sentences": list(gap.sentence_ids)}
        for gap in feedback.missing_info
    ]
    return {
        "item": item.id,
        "hash": item.digest,
        "order": list(order),
        "marked": order.index(item.marked),
        "status": "done",
        "seconds": None,
        "spans": spans,
        "no_error": not spans,
        "missing": missing,
        "nothing_missing": not missing,
        "correction": feedback.corrected_prediction,
        "ranking": _ranking([judged[answer].errors for answer in order]),
        "suggestions": {"shown": 0, "accepted": 0, "refused": 0},
    }


def _span(piece: SubSentence, judgement: Judgement, source: FactSource) -> dict[str, Any] | None:
    name = piece.c1 or piece.c2
    if name is None:
        return None
    start, end = piece.span
    evidence: list[list[int]] = []
    if name == "Wrong-Grounding" and piece.clause is not None:
        evidence = [[fact.passage_id, fact.sentence_id] for fact in source.stated(piece.clause)]
    return {
        "start": start,
        "end": end,
        "text": judgement.text[start:end],
        "type": name,
        "evidence": evidence,
        "note": _repeated(piece, judgement) if name == "Redundant" else "",
    }


def _repeated(piece: SubSentence, judgement: Judgement) -> str:
    """What a sub-sentence says again: the first one before it on the same topic."""
    for other in judgement.sub_sentences:
        same = other.clause is not None and piece.clause is not None and other.clause.topic == piece.clause.topic
        if same and other.span < piece.span:
            return judgement.text[other.span[0] : other.span[1]]
    return ""


def _ranking(errors: Sequence[int]) -> list[list[int]]:
    """Places of the shown answers, those with the fewest errors first; equally many share a group."""
    return [[i for i, count in enumerate(errors) if count == best] for best in sorted(set(errors))]
