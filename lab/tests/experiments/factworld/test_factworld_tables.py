"""The tables of FactWorld on hand-made directories: numbers by hand, statements that follow them, files, errors."""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import tables_toy as toy

from finegrained_lab.experiments.comparison import Claim, check_claims, claims_page, differences, spread_table
from finegrained_lab.experiments.factworld.answers import (
    MEASURES,
    factual_error_by_sub_sentence,
    read_judged,
    win_tie_lose,
)
from finegrained_lab.experiments.factworld.base import Table
from finegrained_lab.experiments.factworld.curves import first_below, mean_height, validations, z_normalised
from finegrained_lab.experiments.factworld.evaluated import EvaluatedTable
from finegrained_lab.experiments.factworld.tables import best_of, dynamics
from finegrained_lab.experiments.factworld.tables.ablation import AblationTable
from finegrained_lab.experiments.factworld.tables.aggregation import AggregationTable
from finegrained_lab.experiments.factworld.tables.algorithms import AlgorithmsTable
from finegrained_lab.experiments.factworld.tables.best_of import BestOfTable
from finegrained_lab.experiments.factworld.tables.compat import CompatTable
from finegrained_lab.experiments.factworld.tables.dynamics import DynamicsTable
from finegrained_lab.experiments.factworld.tables.efficiency import EfficiencyTable
from finegrained_lab.experiments.factworld.tables.systems import SystemsTable
from finegrained_lab.figures import band
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import read_json, write_json
from finegrained_rlhf.launch.pipeline import collector
from finegrained_rlhf.runtime.directory.provenance import command_line
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.text.tables import summarise_rows

TABLES: dict[str, type[Table]] = {
    "systems": SystemsTable,
    "ablation": AblationTable,
    "efficiency": EfficiencyTable,
    "dynamics": DynamicsTable,
    "aggregation": AggregationTable,
    "algorithms": AlgorithmsTable,
    "compat": CompatTable,
    "best_of": BestOfTable,
}


def table(kind: type[Table], directory: Path, seeds: list[int] | None = None) -> Table:
    output = str(directory / "results" / "table.json")
    return kind(output, "python …", str(directory), seeds or [1, 2], chosen="On seed 0.")


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds with every run and evaluation that a table reads; seed 2 errs a little more."""
    directory = tmp_path_factory.mktemp("tables")
    for seed in (1, 2):
        root = toy.write_seed(directory / f"seed_{seed}", seed)
        for number, run in enumerate(dict.fromkeys(run for kind in TABLES.values() for run in kind.runs)):
            toy.write_run(root, run, [0.34, 0.30 - 0.05 * seed + 0.01 * number, 0.10 + 0.01 * number])
        systems = [s for kind in TABLES.values() if issubclass(kind, EvaluatedTable) for s in kind.systems]
        for number, system in enumerate(dict.fromkeys(systems)):
            answers = {"a": toy.GOOD, "b": toy.WRONG if number % 2 else toy.SHORT}
            toy.write_evaluation(
                root, system, answers, factual_error_rate=0.05 * number, completeness=0.7 + 0.05 * seed
            )
    return directory


# Statements ------------------------------------------------------------------------------------------------------


def rows(**systems: list[float | None]) -> list[dict]:
    return [
        {"system": system, "seed": seed, "x": value, "y": 10.0}
        for system, values in systems.items()
        for seed, value in enumerate(values)
    ]


def test_a_claim_counts_the_seeds_in_which_it_holds() -> None:
    found = rows(ours=[0.1, 0.3, None], theirs=[0.2, 0.2, 0.2])
    less, more, other = check_claims(
        [
            Claim("ours errs less", "table 9", "x", "ours", "<", "theirs", (1.0, 2.0)),
            Claim("ours errs more", "table 9", "x", "ours", ">", "theirs"),
            Claim("x is below y", "table 9", "x", "ours", "<", "ours", right_column="y"),
        ],
        found,
    )
    assert (less["holds_in"], less["seeds"], less["thesis"]) == (1, 3, [1.0, 2.0])
    assert less["means"] == [pytest.approx(0.2), pytest.approx(0.2)]
    assert (more["holds_in"], other["holds_in"], other["right_column"]) == (1, 2, "y")
    page = claims_page([less, more, other], "FactWorld")
    assert "1.000 against 2.000" in page and "1 of 3 seeds" in page and "x against y" in page
    assert "Of these 3 statements 0 hold in every seed, 3 in some, 0 in none" in page


def test_equal_numbers_are_neither_less_nor_more() -> None:
    claims = [Claim("", "", "x", "ours", sign, "theirs") for sign in ("<", ">")]
    assert [c["holds_in"] for c in check_claims(claims, rows(ours=[0.5], theirs=[0.5]))] == [0, 0]


def test_differences_are_taken_seed_by_seed() -> None:
    found = differences(rows(ours=[0.1, 0.3], theirs=[0.2, 0.1], third=[None, 1.0]), "theirs", ["x", "y"])
    assert found["ours"]["x"] == {
        "mean": pytest.approx(0.05),
        "error": pytest.approx(0.15),
        "min": pytest.approx(-0.1),
        "max": pytest.approx(0.2),
        "higher": 1,
        "lower": 1,
        "seeds": 2,
    }
    assert found["ours"]["y"]["mean"] == 0 and (found["ours"]["y"]["higher"], found["ours"]["y"]["lower"]) == (0, 0)
    assert set(found) == {"ours", "third"} and set(found["third"]) == {"y"}


def test_spread_as_a_table() -> None:
    summary = {"ours": summarise_rows([{"x": 1.0}, {"x": 3.0}], ["x"]), "theirs": {}}
    lines = spread_table(summary, "system", ["x"], [4, 5]).splitlines()
    assert [cell.strip() for cell in lines[2].split("|")] == ["", "ours", "2.000 ± 1.414", ""]
    assert [cell.strip() for cell in lines[3].split("|")] == ["", "theirs", "–", ""]


def test_one_seed_has_no_spread(experiment: Path, tmp_path: Path) -> None:
    for kind in (CompatTable, DynamicsTable, SystemsTable):
        made = kind(str(tmp_path / "table.json"), "python …", str(experiment), [1], chosen="On seed 0.")
        page = made.page(made.run())
        assert "±" not in page and " in 1 of 1)" not in page and "\n## Seed 1\n" in page


def test_a_results_file_holds_the_resolved_configuration_and_the_command_line(
    experiment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "table.json"
    collect = {
        "_target_": "finegrained_lab.experiments.factworld.tables.compat.CompatTable",
        "directory": str(experiment),
        "seeds": [1, 2],
        "output": str(output),
        "command": "python scripts/run_experiment.py pipeline=factworld/compat",
        "chosen": "On seed 0.",
    }
    whole = {"output_dir": str(experiment), "settings": {"noise": 0.5}, "steps": {}, "collect": collect}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "scripts/run_experiment.py"), "experiment=x", "seeds=[1, 2]"])
    collector(whole).run()
    found = read_json(output)
    assert found["configuration"] == whole
    assert found["command_line"] == "python scripts/run_experiment.py experiment=x 'seeds=[1, 2]'"
    assert found["command"] == collect["command"] and found["commit"]
    monkeypatch.setattr(sys, "argv", ["/elsewhere/scripts/run_experiment.py"])
    assert command_line() == "python run_experiment.py"
    monkeypatch.setattr(sys, "argv", ["finegrained run-experiment", "seeds=[1, 2]"])
    assert command_line() == "finegrained run-experiment 'seeds=[1, 2]'"


# Curves ----------------------------------------------------------------------------------------------------------


def test_curves_by_hand() -> None:
    curve = {0: 4.0, 100: 2.0, 300: 1.0}
    assert mean_height(curve) == pytest.approx((100 * 3 + 200 * 1.5) / 300)
    assert mean_height({0: 3.0}) == 3.0
    assert (first_below(curve, 2.0), first_below(curve, 1.5), first_below(curve, 0.5)) == (100, 300, None)
    normalised = list(z_normalised(curve).values())
    assert statistics.fmean(normalised) == pytest.approx(0) and statistics.pstdev(normalised) == pytest.approx(1)
    assert sorted(normalised, reverse=True) == normalised
    assert z_normalised({0: 2.0, 5: 2.0}) == {0: 0.0, 5: 0.0}


def test_a_run_that_was_stopped_early_ends_the_band() -> None:
    found = band([{0: 1.0, 5: 2.0, 10: 9.0}, {0: 3.0, 5: 2.5}])
    assert found == {"episodes": [0, 5], "mean": [2.0, 2.25], "min": [1.0, 2.0], "max": [3.0, 2.5]}


def test_turning_points_are_the_first_of_equal_ones() -> None:
    found = dynamics.turning_points({0: 2.0, 320: 1.0, 640: 3.0, 960: 1.0, 1280: 3.0})
    assert found == {"start": 2.0, "lowest": 1.0, "highest": 3.0, "end": 3.0, "lowest_at": 320, "highest_at": 640}


def test_rewards_that_compete_change_against_each_other() -> None:
    up = {0: 0.0, 5: 1.0, 10: 3.0, 15: 3.5}
    assert dynamics.moves_together(up, {x: -2 * y for x, y in up.items()}) == pytest.approx(-1)
    changes, others = [1.0, 2.0, 0.5], [1.0, -1.0, 0.0]
    products = [(a - statistics.fmean(changes)) * b for a, b in zip(changes, others, strict=True)]
    expected = sum(products) / 3 / (statistics.pstdev(changes) * statistics.pstdev(others))
    assert dynamics.moves_together(up, {0: 5.0, 5: 6.0, 10: 5.0, 15: 5.0}) == pytest.approx(expected)
    assert dynamics.moves_together(up, {0: 1.0, 5: 2.0, 10: 3.0, 15: 4.0}) == 0.0


def test_validations_count_in_episodes(tmp_path: Path) -> None:
    toy.write_run(tmp_path, "run", [0.3, 0.2, 0.1])
    found = validations(tmp_path / "run")
    assert list(found) == [0, 320, 640] and found[320]["factual_error_rate"] == 0.2


def test_a_run_without_the_oracle_is_refused(tmp_path: Path) -> None:
    toy.write_run(tmp_path, "run", [0.3])
    path = RunDirectory(tmp_path / "run").eval
    path.write_text('{"step": 0, "score": 1.0}\n', encoding="utf-8")
    toy.write_run(tmp_path, "other", [0.3, 0.2])
    RunDirectory(tmp_path / "other").metrics.replace(RunDirectory(tmp_path / "run").metrics)
    with pytest.raises(DataError, match="relevance_error_rate: missing: train with FactWorld's oracle"):
        validations(tmp_path / "run")


# Answers ---------------------------------------------------------------------------------------------------------


def test_factual_errors_by_sub_sentence(tmp_path: Path) -> None:
    """One of four sub-sentences is irrelevant only and left out; one of the other three is wrong."""
    toy.write_evaluation(tmp_path, "ours", {"a": toy.WRONG, "b": toy.SHORT})
    assert factual_error_by_sub_sentence(read_judged(tmp_path, "ours")) == pytest.approx(1 / 3)


def test_wins_by_completeness_and_by_errors(tmp_path: Path) -> None:
    """A short answer misses a fact; a wrong one gives all, with two errors."""
    toy.write_evaluation(tmp_path, "ours", {"a": toy.GOOD, "b": toy.GOOD, "c": toy.SHORT, "d": toy.WRONG})
    toy.write_evaluation(tmp_path, "theirs", {"a": toy.SHORT, "b": toy.WRONG, "c": toy.WRONG, "d": toy.WRONG})
    ours, theirs = read_judged(tmp_path, "ours"), read_judged(tmp_path, "theirs")
    by = {name: win_tie_lose(ours, theirs, measure) for name, measure in MEASURES.items()}
    assert by["completeness"] == {"win": 0.25, "tie": 0.5, "lose": 0.25}
    assert by["errors"] == {"win": 0.75, "tie": 0.25, "lose": 0.0}
    del ours["a"]
    with pytest.raises(DataError, match="answered 3 and 4 questions"):
        win_tie_lose(ours, theirs, MEASURES["errors"])


def test_an_evaluation_without_reward_models_is_refused(tmp_path: Path) -> None:
    toy.write_evaluation(tmp_path / "seed_1", "sft", {"a": toy.GOOD})
    path = tmp_path / "seed_1" / "evaluation" / "sft.json"
    measured = read_json(path)
    del measured["reward/factuality/error_free_share"]
    write_json(path, measured)
    with pytest.raises(DataError, match=r"sft\.json, field reward/factuality/error_free_share: missing: evaluate with"):
        table(AblationTable, tmp_path, [1]).run()


# Tables ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TABLES)
def test_a_table_writes_results_page_and_figure(name: str, experiment: Path) -> None:
    made = table(TABLES[name], experiment)
    result = made.run()
    written = read_json(made.output)
    assert written["seeds"] == [1, 2] and written["command"] == "python …" and written["annotator_noise"] == 1.0
    assert {row["seed"] for row in written["rows"]} == {1, 2}
    for system, found in written["summary"].items():
        of_system = [row for row in written["rows"] if row["system"] == system]
        for column, spread in found.items():
            values = [row[column] for row in of_system]
            assert spread["mean"] == pytest.approx(sum(values) / 2)
            assert (spread["min"], spread["max"]) == (min(values), max(values))
            assert spread["std"] == pytest.approx(abs(values[0] - values[1]) / 2**0.5)
    assert len(result["rows"]) == 2 * len(result["summary"])
    page = Path(made.output).with_suffix(".md").read_text(encoding="utf-8")
    assert page == made.page(written)
    assert f"{2 * len(made.shared) * 3.0 / 60:.1f} minutes" in page  # the shared models: a step of 3 s each, two seeds
    if made.caption:
        root = ElementTree.parse(made.figure_path).getroot()
        assert root.tag.endswith("svg") and f"]({made.figure_path.name})" in page


def test_systems_beside_each_other(experiment: Path) -> None:
    result = table(SystemsTable, experiment).run()
    assert len(result["pairs"]) == 2 * 3 * 2
    spread = result["pairs_summary"]["errors"]["sft"]
    assert sum(spread[name]["mean"] for name in ("win", "tie", "lose")) == pytest.approx(1)
    by_claim = {(c["claim"], c["left"], c["right"]): c["holds_in"] for c in result["claims"]}
    assert (
        by_claim["fine-grained RLHF is more complete than SFT", "fine_grained_rlhf", "sft"] == 0
    )  # equal in both seeds


def test_episodes_to_levels(experiment: Path, tmp_path: Path) -> None:
    result = table(EfficiencyTable, experiment).run()
    dense = [row for row in result["rows"] if row["system"] == "fine_grained_rlhf"]
    number = list(dict.fromkeys(run for kind in TABLES.values() for run in kind.runs)).index("fine_grained_rlhf")
    assert dense[0]["mean_error"] == pytest.approx(0.10 + 0.01 * number)  # the last validation was exported
    middle = 0.25 + 0.01 * number
    assert dense[0]["error_during_training"] == pytest.approx((0.34 + 2 * middle + dense[0]["mean_error"]) / 4)
    assert (dense[0]["episodes_to_0.3"], dense[0]["episodes_to_0.1"]) == (320, None)


def test_rewards_of_the_dynamics_are_z_normalised_seed_by_seed(experiment: Path) -> None:
    result = table(DynamicsTable, experiment).run()
    for found in result["z_normalised"].values():
        assert statistics.fmean(found["mean"]) == pytest.approx(0)
    start = next(r for r in result["rows"] if (r["system"], r["seed"]) == ("per_segment_relevance", 1))
    assert start["start"] == pytest.approx(1 - 2 * 0.34)
    whole = next(r for r in result["rows"] if (r["system"], r["seed"]) == ("reward_relevance", 1))
    assert whole["start"] == pytest.approx(4 * (1 - 2 * 0.34))


def test_best_of_says_from_which_number_on_it_is_as_good() -> None:
    def summary(**errors: float) -> dict:
        return {"summary": {name: {"mean_error": {"mean": error}} for name, error in errors.items()}}

    falling = dict(zip(best_of.SAMPLES, (0.4, 0.3, 0.2, 0.15, 0.1), strict=True))
    assert best_of.reached(summary(fine_grained_rlhf=0.2, **falling)).startswith("Best of 4 is the first")
    never = best_of.reached(summary(fine_grained_rlhf=0.05, **falling))
    assert never.startswith("No number of samples") and "best of 16: 0.100" in never


def test_seeds_must_be_given_and_belong_to_their_directories(experiment: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="several seeds: seeds="):
        CompatTable(str(tmp_path / "table.json"), "python …", str(tmp_path), None, chosen="On seed 0.").run()
    with pytest.raises(DataError, match="seed_3"):
        table(CompatTable, experiment, [1, 3]).run()
    toy.write_seed(tmp_path / "seed_1", 2)
    toy.write_run(tmp_path / "seed_1", "fine_grained_rlhf", [0.3, 0.2])
    with pytest.raises(DataError, match="field seed: expected seed 1, got 2"):
        table(DynamicsTable, tmp_path, [1]).run()


def test_seeds_with_different_annotators_are_not_mixed(tmp_path: Path) -> None:
    for seed, noise in ((1, 1.0), (2, 0.0)):
        toy.write_run(toy.write_seed(tmp_path / f"seed_{seed}", seed, noise), "fine_grained_rlhf", [0.3, 0.2])
    with pytest.raises(DataError, match="different noise"):
        table(DynamicsTable, tmp_path).run()


@pytest.mark.parametrize("body", [{"caption": "What is seen"}, {"draw": lambda self, result, path: None}])
def test_a_figure_is_a_caption_and_a_drawing(body: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=r"Half: a figure needs both a caption and draw\(\)"):
        type("Half", (CompatTable,), body)


def test_without_matplotlib_results_and_page_are_there(
    experiment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    made = DynamicsTable(str(tmp_path / "table.json"), "python …", str(experiment), [1], chosen="On seed 0.")
    with pytest.raises(ConfigError, match=r"pip install .*\[plots\]"):
        made.run()
    assert read_json(made.output)["seeds"] == [1] and Path(made.output).with_suffix(".md").is_file()
    assert not made.figure_path.exists()
