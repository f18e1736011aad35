"""Where a training step of a query rewriter spends its time: rollout, rewards and update, by α, on this machine.

Examples:
    python benchmarks/conqrr.py profile=cpu out=conqrr_cpu.json
    python benchmarks/conqrr.py profile=gpu out=conqrr_gpu.json

A random policy writes about random dialogues, so nearly none of its rewrites would find their passage and there would
be nothing to update. The retriever scores every rewrite as in training; then a share of the samples (`rewarded`) is
declared better than the greedy rewrite. Needs the `retrieval` extra, and no network. See docs/benchmarks.md.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any, cast

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import torch

from benchmarks.command import read_arguments, run_main
from benchmarks.families import T5Shape
from benchmarks.machine import describe_machine
from benchmarks.profiles import BASE, chosen_of
from benchmarks.workload import FIRST_WORD, build_policy, build_tokenizer, word
from finegrained_rlhf.conqrr.data import PassageLabel, RewriteExample
from finegrained_rlhf.conqrr.inputs import imitations
from finegrained_rlhf.conqrr.rewards import PoolReward
from finegrained_rlhf.conqrr.training import RewriteValidation
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.files import write_json, write_jsonl
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.core.seeding import seed_everything
from finegrained_rlhf.models.policy import Seq2SeqPolicy
from finegrained_rlhf.retrieval.bm25.retriever import Bm25LightConfig
from finegrained_rlhf.rollout import make_engine
from finegrained_rlhf.rollout.engine import RolloutSampler
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.optimizer import AdafactorConfig
from finegrained_rlhf.runtime.process_config import Precision, ProcessConfig
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.text.tables import markdown_table
from finegrained_rlhf.training.self_critical.config import SelfCriticalConfig
from finegrained_rlhf.training.self_critical.trainer import SelfCriticalTrainer

PHASES = ("rollout", "rewards", "update", "total")
ALPHAS = {"T5QR": 0.0, "CONQRR (mix)": 0.99, "CONQRR (RL)": 1.0}


@dataclass(frozen=True)
class ConqrrProfile:
    """One benchmark.

    Attributes:
        device: `cpu` or `cuda`.
        precision: `fp32` or `bf16`.
        policy: shape of the policy.
        vocabulary: ids of the tokenizer, special ones included.
        questions: a training step.
        samples: rewrites a question, beside the greedy one.
        prompt_tokens: of every input.
        new_tokens: of every rewrite; a random policy does not end before.
        micro_batch_prompts: questions in one forward and backward pass.
        rewarded: share of the samples with a reward over the greedy rewrite, in percent.
        rounds: measured steps.
        warmup: steps before that are not counted.
    """

    device: str
    precision: Precision
    policy: T5Shape
    vocabulary: int
    questions: int
    samples: int
    prompt_tokens: int
    new_tokens: int
    micro_batch_prompts: int
    rewarded: int = 50
    rounds: int = 5
    warmup: int = 1

    def __post_init__(self) -> None:
        for name in ("questions", "samples", "prompt_tokens", "new_tokens", "micro_batch_prompts", "rounds"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: expected at least 1, got {getattr(self, name)}")
        if not 0 <= self.rewarded <= 100 or self.warmup < 0:
            raise ConfigError("expected 0 <= rewarded <= 100 and warmup >= 0")


PROFILES = {
    # the size of the project's small worlds
    "cpu": ConqrrProfile("cpu", "fp32", T5Shape(64, 256, 2, 4), 1000, 32, 5, 48, 12, 16),
    # T5-base at the thesis's sizes
    "gpu": ConqrrProfile("cuda", "bf16", BASE, 32128, 64, 5, 384, 64, 16),
    "tiny": ConqrrProfile("cpu", "fp32", T5Shape(32, 64, 2, 2), 200, 4, 2, 24, 6, 2, rounds=2, warmup=0),
}
SETTABLE = tuple(name for name in ConqrrProfile.__dataclass_fields__ if name not in ("policy", "device"))
KEYS = ("profile", "out", *SETTABLE)


class DeclaredReward:
    """Scores with a retriever, then declares a seeded share of the samples better than the greedy rewrite."""

    def __init__(self, reward: PoolReward, profile: ConqrrProfile) -> None:
        self.reward, self.profile, self._random = reward, profile, np.random.default_rng(0)

    def score(self, step_prompts: Sequence[Prompt], prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float]:
        """See `ResponseReward.score`."""
        self.reward.score(step_prompts, prompts, texts)
        declared = self._random.random(len(texts)) < self.profile.rewarded / 100
        rows = 1 + self.profile.samples
        return [float(flag and number % rows > 0) for number, flag in enumerate(declared.tolist())]


def make_questions(profile: ConqrrProfile) -> tuple[list[RewriteExample], list[PassageLabel], list[dict[str, str]]]:
    """Questions with rewrites and labels, and the passages: two for each question; all of random words."""
    random = np.random.default_rng(1)

    def text(words: int) -> str:
        return " ".join(word(i) for i in random.integers(FIRST_WORD, profile.vocabulary, words).tolist())

    questions, labels, passages = [], [], []
    for number in range(profile.questions):
        asked = min(8, profile.prompt_tokens - 1)
        # the separator is an unknown word of one token, and so is the end
        history = (text(max(profile.prompt_tokens - asked - 2, 1)), "")
        name = f"q{number}"
        rewrite = text(profile.new_tokens - 1)
        questions.append(RewriteExample(name, f"d{number}", 2, history, text(asked), rewrite))
        for kind in ("positive", "negative"):
            passages.append({"id": f"{name}-{kind}", "text": text(40)})
        labels.append(PassageLabel(name, f"{name}-positive", f"{name}-negative"))
    return questions, labels, passages


PARTS = {"_score": "rewards", "_update": "update", "optimizer_step": "update"}
"""The trainer's methods, and the phase that each belongs to; what its sampler draws is the rollout."""


def count_processor_time(trainer: SelfCriticalTrainer) -> dict[str, float]:
    """Seconds of all CPU threads in each phase from now on; other work on the machine changes them little."""
    spent: dict[str, float] = {}

    def counted(work: Callable[..., Any], phase: str) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            start = time.process_time()
            result = work(*arguments)
            spent[phase] = spent.get(phase, 0.0) + time.process_time() - start
            return result

        return run

    for name, phase in PARTS.items():
        setattr(trainer, name, counted(getattr(trainer, name), phase))
    trainer._sampler = cast(RolloutSampler, SimpleNamespace(draw=counted(trainer._sampler.draw, "rollout")))
    return spent


def measure(profile: ConqrrProfile, alpha: float, directory: Path) -> dict[str, Any]:
    """Seconds of every phase of a step: the fastest round's and each one's, and the median of the processor's."""
    processes = Processes(ProcessConfig(profile.precision))
    device = torch.device(profile.device)
    tokenizer = build_tokenizer(profile.vocabulary)
    seed_everything(0, "weights")
    policy = Seq2SeqPolicy(build_policy(profile.policy, profile.vocabulary, device), tokenizer).eval()
    questions, labels, passages = make_questions(profile)
    names = {label.example for label in labels}
    index = Bm25LightConfig(str(directory))
    if not (directory / "index").is_dir():
        tokenizer.save_pretrained(directory)
        write_jsonl(directory / "corpus.jsonl", passages)
        index.build(str(directory / "corpus.jsonl"), directory / "index")
    reward = PoolReward(index.open(directory / "index"), {label.example: label for label in labels})
    trainer = SelfCriticalTrainer(
        policy,
        imitations(questions, policy, labelled=names, rewarded=names, max_input_tokens=profile.prompt_tokens),
        DeclaredReward(reward, profile),
        RewriteValidation([], None, 1, "rouge1"),
        SelfCriticalConfig(
            alpha,
            profile.questions,
            profile.samples,
            profile.new_tokens,
            micro_batch_prompts=profile.micro_batch_prompts,
        ),
        AdafactorConfig(lr=1e-6),
        1000,
        make_engine(policy),
        processes,
        RunDirectory(directory / "run"),
        seed=0,
    )
    spent = count_processor_time(trainer)
    steps, processor = [], []
    for step in range(1, profile.warmup + profile.rounds + 1):
        spent.clear()
        steps.append(trainer.train_step(step))
        processor.append({**spent, "total": sum(spent.values())})
    steps, processor = steps[profile.warmup :], processor[profile.warmup :]
    phases = [phase for phase in PHASES if phase in processor[0]]
    seconds = {phase: [step[f"time/{phase}_s"] for step in steps] for phase in phases}
    return {
        "alpha": alpha,
        "seconds": {phase: min(values) for phase, values in seconds.items()},
        "processor_seconds": {phase: median(step[phase] for step in processor) for phase in phases},
        "each": seconds,
        "rewarded_samples": median(step.get("rewarded_samples", 0.0) for step in steps),
        "input_tokens": median(len(e.prompt.input_ids) for e in trainer.data),
    }


def table(result: dict[str, Any]) -> str:
    """Processor time by phase on a CPU, time by phase on a GPU, as Markdown."""
    gpu = result["profile"]["device"] == "cuda"
    rows = [
        {
            "run": name,
            **{
                f"{phase} (ms)": f"{1000 * seconds:.1f}"
                for phase, seconds in run["seconds" if gpu else "processor_seconds"].items()
            },
            "samples trained on": f"{run['rewarded_samples']:.2f}",
        }
        for name, run in result["runs"].items()
    ]
    return markdown_table(rows, ["run", *(f"{phase} (ms)" for phase in PHASES), "samples trained on"])


def main(arguments: Sequence[str]) -> None:
    """Measure, print, and write where `out` says."""
    given = read_arguments(arguments, KEYS)
    profile = chosen_of(given, PROFILES, SETTABLE)
    if profile.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("profile=gpu needs a CUDA GPU")
    result: dict[str, Any] = {
        "benchmark": "conqrr",
        "machine": describe_machine(torch.device(profile.device), profile.precision),
        "profile": asdict(profile),
    }
    with tempfile.TemporaryDirectory() as directory:
        result["runs"] = {name: measure(profile, alpha, Path(directory)) for name, alpha in ALPHAS.items()}
    print(table(result))
    if "out" in given:
        write_json(given["out"], result)


if __name__ == "__main__":
    run_main(main)
