"""A seeded annotator: the oracle's feedback with human error rates, in QA-FEEDBACK's schema.

One dial, `noise`: 0 is the oracle; 1 is people as the thesis measured them (appendix A.2: agreement on 83% of
sub-sentences for C1, 92% of sentences for C2, 85% for C3). Labels of all four outputs are mislabelled at these rates,
and the preferences, the marked spans and the corrected answer all follow from the same noisy labels. Knows the oracle's
judgements; does not know the writer or the world's facts.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import InputFile, OutputFile, Seed
from finegrained_rlhf.core.seeding import stable_hash
from finegrained_rlhf.factworld.grammar import split_passages
from finegrained_rlhf.factworld.oracle import Judgement, judge, source_of, to_feedback
from finegrained_rlhf.feedback.outputs import OutputRecord, read_outputs
from finegrained_rlhf.feedback.reading import write_feedback
from finegrained_rlhf.feedback.records import FIRST, PAIR_ORDER, PREDICTIONS, SECOND, TIE, FeedbackRecord
from finegrained_rlhf.runtime.console import tracked
from finegrained_rlhf.text.segmentation import DEFAULT_SEGMENTER, Segmenter, SpacySegmenter

SUB_SENTENCE_RATE = 0.17
SENTENCE_RATE = 0.08
FACT_RATE = 0.15
MAX_NOISE = 0.5 / SUB_SENTENCE_RATE
"""Beyond it the noisiest label would be wrong more often than right."""


@dataclass(frozen=True)
class Annotator:
    """Who marks the answers.

    Attributes:
        noise: 0 (the oracle) to `MAX_NOISE`; scales the three human error rates linearly.
        seed: of the mislabelling. An annotator who reads a text twice labels it alike: the labels are a function of
            (seed, record id, text), so equal outputs of one question always tie.
    """

    noise: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.noise <= MAX_NOISE:
            raise ConfigError(f"noise must be between 0 and {MAX_NOISE:.2f}, got {self.noise}")


def mislabel(judgement: Judgement, noise: float, rng: random.Random) -> Judgement:
    """The judgement of an annotator who errs.

    - With 17% · noise, a sub-sentence's C1 label is flipped: an error is overlooked, or `Irrelevant` is marked.
    - With 8% · noise, a sentence's C2 label is flipped: all its errors are overlooked, or its first sub-sentence is
      marked `Wrong-Grounding`.
    - With 15% · noise, an asked fact is judged wrongly: a missing one is overlooked, or a given one is called missing.
    """
    pieces = []
    for piece in judgement.sub_sentences:
        flip = rng.random() < SUB_SENTENCE_RATE * noise
        pieces.append(replace(piece, c1="Irrelevant" if piece.c1 is None else None) if flip else piece)
    for sentence in range(len(judgement.sentences)):
        inside = [i for i, piece in enumerate(pieces) if piece.sentence == sentence]
        if rng.random() >= SENTENCE_RATE * noise or not inside:
            continue
        if any(pieces[i].c2 is not None for i in inside):
            for i in inside:
                pieces[i] = replace(pieces[i], c2=None)
        else:
            pieces[inside[0]] = replace(pieces[inside[0]], c2="Wrong-Grounding")
    covered = tuple(state != (rng.random() < FACT_RATE * noise) for state in judgement.given)
    return replace(judgement, sub_sentences=tuple(pieces), given=covered)


def prefer(judgements: Sequence[Judgement]) -> tuple[int, ...]:
    """Six preferences among four judged answers: fewer errors wins, equally many tie."""
    errors = [judgement.errors for judgement in judgements]
    return tuple(
        TIE if errors[first] == errors[second] else FIRST if errors[first] < errors[second] else SECOND
        for first, second in PAIR_ORDER
    )


def annotate(record: OutputRecord, annotator: Annotator, segmenter: Segmenter) -> FeedbackRecord:
    """Feedback on the first of four outputs, and preferences among all four.

    Raises:
        DataError: the record has another number of outputs or an empty one, or its question or passages do not follow
            the grammar; names the record's id.
    """
    if len(record.outputs) != PREDICTIONS:
        raise DataError(
            f"expected {PREDICTIONS} outputs to compare, got {len(record.outputs)}", record=record.id, field="outputs"
        )
    source = source_of(record, segmenter)
    judgements = [
        mislabel(
            judge(source, text, segmenter),
            annotator.noise,
            random.Random(stable_hash(annotator.seed, record.id, text)),
        )
        for text in record.outputs
    ]
    gold = record.references[0] if record.references else source.gold
    try:
        return FeedbackRecord(
            id=record.id,
            question=record.question,
            passages=split_passages(record.passages, segmenter),
            gold=gold,
            predictions=record.outputs,
            feedback=to_feedback(judgements[0], source),
            preferences=prefer(judgements),
        )
    except DataError as error:
        raise error.at(record=record.id) from None


@dataclass(frozen=True)
class AnnotateFactWorld(Settings):
    """Annotate a file of outputs (four a question).

    A question with an empty output is left out and counted: the published format has no empty prediction.

    Attributes:
        input: JSONL of outputs (`finegrained sample-outputs` writes it).
        output: QA-FEEDBACK feedback file to write.
        noise: see `Annotator`.
        seed: see `Annotator`.
        segmenter: spaCy pipeline that cuts the answers (`rules` needs no model).
    """

    input: InputFile
    output: OutputFile
    noise: float = 1.0
    seed: Seed = 0
    segmenter: str = DEFAULT_SEGMENTER

    def run(self) -> None:
        """Read, annotate, write; prints one line.

        Raises:
            DataError: a record is broken, or every one has an empty output; nothing is written then.
        """
        annotator = Annotator(self.noise, self.seed)
        segmenter = SpacySegmenter(self.segmenter)
        records = read_outputs(self.input)
        answered = [record for record in records if all(text.strip() for text in record.outputs)]
        if not answered:
            raise DataError("every question has an empty output: there is nothing to annotate", file=self.input)
        feedback = []
        for record in tracked(answered, "annotating", len(answered), "questions", after_s=2.0):
            try:
                feedback.append(annotate(record, annotator, segmenter))
            except DataError as error:
                raise error.at(file=self.input) from None
        write_feedback(self.output, feedback)
        left_out = len(records) - len(answered)
        note = f" ({left_out} left out: an output is empty)" if left_out else ""
        print(f"{len(feedback)} annotated questions -> {self.output}{note}")
