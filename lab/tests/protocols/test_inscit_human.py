"""People rate systems: tasks out, exports back, points and ranks by hand, figures of raters whose answers are known."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from inscit_toy import conversations
from script_runs import run_script

from finegrained_lab.protocols.human.ratings import (
    TurnRating,
    human_scores,
    points,
    raters_alpha,
    read_ratings,
    write_ratings,
)
from finegrained_lab.protocols.human.tasks import MakeHumanEvaluation, ReadHumanEvaluation
from finegrained_lab.published.inscit.data import read_inscit, turns_of
from finegrained_lab.published.inscit.predictions import InscitPrediction, last_turn, write_predictions
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import read_json, write_json
from finegrained_rlhf.retrieval.corpus import Corpus
from finegrained_rlhf.retrieval.passages import build_store

RATERS = ("ann", "ben")


def rating(turn: int = 1, rater: str = "ann", most: str = "a", least: str = "", **values: tuple[int, int, int]) -> Any:
    names = ("evidence_utility", "factual_consistency", "coherence")
    given = values or {"a": (2, 2, 2), "b": (0, -10, 1), "c": (-2, -1, -2)}
    said = {system: dict(zip(names, row, strict=True)) for system, row in given.items()}
    return TurnRating("c1", turn, rater, said, frozenset(most), frozenset(least))


def test_points_and_ranks_are_the_originals() -> None:
    assert [points("evidence_utility", v) for v in (2, 1, 0, -1, -2, -10)] == [5, 4, 3, 2, 1, 5]
    assert [points("coherence", v) for v in (2, 1, -1, -2)] == pytest.approx([5, 11 / 3, 7 / 3, 1])
    one = rating(most="a", least="c")
    assert [one.rank(name) for name in "abc"] == [1, 2, 3]
    tied = rating(most="ab", least="c")
    assert [tied.rank(name) for name in "abc"] == [1, 1, 2]  # nothing lies between
    assert [rating(most="a").rank(name) for name in "abc"] == [1, 2, 2]


def test_figures_by_hand() -> None:
    rows = [
        rating(1, "ann", "a", "b", a=(2, 2, 2), b=(0, -10, 1)),
        rating(1, "ben", "ab", a=(0, 2, 2), b=(0, 0, 1)),
        rating(2, "ann", "b", a=(-2, -2, -2), b=(1, 1, 1)),
        rating(2, "ben", "b", a=(-2, -2, -2), b=(1, 1, 1)),
    ]
    found = human_scores(rows, draws=20)
    a, b = found["systems"]["a"], found["systems"]["b"]
    assert a["evidence_utility"] == pytest.approx((4 + 1) / 2) and b["factual_consistency"] == pytest.approx(
        (4 + 4) / 2
    )
    assert a["comprehensiveness"] == pytest.approx((1 + 2) / 2) and b["comprehensiveness"] == pytest.approx(1.25)
    assert b["factual_consistency_nothing_to_rate"] == 0.25 and found["turns"] == 2 and found["conversations"] == 1
    pair = found["pairs"]["a against b"]
    assert pair["evidence_utility"] == {"win": 1, "tie": 0, "lose": 1}
    assert pair["comprehensiveness"] == {"win": 1, "tie": 0, "lose": 1}  # a lower rank wins
    wide = human_scores(rows, tolerance=1.0, draws=0)["pairs"]["a against b"]
    assert wide["evidence_utility"] == {"win": 0, "tie": 1, "lose": 1}
    assert a["evidence_utility_interval"] == [None, None]  # of one conversation


def test_alpha_is_that_of_krippendorffs_library() -> None:
    import krippendorff
    import numpy as np

    generator = np.random.default_rng(3)
    rows = []
    for turn in range(1, 8):
        for rater in ("ann", "ben", "cleo"):
            if (turn, rater) == (3, "cleo"):
                continue  # did not rate it
            values = {s: tuple(int(v) for v in generator.choice([2, 1, -1, -2], 3)) for s in "abc"}
            rows.append(rating(turn, rater, "a", "b" if turn % 2 else "", **values))
    for measure in ("evidence_utility", "coherence", "comprehensiveness"):
        units = [(turn, system) for turn in range(1, 8) for system in "abc"]
        table = np.full((3, len(units)), np.nan)
        for row in rows:
            for column, (turn, system) in enumerate(units):
                if row.turn == turn:
                    told = (
                        row.rank(system)
                        if measure == "comprehensiveness"
                        else points(measure, row.values[system][measure])
                    )
                    table[("ann", "ben", "cleo").index(row.rater), column] = told
        expected = krippendorff.alpha(reliability_data=table, level_of_measurement="interval")
        assert raters_alpha(rows, measure) == pytest.approx(expected)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tasks of two systems and the human, for two raters."""
    tmp_path = tmp_path_factory.mktemp("rating")
    write_json(tmp_path / "dev.json", conversations())
    turns = turns_of(read_inscit(tmp_path / "dev.json").conversations)
    said = last_turn(turns)
    write_predictions(tmp_path / "last.json", turns, said)
    said[turns[0].key] = InscitPrediction("<b>Milk</b> & more", ("Elsewhere:1",))
    write_predictions(tmp_path / "other.json", turns, said)
    row = {"id": "Elsewhere:1", "text": "A text\nof the corpus.", "title": "Elsewhere"}
    (tmp_path / "corpus.jsonl").write_text(json.dumps(row) + "\n")
    build_store(Corpus(tmp_path / "corpus.jsonl"), tmp_path / "store", progress=False)
    done = run_script(
        "make_human_evaluation",
        f"data={tmp_path}/dev.json",
        f"predictions={{last:{tmp_path}/last.json,other:{tmp_path}/other.json}}",
        "raters=[ann,ben]",
        f"corpus={tmp_path}/corpus.jsonl",
        f"store={tmp_path}/store",
        f"output_dir={tmp_path}/tasks",
    )
    assert done.returncode == 0 and "4 turns of 2 conversations for 2 raters" in done.stdout, done.stderr
    return tmp_path


def test_tasks_show_every_system_in_an_order_of_its_own(made: Path) -> None:
    orders = read_json(made / "tasks" / "manifest.json")["orders"]
    assert all(sorted(order) == ["human", "last", "other"] for of in orders.values() for order in of.values())
    assert len({tuple(order) for of in orders.values() for order in of.values()}) > 1
    for number, rater in enumerate(RATERS, start=1):
        tasks = read_json(made / "tasks" / f"rater_{number}" / "tasks.json")
        data = next(task["data"] for task in tasks if task["data"]["task"] == "food_level1_dial24_1")
        place = orders[rater]["food_level1_dial24_1"].index("other") + 1
        assert data[f"response_{place}"] == "<b>Milk</b> & more"
        assert data[f"evidence_{place}"] == "[Elsewhere:1] Elsewhere\nA text\nof the corpus."
        human = orders[rater]["food_level1_dial24_1"].index("human") + 1
        assert data[f"evidence_{human}"].startswith("[Types of cheese:19] Cheese\nAbout")
        assert "User: What is cheese made from?" in data["context"] and "last" not in json.dumps(data)
    root = ElementTree.fromstring((made / "tasks" / "rater_1" / "label_config.xml").read_text())
    names = [one.get("name") for one in root.iter("Choices")]
    assert names[:2] == ["evidence_utility_1", "factual_consistency_1"] and names[-2:] == ["most", "least"]
    assert len(names) == 11


def export(made: Path, number: int) -> list[dict[str, Any]]:
    """A rater who finds the human best, `last` next, and says so of every turn."""
    rater = RATERS[number - 1]
    orders = read_json(made / "tasks" / "manifest.json")["orders"][rater]
    rows = []
    for task in read_json(made / "tasks" / f"rater_{number}" / "tasks.json"):
        order = orders[task["data"]["task"]]
        result = []
        for place, system in enumerate(order, start=1):
            value = {"human": "+2", "last": "+1", "other": "-2"}[system]
            for scale in ("evidence_utility", "factual_consistency", "coherence"):
                result.append({"from_name": f"{scale}_{place}", "value": {"choices": [value]}})
        for name, system in (("most", "human"), ("least", "other")):
            chosen = [f"System {order.index(system) + 1}"]
            result.append({"from_name": name, "value": {"choices": chosen}})
        rows.append({**task, "annotations": [{"was_cancelled": False, "result": result}]})
    return rows


def test_what_raters_said_comes_back_and_is_scored(made: Path, tmp_path: Path) -> None:
    files = {rater: str(tmp_path / f"{rater}.json") for rater in RATERS}
    for number, file in enumerate(files.values(), start=1):
        write_json(file, export(made, number))
    told = "{" + ",".join(f"{rater}:{file}" for rater, file in files.items()) + "}"
    done = run_script("read_human_evaluation", f"exports={told}", f"tasks={made}/tasks", f"output={tmp_path}/r.jsonl")
    assert done.returncode == 0 and "8 ratings of 2 raters" in done.stdout, done.stderr
    done = run_script("score_human_evaluation", f"ratings={tmp_path}/r.jsonl", "format=json", "draws=50")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found == json.loads(json.dumps(human_scores(read_ratings(tmp_path / "r.jsonl"), draws=50)))
    assert found["systems"]["human"]["coherence"] == 5.0 and found["systems"]["other"]["evidence_utility"] == 1.0
    assert found["systems"]["last"]["comprehensiveness"] == 2.0 and found["alpha"]["coherence"] == 1.0
    pair = next(counts for name, counts in found["pairs"].items() if set(name.split(" against ")) == {"human", "other"})
    assert {pair["coherence"]["win"], pair["coherence"]["lose"]} == {0, 4}
    done = run_script("score_human_evaluation", f"ratings={tmp_path}/r.jsonl", f"output={tmp_path}/o.json")
    assert done.returncode == 0 and "Krippendorff's α" in done.stdout and read_json(tmp_path / "o.json")["turns"] == 4


def first(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = rows[0]["annotations"][0]["result"]
    return result


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda rows: first(rows).pop(0), r"field evidence_utility_1: expected one of \+2, .*, got \[\]"),
        (lambda rows: first(rows)[0]["value"].update(choices=["7"]), r"evidence_utility_1: expected one of .*\['7'\]"),
        (lambda rows: first(rows)[2]["value"].update(choices=["no facts"]), "field coherence_1: expected one of"),
        (lambda rows: first(rows)[-1]["value"].update(choices=["System 9"]), "field least: expected some of System 1"),
        (lambda rows: first(rows)[-1].update(from_name="most"), None),
        (lambda rows: first(rows)[-2]["value"].update(choices=[]), "field most: expected at least one most"),
        (lambda rows: rows[0]["data"].update(task="other 1"), "'other 1' is none of the turns"),
        (lambda rows: rows[0]["annotations"].append(rows[0]["annotations"][0]), "2 finished annotations, expected one"),
        (lambda rows: rows[0].pop("annotations"), "field annotations: missing field"),
    ],
)
def test_exports_that_cannot_be(
    made: Path, tmp_path: Path, change: Callable[[Any], object], problem: str | None
) -> None:
    rows = export(made, 1)
    change(rows)
    write_json(tmp_path / "ann.json", rows)
    job = ReadHumanEvaluation(
        exports={"ann": str(tmp_path / "ann.json")}, tasks=f"{made}/tasks", output=f"{tmp_path}/r.jsonl"
    )
    if problem is None:
        assert len(job.run()) == 4  # two most comprehensive systems
        return
    with pytest.raises(DataError, match=problem):
        job.run()
    assert not (tmp_path / "r.jsonl").exists()


def test_an_unknown_rater_and_a_skipped_task(made: Path, tmp_path: Path) -> None:
    places = {"tasks": f"{made}/tasks", "output": f"{tmp_path}/r.jsonl"}
    write_json(tmp_path / "x.json", export(made, 1))
    with pytest.raises(DataError, match="'cleo' is none of the raters ann, ben"):
        ReadHumanEvaluation(exports={"cleo": f"{tmp_path}/x.json"}, **places).run()
    rows = export(made, 1)
    rows[0]["annotations"][0]["was_cancelled"] = True
    write_json(tmp_path / "x.json", rows)
    assert len(ReadHumanEvaluation(exports={"ann": f"{tmp_path}/x.json"}, **places).run()) == 3


def test_rows_of_ratings_that_cannot_be(tmp_path: Path) -> None:
    write_ratings(tmp_path / "r.jsonl", [rating(), rating(2)])
    assert read_ratings(tmp_path / "r.jsonl") == [rating(), rating(2)]
    for rows, problem in (
        ([rating(), rating()], "record 1, field rater: ann has rated 'c1', turn 1 twice"),
        ([rating(), rating(2, a=(2, 2, 2))], "record 1, field values: rates a, the rows before it others"),
    ):
        write_ratings(tmp_path / "r.jsonl", rows)
        with pytest.raises(DataError, match=problem):
            read_ratings(tmp_path / "r.jsonl")
    (tmp_path / "r.jsonl").write_text("")
    with pytest.raises(DataError, match="expected at least one rating"):
        read_ratings(tmp_path / "r.jsonl")
    for wrong, problem in (
        ({"most": "x"}, "names x, which are not rated"),
        ({"most": "a", "least": "a"}, "a cannot be most and least comprehensive"),
    ):
        with pytest.raises(DataError, match=problem):
            rating(**wrong)  # type: ignore[arg-type]


def test_settings_that_cannot_be() -> None:
    for wrong, problem in (
        ({"raters": []}, "raters: expected one name or more"),
        ({"predictions": {}}, "expected two systems or more"),
        ({"predictions": {"human": "f"}}, "human names the labels of the data"),
        ({"conversations": 0}, "conversations: expected null or at least 1"),
        ({"store": "s"}, "store: expected the corpus"),
    ):
        with pytest.raises(ConfigError, match=problem):
            MakeHumanEvaluation(**{"data": "d", "raters": ["a"], "output_dir": "o", "predictions": {"x": "f"}, **wrong})


def test_what_is_not_rated_is_said_and_nothing_is_rated_twice(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = export(made, 1)
    rows[1]["annotations"][0]["was_cancelled"] = True
    write_json(tmp_path / "ann.json", rows[:-1])
    keys = {"exports": {"ann": str(tmp_path / "ann.json")}, "tasks": str(made / "tasks")}
    assert len(ReadHumanEvaluation(**keys, output=str(tmp_path / "r.jsonl")).run()) == 2
    assert "2 ratings of 1 raters, 2 turns are not rated" in capsys.readouterr().out
    write_json(tmp_path / "ann.json", [*rows, rows[0]])
    with pytest.raises(DataError, match="ann.json, record .*: is there twice"):
        ReadHumanEvaluation(**keys, output=str(tmp_path / "twice.jsonl")).run()
    assert not (tmp_path / "twice.jsonl").exists()


def test_evidence_that_a_known_corpus_lacks_is_refused(made: Path) -> None:
    (made / "part.jsonl").write_text('{"id": "Cheese:0", "text": "text"}\n')
    job = MakeHumanEvaluation(
        data=str(made / "dev.json"),
        predictions={"last": str(made / "last.json")},
        raters=["ann"],
        output_dir=str(made / "refused"),
        known_passages=str(made / "part.jsonl"),
    )
    with pytest.raises(DataError, match=r"dev.json, .*passage_id: .* is no passage of the corpus"):
        job.run()
    assert not (made / "refused").exists()
