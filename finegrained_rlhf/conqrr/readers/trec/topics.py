"""A published file of TREC's topics: one JSON array, a conversation each.

Each reader says how a topic is named, and what its turns are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from finegrained_rlhf.conqrr.readers.base import PublishedTurn, examples_of
from finegrained_rlhf.conqrr.records import RewriteExample
from finegrained_rlhf.core.checks import as_object, require
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json


def topics_of(
    path: str | Path,
    name_of: Callable[[Mapping[str, Any]], str],
    turns_of: Callable[[str, Mapping[str, Any]], Sequence[PublishedTurn]],
    notes: Counter[str],
    once: bool = True,
) -> Iterator[tuple[str, list[RewriteExample]]]:
    """Name and examples of each topic, in the order of the file.

    Args:
        path: the file.
        name_of: a topic's name.
        turns_of: a topic's turns, by its name and its record.
        notes: see `examples_of`.
        once: whether a topic stands in the file once.

    Raises:
        DataError: no array, or naming file, record (the topic, or its place from 0 where it may occur twice or has no
            name) and field: a damaged topic, or one that occurs twice.
    """
    topics = read_json(path)
    if not isinstance(topics, list):
        raise DataError(f"expected a JSON array of topics, got {type(topics).__name__}", file=path)
    names: set[str] = set()
    for i, value in enumerate(topics):
        record: str | int = i
        try:
            topic = as_object(value, "(topic)")
            name = name_of(topic)
            if once:
                record = name
                require(name not in names, f"topic {name} occurs twice", "number")
            names.add(name)
            examples = examples_of(name, turns_of(name, topic), notes)
        except DataError as error:
            raise error.at(file=path, record=record) from None
        yield name, examples
