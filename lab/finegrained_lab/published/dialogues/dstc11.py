"""DSTC11 track 5: dialogues about hotels and restaurants whose answers rest on reviews and FAQs.

Reads `logs.json`, `labels.json` and `knowledge.json` of one directory. A review is a passage and a sentence of it a
span; an FAQ is a passage of one span, question and answer. The candidates are all reviews and FAQs of the entities that
the turn's labels name: which entity a turn is about is another subtask and is taken as known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from finegrained_rlhf.core.checks import as_list, as_object, get_field, require, require_text
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json
from finegrained_rlhf.core.seeding import stable_hash
from finegrained_rlhf.core.sources import Part
from finegrained_rlhf.dialki.data import DialogueReading
from finegrained_rlhf.dialki.records import DialogueExample
from finegrained_rlhf.dialogue.records import Knowledge, Passage, Role, Turn

SKIPPED = "turn seeks no knowledge"
ELSEWHERE = "turn of another part"
_SPEAKERS: Mapping[str, Role] = {"U": "user", "S": "agent"}
_Entity = tuple[str, str]


def read_dstc11(path: str | Path, part: Part = "all") -> DialogueReading:
    """Read the turns of a directory that seek knowledge; their last turn is the user's.

    Args:
        path: the directory of `logs.json`, `labels.json` and `knowledge.json`.
        part: one file is published per split, so a part can be held out here: `dev` and `test` are a tenth of the
            dialogues each, chosen by a hash of the dialogue's first turn, `train` is the rest.

    Raises:
        DataError: naming file, record (index in `logs.json` and `labels.json`, or entity) and field.
    """
    path = Path(path)
    logs, labels = (_array(path / name) for name in ("logs.json", "labels.json"))
    if len(logs) != len(labels):
        raise DataError(f"{len(labels)} labels for {len(logs)} dialogues in logs.json", file=path / "labels.json")
    knowledge = _Knowledge(path / "knowledge.json")
    skipped: Counter[str] = Counter()
    examples = []
    for i, (log, label) in enumerate(zip(logs, labels, strict=True)):
        try:
            turns = read_turns(log)
        except DataError as error:
            raise error.at(file=path / "logs.json", record=i) from None
        try:
            label = as_object(label, "(record)")
            if not get_field(label, "target"):
                skipped[SKIPPED] += 1
            elif part not in ("all", dstc11_part(turns)):
                skipped[ELSEWHERE] += 1
            else:
                examples.append(_example(i, turns, label, knowledge))
        except DataError as error:
            raise error.at(file=path / "labels.json", record=i) from None
    return DialogueReading.of(examples, len(logs), skipped, {}, path)


def dstc11_part(turns: tuple[Turn, ...]) -> Part:
    """`train`, `dev` or `test` for a dialogue: the same for all dialogues that open with the same words."""
    bucket = stable_hash("dstc11", turns[0].text) % 10
    return "dev" if bucket == 0 else "test" if bucket == 1 else "train"


def _array(path: Path) -> list[Any]:
    rows = read_json(path)
    if not isinstance(rows, list):
        raise DataError(f"expected a JSON array, got {type(rows).__name__}", file=path)
    return rows


def read_turns(log: Any) -> tuple[Turn, ...]:
    """The turns of a record of `logs.json`.

    Raises:
        DataError: one is broken, or the user says nothing.
    """
    turns = []
    for i, item in enumerate(as_list(log, "(record)")):
        item = as_object(item, f"[{i}]")
        speaker = get_field(item, "speaker", f"[{i}].")
        require(speaker in _SPEAKERS, f"expected 'U' or 'S', got {speaker!r}", f"[{i}].speaker")
        turns.append(Turn(_SPEAKERS[speaker], require_text(get_field(item, "text", f"[{i}]."), f"[{i}].text")))
    require(any(turn.role == "user" for turn in turns), "the dialogue has no user turn", "(record)")
    return tuple(turns)


class _Knowledge:
    """The entities' documents, cut into passages when first asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._domains = as_object(read_json(path), "(file)")
        except DataError as error:
            raise error.at(file=path) from None
        self._cut: dict[_Entity, tuple[tuple[Passage, ...], dict[tuple[str, ...], tuple[int, int]]]] = {}

    def passages(self, entity: _Entity) -> tuple[tuple[Passage, ...], dict[tuple[str, ...], tuple[int, int]]]:
        """An entity's passages, and where (passage, span) each label `(doc_type, doc_id[, sent_id])` stands."""
        if entity not in self._cut:
            domain, number = entity
            entry = as_object(self._domains.get(domain, {}), domain).get(number)
            require(entry is not None, f"entity {number} of {domain!r} is not in {self.path}", "knowledge")
            try:
                self._cut[entity] = _cut(as_object(entry, "(entity)"), entity)
            except DataError as error:
                raise error.at(file=self.path, record=f"{domain} {number}") from None
        return self._cut[entity]


def _cut(
    value: Mapping[str, Any], entity: _Entity
) -> tuple[tuple[Passage, ...], dict[tuple[str, ...], tuple[int, int]]]:
    name = require_text(get_field(value, "name"), "name")
    passages: list[Passage] = []
    places: dict[tuple[str, ...], tuple[int, int]] = {}
    for number, review in as_object(value.get("reviews") or {}, "reviews").items():
        field = f"reviews.{number}.sentences"
        published = get_field(as_object(review, f"reviews.{number}"), "sentences", f"reviews.{number}.")
        sentences = as_object(published, field)
        for j, key in enumerate(sentences):
            places["review", number, key] = (len(passages), j)
        spans = tuple(require_text(text, f"{field}.{key}") for key, text in sentences.items())
        require(len(spans) > 0, "the review is empty", field)
        passages.append(Passage("-".join((*entity, "review", number)), name, spans))
    for number, item in as_object(value.get("faqs") or {}, "faqs").items():
        field = f"faqs.{number}"
        item = as_object(item, field)
        parts = [require_text(get_field(item, key, f"{field}."), f"{field}.{key}") for key in ("question", "answer")]
        places["faq", number] = (len(passages), 0)
        passages.append(Passage("-".join((*entity, "faq", number)), name, (" ".join(parts),)))
    require(len(passages) > 0, "the entity has no reviews and no FAQs", "reviews")
    return tuple(passages), places


def _example(number: int, turns: tuple[Turn, ...], label: Mapping[str, Any], knowledge: _Knowledge) -> DialogueExample:
    snippets = as_list(get_field(label, "knowledge"), "knowledge")
    require(len(snippets) > 0, "a turn that seeks knowledge has no snippets", "knowledge")
    named = [read_snippet(as_object(item, f"knowledge[{i}]"), f"knowledge[{i}]") for i, item in enumerate(snippets)]
    passages: list[Passage] = []
    places: dict[tuple[_Entity, tuple[str, ...]], tuple[int, int]] = {}
    entities = sorted({entity for entity, _ in named})  # an order that says nothing of the labels
    for entity in entities:
        of_entity, where = knowledge.passages(entity)
        places.update({(entity, key): (len(passages) + p, span) for key, (p, span) in where.items()})
        passages.extend(of_entity)
    gold: list[Knowledge] = []
    for i, (entity, key) in enumerate(named):
        if (entity, key) not in places:
            raise DataError(f"{' '.join(key)} of {' '.join(entity)} does not exist", field=f"knowledge[{i}]")
        passage, span = places[entity, key]
        gold.append(Knowledge(passage, span, span))
    response = label.get("response")
    return DialogueExample(
        id=f"dstc11-{number:05d}",
        turns=turns,
        passages=tuple(passages),
        gold=tuple(gold),
        response=None if response is None else require_text(response, "response"),
        source=", ".join(" ".join(entity) for entity in entities),
    )


def read_snippet(item: Mapping[str, Any], field: str) -> tuple[_Entity, tuple[str, ...]]:
    """The entity of a label and the place in its documents: `(doc_type, doc_id[, sent_id])`."""
    keys = ("domain", "entity_id", "doc_type", "doc_id")
    domain, number, kind, document = (str(get_field(item, key, f"{field}.")) for key in keys)
    sentence = (str(get_field(item, "sent_id", f"{field}.")),) if kind == "review" else ()
    return (domain, number), (kind, document, *sentence)
