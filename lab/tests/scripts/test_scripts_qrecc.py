"""Chapter 4 on files in QReCC's form, from the first index to tables 4.1 to 4.4 and 4.9, with tiny models."""

from __future__ import annotations

from pathlib import Path

import pytest
from script_runs import run_script

from finegrained_lab.experiments.conqrr import QreccTable
from finegrained_rlhf.conqrr.data import RewriteData
from finegrained_rlhf.core.files import read_json, read_jsonl, write_json, write_jsonl

pytestmark = [pytest.mark.scripts, pytest.mark.slow]
SOURCES = ("quac", "nq", "trec")


def run(script: str, *words: str) -> str:
    done = run_script(script, *words)
    assert done.returncode == 0, done.stderr[-3000:]
    return str(done.stdout)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small world in the form of the shared task: pages of passages, conversations of three sources."""
    place = tmp_path_factory.mktemp("qrecc")
    run("make_rewrite_world", f"output_dir={place}/world", "train=40", "dev=4", "test=24")
    run("make_tiny_models", f"data={place}/world/corpus.txt", f"output_dir={place}/models")
    for tower in ("query", "passage"):
        (place / "models" / tower).symlink_to(place / "models/bert")
    data = {part: RewriteData(f"{place}/world/{part}.jsonl").read().examples for part in ("train", "test")}
    page: dict[str, str] = {}  # of a passage: one that a later question of the same topic has too is on the same page
    for examples in data.values():
        for example in examples:
            for passage in example.gold:
                page.setdefault(passage, f"https://pages.org/{example.dialogue if example.topic_shift else 'topic'}")
    names = {name: f"{where}_p{number}" for number, (name, where) in enumerate(page.items())}
    corpus = read_jsonl(place / "world/corpus.jsonl")
    write_jsonl(place / "corpus.jsonl", [{**row, "id": names.get(row["id"], row["id"])} for row in corpus])
    (place / "data").mkdir()
    for part, examples in data.items():
        numbers = {name: n for n, name in enumerate(dict.fromkeys(example.dialogue for example in examples), 1)}
        rows = [
            {
                "Conversation_no": numbers[example.dialogue],
                "Turn_no": example.turn,
                "Context": list(example.history),
                "Question": example.question,
                "Truth_rewrite": example.rewrite or "",
                "Truth_answer": example.answer or "",
                "Truth_passages": [names[passage] for passage in example.gold],
                "Conversation_source": SOURCES[numbers[example.dialogue] % 3],
            }
            for example in examples
        ]
        write_json(place / f"data/{part}.json", rows)
    return place


def test_every_step_of_the_papers_experiment(files: Path) -> None:
    out = files / "out"
    words = (f"data={files}/data", f"corpus={files}/corpus.jsonl", f"models={files}/models", "steps=2", "warmup=1")
    words += ("few=0.5", "tuned_epochs=1", "precision=fp32", "threads=1")
    settings = [f"settings.{word}" for word in words]
    run("run_experiment", "pipeline=conqrr/qrecc", f"output_dir={out}", *settings)
    found = read_json(out / "qrecc.json")
    rows = {row["system"]: row for row in found["rows"]}
    assert set(rows) == set(QreccTable.systems)
    assert rows["bm25_rewrite"]["mrr"] > rows["bm25_t5qr"]["mrr"]  # two steps taught it nothing
    for system, row in rows.items():
        assert {f"{source}_mrr" for source in SOURCES} <= row.keys()
        assert row["r100"] >= row["r10"] >= 0 and row["r100"] <= 100
        assert (row["original_mrr"] <= row["mrr"]) if system.startswith("bm25") else "original_mrr" not in row
    page = (out / "qrecc.md").read_text()
    for table in ("Table 4.1", "Table 4.2, original form", "Table 4.3", "Table 4.4", "Table 4.9"):
        assert f"## {table}" in page
    assert "(0.383)" in page and "(28.2)" in page
    of_human = rows["bm25_rewrite"]
    assert f"{of_human['quac_mrr']:.3g} (0.403)" in page and f"{of_human['original_r10']:.3g} (32.8)" in page
