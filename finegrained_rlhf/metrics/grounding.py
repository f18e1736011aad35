"""Measures of an answer that need no judge: facts of the gold answer, facts that no passage has, and what is copied.

Facts are names, numbers and dates by rules (`text.facts`). What two texts state is compared in a normal form: a number
by its value, a date by what it says of year, month and day, a name by its words.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.metrics.functions import repeated_bigram_share, words_with_letters
from finegrained_rlhf.text.facts import MONTHS, NUMBER_WORDS, Fact, facts_of

COPIED_WORDS = 6
"""So many words in a row, as a passage has them, are copied."""

_DATE_PARTS = re.compile(rf"(?P<year>\d{{4}})|(?P<month>{'|'.join(MONTHS)})|(?P<day>\d\d?)")
_NUMBER = {word: value for value, word in enumerate(NUMBER_WORDS, start=2)}

_MEASURES = ("facts/recalled", "facts/unsupported", "copied/share", "copied/longest", "repeats")

Count = tuple[float, float]
"""How many, of how many."""


def plain_words(text: str) -> list[str]:
    """The words and figures of a text in order, in small letters, without accents and possessive endings."""
    letters = (c for c in unicodedata.normalize("NFKD", text.casefold()) if not unicodedata.combining(c))
    return re.findall(r"\w+", re.sub(r"['’]s?(?!\w)", "", "".join(letters)))


class Statements:
    """What some texts state, to ask of a fact whether they state it (`fact in statements`).

    - A name: its words stand in a row in a text, whatever their case; or a name of a text is the same with words left
      out or initials for words, and has the same last word (Schmit, T. Schmit, Timothy B. Schmit). Of names with `of`
      between them both.
    - A number: a number or year of the same value, in figures or words.
    - A date: one that says at least as much (`May 2018` is stated by `2 May 2018`, not the other way round).

    Args:
        texts: each by itself.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        texts = list(texts)
        self._words = "\n".join(f" {' '.join(plain_words(text))} " for text in texts)
        facts = [fact for text in texts for fact in facts_of(text)]
        self._names = [name for fact in facts if fact.kind == "name" for name in _names(fact)]
        self._dates = [_date(fact) for fact in facts if fact.kind == "date"]
        self._numbers = {_value(fact) for fact in facts if fact.kind == "number"}

    def __contains__(self, fact: Fact) -> bool:
        if fact.kind == "name":
            return all(map(self._named, _names(fact)))
        year = {"year": fact.text} if fact.kind == "number" else _date(fact)
        if any(year.items() <= date.items() for date in self._dates):
            return True
        return (fact.kind == "number" or set(year) == {"year"}) and _value(fact) in self._numbers

    def _named(self, name: list[str]) -> bool:
        return f" {' '.join(name)} " in self._words or any(_same_name(name, other) for other in self._names)


def _names(fact: Fact) -> list[list[str]]:
    """The words of a name; of `Frey of the Eagles` of both names."""
    return [plain_words(part) for part in re.split(r" of (?:the )?", fact.text)]


def _date(fact: Fact) -> dict[str, str]:
    matches = _DATE_PARTS.finditer(fact.text)
    return {kind: match[0].lstrip("0") for match in matches if (kind := match.lastgroup) is not None}


def _value(fact: Fact) -> float:
    return float(_NUMBER.get(fact.text) or fact.text.replace(",", ""))


def _same_name(first: list[str], second: list[str]) -> bool:
    short, long = sorted((first, second), key=len)
    if short[-1:] != long[-1:]:
        return False
    rest = iter(long)
    return all(any(a == b or 1 in (len(a), len(b)) and a[0] == b[0] for b in rest) for a in short)


def facts_recalled(answer: str, references: Sequence[str], question: str) -> Count:
    """How many names, numbers and dates of a gold answer, that the question does not hold, an answer has.

    Args:
        answer: a response.
        references: gold answers; of several the one counts of which the largest share is recalled.
        question: what it holds is no news.

    Returns:
        Recalled facts and all of them, each once; (0, 0) where no gold answer has one.
    """
    asked, stated = Statements([question]), Statements([answer])
    counts = []
    for reference in references:
        news = _distinct(fact for fact in facts_of(reference, question) if fact not in asked)
        counts.append((float(sum(fact in stated for fact in news)), float(len(news))))
    return max(counts, key=lambda count: count[0] / count[1] if count[1] else -1.0, default=(0.0, 0.0))


def facts_unsupported(answer: str, passages: Sequence[str]) -> Count:
    """How many of the names, numbers and dates that an answer states no passage has.

    Args:
        answer: a response.
        passages: texts, titles included.

    Returns:
        Unsupported facts and all of them, each once; (0, 0) where the answer states none.
    """
    known = Statements(passages)
    stated = _distinct(facts_of(answer))
    return float(sum(fact not in known for fact in stated)), float(len(stated))


def _distinct(facts: Iterable[Fact]) -> list[Fact]:
    return list({(fact.kind, *plain_words(fact.text)): fact for fact in facts}.values())


def copied(answer: str, passages: Sequence[str], least: int = COPIED_WORDS) -> tuple[int, int, int]:
    """What of an answer stands word for word in a passage.

    Args:
        answer: a response.
        passages: texts; no copied part runs from one into the next.
        least: words in a row from which on they are copied.

    Returns:
        Words in copied parts, all words, and the words of the longest part that one passage has (0 below `least`).
    """
    words, inside, longest = plain_words(answer), set[int](), 0
    for source in map(plain_words, passages):
        grams = {tuple(source[i : i + least]) for i in range(len(source) - least + 1)}
        run = 0
        for start in range(len(words) - least + 1):
            run = run + 1 if tuple(words[start : start + least]) in grams else 0
            if run:
                inside.update(range(start, start + least))
                longest = max(longest, run + least - 1)
    return len(inside), len(words), longest


class JudgeFree:
    """The measures of this module as a monitor of responses (`ResponseMonitor`) to questions with passages.

    Rates over all responses: `facts/recalled` of those of the gold answers (0 without references), `facts/unsupported`
    of those stated, `copied/share` of all words. Means of a response: `copied/longest`, words of its longest copied
    part, and `repeats` (`repeated_bigram_share`).
    """

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        """Refuse prompts that lack what is read.

        Raises:
            DataError: a prompt has no question or no passages.
        """
        for prompt in prompts:
            for key in ("question", "passages"):
                if prompt.metadata.get(key) is None:
                    raise DataError(
                        f"measures without a judge read the {key} of each prompt", record=prompt.id, field=key
                    )

    def counts(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> Mapping[str, Count]:
        """(sum, count) of each measure over R responses.

        Raises:
            DataError: as `check_prompts`.
        """
        self.check_prompts(prompts)
        totals = dict.fromkeys(_MEASURES, (0.0, 0.0))
        for prompt, response in zip(prompts, responses, strict=True):
            known = prompt.metadata
            passages = [f"{passage.title}\n{passage.text}" for passage in known["passages"]]
            row = measures_of(response, known["question"], passages, known.get("references") or ())
            totals = {name: (part + row[name][0], whole + row[name][1]) for name, (part, whole) in totals.items()}
        return totals


def measures_of(answer: str, question: str, passages: Sequence[str], references: Sequence[str]) -> dict[str, Count]:
    """The measures of one answer, (sum, count) by name; see `JudgeFree`.

    Args:
        answer: a response.
        question: that it answers.
        passages: texts, titles included.
        references: gold answers; may be none.
    """
    inside, words, longest = copied(answer, passages)
    counts = (
        facts_recalled(answer, references, question),
        facts_unsupported(answer, passages),
        (float(inside), float(words)),
        (float(longest), 1.0),
        (repeated_bigram_share(words_with_letters(answer)), 1.0),
    )
    return dict(zip(_MEASURES, counts, strict=True))
