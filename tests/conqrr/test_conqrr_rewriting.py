"""Rewriting: what a rewriter gives, the length normalisation that matches a length, and the job around it."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from conqrr_toy import make_files, questions

from finegrained_rlhf.conqrr.data import RewriteData, RewriteExample, write_rewrites
from finegrained_rlhf.conqrr.rewriter import QueryRewriter, last_question, matching_alpha
from finegrained_rlhf.conqrr.rewriting import BestOfRank, Rewrite, RewritingConfig, best_by_rank, words_of
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.models.loading import open_policy
from finegrained_rlhf.retrieval.protocol import Hit
from finegrained_rlhf.retrieval.record import RecordedConfig
from finegrained_rlhf.rollout.beam import Hypothesis, best
from finegrained_rlhf.runtime.processes import Processes


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_files(tmp_path_factory.mktemp("rewriting"))


def rewriter(files: Path, **config: Any) -> QueryRewriter:
    return QueryRewriter(open_policy(files / "t5"), Processes(), RewritingConfig(max_new_tokens=8, **config))


def test_a_policy_that_was_trained_for_something_else_is_warned_of(
    files: Path, caplog: pytest.LogCaptureFixture
) -> None:
    QueryRewriter.load(str(files / "t5"), Processes(), RewritingConfig())
    assert f"checkpoint: {files}/t5 was not trained as a query rewriter" in caplog.text
    caplog.clear()
    QueryRewriter.load(str(files / "t5"), Processes(), RewritingConfig(template="{dialogue}"))
    assert caplog.text == ""


def test_greedy_rewrites_are_those_of_generate(files: Path) -> None:
    ours = rewriter(files, batch_size=5)
    counts: list[int] = []
    texts = ours.rewrite(questions(), counts.append)
    assert counts == [5, 5, 2]
    policy = ours.policy
    for question, text in zip(questions(), texts, strict=True):
        ids = policy.tokenizer(question.context, return_tensors="pt")["input_ids"]
        output = policy.model.generate(ids, max_new_tokens=8, do_sample=False)[0]
        assert text == policy.tokenizer.decode(output, skip_special_tokens=True)


def test_a_rewrite_says_whether_it_was_cut_off(files: Path) -> None:
    """By hand: its tokens, beam or greedy, hold no end of sequence. The limit of one token cuts all but the empty."""
    for beams in (1, 3):
        for limit in (1, 30):
            ours = QueryRewriter(open_policy(files / "t5"), Processes(), RewritingConfig(beams, max_new_tokens=limit))
            written = ours.write(questions()[:4])
            assert [rewrite.text for rewrite in written] == ours.rewrite(questions()[:4])
            for question, rewrite in zip(questions(), written, strict=False):
                ids = ours.policy.tokenizer(question.context, return_tensors="pt")["input_ids"]
                if beams == 1:
                    output = ours.policy.model.generate(ids, max_new_tokens=limit, do_sample=False)[0]
                    assert rewrite.finished == (ours.policy.eos_ids[0] in output.tolist())


def test_alpha_0_of_a_beam_is_the_most_probable_hypothesis(files: Path) -> None:
    ours = rewriter(files, beams=3)
    searched = ours.search(questions()[:4])
    assert ours.rewrite(questions()[:4]) == [ours.text(max(h, key=lambda h: h.logprob)) for h in searched]


class Spelled:
    """A rewriter whose tokens are words."""

    def text(self, hypothesis: Hypothesis) -> str:
        return " ".join(map(str, hypothesis.ids))


@pytest.mark.parametrize("seed", range(3))
def test_alpha_meets_the_nearest_length(seed: int) -> None:
    rng = random.Random(seed)
    searched = [
        [Hypothesis(tuple(range(n)), -n * rng.uniform(0.2, 1.0), True) for n in rng.sample(range(2, 20), 5)]
        for _ in range(10)
    ]

    def mean(alpha: float) -> float:
        return sum(len(best(found, alpha).ids) for found in searched) / len(searched)

    reachable = sorted({round(mean(a / 50), 6) for a in range(-200, 400)})
    assert len(reachable) >= 8
    ours: Any = Spelled()
    for wanted in (reachable[0] - 1, *reachable, reachable[-1] + 5):
        found = mean(matching_alpha(ours, searched, wanted))
        assert abs(found - wanted) <= min(abs(other - wanted) for other in reachable) + 1e-6


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def job(files: Path, output: Path, **changes: Any) -> Rewrite:
    given = {"checkpoint": str(files / "t5"), "input": str(files / "questions.jsonl"), "output": str(output)}
    return Rewrite(**{**given, "rewriting": RewritingConfig(max_new_tokens=8), **changes})


def test_a_file_with_passages(files: Path, tmp_path: Path) -> None:
    index, corpus = str(files / "index"), str(files / "corpus.jsonl")
    job(files, tmp_path / "plain.jsonl").run()
    job(files, tmp_path / "found.jsonl", index=index, corpus=corpus, k=3).run()
    plain, found = rows(tmp_path / "plain.jsonl"), rows(tmp_path / "found.jsonl")
    assert [row["id"] for row in plain] == [q.id for q in questions()]
    assert plain == [{"id": row["id"], "rewrite": row["rewrite"], "finished": row["finished"]} for row in found]
    expected = RecordedConfig().open(Path(index)).search([row["rewrite"] for row in plain], 3)
    for row, hits in zip(found, expected, strict=True):
        assert [passage["id"] for passage in row["passages"]] == [hit.id for hit in hits]
        assert all(passage["text"].startswith("the ") for passage in row["passages"])


def test_one_dialogue_on_standard_output(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    question = questions()[1]
    task = job(files, Path("-"), input=None, turns=[*question.history, question.question])
    task.run()
    (row,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (written,) = rewriter(files).write([question])
    assert row == {"id": "dialogue", "rewrite": written.text, "finished": written.finished}
    assert last_question(["a?", "", "b?"]).context == "b? [SEP] a?"


def test_a_file_is_matched_in_length(
    files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    write_rewrites(tmp_path / "others.jsonl", {"a": "one two three four", "b": "one two three four"})
    caplog.set_level("INFO")
    config = RewritingConfig(beams=4, max_new_tokens=8)
    data = RewriteData(str(files / "questions.jsonl"))
    job(files, tmp_path / "out.jsonl", input=data, rewriting=config, match=str(tmp_path / "others.jsonl")).run()
    mean = sum(words_of(row["rewrite"]) for row in rows(tmp_path / "out.jsonl")) / len(questions())
    assert f"{mean:.2f} words a rewrite" in caplog.text and "alpha = " in caplog.text
    assert f"{mean:.1f} words each" in capsys.readouterr().out
    write_rewrites(tmp_path / "others.jsonl", {"a": "word " * 40})  # longer than any hypothesis
    caplog.clear()
    job(files, tmp_path / "out.jsonl", input=data, rewriting=config, match=str(tmp_path / "others.jsonl")).run()
    (far,) = [record for record in caplog.records if "words a rewrite" in record.getMessage()]
    assert far.levelname == "WARNING" and "has 40.00" in far.getMessage()


class ByLength:
    """Finds passage 1 first for a text of one word, second for two words, and not at all for more."""

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        found = {1: ["1", "2"], 2: ["2", "1"]}
        return [[Hit(id, 2.0 - n) for n, id in enumerate(found.get(len(q.split()), ["2"]))][:k] for q in queries]


def test_the_best_by_rank_is_the_first_of_the_best() -> None:
    questions = [RewriteExample(name, name, 1, (), "why?", gold=("1", "9")) for name in "abc"]
    questions.append(RewriteExample("d", "d", 1, (), "why?"))
    texts = [["x y z", "x y", "z", "y"], ["", "x y", "y x"], [" ", "a b c"], ["a b", "a"]]
    assert best_by_rank(questions, texts, ByLength(), 10) == [2, 1, 0, 0]
    assert best_by_rank(questions, texts, ByLength(), 1) == [2, 0, 0, 0]
    with pytest.raises(DataError, match="field gold: no question has a gold passage"):
        best_by_rank(questions[3:], texts[3:], ByLength(), 10)


def test_a_file_of_the_best_samples(files: Path, tmp_path: Path) -> None:
    """None of the samples of a question ranks its passage above the one that is written; one sample is that sample."""
    data, index = RewriteData(str(files / "questions.jsonl")), str(files / "index")
    retriever = RecordedConfig().open(Path(index))
    best = BestOfRank(n=4, top_k=0, seed=3)
    job(files, tmp_path / "best.jsonl", input=data, index=index, by_rank=best, k=18).run()
    drawn = rewriter(files).sample(questions(), best.decoding(), 3)
    for row, question, group in zip(rows(tmp_path / "best.jsonl"), questions(), drawn, strict=True):
        ranks = [best_rank(retriever, one.text, question.gold[0]) for one in group]
        assert best_rank(retriever, row["rewrite"], question.gold[0]) == min(ranks)
        assert row["rewrite"] in [one.text for one in group]
    assert len({one.text for group in drawn for one in group}) > len(drawn)
    for bad in ({"index": None}, {"rewriting": RewritingConfig(beams=2)}):
        with pytest.raises(ConfigError, match="by_rank: expected an index, and rewriting.beams=1"):
            job(files, tmp_path / "x.jsonl", **{"input": data, "index": index, "by_rank": best, **bad})
    for wrong, what in (({"depth": 0}, "depth: expected at least 1"), ({"temperature": 0.0}, "by_rank: ")):
        with pytest.raises(ConfigError, match=what):
            BestOfRank(**wrong)


def best_rank(retriever: Any, text: str, gold: str) -> float:
    """By sorting: the last place of the passage among hits with its score."""
    hits = retriever.search([text], 100)[0] if text.strip() else []
    scores = {hit.id: hit.score for hit in hits}
    ascending = sorted(scores.values())
    return len(ascending) - ascending.index(scores[gold]) if gold in scores else 1e9


@pytest.mark.parametrize(
    ("bad", "what"),
    [
        ({"turns": ["why?"]}, "either input or turns"),
        ({"corpus": "c.jsonl"}, "an index"),
        ({"match": "m.jsonl"}, "beams"),
        ({"k": 0}, "k: expected"),
        ({"format": "csv"}, "format"),
        ({"format": "qrecc", "input": None}, "format"),
    ],
)
def test_contradictions_are_refused(files: Path, tmp_path: Path, bad: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        job(files, tmp_path / "out.jsonl", **bad)


def test_what_is_no_question_is_refused(files: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="greedy"):
        RewritingConfig(alpha=0.5)
    with pytest.raises(ConfigError, match="got 2 turns"):
        last_question(["a?", "b"])
    with pytest.raises(ConfigError, match="blank"):
        last_question(["a?", "b", " "])
    with pytest.raises(ConfigError, match="give input"):
        job(files, tmp_path / "out.jsonl", input=None).run()
