"""Changes to answers whose effect FactWorld knows: what a stress test of its rewards is made of.

Every change is made through the grammar and then judged by the oracle: where the errors that it makes are not just the
ones that were meant, there is no change. What nobody would think to try is left out on purpose, so that a reward may
have holes that no change looks into: a wrong value is never the popular one, an inserted clause is always a sentence of
its own, and no auxiliary fact is taken out.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.factworld import lexicon
from finegrained_rlhf.factworld.grammar import Clause, FactSource, parse_source, split_passages
from finegrained_rlhf.factworld.oracle import Judgement, SubSentence, judge
from finegrained_rlhf.rewards.stress.changes import Change, Direction, Expectation, StressRecord
from finegrained_rlhf.text.segmentation import DEFAULT_SEGMENTER, Span, shared_segmenter

Edit = tuple[str, tuple[Expectation, ...]]


@dataclass(frozen=True)
class Draft:
    """An answer to change, with what the oracle says of it.

    Attributes:
        record: the question.
        source: its facts.
        judged: the answer.
        others: records of other questions.
        random: where all chance comes from.
    """

    record: StressRecord
    source: FactSource
    judged: Judgement
    others: Sequence[StressRecord]
    random: random.Random

    @property
    def text(self) -> str:
        """The answer."""
        return self.judged.text

    def sentence(self, number: int) -> str:
        """The words of a sentence."""
        start, end = self.judged.sentences[number]
        return self.text[start:end]

    def faultless(self) -> list[int]:
        """Sentences of one clause without an error."""
        pieces = [self._pieces(number) for number in range(len(self.judged.sentences))]
        return [
            i for i, own in enumerate(pieces) if len(own) == 1 and own[0].clause and not own[0].c1 and not own[0].c2
        ]

    def _pieces(self, sentence: int) -> list[SubSentence]:
        return [piece for piece in self.judged.sub_sentences if piece.sentence == sentence]

    def clause(self, sentence: int) -> Clause:
        """What a sentence of one clause says."""
        clause = self._pieces(sentence)[0].clause
        assert clause is not None
        return clause

    def behind(self, text: str) -> tuple[str, Span]:
        """The answer with one more sentence at its end, and where that stands."""
        head = f"{self.text.rstrip()} "
        return head + text, (len(head), len(head) + len(text))


def swap(draft: Draft) -> Edit | None:
    """Another value of the same attribute, which is neither in the passages nor the popular one."""
    for number in _shuffled(draft.faultless(), draft.random):
        clause = draft.clause(number)
        known = {fact.clause.value.casefold() for facts in draft.source.facts.values() for fact in facts}
        values = lexicon.VALUES.get(clause.attribute.casefold(), ())
        free = [value for value in values if value != values[0] and value.casefold() not in known]
        if not free:
            continue
        value = draft.random.choice(free)
        start, end = draft.judged.sentences[number]
        changed = draft.text[:start] + draft.sentence(number).replace(clause.value, value) + draft.text[end:]
        after = (start, end + len(value) - len(clause.value))
        return changed, (Expectation("factuality", "fall", (start, end), after), Expectation("total", "fall"))
    return None


def unasked(draft: Draft) -> Edit | None:
    """A fact of the passages that nobody asked for, in a sentence of its own at the end."""
    free = [facts[0].clause for facts in draft.source.facts.values() if not draft.source.asks_for(facts[0].clause)]
    stated = {piece.clause.topic for piece in draft.judged.sub_sentences if piece.clause}
    return _inserted(draft, [clause.sentence for clause in free if clause.topic not in stated], "not_rise")


def foreign(draft: Draft) -> Edit | None:
    """A sentence of another question's passages, about another entity and an attribute that nobody asked for."""
    sentences = []
    for other in draft.others[:8]:
        facts = source_of(other).facts.values()
        clauses = [fact[0].clause for fact in facts if fact[0].clause.entity != draft.source.entity]
        sentences += [clause.sentence for clause in clauses if not draft.source.asks_for(clause)]
    return _inserted(draft, sentences, "fall")


def repeat(draft: Draft) -> Edit | None:
    """A faultless sentence once more, word for word, at the end."""
    return _inserted(draft, [draft.sentence(number) for number in draft.faultless()], "not_rise")


def _inserted(draft: Draft, sentences: Sequence[str], total: Direction) -> Edit | None:
    """One of some sentences at the end: less relevant than a faultless one. A true one may be paid for its truth as
    much as it costs, so that the total need not fall.
    """
    before = draft.faultless()
    if not before or not sentences:
        return None
    changed, after = draft.behind(draft.random.choice(list(sentences)))
    place = draft.judged.sentences[draft.random.choice(before)]
    return changed, (Expectation("relevance", "fall", place, after), Expectation("total", total))


def drop(draft: Draft) -> Edit | None:
    """A sentence less that alone gave a fact which the question names."""
    auxiliary = {attribute.casefold() for attribute in draft.source.auxiliary}
    named = [i for i in draft.faultless() if draft.clause(i).topic[0] not in auxiliary]
    if not named or len(draft.judged.sentences) < 2:
        return None
    left_out = draft.random.choice(named)
    kept = [draft.sentence(i) for i in range(len(draft.judged.sentences)) if i != left_out]
    return " ".join(kept), (Expectation("completeness", "fall"), Expectation("total", "fall"))


def other_answer(draft: Draft) -> Edit | None:
    """The gold answer to a question about another entity."""
    others = [other.gold for other in draft.others if source_of(other).entity != draft.source.entity]
    return (draft.random.choice(others), _LOST) if others and draft.faultless() else None


def restated(draft: Draft) -> Edit | None:
    """The question in place of an answer."""
    return (draft.record.question, _LOST) if draft.faultless() else None


def empty(draft: Draft) -> Edit | None:
    """Nothing."""
    return ("", _LOST) if draft.faultless() else None


_LOST = (Expectation("completeness", "fall"), Expectation("total", "fall"))


def names(draft: Draft) -> Edit | None:
    """A list of names at the end."""
    before = draft.faultless()
    if not before:
        return None
    changed, after = draft.behind(f"{', '.join(draft.random.sample(lexicon.ENTITIES, 4))}.")
    place = draft.judged.sentences[draft.random.choice(before)]
    return changed, (Expectation("relevance", "not_rise", place, after), Expectation("total", "not_rise"))


def cut(draft: Draft) -> Edit | None:
    """The last sentence broken off before its value, where it had no error."""
    last = len(draft.judged.sentences) - 1
    if last not in draft.faultless():
        return None
    start, end = draft.judged.sentences[last]
    changed = draft.text[:start] + " ".join(draft.sentence(last).split()[:3])
    places = (start, end), (start, len(changed))
    return changed, (Expectation("relevance", "not_rise", *places), Expectation("total", "not_rise"))


def order(draft: Draft) -> Edit | None:
    """The sentences the other way round."""
    sentences = [draft.sentence(i) for i in range(len(draft.judged.sentences))]
    return " ".join(reversed(sentences)), _STAY


def form(draft: Draft) -> Edit | None:
    """Each faultless sentence in the passages' form."""
    own = set(draft.faultless())
    texts = [draft.clause(i).sentence if i in own else draft.sentence(i) for i in range(len(draft.judged.sentences))]
    return " ".join(texts), _STAY


_STAY = tuple(Expectation(role, "stay") for role in ("relevance", "factuality", "completeness", "total"))


def _shuffled(numbers: Iterable[int], rng: random.Random) -> list[int]:
    numbers = list(numbers)
    return rng.sample(numbers, len(numbers))


def source_of(record: StressRecord) -> FactSource:
    """The facts of a record. Raises DataError where it is not of this world."""
    passages = [Passage("", title, tuple(rest)) for title, *rest in record.passages]
    return parse_source(record.question, split_passages(passages, shared_segmenter(DEFAULT_SEGMENTER)))


_ROLES = ("relevance", "factuality", "completeness")


def _errors(judged: Judgement) -> tuple[int, int, int]:
    """Sub-sentences with a C1 error, sentences with a C2 error, missing facts."""
    return judged.relevance_errors, judged.factual_errors, len(judged.missing)


_RELEVANCE, _BOTH = frozenset({"relevance"}), frozenset({"relevance", "factuality"})
_MAKERS: Mapping[str, tuple[str, Callable[[Draft], Edit | None], frozenset[str]]] = {
    "swap": ("swap", swap, frozenset({"factuality"})),
    "unasked": ("insert", unasked, _RELEVANCE),
    "foreign": ("insert", foreign, _BOTH),
    "repeat": ("copy", repeat, _RELEVANCE),
    "drop": ("delete", drop, frozenset({"completeness"})),
    "other_answer": ("mismatch", other_answer, frozenset({"completeness"})),
    "restated": ("degenerate", restated, frozenset({"completeness"})),
    "empty": ("degenerate", empty, frozenset({"completeness"})),
    "names": ("pad", names, _RELEVANCE),
    "cut": ("cut", cut, frozenset({"relevance", "completeness"})),
    "order": ("surface", order, frozenset()),
    "form": ("surface", form, frozenset()),
}
"""By name the family of a change, what makes it, and which errors it must add; of those that replace an answer it may
add others too."""
_REPLACES = ("mismatch", "degenerate")


@dataclass(frozen=True)
class WorldChange(Settings):
    """One change of FactWorld's battery; satisfies `MakesChanges`.

    Attributes:
        name: of the change: swap, unasked, foreign, repeat, drop, other_answer, restated, empty, names, cut, order or
            form.
        segmenter: cuts answers as the oracle does.
        family: what changes of its kind have in common.
    """

    name: str
    segmenter: str = DEFAULT_SEGMENTER
    family: str = field(init=False)

    def __post_init__(self) -> None:
        if self.name not in _MAKERS:
            raise ConfigError(f"name: expected one of {', '.join(_MAKERS)}, got {self.name!r}")
        object.__setattr__(self, "family", _MAKERS[self.name][0])

    def __call__(
        self, record: StressRecord, answer: str, others: Sequence[StressRecord], random: random.Random
    ) -> Change | None:
        """Change an answer where the oracle agrees with what is expected; see `MakesChanges`.

        Raises:
            DataError: question or passages are not of this world.
        """
        family, make, adds = _MAKERS[self.name]
        segmenter, source = shared_segmenter(self.segmenter), source_of(record)
        before = judge(source, answer, segmenter)
        edit = make(Draft(record, source, before, others, random))
        if edit is None or edit[0] == answer:
            return None
        was, now = _errors(before), _errors(judge(source, edit[0], segmenter))
        more = {role for role, ago, after in zip(_ROLES, was, now, strict=True) if after > ago}
        if more != adds and not (family in _REPLACES and more > adds):
            return None
        return Change(
            self.name, family, record.id, answer, edit[0], "gold" if answer == record.gold else "answer", edit[1]
        )


BATTERY = tuple(map(WorldChange, _MAKERS))
"""All of them, in the order of reports."""
