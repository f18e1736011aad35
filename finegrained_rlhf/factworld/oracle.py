"""The oracle: every error of any answer, judged by the question and its passages alone.

One sub-sentence should be one clause of the grammar. Then

- C1, per sub-sentence: no clause → Incoherent; a topic stated before → Redundant; an attribute not asked for →
  Irrelevant (the first that applies);
- C2, per sub-sentence, marked on top of C1: the passages state the topic with another value → Wrong-Grounding; the
  passages do not state the topic (attribute left out, or another entity) → Unverifiable;
- C3: an asked fact is given when a clause names its attribute and its entity with whatever value; a wrong value is an
  error of factuality, not a gap. A fact not given → Missing-Answer, an auxiliary one → Missing-Major-Auxiliary.

Knows the grammar; does not know the writer, its habits or the popular values.

The evaluation sees it as counts of true errors of any answer (`FactWorldOracle`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.factworld.grammar import (
    Clause,
    Fact,
    FactSource,
    parse_clause,
    parse_source,
    split_passages,
)
from finegrained_rlhf.feedback.outputs import OutputRecord
from finegrained_rlhf.feedback.records import Feedback, MissingInfo, SpanError
from finegrained_rlhf.text.segmentation import DEFAULT_SEGMENTER, Segmenter, SpacySegmenter, Span


@dataclass(frozen=True)
class SubSentence:
    """One judged sub-sentence.

    Attributes:
        span: its characters, end exclusive.
        sentence: index of its sentence.
        clause: what it says; None when it is no clause.
        c1: relevance error type or None.
        c2: factual error type or None.
    """

    span: Span
    sentence: int
    clause: Clause | None
    c1: str | None
    c2: str | None


@dataclass(frozen=True)
class Judgement:
    """One judged answer.

    Attributes:
        text: the answer.
        sentences: spans of its sentences.
        sub_sentences: its sub-sentences in order.
        asked: the asked facts in the order of the question.
        given: for each asked fact, whether the answer gives it, rightly or wrongly.
        correct: for each asked fact, whether the answer gives it with the passages' value.
    """

    text: str
    sentences: tuple[Span, ...]
    sub_sentences: tuple[SubSentence, ...]
    asked: tuple[Fact, ...]
    given: tuple[bool, ...]
    correct: tuple[bool, ...]

    @property
    def relevance_errors(self) -> int:
        """Sub-sentences with a C1 error."""
        return sum(piece.c1 is not None for piece in self.sub_sentences)

    @property
    def factual_errors(self) -> int:
        """Sentences with a C2 error."""
        return len(self._sentences_with_c2())

    @property
    def judged_sentences(self) -> int:
        """Sentences in the denominator of the factual error rate: all but those whose only error is C1."""
        with_c1 = {piece.sentence for piece in self.sub_sentences if piece.c1 is not None}
        return len(self.sentences) - len(with_c1 - self._sentences_with_c2())

    @property
    def missing(self) -> tuple[Fact, ...]:
        """The asked facts that the answer does not give."""
        return tuple(fact for fact, covered in zip(self.asked, self.given, strict=True) if not covered)

    @property
    def errors(self) -> int:
        """Sub-sentences with a C1 error + sentences with a C2 error + missing facts."""
        return self.relevance_errors + self.factual_errors + len(self.missing)

    def _sentences_with_c2(self) -> set[int]:
        return {piece.sentence for piece in self.sub_sentences if piece.c2 is not None}


@dataclass(frozen=True)
class ErrorRates:
    """True error rates of a set of answers, pooled over their segments.

    Attributes:
        answers: number of answers.
        sub_sentences: all sub-sentences.
        relevance_errors: sub-sentences with a C1 error.
        sentences: sentences that count for factuality (see `Judgement.judged_sentences`).
        factual_errors: sentences with a C2 error.
        asked: asked facts.
        given: asked facts given, rightly or wrongly.
        correct: asked facts given with the passages' value.
    """

    answers: int
    sub_sentences: int
    relevance_errors: int
    sentences: int
    factual_errors: int
    asked: int
    given: int
    correct: int

    @property
    def relevance_error_rate(self) -> float:
        """Share of sub-sentences with a C1 error; 0 when there are none."""
        return self.relevance_errors / max(self.sub_sentences, 1)

    @property
    def factual_error_rate(self) -> float:
        """Share of counted sentences with a C2 error; 0 when there are none."""
        return self.factual_errors / max(self.sentences, 1)

    @property
    def completeness(self) -> float:
        """Share of asked facts given, whatever their value; 1 when none was asked."""
        return self.given / self.asked if self.asked else 1.0

    @property
    def correct_share(self) -> float:
        """Share of asked facts given with the right value; 1 when none was asked."""
        return self.correct / self.asked if self.asked else 1.0


def judge(source: FactSource, text: str, segmenter: Segmenter) -> Judgement:
    """Judge one answer, which may be any text.

    Args:
        source: the question and its facts (`parse_source`).
        text: the answer.
        segmenter: cuts it into sentences and sub-sentences.
    """
    sentences = tuple(segmenter.sentences(text))
    seen: set[tuple[str, str]] = set()
    pieces = []
    for span in segmenter.sub_sentences(text):
        clause = parse_clause(text[span[0] : span[1]])
        sentence = next(i for i, (start, end) in enumerate(sentences) if start <= span[0] < end)
        pieces.append(SubSentence(span, sentence, clause, _c1(clause, source, seen), _c2(clause, source)))
        if clause is not None:
            seen.add(clause.topic)
    clauses = [piece.clause for piece in pieces if piece.clause is not None]
    asked = source.asked_facts()
    right = tuple(any(f.clause.says(c) for c in clauses for f in source.stated(fact.clause)) for fact in asked)
    return Judgement(text, sentences, tuple(pieces), asked, tuple(fact.clause.topic in seen for fact in asked), right)


def _c1(clause: Clause | None, source: FactSource, seen: set[tuple[str, str]]) -> str | None:
    if clause is None:
        return "Incoherent"
    if clause.topic in seen:
        return "Redundant"
    return None if source.asks_for(clause) else "Irrelevant"


def _c2(clause: Clause | None, source: FactSource) -> str | None:
    if clause is None:
        return None
    stated = source.stated(clause)
    if not stated:
        return "Unverifiable"
    return None if any(fact.clause.says(clause) for fact in stated) else "Wrong-Grounding"


def judge_answer(question: str, passages: Sequence[Passage], text: str, segmenter: Segmenter) -> Judgement:
    """Judge one answer from the question and passages as they stand in a file.

    Raises:
        DataError: the question or the passages do not follow the grammar.
    """
    return judge(parse_source(question, split_passages(passages, segmenter)), text, segmenter)


def to_feedback(judgement: Judgement, source: FactSource) -> Feedback:
    """The judgement in QA-FEEDBACK's schema: a span a marked sub-sentence and error, an entry a missing fact."""
    errors = tuple(
        SpanError(*piece.span, error, explanation="")
        for piece in judgement.sub_sentences
        for error in (piece.c1, piece.c2)
        if error is not None
    )
    beside = {attribute.casefold() for attribute in source.auxiliary}
    missing = tuple(
        MissingInfo(
            "Missing-Major-Auxiliary" if fact.clause.topic[0] in beside else "Missing-Answer",
            fact.passage_id,
            (fact.sentence_id,),
        )
        for fact in judgement.missing
    )
    return Feedback(errors, missing, corrected(judgement, source))


def corrected(judgement: Judgement, source: FactSource) -> str:
    """The answer as its annotator would correct it: one sentence a fact.

    Sub-sentences marked C1 are left out, values marked C2 are replaced by the passages' (left out where the passages
    state none), unmarked ones stay as they are, and missing facts are appended. It follows the marks, so an annotator
    who overlooks an error leaves it in.
    """
    sentences: list[str] = []
    for piece in judgement.sub_sentences:
        if piece.c1 is not None:
            continue
        if piece.clause is None:
            words = judgement.text[piece.span[0] : piece.span[1]].rstrip(".,;!? ")
            sentences += [f"{words}."] if words else []
            continue
        own = Clause(piece.clause.attribute, source.entity, piece.clause.value)
        stated = source.stated(own)
        if piece.c2 is None:
            sentences.append(piece.clause.sentence)
        elif stated:
            sentences.append(next((f.clause for f in stated if f.clause.says(own)), stated[0].clause).sentence)
    sentences += [fact.clause.sentence for fact in judgement.missing]
    return " ".join(dict.fromkeys(sentences))


def pool(judgements: Iterable[Judgement]) -> ErrorRates:
    """Error rates of many answers, pooled over their segments and asked facts."""
    rows = [
        (
            1,
            len(j.sub_sentences),
            j.relevance_errors,
            j.judged_sentences,
            j.factual_errors,
            len(j.asked),
            sum(j.given),
            sum(j.correct),
        )
        for j in judgements
    ]
    return ErrorRates(*(sum(column) for column in zip(*rows, strict=True))) if rows else ErrorRates(*[0] * 8)


def true_error_rates(records: Iterable[OutputRecord], segmenter: Segmenter) -> ErrorRates:
    """True error rates of a file of outputs: every output of every record counts once.

    Raises:
        DataError: a question or passage does not follow the grammar; names the record's id.
    """
    return pool(j for record in records for j in judge_outputs(record, segmenter))


def judge_outputs(record: OutputRecord, segmenter: Segmenter) -> list[Judgement]:
    """One judgement for each output of a record.

    Raises:
        DataError: the question or the passages do not follow the grammar; names the record's id.
    """
    source = source_of(record, segmenter)
    return [judge(source, text, segmenter) for text in record.outputs]


def source_of(record: OutputRecord, segmenter: Segmenter) -> FactSource:
    """The question of a record with the facts of its passages.

    Raises:
        DataError: they do not follow the grammar; names the record's id.
    """
    try:
        return parse_source(record.question, split_passages(record.passages, segmenter))
    except DataError as error:
        raise error.at(record=record.id) from None


class FactWorldOracle:
    """True error rates by the oracle; satisfies `inference.config.ResponseMonitor`, as evaluation and PPO ask.

    Args:
        segmenter: spaCy pipeline that cuts the answers (`rules` needs no model).
    """

    def __init__(self, segmenter: str = DEFAULT_SEGMENTER) -> None:
        self._segmenter = SpacySegmenter(segmenter)

    def counts(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> Mapping[str, tuple[float, float]]:
        """(found, of how many) over R responses, by rate; a rate is the first number over the second.

        - `relevance_error_rate`: sub-sentences with a C1 error, of all sub-sentences;
        - `factual_error_rate`: sentences with a C2 error, of all but those whose only error is C1;
        - `completeness`: asked facts given, whatever their value, of all asked;
        - `correct_share`: asked facts given with the passages' value, of all asked.

        Raises:
            DataError: a question or its passages do not follow the world's grammar.
        """
        rates = pool(self._judge(prompt, text) for prompt, text in zip(prompts, responses, strict=True))
        return {
            "relevance_error_rate": (rates.relevance_errors, rates.sub_sentences),
            "factual_error_rate": (rates.factual_errors, rates.sentences),
            "completeness": (rates.given, rates.asked),
            "correct_share": (rates.correct, rates.asked),
        }

    def _judge(self, prompt: Prompt, response: str) -> Judgement:
        known = prompt.metadata
        try:
            return judge_answer(known["question"], known["passages"], response, self._segmenter)
        except DataError as error:
            raise error.at(record=prompt.id) from None
