"""PRELUDE's contexts with their sources, and the true preference of each source, as files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from finegrained_lab.protocols.sizes import require_name, require_passage
from finegrained_rlhf.core.checks import as_object, get_field, require, require_text
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json, read_jsonl


@dataclass(frozen=True)
class SourcedContext:
    """A context x_t.

    Attributes:
        id: unique in its file.
        source: d_t, which agents are not told.
        text: what they are.
    """

    id: str
    source: str
    text: str


def read_contexts(path: str | Path) -> list[SourcedContext]:
    """The contexts of a file, one JSON object a line: `id`, `source`, `text`.

    Raises:
        DataError: the file is missing or empty, or a record is not as it should be.
    """
    contexts: list[SourcedContext] = []
    for number, row in enumerate(read_jsonl(path)):
        try:
            values = [require_name(get_field(row, name), name) for name in ("id", "source")]
            values.append(require_passage(get_field(row, "text"), "text"))
            require(all(values[0] != one.id for one in contexts), "expected an id that is used once", "id")
        except DataError as error:
            raise error.at(file=path, record=number) from None
        contexts.append(SourcedContext(*values))
    if not contexts:
        raise DataError("expected at least one context", file=path)
    return contexts


def read_preferences(path: str | Path) -> dict[str, str]:
    """The true preference F(d) by source: one JSON object.

    Raises:
        DataError: the file is missing, or is none of texts.
    """
    try:
        sources = as_object(read_json(path), "sources")
        require(bool(sources), "expected at least one source", "sources")
        return {source: require_text(text, source) for source, text in sources.items()}
    except DataError as error:
        raise error.at(file=path) from None
