"""The scripted user of CORESET's conversations: which questions, which remarks and when, for each challenge.

What is said does not depend on answers, so that all agents have the same conversations. Source: Sun et al., appendix B.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from finegrained_lab.protocols.coreset.conversations import ScriptedTurn
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.personalization.selection import FeedbackRemark, SourceDocument, documents_left

Say = Callable[[str, str], str]
"""What a user says of an attribute and its value."""
CHANGE_AT = 25
"""The turn after which a preference changes (appendix B.4), from 1."""
CHANGES_AT = (8, 16, 24)
"""The turns after which it changes three times, before turn 30 (appendix B.6 gives 30 alone)."""
STRAY_AT = 28
"""The turn after which the user says something of an entity that is not meant."""
REMARK_EVERY = 5
"""Turns between two remarks where there are many."""
WRONG = 4
"""Remarks about somebody else in `strays`, unless another number is asked for."""
MOST_PARTIAL = 3
"""Remarks that rule out one document each (table 6)."""
TURNS: Mapping[str, int] = {
    "ambiguity": 5,
    "persistence": 50,
    "partial": 20,
    "change": 50,
    "position": 5,
    "changes": 30,
    "mixed": 50,
    "stray": 50,
    "strays": 50,
}
"""Turns by scenario: challenges 0 to 4, appendix B.6, and three of ours. `ambiguity`: no remark. `persistence`: one
that settles who is meant, after the first turn. `partial`: up to three, each of which rules out one document, five
turns apart. `change`: as `persistence`, and another entity after turn 25. `position`: no remark, one answer is asked
for. `changes`: three changes, each with a remark that settles it. `mixed`: a remark every five turns that states any
fact of who is meant, and another entity after turn 25. `stray`: as `mixed` without a change, but for one remark about
another entity. `strays`: with several, each two turns before one that holds."""


@dataclass
class _Talk:
    """A conversation that is being drawn."""

    documents: Sequence[SourceDocument]
    say: Say
    rng: random.Random
    wanted: SourceDocument
    wrong_at: frozenset[int] = frozenset()
    said: dict[int, FeedbackRemark] = field(default_factory=dict)
    holding: list[int] = field(default_factory=list)

    def relevant(self) -> tuple[SourceDocument, ...]:
        """Who can be meant."""
        return documents_left(self.documents, [self.said[turn] for turn in self.holding])

    def state(self, turn: int, attribute: str) -> None:
        """Say a fact of who is meant."""
        value = self.wanted.facts[attribute]
        self.said[turn] = FeedbackRemark(self.say(attribute, value), attribute, value)
        self.holding.append(turn)

    def settling(self) -> str | None:
        """A fact that nobody else has; None where there is none."""
        return self._any_with(1)

    def ruling_out_one(self) -> str | None:
        """A fact that all but one of those who can be meant have."""
        return self._any_with(len(self.relevant()) - 1)

    def unsaid(self) -> str | None:
        """A fact that was not said since the last change; any where all were."""
        known = {self.said[turn].attribute for turn in self.holding}
        attributes = sorted(self.wanted.facts)
        return self.rng.choice([one for one in attributes if one not in known] or attributes)

    def change(self, settled: bool) -> str | None:
        """Mean another entity; a fact of it that the former one does not have, or that nobody else has."""
        former, self.holding = self.wanted, []
        others = [one for one in self.documents if one.id != former.id]
        for other in self.rng.sample(others, len(others)):
            self.wanted = other
            remark = self.settling() if settled else self._differing(former)
            if remark is not None:
                return remark
        return None

    def _differing(self, former: SourceDocument) -> str | None:
        attributes = sorted(name for name, value in self.wanted.facts.items() if former.facts[name] != value)
        return self.rng.choice(attributes) if attributes else None

    def _any_with(self, count: int) -> str | None:
        among = self.relevant()
        fits = [
            name
            for name, value in sorted(self.wanted.facts.items())
            if sum(one.facts[name] == value for one in among) == count
        ]
        return self.rng.choice(fits) if fits else None


def draw_conversation_turns(
    scenario: str,
    documents: Sequence[SourceDocument],
    questions: Mapping[str, str],
    say: Say,
    rng: random.Random,
    length: int | None = None,
    wrong: int | None = None,
) -> tuple[ScriptedTurn, ...] | None:
    """The turns of a conversation; each question is any of those given.

    Args:
        scenario: one of `TURNS`.
        documents: D, all with the same attributes.
        questions: question by attribute.
        say: the words of a remark.
        rng: of the draw.
        length: turns; None as in `TURNS`.
        wrong: remarks of `strays` that state a fact of another entity; None: `WRONG`, or as many as have a place.

    Returns:
        The turns; None where these documents do not allow the scenario: nothing settles who is meant, no fact rules out
        one document alone, or nothing tells two of them apart.

    Raises:
        ConfigError: no such scenario, or more wrong remarks than `wrong_places`.
    """
    if scenario not in TURNS:
        raise ConfigError(f"scenario: expected one of {', '.join(TURNS)}, got {scenario!r}")
    turns = TURNS[scenario] if length is None else length
    wrong_at = frozenset[int]()
    if scenario == "strays":
        places = wrong_places(turns)
        wrong = min(WRONG, len(places)) if wrong is None else wrong
        if not 0 <= wrong <= len(places):
            raise ConfigError(f"wrong: expected 0 to {len(places)} in {turns} turns, got {wrong}")
        wrong_at = frozenset(rng.sample(places, len(places))[:wrong])
    for wanted in rng.sample(list(documents), len(documents)):
        talk = _Talk(documents, say, rng, wanted, wrong_at)
        drawn = _drawn(scenario, talk, questions, turns)
        if drawn is not None:
            return drawn
    return None


def wrong_places(length: int) -> range:
    """The turns of `strays`, from 0, after which something wrong may be said; the last remark of all holds."""
    return range(REMARK_EVERY - 2, REMARK_EVERY * ((length - 1) // REMARK_EVERY), REMARK_EVERY)


def _drawn(scenario: str, talk: _Talk, questions: Mapping[str, str], length: int) -> tuple[ScriptedTurn, ...] | None:
    names = sorted(questions)
    order = talk.rng.sample(names, len(names))
    drawn: list[ScriptedTurn] = []
    for turn in range(length):
        attribute = order[turn % len(order)] if scenario in ("ambiguity", "position") else talk.rng.choice(names)
        holding = tuple(talk.holding)
        if not _speak(scenario, turn, talk):
            return None
        one = scenario == "position"
        drawn.append(ScriptedTurn(questions[attribute], attribute, holding, talk.said.get(turn), one))
    return tuple(drawn)


def _speak(scenario: str, turn: int, talk: _Talk) -> bool:
    """What the user says after a turn, from 0, if anything; False where the documents do not allow it."""
    number, attribute, speaks = turn + 1, None, False
    if scenario in ("persistence", "change", "changes") and number == 1:
        attribute, speaks = talk.settling(), True
    elif scenario == "partial" and turn % REMARK_EVERY == REMARK_EVERY - 1:
        if len(talk.relevant()) > 1 and len(talk.holding) < MOST_PARTIAL:
            attribute, speaks = talk.ruling_out_one(), True
    elif (scenario == "change" and number == CHANGE_AT) or (scenario == "changes" and number in CHANGES_AT):
        attribute, speaks = talk.change(settled=True), True
    elif scenario == "mixed" and number == CHANGE_AT:
        attribute, speaks = talk.change(settled=False), True
    elif (scenario == "stray" and number == STRAY_AT) or turn in talk.wrong_at:
        return _stray(turn, talk)
    elif scenario in ("mixed", "stray", "strays") and turn % REMARK_EVERY == 0:
        attribute, speaks = talk.unsaid(), True
    if attribute is not None:
        talk.state(turn, attribute)
    return attribute is not None or not speaks


def _stray(turn: int, talk: _Talk) -> bool:
    """Say a fact of somebody else that is not true of who is meant; it does not hold."""
    others = [
        (name, value)
        for one in talk.documents
        for name, value in sorted(one.facts.items())
        if value != talk.wanted.facts[name]
    ]
    if not others:
        return False
    name, value = talk.rng.choice(others)
    talk.said[turn] = FeedbackRemark(talk.say(name, value), name, value)
    return True
