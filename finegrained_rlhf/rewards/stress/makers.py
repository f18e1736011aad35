"""The built-in changes: what is done to an answer, where that is allowed, and what must follow.

What must fall, and there: a name, number or date is another (factuality of that sentence), a sentence of other passages
stands in it, one is repeated (relevance of that sentence), a needed fact is gone (completeness), it answers another
question, or nothing is left. What must not rise: padding, lists of names, a cut in mid-sentence, a copy that lacks what
the gold answer says. What must stay: letter case, quotation marks, number formats, the order of independent sentences.

Source: invariant and other rewrites of reward models' inputs are those of reWordBench (arXiv:2503.11751); places and
components are this project's.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby

from finegrained_rlhf.rewards.stress.changes import ROLES, TOTAL, Change, Expectation, Source, StressRecord
from finegrained_rlhf.rewards.stress.draft import (
    Draft,
    draft_of,
    ended,
    names_of,
    passage_sentences,
    sentences,
    spare_sentences,
)
from finegrained_rlhf.text.facts import MONTHS, NUMBER_WORDS, Fact, FactKind, content_words, facts_of, plain, stands_in

Edit = tuple[str, tuple[Expectation, ...]]
"""The changed answer and what must follow."""

FILLERS = (
    "It is worth noting that this is an interesting question.",
    "There are many different aspects to consider here.",
    "I hope that this answers what you wanted to know.",
    "As you may know, many people have wondered about this.",
    "This is important to keep in mind for a full understanding.",
)
"""Sentences that say nothing of any question."""
_WORDS = ("The", "It", "Well")
_TRIES = 20
_YEARS = tuple(years for years in range(-15, 16) if abs(years) > 1)
_LEANS = re.compile(
    r"\b(?:he|she|it|they|him|her|them|his|hers|its|their|theirs|this|these|those|such|former|latter|both|another|"
    r"others?|same|then|later|also|however|therefore|thus|hence|instead|moreover|furthermore|meanwhile|finally|first|"
    r"second|third|next|last|afterwards?|previously|again|too|respectively|there|here)\b|^\W*(?:and|but|or|so|because)\b",
    re.IGNORECASE,
)
"""Pronouns and connectives: a sentence with one of them leans on what stands before it."""
_STAY = tuple(Expectation(role, "stay") for role in (*ROLES, TOTAL))

Others = Sequence[StressRecord]
"""Records of other questions, in the order in which they are tried."""
Make = Callable[[Draft, Others, random.Random], Edit | None]
Words = Callable[[Draft, Others, random.Random], str]


@dataclass(frozen=True)
class BuiltIn:
    """One built-in change.

    Attributes:
        name: of the change.
        family: of the change.
        make: changes a draft; None where the effect would not be certain.
    """

    name: str
    family: str
    make: Make

    def __call__(
        self, record: StressRecord, answer: str, others: Sequence[StressRecord], random: random.Random
    ) -> Change | None:
        """Change an answer, as `MakesChanges` says."""
        edit = self.make(draft_of(record, answer), random.sample(others, len(others)), random)
        if edit is None or edit[0] == answer or not edit[1]:
            return None
        source: Source = "gold" if answer == record.gold else "answer"
        return Change(self.name, self.family, record.id, answer, edit[0], source, edit[1])


# Must fall ----------------------------------------------------------------------------------------------------------


def swap(kind: FactKind, draft: Draft, others: Others, rng: random.Random) -> Edit | None:
    """One name, number or date of the passages for another of its type that nobody mentions."""
    facts = [fact for fact in draft.facts if fact.kind == kind and stands_in(fact.text, draft.passages)]
    for fact in rng.sample(facts, len(facts)):
        place = next((i for i, (start, end) in enumerate(draft.spans) if start <= fact.start and fact.end <= end), None)
        if place is None or not draft.true(place):
            continue
        new = _name_like(fact, draft, others, rng) if kind == "name" else _number_like(fact, draft, others, rng)
        if new is not None:
            start, end = draft.spans[place]
            changed = draft.answer[: fact.start] + new + draft.answer[fact.end :]
            after = (start, end + len(new) - len(fact.text))
            return changed, (Expectation("factuality", "fall", (start, end), after),)
    return None


def _name_like(fact: Fact, draft: Draft, others: Others, rng: random.Random) -> str | None:
    for other in others:
        names = [name.text for name in names_of(other) if name.shape == fact.shape and draft.new(name.text)]
        if names:
            return rng.choice(names)
    return None


def _number_like(fact: Fact, draft: Draft, others: Others, rng: random.Random) -> str | None:
    """Another number of as many figures, another year near it, or another day and month; None where all are taken."""
    for _ in range(_TRIES):
        if fact.text in NUMBER_WORDS:
            new = rng.choice(NUMBER_WORDS)
        elif fact.kind == "date" and re.search(r"\d{4}", fact.text):
            new = re.sub(r"\d{4}", lambda year: str(int(year[0]) + rng.choice(_YEARS)), fact.text)
        elif fact.kind == "date":
            new = re.sub(r"\d+(?:st|nd|rd|th)?", str(rng.randint(4, 28)), fact.text)
            new = re.sub("|".join(MONTHS), rng.choice(MONTHS), new)
        else:
            new = re.sub(r"(?<![\d.,])[1-9]|\d", lambda figure: str(rng.randint(1, 9)), fact.text)
        if not stands_in(new, draft.known):
            return new
    return None


def insert_foreign(draft: Draft, others: Others, rng: random.Random) -> Edit | None:
    """A sentence of another question's passages behind a needed one, of which it shares no word."""
    related = {*draft.asked, *draft.wanted, *content_words(draft.answer)}
    texts = (text for other in others for text, words in spare_sentences(other) if related.isdisjoint(words))
    foreign = next(texts, None)
    if foreign is None or not draft.needed:
        return None
    before = draft.spans[rng.choice(draft.needed)]
    head = ended(draft.answer[: before[1]])
    changed = head + foreign + draft.answer[before[1] :]
    return changed, (Expectation("relevance", "fall", before, (len(head), len(head) + len(foreign))),)


def repeat(draft: Draft, others: Others, rng: random.Random) -> Edit | None:
    """A needed sentence once more, word for word, at the end."""
    if not draft.needed:
        return None
    place = rng.choice(draft.needed)
    changed, after = draft.with_end(draft.texts[place])
    return changed, (Expectation("relevance", "fall", draft.spans[place], after),)


def delete_fact(draft: Draft, others: Others, rng: random.Random) -> Edit | None:
    """A sentence less that alone says what the gold answer and the passages say."""
    places = [i for i in draft.needed if draft.only_here(i)]
    if len(draft.spans) < 2 or not places:
        return None
    start, end = draft.spans[rng.choice(places)]
    changed = f"{draft.answer[:start].rstrip()} {draft.answer[end:].lstrip()}".strip()
    return changed, (Expectation("completeness", "fall"),)


def other_answer(draft: Draft, others: Others, rng: random.Random) -> Edit | None:
    """The gold answer to the question that has least to do with this one."""
    related = draft.asked | draft.wanted
    shared = []
    for number, other in enumerate(others):
        words = content_words(other.gold)
        if words and plain(other.gold) != plain(draft.record.gold):
            shared.append((sum(word in related for word in words) / len(words), number))
    if not shared or min(shared)[0] > 0.4 or not draft.says_something:
        return None
    changed = others[min(shared)[1]].gold
    return changed, (Expectation("relevance", "fall"), Expectation("completeness", "fall"))


def degenerate(words: Words, draft: Draft, others: Others, rng: random.Random) -> Edit | None:
    """What is no answer: completeness falls, and the total of a gold answer does."""
    if not draft.says_something:
        return None
    total = (Expectation(TOTAL, "fall"),) if draft.is_gold else ()
    return words(draft, others, rng), (Expectation("completeness", "fall"), *total)


# Must not rise ------------------------------------------------------------------------------------------------------


def pad(words: Words, draft: Draft, others: Others, rng: random.Random) -> Edit | None:
    """One more sentence that says nothing: it is no more relevant than a needed one, and earns nothing in all."""
    padding = words(draft, others, rng)
    if not padding or not draft.needed:
        return None
    changed, after = draft.with_end(padding)
    before = draft.spans[rng.choice(draft.needed)]
    return changed, (Expectation("relevance", "not_rise", before, after), Expectation(TOTAL, "not_rise"))


def name_list(draft: Draft, others: Others, rng: random.Random) -> str:
    """Up to five names of the passages that neither question nor answers have, of other passages too where these have
    fewer than three; nothing where all have.
    """
    known = plain(f"{draft.record.question} {draft.record.gold} {draft.answer}")
    names: list[str] = []
    for record in (draft.record, *others[:8]):
        if len(names) < 3:
            texts = dict.fromkeys(name.text for name in names_of(record))
            names += [text for text in texts if not any(stands_in(word, known) for word in content_words(text))]
    if len(names) < 3:
        return ""
    *some, last = rng.sample(names, min(5, len(names)))
    return f"{', '.join(some)} and {last}."


def cut(draft: Draft, others: Others, rng: random.Random) -> Edit | None:
    """The last sentence broken off in its middle, where that loses what it alone says."""
    last = len(draft.spans) - 1
    if last not in draft.needed or not draft.true(last):
        return None
    start, end = draft.spans[last]
    words = [match.span() for match in re.finditer(r"\S+", draft.texts[last])]
    if len(words) < 6:
        return None
    stop = start + words[len(words) // 2][0]
    lost = plain(draft.answer[stop:end])
    changed = draft.answer[:stop].rstrip(" ,;:")
    if not any(stands_in(word, lost) for word in draft.only_here(last)):
        return None
    after = (start, len(changed))
    return changed, (Expectation("relevance", "not_rise", (start, end), after), Expectation(TOTAL, "not_rise"))


def empty_windows(draft: Draft) -> list[str]:
    """Windows of one to three sentences of the passages that lack what the gold answer says."""
    question, windows = plain(draft.record.question), []
    facts = [fact.text for fact in facts_of(draft.record.gold) if not stands_in(fact.text, question)]

    def lacking(text: str) -> bool:
        words = set(content_words(text)) - draft.asked
        return len(words & draft.wanted) <= 0.2 * len(words) and not any(stands_in(fact, plain(text)) for fact in facts)

    for passage in passage_sentences(draft.record):
        runs = groupby(passage, lacking)
        for run in (list(texts) for lacks, texts in runs if lacks):
            windows += [" ".join(run[i : i + count]) for count in (1, 2, 3) for i in range(len(run) - count + 1)]
    return [text for text in windows if len(text.split()) >= 4 and text != draft.answer]


def copied_window(draft: Draft, others: Others, rng: random.Random) -> Edit | None:
    """A window of the passages that lacks what the gold answer says, in place of the answer."""
    windows = empty_windows(draft)
    if not windows or not draft.says_something:
        return None
    total = (Expectation(TOTAL, "not_rise"),) if draft.is_gold else ()
    return rng.choice(windows), (Expectation("relevance", "not_rise"), *total)


# Must stay ----------------------------------------------------------------------------------------------------------


def rewritten(rewrite: Callable[[str], str], draft: Draft, others: Others, rng: random.Random) -> Edit | None:
    """The same words otherwise spelt, where the sentences stay the same."""
    changed = rewrite(draft.answer)
    return (changed, _STAY) if len(sentences(changed)) == len(draft.spans) else None


def other_quotes(text: str) -> str:
    """Typographic quotation marks for straight ones, or the other way round."""
    if any(mark in text for mark in "“”‘’"):
        return text.translate(str.maketrans("“”‘’", "\"\"''"))
    text = re.sub(r'(?<![^\s(\[])"', "“", text).replace('"', "”")
    return re.sub(r"(?<![^\s(\[“])'", "‘", text).replace("'", "’")


def other_numbers(text: str) -> str:
    """Figures for number words, numbers without commas, and the day of a date on the other side of its month."""
    month = "|".join(MONTHS)
    text = re.sub(rf"\b({month}) (\d{{1,2}}), (\d{{4}})\b", r"\2 \1 \3", text)
    text = re.sub(r"(?<=\d),(?=\d{3}\b)", "", text)
    words = {word: str(number) for number, word in enumerate(NUMBER_WORDS, start=2)}
    return re.sub(rf"\b(?:{'|'.join(words)})\b", lambda word: words[word[0]], text)


def reorder(draft: Draft, others: Others, rng: random.Random) -> Edit | None:
    """Two neighbouring sentences in the other order, where neither they nor the next one lean on one before."""
    stands = [_LEANS.search(text) is None for text in draft.texts]
    named = [any(s <= fact.start < e and fact.kind == "name" for fact in draft.facts) for s, e in draft.spans]
    pairs = [
        i
        for i in range(len(draft.spans) - 1)
        if all(stands[i : i + 3]) and named[i] and named[i + 1] and draft.texts[i] != draft.texts[i + 1]
    ]
    if not pairs:
        return None
    i = rng.choice(pairs)
    (start, end), (following, stop) = draft.spans[i], draft.spans[i + 1]
    answer = draft.answer
    changed = answer[:start] + answer[following:stop] + answer[end:following] + answer[start:end] + answer[stop:]
    return (changed, _STAY) if len(sentences(changed)) == len(draft.spans) else None


VERSION = 1
"""Of the built-in changes: reports of one version can be compared."""
BUILT_IN: tuple[BuiltIn, ...] = (
    BuiltIn("swap_name", "swap", partial(swap, "name")),
    BuiltIn("swap_number", "swap", partial(swap, "number")),
    BuiltIn("swap_date", "swap", partial(swap, "date")),
    BuiltIn("foreign_sentence", "insert", insert_foreign),
    BuiltIn("repeated_sentence", "copy", repeat),
    BuiltIn("copied_window", "copy", copied_window),
    BuiltIn("missing_fact", "delete", delete_fact),
    BuiltIn("other_answer", "mismatch", other_answer),
    BuiltIn("empty", "degenerate", partial(degenerate, lambda draft, others, rng: "")),
    BuiltIn("one_word", "degenerate", partial(degenerate, lambda draft, others, rng: rng.choice(_WORDS))),
    BuiltIn("restated_question", "degenerate", partial(degenerate, lambda draft, others, rng: draft.record.question)),
    BuiltIn("filler", "pad", partial(pad, lambda draft, others, rng: rng.choice(FILLERS))),
    BuiltIn("name_list", "pad", partial(pad, name_list)),
    BuiltIn("cut_sentence", "cut", cut),
    BuiltIn("letter_case", "surface", partial(rewritten, str.lower)),
    BuiltIn("quotation_marks", "surface", partial(rewritten, other_quotes)),
    BuiltIn("number_format", "surface", partial(rewritten, other_numbers)),
    BuiltIn("sentence_order", "surface", reorder),
)
"""All of them, in the order of reports."""
