"""Changes to answers of which it is known what a reward must say, by component and place.

A change is made where its effect is certain, and nowhere else: `makers` says by which rules. Scoring them is
`measure.py`'s work.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args, runtime_checkable

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.seeding import stable_hash
from finegrained_rlhf.text.facts import plain
from finegrained_rlhf.text.segmentation import Span

Direction = Literal["fall", "not_rise", "stay"]
"""What a component must do. `stay` is meant within the spread of what it gives answers to one question."""
Source = Literal["gold", "answer"]
ROLES = ("relevance", "factuality", "completeness")
TOTAL = "total"
"""The sum of all components that training is paid by."""
_OTHERS = 64


@dataclass(frozen=True)
class StressRecord:
    """One question with what is known to answer it.

    Attributes:
        id: unique in its file.
        question: the question.
        passages: of each its title and its sentences; may be empty.
        gold: an answer by people.
        answers: of models, unmarked; may be empty.
    """

    id: str
    question: str
    passages: tuple[tuple[str, ...], ...]
    gold: str
    answers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Expectation:
    """What one component must do.

    Attributes:
        role: `relevance`, `factuality`, `completeness` or `total`, or the name of a component.
        direction: what its value must do from the base answer to the changed one.
        before: characters of the base answer that are compared, end exclusive; None: the whole answer.
        after: characters of the changed answer; None: the whole.
    """

    role: str
    direction: Direction
    before: Span | None = None
    after: Span | None = None


@dataclass(frozen=True)
class Change:
    """A base answer, what was made of it, and what must follow.

    Attributes:
        name: of the change.
        family: what changes of its kind have in common: copy, swap, insert, delete, mismatch, degenerate, pad, cut,
            surface, or a word of one's own.
        record: id of the question.
        base: the answer that was changed.
        changed: the answer as it is now.
        base_source: whether people wrote the base answer, or a model.
        expectations: at least one.
    """

    name: str
    family: str
    record: str
    base: str
    changed: str
    base_source: Source
    expectations: tuple[Expectation, ...]

    def fault(self, record: str) -> str | None:
        """What is wrong with it as a change for a question, in words; None where nothing is."""
        if self.record != record:
            return f"made a change for record {self.record!r}"
        if self.changed == self.base:
            return "changed nothing"
        if not self.expectations:
            return "expects nothing"
        for one in self.expectations:
            if one.direction not in get_args(Direction):
                return f"has the direction {one.direction!r}; expected {', '.join(get_args(Direction))}"
            for place, text in ((one.before, self.base), (one.after, self.changed)):
                if place is not None and not 0 <= place[0] < place[1] <= len(text):
                    return f"names characters {place} of a text of {len(text)}"
        return None


@runtime_checkable
class MakesChanges(Protocol):
    """Makes one kind of change. A class of one's own is named by `_target_` in `stress_test.families`."""

    @property
    def name(self) -> str:
        """Of the change, unique among all."""
        ...

    @property
    def family(self) -> str:
        """As in `Change`."""
        ...

    def __call__(
        self, record: StressRecord, answer: str, others: Sequence[StressRecord], random: random.Random
    ) -> Change | None:
        """Change an answer.

        Args:
            record: the question.
            answer: the base answer: `record.gold` or one of `record.answers`; never blank.
            others: records of other questions; may be empty.
            random: where all chance comes from, so that one seed gives one change.

        Returns:
            None where no change is possible whose effect is certain.
        """
        ...


def run_changes(
    records: Sequence[StressRecord], makers: Iterable[MakesChanges], seed: int = 0, answers: int = 1
) -> list[Change]:
    """Every change that can be made to the gold answer and to some unmarked answers of each record.

    What a maker draws depends on the seed, the record, the other records and its own name: other makers move nothing.

    Args:
        records: of questions; records of one question do not serve each other as others.
        makers: of changes.
        seed: of all draws.
        answers: of each record how many unmarked answers are changed beside the gold one.

    Raises:
        ConfigError: two makers have one name, or a maker failed or made a change that names what is not there.
    """
    makers = list(makers)
    names = [maker.name for maker in makers]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"stress_test.families: two makers of changes are called {name!r}")
    made = []
    for record in records:
        rng = random.Random(stable_hash(seed, "stress", record.id))
        others = others_of(record, records, rng)
        drawn = [text for text in dict.fromkeys(record.answers) if text.strip() and text != record.gold]
        for answer in [record.gold, *rng.sample(drawn, min(answers, len(drawn)))]:
            for maker in makers if answer.strip() else ():
                own = random.Random(stable_hash(seed, record.id, maker.name, answer))
                change = _made(maker, record, answer, others, own)
                made += [] if change is None else [change]
    return made


def others_of(record: StressRecord, records: Sequence[StressRecord], rng: random.Random) -> list[StressRecord]:
    """Some records of other questions that share no passage with this one."""
    own = {sentence for passage in record.passages for sentence in passage[1:]}
    question = plain(record.question)
    return [
        other
        for other in rng.sample(records, min(_OTHERS + 1, len(records)))
        if plain(other.question) != question
        and own.isdisjoint(sentence for passage in other.passages for sentence in passage[1:])
    ]


def _made(
    maker: MakesChanges, record: StressRecord, answer: str, others: Sequence[StressRecord], rng: random.Random
) -> Change | None:
    try:
        change = maker(record, answer, others, rng)
    except Exception as error:
        raise ConfigError(
            f"the change {maker.name} failed on record {record.id!r}: {type(error).__name__}: {error}"
        ) from error
    if change is None:
        return None
    fault = change.fault(record.id) if isinstance(change, Change) else "made no Change"
    if fault is not None:
        raise ConfigError(f"the change {maker.name} {fault} in record {record.id!r}")
    return change
