"""Which numbers of a run tell whether it got better, at what, and at what price.

Whatever a validation holds that is not the reward's was measured by something else (by an oracle, say) and counts as
the truth. A change between two validations of the same n prompts counts when it is larger than 1.96 standard errors
(95%, normal approximation): estimated from the kept answers for rewards, bounded from above for shares, whose means
alone are kept.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from finegrained_rlhf.core.checks import is_number
from finegrained_rlhf.report.runs.record import Row, RunRecord
from finegrained_rlhf.runtime.directory.samples import SampleRecord

Point = tuple[float, float]
_ANSWERS = {"response_length", "eos_rate", "repetition", "reference_perplexity", "alignment", "alignment_inside"}
_OURS = {"step", "score", "constraints_missed", "examples", *_ANSWERS}
_PREFIXES = ("reward/", "segments/", "constraint/", "watch/", "time/")
_ERRORS = ("error", "toxicity")
"""What is measured beside the reward under such a name is a true error; less of it is better."""
_COSTS = (*_ERRORS, "worst", "loss", "nll", "perplexity", "empty", "unsupported", "repeats")
_NEITHER = ("apology", "quoted", "variant", "copied")
"""Ways to be less toxic, or to answer, that are neither good nor bad by themselves."""
SEGMENT, LENGTH, KL, PERPLEXITY = "a segment", "tokens", "KL", "perplexity under the initial policy"
REPETITION, ENDED = "repeated 3-grams", "answers that end"
Z = 1.96
SHARE_FLOOR = 0.01
"""Changes of a share below this never count."""
FEWEST = 4
"""Answers that a spread is estimated from, at least."""
Values = Callable[[Sequence[SampleRecord]], list[float]]
"""What an answer adds to a mean over answers: a number for each of them."""


@dataclass(frozen=True)
class Measure:
    """One number that validations or training steps have.

    Attributes:
        name: as the page shows it.
        unit: what it counts by (`an answer`, `a segment`), or nothing.
        points: (step, value) over the run.
        first: at the first validation; None where it was not measured.
        after: at the validation of the exported policy.
        better: `up`, `down`, or None where neither is better by itself.
        noise: a change up to this may be chance (`report.runs.noise`); None where nothing is known of the spread.
    """

    name: str
    unit: str
    points: Sequence[Point]
    first: float | None
    after: float | None
    better: Literal["up", "down"] | None
    noise: float | None = None

    @property
    def change(self) -> float | None:
        """After minus first; None where one of them is unknown."""
        return None if self.first is None or self.after is None else self.after - self.first

    @property
    def last(self) -> float | None:
        """At the last validation."""
        return self.points[-1][1] if self.points else None

    @property
    def threshold(self) -> float:
        """The change from which on it counts: above chance, and above one per cent (five where chance is unknown)."""
        largest = max(abs(self.first or 0.0), abs(self.after or 0.0))
        return 0.05 * largest if self.noise is None else max(self.noise, 0.01 * largest)

    @property
    def verdict(self) -> Literal["better", "worse", "same"] | None:
        """Whether it clearly got better; None where neither direction is better, or one value is unknown."""
        if self.better is None or self.change is None:
            return None
        if abs(self.change) <= self.threshold:
            return "same"
        return "better" if (self.change > 0) == (self.better == "up") else "worse"


def series(rows: Sequence[Row], key: str, per: str | None = None) -> list[Point]:
    """(step, value of `key`) of the rows that have it; divided by the value of `per` where that is given."""
    points = []
    for row in rows:
        value, divisor = row.get(key), row.get(per, 0) if per else 1
        if is_number(value) and is_number(divisor) and divisor:
            points.append((float(row["step"]), value / divisor))
    return points


def monitored(rows: Sequence[Row]) -> list[str]:
    """What validations measured beside the reward, in order of first use."""
    keys = dict.fromkeys(key for row in rows for key, value in row.items() if is_number(value))
    return [key for key in keys if key not in _OURS and not key.startswith(_PREFIXES)]


def true_errors(rows: Sequence[Row]) -> dict[str, list[Point]]:
    """The monitored error rates over the run, by name; `completeness` counts as its complement.

    Toxicity is an error rate too.
    """
    errors = {readable(key): series(rows, key) for key in monitored(rows) if _named(key, _ERRORS)}
    if shares := series(rows, "completeness"):
        errors["1 − completeness"] = [(step, 1.0 - share) for step, share in shares]
    return errors


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
    rows = record.validations
    measures = [_measure(record, "weighted total", "an answer", series(rows, "score"), "up", of_total)]
    for name in record.components:
        points = series(rows, f"reward/{name}/raw")
        measures.append(_measure(record, name, "an answer", points, "up", of_component(name)))
        if any(count != 1 for _, count in series(rows, f"segments/{name}")):
            points = series(rows, f"reward/{name}/raw", f"segments/{name}")
            measures.append(_measure(record, name, SEGMENT, points, "up", of_segments(name)))
    return [measure for measure in measures if measure.points]


def true_measures(record: RunRecord) -> list[Measure]:
    """What was measured beside the reward."""
    return [
        _measure(record, readable(key), "", series(record.validations, key), _direction(key))
        for key in monitored(record.validations)
    ]


def _direction(key: str) -> Literal["up", "down"] | None:
    """What is better of a number that was measured beside the reward, by its name."""
    if _named(key, _NEITHER):
        return None
    return "down" if _named(key, _COSTS) else "up"


def _named(key: str, words: Sequence[str]) -> bool:
    return any(word in key for word in words)


def true_error_measure(record: RunRecord) -> Measure | None:
    """The mean of all true errors; None where no truth was measured."""
    points = mean_true_error(record.validations)
    return _measure(record, "mean true error", "share", points, "down") if points else None


def price_measures(record: RunRecord) -> list[Measure]:
    """What the policy gave up or took on: distance from where it began, length, repetition, entropy."""
    rows, after = record.validations, record.best
    measures = [
        _measure(record, LENGTH, "an answer", series(rows, "response_length"), None),
        _measure(record, REPETITION, "share", series(rows, "repetition"), "down"),
        _measure(record, ENDED, "share", series(rows, "eos_rate"), "up"),
        _measure(record, PERPLEXITY, "a token", series(rows, "reference_perplexity"), None),
    ]
    measures = [measure for measure in measures if measure.points]
    for key, name, unit in (("kl", KL, "nats an answer"), ("entropy", "entropy", "nats a token")):
        points = series(record.steps, key)
        if points:
            # A step measures the policy before its update, so that the policy of step s is measured at s + 1.
            at_after = _at(points, float(after["step"]) + 1) if after else points[-1][1]
            measures.append(Measure(name, unit, points, points[0][1], at_after, None))
    return measures


def seconds(record: RunRecord) -> float | None:
    """Wall-clock time of all training steps and validations; None where it was not kept."""
    steps = series(record.steps, "time/step_s") or series(record.steps, "time/total_s")
    if not steps:
        return None
    return sum(value for _, value in [*steps, *series(record.validations, "time/validate_s")])


def _measure(
    record: RunRecord,
    name: str,
    unit: str,
    points: Sequence[Point],
    better: Literal["up", "down"] | None,
    values: Values | None = None,
) -> Measure:
    """A measure with what may be chance: of shares from the number of answers, of rewards from the kept answers."""
    known = dict(points)
    first = points[0][1] if points else None
    best = record.best
    after = known.get(float(best["step"])) if best else None
    return Measure(name, unit, points, first, after, better, _noise(record, first, after, values))


def _noise(record: RunRecord, first: float | None, after: float | None, values: Values | None) -> float | None:
    best = record.best
    if best is None or first is None or after is None:
        return None
    start = record.validations[0]
    if values is not None:
        before, now = (record.answers.get(int(row["step"]), ()) for row in (start, best))
        return paired_noise(before, now, values, best.get("examples"))
    if 0.0 <= first <= 1.0 and 0.0 <= after <= 1.0:
        return share_noise(first, after, best.get("examples"))
    return None


def _at(points: Sequence[Point], step: float) -> float:
    """The value at `step`, or at the last step before it."""
    return [value for at, value in points if at <= step or at == points[0][0]][-1]


def of_total(answers: Sequence[SampleRecord]) -> list[float]:
    """The weighted total of each answer."""
    return [answer.total for answer in answers]


def of_component(name: str) -> Values:
    """The raw sum of a component over each answer."""
    return lambda answers: [answer.totals(name)[0] for answer in answers]


def of_segments(name: str) -> Values:
    """What each answer adds to the mean of a segment: a ratio of sums, linearised about its value.

    With R = Σx/Σn, answer i adds R + (x_i − R·n_i) / mean(n).
    """

    def values(answers: Sequence[SampleRecord]) -> list[float]:
        sums = [answer.totals(name)[0] for answer in answers]
        counts = [len(answer.of(name)) for answer in answers]
        if not sum(counts):
            return []
        ratio, mean = sum(sums) / sum(counts), sum(counts) / len(counts)
        return [ratio + (x - ratio * n) / mean for x, n in zip(sums, counts, strict=True)]

    return values


def paired_noise(
    before: Sequence[SampleRecord], now: Sequence[SampleRecord], values: Values, examples: Any
) -> float | None:
    """1.96 standard errors of the mean difference of two validations over the same prompts.

    Args:
        before: kept answers of the first validation.
        now: kept answers of the other one.
        values: what the mean is of.
        examples: answers of a whole validation; the spread of the kept ones stands for all of them.

    Returns:
        None where fewer than four prompts were kept in both.
    """
    first, second = _by_prompt(before), _by_prompt(now)
    shared = [key for key in first if key in second]
    if len(shared) < FEWEST:
        return None
    old, new = values([first[key] for key in shared]), values([second[key] for key in shared])
    if len(old) != len(new) or not old:
        return None
    spread = statistics.stdev(b - a for a, b in zip(old, new, strict=True))
    count = float(examples) if is_number(examples) and examples > 0 else len(shared)
    return Z * spread / math.sqrt(count)


def share_noise(first: float, after: float, examples: Any) -> float | None:
    """1.96 standard errors of the difference of two shares, at most; never below `SHARE_FLOOR`.

    A mean of n values within [0, 1] has a variance of p(1 − p)/n at most. Answers to the same prompts vary together,
    which makes the true error smaller: a change that counts here counts. None where n is unknown.
    """
    if not is_number(examples) or examples <= 0:
        return None
    return max(SHARE_FLOOR, Z * math.sqrt((first * (1 - first) + after * (1 - after)) / examples))


def _by_prompt(answers: Sequence[SampleRecord]) -> Mapping[str, SampleRecord]:
    return {answer.id: answer for answer in reversed(answers)}
