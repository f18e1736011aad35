"""Throughput of a server of rewards against the same scorers in process, at the same batch.

Examples:
    python benchmarks/serve_rewards.py profile=cpu out=serve_rewards.json    # two cores, some minutes
    python benchmarks/serve_rewards.py profile=gpu out=serve_rewards.json    # one CUDA GPU
    python benchmarks/serve_rewards.py profile=tiny                          # seconds; says that it runs, not how fast

The server is `finegrained serve-rewards` in a process of its own. Both sides take turns on a batch of random
responses; the medians of the rounds are compared, after one round that is not counted. See docs/benchmarks.md.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch

from benchmarks.command import read_arguments, run_main
from benchmarks.machine import describe_machine
from benchmarks.profiles import SETTABLE, Profile, choose_profile
from benchmarks.workload import COMPONENTS, FIRST_WORD, WEIGHTS, build_tokenizer, make_prompts, word, write_reward_model
from finegrained_rlhf.core.errors import ConsistencyError
from finegrained_rlhf.core.files import write_json
from finegrained_rlhf.core.records import Prompt, SegmentScores
from finegrained_rlhf.rewards import RewardComposer, RewardConfig, Scorer, ServedScorer
from finegrained_rlhf.runtime import RemoteConfig
from reward_models.scorers import SegmentScorer, SequenceScorer

ROOT = Path(__file__).resolve().parents[1]
GOAL = 0.9
"""What throughput should be at least, as a share of that in process."""


@contextmanager
def server(profile: Profile, directory: Path) -> Iterator[str]:
    """The address of `finegrained serve-rewards` with the models in `directory`."""
    words = [sys.executable, "-m", "finegrained_rlhf", "serve-rewards", "port=0"]
    words += [f"processes.precision={profile.precision}", f"processes.threads={profile.threads or 'null'}"]
    words += [f"reward.components.{name}.path={directory / name}" for name in COMPONENTS]
    environment = {**os.environ, **({"ACCELERATE_USE_CPU": "true"} if profile.device == "cpu" else {})}
    process = subprocess.Popen(words, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if " at http" not in line:
            raise ConsistencyError("the server did not start")
        yield line.partition(" at ")[2].split()[0]
    finally:
        process.terminate()
        process.wait()


def responses(profile: Profile, count: int) -> list[str]:
    """Texts of random words, of `new_tokens` at most and a quarter of that at least."""
    draw = np.random.default_rng(profile.seed)
    lengths = draw.integers(max(profile.new_tokens // 4, 1), profile.new_tokens + 1, count)
    return [" ".join(map(word, draw.integers(FIRST_WORD, profile.vocabulary, length))) for length in lengths]


def difference(first: dict[str, SegmentScores], second: dict[str, SegmentScores]) -> float:
    """The largest difference of two scorings; infinite where segments differ."""
    if any([*map(tuple, first[name].spans)] != [*map(tuple, second[name].spans)] for name in first):
        return float("inf")
    pairs = [
        (one, other)
        for name in first
        for row, others in zip(first[name].values, second[name].values, strict=True)
        for one, other in zip(row, others, strict=True)
    ]
    return max(abs(one - other) for one, other in pairs)


def measure(profile: Profile, directory: Path) -> dict[str, Any]:
    """Seconds of each side's rounds, responses a second, and how far their scores differ."""
    for name, kind in COMPONENTS.items():
        write_reward_model(profile.reward, profile.vocabulary, kind, directory / name)
    lengths = [profile.prompt_tokens] * profile.prompts
    of_step = make_prompts(build_tokenizer(profile.vocabulary), profile.vocabulary, lengths, profile.seed)
    prompts: list[Prompt] = [prompt for prompt in of_step for _ in range(profile.samples)]
    texts, device = responses(profile, len(prompts)), torch.device(profile.device)
    bf16 = profile.precision == "bf16"
    with server(profile, directory) as url:
        own: dict[str, Scorer] = {
            name: SequenceScorer(str(directory / name))
            if kind == "completeness"
            else SegmentScorer(str(directory / name))
            for name, kind in COMPONENTS.items()
        }
        remote: dict[str, Scorer] = {name: ServedScorer(RemoteConfig(url), name) for name in COMPONENTS}
        sides = {"in process": RewardComposer(RewardConfig(own, WEIGHTS))}
        sides["served"] = RewardComposer(RewardConfig(remote, WEIGHTS))
        seconds: dict[str, list[float]] = {name: [] for name in sides}
        scores: dict[str, dict[str, SegmentScores]] = {}
        for composer in sides.values():
            composer.setup(device)
        for _ in range(profile.rounds + 1):
            for name, composer in sides.items():
                began = time.perf_counter()
                with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=bf16):
                    scores[name] = composer.score(prompts, texts)
                seconds[name].append(time.perf_counter() - began)
    rates = {name: len(texts) / median(of[1:]) for name, of in seconds.items()}
    return {
        "responses": len(texts),
        "seconds": {name: of[1:] for name, of in seconds.items()},
        "responses_per_s": rates,
        "throughput": rates["served"] / rates["in process"],
        "goal": GOAL,
        "difference": difference(*scores.values()),
    }


def main(arguments: Sequence[str]) -> dict[str, Any]:
    """Run the benchmark, print it, and write it where `out=FILE` says."""
    words = read_arguments(arguments, ["profile", *SETTABLE, "out"])
    out = words.pop("out", None)
    profile = choose_profile(words)
    if profile.threads:
        torch.set_num_threads(profile.threads)
    with tempfile.TemporaryDirectory() as directory:
        measured = measure(replace(profile, rounds=max(profile.rounds, 3)), Path(directory))
    document = {
        "profile": profile.name,
        "machine": describe_machine(torch.device(profile.device), profile.precision),
        **measured,
    }
    print(
        f"{measured['responses']} responses: {measured['responses_per_s']['served']:.1f} a second served, "
        f"{measured['responses_per_s']['in process']:.1f} in process, {measured['throughput']:.2f} of it "
        f"(goal {GOAL}); largest difference of a value {measured['difference']:.1e}"
    )
    if out is not None:
        write_json(out, document)
    return document


if __name__ == "__main__":
    run_main(main)
