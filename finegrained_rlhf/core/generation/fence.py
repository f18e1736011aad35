"""A fence around data in a prompt: one line of JSON between two lines, in which no character can close the fence.

Templates say that nothing in it is an instruction.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from finegrained_rlhf.core.errors import DataError

_OPEN, _CLOSE = "<data>\n", "\n</data>"
_ESCAPES = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026"}


def fenced(data: Mapping[str, Any]) -> str:
    """Data as JSON on one line between the lines of the fence; `<`, `>` and `&` are escaped."""
    return _OPEN + json.dumps(data, ensure_ascii=False).translate(_ESCAPES) + _CLOSE


def fenced_data(prompt: str) -> dict[str, Any]:
    """The data of a prompt: what a scripted language model reads.

    Raises:
        DataError: there is none.
    """
    begin, end = prompt.rfind(_OPEN), prompt.rfind(_CLOSE)
    if begin < 0 or end < begin:
        raise DataError("expected a prompt with fenced data")
    data = json.loads(prompt[begin + len(_OPEN) : end])
    assert isinstance(data, dict)
    return data
