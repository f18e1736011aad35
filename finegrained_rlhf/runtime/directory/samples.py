"""The responses that a PPO run keeps, one JSON object a line: written by the trainer, read by everything else.

Offsets are in Unicode code points, as everywhere in the project.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeGuard

from finegrained_rlhf.core.checks import is_number
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_jsonl, write_jsonl
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory

QUANTITIES = ("kl", "value", "reward", "advantage")
"""Numbers of a token, in the order in which they are written."""
IMPORTANCE = "importance"
"""One more number of a token, of runs that weigh what another policy drew."""
SampleKind = Literal["step", "validation_step"]


@dataclass(frozen=True)
class SampleSegment:
    """One value of one reward component.

    Attributes:
        component: its name.
        start: first character.
        end: one past the last character.
        raw: the scorer's value.
        weighted: what entered the reward.
        token: number of the token that carries the value; None in files that do not hold it.
        normalised: value after normaliser and aggregation; None in files that do not hold it.
    """

    component: str
    start: int
    end: int
    raw: float
    weighted: float
    token: int | None = None
    normalised: float | None = None


@dataclass(frozen=True)
class SampleTokens:
    """Numbers of a response's T tokens.

    Attributes:
        ends: character at which each ends [T]; not decreasing.
        numbers: by quantity of `QUANTITIES`, a number a token [T]: `kl` is log π − log π_ref in nats, `value` V(s_t),
            `reward` as trained (KL included, whitened where the configuration says so), `advantage` as trained;
            `importance` the weight of its policy loss.
        shares: by reward component, a number a token [T]: its share in `advantage`; `kl` and `baseline` are no
            component's. They add up to `advantage`. Empty in files that do not hold them.
    """

    ends: Sequence[int]
    numbers: Mapping[str, Sequence[float]]
    shares: Mapping[str, Sequence[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class OracleMark:
    """An error that an oracle found in a response.

    Attributes:
        start: first character.
        end: one past the last character.
        label: kind of the error in the oracle's words.
    """

    start: int
    end: int
    label: str


@dataclass(frozen=True)
class SampleRecord:
    """One response of a step, or one greedy answer of a validation.

    Attributes:
        id: of the prompt.
        sample: its number among the prompt's.
        prompt: the prompt's text.
        text: the response.
        segments: of all components.
        tokens: None in files of earlier versions.
        marks: errors that an oracle found; None where none has judged it. Kept in a file of their own (`read_marks`).
        unscored: components that have no score of it; nothing was learnt from the response then.
        corrections: by component that was paid as corrections (`reward.credit=revised`), the number of a token and what
            was paid there, before the weight; the segments of such a component were not paid themselves.
    """

    id: str
    sample: int
    prompt: str
    text: str
    segments: Sequence[SampleSegment] = field(default=())
    tokens: SampleTokens | None = None
    marks: Sequence[OracleMark] | None = None
    unscored: Sequence[str] = ()
    corrections: Mapping[str, Sequence[tuple[int, float]]] = field(default_factory=dict)

    def of(self, component: str) -> list[SampleSegment]:
        """The segments of one component, in order."""
        return [segment for segment in self.segments if segment.component == component]

    def totals(self, component: str) -> tuple[float, float]:
        """Sum of the component's raw and weighted values."""
        segments = self.of(component)
        return sum(s.raw for s in segments), sum(s.weighted for s in segments)

    @property
    def total(self) -> float:
        """Sum of all weighted values."""
        return sum(segment.weighted for segment in self.segments)

    def row(self) -> dict[str, Any]:
        """The line of the file: what is None is left out."""
        segments = [
            {
                **{"component": s.component, "start": s.start, "end": s.end},
                **({} if s.token is None else {"token": s.token}),
                "raw": s.raw,
                **({} if s.normalised is None else {"normalised": s.normalised}),
                "weighted": s.weighted,
            }
            for s in self.segments
        ]
        row = {"id": self.id, "prompt": self.prompt, "sample": self.sample, "response": self.text, "segments": segments}
        row |= {"unscored": list(self.unscored)} if self.unscored else {}
        paid = {name: [list(pair) for pair in pairs] for name, pairs in self.corrections.items()}
        row |= {"corrections": paid} if paid else {}
        if self.tokens is None:
            return row
        shares = {name: list(values) for name, values in self.tokens.shares.items()}
        return {
            **row,
            "tokens": {"ends": list(self.tokens.ends), **{k: list(v) for k, v in self.tokens.numbers.items()}},
            **({"shares": shares} if shares else {}),
        }


def write_samples(path: str | Path, samples: Iterable[SampleRecord]) -> None:
    """Write one response a line, atomically."""
    write_jsonl(path, (sample.row() for sample in samples))


def read_samples(path: str | Path) -> list[SampleRecord]:
    """Read a file of responses.

    Raises:
        DataError: the file is missing; a field is missing or of another type, an offset lies outside its text, or a
            list has not one number a token.
    """
    samples = []
    for number, row in enumerate(read_jsonl(path)):
        try:
            samples.append(_sample(row))
        except DataError as error:
            raise error.at(file=path, record=number) from None
    return samples


def marks_path(run: RunDirectory) -> Path:
    """Where the marks of an oracle lie: beside the responses, and removed with them."""
    return run.samples_path(0).with_name("oracle_marks.jsonl")


def write_marks(run: RunDirectory, marked: Mapping[tuple[str, str], Sequence[OracleMark]]) -> None:
    """Write what an oracle found in responses, by id of the prompt and text of the response."""
    rows = (
        {"id": prompt, "response": text, "marks": [vars(mark) for mark in marks]}
        for (prompt, text), marks in marked.items()
    )
    write_jsonl(marks_path(run), rows)


def read_marks(run: RunDirectory) -> dict[tuple[str, str], list[OracleMark]]:
    """What an oracle found, by id of the prompt and text of the response; empty where it was not asked.

    Raises:
        DataError: a field is missing or of another type, or an offset lies outside its text.
    """
    path = marks_path(run)
    by_sample: dict[tuple[str, str], list[OracleMark]] = {}
    for number, row in enumerate(read_jsonl(path) if path.is_file() else ()):
        try:
            text, marks = _text(row, "response"), _field(row, "marks")
            if not isinstance(marks, list):
                raise DataError(f"expected a list, got {type(marks).__name__}", field="marks")
            by_sample[_text(row, "id"), text] = [_mark(m, text, f"marks[{i}]") for i, m in enumerate(marks)]
        except DataError as error:
            raise error.at(file=path, record=number) from None
    return by_sample


def sample_files(run: RunDirectory, kind: SampleKind = "step") -> dict[int, Path]:
    """The files of responses of a run by step, in order: of training steps, or of validations."""
    names = {path.name: path for path in run.samples_path(0).parent.glob(f"{kind}_*.jsonl")}
    matched = ((re.fullmatch(rf"{kind}_(\d+)\.jsonl", name), path) for name, path in names.items())
    return dict(sorted((int(match[1]), path) for match, path in matched if match))


def _sample(row: Mapping[str, Any]) -> SampleRecord:
    text = _text(row, "response")
    tokens = row.get("tokens")
    read = None if tokens is None else _tokens(tokens, row.get("shares", {}), text)
    segments = _field(row, "segments")
    if not isinstance(segments, list):
        raise DataError(f"expected a list, got {type(segments).__name__}", field="segments")
    number = row.get("sample", 0)
    if not _is_whole(number):
        raise DataError(f"expected a whole number, got {number!r}", field="sample")
    unscored = row.get("unscored", [])
    if not isinstance(unscored, list) or not all(isinstance(name, str) for name in unscored):
        raise DataError("expected a list of names of components", field="unscored")
    return SampleRecord(
        id=_text(row, "id"),
        sample=number,
        prompt=_text(row, "prompt"),
        text=text,
        segments=[_segment(s, text, read, f"segments[{i}]") for i, s in enumerate(segments)],
        tokens=read,
        unscored=tuple(unscored),
        corrections=_corrections(row.get("corrections", {}), read),
    )


def _corrections(row: Any, tokens: SampleTokens | None) -> dict[str, list[tuple[int, float]]]:
    count = 0 if tokens is None else len(tokens.ends)
    if not isinstance(row, Mapping) or not all(isinstance(pairs, list) for pairs in row.values()):
        raise DataError("expected a list of pairs a component", field="corrections")
    for name, pairs in row.items():
        for pair in pairs:
            is_pair = isinstance(pair, list) and len(pair) == 2 and _is_whole(pair[0]) and is_number(pair[1])
            if not is_pair or not 0 <= pair[0] < count:
                expected = f"expected a token from 0 to {count - 1} and a number, got {pair!r}"
                raise DataError(expected, field=f"corrections.{name}")
    return {name: [(token, float(paid)) for token, paid in pairs] for name, pairs in row.items()}


def _mark(row: Any, text: str, where: str) -> OracleMark:
    start, end = _span(row, text, where)
    return OracleMark(start, end, _text(row, "label", f"{where}."))


def _span(row: Any, text: str, where: str) -> tuple[int, int]:
    if not isinstance(row, Mapping):
        raise DataError(f"expected an object, got {type(row).__name__}", field=where)
    start, end = (_field(row, key, f"{where}.") for key in ("start", "end"))
    if not (_is_whole(start) and _is_whole(end) and 0 <= start <= end <= len(text)):
        raise DataError(f"expected 0 <= start <= end <= {len(text)}, got {start!r} and {end!r}", field=where)
    return start, end


def _segment(row: Any, text: str, tokens: SampleTokens | None, where: str) -> SampleSegment:
    start, end = _span(row, text, where)
    token = row.get("token")
    if token is not None and tokens is not None and not (_is_whole(token) and 0 <= token < len(tokens.ends)):
        raise DataError(f"expected a token from 0 to {len(tokens.ends) - 1}, got {token!r}", field=f"{where}.token")
    return SampleSegment(
        component=_text(row, "component", f"{where}."),
        start=start,
        end=end,
        raw=_number(row, "raw", f"{where}."),
        weighted=_number(row, "weighted", f"{where}."),
        token=token,
        normalised=None if row.get("normalised") is None else _number(row, "normalised", f"{where}."),
    )


def _tokens(row: Any, shares: Any, text: str) -> SampleTokens:
    ends = row.get("ends") if isinstance(row, Mapping) else None
    if not isinstance(ends, list) or not all(_is_whole(end) and 0 <= end <= len(text) for end in ends):
        raise DataError(f"expected a list of offsets from 0 to {len(text)}", field="tokens.ends")
    if sorted(ends) != ends:
        raise DataError("expected offsets that do not decrease", field="tokens.ends")
    numbers = {name: row[name] for name in (*QUANTITIES, IMPORTANCE) if name in row}
    if not isinstance(shares, Mapping):
        raise DataError(f"expected an object, got {type(shares).__name__}", field="shares")
    named = {**{f"tokens.{k}": v for k, v in numbers.items()}, **{f"shares.{k}": v for k, v in shares.items()}}
    for name, values in named.items():
        count = len(values) if isinstance(values, list) else None
        if count != len(ends):
            raise DataError(f"expected {len(ends)} numbers, one a token, got {count}", field=name)
        if not all(map(is_number, values)):
            raise DataError(f"expected {len(ends)} finite numbers, one a token", field=name)
    return SampleTokens(ends, numbers, shares)


def _field(row: Mapping[str, Any], name: str, prefix: str = "") -> Any:
    if name not in row:
        raise DataError("missing field", field=f"{prefix}{name}")
    return row[name]


def _text(row: Mapping[str, Any], name: str, prefix: str = "") -> str:
    value = _field(row, name, prefix)
    if not isinstance(value, str):
        raise DataError(f"expected text, got {type(value).__name__}", field=f"{prefix}{name}")
    return value


def _number(row: Mapping[str, Any], name: str, prefix: str) -> float:
    value = _field(row, name, prefix)
    if not is_number(value):
        raise DataError(f"expected a finite number, got {value!r}", field=f"{prefix}{name}")
    return float(value)


def _is_whole(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
