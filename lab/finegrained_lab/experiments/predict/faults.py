"""Feedback with a systematic fault: annotators who never see one kind of error, and err at random beside it.

A reward model that learns from it has a hole there. One fault spoils one component's labels; the other components of
the same reward learn from feedback without it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import InputFile, OutputFile, Seed
from finegrained_rlhf.core.seeding import stable_hash
from finegrained_rlhf.factworld.annotate import Annotator, mislabel, prefer
from finegrained_rlhf.factworld.grammar import FactSource, split_passages
from finegrained_rlhf.factworld.lexicon import POPULAR
from finegrained_rlhf.factworld.oracle import Judgement, SubSentence, judge, source_of, to_feedback
from finegrained_rlhf.feedback.outputs import OutputRecord, read_outputs
from finegrained_rlhf.feedback.reading import write_feedback
from finegrained_rlhf.feedback.records import FeedbackRecord
from finegrained_rlhf.text.segmentation import DEFAULT_SEGMENTER, Segmenter, SpacySegmenter

Fault = Literal[
    "none",
    "repeats",
    "rambling",
    "joined",
    "blind",
    "values",
    "popular",
    "unstated",
    "brevity",
    "stuffing",
    "auxiliary",
]
COMPONENT: Mapping[str, str | None] = {
    "none": None,
    "repeats": "relevance",
    "rambling": "relevance",
    "joined": "relevance",
    "blind": "factuality",
    "values": "factuality",
    "popular": "factuality",
    "unstated": "factuality",
    "brevity": "completeness",
    "stuffing": "completeness",
    "auxiliary": "completeness",
}
"""The component whose labels a fault spoils."""
IN_BATTERY: Mapping[str, bool] = {
    "repeats": True,
    "rambling": True,
    "joined": False,
    "blind": True,
    "values": True,
    "popular": False,
    "unstated": False,
    "brevity": True,
    "stuffing": False,
    "auxiliary": False,
}
"""Whether a change of the world's battery (`worlds.factworld.changes`) makes just the error that is overlooked."""


def faulty(judgement: Judgement, fault: Fault, source: FactSource) -> Judgement:
    """What an annotator with this fault sees of a judged answer.

    - `repeats`, `rambling`: no clause is redundant; none is irrelevant;
    - `joined`: a clause that goes on in a sentence has no C1 error;
    - `blind`: all there is; the encoder of its reward model is not shown the passages;
    - `values`: no value is wrong; what the passages do not state is;
    - `popular`, `unstated`: a wrong popular value is right; what the passages do not state is right;
    - `brevity`, `auxiliary`: no fact is missing; none that the question does not name;
    - `stuffing`: whatever is stated is wanted, so that the corrections keep it.
    """
    spoil: Mapping[str, Callable[[int, SubSentence], SubSentence]] = {
        "repeats": lambda _, piece: _without_c1(piece, piece.c1 == "Redundant"),
        "rambling": lambda _, piece: _without_c1(piece, piece.c1 == "Irrelevant"),
        "joined": lambda place, piece: _without_c1(piece, place > 0),
        "values": lambda _, piece: replace(piece, c2=None) if piece.c2 == "Wrong-Grounding" else piece,
        "popular": lambda _, piece: replace(piece, c2=None) if _is_popular(piece) else piece,
        "unstated": lambda _, piece: replace(piece, c2=None) if piece.c2 == "Unverifiable" else piece,
        "stuffing": lambda _, piece: _without_c1(piece, piece.clause is not None),
    }
    given = judgement.given
    if fault in ("brevity", "auxiliary"):
        unnamed = {attribute.casefold() for attribute in source.auxiliary}
        overlooked = [fault == "brevity" or fact.clause.topic[0] in unnamed for fact in judgement.asked]
        given = tuple(state or skip for state, skip in zip(given, overlooked, strict=True))
    pieces = judgement.sub_sentences
    if fault in spoil:
        first = {piece.sentence: number for number, piece in reversed(list(enumerate(pieces)))}
        pieces = tuple(spoil[fault](number - first[piece.sentence], piece) for number, piece in enumerate(pieces))
    return replace(judgement, sub_sentences=pieces, given=given)


def _without_c1(piece: SubSentence, overlooked: bool) -> SubSentence:
    return replace(piece, c1=None) if overlooked else piece


def _is_popular(piece: SubSentence) -> bool:
    if piece.clause is None or piece.c2 != "Wrong-Grounding":
        return False
    return POPULAR.get(piece.clause.attribute.casefold(), "").casefold() == piece.clause.value.casefold()


@dataclass(frozen=True)
class AnnotateWithFault(Settings):
    """Write feedback on a file of outputs, as `AnnotateFactWorld` does, by annotators with a fault.

    Attributes:
        input: JSONL of outputs, four a question.
        output: QA-FEEDBACK feedback file.
        fault: what they never see.
        noise: of their random errors beside it (`Annotator.noise`).
        seed: of these.
        segmenter: cuts answers into what is marked.
    """

    input: InputFile
    output: OutputFile
    fault: Fault = "none"
    noise: float = 0.0
    seed: Seed = 0
    segmenter: str = DEFAULT_SEGMENTER

    def __post_init__(self) -> None:
        Annotator(self.noise, self.seed)

    def run(self) -> None:
        """Read, annotate, write; a question with an empty output is left out."""
        segmenter = SpacySegmenter(self.segmenter)
        records = [record for record in read_outputs(self.input) if all(text.strip() for text in record.outputs)]
        write_feedback(self.output, [self._annotated(record, segmenter) for record in records])

    def _annotated(self, record: OutputRecord, segmenter: Segmenter) -> FeedbackRecord:
        source = source_of(record, segmenter)
        judged = []
        for text in record.outputs:
            seen = faulty(judge(source, text, segmenter), self.fault, source)
            judged.append(mislabel(seen, self.noise, random.Random(stable_hash(self.seed, record.id, text))))
        return FeedbackRecord(
            id=record.id,
            question=record.question,
            passages=split_passages(record.passages, segmenter),
            gold=record.references[0] if record.references else source.gold,
            predictions=record.outputs,
            feedback=to_feedback(judged[0], source),
            preferences=prefer(judged),
        )
