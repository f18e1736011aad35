"""Prompts for policies: from prompt files, conversations, data sets of the Hub or raw text to token ids, with the
length limit applied.

For fusion-in-decoder a prompt comes in pieces: the question, or the conversation, with one passage each. How pieces
are encoded is `models/families/pieces.py`. Sources: Izacard and Grave (2021); thesis ch. 5 and INSCIT's reader for
conversations.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.markers import DataName
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.feedback.prompt_files import USER, Message, PromptInput, read_prompt_file
from finegrained_rlhf.text.chat import ChatFormat, FusionConfig, PromptConfig
from finegrained_rlhf.text.plain_text import TooLong, plain_token_ids
from finegrained_rlhf.text.templates import context_text, conversation_text, evidence_text

if TYPE_CHECKING:
    from finegrained_rlhf.models.policy import Policy

logger = logging.getLogger(__name__)

STANDARD_INPUT = "-"
"""The `input` that means standard input."""


def read_inputs(source: DataName | Path) -> list[PromptInput]:
    """Prompts, in order.

    Args:
        source: a prompt file or a data set of the Hub (`feedback.prompt_files.PromptSource`), or `-` for standard
            input, where every line that is not blank is a prompt.

    Raises:
        DataError: the source is missing, damaged or empty, a record has no prompt, or an id occurs twice.
    """
    return _from_lines(_standard_input()) if str(source) == STANDARD_INPUT else read_prompt_file(source)


def _standard_input() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"not UTF-8 text ({error.reason} at byte {error.start})", file="standard input") from None


def _from_lines(text: str) -> list[PromptInput]:
    lines = [line.rstrip("\r") for line in text.split("\n")]
    items = [PromptInput(f"line-{number}", line) for number, line in enumerate(lines, start=1) if line.strip()]
    if not items:
        raise DataError("holds no text, expected one prompt a line", file="standard input")
    return items


@dataclass(frozen=True)
class _Pieces:
    """The pieces of one prompt.

    Attributes:
        heads: what each piece begins with, whole and then shorter and shorter; at least one.
        passages: what each piece goes on with; a prompt without passages has one piece, its head.
    """

    heads: tuple[str, ...]
    passages: tuple[str, ...]

    def texts(self, head: int = 0) -> list[str]:
        """All pieces."""
        return [self.text(passage, head) for passage in self.passages] or [self.heads[head]]

    def text(self, passage: str, head: int) -> str:
        """One piece, by one of the heads."""
        return f"{self.heads[head]} {passage}"


def fused_prompts(
    items: Sequence[PromptInput], tokenizer: Any, max_tokens: int, refuse: bool, config: FusionConfig
) -> list[Prompt]:
    """Prompts whose passages are encoded one by one.

    Args:
        items: with `question` or `turns`, and `passages`, in their metadata.
        tokenizer: of the policy.
        max_tokens: longest piece in tokens.
        refuse: raise where a piece is longer, instead of cutting it.
        config: how many passages, and how they are cut.

    Raises:
        DataError: a prompt has no question, or a piece is too long and not to be cut.
    """
    cut = [_pieces(item, config.passages) for item in items]
    texts = [text for pieces in cut for text in pieces.texts()]
    rows = iter(plain_token_ids(tokenizer, texts, add_special_tokens=True) if texts else ())
    fitter = _Fitter(tokenizer, max_tokens, config.passage_tokens)
    prompts = []
    for item, pieces in zip(items, cut, strict=True):
        ids = [next(rows) for _ in pieces.texts()]
        longest = max(map(len, ids))
        if longest > max_tokens and refuse:
            problem = f"a piece of the prompt has {longest} tokens, the limit is {max_tokens}"
            raise DataError(f"{problem} (prompt_too_long=truncate cuts it)", record=item.id, field="passages")
        ids = fitter.fit(pieces, ids)
        flat = tuple(token for piece in ids for token in piece)
        prompts.append(Prompt(item.id, item.text, flat, item.metadata, pieces=tuple(map(len, ids))))
    left_out = sum(max(len(item.metadata["passages"]) - config.passages, 0) for item in items)
    if left_out:
        logger.warning("%d passages beyond the first %d of their prompts are not read", left_out, config.passages)
    fitter.warn(len(texts))
    return prompts


def _pieces(item: PromptInput, most: int) -> _Pieces:
    known = item.metadata
    if "passages" not in known:
        problem = "prompts that are read in pieces (prompt.fusion) need a question, or turns, and passages"
        raise DataError(problem, record=item.id, field="passages")
    passages = known["passages"][:most]
    turns = known.get("turns")
    if turns is None:
        return _Pieces((f"question: {known['question']}",), tuple(f"context: {context_text([p])}" for p in passages))
    evidence = tuple(map(evidence_text, passages))
    if len(turns) == 1:
        return _Pieces((conversation_text(turns),), evidence)
    later = range(1, len(turns))
    heads = tuple(conversation_text(turns, [0, *range(start, len(turns))]) for start in later)
    return _Pieces(heads, evidence)


class _Fitter:
    """Shortens the pieces of prompts to the limit, and counts what they lose."""

    def __init__(self, tokenizer: Any, limit: int, least: int) -> None:
        self._tokenizer, self._limit, self._least = tokenizer, limit, least
        self._special = len(plain_token_ids(tokenizer, [""], add_special_tokens=True)[0])
        self.cut = self.without_turns = 0

    def fit(self, pieces: _Pieces, ids: list[list[int]]) -> list[list[int]]:
        """Token ids of each piece, none longer than the limit.

        Args:
            pieces: of one prompt.
            ids: of the pieces as they are.
        """
        long = [i for i, row in enumerate(ids) if len(row) > self._limit]
        if not long:
            return ids
        heads = [len(row) for row in plain_token_ids(self._tokenizer, list(pieces.heads))]
        shorter = []
        for i in long:
            least = min(self._least, len(ids[i]) - self._special - heads[0]) if pieces.passages else 0
            room = self._limit - self._special - least
            chosen = next((h for h, length in enumerate(heads) if length <= room), len(heads) - 1)
            self.without_turns += chosen > 0
            shorter.append(pieces.text(pieces.passages[i], chosen) if pieces.passages else pieces.heads[chosen])
        tokenized = plain_token_ids(self._tokenizer, shorter, add_special_tokens=True, max_length=self._limit)
        self.cut += len(long)
        rows = dict(zip(long, tokenized, strict=True))
        return [rows.get(i, row) for i, row in enumerate(ids)]

    def warn(self, count: int) -> None:
        """Say how many of so many pieces were shortened, if any were."""
        if self.cut:
            message = "%d of %d pieces are longer than %d tokens: cut; %d of them lost earlier utterances"
            logger.warning(message, self.cut, count, self._limit, self.without_turns)


def _check_limit(max_tokens: int, too_long: str) -> None:
    if too_long not in get_args(TooLong):
        raise ConfigError(f"prompt_too_long: expected truncate or refuse, got {too_long!r}")
    if max_tokens < 2:
        raise ConfigError(f"max_prompt_tokens: expected at least 2, got {max_tokens}")


def encode_prompts(
    items: Iterable[tuple[str, str]],
    tokenizer: Any,
    max_tokens: int,
    too_long: TooLong = "truncate",
    metadata: Sequence[Mapping[str, Any]] | None = None,
) -> list[Prompt]:
    """Tokenise texts as the policy reads them: its own special tokens around them, none inside.

    Args:
        items: (id, text) pairs.
        tokenizer: of the policy.
        max_tokens: longest prompt in tokens.
        too_long: `truncate` cuts the end of longer prompts off (the special end token stays) and says how many;
            `refuse` raises. Where most prompts are cut, a second warning says what to set.
        metadata: of each prompt, for scorers; empty when None.

    Raises:
        ConfigError: an unknown `too_long`, or a limit below 2.
        DataError: a prompt is too long and `too_long` is `refuse`.
    """
    _check_limit(max_tokens, too_long)
    pairs = list(items)
    if not pairs:
        return []
    texts = [text for _, text in pairs]
    full = plain_token_ids(tokenizer, texts, add_special_tokens=True)
    long = [i for i, ids in enumerate(full) if len(ids) > max_tokens]
    if long and too_long == "refuse":
        raise DataError(
            f"the prompt has {len(full[long[0]])} tokens, the limit is {max_tokens} "
            f"({len(long)} of {len(pairs)} prompts are longer; prompt_too_long=truncate cuts them)",
            record=pairs[long[0]][0],
            field="text",
        )
    if long:
        logger.warning("%d of %d prompts are longer than %d tokens: cut off", len(long), len(pairs), max_tokens)
        if len(long) > len(pairs) / 2:
            longest = max(len(full[i]) for i in long)
            logger.warning(
                "WARNING: most prompts lose their end, and with it what the answer rests on: raise max_prompt_tokens "
                "(the longest prompt has %d tokens), or set prompt_too_long=refuse",
                longest,
            )
        cut = plain_token_ids(tokenizer, [texts[i] for i in long], add_special_tokens=True, max_length=max_tokens)
        for i, ids in zip(long, cut, strict=True):
            full[i] = ids
    notes = metadata if metadata is not None else [{}] * len(pairs)
    return [Prompt(name, text, tuple(ids), note) for (name, text), ids, note in zip(pairs, full, notes, strict=True)]


def encode_inputs(
    items: Sequence[PromptInput],
    tokenizer: Any,
    max_tokens: int,
    too_long: TooLong = "truncate",
    prompt: PromptConfig | None = None,
) -> list[Prompt]:
    """Prompts as the policy reads them: texts by `encode_prompts`, conversations by the chat template.

    With `prompt.fusion` they are read in pieces instead (`fused_prompts`).

    What a chat template was put around has the conversation as `messages` in its metadata. Where such a prompt is too
    long, the end of its last message is cut off; what the template writes stays. Without a template a conversation of
    one message is read as that message's text.

    Args:
        items: texts and conversations.
        tokenizer: of the policy.
        max_tokens: longest prompt in tokens.
        too_long: `truncate` or `refuse`.
        prompt: chat template and system message; None is the default.

    Raises:
        ConfigError: a chat template is asked for, or needed by a conversation of several messages, and there is none.
        DataError: the template refuses a conversation, or a prompt is too long and not to be cut.
    """
    if prompt is not None and prompt.fusion is not None:
        _check_limit(max_tokens, too_long)
        return fused_prompts(items, tokenizer, max_tokens, too_long == "refuse", prompt.fusion)
    chat = ChatFormat(tokenizer, PromptConfig() if prompt is None else prompt)
    talks = {i: _messages(item, chat) for i, item in enumerate(items) if chat and (item.messages or chat.for_texts)}
    plain = [i for i in range(len(items)) if i not in talks]
    if prompt is not None and prompt.system and items and not talks:
        raise ConfigError(
            "prompt.system: the data are texts, which are put as they are; with prompt.chat_template=on as messages"
        )
    for i in plain:
        if len(items[i].messages) > 1:
            raise ConfigError(
                f"record {items[i].id} is a conversation of {len(items[i].messages)} messages, which needs a chat "
                "template; the policy's tokenizer has none, or it is off: prompt.chat_template=FILE"
            )
    texts = [(items[i].id, items[i].text) for i in plain]
    encoded = encode_prompts(texts, tokenizer, max_tokens, too_long, [items[i].metadata for i in plain])
    prompts = dict(zip(plain, encoded, strict=True))
    cut = 0
    for i, messages in talks.items():
        prompts[i], shorter = _encode_talk(items[i], messages, chat, max_tokens, too_long)
        cut += shorter
    if cut:
        logger.warning("%d of %d conversations are longer than %d tokens: cut off", cut, len(talks), max_tokens)
    return [prompts[i] for i in range(len(items))]


def _messages(item: PromptInput, chat: ChatFormat) -> tuple[Message, ...]:
    return item.messages or (Message(USER, item.text),)


def _encode_talk(
    item: PromptInput, messages: Sequence[Message], chat: ChatFormat, max_tokens: int, too_long: TooLong
) -> tuple[Prompt, bool]:
    """A prompt by the chat template, and whether it had to be cut."""
    known = {**item.metadata, "messages": tuple({"role": m.role, "content": m.content} for m in messages)}
    *before, last = messages

    def encoded(length: int) -> tuple[str, list[int]]:
        text = chat.text([*before, replace(last, content=last.content[:length])])
        return text, chat.ids(text)

    try:
        text, ids = encoded(len(last.content))
        if len(ids) <= max_tokens:
            return Prompt(item.id, text, tuple(ids), known), False
        if too_long == "refuse":
            problem = f"the prompt has {len(ids)} tokens with its chat template, the limit is {max_tokens}"
            raise DataError(f"{problem} (prompt_too_long=truncate cuts it)", field="messages")
        low, high = 0, len(last.content)  # encoded(low) fits, encoded(high) does not
        if len(encoded(0)[1]) > max_tokens:
            problem = f"has more than {max_tokens} tokens even without its last message; raise max_prompt_tokens"
            raise DataError(problem, field="messages")
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if len(encoded(middle)[1]) <= max_tokens else (low, middle)
        text, ids = encoded(low)
        return Prompt(item.id, text, tuple(ids), known), True
    except DataError as error:
        raise error.at(record=item.id) from None


def read_prompts(
    path: DataName | Path,
    tokenizer: Any,
    max_tokens: int,
    too_long: TooLong = "truncate",
    prompt: PromptConfig | None = None,
) -> list[Prompt]:
    """The prompts of a file or of a data set of the Hub, in order (see `encode_inputs`).

    Raises:
        DataError: the file is missing, damaged or empty, or a prompt is too long and `too_long` is `refuse`.
    """
    items = read_prompt_file(path)
    try:
        return encode_inputs(items, tokenizer, max_tokens, too_long, prompt)
    except DataError as error:
        raise error.at(file=path) from None


def prompts_for(
    policy: Policy, source: DataName | Sequence[PromptInput], max_tokens: int, too_long: TooLong, prompt: PromptConfig
) -> list[Prompt]:
    """Prompts as this policy reads them; what it was trained with counts where the settings leave it open.

    Where a chat template was put around them, the policy ends its answers with the template's end of turn from now on,
    and remembers template and system message in what is saved of it.

    Args:
        policy: reads them.
        source: a file, a data set of the Hub, or what was read.
        max_tokens: longest prompt in tokens.
        too_long: `truncate` or `refuse`.
        prompt: the settings.

    Raises:
        ConfigError: see `encode_inputs`.
        DataError: see `read_prompts`.
    """
    from finegrained_rlhf.models.policy import Seq2SeqPolicy

    settings = prompt.over(policy.prompt)
    if settings.fusion is not None and not isinstance(policy, Seq2SeqPolicy):
        raise ConfigError("prompt.fusion: only encoder-decoders read a prompt in pieces, and this is a causal model")
    if isinstance(source, str):
        prompts = read_prompts(source, policy.tokenizer, max_tokens, too_long, settings)
    else:
        prompts = encode_inputs(source, policy.tokenizer, max_tokens, too_long, settings)
    if any("messages" in item.metadata for item in prompts):
        policy.end_turns_with(ChatFormat(policy.tokenizer, settings).end_id)
        policy.prompt = replace(settings, chat_template="on")
    elif settings.chat_template == "off" or settings.fusion is not None:
        policy.prompt = settings
    return prompts
