"""The ledger: what the thesis and the papers say, statement by statement, and what each test bed of ours made of it.

A statement stands in it once, with every table in which it was asked. Verdicts are computed from the committed results
files; that a table cannot answer a statement is declared, with the reason, and a bound is checked against the numbers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

from finegrained_lab.experiments.comparison import Claim, check_claims, seeds_that_hold
from finegrained_lab.experiments.results_table import made_of_changed_files
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json

Verdict = Literal["reproduced", "contradicted", "undecided", "cannot be asked here", "not run"]
"""Of a statement: it holds in every seed of three or more; in none of them; in some, in too few seeds, or the tables do
not agree; no table can answer it; nothing was run that asks it.
"""
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
REPRODUCED, CONTRADICTED, UNDECIDED, CANNOT, NOT_RUN = VERDICTS
LEAST_SEEDS = 3
"""A statement that holds, or fails, in each of fewer seeds is undecided."""
BOUND = "bound"
"""The reason of a table in which the other side is as good as it can be."""
NEAR_BOUND = 0.005


@dataclass(frozen=True)
class Asked:
    """What one table says of a statement.

    Attributes:
        table: the results file, below `docs/results`, without its ending.
        verdict: of this table alone.
        holds_in, seeds: in how many seeds it holds, of how many; of several comparisons those in which all do.
        means: the two sides, means over seeds; of several comparisons those of the one that holds in the fewest.
        why: of a table that cannot answer it; else empty.
        caveat: what has to be known of an answer that counts; mostly empty.
    """

    table: str
    verdict: Verdict
    holds_in: int
    seeds: int
    means: tuple[float | None, float | None]
    why: str = ""
    caveat: str = ""


@dataclass(frozen=True)
class Statement:
    """One statement of a paper.

    Attributes:
        says: what it says.
        source: its table, figure or section.
        asked: of each table that was made for it.
    """

    says: str
    source: str
    asked: tuple[Asked, ...]

    @property
    def verdict(self) -> Verdict:
        """Of all tables that can answer; those of too few seeds count where there is no other."""
        if not self.asked:
            return NOT_RUN
        answers = [one for one in self.asked if one.verdict != CANNOT]
        verdicts = {one.verdict for one in answers if one.seeds >= LEAST_SEEDS} or {one.verdict for one in answers}
        if not verdicts:
            return CANNOT
        return next(iter(verdicts)) if len(verdicts) == 1 else UNDECIDED


@dataclass(frozen=True)
class Headline:
    """What a chapter or paper claims in a sentence, with the statements that it rests on.

    Attributes:
        work: the chapter or paper.
        says: the headline.
        statements: in the order of the work.
        not_run: what of it was not run here; empty where nothing is missing.
    """

    work: str
    says: str
    statements: tuple[Statement, ...]
    not_run: str = ""

    @property
    def counts(self) -> Counter[Verdict]:
        """How many of its statements have which verdict."""
        return Counter(statement.verdict for statement in self.statements)


@dataclass(frozen=True)
class Outside:
    """A table that compares systems as a paper does, and that no statement is asked of.

    Attributes:
        table: the results file, below `docs/results`, without its ending.
        why: in a sentence.
    """

    table: str
    why: str


def read_ledger(path: Path, results: Path) -> list[Headline]:
    """The ledger with its verdicts.

    Args:
        path: the YAML file of headlines and statements.
        results: `docs/results`.

    Raises:
        DataError: a statement names no table, comparison or seed that is there, a bound is none, or a comparison of a
            committed table is in no statement, or in two.
    """
    raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    reader = _Tables(results)
    headlines = [
        Headline(
            work["work"],
            item["headline"],
            tuple(_statement(one, reader) for one in item.get("statements", ())),
            item.get("not_run", ""),
        )
        for work in raw
        for item in work.get("headlines", ())
    ]
    reader.check_all_taken()
    return headlines


def read_outside(path: Path, results: Path) -> list[Outside]:
    """The tables that the ledger says are in no statement, with the reason.

    Args:
        path: the ledger, in which an entry `outside` lists them.
        results: `docs/results`.

    Raises:
        DataError: one is not committed, or is in a statement.
    """
    asked = {one.table for headline in read_ledger(path, results) for of in headline.statements for one in of.asked}
    raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    found = [Outside(table, why) for work in raw for table, why in work.get("outside", {}).items()]
    for one in found:
        if one.table in asked or not (results / f"{one.table}.json").is_file():
            raise DataError(f"{one.table} is no committed table that is in no statement", file=path, field="outside")
    return found


def count_verdicts(headlines: Sequence[Headline]) -> Counter[Verdict]:
    """How many statements of the whole ledger have which verdict."""
    return sum((headline.counts for headline in headlines), Counter())


class _Tables:
    """Committed results files, and which of their comparisons a statement took."""

    def __init__(self, results: Path) -> None:
        self._results = results
        self._read: dict[str, dict[str, Any]] = {}
        self._taken: set[tuple[str, int]] = set()

    def table(self, name: str) -> dict[str, Any]:
        """A results file.

        Raises:
            DataError: there is none, or no checkout gives it.
        """
        found = self._load(name)
        if made_of_changed_files(found):
            raise DataError(f"{name} was made of files that differ from {found['commit']}: make it again", field="at")
        return found

    def _load(self, name: str) -> dict[str, Any]:
        if name not in self._read:
            self._read[name] = read_json(self._results / f"{name}.json")
        return self._read[name]

    def claim(self, name: str, number: int) -> Mapping[str, Any]:
        """The checked claim of a table with this number, from 0.

        Raises:
            DataError: there is none, or another statement has it.
        """
        claims = self.table(name).get("claims") or []
        if not 0 <= number < len(claims):
            raise DataError(f"{name} has {len(claims)} comparisons, and none with number {number}", field="at")
        if (name, number) in self._taken:
            raise DataError(f"comparison {number} of {name} is in two statements", field="at")
        self._taken.add((name, number))
        claim: Mapping[str, Any] = claims[number]
        return claim

    def check_all_taken(self) -> None:
        """Require that every comparison of every committed table that a checkout gives is in the ledger.

        Raises:
            DataError: one is in no statement.
        """
        for path in sorted(self._results.glob("*/*.json")):
            name = path.relative_to(self._results).with_suffix("").as_posix()
            found = self._load(name)
            claims = () if made_of_changed_files(found) else found.get("claims") or ()
            for number, claim in enumerate(claims):
                if (name, number) not in self._taken:
                    raise DataError(f"comparison {number} of {name} is in no statement: {claim['claim']}", file=path)


def _statement(raw: Mapping[str, Any], tables: _Tables) -> Statement:
    if unknown := set(raw) - {"says", "source", "at", "cannot", "caveat"}:
        raise DataError(f"unknown key {', '.join(sorted(unknown))}", record=raw.get("says"))
    cannot, caveat = raw.get("cannot", {}), raw.get("caveat", {})
    try:
        asked = tuple(
            replace(_asked(name, wanted, cannot.get(name, ""), tables), caveat=caveat.get(name, ""))
            for name, wanted in raw.get("at", {}).items()
        )
    except DataError as error:
        raise error.at(record=raw["says"]) from None
    for key, named in (("cannot", cannot), ("caveat", caveat)):
        if unknown := set(named) - set(raw.get("at", {})):
            raise DataError(f"{key} names {', '.join(sorted(unknown))}, which is not asked", record=raw["says"])
    return Statement(raw["says"], raw["source"], asked)


def _asked(name: str, wanted: Any, cannot: str, tables: _Tables) -> Asked:
    checked = list(_comparisons(name, wanted, tables))
    seeds = min(one["seeds"] for one in checked)
    holds = checked[0]["holds_in"]
    if len(checked) > 1:
        rows = tables.table(name)["rows"]
        holds = len(set.intersection(*(seeds_that_hold(one, rows) for one in checked)))
    left, right = min(checked, key=lambda one: (one["holds_in"], _distance(one["means"])))["means"]
    if cannot == BOUND:
        cannot = _bound(checked[0], name)
    if not cannot and (gate := tables.table(name).get("gate")) and not gate["passed"]:
        cannot = "its judge does not pass"
    if not cannot and not seeds:
        raise DataError(f"{name} has no seed for it", field="at")
    return Asked(name, CANNOT if cannot else _verdict(holds, seeds), holds, seeds, (left, right), cannot)


def _distance(means: Sequence[float | None]) -> float:
    return math.inf if None in means else abs(float(means[0] or 0.0) - float(means[1] or 0.0))


def _comparisons(name: str, wanted: Any, tables: _Tables) -> Iterator[Mapping[str, Any]]:
    """What a table says of one comparison or several: the number of a claim, or one that is made of the rows here."""
    for one in wanted if isinstance(wanted, list) else [wanted]:
        if isinstance(one, int):
            yield tables.claim(name, one)
        else:
            left, relation, right, column = one.split()
            rows = tables.table(name)["rows"]
            known = {row["system"] for row in rows}
            if missing := {left, right} - known:
                raise DataError(f"{name} has no row {', '.join(sorted(missing))}", field="at")
            yield check_claims([Claim("", "", column, left, relation, right)], rows)[0]


def _verdict(holds: int, seeds: int) -> Verdict:
    if seeds < LEAST_SEEDS or 0 < holds < seeds:
        return UNDECIDED
    return REPRODUCED if holds else CONTRADICTED


def _bound(claim: Mapping[str, Any], name: str) -> str:
    """Why no system can beat the other side; a share or an error rate, so that its bounds are 0 and 1.

    Raises:
        DataError: it could.
    """
    right, best = claim["means"][1], float(claim["relation"] == ">")
    if right is None or abs(right - best) > NEAR_BOUND:
        raise DataError(f"{name}: {claim['right']} has {right}, which is no bound", field="cannot")
    return f"`{claim['right']}` has {right:.3f} there, and nothing can be better"
