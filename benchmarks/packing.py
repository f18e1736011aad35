"""Responses behind their prompt on a CPU: as rows are shared, all in one row, and a row each, in processor time.

Examples:
    python benchmarks/packing.py out=packing.json
    python benchmarks/packing.py rounds=1 small=true

One forward and backward pass over the log-probabilities of N responses of T tokens to one prompt of L, on one thread,
the three ways in turn; the fastest of several rounds. See docs/benchmarks.md.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import Tensor

from benchmarks.command import read_arguments, run_main
from benchmarks.families import CausalShape, build_causal, causal_config
from benchmarks.machine import describe_machine
from benchmarks.workload import SPECIALS, build_tokenizer
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.files import write_json
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.models.families import packed
from finegrained_rlhf.models.policy import CausalPolicy
from finegrained_rlhf.text.tables import markdown_table

VOCABULARY = 1024
SHAPES = {
    "llama": CausalShape("llama", 64, 128, 2, 4, 2, 16),
    "gpt2": CausalShape("gpt2", 64, 256, 2, 4, 4, 16),
    "gemma2": CausalShape("gemma2", 64, 128, 2, 4, 2, 16),
    "llama, SmolLM2's widths": CausalShape("llama", 576, 1536, 2, 9, 3, 64),
}
CASES = [
    ("llama", 16, 192, 64),
    ("gpt2", 16, 192, 64),
    ("gemma2", 16, 192, 64),
    ("llama, SmolLM2's widths", 16, 192, 64),
    ("llama, SmolLM2's widths", 16, 48, 32),
    ("llama, SmolLM2's widths", 4, 192, 512),
    ("llama", 4, 192, 512),
    ("gpt2", 8, 256, 128),
]
WAYS = ("shared", "one row", "a row each")
CLOSE = 1e-3
"""How far the sums of log-probabilities of the three ways may differ, relative to the sum."""


@contextmanager
def way(name: str) -> Iterator[None]:
    """Let policies share rows as they do, put all responses of a prompt in one, or take a row each."""
    kept = packed.pass_cost, packed.takes_packed
    if name == "one row":
        packed.pass_cost = lambda module, config, device: packed.PassCost()
    elif name == "a row each":
        packed.takes_packed = lambda backbone: False
    try:
        yield
    finally:
        packed.pass_cost, packed.takes_packed = kept


def measure(family: str, responses: int, tokens: int, prompt: int, rounds: int) -> dict[str, Any]:
    """Processor seconds of a pass each way, and how many responses shared a row."""
    torch.manual_seed(0)
    tokenizer = build_tokenizer(VOCABULARY)
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    config = causal_config(SHAPES[family], VOCABULARY, 4096, **ids)
    specials = len(SPECIALS)
    policy = CausalPolicy(build_causal(config, torch.device("cpu"), specials), tokenizer).eval()
    asked = [Prompt("p", "", tuple(torch.randint(specials, VOCABULARY, (prompt,)).tolist()))]
    drawn = torch.randint(specials, VOCABULARY, (responses, tokens))
    rows = torch.zeros(responses, dtype=torch.long)

    def step() -> tuple[float, Tensor]:
        began = time.process_time()
        total = policy.logprobs(policy.encode(asked), rows, drawn, torch.ones_like(drawn)).logprobs.sum()
        total.backward()
        policy.zero_grad()
        return time.process_time() - began, total.detach()

    seconds: dict[str, list[float]] = {name: [] for name in WAYS}
    sums: dict[str, float] = {}
    for number in range(rounds + 1):  # the first one warms up
        for name in WAYS:
            with way(name):
                spent, total = step()
            sums[name] = float(total)
            if number:
                seconds[name].append(spent)
    if max(abs(value - sums["a row each"]) for value in sums.values()) > CLOSE * abs(sums["a row each"]):
        raise ConfigError(f"{family}: the ways give different sums, {sums}")
    cost = packed.pass_cost(policy, config, "cpu")
    slots = packed.packed_slots([responses], prompt, tokens, cost)
    best = {name: min(values) for name, values in seconds.items()}
    return {
        "family": family,
        "N": responses,
        "T": tokens,
        "L": prompt,
        "responses a row": slots or 1,
        **{f"{name}, s": value for name, value in best.items()},
        "of a row each": best["shared"] / best["a row each"],
    }


def main(arguments: Sequence[str]) -> dict[str, Any]:
    """Measure all cases, print a table, write JSON if asked.

    Raises:
        ConfigError: a wrong argument, or the ways differ in what they compute.
    """
    given = read_arguments(arguments, ("out", "rounds", "small"))
    rounds = given.get("rounds", "7")
    if not rounds.isdigit() or int(rounds) < 1 or given.get("small", "true") not in ("true", "false"):
        raise ConfigError(f"expected rounds=1 or more and small=true or false, got {given}")
    torch.set_num_threads(1)
    cases = [(family, 4, 12, 6) for family in SHAPES] if given.get("small") == "true" else CASES
    passes = [measure(*case, int(rounds)) for case in cases]
    print(markdown_table(passes, list(passes[0])))
    result = {"machine": describe_machine(torch.device("cpu"), "fp32"), "rounds": int(rounds), "passes": passes}
    if "out" in given:
        write_json(given["out"], result)
    return result


if __name__ == "__main__":
    run_main(main)
