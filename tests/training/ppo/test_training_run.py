"""Starting a training run: one at a time, from what it began with, and never from a directory it spoilt itself."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from runtime_toy import rows, weights
from script_runs import run_script, start_script
from training_run_toy import ToyRun

from finegrained_rlhf.core.errors import ConfigError, ConsistencyError
from finegrained_rlhf.runtime.directory.fingerprints import WHOLE_BYTES, fingerprint, inputs_of
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.directory.run_records import changes
from finegrained_rlhf.runtime.job import as_config
from finegrained_rlhf.runtime.process_config import ProcessConfig
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.runtime.sinks import TrackingConfig
from finegrained_rlhf.runtime.training_run import configured

TOY = Path(__file__).parents[3] / "tests/helpers/training_run_toy.py"


def files(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def test_a_second_run_is_refused_and_after_kill_9_the_same_command_resumes_at_once(tmp_path: Path) -> None:
    path = tmp_path / "run"
    first = start_script(str(TOY), str(path), "0.2")
    deadline = time.monotonic() + 120
    while not (path / "checkpoints" / "step_1").is_dir() and time.monotonic() < deadline:
        time.sleep(0.01)
    with pytest.raises(ConfigError, match=f"process {first.pid} on .* is writing to"):
        ToyRun(output_dir=str(path), seed=9, resume="never").run()
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert (path / "checkpoints" / "step_1").is_dir()  # resume=never of the refused run deleted nothing
    second = run_script(str(TOY), str(path), "0.2", timeout=120)
    assert second.returncode == 0, second.stderr
    assert [row["step"] for row in rows(path / "metrics.jsonl")] == list(range(1, 13))
    ToyRun(output_dir=str(tmp_path / "whole"), checkpoint_every=1).run()
    assert weights(path / "checkpoints/step_12") == weights(tmp_path / "whole/checkpoints/step_12")
    assert not (path / ".lock").exists()
    starts = json.loads((path / "provenance.json").read_text())["starts"]
    assert len(starts) == 2 and all(f"{TOY.name} {path}" in made["command"] for made in starts)
    assert {"date", "commit", "versions", "hardware", "python"} <= starts[0].keys()
    assert starts[0]["versions"]["torch"] == torch.__version__.replace("+cpu", "") or "+" in torch.__version__


def test_an_early_stop_says_why(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        ToyRun(output_dir=str(tmp_path), stop_at=5).run()
    assert "training ended at step 5 of 12: enough is enough" in caplog.text
    state = json.loads((tmp_path / "run.json").read_text())
    assert state == {
        "status": "ended",
        "step": 5,
        "total_steps": 12,
        "best_step": 4,
        "best_score": 1.0,
        "stop_reason": "enough is enough",
    }
    RunDirectory(tmp_path).write_results({"accuracy": 0.5})
    assert json.loads((tmp_path / "metrics.json").read_text()) == {"accuracy": 0.5, "training": state}
    caplog.clear()
    whole = tmp_path / "whole"
    ToyRun(output_dir=str(whole)).run()
    assert "training ended" not in caplog.text and json.loads((whole / "run.json").read_text())["stop_reason"] is None


def test_a_run_whose_score_is_no_number_can_be_started_again(tmp_path: Path) -> None:
    with pytest.raises(ConsistencyError, match="validation at step 0 gave the score nan"):
        ToyRun(output_dir=str(tmp_path), nan=True).run()
    (tmp_path / "samples").mkdir()
    (tmp_path / "samples" / "validation_step_0.jsonl").write_text("{}\n")
    (tmp_path / "tracking.json").write_text('{"wandb_id": "0"}')
    assert not (tmp_path / "config.yaml").exists()
    result = ToyRun(output_dir=str(tmp_path)).run()
    assert result is not None and result.step == 12


def test_leftovers_of_a_failed_start_are_not_foreign_but_a_users_model_is(tmp_path: Path) -> None:
    ours = tmp_path / "ours"
    (ours / "samples").mkdir(parents=True)
    (ours / "samples" / "step_1.jsonl").write_text("")
    for name in ("tracking.json", ".lock", "provenance.json"):
        (ours / name).write_text("{}")
    (ours / "wandb").mkdir()
    (ours / ".policy.x.tmp").mkdir()
    assert not RunDirectory(ours).is_foreign()
    for name in ("notes.txt", "samples/photo.png", "model/config.json"):
        other = tmp_path / "other"
        (other / name).parent.mkdir(parents=True)
        (other / name).write_text("{}")
        assert RunDirectory(other).is_foreign(), name
        shutil.rmtree(other)


@pytest.mark.needs("wandb")
def test_wandb_without_an_account_is_refused_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("WANDB_MODE", "online")
    job = ToyRun(output_dir=str(tmp_path / "run"), tracking=TrackingConfig(kind="wandb"))
    with pytest.raises(ConfigError, match="no W&B account is known on this machine; run `wandb login`"):
        job.run()
    assert not (tmp_path / "run").exists()


def test_models_are_drawn_from_the_seed(tmp_path: Path) -> None:
    def drawn(seed: int) -> float:
        torch.manual_seed(torch.seed() % 2**31)  # whatever was drawn before
        return float(ToyRun(output_dir=str(tmp_path), seed=seed).build(Processes()).drawn)  # type: ignore[attr-defined]

    assert drawn(1) == drawn(1) != drawn(2)


@pytest.fixture
def begun(tmp_path: Path) -> ToyRun:
    """A finished run, and the job that made it."""
    (tmp_path / "data.json").write_text("[1, 2]")
    job = ToyRun(output_dir=str(tmp_path / "run"), data=str(tmp_path / "data.json"), total_steps=4)
    job.run()
    return job


@pytest.mark.parametrize(
    "changed, told", [({"seed": 7}, "seed: 0 -> 7"), ({"lr": 0.5}, "lr: 0.1 -> 0.5"), ({"data": None}, "data: ")]
)
def test_a_resume_with_other_settings_is_refused_and_says_which(
    begun: ToyRun, changed: dict[str, Any], told: str
) -> None:
    path = Path(begun.output_dir)
    before = files(path)
    with pytest.raises(ConfigError, match="resume_changed=allow") as refused:
        dataclasses.replace(begun, total_steps=8, **changed).run()
    assert told in str(refused.value)
    assert files(path) == before
    result = dataclasses.replace(begun, total_steps=8, resume_changed="allow", **changed).run()
    assert result is not None and result.step == 8
    assert any(told in line for line in json.loads((path / "provenance.json").read_text())["starts"][-1]["changed"])


def test_a_resume_on_other_data_is_refused_and_moved_data_is_not(begun: ToyRun, tmp_path: Path) -> None:
    moved = tmp_path / "moved.json"
    moved.write_text("[1, 2]")
    longer = dataclasses.replace(begun, data=str(moved), total_steps=6, keep_checkpoints=3, checkpoint_every=2)
    assert longer.run().step == 6  # type: ignore[union-attr]
    moved.write_text("[1]")
    with pytest.raises(ConfigError, match=r"data: .*moved\.json \(content [0-9a-f]{16}\) -> .*moved\.json \(content "):
        dataclasses.replace(longer, total_steps=8).run()
    assert dataclasses.replace(longer, total_steps=8, resume="never").run().step == 8  # type: ignore[union-attr]


def test_a_run_without_records_resumes_and_a_changed_setting_of_it_is_refused(begun: ToyRun) -> None:
    """As commit 9abf810 left it: no digests, a configuration with fewer keys, and classes that have moved since."""
    path = Path(begun.output_dir)
    config = yaml.safe_load((path / "config.yaml").read_text())
    for key in ("resume_changed", "patience", "stop_at", "nan"):
        del config[key]
    config["_target_"] = "finegrained_rlhf.old.place.OldName"
    config["processes"]["_target_"] = "finegrained_rlhf.old.place.ProcessConfig"
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    for name in ("run.json", "provenance.json", "metrics.json"):
        (path / name).unlink()
    with pytest.raises(ConfigError, match="began with other values: lr: 0.1 -> 0.2;"):
        dataclasses.replace(begun, total_steps=8, lr=0.2).run()
    assert dataclasses.replace(begun, total_steps=8).run().step == 8  # type: ignore[union-attr]


SCORER = "reward_models.SegmentScorer"


def test_what_counts_as_a_change() -> None:
    before = {
        "_target_": "finegrained_rlhf.training.sft.TrainSFT",
        "output_dir": "run",
        "data": "data.json",
        "policy": {"path": "model"},
        "optimizer": {"_target_": "a.AdamW", "lr": 1e-5},
        "reward": {"components": {"x": {"_target_": SCORER, "path": "x", "batch_size": 2}}},
        "processes": {"threads": 1, "precision": "fp32"},
        "tracking": {"kind": "jsonl"},
        "prepare": {"world": {"script": "make"}},
    }

    def changed(strict: bool = True, **now: Any) -> list[str]:
        return [change.key for change in changes(before, {**before, **now}, strict=strict)]

    assert changed(_target_="finegrained_rlhf.training.sft.job.TrainSFT", prepare=None) == []
    assert changed(tracking={"kind": "wandb"}, total_steps=9, patience=None, output_dir="elsewhere") == []
    assert changed(optimizer={"_target_": "b.moved.AdamW", "lr": 0.00001}) == []
    assert changed(optimizer={"_target_": "a.Adafactor", "lr": 1e-5}) == ["optimizer._target_"]
    assert changed(processes={"threads": 8, "precision": "bf16"}) == ["processes.precision"]
    assert changed(reward={"components": {"x": {"_target_": SCORER, "path": "x", "batch_size": 9}}}) == []
    same = before["reward"]["components"]["x"]  # type: ignore[index]
    assert changed(reward={"components": {"x": same, "y": {"_target_": "a.Y"}}}, strict=False) == [
        "reward.components.y._target_"
    ]
    assert changed(new=1) == ["new"] and changed(new=1, strict=False) == []
    prepared = {"prepare.world.unless": {"path": "world.json", "sha256": "0"}}  # of what is no setting of the run
    assert changes(before, before, prepared, {}) == []


def test_fingerprints_follow_content_alone(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for path in (one, other):
        (path / "sub").mkdir(parents=True)
        (path / "config.json").write_text("{}")
        (path / "sub" / "model.safetensors").write_bytes(bytes(range(256)) * (2 * WHOLE_BYTES // 256))
    os.utime(other / "config.json", (0, 0))
    assert fingerprint(one) == fingerprint(other)
    with open(other / "sub" / "model.safetensors", "r+b") as stream:
        stream.seek(2 * WHOLE_BYTES * 100 // 256)  # the beginning of a block
        stream.write(b"\1\2\3")
    assert fingerprint(one) != fingerprint(other)
    shutil.copytree(one, tmp_path / "run" / "policy")
    (tmp_path / "run" / "metrics.jsonl").write_text("{}")
    assert fingerprint(tmp_path / "run") == fingerprint(one)
    job = {"_target_": "finegrained_rlhf.annotation.MakeAnnotationTasks", "output_dir": str(other), "tool": "one"}
    found = inputs_of({**job, "data": [str(one / "config.json")], "x": "absent.json"})
    assert found == {"data[0]": {"path": str(one / "config.json"), "sha256": fingerprint(one / "config.json")}}


def test_a_job_made_in_python_writes_its_configuration(begun: ToyRun) -> None:
    config = yaml.safe_load((Path(begun.output_dir) / "config.yaml").read_text())
    assert config == as_config(begun)
    assert config["_target_"].endswith("training_run_toy.ToyRun") and config["lr"] == 0.1
    assert config["processes"] == {
        "_target_": "finegrained_rlhf.runtime.ProcessConfig",
        "precision": "fp32",
        "threads": None,
        "timeout_s": 1800.0,
        "cudnn_attention": False,
        "fused": None,
        "compiled": False,
        "sharding": "none",
        "shard_group": None,
    }
    with configured({"seed": 0, "given": True}):
        ToyRun(output_dir=begun.output_dir, resume="never", total_steps=1).run()
    assert yaml.safe_load((Path(begun.output_dir) / "config.yaml").read_text()) == {"seed": 0, "given": True}


def test_weights_in_shards_are_refused_where_a_trainer_has_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"processes\.sharding: full is for PPO, .* none or gradients"):
        ToyRun(output_dir=str(tmp_path), processes=ProcessConfig(sharding="full"))
    ToyRun(output_dir=str(tmp_path), processes=ProcessConfig(sharding="gradients"))
    assert not list(tmp_path.iterdir())
