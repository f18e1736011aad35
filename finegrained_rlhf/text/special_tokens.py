"""Texts of users, kept from becoming control tokens.

A tokenizer reads `</s>` in a text as the end of sequence, wherever the text comes from. Knows what a tokenizer calls
its special tokens. Does not know inputs or models.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any


def special_tokens(tokenizer: Any) -> list[str]:
    """The texts that a Hugging Face tokenizer reads as control tokens, longest first."""
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    found = {*tokenizer.all_special_tokens, *(token.content for token in added if token.special)}
    return sorted(found, key=lambda token: (-len(token), token))


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
        while (found := pattern.sub(lambda match: f"{match[0][0]} {match[0][1:]}", text)) != text:
            text = found  # `<<pad>pad>` holds another one once the first is apart
        return text

    return literal
