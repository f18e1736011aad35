"""The table of evaluated rewrites and its samples."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from mills_toy import job, make_mills

from finegrained_lab.experiments.conqrr.canard_corpus import WriteCanardCorpus
from finegrained_lab.experiments.conqrr.results import RewriteTable
from finegrained_lab.experiments.conqrr.samples import SampleRewrites
from finegrained_rlhf.conqrr.data import RewriteData, RewriteExample, write_rewrites
from finegrained_rlhf.conqrr.measures import score_queries
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.retrieval.corpus import Corpus
from finegrained_rlhf.retrieval.protocol import Hit
from finegrained_rlhf.retrieval.runs import read_trec_run

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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_mills(tmp_path)


def test_the_table(folder: Path) -> None:
    job(folder).run()
    table = RewriteTable(
        str(folder / "t.json"),
        "a command",
        {"Mills": str(folder / "scores.json")},
        "Title",
        "About.",
        {"rewrite": "the human's"},
        chosen="Nothing was chosen.",
    )
    result = table.run()
    page = (folder / "t.md").read_text()
    assert page == table.page(json.loads((folder / "t.json").read_text()))
    assert page.startswith(
        "# Title\n\nGenerated from the JSON file of the same name; do not edit. About.\n\n`a command`"
    )
    assert "## Mills\n\n2 questions, 4 passages, bm25, 100 hits a query, form `updated`. Read: 1 dialogues," in page
    assert result["settings"]["title"] == "Title" and result["evaluations"]["Mills"]["settings"]["k"] == 100
    assert result["evaluations"]["Mills"]["systems"]["rewrite"]["overall"]["mrr"] == 1.0
    rows = [line.split("|")[1:-1] for line in page.splitlines() if line.startswith("|")]
    head = ["query", "MRR", "R@10", "R@100", "words", "overlap", "repeats", "ROUGE-1", "repeats a bigram", "cut off"]
    assert [cell.strip() for cell in rows[0]] == head
    assert [cell.strip() for cell in rows[4]][:4] == ["the human's", "1.000", "1.000", "1.000"]
    assert "MRR by" not in page  # both questions are in one group of each grouping
    with pytest.raises(DataError, match="field systems: expected results of finegrained evaluate-rewrites"):
        (folder / "scores.json").write_text("{}")
        table.run()
    with pytest.raises(ConfigError, match="at least one"):
        RewriteTable("x", "x", {}, "x", "x", chosen="x")


def test_rewrites_side_by_side(folder: Path) -> None:
    """The later question with gold, and no other; its ranks are those of the runs that were evaluated."""
    write_rewrites(
        folder / "ours.jsonl",
        {e.id: "a *mill* | of\nAda" for e in RewriteData(str(folder / "questions.jsonl")).read().examples},
    )
    job(folder, rewrites={"ours": str(folder / "ours.jsonl")}, runs=str(folder / "runs")).run()
    samples = SampleRewrites(
        str(folder / "questions.jsonl"), {"ours": str(folder / "ours.jsonl")}, str(folder / "runs"), 9
    )
    table = RewriteTable(
        str(folder / "t.json"), "c", {"All": str(folder / "scores.json")}, "T", "A", {"ours": "our own"}, samples,
        chosen="x",
    )  # fmt: skip
    result = table.run()
    later = [e for e in RewriteData(str(folder / "questions.jsonl")).read().examples if e.gold and e.history]
    assert sorted(sample["id"] for sample in result["samples"]) == sorted(e.id for e in later) and later
    for sample in result["samples"]:
        (example,) = [e for e in later if e.id == sample["id"]]
        hits = [hit.id for hit in read_trec_run(folder / "runs/ours.trec").get(example.id, [])]
        places = [hits.index(gold) + 1 for gold in example.gold if gold in hits]
        assert (sample["rewrites"]["ours"]["rank"] or 0) >= (min(places) if places else 0)
        assert sample["rewrites"]["rewrite"]["text"] == example.rewrite and sample["question"] == example.question
    page = (folder / "t.md").read_text()
    assert page == table.page(json.loads((folder / "t.json").read_text()))
    assert "| our own | a \\*mill\\* \\| of Ada   | 2    |" in page and "| rewrite | what color is the mill | 1" in page
    for bad, what in (({"count": 0}, "count: expected"), ({"rewrites": {}}, "samples.rewrites")):
        with pytest.raises(ConfigError, match=what):
            dataclasses.replace(samples, **bad)


def test_groups_of_the_table(folder: Path) -> None:
    systems = {"ours": score_queries(EXAMPLES, QUERIES, RUN, None, TEXTS, frozenset(("who", "built", "the"))).to_json()}
    del systems["ours"]["rouge1"], systems["ours"]["repeated_bigrams"], systems["ours"]["cut"]  # made before them
    retriever = {"kind": "bm25", "passages": 4}
    scores = {"systems": systems, "retriever": retriever, "k": 100, "metrics": {"form": "updated"}}
    (folder / "scores.json").write_text(json.dumps(scores))
    RewriteTable(str(folder / "t.json"), "c", {"All": str(folder / "scores.json")}, "T", "A", chosen="x").run()
    page = (folder / "t.md").read_text()
    assert "ROUGE-1" not in page and "cut off" not in page
    assert "### MRR by topic\n" in page and "### MRR by the source of the dialogue\n" in page
    lines = page[page.index("### MRR by the number of questions") :].splitlines()
    table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:6]]
    assert (table[0], table[2], table[3]) == (
        ["query", "1-2", "3-4", "5+"],
        ["questions", "2", "1", "1"],
        ["ours", "0.750", "0.333", "0.000"],
    )
    for heading, cells in (("Words of a query", ["ours", "4.500", "2.000"]), ("Overlap", ["ours", "0.833", "1.000"])):
        lines = page[page.index(f"### {heading}") :].splitlines()
        assert [cell.strip() for cell in lines[5].split("|")[1:-1]] == cells and "by source" in lines[0]
    for scored in systems["ours"]["groups"]["source"].values():  # made before the wording of groups was measured
        del scored["tokens"], scored["overlap"]
    (folder / "scores.json").write_text(json.dumps(scores))
    RewriteTable(str(folder / "t.json"), "c", {"All": str(folder / "scores.json")}, "T", "A", chosen="x").run()
    assert "### Words of a query" not in (folder / "t.md").read_text()


def test_the_published_canard_file_as_a_corpus(shared_data: Path, tmp_path: Path) -> None:
    """Every gold passage is in the corpus that the experiment writes."""
    path = shared_data / "canard" / "dev.json"
    WriteCanardCorpus(str(path), str(tmp_path / "corpus.jsonl")).run()
    corpus = Corpus(tmp_path / "corpus.jsonl")
    examples = RewriteData(str(path), "canard").read().examples
    gold = {passage for item in examples for passage in item.gold}
    assert corpus.find(gold).keys() == gold and corpus.scan(progress=False).passages == len(gold)
    assert next(iter(corpus)).contents == "Frank Zappa, Disbandment Zappa and the Mothers of Invention"
