"""What a command reads is opened before anything is made: damaged or wrong models, corpora, indexes and data."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hydra_once import merged_once
from safetensors.numpy import save_file

from finegrained_rlhf.core.errors import ConfigError, ModelError
from finegrained_rlhf.launch.app import run_command
from finegrained_rlhf.launch.checks import contents
from finegrained_rlhf.launch.checks.contents import problems_of_contents
from finegrained_rlhf.launch.checks.paths import Made
from finegrained_rlhf.launch.steps import Step, check_steps
from finegrained_rlhf.models.weights.files import check_adapter, check_language_model, check_model, check_tokenizer

T5 = {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]}
REWARD = {
    "model_type": "longformer",
    "architectures": ["LongformerForTokenClassification"],
    "id2label": {"0": "no_error", "1": "has_error"},
}
RECORD = {"kind": "relevance", "segmenter": "rules", "max_length": 64, "global_attention": "separators", "mean": None}


def make_model(directory: Path, config: Any = T5, **files: Any) -> Path:
    """The files of a model; of the weights there is one tensor."""
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "tokenizer.json").write_text("{}")
    save_file({"shared.weight": np.zeros((4, 2), dtype=np.float32)}, directory / "model.safetensors")
    for name, value in files.items():
        (directory / f"{name}.json").write_text(json.dumps(value))
    return directory


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def test_whole_models_pass_in_every_place_where_they_may_lie(tmp_path: Path) -> None:
    check_model(str(make_model(tmp_path / "plain")))
    make_model(tmp_path / "run/policy")
    check_language_model(str(tmp_path / "run"))
    make_model(tmp_path / "dpr/model/query")
    check_model(str(tmp_path / "dpr"))
    make_model(tmp_path / "sentence/0_Transformer")
    (tmp_path / "sentence/modules.json").write_text("[]")
    check_model(str(tmp_path / "sentence"))
    sharded = make_model(tmp_path / "sharded")
    (sharded / "model.safetensors").rename(sharded / "model-00001-of-00001.safetensors")
    index = {"weight_map": {"shared.weight": "model-00001-of-00001.safetensors"}}
    (sharded / "model.safetensors.index.json").write_text(json.dumps(index))
    check_language_model(str(sharded))


DAMAGES: list[tuple[str, Callable[[Path], object]]] = [
    (r"no model here \(expected .*config\.json", lambda m: (m / "config.json").unlink()),
    (r"config\.json: not valid JSON", lambda m: cut(m / "config.json", 9)),
    (r"config\.json: expected an object, got list", lambda m: (m / "config.json").write_text("[]")),
    (r"tokenizer\.json: not valid JSON", lambda m: (m / "tokenizer.json").write_text("{")),
    (r"no tokenizer here", lambda m: (m / "tokenizer.json").unlink()),
    (r"model\.safetensors: damaged weights", lambda m: cut(m / "model.safetensors", -4)),
    (r"model\.safetensors: damaged weights", lambda m: cut(m / "model.safetensors", 5)),
    (r"model\.safetensors: damaged weights", lambda m: (m / "model.safetensors").write_text("version https://git-lfs")),
    (r"no \*\.safetensors; weights in other formats", lambda m: (m / "model.safetensors").rename(m / "model.bin")),
    (
        r"b\.safetensors: no such file, though the index",
        lambda m: (m / "model.safetensors.index.json").write_text('{"weight_map": {"x": "b.safetensors"}}'),
    ),
    (r"a mpnet model, expected a causal", lambda m: (m / "config.json").write_text('{"model_type": "mpnet"}')),
    (r"LlamaForTokenClassification, expected a causal", lambda m: write_head(m / "config.json")),
]


def write_head(path: Path) -> None:
    path.write_text(json.dumps({"model_type": "llama", "architectures": ["LlamaForTokenClassification"]}))


@pytest.mark.parametrize(("said", "damage"), DAMAGES, ids=[said for said, _ in DAMAGES])
def test_a_damaged_policy_is_told_by_its_files(said: str, damage: Callable[[Path], object], tmp_path: Path) -> None:
    damage(make_model(tmp_path / "policy"))
    with pytest.raises(ModelError, match=said):
        check_language_model(str(tmp_path / "policy"))


def test_tokenizers_and_adapters_have_files_of_their_own(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no tokenizer here"):
        check_tokenizer(str(tmp_path))
    (tmp_path / "vocab.txt").write_text("a\n")
    check_tokenizer(str(tmp_path))
    with pytest.raises(ModelError, match="no adapter here"):
        check_adapter(str(tmp_path))
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelError, match="no \\*.safetensors"):
        check_adapter(str(tmp_path))
    save_file({"a": np.zeros(2, dtype=np.float32)}, tmp_path / "adapter_model.safetensors")
    check_adapter(str(tmp_path))


def scorer(name: str, path: Path, **settings: Any) -> dict[str, Any]:
    return {"mine": {"_target_": f"reward_models.{name}", "path": str(path), **settings}}


def test_a_reward_model_must_be_of_the_scorers_kind(tmp_path: Path) -> None:
    whole = make_model(tmp_path / "whole/model", REWARD, reward_model=RECORD | {"std": None})
    assert list(problems_of_contents(scorer("SegmentScorer", whole.parent))) == []
    (problem,) = problems_of_contents(scorer("SequenceScorer", whole))
    assert problem == f"mine.path: {whole}: a relevance model labels segments; use SegmentScorer"
    (problem,) = problems_of_contents(scorer("SegmentScorer", whole, granularity="sentence"))
    assert "a relevance model labels each sub_sentence, the configuration asks for sentence" in problem
    bare = make_model(tmp_path / "bare", REWARD)
    (problem,) = problems_of_contents(scorer("SegmentScorer", bare))
    assert problem.startswith("mine.path: ") and "no reward_model.json, so say" in problem
    assert list(problems_of_contents(scorer("SegmentScorer", bare, kind="relevance"))) == []
    other = make_model(tmp_path / "other", T5 | {"id2label": {"0": "LABEL_0", "1": "LABEL_1"}})
    (problem,) = problems_of_contents(scorer("SegmentScorer", other, kind="relevance"))
    assert "do not fit: expected one that means an error" in problem


def test_what_a_step_before_makes_is_not_looked_at(tmp_path: Path) -> None:
    (tmp_path / "half").mkdir()
    job = scorer("SegmentScorer", tmp_path / "half")
    assert len(list(problems_of_contents(job))) == 1
    assert list(problems_of_contents(job, Made([str(tmp_path)]))) == []
    assert list(problems_of_contents(scorer("SegmentScorer", tmp_path / "not_there"))) == []  # another check's affair


def test_corpora_indexes_and_data_are_opened(tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_text('{"id": 3, "text": "x"}\n')
    (tmp_path / "index").mkdir()
    (tmp_path / "turns.jsonl").write_text('[{"turns": []}')
    job = {
        "_target_": "finegrained_rlhf.conqrr.MakeQuestionDprData",
        "data": str(tmp_path / "turns.jsonl"),
        "index": str(tmp_path / "index"),
        "corpus": str(tmp_path / "corpus.jsonl"),
        "output": str(tmp_path / "out.jsonl"),
    }
    found = list(problems_of_contents(job))
    assert [line.partition(":")[0] for line in found] == ["data", "index", "corpus"]
    assert "expected a JSON object a line" in found[0] and "no index here" in found[1] and "field id" in found[2]


@pytest.mark.parametrize(
    ("name", "text", "right"),
    [
        ("a.jsonl", '\n{"a": 1}\n', True),
        ("a.jsonl", "[1]\n", False),
        ("a.jsonl", "words\n", False),
        ("a.json", ' [{"a": 1}]\n', True),
        ("a.json", '[{"a": 1}', False),
        ("a.txt", "anything", True),
    ],
)
def test_the_form_of_data_files(name: str, text: str, right: bool, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    job = {"_target_": "finegrained_rlhf.training.ppo.TrainPPO", "data": str(tmp_path / name)}
    assert (list(problems_of_contents(job)) == []) == right


def test_a_file_is_read_once_while_it_does_not_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setitem(contents._CHECKS, "corpus", lambda path, holder: seen.append(path))
    path = tmp_path / "c.jsonl"
    path.write_text("{}")
    job = {"_target_": "finegrained_rlhf.retrieval.BuildStore", "corpus": str(path)}
    for _ in range(3):
        list(problems_of_contents(job))
    assert len(seen) == 1
    path.write_text('{"changed": 1}')
    list(problems_of_contents(job))
    assert len(seen) == 2


# Steps --------------------------------------------------------------------------------------------------------------


def store(tmp_path: Path, step: str, name: str, **keys: Any) -> Step:
    job = {"_target_": "finegrained_rlhf.retrieval.BuildStore", "corpus": str(tmp_path / name), "output_dir": "unused"}
    return Step(step, {"job": {**job, **keys}})


def test_all_steps_are_checked_before_the_first_and_all_problems_of_one_are_said(tmp_path: Path) -> None:
    (tmp_path / "good.jsonl").write_text('{"id": "a", "text": "x"}\n')
    (tmp_path / "bad.jsonl").write_text('{"id": 3, "text": "x"}\n')
    for name in ("query", "passage"):
        (tmp_path / name).mkdir()
    towers = {"query": str(tmp_path / "query"), "passage": str(tmp_path / "passage")}
    encoder = {"_target_": "finegrained_rlhf.retrieval.EncoderConfig", **towers}
    steps = [store(tmp_path, "first", "good.jsonl"), Step("second", {"job": {**encoder}})]
    with pytest.raises(ConfigError, match=r"^step second: query: .*no model here.*; passage: .*no model here") as found:
        check_steps(steps, "step ", Made())
    assert "\n" not in str(found.value)
    with pytest.raises(ConfigError, match=r"^step third: corpus: file .*bad\.jsonl:1, field id"):
        check_steps([steps[0], store(tmp_path, "third", "bad.jsonl")], "step ", Made())
    with pytest.raises(ConfigError, match=r"^step fourth: unknown key 'size'; corpus: expected text"):
        check_steps([steps[0], store(tmp_path, "fourth", "good.jsonl", size=3, corpus=7)], "step ", Made())
    bad_setting = Step("fifth", {"job": {**encoder, "batch_size": 0}})
    with pytest.raises(ConfigError, match=r"^step fifth: batch_size: expected at least 1"):
        check_steps([steps[0], bad_setting], "step ", Made([str(tmp_path)]))


# Commands -----------------------------------------------------------------------------------------------------------


def test_a_damaged_reward_model_is_refused_before_anything_is_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = make_model(tmp_path / "damaged", REWARD, reward_model=RECORD | {"std": None})
    cut(model / "model.safetensors", -4)
    monkeypatch.chdir(tmp_path)
    words = ["experiment=smoke", "output_dir=run", f"reward.components.relevance.path={model}"]
    monkeypatch.setattr(sys, "argv", ["train_ppo", *words])
    with merged_once(), pytest.raises(SystemExit) as ended:
        run_command("train_ppo")
    lines = capsys.readouterr().err.strip().splitlines()
    assert ended.value.code == 2 and len(lines) == 1
    assert lines[0].startswith("error: reward.components.relevance.path: ") and "damaged weights" in lines[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["damaged"]
