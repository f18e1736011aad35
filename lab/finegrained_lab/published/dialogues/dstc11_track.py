"""DSTC11 track 5 as its task is: sets of snippets, the track's file and measures, and which entities a turn is about.

`read_dstc11` makes dialogues of the same files for DIALKI, whose candidates are those of the entities that the labels
name. Here an answer is a set of snippets (a sentence of a review, or an FAQ), and entities are found in the dialogue.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finegrained_lab.published.dialogues.dstc11 import dstc11_part, read_snippet, read_turns
from finegrained_rlhf.core.checks import as_list, as_object, get_field, require, require_text
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json, write_json
from finegrained_rlhf.core.sources import Part

Entity = tuple[str, str]
"""Domain and number of an entity."""
_WORD = re.compile(r"[a-z0-9]+")
_KINDS = frozenset(
    "the a an and of by restaurant restaurants hotel house guesthouse guest bed breakfast lodge cafe bar bistro "
    "pizzeria takeaway brasserie food chinese city centre cambridge".split()
)
"""Words of a name that say what or where an entity is, not which."""
_ORDINARY = frozenset({("ask",), ("worth",), ("bridge",), ("b",), ("standard",), ("travellers",), ("saffron",)})
"""What is left of names that people say without meaning them."""


@dataclass(frozen=True, order=True)
class Snippet:
    """A piece of knowledge.

    Attributes:
        entity: that it is about.
        place: `("review", document, sentence)` or `("faq", document)`.
    """

    entity: Entity
    place: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """As the track's files have it."""
        kind, document, *sentence = self.place
        found = {"domain": self.entity[0], "entity_id": int(self.entity[1]), "doc_type": kind, "doc_id": int(document)}
        return found | {"sent_id": int(sentence[0])} if sentence else found


@dataclass(frozen=True)
class Label:
    """What a dialogue's last turn asks for.

    Attributes:
        target: it seeks knowledge.
        snippets: all that is relevant; none where no knowledge is sought.
        response: to the turn; empty where there is none.
    """

    target: bool
    snippets: frozenset[Snippet] = frozenset()
    response: str = ""

    @property
    def entities(self) -> frozenset[Entity]:
        """What the snippets are about."""
        return frozenset(snippet.entity for snippet in self.snippets)

    def to_json(self) -> dict[str, Any]:
        """As the track's files have it."""
        if not self.target:
            return {"target": False}
        knowledge = [snippet.to_json() for snippet in sorted(self.snippets)]
        return {"target": True, "knowledge": knowledge, "response": self.response}


@dataclass(frozen=True)
class TrackTurn:
    """One record of the track.

    Attributes:
        number: its place in `logs.json`.
        turns: the words of each turn, the last one the user's.
        label: what is asked for.
    """

    number: int
    turns: tuple[str, ...]
    label: Label


@dataclass(frozen=True)
class Track:
    """The track's data.

    Attributes:
        turns: of the part, those that seek no knowledge too.
        names: of the entities.
        texts: of every snippet, by entity: an FAQ is its question and answer.
    """

    turns: tuple[TrackTurn, ...]
    names: Mapping[Entity, str]
    texts: Mapping[Entity, Mapping[Snippet, str]]


def read_track(path: str | Path, part: Part = "all") -> Track:
    """Read a directory of `logs.json`, `labels.json` and `knowledge.json`.

    Args:
        path: of the directory.
        part: as of `read_dstc11`.

    Raises:
        DataError: naming file, record and field.
    """
    path = Path(path)
    logs, labels = read_json(path / "logs.json"), read_labels(path / "labels.json")
    if not isinstance(logs, list) or len(logs) != len(labels):
        raise DataError(f"{len(labels)} labels for another number of dialogues in logs.json", file=path / "labels.json")
    names, texts = _read_knowledge(path / "knowledge.json")
    turns = []
    for i, (log, label) in enumerate(zip(logs, labels, strict=True)):
        try:
            said = read_turns(log)
        except DataError as error:
            raise error.at(file=path / "logs.json", record=i) from None
        for snippet in label.snippets:
            if snippet not in texts.get(snippet.entity, {}):
                raise DataError(f"{snippet} does not exist", file=path / "labels.json", record=i, field="knowledge")
        if part in ("all", dstc11_part(said)):
            turns.append(TrackTurn(i, tuple(turn.text for turn in said), label))
    return Track(tuple(turns), names, texts)


def read_labels(path: str | Path) -> list[Label]:
    """Labels, or a system's answers, as the track's files have them; what is named twice counts once.

    Raises:
        DataError: naming record and field.
    """
    labels = []
    for i, item in enumerate(as_list(read_json(Path(path)), "(file)")):
        try:
            item = as_object(item, "(record)")
            target = get_field(item, "target")
            require(isinstance(target, bool), f"expected true or false, got {target!r}", "target")
            knowledge = as_list(item.get("knowledge", []), "knowledge")
            named = [
                read_snippet(as_object(one, f"knowledge[{j}]"), f"knowledge[{j}]") for j, one in enumerate(knowledge)
            ]
            labels.append(Label(target, frozenset(Snippet(*one) for one in named), item.get("response") or ""))
        except DataError as error:
            raise error.at(file=path, record=i) from None
    return labels


def write_labels(path: str | Path, labels: Sequence[Label]) -> None:
    """Write a system's answers as the track's file: one record for each record of `logs.json`, in order."""
    write_json(Path(path), [label.to_json() for label in labels])


def _read_knowledge(path: Path) -> tuple[dict[Entity, str], dict[Entity, dict[Snippet, str]]]:
    names: dict[Entity, str] = {}
    texts: dict[Entity, dict[Snippet, str]] = {}
    for domain, entities in as_object(read_json(path), "(file)").items():
        for number, raw in as_object(entities, domain).items():
            entity = (domain, number)
            try:
                names[entity] = require_text(get_field(as_object(raw, "(entity)"), "name"), "name")
                texts[entity] = dict(_snippets(entity, raw))
            except DataError as error:
                raise error.at(file=path, record=f"{domain} {number}") from None
    return names, texts


def _snippets(entity: Entity, raw: Mapping[str, Any]) -> Iterable[tuple[Snippet, str]]:
    for document, review in (raw.get("reviews") or {}).items():
        for sentence, text in get_field(as_object(review, "reviews"), "sentences", "reviews.").items():
            yield Snippet(entity, ("review", document, sentence)), text
    for document, faq in (raw.get("faqs") or {}).items():
        yield Snippet(entity, ("faq", document)), f"{get_field(faq, 'question')} {get_field(faq, 'answer')}"


def track_scores(references: Sequence[Label], answers: Sequence[Label]) -> dict[str, float]:
    """The track's measures of detection and selection.

    Snippets are counted over all records together (micro): one that is named is right if the reference has it too.
    Exact match is the share, of the records in which the reference or the answer names a snippet, in which both name
    the same ones; so an answer to a turn that asks for nothing counts against it. 0 where there is nothing to count.

    Args:
        references: what people said, [N].
        answers: of a system, [N], in the same order.

    Returns:
        `detection_…` and `selection_…`: `precision`, `recall`, `f1`; and `selection_exact_match`.

    Source: the script of scores of GitHub `alexa/dstc11-track5`.
    """
    pairs = list(zip(references, answers, strict=True))
    detected = Counter((reference.target, answer.target) for reference, answer in pairs)
    right = sum(len(reference.snippets & answer.snippets) for reference, answer in pairs)
    named = sum(len(answer.snippets) for answer in answers)
    wanted = sum(len(reference.snippets) for reference in references)
    counted = [pair for pair in pairs if pair[0].snippets or pair[1].snippets]
    exact = sum(reference.snippets == answer.snippets for reference, answer in counted)
    true = detected[True, True]
    scores = {
        "detection": _precision_recall(true, true + detected[False, True], true + detected[True, False]),
        "selection": _precision_recall(right, named, wanted),
    }
    flat = {f"{task}_{name}": value for task, of in scores.items() for name, value in of.items()}
    return {**flat, "selection_exact_match": _share(exact, len(counted))}


def _precision_recall(right: int, named: int, wanted: int) -> dict[str, float]:
    precision, recall = _share(right, named), _share(right, wanted)
    both = precision + recall
    return {"precision": precision, "recall": recall, "f1": 2 * precision * recall / both if both else 0.0}


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


class EntityMatcher:
    """Finds the entities that a dialogue is about by their names.

    A name is found as a run of its words, whole or without the words that say what it is ("hotel", "the"), where no
    other entity is left with the same words. What lies inside of a longer name does not count. Of the turns in which a
    name is found the latest counts, with all of its entities.

    Args:
        names: of the entities.
    """

    def __init__(self, names: Mapping[Entity, str]) -> None:
        self.names = names
        whole = {entity: _words(name) for entity, name in names.items()}
        short = {entity: tuple(word for word in words if word not in _KINDS) for entity, words in whole.items()}
        shared = Counter(short.values())
        self._runs: dict[tuple[str, ...], Entity] = {
            words: entity for entity, words in short.items() if words and shared[words] == 1 and words not in _ORDINARY
        }
        self._runs |= {words: entity for entity, words in whole.items()}
        self._longest = max(map(len, self._runs), default=0)

    def __call__(self, turns: Sequence[str]) -> frozenset[Entity]:
        """The entities of a dialogue, by its turns in order; none where no name is found."""
        for text in reversed(turns):
            if found := self._named(_words(text)):
                return found
        return frozenset()

    def _named(self, words: tuple[str, ...]) -> frozenset[Entity]:
        found, place = set(), 0
        while place < len(words):
            for length in range(min(self._longest, len(words) - place), 0, -1):
                if entity := self._runs.get(words[place : place + length]):
                    found.add(entity)
                    place += length - 1
                    break
            place += 1
        return frozenset(found)


def _words(text: str) -> tuple[str, ...]:
    return tuple(_WORD.findall(re.sub("['’]", "", text.lower())))
