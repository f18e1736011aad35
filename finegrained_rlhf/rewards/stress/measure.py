"""What a reward makes of changes: shares ranked right with intervals, leakage to other components and places."""

from __future__ import annotations

import math
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, variance
from typing import Any

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.records import Prompt, SegmentScores, unscored_rows
from finegrained_rlhf.metrics.significance import bootstrap_interval
from finegrained_rlhf.rewards.composition import RewardComposer
from finegrained_rlhf.rewards.stress.changes import ROLES, TOTAL, Change, Expectation
from finegrained_rlhf.text.segmentation import Span

TIE = 1e-6
"""Values that differ by no more are equal."""
_AT_ONCE = 256
_DRAWS = 1000
_WORST, _WORST_OF_ONE = 24, 2

Value = float | None
"""What a component gives; None where it says nothing there."""


def roles_of(components: Iterable[str], given: Mapping[str, str]) -> dict[str, str]:
    """The component of each role: by `given` (component → role), else the one of the role's name.

    Every component can also be named itself; `total` is all of them.

    Raises:
        ConfigError: a role is none, a component is not there, or two have one role.
    """
    names = list(components)
    for component, role in given.items():
        if component not in names or role not in ROLES:
            expected = f"components {', '.join(names)} and roles {', '.join(ROLES)}"
            raise ConfigError(f"stress_test.roles.{component}={role}: expected {expected}")
        if list(given.values()).count(role) > 1:
            raise ConfigError(f"stress_test.roles: {role} is the role of two components")
    by_name = {name: name for name in names if name not in given and name not in given.values()}
    return {**by_name, **{role: component for component, role in given.items()}}


class RatedTexts:
    """Values of answers by a reward as training composes it; each answer to a question is scored once.

    Running normalisation is fixed by the first answers that are scored, as it is by a run's first validation.

    Args:
        composer: set up.
        prompts: by id of the question.
        roles: the component of each role (`roles_of`).
    """

    def __init__(self, composer: RewardComposer, prompts: Mapping[str, Prompt], roles: Mapping[str, str]) -> None:
        self._composer, self._prompts, self.roles = composer, prompts, roles
        self._rated: dict[tuple[str, str], tuple[int, Mapping[str, SegmentScores], Value]] = {}
        """By question and answer: its row in the scores of all components, and the total."""

    def add(self, items: Iterable[tuple[str, str]]) -> None:
        """Score answers, given as (id of the question, answer), that were not scored before.

        Raises:
            FineGrainedError: a component cannot score them.
        """
        new = [item for item in dict.fromkeys(items) if item not in self._rated]
        for start in range(0, len(new), _AT_ONCE):
            rows = new[start : start + _AT_ONCE]
            scores = self._composer.score([self._prompts[record] for record, _ in rows], [text for _, text in rows])
            self._composer.fix_moments({name: [one] for name, one in scores.items()})
            unscored = unscored_rows(scores.values())
            for row, (item, total) in enumerate(zip(rows, self._composer.totals(scores), strict=True)):
                self._rated[item] = row, scores, None if row in unscored else total

    def has(self, role: str) -> bool:
        """Whether the reward has something to say of a role, or has a component of that name."""
        return role == TOTAL or role in self.roles or role in self.roles.values()

    def value(self, record: str, text: str, role: str, place: Span | None = None) -> Value:
        """The mean value of the segments at a place, or of all; the value of a whole response; the total.

        A segment is at a place if at least half of it is, or if it lies around the place.
        """
        if role == TOTAL:
            return self._rated[record, text][2]
        segments, whole = self._segments(record, text, self.roles.get(role, role))
        return _mean([value for span, value in segments if whole or place is None or _at(span, place)])

    def _segments(self, record: str, text: str, component: str) -> tuple[list[tuple[Span, float]], bool]:
        """Spans with values, and whether there is one for the whole response."""
        row, scores, _ = self._rated[record, text]
        one = scores[component]
        known = [] if row in one.unscored else list(zip(one.spans[row], map(float, one.values[row]), strict=True))
        return known, one.whole_response

    def unchanged(self, record: str, texts: tuple[str, str], component: str) -> tuple[Value, Value]:
        """A component's mean value in each of two answers over the segments that both have: none where they differ."""
        kept = len(os.path.commonprefix(texts))
        most = min(map(len, texts)) - kept
        tail = min(most, len(os.path.commonprefix([text[::-1] for text in texts])))
        means = []
        for text in texts:
            segments, whole = self._segments(record, text, component)
            means.append(_mean([v for (a, b), v in segments if not whole and (b <= kept or a >= len(text) - tail)]))
        return means[0], means[1]


def _at(span: Span, place: Span) -> bool:
    overlap = min(span[1], place[1]) - max(span[0], place[0])
    return overlap > 0 and 2 * overlap >= min(span[1] - span[0], place[1] - place[0])


def _mean(values: Sequence[float]) -> Value:
    return fmean(values) if values else None


def spreads(rated: RatedTexts, answers: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """By role, the standard deviation of what answers to one question are given, pooled over questions.

    Args:
        rated: has scored the answers.
        answers: to each question; where no question has two different ones, the spread is that over questions.
    """
    by_role = {}
    for role in dict.fromkeys((*rated.roles, *rated.roles.values(), TOTAL)):
        groups = [
            [rated.value(record, text, role) for text in dict.fromkeys(texts)] for record, texts in answers.items()
        ]
        known = [[value for value in group if value is not None] for group in groups]
        several = [group for group in known if len(group) > 1] or [[value for group in known for value in group]]
        free = sum(len(group) - 1 for group in several)
        pooled = math.fsum((len(group) - 1) * variance(group) for group in several if len(group) > 1)
        spread = math.sqrt(pooled / free) if free > 0 else 0.0
        by_role[role] = spread if spread > TIE else 0.0
    return by_role


@dataclass(frozen=True)
class Verdict:
    """What became of one expectation.

    Attributes:
        change: the change.
        expectation: what had to follow.
        before: the value before the change.
        after: the value after it.
        right: whether it followed.
    """

    change: Change
    expectation: Expectation
    before: float
    after: float
    right: bool

    def excess(self, spread: float) -> float:
        """By how many spreads it is wrong; 0 or less where it is right."""
        moved = self.after - self.before
        return (abs(moved) if self.expectation.direction == "stay" else moved) / (spread or 1.0)


def verdicts(changes: Iterable[Change], rated: RatedTexts, spread: Mapping[str, float]) -> list[Verdict]:
    """One for every expectation of which the reward says something on both sides.

    Raises:
        ConfigError: an expectation names a role that no reward can have.
    """
    made = []
    for change in changes:
        for one in change.expectations:
            if not rated.has(one.role):
                if one.role in ROLES:
                    continue
                known = ", ".join(dict.fromkeys((*ROLES, TOTAL, *rated.roles.values())))
                raise ConfigError(f"{change.name} expects something of {one.role!r}; expected one of {known}")
            before = rated.value(change.record, change.base, one.role, one.before)
            after = rated.value(change.record, change.changed, one.role, one.after)
            if before is not None and after is not None:
                moved, most = after - before, TIE
                if one.direction == "stay":
                    moved, most = abs(moved), spread[one.role] + TIE
                right = moved < -TIE if one.direction == "fall" else moved <= most
                made.append(Verdict(change, one, before, after, right))
    return made


def change_table(judged: Sequence[Verdict], seed: int) -> dict[str, Any]:
    """By name of the change `family`, `pairs`, `ranked_right`, `low`, `high` and the same by role as `components`.

    A pair is ranked right if everything that had to follow did. Intervals are of 95%, over questions.
    """
    by_name: dict[str, list[Verdict]] = defaultdict(list)
    for one in judged:
        by_name[one.change.name].append(one)
    return {
        name: {
            "family": rows[0].change.family,
            "direction": rows[0].expectation.direction,
            **_pairs_right(rows, seed),
            "components": {
                role: _pairs_right([row for row in rows if row.expectation.role == role], seed)
                for role in dict.fromkeys(row.expectation.role for row in rows)
            },
        }
        for name, rows in by_name.items()
    }


def _pairs_right(judged: Iterable[Verdict], seed: int) -> dict[str, Any]:
    whole: dict[Change, bool] = {}
    for one in judged:
        whole[one.change] = whole.get(one.change, True) and one.right
    return share_of([(change.record, right) for change, right in whole.items()], seed)


def share_of(flags: Sequence[tuple[str, bool]], seed: int) -> dict[str, Any]:
    """The share of pairs that are right, each given with its question, and the interval over questions."""
    by_question: dict[str, list[bool]] = defaultdict(list)
    for record, right in flags:
        by_question[record].append(right)
    counts = [(sum(rights), len(rights)) for rights in by_question.values()]
    made = bootstrap_interval(
        counts, lambda drawn: sum(r for r, _ in drawn) / sum(n for _, n in drawn), draws=_DRAWS, seed=seed
    )
    return {"pairs": len(flags), "ranked_right": made.value, "low": made.low, "high": made.high}


def leakage_table(changes: Iterable[Change], rated: RatedTexts, spread: Mapping[str, float]) -> dict[str, Any]:
    """What changes move where nothing had to follow, by name and component.

    Of a component of which nothing is expected it is the whole answer, of another one the segments that both answers
    have. `pairs`, `moved` (share beyond the spread) and `mean` (difference in spreads).
    """
    moved: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for change in changes:
        expected, texts = {one.role for one in change.expectations}, (change.base, change.changed)
        for role, component in rated.roles.items():
            if expected & {role, component}:
                before, after = rated.unchanged(change.record, texts, component)
            else:
                before, after = (rated.value(change.record, text, role) for text in texts)
            if before is not None and after is not None:
                moved[change.name][role].append((after - before) / (spread[role] or 1.0))
    return {
        name: {
            role: {
                "pairs": len(values),
                "moved": sum(abs(value) > 1 for value in values) / len(values),
                "mean": fmean(values),
            }
            for role, values in by_role.items()
        }
        for name, by_role in moved.items()
    }


def worst_cases(
    judged: Iterable[Verdict], questions: Mapping[str, str], spread: Mapping[str, float]
) -> list[dict[str, Any]]:
    """The expectations that are most wrong, in spreads of their component; at most two of a change and role."""
    wrong = sorted((one for one in judged if not one.right), key=lambda one: -one.excess(spread[one.expectation.role]))
    taken: Counter[tuple[str, str]] = Counter()
    rows: list[dict[str, Any]] = []
    for one in wrong:
        change, expected = one.change, one.expectation
        taken[change.name, expected.role] += 1
        if taken[change.name, expected.role] <= _WORST_OF_ONE:
            row: dict[str, Any] = {"change": change.name, "record": change.record, "question": questions[change.record]}
            row |= {"role": expected.role, "direction": expected.direction, "before": one.before, "after": one.after}
            row |= {"base_source": change.base_source, "base": change.base, "changed": change.changed}
            rows.append({**row, "place": expected.after and list(expected.after)})
    return rows[:_WORST]
