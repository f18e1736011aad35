"""INSCIT's conversations: their turns, what people answered, their files, and their passages by id.

A file is one JSON object of all conversations, as published (`data/dev.json` of the authors' repository), or one
conversation a line. Keys that the reader does not know are counted. A passage that the data holds is taken from there,
as people saw it, else from the corpus; whether the corpus has what the data names can be checked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from finegrained_rlhf.core.checks import as_list, as_object, get_field, require, require_text, text_list
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import read_json, read_jsonl, write_json, write_jsonl
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.inscit.conversation import (
    NOTHING,
    RESPONSE_TYPES,
    EvidencePassage,
    ResponseType,
    corpus_evidence,
    unique,
)
from finegrained_rlhf.retrieval.corpus import Corpus
from finegrained_rlhf.retrieval.passages import PassageStore, ids_in_store, is_store


@dataclass(frozen=True)
class InscitLabel:
    """What one person answered.

    Attributes:
        response_type: what kind of answer it is.
        response: its words.
        evidence: what it rests on, as listed; a passage may be listed twice.
    """

    response_type: ResponseType
    response: str
    evidence: tuple[EvidencePassage, ...]

    def __post_init__(self) -> None:
        known = ", ".join(RESPONSE_TYPES)
        kind = self.response_type
        require(kind in RESPONSE_TYPES, f"expected one of {known}, got {kind!r}", "responseType")
        require_text(self.response, "response")
        bare = kind != NOTHING or not self.evidence
        require(bare, f"a response of type {NOTHING} rests on nothing, got {len(self.evidence)} passages", "evidence")

    @property
    def passages(self) -> frozenset[str]:
        """The ids of the evidence, each once."""
        return frozenset(passage.id for passage in self.evidence)


@dataclass(frozen=True)
class InscitTurn:
    """A turn to answer.

    Attributes:
        conversation: id of the conversation.
        number: of the turn, from 1.
        context: what was said, the user first and last.
        earlier: the evidence of each earlier agent turn, oldest first.
        labels: one or more answers.
    """

    conversation: str
    number: int
    context: tuple[str, ...]
    earlier: tuple[tuple[EvidencePassage, ...], ...]
    labels: tuple[InscitLabel, ...]

    def __post_init__(self) -> None:
        length = len(self.context)
        require(length % 2 == 1, f"expected an odd number of utterances, user first and last, got {length}", "context")
        for i, text in enumerate(self.context):
            require_text(text, f"context[{i}]")
        agent = length // 2
        problem = f"expected one list for each of {agent} earlier agent turns, got {len(self.earlier)}"
        require(len(self.earlier) == agent, problem, "prevEvidence")
        require(len(self.labels) > 0, "expected at least one label", "labels")

    @property
    def key(self) -> tuple[str, int]:
        """What names the turn in predictions."""
        return self.conversation, self.number

    @property
    def name(self) -> str:
        """The same in one text, for runs and judgements of retrieval."""
        return f"{self.conversation}_{self.number}"

    @property
    def gold(self) -> tuple[str, ...]:
        """The ids of the evidence of all labels, each once, the first label's first."""
        return tuple(dict.fromkeys(passage.id for label in self.labels for passage in label.evidence))

    @property
    def agreed_type(self) -> ResponseType | None:
        """The type that all labels have; None where they differ."""
        types = {label.response_type for label in self.labels}
        return next(iter(types)) if len(types) == 1 else None


@dataclass(frozen=True)
class InscitConversation:
    """A conversation.

    Attributes:
        id: may hold underscores.
        article: that it began with.
        topic: of the article.
        level: how far the article is from the topic; None where the file does not say.
        turns: in order, each continuing the one before it.
    """

    id: str
    article: str
    topic: str
    level: int | None
    turns: tuple[InscitTurn, ...]

    def continued_by(self, turn: int) -> tuple[int, ...]:
        """Which labels of a turn (from 0) the conversation went on with: those whose words the next turn repeats."""
        if turn + 1 >= len(self.turns):
            return ()
        response = self.turns[turn + 1].context[-2]
        return tuple(i for i, label in enumerate(self.turns[turn].labels) if label.response == response)


def turns_of(conversations: Sequence[InscitConversation]) -> list[InscitTurn]:
    """All turns, conversation by conversation."""
    return [turn for conversation in conversations for turn in conversation.turns]


def earlier_ids(turn: InscitTurn, newest_first: bool) -> list[str]:
    """The ids of the evidence of earlier turns, each once."""
    order = reversed(turn.earlier) if newest_first else turn.earlier
    return unique(passage.id for part in order for passage in part)


def with_gold(ids: Sequence[str], gold: Sequence[str], most: int) -> list[str]:
    """The ids with all of the gold ones among them, in place of the last others where there is no room."""
    missing = [name for name in gold if name not in ids][:most]
    kept, room = list(ids), most - len(missing)
    for name in reversed(ids):
        if len(kept) <= room:
            break
        if name not in gold:
            kept.remove(name)
    return [*kept[:room], *missing]


_CONVERSATION = {"id", "seedArticle", "turns"}
_TURN = {"context", "prevEvidence", "labels"}
_LABEL = {"responseType", "response", "evidence"}
_PASSAGE = {"passage_id", "passage_text", "passage_titles"}


@dataclass
class InscitReading:
    """What a file holds.

    Attributes:
        conversations: in the file's order.
        unknown_keys: how often each key occurs that the format does not have, by its place.
    """

    conversations: list[InscitConversation] = field(default_factory=list)
    unknown_keys: Counter[str] = field(default_factory=Counter)


def read_inscit(path: str | Path, known_passages: Collection[str] | None = None) -> InscitReading:
    """Read a file of conversations.

    Args:
        path: JSON as published, or JSON lines (`.jsonl`) of one conversation each, with an `id`.
        known_passages: ids of the corpus; None does not check them.

    Raises:
        DataError: it is damaged, breaks a rule of the records, or evidence is not in the corpus; the error names file,
            conversation, turn and field.
    """
    path, reading = Path(path), InscitReading()
    for name, value in _rows(path):
        try:
            reading.conversations.append(_conversation(name, value, reading.unknown_keys, known_passages))
        except DataError as error:
            raise error.at(file=path) from None
    if not reading.conversations:
        raise DataError("expected at least one conversation", file=path)
    return reading


def check_inscit(path: str, settings: Mapping[str, Any] | None = None) -> None:
    """Require a file of conversations; errors as of `read_inscit`."""
    read_inscit(path)


INSCIT_DATA: Mapping[str, Any] = {"data": check_inscit}
"""The `input_checks` of a job whose `data` is such a file."""


def write_inscit(path: str | Path, conversations: Iterable[InscitConversation]) -> None:
    """Write what `read_inscit` reads: JSON lines to a `.jsonl` file, the published layout to any other."""
    rows = [_row(conversation) for conversation in conversations]
    if Path(path).suffix == ".jsonl":
        write_jsonl(path, rows)
    else:
        write_json(path, {row.pop("id"): row for row in rows})


def _rows(path: Path) -> list[tuple[str, Any]]:
    if path.suffix == ".jsonl":
        rows: list[tuple[str, Any]] = []
        for number, row in enumerate(read_jsonl(path)):
            if not isinstance(row.get("id"), str):
                raise DataError("expected the id of a conversation", file=path, record=number, field="id")
            rows.append((row["id"], row))
    else:
        value = read_json(path)
        if not isinstance(value, Mapping):
            raise DataError("expected one object of conversations by id", file=path)
        rows = list(value.items())
    twice = [name for name, count in Counter(name for name, _ in rows).items() if count > 1]
    if twice:
        raise DataError("occurs twice", file=path, record=twice[0])
    return rows


def _conversation(
    name: str, value: Any, unknown: Counter[str], known_passages: Collection[str] | None
) -> InscitConversation:
    where = f"conversation {name!r}"
    try:
        row = as_object(value, "(conversation)")
        _count(row, _CONVERSATION, "", unknown)
        seed = as_object(get_field(row, "seedArticle"), "seedArticle")
        article = require_text(get_field(seed, "title", "seedArticle."), "seedArticle.title")
        turns = as_list(get_field(row, "turns"), "turns")
        require(len(turns) > 0, "expected at least one turn", "turns")
    except DataError as error:
        raise error.at(record=where) from None
    made = []
    for number, turn in enumerate(turns, start=1):
        try:
            made.append(_turn(name, number, as_object(turn, "(turn)"), unknown, known_passages))
            if number > 1:
                before = made[-2].context
                grown = made[-1].context[: len(before)] == before and len(made[-1].context) == len(before) + 2
                require(grown, "does not continue the turn before it", "context")
        except DataError as error:
            raise error.at(record=f"{where}, turn {number}") from None
    level = seed.get("level")
    return InscitConversation(
        name, article, str(seed.get("topic", "")), level if isinstance(level, int) else None, tuple(made)
    )


def _turn(
    conversation: str, number: int, row: Mapping[str, Any], unknown: Counter[str], known: Collection[str] | None
) -> InscitTurn:
    _count(row, _TURN, "turns.", unknown)
    earlier = [
        _evidence(part, f"prevEvidence[{i}]", unknown, known)
        for i, part in enumerate(as_list(get_field(row, "prevEvidence"), "prevEvidence"))
    ]
    labels = []
    for i, value in enumerate(as_list(get_field(row, "labels"), "labels")):
        try:
            label = as_object(value, "(label)")
            _count(label, _LABEL, "turns.labels.", unknown)
            kind, response = get_field(label, "responseType"), get_field(label, "response")
            evidence = _evidence(get_field(label, "evidence"), "evidence", unknown, known)
            labels.append(InscitLabel(kind, response, evidence))
        except DataError as error:
            raise DataError(error.problem, field=f"labels[{i}].{error.field or ''}".rstrip(".")) from None
    context = tuple(text_list(get_field(row, "context"), "context"))
    return InscitTurn(conversation, number, context, tuple(earlier), tuple(labels))


def _evidence(
    value: Any, where: str, unknown: Counter[str], known: Collection[str] | None
) -> tuple[EvidencePassage, ...]:
    evidence = []
    for i, part in enumerate(as_list(value, where)):
        row = as_object(part, f"{where}[{i}]")
        _count(row, _PASSAGE, "passage.", unknown)
        name = require_text(get_field(row, "passage_id", f"{where}[{i}]."), f"{where}[{i}].passage_id")
        text = require_text(get_field(row, "passage_text", f"{where}[{i}]."), f"{where}[{i}].passage_text")
        titles = text_list(get_field(row, "passage_titles", f"{where}[{i}]."), f"{where}[{i}].passage_titles")
        inside = known is None or name in known
        require(inside, f"{name!r} is no passage of the corpus", f"{where}[{i}].passage_id")
        evidence.append(EvidencePassage(name, text, tuple(titles)))
    return tuple(evidence)


def _count(row: Mapping[str, Any], known: set[str], place: str, unknown: Counter[str]) -> None:
    unknown.update(f"{place}{key}" for key in row if key not in known)


def _row(conversation: InscitConversation) -> dict[str, Any]:
    return {
        "id": conversation.id,
        "seedArticle": {"title": conversation.article, "topic": conversation.topic, "level": conversation.level},
        "turns": [
            {
                "context": list(turn.context),
                "prevEvidence": [_passages(part) for part in turn.earlier],
                "labels": [
                    {
                        "responseType": label.response_type,
                        "response": label.response,
                        "evidence": _passages(label.evidence),
                    }
                    for label in turn.labels
                ],
            }
            for turn in conversation.turns
        ],
    }


def _passages(evidence: Iterable[EvidencePassage]) -> list[dict[str, Any]]:
    return [{"passage_id": one.id, "passage_text": one.text, "passage_titles": list(one.titles)} for one in evidence]


def read_known_inscit(path: str | Path, known_passages: str | None) -> InscitReading:
    """Read a file of conversations whose evidence, where a corpus is named, is all in it.

    Args:
        path: of the conversations.
        known_passages: corpus (file or directory) or directory of its `PassageStore`; None checks nothing. Without a
            store the corpus is read until all passages are found.

    Raises:
        DataError: as `read_inscit`: a passage is not in the corpus, or the file is damaged; or there is no such corpus.
    """
    reading = read_inscit(path)
    if known_passages is None:
        return reading
    ids = passages_of_turns(turns_of(reading.conversations)).keys()
    if is_store(known_passages):
        present = ids_in_store(known_passages, ids)
    else:
        present = set()
        for passage in Corpus(known_passages) if ids else ():
            if passage.id in ids:
                present.add(passage.id)
                if len(present) == len(ids):
                    break
    return reading if len(present) == len(ids) else read_inscit(path, present)


def passages_of_turns(turns: Sequence[InscitTurn]) -> dict[str, EvidencePassage]:
    """Every passage that a label or an earlier turn of the data rests on."""
    known: dict[str, EvidencePassage] = {}
    for turn in turns:
        for part in (*turn.earlier, *(label.evidence for label in turn.labels)):
            known |= {one.id: one for one in part}
    return known


def check_corpus_keys(corpus: str | None, store: str | None) -> None:
    """Raise ConfigError where a store is named without its corpus."""
    if store is not None and corpus is None:
        raise ConfigError("store: expected the corpus that it was built of as well")


def corpus_passages(ids: Collection[str], corpus: str, store: str | None) -> dict[str, Passage]:
    """The passages of a corpus with these ids, by its store or, without one, by reading it once.

    Raises:
        DataError: an id is not in the corpus, or the store is of another one.
    """
    opened, wanted = Corpus(corpus), sorted(set(ids))
    return opened.find(wanted) if store is None else PassageStore(store, opened).find(wanted)


def passages_by_id(
    ids: Collection[str], turns: Sequence[InscitTurn], corpus: str | None, store: str | None
) -> dict[str, EvidencePassage]:
    """The passages with these ids, from the data or, where it lacks them, from the corpus.

    Args:
        ids: of passages.
        turns: of the data.
        corpus: file or directory; None looks up nothing, and leaves out what the data lacks.
        store: directory of the corpus's `PassageStore`; None reads the corpus once from its beginning.

    Raises:
        DataError: an id is not in the corpus either.
    """
    known = passages_of_turns(turns)
    missing = sorted(set(ids) - known.keys())
    if missing and corpus is not None:
        known |= {name: corpus_evidence(one) for name, one in corpus_passages(missing, corpus, store).items()}
    return {name: known[name] for name in ids if name in known}
