"""Drawing a step's responses: transformers' `generate`, our own engine and vLLM in this process, in turn.

Examples:
    .venv-vllm/bin/python -m benchmarks.rollout_engines family=llama out=rollout_engines.json
    python -m benchmarks.rollout_engines profile=tiny engines=generate,own

The policy, prompts and decoding are those of `ppo_step.py`; a round draws one step's responses by each engine, each
round others. vLLM has the weights before it is timed. Tokens a second are response tokens over wall-clock time, the
median of the rounds. See docs/which_engine.md.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from benchmarks.command import read_arguments, run_main
from benchmarks.families import CAUSAL
from benchmarks.machine import describe_machine
from benchmarks.ours import open_policy
from benchmarks.profiles import SETTABLE, Profile, choose_profile
from benchmarks.workload import Workload
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.files import write_json
from finegrained_rlhf.core.records import Sample
from finegrained_rlhf.models.policy import Policy
from finegrained_rlhf.rollout import RolloutEngine, VLLMConfig, make_engine
from finegrained_rlhf.rollout.vllm.engine import VLLMEngine
from finegrained_rlhf.runtime.process_config import ProcessConfig
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.text.tables import markdown_table

ENGINES = ("generate", "own", "vllm")
TEMPERATURE, TOP_K = 0.7, 20


def open_engine(name: str, policy: Policy, profile: Profile, directory: Path) -> RolloutEngine:
    """An engine by its name in `rollout.engine`; vLLM's files go into `directory`."""
    if name != "vllm":
        return make_engine(policy, name)
    dtype = "bfloat16" if profile.precision == "bf16" else "float32"
    length = profile.prompt_tokens + profile.new_tokens
    options = {
        "max_model_len": length,
        "max_num_batched_tokens": profile.prompts * profile.samples * length,  # no prompt is read in parts
        "enforce_eager": True,
        "gpu_memory_utilization": 0.5,
    }
    return VLLMEngine(policy, VLLMConfig(dtype=dtype, options=options), directory)  # type: ignore[arg-type]


def measure(profile: Profile, engines: Sequence[str], directory: Path) -> list[dict[str, Any]]:
    """One line an engine, with the seconds and tokens of each counted round."""
    workload = Workload(replace(profile, warmup=1), directory)
    policy = open_policy(workload, profile.lengths[0])
    processes = Processes(ProcessConfig(profile.precision, threads=profile.threads or None))
    policy.to(processes.device)
    prompts = workload.prompts(profile.lengths[0])
    decodings = [Sample(profile.samples, temperature=TEMPERATURE, top_k=TOP_K)]
    opened = {name: open_engine(name, policy, profile, directory / name) for name in engines}
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    tokens: dict[str, list[int]] = {name: [] for name in engines}
    for number in range(1 + profile.rounds):  # the first one is not counted
        start = number * profile.prompts
        own = prompts[start : start + profile.prompts]
        for name, engine in opened.items():
            with torch.no_grad(), processes.autocast():
                if isinstance(engine, VLLMEngine):
                    engine.refresh(processes)
                began = time.perf_counter()
                memory = engine.encode(own)
                drawn = engine.decode(
                    memory, decodings, max_new_tokens=profile.new_tokens, seed=profile.seed, step=number
                )
                took = time.perf_counter() - began
            if number:
                seconds[name].append(took)
                tokens[name].append(int(drawn.response_mask.sum()))
    rates = {name: median(n / s for n, s in zip(tokens[name], seconds[name], strict=True)) for name in engines}
    return [
        {
            "engine": name,
            "tokens/s": rates[name],
            f"of {engines[0]}": rates[name] / rates[engines[0]],
            "seconds": seconds[name],
            "tokens": tokens[name],
        }
        for name in engines
    ]


def main(arguments: Sequence[str]) -> dict[str, Any]:
    """Measure, print the table, write the JSON file; returns the document.

    Raises:
        ConfigError: an argument is not known, or the family is none that all engines draw from.
    """
    given = read_arguments(arguments, ("out", "profile", "family", "engines", *SETTABLE))
    profile = choose_profile({"family": "llama", **given})
    engines = given.get("engines", ",".join(ENGINES)).split(",")
    if unknown := set(engines) - set(ENGINES):
        raise ConfigError(f"engines: expected some of {', '.join(ENGINES)}, got {', '.join(sorted(unknown))}")
    if profile.family not in CAUSAL:
        raise ConfigError(f"family: expected a decoder-only one, {', '.join(CAUSAL)}, got {profile.family}")
    with tempfile.TemporaryDirectory() as scratch:
        lines = measure(profile, engines, Path(scratch))
    print(markdown_table(lines, list(lines[0])[:3]))
    machine = describe_machine(torch.device(profile.device), profile.precision)
    document = {"machine": machine, "shape": asdict(profile), "engines": lines}
    if "out" in given:
        write_json(given["out"], document)
        print(f"-> {given['out']}")
    return document


if __name__ == "__main__":
    run_main(main)
