"""Seeds, optimizer, processes, run directory and sinks, one by one."""

from __future__ import annotations

import ctypes
import json
import logging
import math
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from properties import given, st
from script_runs import run_process
from torch import Tensor, nn
from transformers import Adafactor, get_constant_schedule_with_warmup, get_linear_schedule_with_warmup

from finegrained_rlhf.core.errors import CheckpointError, ConfigError, DataError
from finegrained_rlhf.core.seeding import seed_everything, stable_hash
from finegrained_rlhf.preflight.doctor.machine import attention_kernels
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.optimizer import AdafactorConfig, OptimizerConfig
from finegrained_rlhf.runtime.process_config import ProcessConfig
from finegrained_rlhf.runtime.processes import Processes, keep_freed_memory
from finegrained_rlhf.runtime.sinks import JsonlSink, MetricSinks, TrackingConfig

# Seeds ---------------------------------------------------------------------------------------------------------------


def test_the_hash_is_blake2b_of_tagged_parts() -> None:
    # worked by hand: blake2b-64 of b"i1:7" + b"s1:a", shifted right by one bit
    import hashlib

    expected = int(hashlib.blake2b(b"i1:7s1:a", digest_size=8).hexdigest(), 16) // 2
    assert stable_hash(7, "a") == expected < 2**63


def test_parts_do_not_run_together() -> None:
    values = [stable_hash(*parts) for parts in (("a", "bc"), ("ab", "c"), ("abc",), (1,), ("1",), (-1,), (11,), (1, 1))]
    assert len(set(values)) == len(values)
    with pytest.raises(TypeError):
        stable_hash(1.5)  # type: ignore[arg-type]


def test_all_generators_follow_from_the_stream() -> None:
    def draw(*stream: int | str) -> tuple[float, float, float]:
        seed_everything(5, *stream)
        return random.random(), float(np.random.rand()), float(torch.rand(()))

    assert draw("train", 3) == draw("train", 3)
    assert all(a != b for a, b in zip(draw("train", 3), draw("train", 4), strict=True))


# Optimizer -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", ["linear", "constant"])
@pytest.mark.parametrize("warmup", [0, 1, 5, 20])
def test_the_schedule_is_the_usual_one(schedule: str, warmup: int) -> None:
    config = OptimizerConfig(lr=0.3, schedule=schedule, warmup_steps=warmup)
    adam = torch.optim.AdamW([nn.Parameter(torch.zeros(1))], lr=0.3)
    if schedule == "linear":
        theirs = get_linear_schedule_with_warmup(adam, warmup, 20)
    else:
        theirs = get_constant_schedule_with_warmup(adam, warmup)
    for step in range(1, 21):
        assert config.lr_at(step, 20) == pytest.approx(adam.param_groups[0]["lr"], abs=1e-12)
        adam.step()
        theirs.step()


def test_the_schedule_by_hand() -> None:
    config = OptimizerConfig(lr=1.0, warmup_ratio=0.2)  # 2 of 10 steps
    assert config.warmup_problem(10) is None
    rates = [config.lr_at(step, 10) for step in range(1, 11)]
    assert rates == pytest.approx([0, 0.5, 1, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8])


def small_model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 1))


def descend(model: nn.Module, optimizer, steps: range) -> list[float]:  # type: ignore[no-untyped-def]
    norms = []
    for step in steps:
        inputs = torch.randn(5, 3, generator=torch.Generator().manual_seed(step))
        (model(inputs) ** 2).mean().backward()
        norms.append(optimizer.step(step))
    return norms


def test_a_warm_up_that_does_not_end_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """In 4 steps of a warm-up of 8 the rate rises to 3/8 of 0.8, and an optimizer says so when it is made."""
    config = OptimizerConfig(lr=0.8, warmup_steps=8)
    problem = config.warmup_problem(4)
    assert problem is not None and problem.startswith("the warm-up of 8 steps is not over when the run ends after 4")
    assert "reaches 0.3 of 0.8" in problem and config.warmup_problem(9) is None
    assert OptimizerConfig(lr=0.8).warmup_problem(0) is None
    parameter = torch.nn.Parameter(torch.zeros(1))
    config.build([("a", parameter)], 9)
    assert not caplog.messages
    config.build([("a", parameter)], 4)
    assert caplog.messages == [f"optimizer: {problem}"]


def test_one_update_by_hand() -> None:
    """First step of Adam: m̂ = g, v̂ = g², so the move is −lr · (g / (|g| + ε) + decay · p), decay on matrices only."""
    matrix, vector = nn.Parameter(torch.tensor([[2.0, -1.0]])), nn.Parameter(torch.tensor([3.0]))
    config = OptimizerConfig(lr=0.1, weight_decay=0.5, eps=1.0, schedule="constant", max_grad_norm=2.5)
    optimizer = config.build([("m", matrix), ("v", vector)], 10)
    matrix.grad, vector.grad = torch.tensor([[3.0, 0.0]]), torch.tensor([-4.0])
    assert optimizer.step(1) == pytest.approx(5.0)  # before clipping to half
    decayed = 2.0 * (1 - 0.1 * 0.5)
    assert matrix.tolist()[0] == pytest.approx([decayed - 0.1 * 1.5 / 2.5, -1.0 * 0.95], abs=1e-6)
    assert vector.tolist() == pytest.approx([3.0 + 0.1 * 2.0 / 3.0], abs=1e-6)
    assert matrix.grad is None


def test_a_parameter_without_gradient_counts_as_zero() -> None:
    used, unused = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2, 2))
    optimizer = OptimizerConfig(lr=0.1, schedule="constant").build([("u", used), ("n", unused)], 10)
    used.grad = torch.ones(2, 2)
    optimizer.step(1)
    assert torch.equal(unused, torch.ones(2, 2)) and not torch.equal(used, torch.ones(2, 2))


def test_the_state_is_saved_bit_by_bit(tmp_path: Path) -> None:
    config = OptimizerConfig(lr=0.1, weight_decay=0.1, warmup_steps=2)
    straight = small_model()
    descend(straight, config.build(straight.named_parameters(), 8), range(1, 9))
    broken = small_model()
    first = config.build(broken.named_parameters(), 8)
    descend(broken, first, range(1, 5))
    first.to_save()(tmp_path)
    second = config.build(broken.named_parameters(), 8)
    second.load(tmp_path)
    descend(broken, second, range(5, 9))
    for ours, theirs in zip(broken.parameters(), straight.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_the_state_before_the_first_step_can_be_saved(tmp_path: Path) -> None:
    model = small_model()
    OptimizerConfig().build(model.named_parameters(), 8).to_save()(tmp_path)
    fresh = OptimizerConfig().build(model.named_parameters(), 8)
    fresh.load(tmp_path)
    assert all(norm > 0 for norm in descend(model, fresh, range(1, 3)))


def adafactor_step_by_hand(p: Tensor, g: Tensor, rows: Tensor, columns: Tensor, t: int, lr: float) -> Tensor:
    """Algorithm 4 of Shazeer and Stern (2018) for a matrix, element by element."""
    beta = 1 - t**-0.8
    n, m = p.shape
    for i in range(n):
        rows[i] = beta * rows[i] + (1 - beta) * sum(float(g[i, j]) ** 2 for j in range(m)) / m
    for j in range(m):
        columns[j] = beta * columns[j] + (1 - beta) * sum(float(g[i, j]) ** 2 for i in range(n)) / n
    mean = sum(rows.tolist()) / n
    u = torch.tensor([[float(g[i, j]) / math.sqrt(rows[i] * columns[j] / mean) for j in range(m)] for i in range(n)])
    u = u / max(1.0, math.sqrt(float((u**2).sum()) / (n * m)))
    return p - lr * max(1e-3, math.sqrt(float((p**2).sum()) / (n * m))) * u


def test_adafactor_is_the_papers_algorithm() -> None:
    generator = torch.Generator().manual_seed(3)
    start = torch.randn(3, 4, generator=generator)
    matrix, expected = nn.Parameter(start.clone()), start.clone()
    optimizer = AdafactorConfig(lr=0.01, schedule="constant").build([("m", matrix)], 10)
    rows, columns = torch.zeros(3, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
    for t in range(1, 5):
        gradient = torch.randn(3, 4, generator=generator) * 10.0 ** (t - 3)
        expected = adafactor_step_by_hand(expected, gradient, rows, columns, t, 0.01)
        matrix.grad = gradient
        optimizer.step(t)
        torch.testing.assert_close(matrix.detach(), expected, atol=1e-6, rtol=1e-5)


def test_adafactor_is_that_of_transformers() -> None:
    """With `scale_parameter` on and `relative_step` off, as T5 is fine-tuned."""
    ours, theirs = small_model(), small_model()
    optimizer = AdafactorConfig(lr=5e-3, schedule="constant").build(ours.named_parameters(), 100)
    reference = Adafactor(theirs.parameters(), lr=5e-3, scale_parameter=True, relative_step=False, warmup_init=False)
    for step in range(1, 7):
        inputs = torch.randn(5, 3, generator=torch.Generator().manual_seed(step))
        (theirs(inputs) ** 2).mean().backward()
        reference.step()
        reference.zero_grad()
    descend(ours, optimizer, range(1, 7))
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


def test_adafactor_without_gradient_stays_and_its_state_is_saved_bit_by_bit(tmp_path: Path) -> None:
    config = AdafactorConfig(lr=0.01, warmup_steps=2, weight_decay=0.1)
    straight, broken = small_model(), small_model()
    descend(straight, config.build(straight.named_parameters(), 8), range(1, 9))
    first = config.build(broken.named_parameters(), 8)
    descend(broken, first, range(1, 5))
    first.to_save()(tmp_path)
    second = config.build(broken.named_parameters(), 8)
    second.load(tmp_path)
    descend(broken, second, range(5, 9))
    for ours, theirs in zip(broken.parameters(), straight.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    before = [parameter.clone() for parameter in broken.parameters()]
    still = AdafactorConfig(lr=0.01, schedule="constant").build(broken.named_parameters(), 8)
    assert still.step(1) == 0.0
    assert all(torch.equal(a, b) for a, b in zip(broken.parameters(), before, strict=True))
    with pytest.raises(CheckpointError, match="another kind of optimizer"):
        OptimizerConfig().build(broken.named_parameters(), 8).load(tmp_path)


@pytest.mark.parametrize("bad", [{"lr": 0.0}, {"lr": 0.1}, {"clip": 0.5}, {"weight_decay": -1.0}, {"schedule": "step"}])
def test_bad_adafactor_settings_are_refused(bad: dict) -> None:
    with pytest.raises(ConfigError, match="expected"):
        AdafactorConfig(**bad)


@pytest.mark.parametrize("what", ["names", "shapes", "missing", "damaged"])
def test_a_state_that_does_not_fit_is_refused(tmp_path: Path, what: str) -> None:
    model = small_model()
    optimizer = OptimizerConfig().build(model.named_parameters(), 8)
    descend(model, optimizer, range(1, 2))
    if what != "missing":
        optimizer.to_save()(tmp_path)
    if what == "damaged":
        file = tmp_path / "optimizer.safetensors"
        file.write_bytes(file.read_bytes()[:40])
    other: nn.Module = nn.Linear(3, 4) if what == "names" else model
    if what == "shapes":
        other = nn.Sequential(nn.Linear(3, 5), nn.LayerNorm(5), nn.Linear(5, 1))
    with pytest.raises(CheckpointError, match=r"optimizer\.safetensors"):
        OptimizerConfig().build(other.named_parameters(), 8).load(tmp_path)


@pytest.mark.parametrize(
    "bad",
    [
        {"lr": 0.0},
        {"eps": 0.0},
        {"weight_decay": -1.0},
        {"betas": (0.9, 1.0)},
        {"warmup_steps": -1},
        {"warmup_steps": 1, "warmup_ratio": 0.1},
        {"schedule": "cosine"},
        {"max_grad_norm": 0.0},
    ],
)
def test_bad_optimizer_settings_are_refused(bad: dict) -> None:
    with pytest.raises(ConfigError, match="expected"):
        OptimizerConfig(**bad)


def test_nothing_to_train_is_refused() -> None:
    with pytest.raises(ConfigError, match="no parameter needs a gradient"):
        OptimizerConfig().build(small_model().requires_grad_(False).named_parameters(), 8)


# Processes -----------------------------------------------------------------------------------------------------------


@given(items=st.integers(0, 40), count=st.integers(1, 9))
def test_shares_are_disjoint_contiguous_and_even(items: int, count: int) -> None:
    processes, shares = Processes(), []
    processes.count = count
    for rank in range(count):
        processes.rank = rank
        shares.append(processes.share(items))
    assert [i for share in shares for i in share] == list(range(items))
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1


def test_a_single_process_needs_no_group() -> None:
    processes = Processes()
    tensor = torch.tensor([1.0, 2.0])
    assert processes.sum_(tensor) is tensor and tensor.tolist() == [1.0, 2.0]
    assert processes.gather_objects(["a"]) == ["a"] and processes.broadcast_object({"x": 1}) == {"x": 1}
    assert processes.any(True) and not processes.any(False) and processes.is_main
    parameter = nn.Parameter(torch.ones(3))
    processes.all_reduce_gradients([parameter])
    assert parameter.grad is not None and parameter.grad.tolist() == [0.0, 0.0, 0.0]
    processes.barrier()
    processes.close()


@pytest.mark.parametrize(("environment", "kept"), [({}, True), ({"MALLOC_ARENA_MAX": "4"}, False)])
def test_on_a_cpu_freed_memory_is_kept(environment: dict[str, str], kept: bool) -> None:
    program = """
import torch
from pathlib import Path
from finegrained_rlhf.runtime.processes import Processes

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1])

Processes()
before = resident()
tensor = torch.ones(1 << 26)  # large beside what a process touches otherwise
taken = resident() - before
del tensor
print((resident() - before) / taken)
"""
    done = run_process("-c", program, preloaded=True, ACCELERATE_USE_CPU="true", **environment)
    assert done.returncode == 0, done.stderr
    share = float(done.stdout)
    assert share > 0.9 if kept else share < 0.1, share


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("MALLOC_", "GLIBC_TUNABLES"))]:
        monkeypatch.delenv(name)
    called: list[object] = []
    monkeypatch.setattr(ctypes, "CDLL", called.append)
    monkeypatch.setattr(os, "confstr_names", {})
    keep_freed_memory()
    assert not called


def test_attention_uses_cudnn_only_where_it_is_asked_for() -> None:
    for asked in (True, False):
        Processes(ProcessConfig(cudnn_attention=asked))
        assert torch.backends.cuda.cudnn_sdp_enabled() == asked
        assert ("cuDNN" in attention_kernels()) == asked and "memory-efficient" in attention_kernels()


def test_bf16_computes_in_bf16_and_fp32_does_not() -> None:
    layer, inputs = nn.Linear(2, 2), torch.ones(1, 2)
    with Processes(ProcessConfig(precision="bf16")).autocast():
        assert layer(inputs).dtype == torch.bfloat16
    with Processes().autocast():
        assert layer(inputs).dtype == torch.float32
    with pytest.raises(ConfigError, match="precision"):
        ProcessConfig(precision="fp16")
    with pytest.raises(ConfigError, match="threads"):
        ProcessConfig(threads=0)
    for seconds in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ConfigError, match="timeout_s"):
            ProcessConfig(timeout_s=seconds)


# Run directory and sinks ---------------------------------------------------------------------------------------------


def test_a_changed_configuration_is_named_key_by_key(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = RunDirectory(tmp_path / "run")
    before = {"seed": 1, "total_steps": 5, "ppo": {"beta": 0.3, "clip": 0.2}, "data": "a.json", "resume": "auto"}
    assert run.write_config(before, "auto") == []
    run.checkpoints.mkdir()
    assert run.write_config(before | {"total_steps": 9}, "auto") == []
    after = {"seed": 1, "total_steps": 9, "ppo": {"beta": 0.1, "clip": 0.2}, "data": "a.json", "extra": 1}
    with caplog.at_level(logging.WARNING):
        assert run.write_config(after, "auto") == ["extra", "ppo.beta"]
    assert "these keys differ: extra, ppo.beta" in caplog.text
    assert yaml.safe_load(run.config_path.read_text()) == after
    assert run.write_config(before, "never") == []


def test_the_configuration_is_read_back(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    config = {"seed": 1, "data": "ä.json", "ppo": {"kl": {"beta": 0.3}}}
    run.write_config(config, "auto")
    assert run.read_config() == config
    for text, problem in (("a: [", "not valid YAML"), ("", "expected a mapping, got NoneType")):
        run.config_path.write_text(text)
        with pytest.raises(DataError, match=rf"config\.yaml: {problem}"):
            run.read_config()
    with pytest.raises(DataError, match=r"config\.yaml: no such file"):
        RunDirectory(tmp_path).read_config()


def test_a_directory_of_other_files_gets_no_configuration(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="not empty and holds no training run"):
        RunDirectory(tmp_path).write_config({"seed": 1}, "auto")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_rewinding_keeps_what_came_before(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path).create()
    lines = [json.dumps({"step": step, "text": "ä"}, ensure_ascii=False) for step in (1, 2, 3)]
    run.metrics.write_text("\n".join(lines) + "\n", encoding="utf-8")
    run.samples_path(0).parent.mkdir()
    for step in (1, 3):
        run.samples_path(step).write_text("{}\n")
    run.rewind(2)
    assert run.metrics.read_text(encoding="utf-8") == "\n".join(lines[:2]) + "\n"
    assert run.samples_path(1).exists() and not run.samples_path(3).exists()
    run.rewind(-1)
    assert run.metrics.read_text() == ""


def test_json_lines_hold_no_nan(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path).create()
    sink = JsonlSink(run)
    sink.log(1, {"loss": float("nan"), "kl": 0.5, "big": float("inf"), "count": 3})
    sink.log_eval(1, {"score": 0.25})
    assert json.loads(run.metrics.read_text()) == {"step": 1, "loss": None, "kl": 0.5, "big": None, "count": 3}
    assert json.loads(run.eval.read_text()) == {"step": 1, "score": 0.25}


def test_wandb_works_offline_and_keeps_its_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = RunDirectory(tmp_path / "run").create()
    run.config_path.write_text("seed: 1\n")
    identities = []
    for step in (1, 2):
        sinks = MetricSinks(TrackingConfig(kind="wandb", mode="offline"))
        sinks.open(run)
        sinks.log(step, {"loss": 1.0 / step})
        sinks.log_eval(step, {"score": float(step)})
        sinks.close()
        identities.append(json.loads(run.tracking.read_text())["wandb_id"])
    assert identities[0] == identities[1]
    assert len(list(run.path.glob("wandb/offline-run-*"))) >= 1
    assert len(run.metrics.read_text().splitlines()) == 2


@pytest.mark.parametrize("bad", [{"kind": "mlflow"}, {"mode": "sometimes"}, {"tags": "one"}])
def test_bad_tracking_is_refused(bad: dict) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(bad))}: expected"):
        TrackingConfig(**bad)


def test_tensorboard_shows_each_step_once_after_a_resume(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = RunDirectory(tmp_path / "run").create()
    run.validation_samples_path(2).parent.mkdir()
    row = {"id": "a", "prompt": "why?", "response": "because", "segments": [{"weighted": 0.5}, {"weighted": -0.25}]}
    run.validation_samples_path(2).write_text(json.dumps(row) + "\n")
    for begin, end, loss in ((0, 4, 1.0), (2, 5, 2.0)):  # killed after step 4, resumed from step 2
        sinks = MetricSinks(TrackingConfig(kind="tensorboard"))
        sinks.open(run, begin)
        for step in range(begin + 1, end + 1):
            sinks.log(step, {"loss": loss})
        sinks.log_eval(end, {"score": loss})
        if begin == 0:
            sinks.log_eval(2, {"score": 0.0})
        sinks.close()
    events = accumulator.EventAccumulator(str(run.tensorboard))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("train/loss")] == [(1, 1), (2, 1), (3, 2), (4, 2), (5, 2)]
    assert [(e.step, e.value) for e in events.Scalars("eval/score")] == [(2, 0), (5, 2)]
    (text,) = events.Tensors("eval/completions/text_summary")
    assert b"because" in text.tensor_proto.string_val[0] and b"0.250" in text.tensor_proto.string_val[0]


def test_wandb_gets_completions_group_tags_and_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    begun: dict[str, Any] = {}
    logged: list[dict[str, Any]] = []

    class Run:
        def log(self, values: dict[str, Any], step: int) -> None:
            logged.append(values)

        def finish(self) -> None:
            pass

    monkeypatch.setattr(wandb, "init", lambda **given: begun.update(given) or Run())
    run = RunDirectory(tmp_path / "run").create()
    run.validation_samples_path(3).parent.mkdir()
    row = {"id": "a", "prompt": "why?", "response": "because", "segments": [{"weighted": 0.5}]}
    run.validation_samples_path(3).write_text(json.dumps(row) + "\n")
    given = {"entity": "us", "name": "best", "group": "sweep", "tags": ["x", "y"], "project": "p"}
    sinks = MetricSinks(TrackingConfig(kind="wandb", mode="offline", **given))  # type: ignore[arg-type]
    sinks.open(run)
    sinks.log_eval(0, {"score": 1.0})
    sinks.log_eval(3, {"score": 1.0})
    assert {key: begun[key] for key in given} == given
    assert set(logged[0]) == {"eval/score"}
    assert logged[1]["eval/completions"].data == [[3, "a", "why?", "because", 0.5]]


def test_wandb_that_refuses_leaves_no_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")

    def refuse(**given: Any) -> None:
        raise wandb.errors.UsageError("No API key configured.\nmore")

    monkeypatch.setattr(wandb, "init", refuse)
    run = RunDirectory(tmp_path / "run").create()
    with pytest.raises(ConfigError, match=r"^tracking=wandb: No API key configured\.$"):
        MetricSinks(TrackingConfig(kind="wandb")).open(run)
    assert not run.tracking.exists()
