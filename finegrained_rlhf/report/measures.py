"""Which numbers of a run tell whether it got better, at what, and at what price.

Knows the keys of `metrics.jsonl` and `eval.jsonl`; whatever else a validation holds was measured beside the reward (by
an oracle, say) and counts as the truth. Knows no HTML and no task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from finegrained_rlhf.report.html import is_number
from finegrained_rlhf.report.record import Row, RunRecord

Point = tuple[float, float]
_OURS = {"step", "score", "examples", "response_length", "eos_rate", "repetition", "alignment", "alignment_inside"}
_PREFIXES = ("reward/", "segments/", "time/")
SEGMENT, LENGTH, KL = "a segment", "tokens", "KL"


@dataclass(frozen=True)
class Measure:
    """One number that validations or training steps have.

    Attributes:
        name: as the page shows it.
        unit: what it counts by (`an answer`, `a segment`), or nothing.
        points: (step, value) over the run.
        first: at the first validation; None where it was not measured.
        after: at the best validation, or at the last where the first was the best.
        better: `up`, `down`, or None where neither is better by itself.
    """

    name: str
    unit: str
    points: Sequence[Point]
    first: float | None
    after: float | None
    better: Literal["up", "down"] | None

    @property
    def change(self) -> float | None:
        """After minus first; None where one of them is unknown."""
        return None if self.first is None or self.after is None else self.after - self.first

    @property
    def verdict(self) -> Literal["better", "worse", "same"] | None:
        """Whether it got better; changes below a hundredth of the larger value count as none."""
        if self.better is None or self.change is None or self.first is None or self.after is None:
            return None
        if abs(self.change) <= 0.01 * max(abs(self.first), abs(self.after)):
            return "same"
        return "better" if (self.change > 0) == (self.better == "up") else "worse"


def series(rows: Sequence[Row], key: str, per: str | None = None) -> list[Point]:
    """(step, value of `key`) of the rows that have it; divided by the value of `per` where that is given."""
    found = []
    for row in rows:
        value, divisor = row.get(key), row.get(per, 0) if per else 1
        if is_number(value) and is_number(divisor) and divisor:
            found.append((float(row["step"]), value / divisor))
    return found


def monitored(rows: Sequence[Row]) -> list[str]:
    """What validations measured beside the reward, in order of first use."""
    keys = dict.fromkeys(key for row in rows for key, value in row.items() if is_number(value))
    return [key for key in keys if key not in _OURS and not key.startswith(_PREFIXES)]


def true_errors(rows: Sequence[Row]) -> dict[str, list[Point]]:
    """The monitored error rates over the run, by name; `completeness` counts as its complement."""
    found = {readable(key): series(rows, key) for key in monitored(rows) if "error" in key}
    if shares := series(rows, "completeness"):
        found["1 − completeness"] = [(step, 1.0 - share) for step, share in shares]
    return found


def mean_true_error(rows: Sequence[Row]) -> list[Point]:
    """The mean of the true errors at each validation that has all of them."""
    errors = [dict(points) for points in true_errors(rows).values()]
    if not errors:
        return []
    steps = sorted(set.intersection(*(set(points) for points in errors)))
    return [(step, sum(points[step] for points in errors) / len(errors)) for step in steps]


def readable(key: str) -> str:
    """A key in words."""
    return key.replace("_", " ")


def reward_measures(record: RunRecord) -> list[Measure]:
    """What the reward says of validation answers: the total, and each component by answer and by segment."""
    rows, after = record.validations, record.after
    found = [_measure("weighted total", "an answer", series(rows, "score"), after, "up")]
    for name in record.components:
        found.append(_measure(name, "an answer", series(rows, f"reward/{name}/raw"), after, "up"))
        if any(count != 1 for _, count in series(rows, f"segments/{name}")):
            found.append(_measure(name, SEGMENT, series(rows, f"reward/{name}/raw", f"segments/{name}"), after, "up"))
    return [measure for measure in found if measure.points]


def true_measures(record: RunRecord) -> list[Measure]:
    """What was measured beside the reward."""
    return [
        _measure(readable(key), "", series(record.validations, key), record.after, "down" if "error" in key else "up")
        for key in monitored(record.validations)
    ]


def price_measures(record: RunRecord) -> list[Measure]:
    """What the policy gave up or took on: distance from where it began, length, repetition, entropy."""
    rows, after = record.validations, record.after
    found = [
        _measure(LENGTH, "an answer", series(rows, "response_length"), after, None),
        _measure("repeated 3-grams", "share", series(rows, "repetition"), after, "down"),
        _measure("answers that end", "share", series(rows, "eos_rate"), after, "up"),
    ]
    found = [measure for measure in found if measure.points]
    for key, name, unit in (("kl", KL, "nats an answer"), ("entropy", "entropy", "nats a token")):
        points = series(record.steps, key)
        if points:
            # A step measures the policy before its update, so that the policy of step s is measured at s + 1.
            at_after = _at(points, float(after["step"]) + 1) if after else points[-1][1]
            found.append(Measure(name, unit, points, points[0][1], at_after, None))
    return found


def seconds(record: RunRecord) -> float | None:
    """Wall-clock time of all training steps and validations; None where it was not kept."""
    steps = series(record.steps, "time/step_s") or series(record.steps, "time/total_s")
    if not steps:
        return None
    return sum(value for _, value in [*steps, *series(record.validations, "time/validate_s")])


def _measure(
    name: str, unit: str, points: Sequence[Point], after: Row | None, better: Literal["up", "down"] | None
) -> Measure:
    known = dict(points)
    first = points[0][1] if points else None
    return Measure(name, unit, points, first, known.get(float(after["step"])) if after else None, better)


def _at(points: Sequence[Point], step: float) -> float:
    """The value at `step`, or at the last step before it."""
    return [value for at, value in points if at <= step or at == points[0][0]][-1]
