"""A base answer with what is known of it: where its sentences are, what they say, and which of them are needed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property, lru_cache

from finegrained_rlhf.rewards.stress.changes import StressRecord
from finegrained_rlhf.text.facts import Fact, content_words, facts_of, plain, stands_in
from finegrained_rlhf.text.segmentation import DEFAULT_SEGMENTER, Span, shared_segmenter

_SAYS = 0.5
_ENDS = ".!?…。！？\"'”’)]"
_HALVES = re.compile("[\ud800-\udfff]")  # of surrogate pairs, which no segmenter reads


def sentences(text: str) -> list[Span]:
    """The sentences of a text, as labels and rewards cut it."""
    return shared_segmenter(DEFAULT_SEGMENTER).sentences(_HALVES.sub("?", text))


def ended(text: str) -> str:
    """A text, with a full stop where it has no mark at its end, and a space for what follows."""
    return f"{text} " if text[-1] in _ENDS else f"{text}. "


@lru_cache(maxsize=4096)
def passage_sentences(record: StressRecord) -> tuple[tuple[str, ...], ...]:
    """The sentences of each passage, without the title that some begin with."""
    passages = ([text.rsplit("\n", 1)[-1].strip() for text in passage[1:]] for passage in record.passages)
    return tuple(tuple(text for text in passage if text) for passage in passages)


@lru_cache(maxsize=4096)
def names_of(record: StressRecord) -> tuple[Fact, ...]:
    """The names in a record's passages, each once."""
    text = "\n".join(text for passage in passage_sentences(record) for text in passage)
    return tuple({fact.text: fact for fact in facts_of(text) if fact.kind == "name"}.values())


@lru_cache(maxsize=4096)
def spare_sentences(record: StressRecord) -> tuple[tuple[str, frozenset[str]], ...]:
    """Whole sentences of a record's passages, of a length that answers have, each with its content words."""
    return tuple(
        (text, frozenset(content_words(text)))
        for passage in passage_sentences(record)
        for text in passage
        if 4 <= len(text.split()) <= 40 and text[-1] in ".!?" and len(sentences(text)) == 1
    )


@dataclass(frozen=True)
class Draft:
    """What the built-in changes know of a base answer.

    Attributes:
        record: the question.
        answer: the base answer.
    """

    record: StressRecord
    answer: str

    @property
    def is_gold(self) -> bool:
        """Whether people wrote the answer, so that all of it is taken as true and needed."""
        return self.answer == self.record.gold

    @cached_property
    def spans(self) -> list[Span]:
        """The answer's sentences."""
        return sentences(self.answer)

    @cached_property
    def texts(self) -> list[str]:
        """The words of each sentence."""
        return [self.answer[start:end] for start, end in self.spans]

    @cached_property
    def passages(self) -> str:
        """All passages with their titles, plain."""
        return plain(" ".join(" ".join(passage) for passage in self.record.passages))

    @cached_property
    def known(self) -> str:
        """All that is said of the question anywhere, plain: nothing in here is news."""
        return " ".join([self.passages, *map(plain, (self.record.question, self.record.gold, self.answer))])

    @cached_property
    def asked(self) -> set[str]:
        """Content words of the question."""
        return set(content_words(self.record.question))

    @cached_property
    def wanted(self) -> set[str]:
        """Content words of the gold answer that the question does not have."""
        return set(content_words(self.record.gold)) - self.asked

    @cached_property
    def facts(self) -> list[Fact]:
        """Names, numbers and dates of the answer."""
        return facts_of(self.answer, " ".join(" ".join(passage) for passage in self.record.passages))

    @cached_property
    def needed(self) -> list[int]:
        """The sentences that are relevant for certain: of a gold answer all, of another those that say what it says.

        A sentence that was there before in the same words is none of them.
        """
        plain_texts = [plain(text) for text in self.texts]
        return [
            i
            for i, text in enumerate(self.texts)
            if plain_texts[i] not in plain_texts[:i] and (self.is_gold or self.says_gold(text))
        ]

    def says_gold(self, text: str) -> bool:
        """Whether at least half of what a text has to say is in the gold answer."""
        words = set(content_words(text)) - self.asked
        return bool(words) and len(words & self.wanted) >= _SAYS * len(words)

    def true(self, sentence: int) -> bool:
        """Whether a sentence is true for certain: of a gold answer each, of another if all its words stand in passages.

        Words that stand there apart may still say what is wrong together; so a fact is only swapped in such a sentence.
        """
        return self.is_gold or all(stands_in(word, self.passages) for word in content_words(self.texts[sentence]))

    @property
    def says_something(self) -> bool:
        """Whether the answer says something needed, so that another text in its place loses something."""
        return any(self.only_here(i) for i in self.needed)

    def new(self, words: str) -> bool:
        """Whether nobody says these words of the question, nor any word of them that has a meaning."""
        return not any(stands_in(word, self.known) for word in (words, *content_words(words)))

    def only_here(self, sentence: int) -> set[str]:
        """What a sentence has to say that the gold answer and the passages have and the rest of the answer has not.

        Names, numbers and dates, and content words where the sentence has none of these.
        """
        start, end = self.spans[sentence]
        rest = plain(f"{self.answer[:start]} {self.answer[end:]} {self.record.question}")
        gold = plain(self.record.gold)
        facts = {fact.text for fact in self.facts if start <= fact.start < end and not stands_in(fact.text, rest)}
        words = facts or set(content_words(self.texts[sentence]))
        return {
            word
            for word in words
            if stands_in(word, self.passages) and stands_in(word, gold) and not stands_in(word, rest)
        }

    def with_end(self, text: str) -> tuple[str, Span]:
        """The answer with one more sentence behind it, and where that stands."""
        body = ended(self.answer.rstrip())
        return body + text, (len(body), len(body) + len(text))


draft_of = lru_cache(maxsize=16)(Draft)
"""The same, made once for all changes to one answer."""
