"""Names and texts of a protocol's records, as long as a memory of users takes them."""

from __future__ import annotations

from finegrained_rlhf.core.checks import require, require_text
from finegrained_rlhf.core.generation.protocol import LONGEST_TEXT

NAME_BYTES = 200
"""Of an id or a user: a memory takes 256, of which a protocol needs some for itself."""


def require_name(value: object, field: str) -> str:
    """`value` as a name that a memory can keep, however a protocol completes it.

    Raises:
        DataError: it is no text, or has too many bytes.
    """
    name = require_text(value, field)
    require(len(name.encode()) <= NAME_BYTES, f"expected at most {NAME_BYTES} bytes, got {len(name.encode())}", field)
    return name


def require_passage(value: object, field: str) -> str:
    """`value` as a text that an agent reads whole.

    Raises:
        DataError: it is no text, or has too many characters.
    """
    text = require_text(value, field)
    require(len(text) <= LONGEST_TEXT, f"expected at most {LONGEST_TEXT:,} characters, got {len(text):,}", field)
    return text
