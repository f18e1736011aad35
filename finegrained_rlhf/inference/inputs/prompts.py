"""Prompts for policies: from prompt files, conversations or texts to token ids, with the length limit applied."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.markers import DataName
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.feedback.conversations import USER, Message
from finegrained_rlhf.feedback.prompt_files import PromptInput, read_prompt_file
from finegrained_rlhf.inference.inputs.fusion import fused_prompts
from finegrained_rlhf.text.chat import ChatFormat, PromptConfig
from finegrained_rlhf.text.plain_text import TooLong, plain_token_ids

if TYPE_CHECKING:
    from finegrained_rlhf.models.policy import Policy

logger = logging.getLogger(__name__)


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

    With `prompt.fusion` they are read in pieces instead (`inputs/fusion.py`).

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
        policy.prompt = PromptConfig("on", settings.system)
    elif settings.chat_template == "off" or settings.fusion is not None:
        policy.prompt = settings
    return prompts
