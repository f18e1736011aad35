"""Measures of answers with citations, without a model that judges, and the threshold from which on one is given.

Citation recall is the share of an answer's sentences that all they cite together supports; citation precision the share
of citations that support their sentence alone, or without which the others would not. Source: Gao et al. (2023),
Enabling Large Language Models to Generate Text with Citations (ALCE), section 3. ALCE asks a model of natural language
inference what supports what; here a sentence is supported where its names, numbers and dates stand in what is cited and
most of its other words do, which sees no negation and no paraphrase.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_jsonl
from finegrained_rlhf.inscit.asking.records import Citation, DocumentAnswer, require_question
from finegrained_rlhf.metrics.grounding import Statements, plain_words
from finegrained_rlhf.text.facts import content_words, facts_of

SUPPORTED = 0.6
"""How far a sentence must be grounded to count as supported."""


def grounded(sentence: str, cited: Sequence[str]) -> float:
    """How far texts support a sentence, 0 to 1: the share of its words, or of its facts where that is less.

    Args:
        sentence: of an answer.
        cited: texts that it cites, their titles before them.
    """
    said = " ".join(plain_words(sentence))
    if any(f" {said} " in f" {' '.join(plain_words(text))} " for text in cited):
        return 1.0
    words, there = set(content_words(sentence)), {word for text in cited for word in content_words(text)}
    share = len(words & there) / len(words) if words else 0.0
    facts, known = facts_of(sentence), Statements(cited)
    return min(share, sum(fact in known for fact in facts) / len(facts)) if facts else share


@dataclass(frozen=True)
class CitationCounts:
    """What is counted of one answer's citations.

    Attributes:
        sentences: of the answer.
        recalled: of them, those that what they cite supports.
        citations: of all sentences.
        precise: of them, those that support their sentence alone, or are needed for it.
    """

    sentences: int
    recalled: int
    citations: int
    precise: int


def citation_counts(sentences: Sequence[tuple[str, Sequence[str]]]) -> CitationCounts:
    """Counts of an answer.

    Args:
        sentences: of the answer, each with the texts that it cites.
    """
    recalled = precise = 0
    for sentence, cited in sentences:
        if grounded(sentence, cited) < SUPPORTED:
            continue
        recalled += 1
        for place, text in enumerate(cited):
            others = [*cited[:place], *cited[place + 1 :]]
            precise += grounded(sentence, [text]) >= SUPPORTED or grounded(sentence, others) < SUPPORTED
    return CitationCounts(len(sentences), recalled, sum(len(cited) for _, cited in sentences), precise)


def citation_measures(counts: Iterable[CitationCounts]) -> dict[str, Any]:
    """Counts of answers added up: `sentences`, `citations`, and `recall` and `precision` (None of nothing)."""
    made = list(counts)
    sentences, citations = sum(one.sentences for one in made), sum(one.citations for one in made)
    return {
        "sentences": sentences,
        "citations": citations,
        "recall": sum(one.recalled for one in made) / sentences if sentences else None,
        "precision": sum(one.precise for one in made) / citations if citations else None,
    }


@dataclass(frozen=True)
class GoldQuestion:
    """A question whose answer is known.

    Attributes:
        question: it.
        fact: words that a citation must hold; None: the documents do not say it.
        file: that holds them; None: any.
    """

    question: str
    fact: str | None = None
    file: str | None = None

    def held(self, citations: Sequence[Citation]) -> bool:
        """Whether a citation holds the fact, in its file."""
        fact = " ".join(plain_words(self.fact or ""))
        return any(
            f" {fact} " in f" {' '.join(plain_words(one.text))} " and self.file in (None, one.file) for one in citations
        )


def read_questions(file: str | Path) -> list[GoldQuestion]:
    """The questions of a JSON lines file: `question`, and perhaps `fact` (null: not in the documents) and `file`.

    Raises:
        DataError: naming file, record and field.
    """
    questions = []
    for number, row in enumerate(read_jsonl(file)):
        for name in ("fact", "file"):
            value = row.get(name)
            if value is not None and not isinstance(value, str):
                raise DataError(f"expected text, got {type(value).__name__}", file=file, record=number, field=name)
        try:
            require_question(row.get("question"))
        except DataError as error:
            raise error.at(file=file, record=number) from None
        questions.append(GoldQuestion(row["question"], row.get("fact"), row.get("file")))
    if not questions:
        raise DataError("holds no question", file=file)
    return questions


def measured(questions: Sequence[GoldQuestion], answers: Sequence[DocumentAnswer]) -> dict[str, Any]:
    """Measures of answers to questions whose facts are known.

    Args:
        questions: at least one.
        answers: one each.

    Returns:
        `answerable`, `held` (answers with a citation that holds the fact), `not_there`, `refused` (of the latter), and
        over all answers `citation_recall` and `citation_precision` (None where there is nothing to count).
    """
    pairs = list(zip(questions, answers, strict=True))
    cited = citation_measures(
        citation_counts([(s.text, [_whole(a.citations[n]) for n in s.citations]) for s in a.sentences])
        for a in answers
        if a.type == "answer"
    )
    return {
        "answerable": sum(q.fact is not None for q in questions),
        "held": sum(q.fact is not None and a.type == "answer" and q.held(a.citations) for q, a in pairs),
        "not_there": sum(q.fact is None for q in questions),
        "refused": sum(q.fact is None and a.type == "not in these documents" for q, a in pairs),
        "citation_recall": cited["recall"],
        "citation_precision": cited["precision"],
    }


def with_titles(text: str, titles: Sequence[str]) -> str:
    """A cited text as it is counted, its titles before it."""
    return f"{': '.join(titles)}: {text}"


def _whole(citation: Citation) -> str:
    return with_titles(citation.text, citation.titles)


def best_threshold(scores: Sequence[tuple[float, bool | None]]) -> tuple[float, float]:
    """The threshold that serves questions with and without an answer alike.

    Args:
        scores: of each question the probability of its best sentence, and whether that holds the fact; None where the
            documents do not say it. At least one question of each kind.

    Returns:
        A threshold, in the middle of the best ones, and the mean there of two shares: of questions that are answered
        rightly among those that can be, and of those refused among those that cannot.

    Raises:
        DataError: there are no questions of one kind.
    """
    held = [(score, right) for score, right in scores if right is not None]
    absent = [score for score, right in scores if right is None]
    if not held or not absent:
        raise DataError("a threshold is measured on questions with and without an answer, one of each at least")
    edges = sorted({0.0, 1.0, *(score for score, _ in scores)})
    middles = [(low + high) / 2 for low, high in zip(edges, edges[1:], strict=False)]

    def worth(threshold: float) -> float:
        right = sum(bool(found) and score >= threshold for score, found in held) / len(held)
        return (right + sum(score < threshold for score in absent) / len(absent)) / 2

    most = max(map(worth, middles))
    best = [threshold for threshold in middles if worth(threshold) == most]
    return best[len(best) // 2], most
