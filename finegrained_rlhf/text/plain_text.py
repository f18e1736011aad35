"""Text that people or models wrote, in which nothing is a control token: as token ids, or as text.

A question, passage, answer or response that holds the characters `</s>` or `<pad>` means these characters: as control
tokens they would end a segment, pad a row or mask a word inside of it.

- `plain_token_ids` where the ids of a whole text are wanted and no character may change: prompts, references and what
  reward models read. It is exact: the ids are those of the characters themselves.
- `literal_texts` where texts are joined with a marker that must not stand in them (turns of a dialogue), or go to code
  that tokenizes on its own (a dense encoder). It changes a text that holds a control token by a space (`< /s>`), and no
  other text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

TooLong = Literal["truncate", "refuse"]
"""What becomes of an input that is longer than a model reads: its end is cut off, or it is an error."""
TOGETHER = 1024
"""Texts that a tokenizer is given at once: with the ids it returns what it knows of each token, hundreds of bytes."""


def plain_token_ids(
    tokenizer: Any, texts: Sequence[str], *, add_special_tokens: bool = False, max_length: int | None = None
) -> list[list[int]]:
    """Token ids of texts; the only control tokens among them are those that the tokenizer itself adds around each text.

    Special tokens are split like other text (`split_special_tokens`). A vocabulary that holds them as ordinary words,
    as T5's does, would still find them; what it finds is taken apart into characters.

    Args:
        tokenizer: a Hugging Face tokenizer.
        texts: R texts.
        add_special_tokens: let the tokenizer add its start and end tokens around each text.
        max_length: cut longer rows off, the added tokens stay; None cuts nothing.

    Returns:
        R lists of ids. A text without control tokens in it gets the ids that the tokenizer gives by default.
    """
    options: dict[str, Any] = {"truncation": True, "max_length": max_length} if max_length is not None else {}
    options["add_special_tokens"] = add_special_tokens
    rows: list[list[int]] = []
    same: dict[int, int] = {}  # an id is one number however often it occurs: 8 bytes a token instead of 36
    for start in range(0, len(texts), TOGETHER):
        part = _plain_token_ids(tokenizer, texts[start : start + TOGETHER], options)
        rows += [[same.setdefault(token, token) for token in row] for row in part]
    return rows


def _plain_token_ids(tokenizer: Any, texts: Sequence[str], options: Mapping[str, Any]) -> list[list[int]]:
    """What `plain_token_ids` gives of some texts, by options of the tokenizer."""
    adds, max_length = options["add_special_tokens"], options.get("max_length")
    encoded = tokenizer(
        list(texts),
        split_special_tokens=True,
        return_special_tokens_mask=adds,
        return_attention_mask=False,
        verbose=False,
        **options,
    )
    rows: list[list[int]] = [list(ids) for ids in encoded["input_ids"]]
    control = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    added = encoded["special_tokens_mask"] if adds else [[0] * len(row) for row in rows]
    for i, (row, mask) in enumerate(zip(rows, added, strict=True)):
        if any(token in control and not ours for token, ours in zip(row, mask, strict=True)):
            rows[i] = _taken_apart(tokenizer, row, mask, control)[:max_length]
            if max_length is not None and len(rows[i]) == max_length and mask[-1]:
                rows[i][-1] = row[-1]  # the end token that the tokenizer has added stays the last
    return rows


def _taken_apart(tokenizer: Any, row: Sequence[int], mask: Sequence[int], control: set[int]) -> list[int]:
    """The row with every control token that the tokenizer has not added replaced by those of its characters."""
    result: list[int] = []
    for token, ours in zip(row, mask, strict=True):
        if ours or token not in control:
            result.append(token)
            continue
        characters = tokenizer.convert_ids_to_tokens(int(token))
        pieces = tokenizer(list(characters), add_special_tokens=False, split_special_tokens=True)["input_ids"]
        result += [piece for ids in pieces for piece in ids if piece not in control]
    return result


def special_tokens(tokenizer: Any) -> list[str]:
    """The texts that a Hugging Face tokenizer reads as control tokens, longest first."""
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    tokens = {*tokenizer.all_special_tokens, *(token.content for token in added if token.special)}
    return sorted(tokens, key=lambda token: (-len(token), token))


def literal_texts(tokenizer: Any, *more: str) -> Callable[[str], str]:
    """A function that writes control tokens in a text apart (`</s>` as `< /s>`), so that they are read as words.

    Any other text comes back as it was, so its tokens are the same. A special token of one character stays.

    Args:
        tokenizer: whose special tokens are written apart.
        more: other texts that must not stand in a text, at least two characters each.
    """
    tokens = [token for token in (*special_tokens(tokenizer), *more) if len(token) > 1]
    if not tokens:
        return lambda text: text
    pattern = re.compile("|".join(map(re.escape, sorted(tokens, key=len, reverse=True))))

    def literal(text: str) -> str:
        while (replaced := pattern.sub(lambda match: f"{match[0][0]} {match[0][1:]}", text)) != text:
            text = replaced  # `<<pad>pad>` holds another one once the first is apart
        return text

    return literal
