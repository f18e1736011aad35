"""Documents as overlapping windows of tokens, each behind the dialogue: the inputs of BERTQA.

The layout is `[CLS] turns [SEP] window [SEP]`. The document is one string: titles and spans of all passages in order,
without marks between them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from finegrained_lab.baselines.config import WindowConfig
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.dialki.inputs.examples import InputConfig, InputEncoder, in_parts
from finegrained_rlhf.dialki.inputs.passage_tokens import Ids, PassageTokens
from finegrained_rlhf.dialki.inputs.report import InputReport
from finegrained_rlhf.dialki.records import NO_PASSAGE, DialogueExample
from finegrained_rlhf.dialogue.records import Knowledge, Passage

TITLE = -1
"""The span of a token that belongs to a title."""

_CACHED = 1 << 12


@dataclass(frozen=True)
class DocumentTokens:
    """A document of n tokens, and where each comes from. All int32 [n].

    Attributes:
        ids: token ids.
        passages: index of its passage.
        spans: index of its span in the passage; `TITLE` in a title.
        places: its place among the tokens of the span (of the title).
    """

    ids: Ids
    passages: Ids
    spans: Ids
    places: Ids

    def tokens_of(self, knowledge: Knowledge) -> tuple[int, int] | None:
        """The first and the last token of a run of spans; None where it has none."""
        inside = (self.passages == knowledge.passage) & (self.spans >= knowledge.begin) & (self.spans <= knowledge.end)
        tokens = np.flatnonzero(inside)
        return (int(tokens[0]), int(tokens[-1])) if len(tokens) else None


@dataclass(frozen=True)
class WindowedExample:
    """A dialogue with the windows of its document.

    Attributes:
        record: the record.
        context: `[CLS] turns [SEP]`.
        document: its tokens.
        starts: the first document token of each window.
        room: document tokens that a window holds; the last one may hold fewer.
        gold: first and last token of each gold entry that a window holds whole.
        sep_id: of the tokenizer, which ends every input.
    """

    record: DialogueExample
    context: Ids
    document: DocumentTokens
    starts: tuple[int, ...]
    room: int
    gold: tuple[tuple[int, int], ...]
    sep_id: int

    @property
    def document_length(self) -> int:
        """Tokens of the document."""
        return len(self.document.ids)

    def size(self, window: int) -> int:
        """Document tokens of a window."""
        return min(self.room, len(self.document.ids) - self.starts[window])

    def length(self, window: int) -> int:
        """Tokens of a window's input."""
        return len(self.context) + self.size(window) + 1

    def input_ids(self, window: int) -> Ids:
        """The whole input of a window."""
        start = self.starts[window]
        words = self.document.ids[start : start + self.size(window)]
        return np.concatenate([self.context, words, [self.sep_id]]).astype(np.int32)

    def choices(self, window: int) -> np.ndarray:
        """Where an answer may begin or end: True at tokens of spans, bool [length]."""
        start = self.starts[window]
        allowed = np.zeros(self.length(window), dtype=bool)
        allowed[len(self.context) : -1] = self.document.spans[start : start + self.size(window)] != TITLE
        return allowed

    def holds(self, window: int, tokens: tuple[int, int]) -> bool:
        """Whether a window holds these document tokens, first and last, whole."""
        start = self.starts[window]
        return start <= tokens[0] and tokens[1] < start + self.size(window)


class WindowEncoder:
    """Turns records into windows.

    Args:
        tokenizer: as DIALKI's.
        inputs: limits of the dialogue and of an input.
        windows: how documents are cut.

    Raises:
        ModelError: the tokenizer lacks a token that inputs need.
        ConfigError: the stride would skip tokens.
    """

    def __init__(self, tokenizer: object, inputs: InputConfig, windows: WindowConfig) -> None:
        windows.check(inputs)
        self._inputs, self.windows = InputEncoder(tokenizer, inputs), windows
        self._documents: dict[tuple[Passage, ...], DocumentTokens] = {}

    def encode(
        self, examples: Sequence[DialogueExample], training: bool = False
    ) -> tuple[list[WindowedExample], InputReport]:
        """Windows of dialogues, in order, and what did not fit.

        Args:
            examples: records.
            training: leave out the examples that have no gold entry, or have lost all of them.

        Raises:
            DataError: the document of an example has no token that an answer may hold.
        """

        def assembled(part: Sequence[DialogueExample]) -> Iterator[tuple[WindowedExample | None, InputReport]]:
            self._inputs.tokenise(part)
            return (self._assemble(example, training) for example in part)

        return in_parts(examples, assembled)

    def _assemble(self, example: DialogueExample, training: bool) -> tuple[WindowedExample | None, InputReport]:
        context, turns, total = self._inputs.context(example.turns[::-1])
        limits, document = self._inputs.config, self._document(example)
        if not (document.spans != TITLE).any():
            raise DataError("the document has no token of a span", record=example.id, field="passages")
        room = limits.max_length - len(context) - 1
        count = 1 + math.ceil(max(len(document.ids) - room, 0) / self.windows.stride)
        starts = tuple(i * self.windows.stride for i in range(count))
        item = WindowedExample(example, context, document, starts, room, (), self._inputs.sep_id)
        places = [document.tokens_of(knowledge) for knowledge in example.gold]
        held = [place for place in places if place and any(item.holds(w, place) for w in range(count))]
        lost = 0 if example.no_passage else len(places) - len(held)
        dropped = training and bool(example.gold) and not held and not example.no_passage
        report = InputReport(
            examples=1,
            unlabelled=int(training and not example.gold),
            gold_lost=lost,
            dropped=int(dropped),
            contexts_cut=int(total > limits.max_context),
            turns_lost=len(example.turns) - len(turns),
            passages=count,
        )
        if training and (dropped or not example.gold):
            return None, report
        return replace(item, gold=tuple(dict.fromkeys(held))), report

    def _document(self, example: DialogueExample) -> DocumentTokens:
        if len(self._documents) > _CACHED:
            self._documents.clear()
        if example.passages not in self._documents:
            parts = [_tokens(self._inputs.passage(p), i) for i, p in enumerate(example.passages) if p != NO_PASSAGE]
            columns = [np.concatenate(column) for column in zip(*parts, strict=True)] or [np.zeros(0, np.int32)] * 4
            self._documents[example.passages] = DocumentTokens(*(column.astype(np.int32) for column in columns))
        return self._documents[example.passages]


def _tokens(passage: PassageTokens, number: int) -> tuple[Ids, Ids, Ids, Ids]:
    """Ids, passage, span and place of the words of a passage, without DIALKI's marks before title and spans."""
    title = passage.ids[: passage.starts[0] - 1]
    pieces = [title, *(passage.ids[a + 1 : b + 1] for a, b in zip(passage.starts, passage.ends, strict=True))]
    ids = np.concatenate(pieces)
    spans = np.concatenate([np.full(len(piece), j, np.int32) for j, piece in enumerate(pieces, start=TITLE)])
    places = np.concatenate([np.arange(len(piece), dtype=np.int32) for piece in pieces])
    return ids, np.full(len(ids), number, np.int32), spans, places
