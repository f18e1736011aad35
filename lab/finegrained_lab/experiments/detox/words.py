"""Words that give a label away, from labelled texts: the list for `mixer=word_list` where nobody has written one."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import write_text
from finegrained_rlhf.core.markers import InputFile, OutputFile, at_least
from finegrained_rlhf.feedback.labelled_texts import LabelledText, read_labelled_texts
from finegrained_rlhf.metrics.functions import words_with_letters


@dataclass(frozen=True)
class WriteLabelWords(Settings):
    """Write the words that texts of a label have most more often than the others, the surest first.

    A word counts once a text. Words are ordered by the log-odds ratio with the frequencies of all texts as prior,
    divided by its standard error (Monroe, Colaresi and Quinn, 2008, equations 15 to 22); those below 1.96 are no
    words of the label.

    Attributes:
        data: labelled texts (`feedback.labelled_texts`).
        label: whose words.
        output: text FILE, a word a line.
        words: how many at most.
    """

    data: InputFile
    label: str
    output: OutputFile
    words: Annotated[int, at_least(1)] = 50

    def run(self) -> None:
        """Read, count, write; prints one line.

        Raises:
            DataError: the file is missing or damaged, all texts or none have the label, or no word is the label's.
        """
        texts = read_labelled_texts(self.data)
        within = [text.label == self.label for text in texts]
        if all(within) or not any(within):
            which = "all" if all(within) else "none"
            raise DataError(f"expected texts of {self.label!r} and others, {which} have it", file=self.data)
        sureness = log_odds(*(_texts_with(texts, within, wanted) for wanted in (True, False)))
        words = [word for word in sorted(sureness, key=lambda word: (-sureness[word], word)) if sureness[word] >= 1.96]
        if not words:
            raise DataError(f"no word is surely more frequent in texts of {self.label!r}", file=self.data)
        write_text(self.output, "".join(f"{word}\n" for word in words[: self.words]))
        print(f"{min(len(words), self.words)} words of {self.label} -> {self.output}")


def log_odds(these: Mapping[str, int], others: Mapping[str, int]) -> dict[str, float]:
    """How surely each word is more frequent in these counts than in others, in standard errors (z).

    The prior of a word is its count in both together.
    """
    prior = Counter(these) + Counter(others)
    total = prior.total()
    all_these, all_others = sum(these.values()) + total, sum(others.values()) + total

    def sureness(word: str) -> float:
        here, there = these.get(word, 0) + prior[word], others.get(word, 0) + prior[word]
        if here >= all_these or there >= all_others:
            return 0.0  # it is the only word of one of the two
        delta = math.log(here / (all_these - here)) - math.log(there / (all_others - there))
        return delta / math.sqrt(1 / here + 1 / there)

    return {word: sureness(word) for word in prior}


def _texts_with(texts: list[LabelledText], within: list[bool], wanted: bool) -> Counter[str]:
    return Counter(
        word
        for text, has_label in zip(texts, within, strict=True)
        if has_label is wanted
        for word in set(words_with_letters(text.text))
    )
