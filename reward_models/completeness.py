"""Completeness scores and preferences, bootstrapped from the human corrections (reward model R3).

Each sub-sentence of the correction is mapped to the passage sentence that it comes from; S is the set of these
sentences; an answer's score is the share of S that its own sub-sentences map to. Source: thesis ch. 6 and
tasks/qa_feedback/reward_modeling/create_comp_rm_files.py of the original code.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.feedback.records import FIRST, SECOND, TIE, FeedbackRecord, pair_order
from finegrained_rlhf.text.scores import bag_f1, normalise
from finegrained_rlhf.text.segmentation import Segmenter
from finegrained_rlhf.text.templates import squeeze
from reward_models.pairs import Matching

SentenceId = tuple[int, int]
"""(passage, sentence), both counted from 1 as in the feedback files."""
MIN_SIMILARITY = 0.85
"""Below this similarity a sub-sentence comes from no passage sentence (original matching)."""
WINDOW_SLACK = 0.05
"""A window has n + floor(slack · n) words for a sub-sentence of n words."""
MINOR = frozenset({"Missing-Minor-Auxiliary"})
"""Types of missing information without which an answer is as complete; QA-FEEDBACK's."""


class SentenceMatcher(Protocol):
    """Finds the passage sentence that a piece of text comes from."""

    def best(self, piece: str) -> SentenceId | None:
        """The sentence for `piece` (white space squeezed), or None."""
        ...


def passage_sentences(passages: Sequence[Passage]) -> dict[SentenceId, str]:
    """All passage sentences without titles, white space squeezed, in order."""
    return {
        (i, j): squeeze(sentence)
        for i, passage in enumerate(passages, start=1)
        for j, sentence in enumerate(passage.sentences, start=1)
    }


class WindowMatcher:
    """The original matching.

    The similarity of a piece of n words to a sentence is 1 when the sentence contains it, else the highest
    `difflib.SequenceMatcher(window, piece).quick_ratio()` over windows of w = n + ⌊0.05 n⌋ words of the sentence; a
    sentence of fewer than w + 1 words is first padded with ` #` words to w + 1. The first of the best sentences wins.

    The quick ratio is 2·|overlap| / (total length) of the two bags of characters. Bags of all windows come from
    cumulative character counts, so that one numpy expression compares a piece with every window of every sentence.

    Args:
        sentences: the candidates by id, in order.
    """

    def __init__(self, sentences: dict[SentenceId, str]) -> None:
        self._ids = list(sentences)
        self._texts = list(sentences.values())
        self._alphabet = {c: i for i, c in enumerate(sorted({*" #", *"".join(self._texts)}))}
        self._counts = [self._cumulative(text.split()) for text in self._texts]
        self._windows: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}

    def best(self, piece: str) -> SentenceId | None:
        """The first best sentence for `piece`, or None below the least similarity."""
        if not self._ids or not piece:
            return None
        similarities = self.similarities(piece)
        best = int(np.argmax(similarities))
        return self._ids[best] if similarities[best] >= MIN_SIMILARITY else None

    def similarities(self, piece: str) -> np.ndarray:
        """float64 [number of sentences], the similarity of `piece` to each of them."""
        words = len(piece.split())
        width = words + int(WINDOW_SLACK * words)
        bags, lengths, first = self._windows_of(width)
        matches = np.minimum(bags, self._bag(piece)).sum(axis=1)
        ratios = 2.0 * matches / (lengths + len(piece))
        similarities = np.maximum.reduceat(ratios, first)
        for i, text in enumerate(self._texts):
            if piece in self._padded(text, width, i):
                similarities[i] = 1.0
        return similarities

    def _padded(self, text: str, width: int, index: int) -> str:
        return text + " #" * max(0, width + 1 - (len(self._counts[index]) - 1))

    def _bag(self, text: str) -> np.ndarray:
        bag = np.zeros(len(self._alphabet), dtype=np.int32)
        for character in text:
            if character in self._alphabet:
                bag[self._alphabet[character]] += 1
        return bag

    def _cumulative(self, words: Sequence[str]) -> np.ndarray:
        """int32 [words + 1, alphabet]: characters of the first k words, without the spaces between them."""
        bags = np.zeros((len(words) + 1, len(self._alphabet)), dtype=np.int32)
        for row, word in enumerate(words, start=1):
            bags[row] = self._bag(word)
        return bags.cumsum(axis=0, dtype=np.int32)

    def _windows_of(self, width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Bags [windows, alphabet] and lengths [windows] of all windows, and the first window of each sentence."""
        if width not in self._windows:
            space, filler = self._alphabet[" "], self._alphabet["#"]
            blocks = []
            for counts in self._counts:
                missing = max(0, width + 1 - (len(counts) - 1))
                padding = np.repeat(counts[-1:], missing, axis=0)
                padding[:, filler] += np.arange(1, missing + 1)
                counts = np.concatenate([counts, padding])
                block = counts[width:] - counts[:-width]
                block[:, space] += width - 1
                blocks.append(block)
            bags = np.concatenate(blocks)
            first = np.cumsum([0, *(len(block) for block in blocks[:-1])])
            self._windows[width] = bags, bags.sum(axis=1), first
        return self._windows[width]


class TokenF1Matcher:
    """The thesis's matching: the first sentence with the highest word F1; None where no sentence shares a word.

    Args:
        sentences: the candidates by id, in order.
    """

    def __init__(self, sentences: dict[SentenceId, str]) -> None:
        self._sentences = {key: normalise(text).split() for key, text in sentences.items()}

    def best(self, piece: str) -> SentenceId | None:
        """The sentence with the highest word F1 with `piece`."""
        words = normalise(piece).split()
        scores = {key: bag_f1(sentence, words) if words else 0.0 for key, sentence in self._sentences.items()}
        best = max(scores, key=lambda key: scores[key], default=None)
        return best if best is not None and scores[best] > 0 else None


def build_matcher(passages: Sequence[Passage], matching: Matching = "original") -> SentenceMatcher:
    """The matcher over the sentences of `passages`."""
    sentences = passage_sentences(passages)
    return WindowMatcher(sentences) if matching == "original" else TokenF1Matcher(sentences)


def mapped_sentences(text: str, matcher: SentenceMatcher, segmenter: Segmenter) -> list[tuple[str, SentenceId | None]]:
    """Each sub-sentence of `text` (white space squeezed) with the passage sentence that it comes from."""
    text = squeeze(text)
    pieces = [text[start:end] for start, end in segmenter.sub_sentences(text)]
    return [(piece, matcher.best(piece)) for piece in pieces]


def needed_sentences(
    record: FeedbackRecord, matcher: SentenceMatcher, segmenter: Segmenter, minor_types: Collection[str] = MINOR
) -> set[SentenceId]:
    """The set S: passage sentences that the correction of prediction 1 uses, minus minor ones; empty without one.

    A sentence marked as missing with a minor type is left out unless prediction 1 contains (letter case aside) the last
    sub-sentence of the correction that maps to it.
    """
    if record.feedback is None or record.feedback.corrected_prediction is None:
        return set()
    minor = {
        (missing.passage_id, sentence)
        for missing in record.feedback.missing_info
        if missing.error_type in minor_types
        for sentence in missing.sentence_ids
    }
    answer = record.predictions[0].lower()
    needed: dict[SentenceId, bool] = {}
    for piece, sentence in mapped_sentences(record.feedback.corrected_prediction, matcher, segmenter):
        if sentence is not None:
            needed[sentence] = sentence not in minor or piece.lower() in answer
    return {sentence for sentence, counts in needed.items() if counts}


@dataclass(frozen=True)
class Completeness:
    """What the correction says about the completeness of the answers.

    Attributes:
        needed: S, never empty.
        scores: |S' ∩ S| / |S| of each answer, in [0, 1].
    """

    needed: frozenset[SentenceId]
    scores: tuple[float, ...]

    @property
    def preferences(self) -> tuple[int, ...]:
        """Comparisons in the order of `pair_order`: 1 = first is more complete, 2 = second is, 0 = tie."""
        return scores_to_preferences(self.scores)


def scores_to_preferences(scores: Sequence[float]) -> tuple[int, ...]:
    """The comparisons of scores, one an answer, in the order of `pair_order`; equal scores are a tie."""
    return tuple(
        FIRST if scores[i] > scores[j] else SECOND if scores[i] < scores[j] else TIE for i, j in pair_order(len(scores))
    )


def completeness(
    record: FeedbackRecord,
    segmenter: Segmenter,
    matching: Matching = "original",
    minor_types: Collection[str] = MINOR,
) -> Completeness | None:
    """Scores of a record's answers, or None where S is empty (the example is skipped)."""
    matcher = build_matcher(record.passages, matching)
    needed = needed_sentences(record, matcher, segmenter, minor_types)
    if not needed:
        return None
    answered = [
        {sentence for _, sentence in mapped_sentences(answer, matcher, segmenter)} for answer in record.predictions
    ]
    return Completeness(frozenset(needed), tuple(len(sentences & needed) / len(needed) for sentences in answered))
