"""Measuring the regret of every case: many runs of each, their mean and its standard error beside the formula.

The cases are what PAHF's statements say: a world, a policy, the expected errors by formula, and the paper's bound
(source: Liang et al. 2026, section 3.3 and appendix A).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from finegrained_lab.worlds.regret.formulas import (
    corrected_errors,
    enough_questions,
    first_meetings,
    kept_errors,
    never_switched,
    switch_lower_bound,
    theorem_bound,
)
from finegrained_lab.worlds.regret.policies import CalendarPolicy, MemoryPolicy, RegretPolicy, play_rounds
from finegrained_lab.worlds.regret.rounds import Geometric, PowerLaw, RegretWorld, Uniform
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import write_json
from finegrained_rlhf.core.markers import OutputDirectory, Seed, at_least
from finegrained_rlhf.core.seeding import stable_hash
from finegrained_rlhf.runtime.console import ProgressBar
from finegrained_rlhf.text.tables import markdown_table

LENGTHS = (100, 200, 400, 800)
SWITCHES = (1, 2, 4, 8, 16)
Side = Literal["≤", "≥", ""]
ROUNDS, AMBIGUOUS, OPTIONS, SLOTS = 400, 0.3, 4, 8


@dataclass(frozen=True)
class RegretCase:
    """A policy in a world.

    Attributes:
        statement: of the paper.
        group: what is varied, over `x`.
        policy: its name.
        x: the value that is varied.
        world: where it acts.
        make: a new policy.
        expected: its errors by formula.
        side: whether the paper bounds it from above or below; "" where it says nothing of this policy.
        bound: the paper's, with the constants of its proof; None where there is none.
        follows: whether the case is within the paper's assumptions as this project reads them.
    """

    statement: str
    group: str
    policy: str
    x: int
    world: RegretWorld
    make: Callable[[], RegretPolicy]
    expected: float
    side: Side = ""
    bound: float | None = None
    follows: bool = True

    @property
    def name(self) -> str:
        """Unique among cases."""
        return f"{self.group}, {self.x}, {self.policy}"

    @property
    def is_bound(self) -> bool:
        """Whether the bound is the formula: then nothing that is measured can tell whether it is kept."""
        return self.bound is not None and math.isclose(self.bound, self.expected, rel_tol=1e-12)

    def keeps(self, errors: float, margin: float = 1e-9) -> bool | None:
        """Whether a number of errors keeps the bound, up to a margin; None where there is no bound."""
        if self.bound is None:
            return None
        return errors <= self.bound + margin if self.side == "≤" else errors >= self.bound - margin


def regret_cases() -> list[RegretCase]:
    """Every case, statement by statement."""
    return [*_drift(), *_switches(), *_questions(), *_recurring(), *_both()]


def _drift() -> Iterator[RegretCase]:
    """Proposition 1, one switch at a uniform time: who learns nothing afterwards, and who is corrected."""
    for rounds in LENGTHS:
        world = RegretWorld(rounds, switches=1, when="once")
        least = switch_lower_bound(rounds)

        always = partial(MemoryPolicy, 1, always=True)
        calendar, corrected = partial(CalendarPolicy, rounds), partial(MemoryPolicy, patience=1)
        case = partial(RegretCase, "proposition 1", "one switch, T", x=rounds, world=world)
        yield case("keeps its memory", make=MemoryPolicy, expected=never_switched(rounds), side="≥", bound=least)
        yield case("knows the prior", make=calendar, expected=least, side="≥", bound=least)
        yield case("asks on every round", make=always, expected=0.0, side="≥", bound=least, follows=False)
        yield case("is corrected", make=corrected, expected=1.0, side="≤", bound=1.0)


def _switches() -> Iterator[RegretCase]:
    """Proposition 1, K switches: an error a switch, as long as one correction says all."""
    for slots in (1, SLOTS):
        for switches in SWITCHES:
            world = RegretWorld(ROUNDS, switches, slots=slots, options=OPTIONS)
            situations = "one situation" if slots == 1 else f"{slots} situations"
            for policy, patience in (("is corrected", 1), ("is corrected late", 2)):
                yield RegretCase(
                    "proposition 1",
                    f"{situations}, K",
                    policy,
                    switches,
                    world,
                    partial(MemoryPolicy, patience=patience),
                    corrected_errors(world.lengths[1:], slots, 1.0, OPTIONS, patience),
                    "≤",
                    float(switches),
                    follows=slots == 1 and patience == 1,
                )


def _questions() -> Iterator[RegretCase]:
    """Proposition 2: k questions on ambiguous rounds, with assumption A1 and without."""
    for label, prior, arity, most in (
        ("geometric prior, m = 2, k", Geometric(0.5), 2, 3),
        ("geometric prior, m = 3, k", Geometric(0.5), 3, 2),
        ("power law, m = 2, k", PowerLaw(2, 2 / 3), 2, 5),
        ("power law, m = 3, k", PowerLaw(3, 3 / 4), 3, 4),
        ("uniform prior, m = 2, k", Uniform(16), 2, 4),
    ):
        for k in range(most + 1):
            world = RegretWorld(ROUNDS, ambiguous=AMBIGUOUS, arity=arity, prior=prior)
            expected = AMBIGUOUS * ROUNDS * prior.residual(arity, k)
            yield RegretCase(
                "proposition 2",
                label,
                "asks" if k else "never asks",
                k,
                world,
                partial(MemoryPolicy, k),
                expected,
                "≤" if k else "≥",
                theorem_bound(0, AMBIGUOUS, ROUNDS, arity, k) if k else AMBIGUOUS * ROUNDS * prior.residual(arity, 0),
                follows=k == 0 or not isinstance(prior, Uniform),
            )


def _recurring() -> Iterator[RegretCase]:
    """Proposition 2, situations that come again: corrections make rounds unambiguous, so γ depends on the policy."""
    unsure = 1 - 1 / OPTIONS
    for rounds in LENGTHS:
        world = RegretWorld(rounds, slots=SLOTS, options=OPTIONS, known=False)
        met = first_meetings(SLOTS, rounds)
        for policy, patience, own, follows in (
            ("never asks", None, float(rounds), True),
            ("is corrected, γ its own", 1, met, True),
            ("is corrected, γ of who never asks", 1, float(rounds), False),
        ):
            yield RegretCase(
                "proposition 2",
                "recurring situations, T",
                policy,
                rounds,
                world,
                partial(MemoryPolicy, patience=patience),
                unsure * (rounds if patience is None else met),
                "≥",
                unsure * own,
                follows,
            )


def _both() -> Iterator[RegretCase]:
    """Theorem 1: four policies over T, a prior that reaches the rate, a prior and a memory that lack an assumption."""
    switches, arity, k = 4, 2, 2
    for rounds in LENGTHS:
        world = RegretWorld(rounds, switches, AMBIGUOUS, options=OPTIONS, arity=arity, prior=Geometric(0.5))
        for policy, questions, patience in (
            ("neither", 0, None),
            ("pre", k, None),
            ("post", 0, 1),
            ("both", k, 1),
            ("both, k = ⌈log T⌉", enough_questions(rounds, arity), 1),
        ):
            yield _theorem("theorem 1, T", policy, rounds, world, questions, patience)
    for questions in range(1, 5):
        world = RegretWorld(ROUNDS, switches, AMBIGUOUS, options=OPTIONS, arity=arity, prior=PowerLaw(2, 2 / 3))
        yield _theorem("theorem 1, power law, k", "both", questions, world, questions, 1)
    world = RegretWorld(ROUNDS, switches, AMBIGUOUS, options=OPTIONS, arity=arity, prior=Uniform(16))
    yield _theorem("theorem 1, uniform prior, T", "both", ROUNDS, world, k, 1, follows=False)
    world = RegretWorld(ROUNDS, 16, AMBIGUOUS, SLOTS, OPTIONS, arity, Geometric(0.5))
    yield _theorem(f"theorem 1, {SLOTS} situations, T", "both", ROUNDS, world, k, 1, follows=False)


def _theorem(
    group: str, policy: str, x: int, world: RegretWorld, questions: int, patience: int | None, follows: bool = True
) -> RegretCase:
    sure = 1 - world.ambiguous
    guessed = world.ambiguous * world.rounds * world.prior.residual(world.arity, questions)
    drifted = (
        kept_errors(world.lengths, world.options, sure)
        if patience is None
        else corrected_errors(world.lengths[1:], world.slots, sure, world.options, patience)
    )
    bounded = patience is not None and questions > 0
    bound = theorem_bound(world.switches, world.ambiguous, world.rounds, world.arity, questions) if bounded else None
    return RegretCase(
        "theorem 1",
        group,
        policy,
        x,
        world,
        partial(MemoryPolicy, questions, patience),
        guessed + drifted,
        "≤" if bounded else "",
        bound,
        follows,
    )


MARGIN = 3.0
"""Standard errors by which a measured regret may lie beyond a bound that is kept."""


def measured_case(case: RegretCase, seed: int, runs: int) -> dict[str, Any]:
    """The regret of one case.

    Args:
        case: which.
        seed: of its random numbers, with its name.
        runs: R.

    Returns:
        The case by name, its formula and bound, and what was measured: `errors` (mean over runs), `error_se` (its
        standard error), `questions` (mean), `z` ((errors − formula) / error_se; None where all runs are alike),
        `agrees` (|z| ≤ 3; or, where all runs are alike, within 3 / R, as what is not seen in R runs may be so likely),
        `is_bound` (whether the bound is the formula), `kept` (the bound, within 3 standard errors; where it is the
        formula, which is compared with it then, rather than a sample that falls on either side; None without one).
    """
    drawn = case.world.draw([seed, stable_hash("regret", case.name) % 2**32], runs)
    errors, questions = play_rounds(case.make(), drawn)
    mean, error = float(errors.mean()), float(errors.std(ddof=1) / math.sqrt(runs))
    z = (mean - case.expected) / error if error else None
    return {
        "statement": case.statement,
        "group": case.group,
        "x": case.x,
        "policy": case.policy,
        "formula": case.expected,
        "side": case.side,
        "bound": case.bound,
        "follows": case.follows,
        "errors": mean,
        "error_se": error,
        "questions": float(questions.mean()),
        "z": z,
        "agrees": abs(mean - case.expected) <= MARGIN / runs if z is None else abs(z) <= MARGIN,
        "is_bound": case.is_bound,
        "kept": case.keeps(case.expected) if case.is_bound else case.keeps(mean, MARGIN * error + 1e-9),
    }


@dataclass(frozen=True)
class MeasureRegret(Settings):
    """Measure the regret of PAHF's policies where it can be computed.

    Writes `summary.json` to `output_dir`: every case with its formula, the paper's bound and what was measured.

    Attributes:
        output_dir: where the results go.
        seed: of the random numbers.
        runs: R, of each case.
        progress: show a progress bar.
    """

    every_process: ClassVar[bool] = False

    output_dir: OutputDirectory
    seed: Seed = 0
    runs: Annotated[int, at_least(2)] = 2000
    progress: bool = True

    def run(self) -> dict[str, Any]:
        """Measure every case, write the results, print a table."""
        cases = regret_cases()
        rows: list[dict[str, Any]] = []
        with ProgressBar("regret", len(cases), "cases", self.progress) as bar:
            for case in cases:
                rows.append(measured_case(case, self.seed, self.runs))
                bar.update()
        summary = {"seed": self.seed, "runs": self.runs, "cases": rows}
        write_json(Path(self.output_dir) / "summary.json", summary)
        shown = ["group", "x", "policy", "formula", "errors", "error_se", "z", "side", "bound", "kept"]
        print(f"{markdown_table(_shown(rows), shown)}\n{len(rows)} cases -> {Path(self.output_dir) / 'summary.json'}")
        return summary


def _shown(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**row, "kept": {True: "yes", False: "no", None: ""}[row["kept"]]} for row in rows]
