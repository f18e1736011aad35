"""Evaluation of rewrites: values by hand, groups, and the job."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytrec_eval
from mills_toy import job, make_mills
from numpy.typing import NDArray

from finegrained_rlhf.conqrr.data import RewriteData, RewriteExample, query_of, read_cut, read_rewrites, write_rewrites
from finegrained_rlhf.conqrr.measures import (
    Wording,
    find_passages,
    groups_of,
    judgements_of,
    repeats_a_bigram,
    score_queries,
    wording_of,
)
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import write_jsonl
from finegrained_rlhf.retrieval.bm25.retriever import Bm25Config
from finegrained_rlhf.retrieval.protocol import Hit
from finegrained_rlhf.retrieval.ranking import RankingMetrics
from finegrained_rlhf.retrieval.runs import read_judgements, read_trec_run, write_trec_run

SAID = ("q", "a")


def example(name: str, turn: int, gold: tuple[str, ...], **changes: Any) -> RewriteExample:
    return RewriteExample(name, "d", turn, SAID * (turn - 1), "what", gold=gold, **changes)


EXAMPLES = [
    example("a", 1, ("p1",), source="nq"),
    example("b", 2, ("p2",), source="nq", topic_shift=False),
    example("c", 3, ("p3", "p4"), source="quac", topic_shift=True),
    example("d", 7, ("p1",), source="quac", topic_shift=True),
    example("e", 4, ()),
]
TEXTS = {"p1": "The red lighthouse.", "p2": "Blue", "p3": "A green hill", "p4": "and a tower"}


def hits(*names: str) -> list[Hit]:
    return [Hit(name, float(10 - rank)) for rank, name in enumerate(names)]


QUERIES = {"a": "who built the red, tall lighthouse?", "b": "blue", "c": "green tower", "d": " ", "e": "nothing"}
RUN = {"a": hits("p2", "p1"), "b": hits("p2"), "c": hits("p1", "p2", "p4"), "d": [], "e": hits("p1")}


def test_by_hand() -> None:
    """Reciprocal ranks 1/2, 1, 1/3 and 0; the question without gold does not count; `d` has no query."""
    scores = score_queries(EXAMPLES, QUERIES, RUN, RankingMetrics(recall_at=(1, 10)))
    assert scores.overall["turns"] == 4 and scores.missing == 1
    assert scores.overall["mrr"] == pytest.approx((1 / 2 + 1 + 1 / 3 + 0) / 4)
    assert scores.overall["hit_rate@1"] == pytest.approx(1 / 4)
    assert scores.overall["hit_rate@10"] == pytest.approx(3 / 4)
    assert scores.overall["recall@10"] == pytest.approx((1 + 1 + 1 / 2 + 0) / 4)
    original = score_queries(EXAMPLES, QUERIES, RUN, RankingMetrics(form="original"))
    assert original.overall["turns"] == 5
    assert original.overall["mrr"] == pytest.approx(scores.overall["mrr"] * 4 / 5)


@pytest.mark.needs("finegrained_lab")
def test_ndcg_counts_the_grades_of_the_judgements(tmp_path: Path) -> None:
    """Grades 1, 4, 3 in rank order, from CAsT's files: (1 + 4 / log2 3 + 3 / 2) / (4 + 3 / log2 3 + 1 / 2) = 0.786.

    With `min_relevance` 3 the first passage is no longer gold, and still counts in nDCG, as with trec_eval's `-l 3`.
    """
    topics, qrels, run = tmp_path / "topics.json", tmp_path / "qrels.txt", tmp_path / "run.trec"
    topics.write_text(json.dumps([{"number": 1, "turn": [{"number": 1, "raw_utterance": "what"}]}]))
    qrels.write_text("1_1 0 low 1\n1_1 0 high 4\n1_1 0 middle 3\n1_1 0 none 0\n")
    found = {"1_1": hits("low", "high", "middle")}
    write_trec_run(run, found, "toy")
    for level, mrr in ((1, 1.0), (3, 0.5)):
        examples = RewriteData(str(topics), "cast", qrels=str(qrels), min_relevance=level).read().examples
        scores = score_queries(examples, {"1_1": "what"}, found).overall
        assert scores["ndcg@3"] == pytest.approx(0.786, abs=5e-4) and scores["mrr"] == mrr
        with open(qrels) as judged, open(run) as ranked:
            measures = {"ndcg_cut.3", "recip_rank"}
            evaluator = pytrec_eval.RelevanceEvaluator(pytrec_eval.parse_qrel(judged), measures, level)
            theirs = evaluator.evaluate(pytrec_eval.parse_run(ranked))["1_1"]
        assert (scores["ndcg@3"], scores["mrr"]) == (theirs["ndcg_cut_3"], theirs["recip_rank"])


def test_wording_by_hand() -> None:
    """What a retriever's reward does not see: repeated phrases, rewrites cut at the limit, unlikeness, length."""
    assert repeats_a_bigram("What is the color of Kirin of Kirin") and repeats_a_bigram("no No no")
    assert not repeats_a_bigram("the mill of the hill, a mill's") and not repeats_a_bigram("mill")
    human = {"a": "who built the red lighthouse", "b": "a blue tower"}
    found = wording_of({"a": "who built the red tower", "b": "blue blue blue", "c": "x y"}, human, {"b", "z"})
    assert found.rouge1 == pytest.approx((4 / 5 + 1 / 3) / 2) and found.length_ratio == pytest.approx(8 / 8)
    assert found.repeated_bigrams == pytest.approx(1 / 3) and found.cut == pytest.approx(1 / 3)
    assert wording_of({"c": "x y"}, human) == Wording(None, None, 0.0, None)
    assert wording_of({}, human, {"a"}) == Wording(None, None, None, None)
    scores = score_queries(EXAMPLES, {**QUERIES, "b": "blue blue blue"}, RUN, cut={"a"})
    assert scores.wording.cut == pytest.approx(1 / 3) and scores.wording.repeated_bigrams == pytest.approx(1 / 3)


def test_groups_by_hand() -> None:
    groups = score_queries(EXAMPLES, QUERIES, RUN).groups
    found = {
        name: {group: (of["turns"], round(of["mrr"], 4)) for group, of in by.items()} for name, by in groups.items()
    }
    assert found == {
        "topic": {"concentrated": (1, 1.0), "shifted": (2, round(1 / 6, 4))},
        "questions": {"1-2": (2, 0.75), "3-4": (1, 0.3333), "5+": (1, 0.0)},
        "topic and questions": {"concentrated, 1-2": (1, 1.0), "shifted, 3-4": (1, 0.3333), "shifted, 5+": (1, 0.0)},
        "source": {"nq": (2, 0.75), "quac": (2, round(1 / 6, 4))},
    }
    assert groups_of([example("x", 4, ()), example("y", 5, ())]) == {"questions": {"3-4": ["x"], "5+": ["y"]}}


def test_length_and_overlap_by_hand() -> None:
    """`who`, `built`, `the` are stop words here: red and lighthouse of three words; blue; green and tower."""
    scores = score_queries(EXAMPLES, QUERIES, RUN, None, TEXTS, frozenset(("who", "built", "the")))
    assert scores.tokens == pytest.approx((8 + 1 + 2) / 3)  # the comma and the question mark are tokens
    assert scores.overlap == pytest.approx((2 / 3 + 1 + 1) / 3)
    sources = scores.groups["source"]  # table 4.4: `d`, of quac, has no query
    assert {name: of["tokens"] for name, of in sources.items()} == {"nq": (8 + 1) / 2, "quac": 2}
    assert {name: of["overlap"] for name, of in sources.items()} == pytest.approx({"nq": (2 / 3 + 1) / 2, "quac": 1})
    assert "tokens" not in scores.groups["questions"]["5+"]
    without = score_queries(EXAMPLES, QUERIES, RUN)
    assert without.overlap is None and "overlap" not in without.groups["source"]["nq"]


def test_repeats_by_hand() -> None:
    """Of b, c and d, c's first passage is a's gold; d's is a's too but its own as well; a is no later question."""
    run = {"a": hits("p2"), "b": hits("p4", "p1"), "c": hits("p1", "p3"), "d": hits("p1")}
    assert score_queries(EXAMPLES, QUERIES, run).repeats == pytest.approx(1 / 3)
    assert score_queries(EXAMPLES, QUERIES, {"c": [Hit("p3", 1.0), Hit("p1", 2.0)]}).repeats == pytest.approx(1 / 3)
    other = [example("z", 1, ("p4",)), *EXAMPLES[1:]]
    assert score_queries(other[:1], {"z": "x"}, {}).repeats is None
    strangers = [RewriteExample(item.id, item.id, item.turn, item.history, "what", gold=item.gold) for item in EXAMPLES]
    assert score_queries(strangers, QUERIES, run).repeats == 0


def test_a_perfect_and_an_empty_system() -> None:
    gold = {item.id: hits(*item.gold) for item in EXAMPLES if item.gold}
    best = score_queries(EXAMPLES, QUERIES, gold).overall
    assert {value for name, value in best.items() if name != "turns"} == {1.0}
    nothing = score_queries(EXAMPLES, {}, {})
    assert nothing.overall["mrr"] == 0 and nothing.missing == 4 and nothing.tokens is None


def test_what_cannot_be_evaluated() -> None:
    with pytest.raises(DataError, match=r"record z: a query of a question that is not evaluated \(1 in all\)"):
        score_queries(EXAMPLES, {**QUERIES, "z": "x"}, RUN)
    with pytest.raises(DataError, match="no question has a gold passage"):
        score_queries(EXAMPLES[4:], {"e": "x"}, {"e": []})
    assert judgements_of(EXAMPLES) == {"a": {"p1": 1}, "b": {"p2": 1}, "c": {"p3": 1, "p4": 1}, "d": {"p1": 1}}


class Counting:
    """Finds the query itself as a passage; remembers how many queries it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        self.asked += queries
        return [hits(query) for query in queries]

    def score_pool(self, queries: Sequence[str], ids: Sequence[str]) -> NDArray[Any]:
        raise AssertionError("evaluation needs no pool")


def test_equal_queries_are_searched_once_and_blank_ones_never() -> None:
    retriever = Counting()
    queries = {f"q{i}": f"text{i % 70}" for i in range(200)} | {"blank": " "}
    found = find_passages(retriever, queries, progress=False)
    assert len(retriever.asked) == 70 and found["blank"] == []
    assert all(found[name] == hits(text) for name, text in queries.items() if text.strip())


def test_queries_without_a_model() -> None:
    item = RewriteExample("x", "d", 3, ("one", "two", "three", ""), "four", rewrite="five")
    assert [query_of(item, kind) for kind in ("question", "context", "rewrite")] == [
        "four",
        "four three two one",
        "five",
    ]
    assert [query_of(item, kind) for kind in ("asked", "published")] == ["four", "four three two one"]
    raw = dataclasses.replace(item, published=("Title", "1", "two", "three", "", "4"))
    assert [query_of(raw, kind) for kind in ("asked", "published", "question")] == ["4", "4 three two 1 Title", "four"]


def test_files_of_rewrites(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    write_rewrites(path, {"a": "x", "b": ""})
    assert read_rewrites(path) == {"a": "x", "b": ""}
    for text, problem in (
        ('{"id": "a"}', "record 0, field rewrite: missing"),
        ('{"id": "a", "rewrite": 3}', "expected text"),
        ('{"id": "a", "rewrite": "x"}\n{"id": "a", "rewrite": "x"}', "record 1, field id: a has a rewrite already"),
        ("", "no records"),
    ):
        path.write_text(text)
        with pytest.raises(DataError, match=problem):
            read_rewrites(path)


def test_rewrites_that_were_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text('{"id": "a", "rewrite": "x", "finished": false}\n{"id": "b", "rewrite": "x", "finished": true}\n')
    assert read_cut(path) == {"a"} and read_rewrites(path) == {"a": "x", "b": "x"}
    write_rewrites(path, {"a": "x"})
    assert read_cut(path) is None
    path.write_text('{"id": "a", "rewrite": "x", "finished": "no"}')
    with pytest.raises(DataError, match="record a, field finished: expected true or false, got 'no'"):
        read_cut(path)


# The job ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_mills(tmp_path)


def test_the_job(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = job(folder).run()
    assert json.loads((folder / "scores.json").read_text()) == json.loads(json.dumps(result))
    systems: Mapping[str, Any] = result["systems"]
    assert list(systems) == ["question", "context", "rewrite", "ours"]
    assert systems["rewrite"]["overall"]["mrr"] == 1.0 and systems["rewrite"]["missing"] == 0
    assert systems["ours"]["overall"]["mrr"] == 0.5 and systems["ours"]["missing"] == 1
    assert systems["ours"]["overlap"] == 1.0
    assert systems["rewrite"]["rouge1"] == systems["rewrite"]["length_ratio"] == 1.0
    assert systems["ours"]["repeated_bigrams"] == 0.0 and systems["ours"]["cut"] is None
    assert result["retriever"]["kind"] == "bm25" and result["retriever"]["passages"] == 4
    assert result["gold"] == {"passages": 2, "not_in_index": 0}
    told = result["settings"]
    assert told["data"] == str(folder / "questions.jsonl") and told["unindexed_gold"] == "error" and told["k"] == 100
    assert told["metrics"]["form"] == "updated" and told["retriever"]["_target_"].endswith(".RecordedConfig")
    assert read_judgements(folder / "runs" / "qrels.txt") == {"d_1": {"mill": 1}, "d_2": {"red": 1}}
    assert [hit.id for hit in read_trec_run(folder / "runs" / "rewrite.trec")["d_2"]][0] == "red"
    assert "| ours" in capsys.readouterr().out


def test_what_the_job_refuses(folder: Path) -> None:
    with pytest.raises(ConfigError, match="baselines: expected one of question, context, rewrite, asked, published"):
        job(folder, baselines=["human"])
    with pytest.raises(ConfigError, match="is the name of a baseline"):
        job(folder, rewrites={"rewrite": "x"})
    with pytest.raises(ConfigError, match="nothing to evaluate"):
        job(folder, baselines=[], rewrites={})
    with pytest.raises(ConfigError, match="k: expected at least 100"):
        job(folder, k=10)
    write_rewrites(folder / "ours.jsonl", {"elsewhere": "x"})
    with pytest.raises(DataError, match="ours.jsonl, record elsewhere: a query of a question that is not evaluated"):
        job(folder).run()
    assert not (folder / "scores.json").exists()


def test_gold_must_be_in_the_index(folder: Path) -> None:
    """An index of another corpus is no result of 0.000; one of a part of the corpus is, where that is asked for."""
    write_jsonl(folder / "other.jsonl", [{"id": "hill", "text": "a hill"}])
    Bm25Config().build(str(folder / "other.jsonl"), folder / "other")
    given = {"index": str(folder / "other"), "corpus": None}
    for choice in ("error", "count"):
        with pytest.raises(
            DataError, match=r"other.*2 of 2 gold passages of .*questions.jsonl are not in the index \('mill', 'red'\)"
        ):
            job(folder, **given, unindexed_gold=choice).run()
    assert not (folder / "scores.json").exists() and not (folder / "runs").exists()
    write_jsonl(folder / "part.jsonl", [{"id": "mill", "text": "Ada built the mill"}])
    Bm25Config().build(str(folder / "part.jsonl"), folder / "part")
    given = {"index": str(folder / "part"), "corpus": str(folder / "part.jsonl")}
    with pytest.raises(DataError, match=r"1 of 2 gold passages.*\('red'\).*unindexed_gold=count"):
        job(folder, **given).run()
    result = job(folder, **given, unindexed_gold="count").run()
    assert result["gold"] == {"passages": 2, "not_in_index": 1}
    assert result["systems"]["rewrite"]["overall"]["mrr"] == 0.5
    with pytest.raises(ConfigError, match="unindexed_gold: expected one of error, count"):
        job(folder, unindexed_gold="skip")
