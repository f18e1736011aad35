"""What a retriever can be asked for a question in a dialogue, without a model; and files of what a model wrote."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from finegrained_rlhf.conqrr.records import RewriteExample
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_jsonl, write_jsonl
from finegrained_rlhf.feedback.outputs import read_texts

QueryKind = Literal["question", "context", "rewrite", "asked", "published"]


def query_of(example: RewriteExample, kind: QueryKind) -> str | None:
    """A query of a question without a model; None where there is none of this kind.

    `question`: the question, a dialogue's first one replaced by its rewrite as in `RewriteExample`. `context`: all
    turns up to it. `rewrite`: the human's. `asked`: the question as it was asked, nothing replaced. `published`: all
    that the published record has, what the dialogue is about included, nothing replaced.

    A dialogue is its turns, newest first, with a space between them: the policies' separator is no word to search for.
    """
    if kind == "rewrite":
        return example.rewrite
    if kind == "asked":
        return example.published[-1] if example.published else example.question
    if kind == "published" and example.published:
        return " ".join(text for text in reversed(example.published) if text.strip())
    return example.question if kind == "question" else " ".join(example.turns)


def read_rewrites(path: str | Path) -> dict[str, str]:
    """Rewrites by the id of their question, from JSON lines with `id` and `rewrite`; other fields are ignored.

    A rewrite may be blank: a policy can stop at once.

    Raises:
        DataError: naming file, record (from 0) and field; an id that occurs twice, no line at all.
    """
    return read_texts(path, "rewrite")


def read_cut(path: str | Path) -> frozenset[str] | None:
    """Ids of the rewrites that the limit of tokens cut off: lines with `finished: false`; None where no line says.

    Raises:
        DataError: no such file, a broken line, or `finished` is neither true nor false.
    """
    marked = [row for row in read_jsonl(path) if row.get("finished") is not None]
    for row in marked:
        if not isinstance(row["finished"], bool):
            problem = f"expected true or false, got {row['finished']!r}"
            raise DataError(problem, file=path, record=str(row.get("id")), field="finished")
    return frozenset(row["id"] for row in marked if not row["finished"]) if marked else None


def write_rewrites(path: str | Path, rewrites: Mapping[str, str]) -> None:
    """Write `read_rewrites`' format, atomically."""
    write_jsonl(path, ({"id": name, "rewrite": text} for name, text in rewrites.items()))
