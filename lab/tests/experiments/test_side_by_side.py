"""Pages that put two kinds of reward side by side: current, and what they say of who was tuned, by hand."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import write_json

ROOT = Path(__file__).parents[3]
ARMS = ["dense", "holistic"]
ROW: dict[str, Any] = {
    "bed": "World", "algorithm": "PPO", "table": "w/table", "systems": ["a", "b"], "column": "x", "better": "<",
    "settings": "as found",
}  # fmt: skip


@pytest.fixture(scope="module")
def module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("side_by_side", ROOT / "docs/site/side_by_side.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def write(results: Path, name: str, left: list[float], right: list[float], **more: Any) -> None:
    rows = [{"system": s, "seed": i, "x": x} for s, of in (("a", left), ("b", right)) for i, x in enumerate(of)]
    write_json(results / f"{name}.json", {"commit": "0123456789ab", "rows": rows, **more})


def test_the_pages_are_what_the_results_files_say(module: ModuleType) -> None:
    for path, text in module.pages():
        assert path.read_text(encoding="utf-8") == text, "run: python docs/site/side_by_side.py"
        for other in ("docs/experiments.md", "docs/proven.md", "README.md"):
            assert path.name in (ROOT / other).read_text(encoding="utf-8"), other


def test_who_is_better_in_how_many_seeds(module: ModuleType, tmp_path: Path) -> None:
    write(tmp_path, "w/table", [0.1, 0.2, 0.3], [0.2, 0.4, 0.6])
    row = module.row_of(ROW, ARMS, tmp_path)
    assert (row["dense"], row["holistic"], row["difference"]) == ("0.200", "0.400", "-0.200 ± 0.058")
    assert (row["dense is better in"], row["better in every seed"]) == ("3 of 3", "dense")
    row = module.row_of({**ROW, "better": ">"}, ARMS, tmp_path)
    assert (row["dense is better in"], row["better in every seed"]) == ("0 of 3", "holistic")
    write(tmp_path, "w/table", [0.1, 0.4], [0.2, 0.4])
    assert module.row_of(ROW, ARMS, tmp_path)["better in every seed"] == "neither"  # a tie is none
    write(tmp_path, "w/table", [0.1], [0.2])
    row = module.row_of(ROW, ARMS, tmp_path)
    assert (row["difference"], row["better in every seed"]) == ("-0.100", "–")


def test_equal_budgets_are_counted_in_the_grids(module: ModuleType, tmp_path: Path) -> None:
    write(tmp_path, "w/table", [0.1, 0.2], [0.2, 0.4])
    write(tmp_path, "w/grid", [0.1] * 4, [0.2] * 4)
    write(tmp_path, "w/more", [], [0.2] * 3)
    tuned = "both tuned by the same budget"
    grids = {key: value for key, value in ROW.items() if key != "settings"}
    assert module.row_of(ROW, ARMS, tmp_path)[tuned] == "no: as found"
    row = module.row_of({**grids, "grids": ["w/grid"]}, ARMS, tmp_path)
    assert row[tuned] == "yes: 4 runs each ([grid](results/w/grid.md))"
    row = module.row_of({**grids, "grids": ["w/grid", "w/more"]}, ARMS, tmp_path)
    assert row[tuned].startswith("no: 4 against 7 runs")
    row = module.row_of({**grids, "grids": ["w/more"]}, ARMS, tmp_path)
    assert row[tuned].startswith("no: 0 against 3 runs")
    page = {"title": "T", "arms": ARMS, "about": "A.", "rows": [ROW, {**grids, "grids": ["w/grid"]}]}
    text = module.page_of(page, tmp_path)
    assert "Of the 2 rows 1 count" in text and "in 1 of these dense is better in every seed, in 0 holistic" in text


def test_a_table_of_one_seed_names_it_among_its_settings_and_says_nothing_of_others(
    module: ModuleType, tmp_path: Path
) -> None:
    points = [{"system": system, "lr": lr} for system in "ab" for lr in (1e-4, 3e-4)]
    rows = [{"system": "a", "x": 0.1}, {"system": "b", "x": 0.2}]
    write_json(tmp_path / "w/table.json", {"rows": rows, "points": points, "configuration": {"seed": 7}})
    tuned = {**{key: value for key, value in ROW.items() if key != "settings"}, "grids": ["w/table"]}
    row = module.row_of(tuned, ARMS, tmp_path)
    assert (row["dense is better in"], row["better in every seed"]) == ("1 of 1", "–")
    assert row["both tuned by the same budget"].startswith("yes: 2 runs each")  # of the points of the table itself
    text = module.page_of({"title": "T", "arms": ARMS, "about": "A.", "rows": [tuned]}, tmp_path)
    assert "in 0 of these dense is better in every seed, in 0 holistic, in 0 neither; 1 are of one seed" in text


def test_a_learned_judge_counts_where_it_passes(module: ModuleType, tmp_path: Path) -> None:
    judged = {**ROW, "judge": "learned model"}
    for more, counts in (
        ({}, "no: its judge was put to no test"),
        ({"gate": {"passed": False}}, "no: its judge does not pass"),
        ({"gate": {"passed": True}}, "yes"),
    ):
        write(tmp_path, "w/table", [0.1, 0.2], [0.2, 0.4], **more)
        assert module.row_of(judged, ARMS, tmp_path)["counts"] == counts
        assert module.row_of(ROW, ARMS, tmp_path)["counts"] == "yes"
        assert module.row_of({**ROW, "flaw": "untrained"}, ARMS, tmp_path)["counts"] == "no: untrained"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"column": "y"}, "w/table has no y of a"),
        ({"systems": ["a", "c"]}, "w/table has no x of c"),
        ({"table": "w/none"}, "none.json"),
        ({"table": "w/changed"}, "w/changed was made of files that differ from 0123456789ab-dirty"),
        ({"hint": 1}, "unknown key hint"),
    ],
)
def test_what_a_row_may_not_name(module: ModuleType, tmp_path: Path, change: dict[str, Any], message: str) -> None:
    write(tmp_path, "w/table", [0.1, 0.2], [0.2, 0.4])
    write(tmp_path, "w/changed", [0.1], [0.2], commit="0123456789ab-dirty")
    with pytest.raises(DataError, match=message):
        module.row_of({**ROW, **change}, ARMS, tmp_path)
