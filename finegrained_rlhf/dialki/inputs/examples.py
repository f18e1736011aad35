"""From a dialogue and its passages to token ids with turns and spans in known places.

The layout is `[CLS] turns [SEP] title [SEP] [CLS] span [CLS] span … [SEP]`, turns newest first, each behind its role
token (thesis, section 3.2.1). The turns of a dialogue are tokenised once and shared by its passages; a passage is
tokenised once for all dialogues that it occurs in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from finegrained_rlhf.core.errors import ConfigError, DataError, ModelError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.dialki.inputs.passage_tokens import Ids, PassageTokens
from finegrained_rlhf.dialki.inputs.report import InputReport
from finegrained_rlhf.dialki.inputs.text_reader import TextReader
from finegrained_rlhf.dialki.inputs.units import Joined, Units, Whole, check_units, in_units
from finegrained_rlhf.dialki.records import DialogueExample
from finegrained_rlhf.dialogue.records import Knowledge, Passage, Role, Turn
from finegrained_rlhf.dialogue.tokens import ROLE_TOKENS

_EXAMPLES_AT_ONCE = 256
_CACHED = 1 << 16


@dataclass(frozen=True)
class InputConfig(Settings):
    """How an input is cut.

    Attributes:
        max_length: longest input in tokens; a span whose end does not fit is no candidate.
        max_context: longest dialogue history in tokens, role tokens included, `[CLS]` and `[SEP]` not; the oldest words
            are cut off.
        role_suffix: written after the role token (the original has `:` on Doc2Dial, nothing on Wizard of Wikipedia).
    """

    max_length: int = 512
    max_context: int = 126
    role_suffix: str = ""

    def __post_init__(self) -> None:
        if self.max_context < 1 or self.max_length < self.max_context + 6:
            raise ConfigError(
                f"inputs: expected max_context >= 1 and max_length >= max_context + 6, got {self.max_context} and "
                f"{self.max_length}"
            )


@dataclass(frozen=True)
class EncodedExample:
    """A dialogue with its passages in tokens.

    Attributes:
        example: the record; with `units` other than passages the one that was made of it.
        context: `[CLS] turns [SEP]`.
        turn_starts: position of each turn's role token, newest first.
        roles: who speaks, newest first.
        history: what each of these turns rests on; None where it is unknown or no candidate.
        passages: of the record, in its order.
        candidates: how many spans of each passage fit whole: the first ones.
        lengths: tokens of each passage's input.
        gold: the gold entries that are candidates.
        sep_id: of the tokenizer, which ends every input.
        whole: the record as it was read, where `example` is a divided one.
    """

    example: DialogueExample
    context: Ids
    turn_starts: tuple[int, ...]
    roles: tuple[Role, ...]
    history: tuple[Knowledge | None, ...]
    passages: tuple[PassageTokens, ...]
    candidates: tuple[int, ...]
    lengths: tuple[int, ...]
    gold: tuple[Knowledge, ...]
    sep_id: int
    whole: Whole | Joined | None = None

    @property
    def record(self) -> DialogueExample:
        """The record as it was read: what an answer is compared with."""
        return self.example if self.whole is None else self.whole.example

    def owner(self, passage: int, answer: Knowledge | None = None) -> int:
        """The passage of `record` that a passage of `example` is, or is a part of.

        A joined record has one passage, of which every answer is a part: its owner is that of a given `answer`.
        """
        if isinstance(self.whole, Joined):
            return passage if answer is None else answer.passage
        return passage if self.whole is None else self.whole.owners[passage]

    def passages_searched(self, owners: Sequence[int]) -> int:
        """How many passages of `record` were searched, of which `owners` have a probability."""
        return self.whole.searched(self.candidates[0]) if isinstance(self.whole, Joined) else len(owners)

    def spans_searched(self, passage: int) -> int:
        """How many spans of `record` the candidates of a passage stand for."""
        candidates = self.candidates[passage]
        return candidates if self.whole is None else self.whole.spans(passage, candidates)

    def input_ids(self, passage: int) -> Ids:
        """The whole input of a passage: context, title and spans, `[SEP]`."""
        room = self.lengths[passage] - len(self.context) - 1
        return np.concatenate([self.context, self.passages[passage].ids[:room], [self.sep_id]]).astype(np.int32)

    def span_starts(self, passage: int) -> Ids:
        """Position in the input of the `[CLS]` of each candidate."""
        return self.passages[passage].starts[: self.candidates[passage]] + np.int32(len(self.context))

    def reaches(self, knowledge: Knowledge) -> bool:
        """Whether all its spans are candidates."""
        return knowledge.end < self.candidates[knowledge.passage]

    @property
    def document_length(self) -> int:
        """Tokens of all passages with titles and marks, before anything is cut."""
        return sum(len(passage.ids) for passage in self.passages)


T = TypeVar("T")


def in_parts(
    examples: Sequence[DialogueExample],
    assemble: Callable[[Sequence[DialogueExample]], Iterable[tuple[T | None, InputReport]]],
) -> tuple[list[T], InputReport]:
    """Assemble examples some hundreds at a time: what became of those that are kept, in order, and the summed counts.

    Args:
        examples: records.
        assemble: gives for each of some records its input, None where it is left out, and what did not fit.
    """
    kept: list[T] = []
    report = InputReport()
    for start in range(0, len(examples), _EXAMPLES_AT_ONCE):
        for item, counts in assemble(examples[start : start + _EXAMPLES_AT_ONCE]):
            report += counts
            if item is not None:
                kept.append(item)
    return kept, report


class InputEncoder:
    """Turns records into token ids.

    Args:
        tokenizer: with class, separator and padding tokens, and the role tokens as special tokens. The marks of titles
            are special tokens where it has them (a model saved before they were added has not).
        config: limits and layout.
        units: what becomes an input: passages with their spans, their sentences one by one, passages without spans
            (`whole`), of which each is a candidate however much of it fits, or all spans of the `document`.

    Raises:
        ModelError: the tokenizer lacks one of these tokens.
        ConfigError: such units do not exist.
    """

    def __init__(self, tokenizer: Any, config: InputConfig, units: Units = "passages") -> None:
        check_units(units)
        if tokenizer.cls_token_id is None or tokenizer.sep_token_id is None or tokenizer.pad_token_id is None:
            raise ModelError("DIALKI's tokenizer needs a class, a separator and a padding token")
        self.tokenizer, self.config, self.units = tokenizer, config, units
        self.reader = TextReader(tokenizer)
        self.cls_id, self.sep_id = int(tokenizer.cls_token_id), int(tokenizer.sep_token_id)
        known = tokenizer.get_vocab()
        if not all(token in known for token in ROLE_TOKENS.values()):
            raise ModelError(f"DIALKI's tokenizer needs the tokens {', '.join(ROLE_TOKENS.values())}")
        self._role_ids = {role: int(known[token]) for role, token in ROLE_TOKENS.items()}
        self._turns: dict[str, Ids] = {}
        self._passages: dict[tuple[str, tuple[str, ...]], PassageTokens] = {}

    def encode(
        self, examples: Sequence[DialogueExample], training: bool = False
    ) -> tuple[list[EncodedExample], InputReport]:
        """Token ids of dialogues, in order, and what did not fit.

        Args:
            examples: records.
            training: leave out the examples that have no gold entry, or have lost all of them.

        Raises:
            DataError: an example that is kept has no candidate at all.
        """

        def assembled(records: Sequence[DialogueExample]) -> Iterator[tuple[EncodedExample | None, InputReport]]:
            part = [in_units(example, self.units) for example in records]
            self.tokenise([example for example, _ in part])
            return (self._assemble(example, origin, training) for example, origin in part)

        return in_parts(examples, assembled)

    def tokenise(self, examples: Sequence[DialogueExample]) -> None:
        """Put all turns and passages of `examples` into the caches, from which `context` and `passage` take them."""
        for cache in (self._turns, self._passages):
            if len(cache) > _CACHED:
                cache.clear()
        turns = dict.fromkeys(self._text_of_turn(turn) for example in examples for turn in example.turns)
        new_turns = [text for text in turns if text not in self._turns]
        passages = dict.fromkeys((p.title, p.spans) for example in examples for p in example.passages)
        new_passages = [key for key in passages if key not in self._passages]
        rows = iter(self.reader.texts([*new_turns, *(f" {text}" for _, spans in new_passages for text in spans)]))
        titles = self.reader.titles([f" {title}" for title, _ in new_passages])
        for text in new_turns:
            self._turns[text] = np.array(next(rows), dtype=np.int32)
        for (title, spans), ids in zip(new_passages, titles, strict=True):
            self._passages[title, spans] = self._marked(ids, [next(rows) for _ in spans])

    def _text_of_turn(self, turn: Turn) -> str:
        return f"{self.config.role_suffix} {turn.text}"

    def passage(self, passage: Passage) -> PassageTokens:
        """The tokens of a passage."""
        return self._passages[passage.title, passage.spans]

    def _marked(self, title: Sequence[int], spans: Iterable[Sequence[int]]) -> PassageTokens:
        ids = [*title, self.sep_id]
        starts, ends = [], []
        for span in spans:
            starts.append(len(ids))
            ids += [self.cls_id, *span]
            ends.append(len(ids) - 1)
        return PassageTokens(*(np.array(part, dtype=np.int32) for part in (ids, starts, ends)))

    def context(self, turns: Sequence[Turn]) -> tuple[Ids, tuple[int, ...], int]:
        """`[CLS] turns [SEP]`, where the turns that are left begin, and how many tokens the history had."""
        pieces: list[Ids] = []
        starts: list[int] = []
        total = 0
        for turn in turns:
            if total < self.config.max_context:
                starts.append(1 + total)
            pieces += [np.array([self._role_ids[turn.role]], dtype=np.int32), self._turns[self._text_of_turn(turn)]]
            total += len(pieces[-1]) + 1
        history = np.concatenate(pieces)[: self.config.max_context]
        ends = np.array([self.cls_id], dtype=np.int32), np.array([self.sep_id], dtype=np.int32)
        return np.concatenate([ends[0], history, ends[1]]), tuple(starts), total

    def _assemble(
        self, example: DialogueExample, whole: Whole | Joined | None, training: bool
    ) -> tuple[EncodedExample | None, InputReport]:
        turns = example.turns[::-1]
        context, starts, total = self.context(turns)
        limit = self.config.max_length - len(context) - 1  # for title and spans; the last token is [SEP]
        passages = tuple(self.passage(p) for p in example.passages)
        cut = tuple(len(p.ids) > limit for p in passages)
        fits = tuple(int(np.searchsorted(p.ends, limit)) for p in passages)
        if self.units == "whole":
            passages, fits = tuple(p.with_room(limit) for p in passages), (1,) * len(passages)
        lengths = tuple(len(context) + 1 + min(limit, len(p.ids)) for p in passages)
        kept = len(starts)

        def reached(knowledge: Knowledge | None) -> Knowledge | None:
            return knowledge if knowledge is not None and knowledge.end < fits[knowledge.passage] else None

        history = tuple(reached(turn.knowledge) for turn in turns[:kept])
        gold = tuple(item for item in example.gold if reached(item))
        labels = sum(turn.knowledge is not None for turn in turns[:kept])
        dropped = training and bool(example.gold) and not gold
        report = InputReport(
            examples=1,
            unlabelled=int(training and not example.gold),
            gold_lost=len(example.gold) - len(gold),
            gold_cut=sum(cut[item.passage] for item in gold) if self.units == "whole" else 0,
            dropped=int(dropped),
            contexts_cut=int(total > self.config.max_context),
            turns_lost=len(turns) - kept,
            passages=len(passages),
            passages_cut=sum(cut),
            spans_lost=sum(len(p.ends) - n for p, n in zip(passages, fits, strict=True)),
            passages_lost=fits.count(0),
            history_labels=labels,
            history_labels_lost=labels - sum(item is not None for item in history),
        )
        if training and not gold:
            return None, report
        if not any(fits):
            raise DataError(
                f"no span fits into {self.config.max_length} tokens after the turns ({len(context)} tokens) and the "
                "title; raise max_length or lower max_context",
                record=example.id,
                field="passages",
            )
        roles = tuple(turn.role for turn in turns[:kept])
        return (
            EncodedExample(example, context, starts, roles, history, passages, fits, lengths, gold, self.sep_id, whole),
            report,
        )
