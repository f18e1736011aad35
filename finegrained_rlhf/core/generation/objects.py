"""The JSON values that stand in a reply: in fences, behind thinking, among words, with a comma too many."""

from __future__ import annotations

import ast
import json
import re
import warnings
from typing import Any

_LONGEST = 1 << 20  # characters of a reply that is read
_STARTS = 100  # braces at which an object is looked for
_DEPTH = 64  # brackets inside each other
_THINKING = re.compile(r"\s*<(think|thinking|thought|reasoning)>", re.IGNORECASE)
_THOUGHT = re.compile(r"</(think|thinking|thought|reasoning)>", re.IGNORECASE)
_FENCE = re.compile(r"```[\w-]*\s*\n?(.*?)\s*```", re.DOTALL)
_STRING_OR_COMMA = re.compile(r'("(?:[^"\\]|\\.)*")|,(?=\s*[}\]])', re.DOTALL)
_DECODER = json.JSONDecoder(strict=False)  # line ends inside texts are read


def answer_of(reply: str) -> str:
    """A reply without the thinking before it and a fence around what is left; "" where it is thinking alone."""
    reply = reply.strip()
    if not (reply.startswith(("{", "[")) and _document(reply) is not None):
        closed = _THOUGHT.search(reply)
        if closed:
            reply = reply[closed.end() :].strip()
        elif _THINKING.match(reply):
            return ""
    fence = _FENCE.fullmatch(reply)
    return fence[1].strip() if fence else reply


def objects_of(answer: str) -> list[Any]:
    """The JSON values of an answer: the whole of it if it is one, else each object in it, in order.

    A comma before a closing bracket is overlooked. An object in single quotes is read as a Python literal.
    """
    answer = answer[:_LONGEST]
    document = _document(answer)
    if document is not None:
        return [document]
    values, place, tried = [], answer.find("{"), 0
    while place >= 0 and tried < _STARTS:
        tried += 1
        value, end = _object_at(answer, place)
        if value is not None:
            values.append(value)
        place = answer.find("{", end)
    return values


def _document(answer: str) -> Any:
    """The JSON object or list that a text is; None where it is none."""
    if not answer.startswith(("{", "[")) or _too_deep(answer):
        return None
    for text in (answer, _without_commas(answer)):
        try:
            return json.loads(text, strict=False)
        except (ValueError, RecursionError):
            pass
    return None


def _object_at(answer: str, place: int) -> tuple[dict[str, Any] | None, int]:
    """The object that begins at a brace, and where to look for the next one."""
    try:
        value, end = _DECODER.raw_decode(answer, place)
        return value, end
    except (ValueError, RecursionError):
        pass
    closing = _closing_brace(answer, place)
    if closing is None:
        return None, place + 1
    text = answer[place : closing + 1]
    try:
        return json.loads(_without_commas(text), strict=False), closing + 1
    except (ValueError, RecursionError):
        pass
    try:
        with warnings.catch_warnings(action="ignore"):  # of escapes
            value = ast.literal_eval(text)  # literals alone: nothing is executed
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return None, place + 1
    return (value, closing + 1) if isinstance(value, dict) else (None, place + 1)


def _closing_brace(text: str, place: int) -> int | None:
    """Where the brace at a place is closed, texts in quotes left out; None where it is not, or is nested too deep."""
    depth, quote, escaped = 0, "", False
    for index in range(place, len(text)):
        letter = text[index]
        if quote:
            if not escaped and letter == quote:
                quote = ""
            escaped = letter == "\\" and not escaped
        elif letter in "\"'" and text[index - 1] in "{[,: \n\t":
            quote = letter
        elif letter in "{[":
            depth += 1
            if depth > _DEPTH:
                return None
        elif letter in "}]":
            depth -= 1
            if depth == 0:
                return index
    return None


def _too_deep(text: str) -> bool:
    return bool(re.match(rf"(?:\s*[\[{{]){{{_DEPTH}}}", text))


def _without_commas(text: str) -> str:
    return _STRING_OR_COMMA.sub(lambda match: match[1] or "", text)
