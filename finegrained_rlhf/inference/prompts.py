"""Prompts for policies: from prompt files or plain texts to token ids, with the length limit applied.

Knows tokenizers and QA-FEEDBACK prompt files. Knows no model and no reward.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.feedback.reading import read_examples
from finegrained_rlhf.feedback.records import QAExample
from finegrained_rlhf.text.plain_text import plain_token_ids

logger = logging.getLogger(__name__)

TooLong = Literal["truncate", "refuse"]


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
    if too_long not in get_args(TooLong):
        raise ConfigError(f"prompt_too_long: expected truncate or refuse, got {too_long!r}")
    if max_tokens < 2:
        raise ConfigError(f"max_prompt_tokens: expected at least 2, got {max_tokens}")
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


def example_metadata(example: QAExample) -> dict[str, Any]:
    """What scorers may need of an example: `question`, `passages` and `references`."""
    return {"question": example.question, "passages": example.passages, "references": example.references}


def read_prompts(path: str | Path, tokenizer: Any, max_tokens: int, too_long: TooLong = "truncate") -> list[Prompt]:
    """The prompts of a QA-FEEDBACK prompt file, in order.

    Raises:
        DataError: the file is missing, damaged or empty, or a prompt is too long and `too_long` is `refuse`.
    """
    examples = read_examples(path)
    try:
        return encode_prompts(
            [(example.id, example.text) for example in examples],
            tokenizer,
            max_tokens,
            too_long,
            [example_metadata(example) for example in examples],
        )
    except DataError as error:
        raise error.at(file=path) from None
