"""Question by question: tests of differences against hand-worked numbers and scipy, rows of files, the job."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
from mills_toy import job, make_mills

from finegrained_rlhf.conqrr.data import RewriteExample
from finegrained_rlhf.conqrr.measures import CompareSystems, comparison_table, gold_ranks
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.files import read_jsonl
from finegrained_rlhf.metrics.significance import cluster_sums, clustered_t, holm, paired_test, randomization_p
from finegrained_rlhf.retrieval.protocol import Hit


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_mills(tmp_path)


def test_the_randomization_test_by_hand() -> None:
    """Differences 1, 1, 1, −½ of four dialogues: 2½ or more by size in ±(1, 1, 1, ±½) alone: 4 of 16."""
    test = paired_test([1.0, 1.0, 1.0, -0.5], "abcd")
    assert test.p_randomization == 4 / 16 and test.difference == 2.5 / 4 and test.clusters == 4
    together = paired_test([1.0, 1.0, 1.0, -0.5], "aabb")  # sums 2 and ½: 2½ in ±(2, ½), 2 of 4
    assert together.p_randomization == 2 / 4 and together.clusters == 2
    assert paired_test([0.0, 0.0], "ab").p_randomization == 1.0


def test_drawn_signs_come_near_all_signs() -> None:
    """Fourteen dialogues are drawn; a loop goes through their 16,384 assignments."""
    sums = np.random.default_rng(3).normal(0.4, 1.0, 14)
    least = abs(sums.sum())
    every = [abs(float(np.dot(s, sums))) >= least - 1e-12 for s in itertools.product((-1, 1), repeat=14)]
    exact = sum(every) / len(every)
    drawn = randomization_p(sums, draws=20_000, seed=1)
    assert drawn == pytest.approx(exact, abs=4 * math.sqrt(exact * (1 - exact) / 20_000))
    assert drawn == randomization_p(sums, draws=20_000, seed=1) != randomization_p(sums, draws=20_000, seed=2)
    assert randomization_p(np.ones(60), draws=99) == 1 / 100


def test_under_no_difference_p_values_are_uniform() -> None:
    """Dialogues of 5 questions that share a shift: questions as units would reject far too often, dialogues do not."""
    rng = np.random.default_rng(0)
    rejected = {"dialogues": 0, "questions": 0}
    for _ in range(200):
        values = (rng.normal(0, 1, (30, 1)) + rng.normal(0, 0.3, (30, 5))).ravel().tolist()
        dialogues = [i // 5 for i in range(150)]
        rejected["dialogues"] += (clustered_t(*cluster_sums(values, dialogues))[1] or 1.0) < 0.05
        rejected["questions"] += (clustered_t(*cluster_sums(values, range(150)))[1] or 1.0) < 0.05
    assert rejected["dialogues"] <= 22 and rejected["questions"] >= 50


def test_t_is_students_with_one_question_a_cluster_and_by_hand_with_more() -> None:
    rng = np.random.default_rng(5)
    ours, theirs = rng.random(20), rng.random(20)
    expected = scipy.stats.ttest_rel(ours, theirs)
    test = paired_test((ours - theirs).tolist(), range(20))
    assert test.t == pytest.approx(expected.statistic) and test.p_t == pytest.approx(expected.pvalue)
    # clusters (1, 1), (0): mean 2/3, residuals 2 − 4/3 and 0 − 2/3, se² = 2 · (4/9 + 4/9) / 9 = 16/81, t = 2/3 : 4/9
    test = paired_test([1.0, 0.0, 1.0], "aba")
    assert test.t == pytest.approx(1.5) and test.p_t == pytest.approx(2 * scipy.stats.t.sf(1.5, 1))
    alone, alike = paired_test([0.5, 1.0], "aa"), paired_test([0.1, 0.1, 0.1], "abc")
    assert alone.t is None and alone.p_t is None and alike.t is None
    with pytest.raises(ValueError, match="with a cluster each"):
        paired_test([1.0], "ab")
    with pytest.raises(ValueError, match="at least one draw"):
        randomization_p(np.ones(2), draws=0)


def test_holm_by_hand() -> None:
    """0.01 · 4, then 0.02 · 3, then 0.03 · 2 = 0.06 again, 0.5 · 1; never beyond 1, never falling."""
    assert holm([0.03, 0.01, 0.5, 0.02]) == pytest.approx([0.06, 0.04, 0.5, 0.06])
    assert holm([0.6, 0.7]) == [1.0, 1.0] and holm([]) == []
    assert holm([0.01, 0.012]) == [0.02, 0.02]


def examples() -> list[RewriteExample]:
    return [RewriteExample(f"{d}_{t}", d, t, ("q", "a") * (t - 1), "what", gold=("p",)) for d in "abc" for t in (1, 2)]


def test_comparisons_are_corrected_metric_by_metric() -> None:
    items = examples()
    values = {
        "ours": {item.id: {"mrr": 1.0, "ndcg@3": 0.5 + 0.1 * item.turn} for item in items},
        "mix": {item.id: {"mrr": 0.5 if item.dialogue == "a" else 0.9, "ndcg@3": 0.4} for item in items},
        "base": {item.id: {"mrr": 0.0, "ndcg@3": 0.4} for item in items if item.id != "c_2"},
    }
    rows = CompareSystems(metrics=("mrr", "ndcg@3")).compared(items, values)
    assert [(row["metric"], row["system"], row["against"]) for row in rows][:3] == [
        ("mrr", "ours", "mix"),
        ("mrr", "ours", "base"),
        ("mrr", "mix", "base"),
    ]
    assert len(rows) == 6 and [row["questions"] for row in rows[:3]] == [6, 5, 5]
    assert rows[0]["difference"] == pytest.approx((2 * 0.5 + 4 * 0.1) / 6) and rows[0]["clusters"] == 3
    for metric in ("mrr", "ndcg@3"):
        of = [row for row in rows if row["metric"] == metric]
        assert [row["p_randomization_holm"] for row in of] == holm([row["p_randomization"] for row in of])
    assert rows[1]["p_t"] is None and rows[1]["p_t_holm"] is None  # it wins by 1 everywhere
    assert [r["p_t_holm"] for r in rows if r["metric"] == "mrr" and r["p_t"] is not None] == holm(
        [r["p_t"] for r in rows if r["metric"] == "mrr" and r["p_t"] is not None]
    )
    against = CompareSystems("base").compared(items, values)
    assert [(row["system"], row["against"]) for row in against] == [("ours", "base"), ("mix", "base")]
    table = comparison_table(against)
    assert "| mrr    | ours   | base    | +1.000     | –" in table and "0.2500" in table
    assert comparison_table([]) == "" and CompareSystems().compared(items, {"ours": values["ours"]}) == []


def test_ranks_of_gold_passages() -> None:
    """Ties are broken as trec_eval does: by id, descending."""
    items = [RewriteExample("a", "d", 1, (), "what", gold=("g", "h")), RewriteExample("b", "d", 1, (), "what")]
    run = {"a": [Hit("g", 1.0), Hit("x", 1.0), Hit("h", 0.5)], "b": [Hit("g", 1.0)]}
    assert gold_ranks(items, run) == {"a": [2, 3], "b": []}


def test_the_job_writes_questions_and_tests(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "questions_scored.jsonl"
    result = job(folder, per_question=str(path), comparison=CompareSystems("question", ["mrr", "hit_rate@10"])).run()
    rows: list[dict[str, Any]] = read_jsonl(path)
    assert [row["id"] for row in rows] == ["d_1", "d_2"] and rows[1]["gold"] == ["red"] and rows[1]["turn"] == 2
    assert rows[1]["rewrite"] == "what color is the mill" and rows[1]["question"] == "and its color"
    ours = rows[0]["systems"]["ours"], rows[1]["systems"]["ours"]
    assert (ours[0]["query"], ours[0]["ranks"], ours[0]["metrics"]["mrr"]) == (None, [], 0.0)
    assert (ours[1]["query"], ours[1]["ranks"], ours[1]["metrics"]["mrr"]) == ("color mill", [1], 1.0)
    for name, found in result["systems"].items():
        of = [row["systems"][name]["metrics"]["mrr"] for row in rows]
        assert sum(of) / len(of) == pytest.approx(found["overall"]["mrr"])
    pairs = [(row["metric"], row["system"]) for row in result["comparisons"]]
    assert pairs == [(m, s) for m in ("mrr", "hit_rate@10") for s in ("context", "rewrite", "ours")]
    assert json.loads((folder / "scores.json").read_text())["comparisons"] == result["comparisons"]
    assert "Holm (randomization)" in capsys.readouterr().out
    silent = job(folder, comparison=None).run()
    assert silent["comparisons"] == [] and "Holm" not in capsys.readouterr().out


def test_a_question_that_does_not_count_has_no_metrics(folder: Path) -> None:
    with open(folder / "questions.jsonl", "a", encoding="utf-8") as stream:
        stream.write(json.dumps({"id": "e_1", "dialogue": "e", "turn": 1, "history": [], "question": "mill"}) + "\n")
    job(folder, per_question=str(folder / "rows.jsonl")).run()
    row = read_jsonl(folder / "rows.jsonl")[2]["systems"]["question"]
    assert row == {"query": "mill", "ranks": [], "metrics": None}


def test_what_a_comparison_refuses(folder: Path) -> None:
    with pytest.raises(ConfigError, match="comparison.against: expected one of question, context, rewrite, ours"):
        job(folder, comparison=CompareSystems("t5"))
    with pytest.raises(ConfigError, match="comparison.metrics: expected some of mrr, recall@10"):
        job(folder, comparison=CompareSystems(metrics=["map"]))
    for changes, problem in (({"draws": 0}, "draws"), ({"metrics": []}, "metrics")):
        with pytest.raises(ConfigError, match=f"{problem}: expected at least"):
            CompareSystems(**changes)
