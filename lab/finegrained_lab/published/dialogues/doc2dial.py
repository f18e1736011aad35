"""Doc2Dial v1.0.1: dialogues grounded in the spans of one document each.

Reads `doc2dial_dial_*.json` and `doc2dial_doc.json`. A passage is the spans of one section title, in document order; a
span is a span as published. A turn is to be answered when it is the user's and the next one is the agent's (the rule of
the shared task).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finegrained_rlhf.core.checks import as_index, as_list, as_object, get_field, require, require_text
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json
from finegrained_rlhf.dialki.data import DialogueReading
from finegrained_rlhf.dialki.records import DialogueExample
from finegrained_rlhf.dialogue.records import ROLES, Knowledge, Passage, Turn
from finegrained_rlhf.dialogue.tokens import full_title

DOCUMENTS = "doc2dial_doc.json"
NO_ANSWER = "no agent turn follows"
NO_REFERENCE = "agent turn without references"
BLANK_GOLD = "references to blank spans only"


@dataclass(frozen=True)
class Doc2DialDocument:
    """A document cut into sections.

    Attributes:
        name: the document's id.
        passages: one a section title, in the order of their first spans.
        places: where each published span id stands, (passage, span); blank spans are missing.
        text: `doc_text`.
        bounds: characters of each published span id in it, as `start_sp` and `end_sp` say, blank spans included.
        blank: ids of spans without text.
    """

    name: str
    passages: tuple[Passage, ...]
    places: Mapping[str, tuple[int, int]]
    text: str
    bounds: Mapping[str, tuple[int, int]]
    blank: frozenset[str]


def read_doc2dial(
    path: str | Path,
    documents: str | Path | None = None,
    seen_in: str | Path | None = None,
    keep_unlabelled: bool = False,
) -> DialogueReading:
    """Read a dialogue file of Doc2Dial.

    Args:
        path: `doc2dial_dial_train.json` or `doc2dial_dial_validation.json`.
        documents: the document file; `doc2dial_doc.json` beside `path` when None.
        seen_in: the training dialogues; documents that do not occur there are `unseen`. None leaves it open.
        keep_unlabelled: also give examples for user turns whose answer has no references or is not in the file (a
            blind test set); they have no gold.

    Raises:
        DataError: naming file, record (dialogue or document id) and field.
    """
    path = Path(path)
    documents = Path(documents) if documents is not None else path.parent / DOCUMENTS
    raw = _by_domain(documents, "doc_data")
    known = None if seen_in is None else {(domain, name) for domain, name, _ in _by_domain(Path(seen_in), "dial_data")}
    sources = {(domain, name): value for domain, name, value in raw}
    examples: list[DialogueExample] = []
    skipped: Counter[str] = Counter()
    notes: Counter[str] = Counter()
    dialogues = 0
    for domain, name, value in _by_domain(path, "dial_data"):
        if (domain, name) not in sources:
            raise DataError(f"the document is not in {documents}", file=path, record=name, field=f"dial_data.{domain}")
        document = read_document(sources[domain, name], name, documents, notes)
        unseen = None if known is None else (domain, name) not in known
        for dialogue in _dialogues(value, domain, name, path):
            dialogues += 1
            try:
                examples += _examples(dialogue, document, unseen, keep_unlabelled, skipped, notes)
            except DataError as error:
                raise error.at(file=path, record=str(dialogue.get("dial_id", name))) from None
    return DialogueReading.of(examples, dialogues, skipped, notes, path)


def _by_domain(path: Path, key: str) -> list[tuple[str, str, Any]]:
    """(domain, document id, value) of a published file, in file order."""
    try:
        domains = as_object(get_field(as_object(read_json(path), "(file)"), key), key)
        return [
            (domain, name, value)
            for domain, entries in domains.items()
            for name, value in as_object(entries, f"{key}.{domain}").items()
        ]
    except DataError as error:
        raise error.at(file=path) from None


def _dialogues(value: Any, domain: str, name: str, path: Path) -> Iterator[Mapping[str, Any]]:
    try:
        for i, dialogue in enumerate(as_list(value, f"dial_data.{domain}")):
            yield as_object(dialogue, f"dial_data.{domain}[{i}]")
    except DataError as error:
        raise error.at(file=path, record=name) from None


def read_document(value: Any, name: str, path: Path, notes: Counter[str]) -> Doc2DialDocument:
    """One entry of `doc_data` cut into sections; blank spans and moved ones are counted in `notes`."""
    try:
        return _sections(as_object(value, "(document)"), name, notes)
    except DataError as error:
        raise error.at(file=path, record=name) from None


def _sections(value: Mapping[str, Any], name: str, notes: Counter[str]) -> Doc2DialDocument:
    text = require_text(get_field(value, "doc_text"), "doc_text")
    spans = as_object(get_field(value, "spans"), "spans")
    require(len(spans) > 0, "the document has no spans", "spans")
    sections: dict[str, list[tuple[str, str]]] = {}
    subsections: dict[str, Any] = {}
    parents: dict[str, list[str]] = {}
    blank: set[str] = set()
    bounds: dict[str, tuple[int, int]] = {}
    for key, item in spans.items():
        field = f"spans.{key}"
        item = as_object(item, field)
        bounds[key] = (_offset(item, "start_sp", field), _offset(item, "end_sp", field))
        words = _span_text(item, bounds[key], text, field, notes)
        if not words:
            blank.add(key)
            notes["blank spans"] += 1
            continue
        title = require_text(get_field(item, "title", f"{field}."), f"{field}.title", empty=True)
        sections.setdefault(title, []).append((key, words))
        subsections[key] = item.get("id_sec", key)
        parents.setdefault(title, []).extend(_parent_titles(item, field))
    require(len(sections) > 0, "the document has no span with text", "spans")
    passages, places = [], {}
    for p, (title, members) in enumerate(sections.items()):
        # The original gives the document's id as title and the rest as a pseudo-span, which then competes with the real
        # ones. Here all of it is title.
        heading = full_title(name, parents[title], title)
        starts = _starts([subsections[key] for key, _ in members])
        passages.append(Passage(str(p), heading, tuple(words for _, words in members), starts))
        places.update({key: (p, j) for j, (key, _) in enumerate(members)})
    return Doc2DialDocument(name, tuple(passages), places, text, bounds, frozenset(blank))


def _starts(subsections: Sequence[Any]) -> tuple[int, ...]:
    """The first span of each run of spans of one subsection; empty where each span is one."""
    starts = [i for i, name in enumerate(subsections) if i == 0 or name != subsections[i - 1]]
    return tuple(starts) if len(starts) < len(subsections) else ()


def _offset(item: Mapping[str, Any], name: str, field: str) -> int:
    return as_index(get_field(item, name, f"{field}."), f"{field}.{name}")


def _span_text(item: Mapping[str, Any], bounds: tuple[int, int], text: str, field: str, notes: Counter[str]) -> str:
    """A span's words without white space around them; they must occur in the document's text."""
    words = require_text(get_field(item, "text_sp", f"{field}."), f"{field}.text_sp", empty=True).strip()
    if words and text[slice(*bounds)].split() != words.split():
        there = " ".join(words.split()) in " ".join(text.split())
        require(there, "the span does not exist in doc_text", f"{field}.text_sp")
        notes["spans at another offset than start_sp"] += 1
    return words


def _parent_titles(item: Mapping[str, Any], field: str) -> list[str]:
    titles = []
    for i, parent in enumerate(as_list(item.get("parent_titles") or [], f"{field}.parent_titles")):
        where = f"{field}.parent_titles[{i}]"
        titles.append(require_text(get_field(as_object(parent, where), "text", f"{where}."), where, empty=True).strip())
    return titles


@dataclass(frozen=True)
class _Published:
    """One turn of the file: as a record, with all it refers to as places and as one text, and its `turn_id`."""

    turn: Turn
    places: tuple[Knowledge, ...]
    reference: str
    number: Any
    referring: bool


def _turns(dialogue: Mapping[str, Any], document: Doc2DialDocument, notes: Counter[str]) -> list[_Published]:
    turns = []
    for i, item in enumerate(as_list(get_field(dialogue, "turns"), "turns")):
        field = f"turns[{i}]"
        item = as_object(item, field)
        role = get_field(item, "role", f"{field}.")
        require(role in ROLES, f"unknown role {role!r}, expected 'user' or 'agent'", f"{field}.role")
        words = require_text(get_field(item, "utterance", f"{field}."), f"{field}.utterance")
        references = as_list(item.get("references") or [], f"{field}.references")
        places = _knowledge(references, document, f"{field}.references", notes)
        number = get_field(item, "turn_id", f"{field}.")
        reference = reference_text(references, document)
        label = places[0] if places else None
        turns.append(_Published(Turn(role, words, label), places, reference, number, bool(references)))
    require(any(entry.turn.role == "user" for entry in turns), "the dialogue has no user turn", "turns")
    return turns


def _examples(
    dialogue: Mapping[str, Any],
    document: Doc2DialDocument,
    unseen: bool | None,
    keep_unlabelled: bool,
    skipped: Counter[str],
    notes: Counter[str],
) -> Iterator[DialogueExample]:
    dialogue_id = require_text(get_field(dialogue, "dial_id"), "dial_id")
    turns = _turns(dialogue, document, notes)
    for i, (entry, answer) in enumerate(zip(turns, [*turns[1:], None], strict=True)):
        if entry.turn.role != "user":
            continue
        if answer is not None and answer.turn.role != "agent":
            answer = None
        gold = answer.places if answer is not None else ()
        if not gold and not keep_unlabelled:
            skipped[NO_ANSWER if answer is None else BLANK_GOLD if answer.referring else NO_REFERENCE] += 1
            continue
        if len(gold) > 1:
            notes["gold in several sections"] += 1
        yield DialogueExample(
            id=f"{dialogue_id}_{entry.number}",
            turns=tuple(earlier.turn for earlier in turns[: i + 1]),
            passages=document.passages,
            gold=gold,
            references=(answer.reference,) if answer is not None and gold else (),
            response=None if answer is None else answer.turn.text,
            unseen=unseen,
            source=document.name,
        )


def _knowledge(
    references: list[Any], document: Doc2DialDocument, field: str, notes: Counter[str]
) -> tuple[Knowledge, ...]:
    """One entry a section that is referred to, from its first to its last span; the most referred section first."""
    by_passage: dict[int, list[int]] = {}
    for i, item in enumerate(references):
        span = str(get_field(as_object(item, f"{field}[{i}]"), "sp_id", f"{field}[{i}]."))
        if span in document.blank:
            notes["references to blank spans"] += 1
            continue
        require(span in document.places, f"span {span!r} does not exist in the document", f"{field}[{i}].sp_id")
        passage, place = document.places[span]
        by_passage.setdefault(passage, []).append(place)
    ranked = sorted(by_passage.items(), key=lambda entry: (-len(entry[1]), entry[0]))
    return tuple(Knowledge(passage, min(places), max(places)) for passage, places in ranked)


def reference_text(references: Sequence[Mapping[str, Any]], document: Doc2DialDocument) -> str:
    """The text that the shared task compares an answer with: from the first span referred to to the end of the last.

    What lies between them belongs to it, other sections and their titles too. Source: DialDoc 2021, subtask 1
    (`scripts/datasets/doc2dial/doc2dial.py`).

    Args:
        references: of a turn, each with an `sp_id` of the document; "" where there are none.
        document: that they refer to.
    """
    bounds = [document.bounds[str(item["sp_id"])] for item in references]
    return document.text[min(start for start, _ in bounds) : max(end for _, end in bounds)] if bounds else ""
