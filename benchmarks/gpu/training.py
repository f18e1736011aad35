"""Training runs: expected against measured memory, a run that is killed and goes on, a short one of SmolLM2's shape.

Run as a script it trains jobs in processes of their own: `python -m benchmarks.gpu.training JOBS.json`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import traceback
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from benchmarks.equality import entry
from benchmarks.gpu.items import Item, Result, Setting
from benchmarks.gpu.steps import smollm2_profile, t5_profile
from benchmarks.machine import memory_at_rest, peak_memory
from benchmarks.ours import Ours
from benchmarks.profiles import Profile, choose_profile
from benchmarks.workload import (
    COMPONENTS,
    WEIGHTS,
    PlainSegmenter,
    Workload,
    build_tokenizer,
    make_prompts,
    prompt_lengths,
)
from finegrained_rlhf.core.errors import ConsistencyError
from finegrained_rlhf.core.files import write_json
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.models.config import PolicyConfig, ValueConfig
from finegrained_rlhf.preflight.memory import formulas
from finegrained_rlhf.preflight.memory.preflight import plan_of
from finegrained_rlhf.preflight.memory.report import peak
from finegrained_rlhf.rewards.composition import RewardConfig
from finegrained_rlhf.rollout.config import RolloutConfig
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.optimizer import OptimizerConfig
from finegrained_rlhf.runtime.process_config import ProcessConfig
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.training.ppo.config import PPOConfig
from finegrained_rlhf.training.ppo.job import TrainPPO
from finegrained_rlhf.training.ppo.parts import PPOData
from finegrained_rlhf.training.ppo.trainer import PPOTrainer
from reward_models.scorers import SegmentScorer, SequenceScorer

ROOT = Path(__file__).resolve().parents[2]
STEPS, EVERY, KILLED_IN = 6, 2, 5


@dataclass(frozen=True)
class GivenPrompts(TrainPPO):
    """A job whose prompts are there already.

    Attributes:
        prompts: to train on.
    """

    prompts: tuple[Prompt, ...] = ()

    def read_data(self, policy: Any) -> PPOData:
        """The prompts, and none for validation."""
        return PPOData(self.prompts, ())


def memory_items() -> list[Item]:
    """Of three kinds of run."""
    return [
        Item("memory", "t5", lambda setting: memory(_memory_profile(t5_profile(setting)), setting), 150),
        Item(
            "memory",
            "t5_checkpointing",
            lambda setting: memory(_memory_profile(t5_profile(setting)), setting, True),
            150,
        ),
        Item("memory", "smollm2", lambda setting: memory(_memory_profile(smollm2_profile(setting)), setting), 150),
    ]


def training_items() -> list[Item]:
    """A short run, waiting, and a resume."""
    return [
        Item("training", "smollm2", short_run, 180),
        Item("update", "waits_for_nothing", waits, 120),
        Item("resume", "t5", resume, 180),
    ]


def _memory_profile(profile: Profile) -> Profile:
    return replace(profile, warmup=1, rounds=2)


def save_models(profile: Profile, directory: Path) -> Workload:
    """Write the profile's models into `policy`, `value` and one directory for each reward model."""
    workload = Workload(replace(profile, device="cpu"), directory)
    for name, model in (("policy", workload.policy), ("value", workload.value)):
        model.save_pretrained(directory / name)
        workload.tokenizer.save_pretrained(directory / name)
    return workload


def job_of(profile: Profile, models: Path, output: Path, prompts: tuple[Prompt, ...], **changes: Any) -> GivenPrompts:
    """A PPO run of the profile on saved models."""
    scorers: dict[str, Any] = {
        name: SequenceScorer(str(models / name))
        if kind == "completeness"
        else SegmentScorer(str(models / name), segmenter=PlainSegmenter())
        for name, kind in COMPONENTS.items()
    }
    settings: dict[str, Any] = {
        "output_dir": str(output),
        "data": "given",
        "policy": PolicyConfig(str(models / "policy")),
        "value": ValueConfig("separate", str(models / "value")),
        "reward": RewardConfig(scorers, WEIGHTS),
        "rollout": RolloutConfig(profile.prompts, profile.samples, max_new_tokens=profile.new_tokens),
        "ppo": PPOConfig(
            epochs=profile.epochs,
            micro_batch_prompts=profile.micro_batch_prompts,
            micro_batch_tokens=profile.micro_batch_tokens,
        ),
        "optimizer": OptimizerConfig(lr=1e-5, schedule="constant"),
        "total_steps": 10,
        "validate_every": None,
        "processes": ProcessConfig(precision=profile.precision),
        "prompts": prompts,
    }
    return GivenPrompts(**{**settings, **changes})


def memory(profile: Profile, setting: Setting, checkpointing: bool = False) -> Result:
    """The peak of a second step against what `dry_run` says for one recorded shape: within a fifth.

    On a CPU the process's resident memory is stated and not compared: it holds more than tensors.
    """
    workload = save_models(profile, setting.scratch)
    policy = PolicyConfig(str(setting.scratch / "policy"), gradient_checkpointing=checkpointing)
    job = job_of(profile, setting.scratch, setting.scratch / "run", tuple(workload.prompts("fixed")), policy=policy)
    del workload
    processes = Processes(job.processes)
    plan = plan_of(job, processes)
    expected, phase = peak(plan)
    if plan.recorded:  # the plan has room for many recorded shapes, and these two steps have one
        one = formulas.cache_bytes(plan, plan.decoded, plan.samples) + formulas.snapshot_bytes(plan)
        expected += one - formulas.kept_cache_bytes(plan)
    empty = memory_at_rest(setting.device) or 0
    trainer = job.build(processes, RunDirectory(job.output_dir).create())
    trainer.train_step(1)
    held = (memory_at_rest(setting.device) or 0) - empty
    with peak_memory(setting.device) as rise:
        trainer.train_step(2)
    measured = held + (rise.rise or 0)
    found: Result = {"expected_bytes": expected, "measured_bytes": measured, "phase": phase.name}
    if setting.device.type == "cuda":
        found["equal"] = {"peak": entry(abs(measured / expected - 1), 0.2)}
    return found


def resume(setting: Setting) -> Result:
    """Weights after a run that was killed and went on, against those of a run that was not.

    Both run with torch's deterministic kernels, where there are any, and decode by transformers: what those kernels do
    may not be recorded. Bit-identical, or by how much not.
    """
    profile = replace(t5_profile(replace(setting, small=True)), device=setting.device.type)
    save_models(profile, setting.scratch)
    settings = {"models": str(setting.scratch), "device": setting.device.type}
    runs = {name: str(setting.scratch / f"run_{name}") for name in ("whole", "killed")}
    jobs = [("whole", None), ("killed", KILLED_IN), ("killed", None)]
    path = setting.scratch / "jobs.json"
    write_json(path, [{**settings, "output": runs[name], "killed_in": killed_in} for name, killed_in in jobs])
    _train_in_processes(path)
    states = {name: load_file(Path(output) / "policy" / "model.safetensors") for name, output in runs.items()}
    gaps = [float((states["whole"][key] - tensor).abs().max()) for key, tensor in states["killed"].items()]
    tolerance = 1e-4 if setting.device.type == "cuda" else 0.0
    return {"bit_identical": max(gaps) == 0.0, "equal": {"weights": entry(max(gaps), tolerance)}}


def _train_in_processes(jobs: Path) -> None:
    environment = {
        **os.environ,
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    status = subprocess.run([sys.executable, "-m", "benchmarks.gpu.training", str(jobs)], env=environment).returncode
    if status:
        raise ConsistencyError(f"the runs ended with status {status}: see above")


def waits(setting: Setting) -> Result:
    """Whether the host waits for the device in a micro-batch of the update, where torch can say so (CUDA)."""
    equal = {}
    for family in ("t5", "llama", "gpt2"):
        profile = choose_profile({"profile": "tiny", "family": family})
        profile = replace(profile, device=setting.device.type, precision="bf16", micro_batch_prompts=1)
        run = setting.scratch / family
        ours = Ours(Workload(profile, setting.scratch / "models"), "spread", run)
        ours.step()  # what is made once may wait
        backward = ours.trainer._update._backward
        waited: list[str] = []

        def watched(*arguments: Any, backward: Any = backward, waited: list[str] = waited, **options: Any) -> Any:
            if setting.device.type != "cuda":
                return backward(*arguments, **options)
            torch.cuda.set_sync_debug_mode("error")
            try:
                return backward(*arguments, **options)
            except RuntimeError as error:
                waited.append(str(error))
                raise
            finally:
                torch.cuda.set_sync_debug_mode("default")

        ours.trainer._update._backward = watched  # type: ignore[method-assign]
        try:
            ours.step()
        except RuntimeError:
            if not waited:
                raise
            setting.say(f"{family}: {waited[0]}")
        equal[family] = entry(len(waited), 0)
    return {"equal": equal}


def short_run(setting: Setting) -> Result:
    """Steps of fine-grained PPO at SmolLM2's shape with random weights: does the reward that is trained on rise?"""
    steps = 4 if setting.small else 40
    sizes: dict[str, Any] = {} if setting.small else {"prompt_tokens": 256, "new_tokens": 64, "samples": 8}
    profile = replace(smollm2_profile(setting), rounds=steps, warmup=0, **sizes)
    ours = Ours(Workload(profile, setting.scratch), "spread", setting.scratch / "run", OptimizerConfig(lr=3e-5))
    rows = []
    for step in range(1, steps + 1):
        metrics = ours.trainer.train_step(step)
        rows.append({name: metrics[name] for name in ("reward/total", "kl", "time/total_s")})
        setting.say(f"step {step}: reward {rows[-1]['reward/total']:.3f}, KL {rows[-1]['kl']:.3f}")
    few = max(1, steps // 8)
    means = [sum(row["reward/total"] for row in part) / few for part in (rows[:few], rows[-few:])]
    found: Result = {"model": profile.note, "steps": rows, "first_rewards": means[0], "last_rewards": means[1]}
    if not setting.small:
        found["targets"] = {"first less last reward": entry(means[0] - means[1], 0.0)}
    return found


def main(jobs: list[dict[str, Any]]) -> None:
    """Train one job after the other, each in a process forked from this one, which has imported everything.

    Raises:
        ConsistencyError: one ended otherwise than it should.
    """
    for settings in jobs:
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                train(settings)
                status = 0
            except Exception:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code != (0 if settings["killed_in"] is None else -signal.SIGKILL):
            raise ConsistencyError(f"the run in {settings['output']} ended with status {code}")


def train(settings: dict[str, Any]) -> None:
    """Train a job; ends by SIGKILL in the step that its settings name."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    os.environ["ACCELERATE_USE_CPU"] = str(settings["device"] == "cpu").lower()
    models = Path(settings["models"])
    profile = t5_profile(Setting(torch.device(settings["device"]), True, models, print))
    lengths = prompt_lengths(profile, "spread", profile.prompts * STEPS)
    words = build_tokenizer(profile.vocabulary)
    prompts = tuple(make_prompts(words, profile.vocabulary, lengths, profile.seed))
    engine: Any = "generate" if settings["device"] == "cuda" else "auto"
    changes = {"total_steps": STEPS, "checkpoint_every": EVERY, "seed": 3}
    drawn = RolloutConfig(profile.prompts, profile.samples, max_new_tokens=profile.new_tokens, engine=engine)
    job = job_of(profile, models, Path(settings["output"]), prompts, rollout=drawn, **changes)
    if settings["killed_in"] is not None:
        step_of = PPOTrainer.train_step

        def killed(self: PPOTrainer, step: int) -> dict[str, float]:
            if step == settings["killed_in"]:
                os.kill(os.getpid(), signal.SIGKILL)
            return step_of(self, step)

        PPOTrainer.train_step = killed  # type: ignore[method-assign]
    job.run()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
