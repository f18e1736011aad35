"""Ranking metrics by hand, against a plain loop and against pytrec_eval; runs and judgements survive their files."""

from __future__ import annotations

import math
import random
import sys
from pathlib import Path

import numpy as np
import pytest
import pytrec_eval

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.retrieval.protocol import Hit
from finegrained_rlhf.retrieval.ranking import RankingMetrics, mean_of_turns
from finegrained_rlhf.retrieval.runs import (
    in_trec_order,
    read_id,
    read_judgements,
    read_trec_run,
    write_judgements,
    write_trec_run,
    written_id,
)

RUN = {
    "gold_second": [Hit("a", 3.0), Hit("b", 2.0), Hit("c", 1.0)],
    "not_found": [Hit("a", 1.0)],
    "no_gold": [Hit("a", 1.0)],
    "two_gold": [Hit("d", 4.0), Hit("a", 3.0), Hit("b", 2.0), Hit("c", 1.0)],
}
GOLD = {"gold_second": {"b": 1}, "not_found": {"z": 1}, "absent": {"a": 1}, "two_gold": {"a": 1, "c": 1}, "no_gold": {}}
TURNS = ["gold_second", "not_found", "absent", "two_gold", "no_gold"]


def test_values_by_hand() -> None:
    values = RankingMetrics(recall_at=(1, 2), ndcg_at=(4,)).of_turns(RUN, GOLD, TURNS)
    assert list(values) == ["gold_second", "not_found", "absent", "two_gold"]
    second, two = values["gold_second"], values["two_gold"]
    assert (second["mrr"], second["recall@1"], second["recall@2"]) == (0.5, 0.0, 1.0)
    assert second["ndcg@4"] == pytest.approx(1 / math.log2(3))
    assert (two["mrr"], two["recall@2"], two["hit_rate@1"], two["hit_rate@2"]) == (0.5, 0.5, 0.0, 1.0)
    assert two["ndcg@4"] == pytest.approx((1 / math.log2(3) + 1 / math.log2(5)) / (1 + 1 / math.log2(3)))
    assert set(values["absent"].values()) == set(values["not_found"].values()) == {0.0}
    assert list(values["absent"]) == list(RankingMetrics(recall_at=(1, 2), ndcg_at=(4,)).names)


def test_further_metrics_by_hand() -> None:
    """Grades a 2, b 1, c 3; found b, x, a, y, c: precision 1/1, 2/3, 3/5 where gold is found, 2 of the first 3 gold.

    With c alone gold (grade 3) average precision is 1/5, R-precision 0; nDCG counts the grades either way.
    """
    run = {"q": [Hit(name, 5.0 - rank) for rank, name in enumerate("bxayc")], "r": [Hit("x", 1.0)]}
    grades = {"q": {"a": 2, "b": 1, "c": 3, "d": 0}, "r": {"b": 1}}
    also = ("map", "map@3", "r_precision", "ndcg", "precision@2", "precision@10", "ndcg@1")
    metrics = RankingMetrics(recall_at=(), ndcg_at=(), also=also)
    assert metrics.names == ("mrr", *also) and metrics.deepest == 10
    found = metrics.of_turns(run, grades, ["q", "r"])
    ndcg = (1 + 2 / math.log2(4) + 3 / math.log2(6)) / (3 + 2 / math.log2(3) + 1 / 2)
    by_hand = [1.0, (1 + 2 / 3 + 3 / 5) / 3, (1 + 2 / 3) / 3, 2 / 3, ndcg, 1 / 2, 3 / 10, 1 / 3]
    assert list(found["q"].values()) == pytest.approx(by_hand) and set(found["r"].values()) == {0.0}
    strict = metrics.of_turns({"q": run["q"]}, {"q": {"c": 1}}, ["q"], {"q": grades["q"]})["q"]
    assert [strict[name] for name in ("mrr", "map", "map@3", "r_precision")] == pytest.approx([1 / 5, 1 / 5, 0, 0])
    assert strict["ndcg"] == pytest.approx(ndcg)


def test_further_metrics_against_a_plain_loop() -> None:
    for seed in range(5):
        run, gold, turns = random_case(seed)
        found = RankingMetrics(also=("map", "r_precision", "precision@4")).of_turns(run, gold, turns)
        for turn, values in found.items():
            right = {passage for passage, grade in gold[turn].items() if grade > 0}
            marks = [hit.id in right for hit in in_trec_order(run.get(turn, []))]
            precisions = [sum(marks[: i + 1]) / (i + 1) for i, mark in enumerate(marks) if mark]
            assert values["map"] == pytest.approx(sum(precisions) / len(right))
            assert values["r_precision"] == pytest.approx(sum(marks[: len(right)]) / len(right))
            assert values["precision@4"] == pytest.approx(sum(marks[:4]) / 4)


@pytest.mark.parametrize("name", ["mapp", "map@0", "map@", "r_precision@3", "precision", "ndcg@-1", "recall", "map@1."])
def test_metrics_that_are_none(name: str) -> None:
    with pytest.raises(ConfigError, match="also: expected some of map, map@k"):
        RankingMetrics(also=(name,))


def test_metrics_that_are_there_already() -> None:
    with pytest.raises(ConfigError, match="also: ndcg@3 is there already"):
        RankingMetrics(also=("ndcg@3",))
    with pytest.raises(ConfigError, match="also: map is there already"):
        RankingMetrics(also=("map", "map"))


@pytest.mark.parametrize(
    ("form", "missing", "turns", "mrr"),
    [
        ("updated", "zero", 4, 1.0 / 4),
        ("updated", "drop", 3, 1.0 / 3),
        ("original", "zero", 5, 1.0 / 5),
        ("original", "drop", 4, 1.0 / 4),
    ],
)
def test_which_turns_count(form: str, missing: str, turns: int, mrr: float) -> None:
    metrics = RankingMetrics(form=form, missing=missing)  # type: ignore[arg-type]
    mean = mean_of_turns(metrics.of_turns(RUN, GOLD, TURNS))
    assert mean["turns"] == turns and mean["mrr"] == pytest.approx(mrr)


def test_mean_of_a_group() -> None:
    values = RankingMetrics().of_turns(RUN, GOLD, TURNS)
    assert mean_of_turns(values, ["gold_second", "absent", "no_gold"])["mrr"] == 0.25
    assert mean_of_turns(values, ["no_gold"]) == {"turns": 0}


def random_case(seed: int) -> tuple[dict[str, list[Hit]], dict[str, dict[str, int]], list[str]]:
    """Turns over 12 passages with few different scores, some without hits or without gold, and graded judgements."""
    rng = random.Random(seed)
    passages = [f"p{i}" for i in range(9)] + ["é1", "Z", "\U0001f600"]
    turns = [f"t{i}" for i in range(30)]
    run, gold = {}, {}
    for turn in turns:
        found = rng.sample(passages, rng.randint(0, 10))
        if found and rng.random() < 0.9:
            run[turn] = [Hit(passage, rng.choice([0.5, 1.0, 1.0 + 1e-9, 2.0, -1.0])) for passage in found]
        if rng.random() < 0.8:
            gold[turn] = {passage: rng.choice([0, 1, 1, 2, -1]) for passage in rng.sample(passages, 4)}
    return run, gold, turns


def naive(hits: list[Hit], judged: dict[str, int], depth: int) -> dict[str, float]:
    order = sorted(hits, key=lambda hit: hit.id, reverse=True)
    order.sort(key=lambda hit: np.float32(hit.score), reverse=True)
    ranked = [judged.get(hit.id, 0) for hit in order]
    first = next((i for i, relevance in enumerate(ranked, 1) if relevance > 0), None)
    gold = sum(relevance > 0 for relevance in judged.values())
    found = sum(relevance > 0 for relevance in ranked[:depth])
    gain = sum(max(relevance, 0) / math.log2(i + 1) for i, relevance in enumerate(ranked[:depth], 1))
    ideal = sorted((max(relevance, 0) for relevance in judged.values()), reverse=True)[:depth]
    best = sum(relevance / math.log2(i + 1) for i, relevance in enumerate(ideal, 1))
    return {
        "mrr": 1 / first if first else 0.0,
        f"recall@{depth}": found / gold,
        f"hit_rate@{depth}": float(found > 0),
        f"ndcg@{depth}": gain / best,
    }


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("depth", [1, 4, 100])
def test_values_equal_a_plain_loop(seed: int, depth: int) -> None:
    run, gold, turns = random_case(seed)
    values = RankingMetrics(recall_at=(depth,), ndcg_at=(depth,)).of_turns(run, gold, turns)
    with_gold = [turn for turn in turns if any(relevance > 0 for relevance in gold.get(turn, {}).values())]
    assert list(values) == with_gold and len(with_gold) > 10
    for turn in with_gold:
        assert values[turn] == pytest.approx(naive(run.get(turn, []), gold[turn], depth), abs=1e-6), turn


GOLDEN_NAMES = "mrr map map@5 r_precision ndcg ndcg@3 ndcg@10".split()
GOLDEN = """
t00 1.000000 0.340171 0.233333 0.333333 0.438553 0.169699 0.368487
t01 0.333333 0.238384 0.122222 0.333333 0.420785 0.254548 0.383578
t02 0.250000 0.144444 0.050000 0.200000 0.294039 0.000000 0.173223
t03 0.500000 0.384623 0.194444 0.333333 0.460397 0.298986 0.395132
t04 0.333333 0.374603 0.066667 0.200000 0.492532 0.084849 0.418020
t06 0.333333 0.336475 0.138889 0.333333 0.503840 0.254548 0.471207
t07 0.000000 0.000000 0.000000 0.000000 0.000000 0.000000 0.000000
t08 1.000000 0.633333 0.400000 0.400000 0.839451 0.723233 0.696580
t09 0.000000 0.000000 0.000000 0.000000 0.000000 0.000000 0.000000
t10 1.000000 0.282517 0.200000 0.200000 0.470821 0.339398 0.280073
t11 1.000000 0.412393 0.277778 0.500000 0.546060 0.424247 0.475994
"""
"""What ir-measures 0.4.3 says of `golden_case`, turn by turn; it has no row for a turn without judgements (t05)."""


def golden_case() -> tuple[dict[str, list[Hit]], dict[str, dict[str, int]]]:
    """Twelve turns over 20 passages with seven different scores and grades from 0 to 3; t05 is not judged, t07 found
    nothing, and t09 has grades of 0 alone.
    """
    run, grades = {}, {}
    for t in range(12):
        if t != 7:
            scores = [(i, ((t * 31 + i * 17) % 7) / 2) for i in range(20) if (7 * t + 3 * i) % 5]
            run[f"t{t:02d}"] = [Hit(f"p{i:02d}", score) for i, score in scores]
        if t != 5:
            judged = [(i, 3 - (t * 13 + i * 29) % 11) for i in range(20)]
            grades[f"t{t:02d}"] = {f"p{i:02d}": grade if t != 9 else 0 for i, grade in judged if grade >= 0}
    return run, grades


def test_values_are_those_of_ir_measures() -> None:
    run, grades = golden_case()
    turns = [f"t{t:02d}" for t in range(12)]
    theirs = {turn: list(map(float, row)) for turn, *row in map(str.split, GOLDEN.split("\n")[1:-1])}
    ties = sum(len(hits) - len({hit.score for hit in hits}) for hits in run.values())
    assert ties > 80 and theirs.keys() == grades.keys()
    for form, left_out in (("updated", {"t05", "t09"}), ("original", set())):
        also = ("map", "map@5", "r_precision", "ndcg")
        values = RankingMetrics(form=form, also=also).of_turns(run, grades, turns)  # type: ignore[arg-type]
        assert values.keys() == set(turns) - left_out
        for turn, of_turn in values.items():
            expected = theirs.get(turn, [0.0] * len(GOLDEN_NAMES))
            assert [of_turn[name] for name in GOLDEN_NAMES] == pytest.approx(expected, abs=1e-6), turn


@pytest.mark.parametrize("seed", range(5))
def test_values_equal_trec_evals_on_the_written_files(seed: int, tmp_path: Path) -> None:
    run, gold, turns = random_case(seed)
    write_trec_run(tmp_path / "run.trec", run, "toy")
    write_judgements(tmp_path / "qrels.txt", gold)
    with open(tmp_path / "run.trec", encoding="utf-8") as stream:
        their_run = pytrec_eval.parse_run(stream)
    with open(tmp_path / "qrels.txt", encoding="utf-8") as stream:
        their_gold = pytrec_eval.parse_qrel(stream)
    theirs = pytrec_eval.RelevanceEvaluator(their_gold, {"recip_rank", "success.5", "ndcg_cut.10"}).evaluate(their_run)
    values = RankingMetrics(missing="drop", recall_at=(5,)).of_turns(run, gold, turns)
    for turn, value in values.items():
        assert value["mrr"] == theirs[turn]["recip_rank"]
        assert value["hit_rate@5"] == theirs[turn]["success_5"]
        assert value["ndcg@10"] == theirs[turn]["ndcg_cut_10"]
    again = RankingMetrics(missing="drop", recall_at=(5,)).of_turns(
        read_trec_run(tmp_path / "run.trec"), read_judgements(tmp_path / "qrels.txt"), turns
    )
    assert again == values


def test_ties_break_by_id_descending() -> None:
    hits = [Hit("a", 1.0), Hit("b", 1.0 + 1e-12), Hit("é", 1.0), Hit("c", 2.0)]
    assert [hit.id for hit in in_trec_order(hits)] == ["c", "é", "b", "a"]
    metrics = RankingMetrics(recall_at=(1,), ndcg_at=())
    assert metrics.of_turns({"t": hits}, {"t": {"b": 1}}, ["t"])["t"]["mrr"] == pytest.approx(1 / 3)


def test_runs_survive_their_file(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    scores = np.concatenate([rng.normal(size=200).astype(np.float32), np.float32([1e-38, 3e38, -0.0, 0.0, 1 / 3])])
    run = {"t1": in_trec_order([Hit(f"p{i}", float(score)) for i, score in enumerate(scores)]), "t2": [Hit("x", 1.0)]}
    write_trec_run(tmp_path / "run.trec", run, "toy")
    assert read_trec_run(tmp_path / "run.trec") == run
    first = (tmp_path / "run.trec").read_text().splitlines()[0].split()
    assert first[:4] == ["t1", "Q0", run["t1"][0].id, "1"] and first[5] == "toy"
    shuffled = {turn: list(reversed(hits)) for turn, hits in run.items()}
    write_trec_run(tmp_path / "shuffled.trec", shuffled, "toy")
    assert (tmp_path / "shuffled.trec").read_bytes() == (tmp_path / "run.trec").read_bytes()


ODD_IDS = [
    "a b", " a", "a\u00a0b", "a\u2003b\tc\nd", "100 %", "a%20b", "%", "Müller & Söhne", "quoted:", "quoted:a",
    "quoted:a%20b", "quoted:quoted:a%2520b", "quoted:a b", "quoted:%E4", "\x1ca\x85", "https://a.org/x%20y_p3", "Q0",
]  # fmt: skip


def test_ids_with_white_space_survive_their_files(tmp_path: Path) -> None:
    """Every id comes back, no two share a column, and trec_eval counts the written files as we count in memory."""
    columns = [written_id(id) for id in ODD_IDS]
    assert [read_id(column) for column in columns] == ODD_IDS
    assert len(set(columns)) == len(ODD_IDS) and all(column.split() == [column] for column in columns)
    run = {turn: [Hit(id, float(i)) for i, id in enumerate(ODD_IDS)][::-1] for turn in ("t 1", "t")}
    gold = {"t 1": {"a b": 2, "100 %": 1}, "t": {"a%20b": 1, "quoted:a%20b": 1}}
    write_trec_run(tmp_path / "run", run, "toy")
    write_judgements(tmp_path / "qrels", gold)
    assert read_trec_run(tmp_path / "run") == run and read_judgements(tmp_path / "qrels") == gold
    with open(tmp_path / "run", encoding="utf-8") as found, open(tmp_path / "qrels", encoding="utf-8") as judged:
        evaluator = pytrec_eval.RelevanceEvaluator(pytrec_eval.parse_qrel(judged), {"recip_rank", "ndcg_cut.10"})
        theirs = evaluator.evaluate(pytrec_eval.parse_run(found))
    for turn, values in RankingMetrics().of_turns(run, gold, list(gold)).items():
        assert values["mrr"] == theirs[written_id(turn)]["recip_rank"]
        assert values["ndcg@10"] == theirs[written_id(turn)]["ndcg_cut_10"]


def test_files_without_white_space_in_ids_read_as_they_stand(tmp_path: Path) -> None:
    """Columns that `written_id` would not have written, among them percent signs of web addresses, are ids."""
    ids = ["a%20b", "https://a.org/x%20y_p3", "quoted:abc", "quoted:a%2", "quoted:a%C3", "%"]
    (tmp_path / "qrels").write_text("".join(f"t 0 {id} 1\n" for id in ids))
    assert list(read_judgements(tmp_path / "qrels")["t"]) == ids


def test_judgements_survive_their_file(tmp_path: Path) -> None:
    gold = {"t1": {"a": 1, "b": 0}, "t2": {"c": 3}}
    write_judgements(tmp_path / "qrels", gold)
    assert read_judgements(tmp_path / "qrels") == gold


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("t Q0 a 1 0.5\n", "run:1: expected 6 columns"),
        ("t Q0 a 1 high x\n", "run:1, field score: expected a number, got 'high'"),
        ("t Q0 a 1 nan x\n", "record a, field score: turn t: expected a finite score"),
        ("t Q0 a 1 1.0 x\n\nt Q0 a 2 0.5 x\n", "record a: turn t: this passage is found twice"),
    ],
)
def test_broken_runs(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "run").write_text(text)
    with pytest.raises(DataError, match=message):
        read_trec_run(tmp_path / "run")


def test_broken_files_and_ids(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        read_trec_run(tmp_path / "absent")
    (tmp_path / "qrels").write_text("t 0 a 1\nt 0 a 0\n")
    with pytest.raises(DataError, match="qrels:2.*judged twice"):
        read_judgements(tmp_path / "qrels")
    (tmp_path / "qrels").write_text("t 0 a much\n")
    with pytest.raises(DataError, match="qrels:1, field relevance"):
        read_judgements(tmp_path / "qrels")
    for id in ("", " \t"):
        with pytest.raises(DataError, match="expected the id of a turn or a passage, got blank text"):
            write_trec_run(tmp_path / "run", {"t": [Hit(id, 1.0)]}, "toy")
        with pytest.raises(DataError, match="got blank text"):
            write_judgements(tmp_path / "run", {id: {"a": 1}})
    with pytest.raises(DataError, match="the name of the run: expected a text without white space, got 'a b'"):
        write_trec_run(tmp_path / "run", {"t": [Hit("a", 1.0)]}, "a b")
    with pytest.raises(DataError, match="turn t: expected a finite score"):
        write_trec_run(tmp_path / "run", {"t": [Hit("a", 1e39)]}, "toy")
    assert not (tmp_path / "run").exists()


def test_unknown_turns_and_settings() -> None:
    with pytest.raises(DataError, match="record not_found: a turn of the run"):
        RankingMetrics().of_turns(RUN, {}, ["gold_second", "no_gold", "two_gold"])
    with pytest.raises(DataError, match="occur twice"):
        RankingMetrics().of_turns({}, {}, ["a", "a"])
    with pytest.raises(ConfigError, match="recall_at"):
        RankingMetrics(recall_at=(0,))
    with pytest.raises(ConfigError, match="form"):
        RankingMetrics(form="new")  # type: ignore[arg-type]


def test_missing_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pytrec_eval", None)
    with pytest.raises(ConfigError, match="pip install"):
        RankingMetrics().of_turns(RUN, GOLD, TURNS)
