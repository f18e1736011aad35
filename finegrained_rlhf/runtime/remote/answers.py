"""What an answer over HTTP says: whether another try may help, how long to wait before it, and its JSON."""

from __future__ import annotations

import json
import random
from typing import Any

BUSY = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Answers after which the same request may succeed."""

_SHOWN = 300  # characters of an answer in an error


class UnintelligibleAnswer(Exception):
    """An answer that does not hold what it should; the same request may succeed."""


def stream_choices(line: str) -> list[dict[str, Any]]:
    """The choices of one line of a stream of events; none of a line that has none, such as `data: [DONE]`."""
    try:
        choices = json.loads(line.removeprefix("data:"))["choices"]
    except (ValueError, RecursionError, KeyError, TypeError):
        return []
    return [choice for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []


def json_object(answer: bytes) -> dict[str, Any]:
    """The JSON object of an answer.

    Raises:
        UnintelligibleAnswer: it is none.
    """
    try:
        parsed = json.loads(answer)
    except (ValueError, RecursionError):
        raise UnintelligibleAnswer(f"an answer that is no JSON: {excerpt(answer)}") from None
    if not isinstance(parsed, dict):
        raise UnintelligibleAnswer(f"an answer that is no JSON object: {excerpt(answer)}")
    return parsed


def excerpt(answer: bytes) -> str:
    """The beginning of an answer on one line, for an error."""
    return beginning_of(answer.decode("utf-8", "replace")) or "an empty answer"


def beginning_of(text: str) -> str:
    """The beginning of a text on one line."""
    text = " ".join(text.split())
    return text[:_SHOWN] + ("…" if len(text) > _SHOWN else "")


def retry_after(value: str | None) -> float | None:
    """Seconds that a `Retry-After` header asks for; None where it is absent or a date."""
    return float(value) if value is not None and value.isascii() and value.isdigit() else None


def wait_before(tries: int, backoff_s: float, longest_s: float, retry_after_s: float | None = None) -> float:
    """Seconds to wait before the next try: doubled with each, or what is asked for where that is more, up to a limit.

    Chance takes or adds up to a quarter, so that not all come back at once; of what is asked for it takes nothing.

    Args:
        tries: made so far, from 1.
        backoff_s: seconds before the second try.
        longest_s: most seconds before chance, also where the server asks for more.
        retry_after_s: seconds that the server asks for.
    """
    doubled = min(backoff_s * 2.0 ** min(tries - 1, 30), longest_s) * random.uniform(0.75, 1.25)
    wanted = min(retry_after_s or 0.0, longest_s) * random.uniform(1.0, 1.25)
    return max(doubled, wanted)
