"""Weak labels, negatives and their cache; a retriever by words in common stands in for BM25."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from finegrained_rlhf.conqrr.data import PassageLabel, RewriteData, RewriteExample, write_rewrite_jsonl
from finegrained_rlhf.conqrr.labels import (
    LabelConfig,
    Labelling,
    LabelPassages,
    label_passages,
    read_labels,
    write_labels,
)
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import write_jsonl
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.retrieval.bm25.retriever import Bm25Config
from finegrained_rlhf.retrieval.protocol import Hit


class WordsInCommon:
    """Finds passages that share a word with the query, most words first; remembers what was asked."""

    def __init__(self, passages: Sequence[Passage]) -> None:
        self.passages = passages
        self.asked: list[str] = []

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        self.asked += queries
        found = []
        for query in queries:
            words = set(query.lower().split())
            hits = [Hit(p.id, float(len(words & set(p.text.lower().split())))) for p in self.passages]
            found.append(sorted((h for h in hits if h.score), key=lambda h: (h.score, h.id), reverse=True)[:k])
        return found

    def score_pool(self, queries: Sequence[str], ids: Sequence[str]) -> NDArray[np.float32]:
        raise AssertionError("labels need no pool")


PASSAGES = [
    Passage.uncut("album", "the band made the album Red in 1974 and it sold well"),
    Passage.uncut("split", "the band broke up in 1975 because of money"),
    Passage.uncut("tour", "the band went on a tour of Spain"),
    *(Passage.uncut(f"other{i}", f"something else number {i}") for i in range(20)),
]


def question(name: str, answer: str | None, **changes: Any) -> RewriteExample:
    rewrite = changes.pop("rewrite", "when was it that the band broke up")
    return RewriteExample(name, "d", 1, (), changes.pop("question", "when"), rewrite, answer, **changes)


def label(examples: Sequence[RewriteExample], passages: Sequence[Passage] = PASSAGES, **settings: Any) -> Labelling:
    return label_passages(
        examples, WordsInCommon(passages), passages, len(passages), LabelConfig(**settings), progress=False
    )


def test_the_passage_with_the_best_span_is_the_positive() -> None:
    """ "Red in 1974" is a span of `album` word for word, and two words of three are in `split`."""
    (found,) = label([question("a", "Red in 1974")]).labels
    assert (found.example, found.positive, found.score) == ("a", "album", 1.0)
    (found,) = label([question("a", "up in 1976")]).labels
    assert found.positive == "split" and found.score == pytest.approx(4 / 5)  # "up in": 2·2 / (2 + 3)
    assert found.negative != "split"


def test_only_what_was_found_can_be_the_positive() -> None:
    assert label([question("a", "Red in 1974", rewrite="money")]).labels[0].positive == "split"
    assert label([question("a", "tour of Spain")], depth=2).labels[0].positive != "tour"


def test_questions_without_a_label_are_counted() -> None:
    examples = [
        question("a", None),
        question("b", "no such words"),
        question("c", "1975", rewrite="xyz"),
        question("d", "1975"),
    ]
    labelling = label(examples)
    assert [found.example for found in labelling.labels] == ["d"]
    assert labelling.skipped == {
        "no answer": 1,
        "no passage found shares a word with the answer": 1,
        "nothing found": 1,
    }
    assert labelling.report()["mean_score"] == 1.0


def test_without_rewrites_the_context_is_searched() -> None:
    examples = [question("a", "1975", question="money"), question("b", "1975", question="tour", rewrite=None)]
    for settings, asked in (
        ({}, ["when was it that the band broke up", "tour"]),
        ({"label_with": "context"}, ["money", "tour"]),
        ({"label_share": 0.0}, ["money", "tour"]),
    ):
        retriever = WordsInCommon(PASSAGES)
        label_passages(examples, retriever, PASSAGES, len(PASSAGES), LabelConfig(**settings), progress=False)
        assert retriever.asked == asked


def test_a_smaller_share_of_rewrites_is_part_of_a_larger_one() -> None:
    examples = [question(f"q{i}", "1975", question=f"raw {i}", rewrite=f"full {i}") for i in range(300)]
    used = {}
    for share in (0.0, 0.01, 0.1, 1.0):
        queries = LabelConfig(label_share=share, seed=3).queries(examples)
        used[share] = {example.id for example, query in zip(examples, queries, strict=True) if "full" in query}
    assert [len(used[share]) for share in used] == [0, 3, 30, 300]
    assert used[0.01] < used[0.1] < used[1.0]


def test_ties_are_chosen_by_seed() -> None:
    passages = [*PASSAGES, *(Passage.uncut(f"twin{i}", "the band broke up in 1975") for i in range(4))]
    examples = [question(f"q{i}", "broke up in 1975") for i in range(40)]
    labelling = label(examples, passages)
    chosen = Counter(found.positive for found in labelling.labels)
    assert set(chosen) == {"split", "twin0", "twin1", "twin2", "twin3"} and labelling.counts["tied"] == 40
    assert label(examples, passages).labels == labelling.labels
    assert label(examples, passages, seed=1).labels != labelling.labels


def test_choices_depend_on_the_question_alone() -> None:
    """Not on the order of questions, nor on the other ones; the corpus keeps its order, which places are drawn from."""
    examples = [question(f"q{i}", "1975") for i in range(20)]
    whole = label(examples).labels
    assert set(label(examples[::-1]).labels) == set(whole) and whole[7].example == "q7"
    assert label(examples[7:8]).labels == (whole[7],)


def test_negatives() -> None:
    examples = [question(f"q{i}", "1975") for i in range(400)]
    labelling = label(examples)
    negatives = Counter(found.negative for found in labelling.labels)
    assert all(found.negative != found.positive == "split" for found in labelling.labels)
    assert set(negatives) == {passage.id for passage in PASSAGES} - {"split"}
    assert labelling.counts["hard"] + labelling.counts["corpus"] == 400
    assert 160 < labelling.counts["hard"] < 240  # 200 expected, standard deviation 10
    assert label(examples, hard_share=0.0).counts == {"weak": 400, "corpus": 400}
    assert {found.negative for found in label(examples, hard_share=1.0).labels} == {"album", "tour"}


def test_where_nothing_else_was_found_the_negative_comes_from_the_corpus() -> None:
    labelling = label([question("a", "1975", rewrite="money")], hard_share=1.0)
    assert labelling.counts == {"weak": 1, "corpus": 1}


def test_gold_passages() -> None:
    examples = [
        question("a", "1975", gold=("tour", "absent")),
        question("b", None, gold=("other1",)),
        question("c", "1975", gold=("absent",)),
        *(question(f"q{i}", None, gold=("album", "split")) for i in range(60)),
    ]
    labelling = label(examples, gold=True)
    first, second, third, *rest = labelling.labels
    assert (first.positive, first.score, second.positive) == ("tour", None, "other1")
    assert (third.positive, third.score) == ("split", 1.0)
    assert {found.positive for found in rest} == {"album", "split"}
    assert not {found.negative for found in rest} & {"album", "split"}
    assert label(examples).skipped == {"no answer": 61}


def test_what_cannot_be() -> None:
    with pytest.raises(DataError, match="record a: the corpus holds no other passage"):
        label([question("a", "1975")], [PASSAGES[1]])
    config = LabelConfig()
    with pytest.raises(DataError, match="which the corpus does not hold"):
        label_passages([question("a", "1975")], WordsInCommon(PASSAGES), PASSAGES[5:], 3, config, progress=False)
    with pytest.raises(DataError, match="fewer than the 99 passages"):
        label_passages([question("a", "1975")], WordsInCommon(PASSAGES), PASSAGES, 99, config, progress=False)
    for broken in ({"label_with": "answer"}, {"label_share": 1.5}, {"hard_share": -1.0}, {"depth": 0}):
        with pytest.raises(ConfigError, match=next(iter(broken))):
            LabelConfig(**broken)  # type: ignore[arg-type]


# Files ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def job(tmp_path: Path) -> LabelPassages:
    """A job over a real index of the passages above."""
    examples = [question("a", "Red in 1974"), question("b", "1975"), question("c", None)]
    write_rewrite_jsonl(tmp_path / "questions.jsonl", examples)
    write_jsonl(tmp_path / "corpus.jsonl", ({"id": p.id, "text": p.text} for p in PASSAGES))
    Bm25Config().build(str(tmp_path / "corpus.jsonl"), tmp_path / "index")
    return LabelPassages(
        str(tmp_path / "questions.jsonl"),
        corpus=str(tmp_path / "corpus.jsonl"),
        index=str(tmp_path / "index"),
        cache=str(tmp_path / "cache"),
        output=str(tmp_path / "labels.jsonl"),
        progress=False,
    )


def test_a_second_run_reads_the_cache(job: LabelPassages, capsys: pytest.CaptureFixture[str]) -> None:
    first = job.run()
    assert [found.positive for found in first.labels] == ["album", "split"] and first.skipped == {"no answer": 1}
    assert "labelled: " in capsys.readouterr().out
    _, path, made = job.load()
    assert not made
    marked = json.loads(path.read_text())
    marked["labels"][0]["negative"] = "from the cache"
    path.write_text(json.dumps(marked))
    assert job.run().labels[0].negative == "from the cache"
    assert "read from the cache: " in capsys.readouterr().out
    assert read_labels(str(job.output))["a"].negative == "from the cache"


def test_other_settings_or_inputs_are_labelled_anew(job: LabelPassages, tmp_path: Path) -> None:
    _, path, _ = job.load()
    for changes in ({"seed": 1}, {"label_with": "context"}, {"label_share": 0.1}, {"depth": 50}, {"gold": True}):
        _, other, made = dataclasses.replace(job, labelling=LabelConfig(**changes)).load()  # type: ignore[arg-type]
        assert made and other != path
    moved = tmp_path / "moved.jsonl"
    (tmp_path / "questions.jsonl").rename(moved)
    _, same, made = dataclasses.replace(job, data=RewriteData(str(moved))).load()
    assert not made and same == path  # a file is known by its content
    write_rewrite_jsonl(moved, [question("a", "Red in 1974", question="other")])
    assert dataclasses.replace(job, data=RewriteData(str(moved))).load()[2]


def test_the_index_must_be_of_the_corpus(job: LabelPassages) -> None:
    job.load()
    write_jsonl(job.corpus, [{"id": "x", "text": "another corpus"}])
    with pytest.raises(ConfigError, match="not of the corpus"):
        job.load()


def test_a_damaged_cache_is_refused(job: LabelPassages) -> None:
    _, path, _ = job.load()
    path.write_text("{}")
    with pytest.raises(DataError, match="is no cache of labels.*delete it"):
        job.load()


def test_label_files_come_back(tmp_path: Path) -> None:
    labels = [PassageLabel("a", "p", "n", 0.5), PassageLabel("b", "p", "n")]
    write_labels(tmp_path / "l.jsonl", labels)
    assert list(read_labels(tmp_path / "l.jsonl").values()) == labels
    whole = '{"example": "a", "positive": "p", "negative": "n"}'
    for line, problem in (
        ('{"example": "a", "positive": "p"}', "field negative: missing"),
        ('{"example": "a", "positive": "p", "negative": "n", "score": "1"}', "field score: expected a number"),
        (f"{whole}\n{whole}", "record 1, field example: a has a label"),
    ):
        (tmp_path / "l.jsonl").write_text(line)
        with pytest.raises(DataError, match=problem):
            read_labels(tmp_path / "l.jsonl")
