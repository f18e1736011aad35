"""How two trees of results differ: tensors by name, JSON and YAML by key, tables and texts by cell, the rest by bytes.

Knows files. Does not know what wrote them.
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from safetensors.torch import load_file
from torch import Tensor

from finegrained_rlhf.core.errors import ConfigError

EXCLUSIONS = Path(__file__).with_name("exclusions.toml")
_ABSENT = object()
_SILENT_TAGS = ("script", "style", "svg")
_HEADINGS = ("h1", "h2", "h3", "h4")


@dataclass(frozen=True)
class Difference:
    """One value that is not the same.

    Attributes:
        name: `FILE: NAME` of a value, or `FILE`.
        what: both sides in words.
        size: the largest absolute difference of numbers; None where they are no numbers, or one is absent.
    """

    name: str
    what: str
    size: float | None = None


@dataclass(frozen=True)
class Comparison:
    """What comparing two trees gave.

    Attributes:
        compared: how many values both sides have and were compared.
        differences: in the order of files.
    """

    compared: int
    differences: tuple[Difference, ...]


@dataclass(frozen=True)
class Exclusions:
    """What is not compared.

    Attributes:
        patterns: each must match a whole name to leave it out.
        added: patterns of what is left out where the new side alone has it.
    """

    patterns: tuple[re.Pattern[str], ...] = ()
    added: tuple[re.Pattern[str], ...] = ()

    @staticmethod
    def read(path: Path = EXCLUSIONS) -> Exclusions:
        """The committed ones; each says why.

        Raises:
            ConfigError: one has no pattern that can be read, or no reason.
        """
        patterns: dict[bool, list[re.Pattern[str]]] = {False: [], True: []}
        for row in tomllib.loads(path.read_text(encoding="utf-8"))["excluded"]:
            if set(row) - {"only"} != {"pattern", "why"} or row.get("only", "new") != "new":
                raise ConfigError(f"{path.name}: {row}: expected pattern and why, and perhaps only = 'new'")
            try:
                patterns["only" in row].append(re.compile(row["pattern"], re.DOTALL))
            except re.error as error:
                raise ConfigError(f"{path.name}: {row['pattern']!r}: {error}") from None
        return Exclusions(tuple(patterns[False]), tuple(patterns[True]))

    def __contains__(self, name: str) -> bool:
        return any(pattern.fullmatch(name) for pattern in self.patterns)

    def leave_out_added(self, name: str) -> bool:
        """Whether what the new side alone has by this name is left out."""
        return any(pattern.fullmatch(name) for pattern in self.added)


@dataclass(frozen=True)
class Tree:
    """The results of one side.

    Attributes:
        root: directory.
        words: what stands in texts for places of this side alone: path → word.
    """

    root: Path
    words: Mapping[str, str] = field(default_factory=dict)

    def files(self) -> dict[str, Path]:
        """Its files by path below the root."""
        return {path.relative_to(self.root).as_posix(): path for path in sorted(self.root.rglob("*")) if path.is_file()}

    def text(self, path: Path) -> str:
        """The text of a file, with words in place of this side's paths, the longest first."""
        text = path.read_text(encoding="utf-8", errors="surrogateescape")
        for place in sorted(self.words, key=len, reverse=True):
            text = text.replace(place, self.words[place])
        return text


def compare_trees(base: Tree, new: Tree, exclusions: Exclusions = Exclusions(), prefix: str = "") -> Comparison:
    """All differences of two trees.

    Args:
        base: one side.
        new: the other.
        exclusions: names that are left out.
        prefix: put before every name, for the exclusions too.
    """
    left, right = base.files(), new.files()
    differences, compared = [], 0
    for file in sorted({*left, *right}):
        name = prefix + file
        if name in exclusions:
            continue
        if file not in left or file not in right:
            differences.append(Difference(name, f"only in {'new' if file in right else 'base'}"))
            continue
        old, now = read_values(base, left[file]), read_values(new, right[file])
        for key in [*old, *(key for key in now if key not in old)]:
            full = f"{name}: {key}" if key else name
            if full in exclusions or (key not in old and exclusions.leave_out_added(full)):
                continue
            compared += key in old and key in now
            if changed := difference(full, old.get(key, _ABSENT), now.get(key, _ABSENT)):
                differences.append(changed)
    return Comparison(compared, tuple(differences))


def difference(name: str, base: Any, new: Any) -> Difference | None:
    """How two values differ; None where they are equal, bit by bit where they are tensors. 4 and 4.0 are."""
    if base is _ABSENT or new is _ABSENT:
        return Difference(
            name, f"only in {'new' if base is _ABSENT else 'base'}: {_shown(new if base is _ABSENT else base)}"
        )
    if isinstance(base, Tensor) and isinstance(new, Tensor):
        return _tensor_difference(name, base, new)
    numbers = _number(base), _number(new)
    alike = type(base) is type(new) or {type(base), type(new)} == {int, float}
    if alike and (base == new or (base != base and new != new)):
        return None
    if numbers[0] is None or numbers[1] is None:
        return Difference(name, f"{_shown(base)} → {_shown(new)}")
    return Difference(name, f"{_shown(base)} → {_shown(new)}", abs(numbers[0] - numbers[1]))


def _tensor_difference(name: str, base: Tensor, new: Tensor) -> Difference | None:
    if base.shape != new.shape or base.dtype != new.dtype:
        return Difference(name, f"{base.dtype} {list(base.shape)} → {new.dtype} {list(new.shape)}")
    old, now = (side.reshape(-1).view(torch.uint8) for side in (base.contiguous(), new.contiguous()))
    if torch.equal(old, now):
        return None
    apart = (base.double() - new.double()).abs()
    count = int((base != new).sum())
    return Difference(name, f"{count} of {base.numel()} numbers differ", float(apart.max()))


def _number(value: Any) -> float | None:
    """A number, or a text that is one, perhaps with a percent sign or separators."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value)
    try:
        return float(value.strip().replace(",", "").removesuffix("%")) if isinstance(value, str) else None
    except ValueError:
        return None


def _shown(value: Any) -> str:
    text = f"tensor {list(value.shape)}" if isinstance(value, Tensor) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def read_values(tree: Tree, path: Path) -> dict[str, Any]:
    """The values of a file by name; of one that is none of the known kinds its hash, without a name."""
    reader = _READERS.get(path.suffix)
    try:
        return dict(reader(tree, path)) if reader else {"": hashlib.sha256(path.read_bytes()).hexdigest()}
    except (ValueError, yaml.YAMLError):  # no such text after all
        return {"": hashlib.sha256(path.read_bytes()).hexdigest()}


def _tensors(tree: Tree, path: Path) -> Iterator[tuple[str, Any]]:
    yield from load_file(path).items()


def _arrays(tree: Tree, path: Path) -> Iterator[tuple[str, Any]]:
    loaded = np.load(path, allow_pickle=False)
    if isinstance(loaded, np.ndarray):
        yield "array", _as_tensor(loaded)
    else:
        for name in loaded.files:
            yield name, _as_tensor(loaded[name])


def _as_tensor(array: np.ndarray) -> Any:
    return torch.from_numpy(array) if array.dtype.kind in "biuf" and array.dtype != np.uint16 else array.tolist()


def _flat(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from _flat(inner, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list) and value:
        for number, inner in enumerate(value):
            yield from _flat(inner, f"{key}.{number}" if key else str(number))
    else:
        yield key, value if isinstance(value, str | int | float | bool) or value is None else repr(value)


def _json(tree: Tree, path: Path) -> Iterator[tuple[str, Any]]:
    yield from _flat(json.loads(tree.text(path)))


def _json_lines(tree: Tree, path: Path) -> Iterator[tuple[str, Any]]:
    yield from _flat([json.loads(line) for line in tree.text(path).splitlines() if line.strip()])


def _yaml(tree: Tree, path: Path) -> Iterator[tuple[str, Any]]:
    yield from _flat(yaml.safe_load(tree.text(path)))


def _cells(rows: Sequence[Sequence[str]], heads: Sequence[Sequence[str]]) -> Iterator[tuple[str, Any]]:
    """Cells by line and column; a column has the name that stands at its head, where there is one."""
    for number, (row, head) in enumerate(zip(rows, heads, strict=True), start=1):
        for place, cell in enumerate(row):
            yield f"line {number}.{head[place].strip() if place < len(head) else place + 1}", cell.strip()


def _text(tree: Tree, path: Path) -> Iterator[tuple[str, Any]]:
    """A text whose lines may be rows of Markdown tables; a text that is JSON is read as such."""
    text = tree.text(path)
    try:
        yield from _flat(json.loads(text))
        return
    except ValueError:
        rows = [line.strip().strip("|").split("|") for line in text.splitlines()]
    heads: list[list[str]] = []
    for number, row in enumerate(rows):
        if number and len(row) > 1 and re.fullmatch(r"[-:\s]*-[-:\s]*", "".join(row)):
            heads.append(rows[number - 1])  # the line of dashes below the head
        else:
            heads.append(heads[-1] if heads and len(row) > 1 else [])
    yield from _cells(rows, heads)


def _separated(tree: Tree, path: Path) -> Iterator[tuple[str, Any]]:
    rows = list(csv.reader(tree.text(path).splitlines(), delimiter="\t" if path.suffix == ".tsv" else ","))
    yield from _cells(rows, [[], *([rows[0]] * (len(rows) - 1))] if rows else [])


class _Page(HTMLParser):
    """The texts of a page by the heading above them, without scripts, styles and drawings."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: dict[str, str] = {}
        self._silent, self._in_heading, self._heading = 0, False, ""
        self._counts: Counter[str] = Counter()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._silent += tag in _SILENT_TAGS
        self._in_heading = self._in_heading or tag in _HEADINGS

    def handle_endtag(self, tag: str) -> None:
        self._silent -= tag in _SILENT_TAGS
        self._in_heading = self._in_heading and tag not in _HEADINGS

    def handle_data(self, data: str) -> None:
        text = " ".join(data.split())
        if self._silent or not text:
            return
        self._heading = text if self._in_heading else self._heading
        self._counts[self._heading] += 1
        self.texts[f"{self._heading} {self._counts[self._heading]}"] = text


def _html(tree: Tree, path: Path) -> Iterator[tuple[str, Any]]:
    page = _Page()
    page.feed(tree.text(path))
    yield from page.texts.items()


_READERS: Mapping[str, Callable[[Tree, Path], Iterator[tuple[str, Any]]]] = {
    ".safetensors": _tensors,
    ".npy": _arrays,
    ".npz": _arrays,
    ".json": _json,
    ".jsonl": _json_lines,
    ".yaml": _yaml,
    ".md": _text,
    ".txt": _text,
    ".csv": _separated,
    ".tsv": _separated,
    ".html": _html,
}


def largest(differences: Sequence[Difference]) -> float | None:
    """The largest difference in numbers; NaN where one side is NaN; None where none is a number."""
    sizes = [one.size for one in differences if one.size is not None]
    return math.nan if any(map(math.isnan, sizes)) else max(sizes, default=None)
