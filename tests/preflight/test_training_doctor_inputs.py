"""What the preflight finds wrong with run directories, data and models, and which key it names."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from checkpoint_toy import write_checkpoint
from doctor_toy import CHEAP, case_maker, diagnose, failed, make_smoke, odd, warned
from safetensors.torch import load_file, save_file

from finegrained_rlhf.core.files import read_json, write_json
from finegrained_rlhf.preflight.doctor import directory as doctor_directory
from finegrained_rlhf.preflight.doctor.case import Case, Finding
from finegrained_rlhf.preflight.doctor.run import CHECKS, Check, examine
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory

CaseMaker = Callable[..., Case]


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_smoke(tmp_path_factory.mktemp("doctor"))


@pytest.fixture
def case(smoke: Path, tmp_path: Path) -> CaseMaker:
    return case_maker(smoke, tmp_path / "scratch")


# Run directory ---------------------------------------------------------------------------------------------------


def checkpoint(run: Path, step: int, **state: Any) -> Path:
    return write_checkpoint(run, step, f"of step {step}", **state)


def test_an_unwritable_directory(case: CaseMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_directory.os, "access", lambda path, mode: Path(path) != tmp_path)
    found = failed(diagnose(case(f"output_dir={tmp_path}/runs/one", "prepare=null"), "output_dir"))
    assert f"{tmp_path} cannot be written to" in found.measured and "output_dir" in found.mend
    (tmp_path / "file").write_text("")
    found = failed(diagnose(case(f"output_dir={tmp_path}/file/run", "prepare=null"), "output_dir"))
    assert "no directory" in found.measured


def test_a_foreign_directory(case: CaseMaker, tmp_path: Path) -> None:
    (tmp_path / "thesis.pdf").write_text("")
    found = failed(diagnose(case(f"output_dir={tmp_path}", "prepare=null"), "output_dir"))
    assert "holds no training run" in found.measured and "output_dir" in found.mend


def test_what_would_be_resumed(case: CaseMaker, tmp_path: Path) -> None:
    run = tmp_path / "run"

    def look(*overrides: str) -> Finding:
        (found,) = diagnose(case(f"output_dir={run}", "prepare=null", *overrides), "output_dir")
        return found

    assert look().measured.endswith("a new run of 4 steps") and look("resume=never").status == "pass"
    absent = look(f"resume={tmp_path}/nothing")
    assert absent.status == "fail" and absent.mend.startswith("resume:")
    checkpoint(run, 0)
    latest = checkpoint(run, 2)
    before = sorted(run.rglob("*"))
    assert look().status == "pass" and look().measured.endswith("step 2 of 4")
    done = look("total_steps=2")
    assert done.status == "warn" and "total_steps" in done.mend
    over = look("resume=never")
    assert over.status == "warn" and "deletes" in over.measured and "resume=auto" in over.mend
    config = {"seed": 0, "ppo": {"epochs": 7}}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    other = look()
    assert other.status == "warn" and "ppo.epochs" in other.measured
    (run / "config.yaml").unlink()
    elsewhere = case(f"output_dir={tmp_path}/new", "prepare=null", f"resume={run}")
    assert "step 2 of 4" in diagnose(elsewhere, "output_dir")[0].measured
    (latest / "weights").write_text("other")
    damaged = look()
    assert damaged.status == "warn" and "step_2" in damaged.measured and "step 0 of 4" in damaged.measured
    (run / "checkpoints/step_0/weights").unlink()
    assert (look().status, "resume=never" in look().mend) == ("fail", True)
    assert set(run.rglob("*")) <= set(before)  # nothing was set aside, cleaned up or written


def test_a_run_that_stopped(case: CaseMaker, tmp_path: Path) -> None:
    checkpoint(tmp_path / "run", 3, stop_reason="KL exceeded 10 nats an episode in 5 steps")
    found = warned(diagnose(case(f"output_dir={tmp_path}/run", "prepare=null"), "output_dir"))
    assert "KL exceeded" in found.measured


def test_a_directory_in_which_something_else_is_at_work(case: CaseMaker, tmp_path: Path) -> None:
    examined = case(f"output_dir={tmp_path}/run", "prepare=null")
    checks = {check.name: check for check in CHECKS}

    def other_run(case: Case) -> Iterator[Finding]:
        checkpoint(tmp_path / "run", 1)
        yield Finding("pass", "")

    findings = list(examine(examined, [checks["output_dir"], Check("between", other_run), checks["untouched"]]))
    assert failed(findings).check == "untouched" and "output_dir" in failed(findings).mend


def test_disk(case: CaseMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    free = SimpleNamespace(free=1 << 20)
    monkeypatch.setattr(doctor_directory.shutil, "disk_usage", lambda path: free)
    found = failed(diagnose(case(), *CHEAP))
    assert found.check == "disk" and "output_dir" in found.mend and "keep_checkpoints" in found.mend


@pytest.mark.parametrize(
    "overrides", [pytest.param([], marks=pytest.mark.slow), ["policy=lora"], ["value=shared", "value.path=null"]]
)
def test_the_size_of_a_checkpoint(case: CaseMaker, tmp_path: Path, overrides: list[str]) -> None:
    examined = case(*overrides)
    diagnose(examined, *CHEAP)
    assert examined.plan is not None and examined.sample is not None
    trainer = examined.sample.build(examined.processes, RunDirectory(tmp_path / "sample").create())
    trainer.train_step(1)
    trainer.model_to_save()(tmp_path / "checkpoint" / "policy")
    trainer.state_to_save()(tmp_path / "checkpoint")
    files = [load_file(path) for path in (tmp_path / "checkpoint").rglob("*.safetensors")]
    stored = sum(tensor.nbytes for file in files for key, tensor in file.items() if not key.startswith("step/"))
    assert doctor_directory.checkpoint_bytes(examined.plan) == pytest.approx(stored, rel=0.01)


# Data ------------------------------------------------------------------------------------------------------------


def records(path: Path) -> list[dict[str, Any]]:
    return read_json(path / "prepared/world/train.json")


def test_broken_data_files(case: CaseMaker, smoke: Path, tmp_path: Path) -> None:
    rows = records(smoke)
    (tmp_path / "cut.json").write_text(json.dumps(rows)[:-20])
    del rows[3]["question"]
    write_json(tmp_path / "field.json", rows)
    findings = diagnose(case(f"data={tmp_path}/cut.json", f"validation_data={tmp_path}/field.json"), "data", "prompts")
    cut, field, prompts = findings
    assert cut.status == field.status == "fail" and prompts.status == "skipped"
    assert "truncated" in cut.measured and "data=FILE" in cut.mend
    assert "record 3" in field.measured and "question" in field.measured and "validation_data=FILE" in field.mend


def test_ids_that_occur_twice(case: CaseMaker, smoke: Path, tmp_path: Path) -> None:
    rows = [{**row, "id": "same"} for row in records(smoke)]
    write_json(tmp_path / "twice.json", rows)
    found = failed(diagnose(case(f"data={tmp_path}/twice.json"), "data"))
    assert "'same' occurs twice" in found.measured and "data=FILE" in found.mend


def test_repeated_prompts_and_overlap(case: CaseMaker, smoke: Path, tmp_path: Path) -> None:
    rows = [{key: value for key, value in row.items() if key != "id"} for row in records(smoke)]
    write_json(tmp_path / "again.json", [*rows, *rows[:3]])
    found = warned(diagnose(case(f"data={tmp_path}/again.json"), "data"))
    assert "3 texts occur again" in found.measured and found.mend.startswith("data:")
    write_json(tmp_path / "both.json", rows[:2])
    found = warned(diagnose(case(f"validation_data={tmp_path}/both.json"), "data"))
    assert "2 of 2 validation prompts" in found.measured and found.mend.startswith("validation_data:")
    assert "validation_data" in warned(diagnose(case("validation_data=null"), "data")).mend


def test_prompts_that_are_too_long(case: CaseMaker) -> None:
    cut = [f for f in diagnose(case("max_prompt_tokens=85"), "prompts") if f.status == "warn"]
    assert cut and "longer than 85: their ends are cut off" in cut[0].measured
    longest = int(cut[0].mend.split("=")[1].split()[0])
    assert not [f for f in diagnose(case(f"max_prompt_tokens={longest}"), "prompts") if f.status != "pass"]
    refused = diagnose(case("max_prompt_tokens=85", "prompt_too_long=refuse", "validation_data=null"), "prompts")
    assert "prompt_too_long=truncate" in failed(refused).mend


def test_words_that_the_tokenizer_does_not_know(case: CaseMaker, smoke: Path, tmp_path: Path) -> None:
    strange = [{**row, "text": "zyzzyva " * 40} for row in records(smoke)]
    write_json(tmp_path / "strange.json", strange)
    found = failed(diagnose(case(f"data={tmp_path}/strange.json"), "prompts"))
    assert "unknown" in found.measured and "policy.path" in found.mend


# Models ----------------------------------------------------------------------------------------------------------


def copied(smoke: Path, name: str, tmp_path: Path) -> Path:
    target = tmp_path / Path(name).name
    shutil.copytree(smoke / "prepared" / name, target)
    return target


def changed(path: Path, **keys: Any) -> None:
    write_json(path, {**read_json(path), **keys})


def test_models_that_are_not_there(case: CaseMaker) -> None:
    findings = diagnose(
        case("policy.path=nowhere", "reward.components.relevance.path=nowhere"), "configuration", "models"
    )
    policy, relevance = [f for f in findings if f.status == "fail"]
    assert "nowhere" in policy.measured and policy.mend.startswith("policy.path")
    assert relevance.mend.startswith("reward.components.relevance.path")
    value = failed(diagnose(case("value.path=nowhere"), "models"))
    assert "nowhere" in value.measured and value.mend.startswith("value.path")


def test_a_hint_where_a_step_is_left_out(case: CaseMaker, tmp_path: Path) -> None:
    trains = case(f"output_dir={tmp_path}/run", "+prepare.sft={script: train_sft, args: []}")
    assert "does not train" in failed(diagnose(trains, "data")[:1]).mend


def test_a_tokenizer_of_another_model(case: CaseMaker, smoke: Path, tmp_path: Path) -> None:
    policy = copied(smoke, "models/t5", tmp_path)
    changed(policy / "config.json", eos_token_id=5)
    found = failed(diagnose(case(f"policy.path={policy}", "value=shared", "value.path=null"), "models"))
    assert "eos_token_id is 5 in the model" in found.measured and found.mend.startswith("policy.path")
    changed(policy / "config.json", eos_token_id=1)
    tokenizer = read_json(policy / "tokenizer.json")
    extra = {"id": 176, "content": "<more>", "special": False}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    tokenizer["added_tokens"].append({**extra, **flags})
    write_json(policy / "tokenizer.json", tokenizer)
    found = failed(diagnose(case(f"policy.path={policy}", "value=shared", "value.path=null"), "models"))
    assert "no embedding" in found.measured and found.mend.startswith("policy.path")


def test_weights_that_are_no_numbers(case: CaseMaker, smoke: Path, tmp_path: Path) -> None:
    policy = copied(smoke, "models/t5", tmp_path)
    weights = load_file(policy / "model.safetensors")
    next(iter(weights.values())).view(-1)[0] = torch.nan
    save_file(weights, policy / "model.safetensors", metadata={"format": "pt"})
    found = failed(diagnose(case(f"policy.path={policy}"), "models"))
    assert "not finite" in found.measured and found.mend.startswith("policy.path")


def test_a_value_model_that_does_not_fit(case: CaseMaker, smoke: Path, tmp_path: Path) -> None:
    found = failed(diagnose(case(f"value.path={smoke}/prepared/models/gpt2"), "models"))
    assert "both" in found.measured and found.mend.startswith("value.path")
    value = copied(smoke, "models/t5", tmp_path)
    tokenizer = read_json(value / "tokenizer.json")
    vocabulary = tokenizer["model"]["vocab"]
    first, second = list(vocabulary)[10:12]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    write_json(value / "tokenizer.json", tokenizer)
    found = warned(diagnose(case(f"value.path={value}"), "models"))
    assert "not the policy's" in found.measured and found.mend.startswith("value.path")


@pytest.mark.parametrize(
    ("component", "overrides", "record", "keys"),
    [
        ("relevance", ["path={rewards}/completeness"], {}, [".path: a model", "._target_"]),
        ("completeness", ["path={rewards}/relevance"], {}, [".path: a model", "._target_"]),
        ("relevance", ["granularity=sentence"], {}, [".path: a model", ".granularity"]),
        ("factuality", ["path={rewards}/relevance"], {}, [".path: a model", ".granularity"]),
        ("completeness", [], {"mean": None}, [".mean and .std"]),
        ("completeness", [], {"std": None}, [".mean and .std"]),
        ("relevance", [], None, [".kind"]),
        ("factuality", ["path=nowhere"], {}, [".path"]),
    ],
)
def test_reward_models_of_the_wrong_kind(
    case: CaseMaker,
    smoke: Path,
    tmp_path: Path,
    component: str,
    overrides: list[str],
    record: dict[str, Any] | None,
    keys: list[str],
) -> None:
    words = [f"reward.components.{component}.{o.format(rewards=smoke / 'prepared/reward_models')}" for o in overrides]
    if not overrides:
        model = copied(smoke, f"reward_models/{component}", tmp_path)
        words = [f"reward.components.{component}.path={model}"]
        if record is None:
            (model / "reward_model.json").unlink()
        else:
            changed(model / "reward_model.json", **record)
    found = failed(diagnose(case(*words), "models"))
    assert found.measured.startswith(f"{component}: "), found
    assert found.mend.startswith(f"reward.components.{component}{keys[0]}") and keys[-1] in found.mend, found


def test_a_scorer_that_cannot_be_loaded(case: CaseMaker) -> None:
    found = failed(diagnose(case(*odd("setup")), "models"))
    assert "RuntimeError: no such device (doctor_toy.py" in found.measured
    assert found.mend.startswith("reward.components.odd")
