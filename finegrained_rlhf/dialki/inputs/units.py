"""What a document is divided into before it is read: its passages with or without spans, their sentences, or all of it.

The passages of a divided record are sentences (Multi-Sentence), or the passages themselves as one span each; `Whole`
leads back to the passages of the record that it was made of, and `Joined` where they became one passage (BERTQA-Span).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.dialki.records import NO_PASSAGE, DialogueExample
from finegrained_rlhf.dialogue.records import Knowledge, Passage
from finegrained_rlhf.dialogue.tokens import plain_title

Units = Literal["passages", "sentences", "whole", "document"]


def check_units(units: str) -> None:
    """Raise ConfigError for a division that does not exist."""
    if units not in get_args(Units):
        raise ConfigError(f"dialki.units: expected one of {', '.join(get_args(Units))}, got {units!r}")


@dataclass(frozen=True)
class Whole:
    """The record that a divided one was made of.

    Attributes:
        example: as it was read.
        owners: for each passage of the divided record, the passage of `example` that it is a part of.
        firsts: its first span there.
        sizes: how many spans there its one span stands for; empty where a span stands for one.
    """

    example: DialogueExample
    owners: tuple[int, ...]
    firsts: tuple[int, ...]
    sizes: tuple[int, ...] = ()

    def back(self, knowledge: Knowledge) -> Knowledge:
        """A run of spans of the divided record, as a run of spans of `example`."""
        owner, first = self.owners[knowledge.passage], self.firsts[knowledge.passage]
        last = self.sizes[knowledge.passage] - 1 if self.sizes else knowledge.end
        return Knowledge(owner, first + knowledge.begin, first + last)

    def spans(self, passage: int, candidates: int) -> int:
        """How many spans of `example` the candidates of a passage of the divided record stand for."""
        return self.sizes[passage] if self.sizes and candidates else candidates


@dataclass(frozen=True)
class Joined:
    """The record whose passages became one.

    Attributes:
        example: as it was read.
        firsts: where the first span of each of its passages stands in the one passage.
    """

    example: DialogueExample
    firsts: tuple[int, ...]

    def forth(self, knowledge: Knowledge) -> Knowledge:
        """A run of spans of `example`, as one of the joined record."""
        first = self.firsts[knowledge.passage]
        return Knowledge(0, first + knowledge.begin, first + knowledge.end)

    def back(self, knowledge: Knowledge) -> Knowledge:
        """A run of spans of the joined record, as one of `example`.

        Of a run that crosses passages the part in the passage with most of its spans is kept, of equals in the first.
        """
        best: Knowledge | None = None
        for p, (first, passage) in enumerate(zip(self.firsts, self.example.passages, strict=True)):
            begin, end = max(knowledge.begin - first, 0), min(knowledge.end - first, len(passage.spans) - 1)
            if begin <= end and (best is None or end - begin > best.end - best.begin):
                best = Knowledge(p, begin, end)
        assert best is not None  # every span stands in a passage
        return best

    def spans(self, passage: int, candidates: int) -> int:
        """How many spans of `example` the candidates of the one passage stand for: as many."""
        return candidates

    def searched(self, candidates: int) -> int:
        """How many passages of `example` the first candidates are of, at least in part."""
        return sum(first < candidates for first in self.firsts)


def in_units(example: DialogueExample, units: Units) -> tuple[DialogueExample, Whole | Joined | None]:
    """The record as it is read, and the way back to it; None where nothing was changed."""
    if units == "document":
        return joined(example)
    if units == "sentences":
        return divided(example)
    return undivided(example) if units == "whole" else (example, None)


def undivided(example: DialogueExample) -> tuple[DialogueExample, Whole | None]:
    """The record with each passage as one span, and the way back; None where each was one already."""
    sizes = tuple(len(passage.spans) for passage in example.passages)
    if max(sizes) == 1:
        return example, None
    passages = tuple(Passage.uncut(one.id, one.text, one.title) for one in example.passages)
    turns = tuple(
        turn if turn.knowledge is None else replace(turn, knowledge=Knowledge(turn.knowledge.passage, 0, 0))
        for turn in example.turns
    )
    gold = tuple(Knowledge(passage, 0, 0) for passage in dict.fromkeys(known.passage for known in example.gold))
    whole = Whole(example, tuple(range(len(sizes))), (0,) * len(sizes), sizes)
    return replace(example, turns=turns, passages=passages, gold=gold), whole


def joined(example: DialogueExample) -> tuple[DialogueExample, Joined]:
    """The record with all its spans in one passage, and the way back.

    The first span of each passage begins with the passage's title, so that the document is read as one string with its
    headings.
    """
    spans: list[str] = []
    firsts: list[int] = []
    for passage in example.passages:
        firsts.append(len(spans))
        title = plain_title(passage.title)
        headed = title and passage != NO_PASSAGE
        spans += [f"{title} {passage.spans[0]}" if headed else passage.spans[0], *passage.spans[1:]]
    way = Joined(example, tuple(firsts))
    turns = tuple(
        turn if turn.knowledge is None else replace(turn, knowledge=way.forth(turn.knowledge)) for turn in example.turns
    )
    gold = tuple(way.forth(known) for known in example.gold)
    one = (Passage("document", "", tuple(spans)),)
    changed = replace(example, turns=turns, passages=one, gold=gold, also_right=(), no_passage=False)
    return changed, way


def divided(example: DialogueExample) -> tuple[DialogueExample, Whole]:
    """The record with one passage for each sentence of its passages, and the way back.

    A sentence is what `Passage.sentence_starts` says: a span, or a subsection of Doc2Dial (thesis, section 3.3.3). It
    keeps the title of its passage. Gold that crosses sentences becomes one entry for each part, a turn's label its
    first part (the thesis: knowledge rarely exceeds the boundaries of subsections).
    """
    owners: list[int] = []
    firsts: list[int] = []
    passages: list[Passage] = []
    for p, passage in enumerate(example.passages):
        for first, end in passage.sentence_bounds:
            owners.append(p)
            firsts.append(first)
            name = f"{p}.{first}:{passage.id}"
            passages.append(
                passage if passage == NO_PASSAGE else Passage(name, passage.title, passage.spans[first:end])
            )
    whole = Whole(example, tuple(owners), tuple(firsts))
    lengths = [len(passage.spans) for passage in passages]
    gold = [part for knowledge in example.gold for part in _parts(knowledge, whole, lengths)]
    turns = tuple(
        turn if turn.knowledge is None else replace(turn, knowledge=_parts(turn.knowledge, whole, lengths)[0])
        for turn in example.turns
    )
    right = tuple(part for part, owner in enumerate(owners) if owner in example.also_right)
    gold = list(dict.fromkeys(gold))
    return replace(example, turns=turns, passages=tuple(passages), gold=tuple(gold), also_right=right), whole


def _parts(knowledge: Knowledge, whole: Whole, lengths: Sequence[int]) -> list[Knowledge]:
    """What each sentence holds of a run of spans of the whole record, in order."""
    parts = []
    for unit, (owner, first) in enumerate(zip(whole.owners, whole.firsts, strict=True)):
        begin, end = max(knowledge.begin - first, 0), min(knowledge.end - first, lengths[unit] - 1)
        if owner == knowledge.passage and begin <= end:
            parts.append(Knowledge(unit, begin, end))
    return parts
