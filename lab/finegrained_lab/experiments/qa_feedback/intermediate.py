"""Feedback that nobody gave: answers with planted errors, made of what feedback records hold beside the marks.

For training before the human marks: gold answers against sampled ones, sentences of other questions, sentences whose
passages are taken away. What it makes is an ordinary feedback file, so that every kind of reward model makes its own
labels of it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import InputFile, OutputFile, Seed, at_least, at_most
from finegrained_rlhf.core.seeding import stable_hash
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.feedback.reading import read_feedback, write_feedback
from finegrained_rlhf.feedback.records import FIRST, SECOND, TIE, Feedback, FeedbackRecord, SpanError
from finegrained_rlhf.text.segmentation import DEFAULT_SEGMENTER, Segmenter, SpacySegmenter
from reward_models.parts import content_words

SUPPORTED = 0.5
"""A sentence stands on a passage sentence that holds at least this share of its content words."""
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class PlantedSentence:
    """A sentence of an answer that is put together.

    Attributes:
        text: the sentence.
        error: what was planted in it; None for nothing.
    """

    text: str
    error: str | None = None


def planted_record(
    record: FeedbackRecord,
    others: Sequence[FeedbackRecord],
    segmenter: Segmenter,
    generator: np.random.Generator,
    rate: float,
) -> FeedbackRecord:
    """A record whose first answer is the gold one with planted errors, and whose correction is the gold answer.

    Of the gold sentences each gets, with probability `rate`, one of five errors, all equally likely: another number
    than the passages say (Wrong-Grounding; where it has none, its evidence is taken away); its evidence taken out of
    the passages (Unverifiable); a sentence of another question's gold answer behind it (Irrelevant) or one of that
    question's passages (Irrelevant); itself said again at the end (Redundant). The other answers are the gold one and
    the first two sampled ones. The gold answer beats the other three, nothing else is said.

    Args:
        record: the source.
        others: records of other questions, at least one.
        segmenter: that cuts answers.
        generator: of everything random.
        rate: probability of an error a sentence, in [0, 1].
    """
    passages, gold = record.passages, _gold(record)
    answer: list[PlantedSentence] = []
    repeated: list[PlantedSentence] = []
    for start, end in segmenter.sentences(gold):
        sentence = gold[start:end]
        error = int(generator.integers(5)) if generator.random() < rate else None
        changed = other_number(sentence, passages, generator) if error == 0 else None
        if changed is not None:
            answer.append(PlantedSentence(changed, "Wrong-Grounding"))
            continue
        if error in (0, 1):
            passages, removed = without_evidence(sentence, passages)
            answer.append(PlantedSentence(sentence, "Unverifiable" if removed else None))
            continue
        answer.append(PlantedSentence(sentence))
        if error in (2, 3):
            other = others[int(generator.integers(len(others)))]
            answer.append(PlantedSentence(_foreign(other, segmenter, generator, error == 2), "Irrelevant"))
        elif error == 4:
            repeated.append(PlantedSentence(sentence, "Redundant"))
    text, errors = put_together([*answer, *repeated])
    return replace(
        record,
        id=f"{record.id}-planted",
        passages=passages,
        predictions=(text, gold, *record.predictions[:2]),
        feedback=Feedback(errors, (), gold),
        preferences=(SECOND if errors else TIE, TIE, TIE, FIRST, FIRST, TIE),
    )


def put_together(sentences: Sequence[PlantedSentence]) -> tuple[str, tuple[SpanError, ...]]:
    """The answer that the sentences make, and the spans of what was planted."""
    text, errors = "", []
    for sentence in sentences:
        start = len(text) + bool(text)
        text = f"{text} {sentence.text}".strip()
        if sentence.error is not None:
            errors.append(SpanError(start, len(text), sentence.error))
    return text, tuple(errors)


def other_number(sentence: str, passages: Sequence[Passage], generator: np.random.Generator) -> str | None:
    """The sentence with one of its numbers replaced by another of the passages; None where there is none."""
    own = _NUMBER.findall(sentence)
    known = _NUMBER.findall(" ".join(passage.text for passage in passages))
    candidates = sorted({number for number in known if number not in own})
    if not own or not candidates:
        return None
    old = own[int(generator.integers(len(own)))]
    new = candidates[int(generator.integers(len(candidates)))]
    return re.sub(rf"(?<!\d){old}(?!\d)", new, sentence, count=1)


def without_evidence(sentence: str, passages: Sequence[Passage]) -> tuple[tuple[Passage, ...], bool]:
    """The passages without the sentences that hold at least half of this one's content words, and whether any did."""
    words = content_words(sentence)
    kept = [
        tuple(text for text in passage.sentences if len(words & content_words(text)) < SUPPORTED * max(1, len(words)))
        for passage in passages
    ]
    removed = any(len(texts) < len(passage.sentences) for texts, passage in zip(kept, passages, strict=True))
    left = [Passage(p.id, p.title, texts) for texts, p in zip(kept, passages, strict=True) if texts]
    return tuple(left), removed


def _gold(record: FeedbackRecord) -> str:
    """The gold answer. Raises DataError where there is none, or fewer than two sampled answers beside it."""
    if record.gold is None or len(record.predictions) < 2:
        raise DataError("planting needs a gold answer and two predictions", record=record.id, field="gold")
    return record.gold


def _foreign(record: FeedbackRecord, segmenter: Segmenter, generator: np.random.Generator, of_gold: bool) -> str:
    """A sentence of another question: of its gold answer, or of its passages where it has some."""
    gold = _gold(record)
    sentences = [gold[start:end] for start, end in segmenter.sentences(gold)]
    if not of_gold:
        sentences = [s for p in record.passages for s in p.sentences if s.strip()] or sentences
    return " ".join(sentences[int(generator.integers(len(sentences)))].split())


@dataclass(frozen=True)
class MakeIntermediateFeedback(Settings):
    """Writes a feedback file of planted errors, made of the records of another feedback file.

    Attributes:
        data: feedback file; the human marks, corrections and preferences in it are not read.
        output: feedback file to write, `copies` records for each of `data`.
        copies: how often each record is taken, each time with other errors.
        rate: probability of an error a gold sentence.
        seed: of everything random.
        segmenter: `english`, `rules` or the name of an installed spaCy pipeline.
    """

    data: InputFile
    output: OutputFile
    copies: Annotated[int, at_least(1)] = 1
    rate: Annotated[float, at_least(0), at_most(1)] = 0.4
    seed: Seed = 0
    segmenter: str = DEFAULT_SEGMENTER

    def run(self) -> list[FeedbackRecord]:
        """Make and write the records.

        Raises:
            DataError: broken feedback, or fewer than two questions.
        """
        records = read_feedback(self.data)
        if len({record.question for record in records}) < 2:
            raise DataError("planting needs records of at least two questions", file=self.data)
        segmenter = SpacySegmenter(self.segmenter)
        made = []
        for copy in range(self.copies):
            for record in records:
                generator = np.random.default_rng(stable_hash(self.seed, "planted", copy, record.id))
                others = [other for other in records if other.question != record.question]
                planted = planted_record(record, others, segmenter, generator, self.rate)
                made.append(replace(planted, id=f"{planted.id}-{copy}"))
        write_feedback(self.output, made)
        return made
