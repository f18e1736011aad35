"""One PPO step, plain and ours, on this machine: seconds by phase, memory, limits, and whether both compute the same.

Examples:
    python benchmarks/ppo_step.py profile=cpu out=cpu.json
    python benchmarks/ppo_step.py family=llama profile=cpu out=llama.json
    python benchmarks/ppo_step.py profile=gpu rounds=5 out=gpu.json
    python benchmarks/ppo_step.py family=llama profile=cpu peer=trl peer_python=trl-env/bin/python

Needs torch, transformers, accelerate, numpy and safetensors, and no network. Knows the command line;
the sides are in `plain.py` and `ours.py`, the
rounds in `rounds.py`. See docs/benchmarks.md.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as the package itself sets it; for both sides

import torch

from benchmarks.command import read_arguments, run_main
from benchmarks.equality import check_equality
from benchmarks.machine import busy_neighbour, describe_machine, measure_rates
from benchmarks.peer import KEYS as PEER_KEYS
from benchmarks.peer import Peer, choose_peer, compare, peer_table
from benchmarks.profiles import SETTABLE, Profile, choose_profile
from benchmarks.rounds import run_rounds, table
from benchmarks.workload import Workload
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.files import write_json
from finegrained_rlhf.models.quiet import quiet_transformers
from finegrained_rlhf.runtime.processes import keep_freed_memory

KEYS = ("profile", "family", "load", "out", *PEER_KEYS, *SETTABLE)


def benchmark(
    profile: Profile, say: Callable[[str], None], load: bool = False, peer: Peer | None = None
) -> dict[str, Any]:
    """Everything of one profile as the JSON document that `out` names.

    Args:
        profile: what to run.
        say: gets a line for everything that is done.
        load: repeat the first run beside a busy process.
        peer: another trainer that is compared with ours as well.
    """
    device = torch.device(profile.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"profile={profile.name} needs a CUDA GPU, and torch sees none")
    os.environ["ACCELERATE_USE_CPU"] = str(device.type == "cpu").lower()
    if profile.threads:
        torch.set_num_threads(profile.threads)
    if device.type == "cpu":
        keep_freed_memory()  # as trainers do; for both sides
    rates = measure_rates(device, profile.precision, small=profile.name == "tiny")
    say(f"copy {rates.copy / 1e9:.1f} GB/s, matmul {rates.matmul / 1e9:.0f} GFLOP/s ({profile.precision})")
    with tempfile.TemporaryDirectory() as directory, quiet_transformers():
        equal = check_equality(profile, Path(directory))
        for name, found in equal.items():
            verdict = "" if found["ok"] else " FAILED"
            say(f"equal: {name} {found['value']:.3g} (at most {found['tolerance']:.3g}){verdict}")
        workload = Workload(profile, Path(directory))
        runs = {lengths: run_rounds(workload, lengths, rates, say) for lengths in profile.lengths}
        under_load = None
        if load:
            say("once more, beside a process that keeps one core busy")
            with busy_neighbour():
                under_load = run_rounds(workload, profile.lengths[0], rates, say)
        beside = None if peer is None else compare(peer, profile, Path(directory), say)
    main, *others = runs.values()
    return {
        "profile": profile.name,
        "family": profile.family,
        "model": profile.note,
        "machine": {
            **describe_machine(device, profile.precision),
            "copy_bytes_per_s": rates.copy,
            "matmul_flops_per_s": rates.matmul,
        },
        **main,
        "equal": equal | ({} if beside is None else beside.pop("equal")),
        "peer": beside,
        "under_load": under_load,
        "other_runs": {run["lengths"]: run for run in others},
        "settings": asdict(profile),
    }


def main(arguments: Sequence[str]) -> dict[str, Any]:
    """Measure, print the tables, write the JSON file; returns the document.

    Raises:
        ConfigError: a wrong argument.
    """
    given = read_arguments(arguments, KEYS)
    if given.get("load", "false") not in ("true", "false"):
        raise ConfigError(f"load: expected true or false, got {given['load']!r}")
    profile, load = choose_profile(given), given.get("load") == "true"
    peer = choose_peer(given, profile)
    document = benchmark(profile, lambda line: print(line, file=sys.stderr, flush=True), load, peer)
    print(table(document, document["under_load"]))
    for run in document["other_runs"].values():
        print(table(run))
    if document["peer"] is not None:
        print(peer_table(document["peer"]))
    if "out" in given:
        write_json(given["out"], document)
    return document


if __name__ == "__main__":
    run_main(main)
