"""Checks of values that come from files: most give the value back, or raise a `DataError` that names the field.

Readers add file and record (`DataError.at`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeGuard, TypeVar

from finegrained_rlhf.core.errors import DataError


class Named(Protocol):
    """A record with an id."""

    @property
    def id(self) -> str:
        """Its own in its file."""


Record = TypeVar("Record", bound=Named)


def is_number(value: object) -> TypeGuard[float]:
    """True for a finite int or float; False for everything else, booleans and numbers that no float holds included."""
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False


def is_time(value: object) -> bool:
    """Whether it is a number of seconds since 1970 (UTC) that a date can show: until the end of the year 9999."""
    return is_number(value) and 0 <= value <= 253_402_300_799


def require(condition: bool, problem: str, field: str) -> None:
    """Raise `DataError(problem, field=field)` unless `condition` holds."""
    if not condition:
        raise DataError(problem, field=field)


def require_text(value: object, field: str, empty: bool = False) -> str:
    """`value` as a string that can be written as UTF-8; blank strings only where `empty` allows them."""
    if not isinstance(value, str):
        raise DataError(f"expected text, got {type(value).__name__}", field=field)
    blank = "nothing but white space" if value else "an empty string"
    require(empty or bool(value.strip()), f"expected some text, got {blank}", field)
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(f"holds a lone surrogate at character {error.start}", field=field) from None
    return value


def get_field(row: Mapping[str, Any], key: str, prefix: str = "") -> Any:
    """`row[key]`, or a DataError that names the field and the ones that are there."""
    if key not in row:
        present = ", ".join(map(str, row)) or "none"
        raise DataError(f"missing field (fields present: {present})", field=f"{prefix}{key}")
    return row[key]


def text_list(value: Any, field: str) -> list[str]:
    """`value` as a list of strings (blank ones allowed)."""
    require(isinstance(value, list), f"expected a list of texts, got {type(value).__name__}", field)
    return [require_text(item, f"{field}[{i}]", empty=True) for i, item in enumerate(value)]


def as_object(value: Any, field: str) -> Mapping[str, Any]:
    """`value` as a JSON object."""
    require(isinstance(value, Mapping), f"expected an object, got {type(value).__name__}", field)
    return value


def as_list(value: Any, field: str) -> list[Any]:
    """`value` as a JSON list."""
    require(isinstance(value, list), f"expected a list, got {type(value).__name__}", field)
    return value


def as_index(value: Any, field: str) -> int:
    """`value` as a whole number of 0 or more."""
    right = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    require(right, f"expected a whole number of 0 or more, got {value!r}", field)
    return int(value)


def as_flag(value: Any, field: str) -> bool | None:
    """`value` as true, false or null."""
    require(value is None or isinstance(value, bool), f"expected true, false or null, got {value!r}", field)
    return value


def records_by_id(
    rows: Iterable[Mapping[str, Any]], parse: Callable[[Mapping[str, Any], int], Record], file: str | Path
) -> dict[str, Record]:
    """The records of a file's rows by their ids, in order; `parse` makes one of a row and its number (from 0).

    Raises:
        DataError: naming file and record: `parse` refuses a row, or an id occurs twice.
    """
    records: dict[str, Record] = {}
    for number, row in enumerate(rows):
        try:
            record = parse(row, number)
            require(record.id not in records, f"id {record.id!r} occurs twice", "id")
        except DataError as error:
            raise error.at(file=file, record=number) from None
        records[record.id] = record
    return records
