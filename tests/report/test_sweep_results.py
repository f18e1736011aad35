"""From the files of points and baselines to table, front, plot and page."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import read_json, write_json
from finegrained_rlhf.report.sweeps.markdown import exported_words, metric_words, sweep_table_page
from finegrained_rlhf.report.sweeps.results import ParetoAxes, SweepTable, pareto_front

AXES = ParetoAxes("completeness", "error", y_better="lower")
TABLE = SweepTable("A <sweep>", "What it shows.", metrics={"completeness": "comp.", "error": "err"}, pareto=AXES)


def measured(root: Path, place: str, completeness: float, error: float) -> str:
    numbers = {"completeness": completeness, "error": error, "reward/a/raw": 1.0, "reward/total": 2.0}
    how = {"checkpoint": "sft", "examples": 5, "best_of": 4, "temperature": 0.7, "seed": 3}
    write_json(root / place / "evaluation.json", {**how, **numbers})
    return place


def point(root: Path, weight: float, seed: int, completeness: float, error: float) -> dict[str, Any]:
    name = f"a_{weight}-seed_{seed}"
    measured(root, f"points/{name}", completeness, error)
    baselines = {
        "1": measured(root, f"baselines/initial-{seed}", 0.3, 0.5),
        "4": measured(root, f"baselines/best_of_4-{weight}-{seed}", 0.4 + weight / 100, 0.4),
    }
    record = {"name": name, "status": "done", "seed": seed, "commit": "c0ffee", "minutes": 2.5, "baselines": baselines}
    return {**record, "swept": {"reward.weights.a": str(weight), "seed": str(seed)}, "weights": {"a": weight, "b": 0.5}}


@pytest.fixture
def points(tmp_path: Path) -> list[dict[str, Any]]:
    return [
        point(tmp_path, 0.2, 0, 0.9, 0.5),
        point(tmp_path, 0.2, 1, 0.7, 0.3),
        point(tmp_path, 0.6, 0, 0.6, 0.1),
        point(tmp_path, 0.6, 1, 0.6, 0.1),
        {"name": "a_9", "status": "failed", "stage": "training", "error": "exit status 2: a | b", "log": "log.txt"},
    ]


def test_means_and_spread_over_seeds(tmp_path: Path, points: list[dict[str, Any]]) -> None:
    result = TABLE.collect(tmp_path, points, "python scripts/sweep.py")
    assert result == read_json(tmp_path / "sweep.json")
    assert [(entry["system"], entry["swept"], entry["n"]) for entry in result["summary"]] == [
        ("PPO", {"reward.weights.a": "0.2"}, 2),
        ("PPO", {"reward.weights.a": "0.6"}, 2),
        ("initial policy", {}, 2),
        ("best of 4", {"reward.weights.a": "0.2"}, 2),
        ("best of 4", {"reward.weights.a": "0.6"}, 2),
    ]
    found = result["summary"][0]["metrics"]["completeness"]
    assert found == pytest.approx({"mean": 0.8, "std": 0.02**0.5, "min": 0.7, "max": 0.9})
    assert result["seeds"] == [0, 1] and result["swept"] == ["reward.weights.a"]
    assert [entry["name"] for entry in result["failed"]] == ["a_9"]
    initial = [row for row in result["rows"] if row["system"] == "initial policy"]
    assert [row["run"] for row in initial] == ["baselines/initial-0", "baselines/initial-1"]
    assert all(row["weights"] == {} and "reward/total" not in row["metrics"] for row in initial)
    assert set(result["rows"][0]["metrics"]) == {"completeness", "error", "reward/a/raw", "reward/total"}


def test_the_front_takes_directions_into_account(tmp_path: Path, points: list[dict[str, Any]]) -> None:
    summary = TABLE.collect(tmp_path, points, "…")["summary"]
    assert [entry["front"] for entry in summary] == [True, True, False, False, False]  # (0.8, 0.4) and (0.6, 0.1)
    higher = replace(TABLE, pareto=ParetoAxes("completeness", "error"))
    summary = higher.collect(tmp_path, points, "…")["summary"]
    assert [entry["front"] for entry in summary] == [True, False, True, False, False]  # and the worst error of all


@pytest.mark.parametrize(
    "points, front",
    [
        ([], []),
        ([(0.0, 0.0)], [True]),
        ([(0.0, 1.0), (1.0, 0.0), (0.5, 0.5)], [True, True, True]),
        ([(0.0, 1.0), (1.0, 1.0), (1.0, 0.0)], [False, True, False]),
        ([(1.0, 1.0), (1.0, 1.0), (0.0, 2.0)], [True, True, True]),
    ],
)
def test_pareto_front(points: list[tuple[float, float]], front: list[bool]) -> None:
    assert pareto_front(points) == front


def test_pages(tmp_path: Path, points: list[dict[str, Any]]) -> None:
    result = TABLE.collect(tmp_path, points, "python scripts/sweep.py seed=0,1")
    page = (tmp_path / "sweep.md").read_text(encoding="utf-8")
    assert page == sweep_table_page(read_json(tmp_path / "sweep.json"))
    assert re.search(r"\| PPO +\| 0\.2 +\| 0\.5 +\| 2 +\| 0\.800 ± 0\.141 \| 0\.400 ± 0\.141 \| \* +\|", page)
    assert "seeds 0, 1" in page and "What it shows." in page and "`python scripts/sweep.py seed=0,1`" in page
    assert "minutes of all points add up to 10;" in page
    assert "w a" not in page  # it is swept under its own name
    assert "## Failed" in page and r"exit status 2: a \| b" in page
    assert all(row["system"] in page for row in result["rows"])
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "A &lt;sweep&gt;" in html and "best of 4" in html and "<svg" in html


def test_the_plot_marks_baselines_and_front(tmp_path: Path, points: list[dict[str, Any]]) -> None:
    result = TABLE.collect(tmp_path, points, "…")
    markup = (tmp_path / "pareto.svg").read_text(encoding="utf-8")
    TABLE.collect(tmp_path, points, "…")
    assert markup == (tmp_path / "pareto.svg").read_text(encoding="utf-8")  # no date, no random names
    assert ElementTree.fromstring(markup).tag.endswith("svg")
    words = re.findall(r"<!-- (.*?) -->", markup)  # matplotlib names the texts that it draws as outlines
    assert {"PPO", "initial policy", "best of 4", "Pareto front"} <= set(words)
    assert any(word.startswith("comp.") for word in words) and "0.2" in words
    assert result["pareto"] == {"x": "completeness", "y": "error", "x_better": "higher", "y_better": "lower"}


def test_a_point_that_exported_its_initial_policy_says_so(tmp_path: Path, points: list[dict[str, Any]]) -> None:
    for number, entry in enumerate(points[:4]):
        write_json(tmp_path / "points" / entry["name"] / "policy/export.json", {"step": 0 if number < 3 else 40})
    result = TABLE.collect(tmp_path, points, "…")
    assert [row["exported"] for row in result["rows"] if row["system"] == "PPO"] == [0, 0, 0, 40]
    assert [entry.get("exported") for entry in result["summary"]] == [[0, 0], [0, 40], None, None, None]
    page = (tmp_path / "sweep.md").read_text(encoding="utf-8")
    assert re.search(r"\| PPO +\| 0\.2 +\| 0\.5 +\| 0 = initial policy +\| 2 ", page)
    assert "| 0–40 (1 of 2 = initial policy) |" in page
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert html.count("<bdi>0 = initial policy</bdi>") == 4  # one row of means, three runs
    words = re.findall(r"<!-- (.*?) -->", (tmp_path / "pareto.svg").read_text(encoding="utf-8"))
    assert "0.2 = initial policy" in words and "0.6" in words


def test_the_initial_policy_is_listed_once_for_all_weights(tmp_path: Path, points: list[dict[str, Any]]) -> None:
    """Measured anew for another weight, with the same result: greedy answers do not depend on the weights."""
    for entry in points[2:4]:
        again = f"{entry['baselines']['1']}-again"
        measured(tmp_path, again, 0.3, 0.5)
        entry["baselines"]["1"] = again
    result = TABLE.collect(tmp_path, points, "…")
    initial = [row for row in result["rows"] if row["system"] == "initial policy"]
    assert [(row["seed"], row["swept"]) for row in initial] == [(0, {"seed": "0"}), (1, {"seed": "1"})]
    assert [entry["n"] for entry in result["summary"] if entry["system"] == "initial policy"] == [2]


def test_settings_of_the_sweep_itself_are_no_columns(tmp_path: Path, points: list[dict[str, Any]]) -> None:
    for entry in points[:4]:
        entry["swept"]["sweep.best_of"] = "[]"
    result = TABLE.collect(tmp_path, points, "…")
    assert result["swept"] == ["reward.weights.a"] and all(
        "sweep.best_of" not in row["swept"] for row in result["rows"]
    )
    assert "sweep.best_of" not in (tmp_path / "sweep.md").read_text(encoding="utf-8")


def test_columns_and_axes_are_in_words(tmp_path: Path, points: list[dict[str, Any]]) -> None:
    metrics = ("reward/a b/error_free_share", "mean_words", "own_metric", "reward/total")
    assert [metric_words(name) for name in metrics] == [
        "a b: error free share",
        "words an answer",
        "own metric",
        "weighted total",
    ]
    assert [exported_words(steps) for steps in ([None], [3], [3, 5], [0, None])] == [
        "",
        "3",
        "3–5",
        "0 = initial policy",
    ]
    TABLE.collect(tmp_path, points, "…")
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    table = html[html.index('<section id="points">') : html.index('<section id="pareto">')]
    assert "The same in all points: weight of b 0.5, n 2." in table and "<bdi>weight of b</bdi>" not in table
    assert "<bdi>weight of a</bdi>" in html and "reward.weights.a<" not in html
    words = re.findall(r"<!-- (.*?) -->", (tmp_path / "pareto.svg").read_text(encoding="utf-8"))
    assert any(word.startswith("comp.  (better") for word in words) and any(
        word.startswith("err  (b") for word in words
    )


def test_a_metric_that_is_not_there(tmp_path: Path, points: list[dict[str, Any]]) -> None:
    table = replace(TABLE, pareto=ParetoAxes("completeness", "nowhere"), metrics={"completeness": "c", "gone": "g"})
    TABLE.collect(tmp_path, points, "…")
    result = table.collect(tmp_path, points, "…")
    assert table.missing(result) == ["gone", "nowhere"]
    assert result["metrics"] == {"completeness": "c"} and result["pareto"] is None
    assert not (tmp_path / "pareto.svg").exists()


def test_without_metrics_named_all_but_raw_sums_are_shown(tmp_path: Path, points: list[dict[str, Any]]) -> None:
    result = replace(TABLE, metrics=None).collect(tmp_path, points, "…")
    assert list(result["metrics"]) == ["completeness", "error"]  # the initial policy has no total


def test_results_are_written_when_nothing_failed(tmp_path: Path, points: list[dict[str, Any]]) -> None:
    table = replace(TABLE, results=str(tmp_path / "results/customization.json"))
    table.collect(tmp_path, points, "…")
    assert not (tmp_path / "results").exists()
    result = table.collect(tmp_path, points[:4], "…")
    assert read_json(tmp_path / "results/customization.json") == result
    page = (tmp_path / "results/customization.md").read_text(encoding="utf-8")
    assert page == sweep_table_page(result) and "Failed" not in page


def test_a_sweep_of_which_nothing_is_done(tmp_path: Path, points: list[dict[str, Any]]) -> None:
    result = TABLE.collect(tmp_path, points[4:], "…")
    assert result["rows"] == result["summary"] == result["seeds"] == [] and len(result["failed"]) == 1
    assert "Every run" not in sweep_table_page(result)
    assert (tmp_path / "report.html").is_file() and not (tmp_path / "pareto.svg").exists()


def test_a_lost_evaluation_is_named(tmp_path: Path, points: list[dict[str, Any]]) -> None:
    (tmp_path / "points/a_0.2-seed_0/evaluation.json").unlink()
    with pytest.raises(DataError, match="a_0.2-seed_0/evaluation.json: no such file"):
        TABLE.collect(tmp_path, points, "…")


def test_directions() -> None:
    with pytest.raises(ConfigError, match="x_better: expected one of higher, lower"):
        ParetoAxes("a", "b", x_better="up")  # type: ignore[arg-type]


def test_the_committed_page_says_what_its_results_do() -> None:
    results = Path(__file__).parents[2] / "docs/results/factworld/customization.json"
    assert results.with_suffix(".md").read_text(encoding="utf-8") == sweep_table_page(read_json(results))
