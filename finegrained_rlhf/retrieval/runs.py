"""Runs and judgements in TREC's file formats, in the order in which trec_eval reads them.

trec_eval ignores the rank column of a run: it compares scores in single precision, and equal ones by document id,
descending in the bytes of UTF-8. Runs are brought into that order before they are written and after they are read, so
that what a file says is what is counted.

White space separates the columns, so an id that holds some is written as `quoted:` and the id with white space and `%`
percent-encoded (`a b` as `quoted:a%20b`), the same in runs and in judgements, and read back as it was. trec_eval breaks
ties among such ids by their written form. Ids without white space stand as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote, unquote

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import atomic_path
from finegrained_rlhf.retrieval.protocol import Hit

Run = Mapping[str, Sequence[Hit]]
"""What was found for each turn, by the turn's id."""

Judgements = Mapping[str, Mapping[str, int]]
"""How relevant which passages are to each turn, by the ids of turn and passage; gold is 1 or more."""

_QUOTED = "quoted:"
_SPACE = re.compile(r"\s")


def in_trec_order(hits: Sequence[Hit]) -> list[Hit]:
    """The hits as trec_eval orders them: by score in single precision, descending, then by id, descending.

    Returns:
        Hits whose scores are numbers of single precision.

    Raises:
        DataError: a score is not a finite number of single precision, or an id occurs twice.
    """
    import numpy as np

    rounded = []
    for hit in hits:
        with np.errstate(over="ignore"):
            score = float(np.float32(hit.score))
        if not np.isfinite(score):
            raise DataError(f"expected a finite score, got {hit.score}", record=hit.id, field="score")
        rounded.append(Hit(hit.id, score + 0.0))  # −0.0 becomes 0.0: they tie, and are printed alike
    if len({hit.id for hit in rounded}) < len(rounded):
        ids = [hit.id for hit in rounded]
        raise DataError("this passage is found twice for one turn", record=next(i for i in ids if ids.count(i) > 1))
    return sorted(rounded, key=lambda hit: (hit.score, hit.id), reverse=True)


def write_trec_run(path: str | Path, run: Run, name: str) -> None:
    """Write lines `turn Q0 passage rank score name`, atomically, ranks from 1; scores keep all their digits.

    A turn without hits leaves no line.

    Raises:
        DataError: an id is blank, the name of the run is blank or holds white space; or `in_trec_order`'s.
    """
    if not name or name.split() != [name]:
        raise DataError(f"the name of the run: expected a text without white space, got {name!r}")
    with atomic_path(path) as temporary, open(temporary, "w", encoding="utf-8") as stream:
        for turn, hits in run.items():
            column = written_id(turn)
            for rank, hit in enumerate(_ordered(hits, turn), 1):
                stream.write(f"{column} Q0 {written_id(hit.id)} {rank} {hit.score!r} {name}\n")


def read_trec_run(path: str | Path) -> dict[str, list[Hit]]:
    """Read a run, by turn in the order of the file; each turn's hits in trec_eval's order.

    Raises:
        DataError: no such file, a line of another form (lines count from 1), or `in_trec_order`'s.
    """
    by_turn: dict[str, list[Hit]] = {}
    for number, (turn, _, passage, _, score, _) in _lines(path, "turn Q0 passage rank score name"):
        try:
            by_turn.setdefault(read_id(turn), []).append(Hit(read_id(passage), float(score)))
        except ValueError:
            raise DataError(f"expected a number, got {score!r}", file=f"{path}:{number}", field="score") from None
    try:
        return {turn: _ordered(hits, turn) for turn, hits in by_turn.items()}
    except DataError as error:
        raise error.at(file=path) from None


def write_judgements(path: str | Path, judgements: Judgements) -> None:
    """Write qrels, lines `turn 0 passage relevance`, atomically. A turn without judgements leaves no line.

    Raises:
        DataError: an id is blank.
    """
    with atomic_path(path) as temporary, open(temporary, "w", encoding="utf-8") as stream:
        for turn, passages in judgements.items():
            column = written_id(turn)
            for passage, relevance in passages.items():
                stream.write(f"{column} 0 {written_id(passage)} {relevance}\n")


def read_judgements(path: str | Path) -> dict[str, dict[str, int]]:
    """Read qrels.

    Raises:
        DataError: no such file, a line of another form, or a passage that is judged twice for one turn.
    """
    judgements: dict[str, dict[str, int]] = {}
    for number, (turn, _, passage, relevance) in _lines(path, "turn 0 passage relevance"):
        turn, passage = read_id(turn), read_id(passage)
        of_turn = judgements.setdefault(turn, {})
        if passage in of_turn:
            raise DataError(f"{passage} is judged twice for {turn}", file=f"{path}:{number}", field="passage")
        try:
            of_turn[passage] = int(relevance)
        except ValueError:
            problem = f"expected a whole number, got {relevance!r}"
            raise DataError(problem, file=f"{path}:{number}", field="relevance") from None
    return judgements


def written_id(id: str) -> str:
    """The id of a turn or passage as a column of a TREC file.

    Raises:
        DataError: it is blank.
    """
    if not id.strip():
        raise DataError(f"expected the id of a turn or a passage, got blank text {id!r}")
    return _quoted(id) if _SPACE.search(id) or read_id(id) != id else id


def read_id(column: str) -> str:
    """The id that `written_id` made a column of; any other column is an id as it stands."""
    if not column.startswith(_QUOTED):
        return column
    id = unquote(column.removeprefix(_QUOTED), errors="replace")
    needed = _SPACE.search(id) or read_id(id) != id
    return id if needed and _quoted(id) == column else column


def _quoted(id: str) -> str:
    return _QUOTED + re.sub(r"[%\s]", lambda match: quote(match[0], safe=""), id)


def _ordered(hits: Sequence[Hit], turn: str) -> list[Hit]:
    try:
        return in_trec_order(hits)
    except DataError as error:
        raise DataError(f"turn {turn}: {error.problem}", record=error.record, field=error.field) from None


def _lines(path: str | Path, form: str) -> Iterator[tuple[int, list[str]]]:
    """The columns of each line that is not blank, with the line's number from 1."""
    width = len(form.split())
    try:
        with open(path, encoding="utf-8", newline="\n") as stream:
            for number, line in enumerate(stream, 1):
                columns = line.split()
                if columns and len(columns) != width:
                    problem = f"expected {width} columns ({form}), got {len(columns)}"
                    raise DataError(problem, file=f"{path}:{number}")
                if columns:
                    yield number, columns
    except (FileNotFoundError, IsADirectoryError):
        raise DataError("no such file", file=path) from None
    except UnicodeDecodeError as error:
        raise DataError(f"not UTF-8 text ({error.reason} at byte {error.start})", file=path) from None
