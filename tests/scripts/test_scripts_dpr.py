"""The shortest real runs of dense passage retrieval: convert, train in one process and in two, index, search."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from dpr_toy import dpr_files
from safetensors.torch import load_file
from script_runs import Done, rows, run_in_processes, run_script
from transformers import BertModel

from finegrained_rlhf.core.files import read_json, read_jsonl

pytestmark = pytest.mark.scripts
STEPS = ("total_steps=4", "validate_every=2", "dropout=0", "sampling.positives=all")
SLOW = ("optimizer.lr=1e-3", "optimizer.eps=1e-3", "optimizer.schedule=constant")
"""The passage tower's last bias moves all scores of a query alike: its gradient is rounding noise (5e-7 was seen),
which Adam would divide by its own size."""
QUICK = ("processes.precision=fp32", "processes.threads=1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dpr_files(tmp_path_factory.mktemp("dpr"))


def done(result: Done) -> str:
    assert result.returncode == 0, result.stderr
    return result.stdout


def train(folder: Path, output: Path, *more: str) -> list[str]:
    models = (f"query_model={folder}/towers/query", f"passage_model={folder}/towers/passage")
    data = (f"data={folder}/train.jsonl", f"validation_data={folder}/dev.jsonl", f"output_dir={output}")
    return ["train_dpr", *data, *models, *STEPS, *SLOW, *QUICK, *more]


def same_towers(left: Path, right: Path) -> None:
    """Weights to 1e-5, and every metric."""
    for tower in ("query", "passage"):
        one, other = (
            load_file(run / "checkpoints/step_4/model" / tower / "model.safetensors") for run in (left, right)
        )
        assert one.keys() == other.keys()
        for name, value in one.items():
            torch.testing.assert_close(value, other[name], atol=1e-5, rtol=0, msg=f"{tower} {name}")
    for file in ("metrics.jsonl", "eval.jsonl"):
        for first, second in zip(rows(left / file), rows(right / file), strict=True):
            del first["processes" if "processes" in first else "step"]
            for name, value in first.items():
                assert value == pytest.approx(second[name], rel=1e-4, abs=1e-5), name


@pytest.mark.parametrize(
    ("processes", "more"),
    [
        pytest.param(2, ("freeze_passages=true", "batches.batch_size=5"), marks=pytest.mark.slow),
        (2, ("freeze_passages=false", "batches.batch_size=7", "batches.micro_batch_size=2")),
        pytest.param(  # one process has no query
            3, ("freeze_passages=false", "batches.batch_size=2"), marks=pytest.mark.slow
        ),
    ],
)
def test_several_processes_train_what_one_does(
    folder: Path, tmp_path: Path, processes: int, more: tuple[str, ...]
) -> None:
    done(run_script(*train(folder, tmp_path / "one", *more)))
    done(run_in_processes(processes, *train(folder, tmp_path / "several", *more)))
    same_towers(tmp_path / "one", tmp_path / "several")
    assert rows(tmp_path / "several/metrics.jsonl")[0]["processes"] == processes


@pytest.mark.slow
def test_shared_gradients_train_what_one_process_does(folder: Path, tmp_path: Path) -> None:
    more = ("freeze_passages=false", "batches.batch_size=7", "batches.micro_batch_size=2")
    done(run_script(*train(folder, tmp_path / "one", *more)))
    done(run_in_processes(2, *train(folder, tmp_path / "several", *more), "processes.sharding=gradients"))
    same_towers(tmp_path / "one", tmp_path / "several")


def test_a_checkpoint_is_converted_trained_on_and_searched_with(folder: Path, tmp_path: Path) -> None:
    bert = BertModel.from_pretrained(folder / "towers/query")
    state = {
        f"{prefix}.{name}": w for prefix in ("question_model", "ctx_model") for name, w in bert.state_dict().items()
    }
    torch.save({"model_dict": state, "epoch": 1}, tmp_path / "dpr.cp")
    said = done(
        run_script(
            "convert_dpr",
            f"checkpoint={tmp_path}/dpr.cp",
            f"model={folder}/towers/query",
            f"output_dir={tmp_path}/towers",
        )
    )
    assert "two towers" in said
    towers = (f"query_model={tmp_path}/towers/query", f"passage_model={tmp_path}/towers/passage")
    said = done(run_script(*train(folder, tmp_path / "run", *towers)))
    assert "towers: best at step" in said and read_json(tmp_path / "run/metrics.json")["dev_examples"] == 16
    dense = ("retriever=dense", f"retriever.encoder.query={tmp_path}/run", f"retriever.encoder.passage={tmp_path}/run")
    done(run_script("build_index", f"corpus={folder}/corpus.jsonl", f"output_dir={tmp_path}/index", *dense))
    asked = ("queries=['where [SEP] old lark']", "k=3", f"output={tmp_path}/hits.jsonl")
    done(run_script("search", f"index={tmp_path}/index", *asked))
    (found,) = read_jsonl(tmp_path / "hits.jsonl")
    assert len(found["hits"]) == 3
    done(run_script("search", f"index={tmp_path}/index", *asked, *dense))
    assert read_jsonl(tmp_path / "hits.jsonl") == [found]


def test_what_is_wrong_is_said_in_a_line_before_anything_is_made(folder: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text(
        '{"id": "a", "query": "big", "positives": [{"id": "p", "text": "t"}], "negatives": [{"id": "p", "text": "t"}]}'
    )
    wrong = run_script(*train(folder, tmp_path / "run"), f"data={bad}")
    assert wrong.returncode == 2 and "passage 'p' is also among the positives" in wrong.stderr
    lines = wrong.stderr.strip().splitlines()
    assert len(lines) == 1 and "bad.jsonl" in lines[0] and "record 0" in lines[0] and "negatives" in lines[0], lines
    half = run_script(
        "build_index",
        f"corpus={folder}/corpus.jsonl",
        f"output_dir={tmp_path}/index",
        "retriever=dense",
        f"retriever.encoder.query={folder}/towers/query",
    )
    assert half.returncode == 2 and "expected path, one model, or without it query and passage" in half.stderr
    assert not (tmp_path / "index").exists()
