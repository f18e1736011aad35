"""What a reply must hold, as a JSON schema for endpoints and as a reader of what language models make of it.

A reply is read where it has one reading: a number for a text, another case, a list for one text. It is never guessed
between two. Its JSON may stand in fences, behind thinking, among words, with a comma too many.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from finegrained_rlhf.core.checks import is_number
from finegrained_rlhf.core.generation.outcomes import UnreadableReplyError

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


_SURROGATE = re.compile("[\ud800-\udfff]")  # half a pair is no character: no file can hold it


class _Misfit(Exception):
    """A value is not what its field asks for; the message quotes nothing of it."""


@dataclass(frozen=True)
class Text:
    """A text without white space around it. Numbers are texts; a list of texts is joined by commas.

    Attributes:
        longest: most characters.
        may_be_empty: also null is an empty text.
        optional: whether the field may be missing, which is an empty text, too.
    """

    longest: int
    may_be_empty: bool = True
    optional: bool = False

    def json_schema(self) -> dict[str, Any]:
        """The schema of the field."""
        return {"type": "string"}

    def form(self) -> str:
        """An example for a prompt."""
        return '"…"'

    def read(self, value: Any) -> str:
        """The text of a JSON value."""
        if isinstance(value, list) and all(isinstance(part, str) for part in value):
            value = ", ".join(part.strip() for part in value if part.strip())
        text = "" if value is None else _scalar(value)
        if text is None or (value is None and not self.may_be_empty):
            raise _Misfit("expected a text")
        if not text and not self.may_be_empty:
            raise _Misfit("expected a text that is not empty")
        if len(text) > self.longest:
            raise _Misfit(f"{len(text)} characters, more than {self.longest}")
        return text


@dataclass(frozen=True)
class Choice:
    """One of some values.

    Case, a full stop, quotes, `_` for a blank, `1` for "1", `true` for "yes" and words behind the value ("1. tea",
    "Yes, it is") are no other value; where two of the values are named it is read as neither.

    Attributes:
        values: that it may have, as they are given back.
    """

    values: tuple[str, ...]

    def json_schema(self) -> dict[str, Any]:
        """The schema of the field."""
        return {"type": "string", "enum": list(self.values)}

    def form(self) -> str:
        """An example for a prompt."""
        return " | ".join(f'"{value}"' for value in self.values)

    def read(self, value: Any) -> str:
        """The value that is chosen."""
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        meant: tuple[str, ...]
        if isinstance(value, bool):
            meant = ("true", "yes") if value else ("false", "no")
        else:
            text = _scalar(value)
            if text is None:
                raise _Misfit(f"expected one of {', '.join(self.values)}")
            if text in self.values:
                return text
            meant = {"true": ("true", "yes"), "false": ("false", "no")}.get(_plain(text), (_plain(text),))
        equal = [known for known in self.values if _plain(known) in meant]
        if not equal and not isinstance(value, bool):
            equal = self._first_named(_plain(str(value)))
        if len(equal) != 1:
            raise _Misfit(f"expected one of {', '.join(self.values)}")
        return equal[0]

    def _first_named(self, text: str) -> list[str]:
        """The values that a text begins with, a mark and other words behind; none where it names another one, too."""
        text = re.sub(r"^(?:option|choice|number|answer|no\.?)?[\s#(]*(?=\d)", "", text)
        first = [
            known
            for known in self.values
            if re.match(re.escape(_plain(known)) + r"(?:$|[).\]]+(?=\s|$)|[:,;—–](?=\s)|\s+[-—–(])", text)
        ]
        if not first:
            return []
        rest = text[len(_plain(first[0])) :]
        others = (known for known in self.values if known not in first)
        return (
            [] if re.match(r"\W*(?:or|and)\b", rest) or any(_names(rest, _plain(other)) for other in others) else first
        )


@dataclass(frozen=True)
class Texts:
    """A list of texts without white space around them; empty ones are left out. Null is none, a single text is a list.

    Attributes:
        longest: most characters of all together.
        most: how many there may be; None: any number.
    """

    longest: int
    most: int | None = None

    def json_schema(self) -> dict[str, Any]:
        """The schema of the field."""
        return {"type": "array", "items": {"type": "string"}}

    def form(self) -> str:
        """An example for a prompt."""
        return '["…", …]'

    def read(self, value: Any) -> tuple[str, ...]:
        """The texts of a JSON value."""
        parts = [] if value is None else value if isinstance(value, list) else [value]
        texts = [_scalar(part) for part in parts]
        if any(text is None for text in texts):
            raise _Misfit("expected a list of texts")
        texts = [text for text in texts if text]
        if (length := sum(len(text or "") for text in texts)) > self.longest:
            raise _Misfit(f"{length} characters, more than {self.longest}")
        if self.most is not None and len(texts) > self.most:
            raise _Misfit(f"{len(texts)} texts, more than {self.most}")
        return tuple(text for text in texts if text)


@dataclass(frozen=True)
class Records:
    """A list of records of some fields. Null is none, a single record is a list.

    Attributes:
        fields: of each record, by name.
        most: how many there may be.
    """

    fields: Mapping[str, Text | Choice]
    most: int = 1000

    def json_schema(self) -> dict[str, Any]:
        """The schema of the field."""
        return {"type": "array", "items": _object_schema(self.fields)}

    def form(self) -> str:
        """An example for a prompt."""
        return f"[{_object_form(self.fields)}, …]"

    def read(self, value: Any) -> tuple[dict[str, Any], ...]:
        """The records of a JSON value."""
        records = [] if value is None else [value] if isinstance(value, dict) else value
        if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
            raise _Misfit("expected a list of objects")
        if len(records) > self.most:
            raise _Misfit(f"{len(records)} objects, more than {self.most}")
        read = []
        for number, record in enumerate(records, start=1):
            try:
                read.append(_read_fields(self.fields, record))
            except _Misfit as misfit:
                raise _Misfit(f"object {number}: {misfit}") from None
        return tuple(read)


Field = Text | Choice | Texts | Records


@dataclass(frozen=True)
class ReplySchema:
    """What a reply must hold: one JSON object with these fields.

    Attributes:
        fields: by name, in the order in which they are to be written.
        check: what fields must satisfy together: takes the values and gives a problem in a sentence, which quotes none
            of them, or None.
        name: of the schema, a word, for endpoints.
    """

    fields: Mapping[str, Field]
    check: Callable[[Mapping[str, Any]], str | None] | None = None
    name: str = "reply"

    def json_schema(self) -> dict[str, Any]:
        """A JSON schema of the object in which every field is required, as strict modes ask."""
        return _object_schema(self.fields)

    def form(self) -> str:
        """The object as an example on one line, for a prompt."""
        return _object_form(self.fields)

    def read(self, reply: str) -> dict[str, Any]:
        """The values of the object in a reply, by field: a text or a choice is a str, a list a tuple.

        Thinking, fences and words around the object are ignored. Where several objects satisfy the schema they must say
        the same. Where the schema is one field, a bare choice or a bare list is read, too.

        Raises:
            UnreadableReplyError: no reading satisfies the schema, or two that differ do.
        """
        answer = answer_of(reply)
        if not answer:
            self._unreadable("the reply is empty, or ends before the answer", reply)
        readings: list[dict[str, Any]] = []
        misfits: list[str] = []
        for value in self._candidates(answer):
            try:
                reading = self._reading(value)
            except _Misfit as misfit:
                misfits.append(str(misfit))
            else:
                readings += [] if reading in readings else [reading]
        if len(readings) == 1:
            return readings[0]
        self._unreadable(
            "the reply has two objects that differ" if readings else (misfits or [_no_object(self.fields)])[-1], reply
        )

    def reads(self, reply: str) -> bool:
        """Whether a reply can be read."""
        try:
            self.read(reply)
        except UnreadableReplyError:
            return False
        return True

    def only_choice(self) -> tuple[str, Choice] | None:
        """The field, by name, where the schema is one choice; None where it asks for more."""
        (name, field), *others = self.fields.items()
        return (name, field) if isinstance(field, Choice) and not others else None

    def _candidates(self, answer: str) -> list[Any]:
        values = objects_of(answer)
        if values or len(self.fields) > 1 or self.only_choice() is None:
            return values
        return [{next(iter(self.fields)): answer}] if len(answer) < 200 else []

    def _reading(self, value: Any) -> dict[str, Any]:
        if isinstance(value, list):
            if len(self.fields) > 1 or not isinstance(next(iter(self.fields.values())), Texts | Records):
                raise _Misfit("expected an object, got a list")
            value = {next(iter(self.fields)): value}
        if isinstance(value, dict) and len(value) == 1 and not _by_name(self.fields, value):
            inner = next(iter(value.values()))
            value = inner if isinstance(inner, dict) else value
        reading = _read_fields(self.fields, value)
        problem = None if self.check is None else self.check(reading)
        if problem:
            raise _Misfit(problem)
        return reading

    def _unreadable(self, problem: str, reply: str) -> NoReturn:
        raise UnreadableReplyError(f"{problem}, in a reply of a language model", reply)


def _read_fields(fields: Mapping[str, Field], value: Any) -> dict[str, Any]:
    """The values of an object. It must have one of the fields at least; lists that it lacks are empty."""
    there = _by_name(fields, value) if isinstance(value, dict) else {}
    if not there:
        raise _Misfit(_no_object(fields))
    read = {}
    for name, field in fields.items():
        if name not in there and not isinstance(field, Texts | Records) and not getattr(field, "optional", False):
            raise _Misfit(f"{name}: missing")
        try:
            read[name] = field.read(there.get(name))
        except _Misfit as misfit:
            raise _Misfit(f"{name}: {misfit}") from None
    return read


def _by_name(fields: Mapping[str, Field], value: Mapping[Any, Any]) -> dict[str, Any]:
    """The values of the fields that an object has; a name in another case counts where it is the only one."""
    there = {}
    for name in fields:
        near = [key for key in value if isinstance(key, str) and _plain(key) == _plain(name)]
        if name in value or len(near) == 1:
            there[name] = value[name if name in value else near[0]]
    return there


def _object_schema(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {name: field.json_schema() for name, field in fields.items()},
        "required": list(fields),
        "additionalProperties": False,
    }


def _object_form(fields: Mapping[str, Any]) -> str:
    return "{" + ", ".join(f'"{name}": {field.form()}' for name, field in fields.items()) + "}"


def _no_object(fields: Mapping[str, Any]) -> str:
    return f"no object with {' and '.join(fields)}"


def _scalar(value: Any) -> str | None:
    """A text or number as a text; None where it is neither, or holds what is no character."""
    if isinstance(value, str):
        return value.strip() if value.isascii() or not _SURROGATE.search(value) else None
    if isinstance(value, bool) or not is_number(value):
        return None
    return str(int(value)) if float(value).is_integer() else str(value)


def _names(rest: str, value: str) -> bool:
    """Whether the words behind a value name another: a word anywhere, a number that is no quantity."""
    word = rf"(?<!\w){re.escape(value)}(?!\w)"
    if value.isdigit():
        word = rf"{word}[).\]:]|(?:[,;/&]|\b(?:or|and))\s*{word}|^\W*{word}\W*$"
    return bool(re.search(word, rest))


def _plain(text: str) -> str:
    """A text for comparison: without case, quotes and full stop around it, blanks for `_`, `-` and white space."""
    return re.sub(r"[\s_-]+", " ", text.strip().strip("\"'`*“”‘’").rstrip(".!").casefold()).strip()
