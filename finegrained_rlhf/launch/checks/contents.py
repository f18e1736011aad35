"""Whether what a configuration reads holds what it must: models, corpora, indexes and data are opened, none is loaded.

What is there by now is looked at; what a step before will make is not. How a key is looked at, its annotation says
(`ModelName`, `CorpusPath`), or its class: `input_checks: ClassVar[Mapping[str, Callable[[str, Mapping], object]]]`
gives for a key what is called with the path and the mapping that the key stands in, and raises a `FineGrainedError`.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from finegrained_rlhf.core.errors import DataError, FineGrainedError
from finegrained_rlhf.core.fields import Place, places
from finegrained_rlhf.core.files import read_json
from finegrained_rlhf.core.markers import Reads
from finegrained_rlhf.launch.checks.paths import Made
from finegrained_rlhf.models.weights.files import check_model, check_tokenizer

InputCheck = Callable[[str, Mapping[str, Any]], object]
_CLOSED_BY = {b"[": b"]", b"{": b"}"}
_END = 1024  # bytes of a file, in which its last bracket is looked for
_PASSED: set[tuple[InputCheck, str, int, int]] = set()
"""Files that a check has passed, by size and time of the last change: the steps of an experiment read the same ones."""


def problems_of_contents(config: Mapping[str, Any], made: Made | None = None) -> Iterator[str]:
    """What is wrong with what a configuration reads, one line each.

    Args:
        config: plain containers, resolved, of classes that can be imported.
        made: what steps before the job will have made; it is not looked at.
    """
    for place in places(config):
        check = _check_of(place)
        if check is None:
            continue
        for path in place.paths:
            if not Path(path).exists() or (made is not None and path in made):
                continue
            try:
                _passes(check, path, place.holder)
            except FineGrainedError as error:
                yield f"{place.key}: {error}"


def _passes(check: InputCheck, path: str, holder: Mapping[str, Any]) -> None:
    """Call a check; of a file, once while it does not change."""
    status = Path(path).stat()
    key = (check, str(Path(path).resolve()), status.st_size, status.st_mtime_ns)
    if key not in _PASSED:
        check(path, holder)
        if Path(path).is_file():
            _PASSED.add(key)


def _check_of(place: Place) -> InputCheck | None:
    own = _own_checks(str(place.holder["_target_"]))
    read = place.mark(Reads)
    return own.get(place.name, None if read is None else _CHECKS[read.what])


@cache
def _own_checks(target: str) -> Mapping[str, InputCheck]:
    """The `input_checks` of the class of a `_target_`."""
    module, _, name = target.rpartition(".")
    try:
        return dict(getattr(getattr(importlib.import_module(module), name), "input_checks", {}))
    except (ImportError, AttributeError):
        return {}  # a class within a class, which none of the project's is


def _check_corpus(path: str, holder: Mapping[str, Any]) -> None:
    from finegrained_rlhf.retrieval.corpus import Corpus

    next(iter(Corpus(path)), None)


def _check_index(path: str, holder: Mapping[str, Any]) -> None:
    from finegrained_rlhf.retrieval.record import read_index_record

    read_index_record(path)


def _check_records(path: str, holder: Mapping[str, Any]) -> None:
    """Require of a `.jsonl` file that its first line is an object, of a `.json` file that a bracket is closed.

    Whatever else may be wrong with them, their reader says.

    Raises:
        DataError: it is not so.
    """
    file = Path(path)
    if not file.is_file() or file.suffix not in (".json", ".jsonl"):
        return
    with open(file, "rb") as stream:
        lines = file.suffix == ".jsonl"
        first = next((line for line in stream if line.strip()), b"") if lines else stream.read(_END).strip()
        stream.seek(max(file.stat().st_size - _END, 0))
        last = stream.read().strip()[-1:]
    if lines:
        try:
            right = not first or isinstance(json.loads(first), dict)
        except (ValueError, RecursionError):
            right = False
        if not right:
            raise DataError("expected a JSON object a line", file=file, record=0)
    elif first[:1] in _CLOSED_BY and last != _CLOSED_BY[first[:1]]:
        read_json(file)


_CHECKS: dict[str, InputCheck] = {
    "file": _check_records,
    "dataset": _check_records,
    "model": check_model,
    "tokenizer": check_tokenizer,
    "corpus": _check_corpus,
    "index": _check_index,
}
