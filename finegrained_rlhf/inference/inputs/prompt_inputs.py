"""What `finegrained generate` can read: whatever a prompt file or a data set of the Hub holds, and raw text from
standard input.
"""

from __future__ import annotations

import sys
from pathlib import Path

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.markers import DataName
from finegrained_rlhf.feedback.prompt_files import PromptInput, read_prompt_file

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
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"not UTF-8 text ({error.reason} at byte {error.start})", file="standard input") from None


def _from_lines(text: str) -> list[PromptInput]:
    lines = [line.rstrip("\r") for line in text.split("\n")]
    items = [PromptInput(f"line-{number}", line) for number, line in enumerate(lines, start=1) if line.strip()]
    if not items:
        raise DataError("holds no text, expected one prompt a line", file="standard input")
    return items
