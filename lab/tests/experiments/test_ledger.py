"""The ledger of statements: verdicts by hand, what it refuses, and what noise makes of statements about curves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from finegrained_lab.experiments.factworld.tables.dynamics import DynamicsTable
from finegrained_lab.experiments.ledger import Outside, count_verdicts, read_ledger, read_outside
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json, write_json

ROOT = Path(__file__).parents[3]


def claim(left: float, right: float, holds_in: int, seeds: int = 3, relation: str = ">") -> dict[str, Any]:
    sides = {"left": "a", "relation": relation, "right": "b", "column": "x", "means": [left, right]}
    return {"claim": "a is better", **sides, "holds_in": holds_in, "seeds": seeds}


def ledger(folder: Path, tables: dict[str, Any], *statements: dict[str, Any]) -> Any:
    for name, content in tables.items():
        write_json(folder / "results" / f"{name}.json", content)
    said = [{"says": f"statement {i}", "source": "table 1", **one} for i, one in enumerate(statements)]
    (folder / "ledger.yaml").write_text(
        yaml.safe_dump(
            [{"work": "A paper", "headlines": [{"headline": "it works", "statements": said}]}], sort_keys=False
        )
    )
    return read_ledger(folder / "ledger.yaml", folder / "results")


def test_verdicts_by_hand(tmp_path: Path) -> None:
    rows = [{"system": s, "seed": seed, "cost": seed + (s == "b")} for s in "ab" for seed in (1, 2, 3)]
    one = {"claims": [claim(0.9, 0.1, 3), claim(0.1, 0.9, 0), claim(0.5, 0.5, 2), claim(0.2, 1.0, 0)], "rows": rows}
    two = {"claims": [claim(0.8, 0.1, 2, seeds=2), claim(0.1, 0.7, 0), claim(0.3, 0.2, 1, seeds=1)]}
    judged = {"claims": [claim(0.9, 0.1, 3)], "gate": {"passed": False}}
    headlines = ledger(
        tmp_path,
        {"w/one": one, "w/two": two, "r/judged": judged},
        {"at": {"w/one": 0, "w/two": 0}},  # two seeds decide nothing where three say something
        {"at": {"w/one": 1, "w/two": 1}},
        {"at": {"w/one": 2}},
        {"at": {"w/one": 3}, "cannot": {"w/one": "bound"}},
        {"at": {"w/two": 2, "r/judged": 0}},  # one seed, and a judge that does not pass
        {"at": {"w/one": ["a < b cost", "b > a cost"]}},
        {"at": {"w/one": ["a < b cost", "a > b cost"]}},
        {},
    )
    assert [statement.verdict for statement in headlines[0].statements] == [
        "reproduced", "contradicted", "undecided", "cannot be asked here", "undecided", "reproduced", "contradicted",
        "not run",
    ]  # fmt: skip
    assert headlines[0].statements[3].asked[0].why == "`b` has 1.000 there, and nothing can be better"
    assert headlines[0].statements[4].asked[1].why == "its judge does not pass"
    assert count_verdicts(headlines)["undecided"] == 2


def test_several_comparisons_hold_in_the_seeds_in_which_all_do(tmp_path: Path) -> None:
    costs = {"a": (1, 1, 1), "b": (2, 0, 0), "c": (0, 2, 2), "d": (5, 5, 5)}
    rows = [{"system": s, "seed": i, "cost": cost} for s, own in costs.items() for i, cost in enumerate(own)]
    (headline,) = ledger(
        tmp_path, {"w/one": {"rows": rows}}, {"at": {"w/one": ["a < d cost", "a < b cost", "a < c cost"]}}
    )
    (asked,) = headline.statements[0].asked
    assert (asked.holds_in, asked.seeds, asked.verdict) == (0, 3, "contradicted")
    assert asked.means == pytest.approx((1, 2 / 3))  # of the comparison that holds in the fewest seeds


@pytest.mark.parametrize(
    ("statements", "message"),
    [
        ([], "comparison 0 of w/one is in no statement: a is better"),
        ([{"at": {"w/one": 0}}, {"at": {"w/one": 0}}], "statement 1.*comparison 0 of w/one is in two statements"),
        ([{"at": {"w/one": 1}}], "has 1 comparisons, and none with number 1"),
        ([{"at": {"w/one": 0}, "cannot": {"w/one": "bound"}}], "b has 0.1, which is no bound"),
        ([{"at": {"w/one": 0}, "cannot": {"w/two": "why"}}], "cannot names w/two, which is not asked"),
        ([{"at": {"w/one": "a > c x"}}], "w/one has no row c"),
        ([{"at": {"w/one": 0}, "caveat": {"w/two": "why"}}], "caveat names w/two, which is not asked"),
        ([{"at": {"w/two": 0}}], "two.json"),
        ([{"at": {"w/one": 0}, "reason": "x"}], "unknown key reason"),
    ],
)
def test_what_a_ledger_may_not_say(tmp_path: Path, statements: list[dict[str, Any]], message: str) -> None:
    rows = [{"system": s, "seed": 1, "x": 1.0} for s in "ab"]
    with pytest.raises(DataError, match=message):
        ledger(tmp_path, {"w/one": {"claims": [claim(0.9, 0.1, 3)], "rows": rows}}, *statements)


def test_a_caveat_stands_beside_an_answer_and_changes_none(tmp_path: Path) -> None:
    one = {"at": {"w/one": 0}, "caveat": {"w/one": "of three seeds"}}
    (headline,) = ledger(tmp_path, {"w/one": {"claims": [claim(0.9, 0.1, 3)]}}, one)
    (asked,) = headline.statements[0].asked
    assert (asked.caveat, asked.why, headline.statements[0].verdict) == ("of three seeds", "", "reproduced")


def test_a_table_in_no_statement_is_named_with_the_reason(tmp_path: Path) -> None:
    tables = {"w/one": {"claims": [claim(0.9, 0.1, 3)]}, "w/two": {"rows": []}}
    ledger(tmp_path, tables, {"at": {"w/one": 0}})
    path = tmp_path / "ledger.yaml"
    raw = yaml.safe_load(path.read_text())
    for name, found in (("w/two", True), ("w/one", False), ("w/three", False)):
        path.write_text(yaml.safe_dump([*raw, {"outside": {name: "nobody says it"}}]))
        if found:
            assert read_outside(path, tmp_path / "results") == [Outside("w/two", "nobody says it")]
        else:
            with pytest.raises(DataError, match=f"{name} is no committed table that is in no statement"):
                read_outside(path, tmp_path / "results")


def test_the_committed_ledger_has_every_comparison_once() -> None:
    headlines = read_ledger(ROOT / "docs/site/ledger.yaml", ROOT / "docs/results")
    said = [(statement.says, statement.source) for headline in headlines for statement in headline.statements]
    assert len(set(said)) == len(said) == sum(count_verdicts(headlines).values())
    tables = {one.table for headline in headlines for statement in headline.statements for one in statement.asked}
    outside = {one.table for one in read_outside(ROOT / "docs/site/ledger.yaml", ROOT / "docs/results")}
    assert tables | outside >= {"canard/smollm2", "turns/talk_world", "inscit/world_ppo"}


def test_statements_about_curves_hold_of_half_of_all_noise_at_most() -> None:
    """Each of the dynamics table's, of curves of 13 validations without any trend."""
    noise = {series: np.random.default_rng(i).normal(size=(20_000, 13)) for i, series in enumerate("rc")}
    columns = {
        "start": lambda of: of[:, 0],
        "end": lambda of: of[:, -1],
        "lowest_at": lambda of: of.argmin(1),
        "highest_at": lambda of: of.argmax(1),
    }
    for one in DynamicsTable.claims:
        left = columns[one.column](noise["r"])
        right = columns[one.right_column or one.column](noise["r" if one.left == one.right else "c"])
        share = float(np.mean(left > right if one.relation == ">" else left < right))
        assert share < 0.52, one.text


@pytest.mark.parametrize("name", ["factworld/dynamics", "conqrr/supervision"])
def test_committed_comparisons_are_those_of_their_rows(name: str) -> None:
    """These were made anew of committed rows, without running anything again."""
    from finegrained_lab.experiments.comparison import check_claims
    from finegrained_lab.experiments.conqrr.supervision import SupervisionTable

    result = read_json(ROOT / "docs/results" / f"{name}.json")
    table = DynamicsTable if name.startswith("factworld") else SupervisionTable
    assert result["claims"] == check_claims(table.claims, result["rows"])
