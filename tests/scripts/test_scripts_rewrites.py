"""The shortest real runs of `finegrained label-passages` and `finegrained evaluate-rewrites`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from script_runs import run_script as run

from finegrained_rlhf.conqrr.data import RewriteExample, write_rewrite_jsonl, write_rewrites
from finegrained_rlhf.conqrr.labels import read_labels
from finegrained_rlhf.core.files import write_jsonl
from finegrained_rlhf.retrieval.bm25.retriever import Bm25Config

pytestmark = pytest.mark.scripts


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rewrites")
    first, color = "who built the mill", "what color is the mill"
    examples = [
        RewriteExample("d_1", "d", 1, (), first, first, "Ada Berg built it", gold=("mill",)),
        RewriteExample("d_2", "d", 2, (first, "Ada Berg built it"), "and its color", color, "it is red", gold=("red",)),
        RewriteExample("d_3", "d", 3, (first, "Ada", color, "red"), "why", "why is the mill red"),
    ]
    write_rewrite_jsonl(path / "questions.jsonl", examples)
    passages = {"mill": "Ada Berg built the mill", "red": "the color of the mill: it is red", "inn": "an inn"}
    write_jsonl(path / "corpus.jsonl", ({"id": name, "text": text} for name, text in passages.items()))
    Bm25Config().build(str(path / "corpus.jsonl"), path / "index")
    return path


def call(script: str, folder: Path, *more: str) -> list[str]:
    return [
        script,
        f"data.path={folder}/questions.jsonl",
        f"corpus={folder}/corpus.jsonl",
        f"index={folder}/index",
        "progress=false",
        *more,
    ]


def test_label_passages_twice(folder: Path) -> None:
    label = call("label_passages", folder, f"output={folder}/labels.jsonl", f"cache={folder}/cache")
    done = run(*label)
    assert done.returncode == 0, done.stderr
    assert '"labels": 2' in done.stdout and "labelled: " in done.stdout
    labels = read_labels(folder / "labels.jsonl")
    assert {name: label.positive for name, label in labels.items()} == {"d_1": "mill", "d_2": "red"}
    again = run(*label)
    assert again.returncode == 0 and "read from the cache: " in again.stdout, again.stderr
    assert read_labels(folder / "labels.jsonl") == labels
    context = run(*label, "labelling.label_with=context", f"output={folder}/context.jsonl")
    assert context.returncode == 0 and "labelled: " in context.stdout, context.stderr


@pytest.mark.parametrize(
    ("argument", "problem"),
    [
        ("labelling.label_with=banana", "label_with: expected one of rewrite, context, got 'banana'"),
        ("settings.label_with=banana", "unknown key 'settings.label_with'"),
    ],
)
def test_labelling_settings_are_read(folder: Path, argument: str, problem: str) -> None:
    """Every key of the labelling reaches the job; the name of an experiment's own settings is none of them."""
    output, cache = f"output={folder}/none.jsonl", f"cache={folder}/none"
    refused = run(*call("label_passages", folder, output, cache, argument))
    assert refused.returncode != 0 and not (folder / "none.jsonl").exists()
    errors = [line for line in refused.stderr.splitlines() if line.strip()]
    assert len(errors) == 1 and errors[0].startswith("error: ") and problem in errors[0], refused.stderr


def test_evaluate_rewrites(folder: Path) -> None:
    write_rewrites(folder / "ours.jsonl", {"d_1": "Ada Berg", "d_2": "mill color red"})
    done = run(*call("evaluate_rewrites", folder, f"output={folder}/s.json", f"+rewrites.ours={folder}/ours.jsonl"))
    assert done.returncode == 0, done.stderr
    systems = json.loads((folder / "s.json").read_text())["systems"]
    assert list(systems) == ["question", "context", "rewrite", "ours"]
    assert systems["ours"]["overall"]["mrr"] == 1.0 and systems["ours"]["overall"]["turns"] == 2
    refused = run(*call("evaluate_rewrites", folder, f"output={folder}/s.json", "baselines=[]"))
    assert refused.returncode == 2 and refused.stderr.startswith("error: ") and "nothing to evaluate" in refused.stderr
