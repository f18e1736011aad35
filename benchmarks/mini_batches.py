"""A training step with four optimizer steps an epoch against the same step with one, on a CPU.

Examples:
    python benchmarks/mini_batches.py out=mini_batches.json
    python benchmarks/mini_batches.py profile=tiny prompts=4 rounds=2

Our side of `ppo_step.py` twice, in turn, at a learning rate so small that both draw the same responses. See
docs/benchmarks.md.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from benchmarks.command import read_arguments, run_main
from benchmarks.machine import describe_machine
from benchmarks.ours import Ours
from benchmarks.profiles import SETTABLE, choose_profile
from benchmarks.workload import Workload
from finegrained_rlhf.core.errors import ConsistencyError
from finegrained_rlhf.core.files import write_json
from finegrained_rlhf.runtime.optimizer import OptimizerConfig
from finegrained_rlhf.text.tables import markdown_table

PARTS = (1, 4)
STILL = OptimizerConfig(lr=1e-12, schedule="constant")
MEASURED = ("update", "total")


def main(arguments: Sequence[str]) -> dict[str, Any]:
    """Measure both, print a table, write JSON if asked.

    Raises:
        ConfigError: a wrong argument.
        ConsistencyError: the two drew different numbers of tokens.
    """
    given = read_arguments(arguments, ("out", "profile", *SETTABLE))
    profile = choose_profile({name: value for name, value in given.items() if name != "out"})
    torch.set_num_threads(profile.threads or torch.get_num_threads())
    seconds: dict[int, dict[str, list[float]]] = {parts: {phase: [] for phase in MEASURED} for parts in PARTS}
    with tempfile.TemporaryDirectory() as directory:
        workload = Workload(profile, Path(directory) / "models")
        sides = {
            parts: Ours(workload, profile.lengths[0], Path(directory) / str(parts), STILL, mini_batches=parts)
            for parts in PARTS
        }
        for number in range(profile.rounds + 1):  # the first one warms up
            steps = {parts: sides[parts].step() for parts in (PARTS if number % 2 else reversed(PARTS))}
            if len({step.tokens for step in steps.values()}) > 1:
                raise ConsistencyError("the two sides drew different responses")
            for parts, step in steps.items():
                for phase in MEASURED if number else ():
                    seconds[parts][phase].append(step.seconds[phase])
    rows = [
        {
            "phase": phase,
            "statistic": name,
            **{f"mini_batches={parts}, s": of(seconds[parts][phase]) for parts in PARTS},
            "ratio": of(seconds[PARTS[1]][phase]) / of(seconds[PARTS[0]][phase]),
        }
        for phase in MEASURED
        for name, of in (("fastest", min), ("median", median))
    ]
    print(markdown_table(rows, list(rows[0])))
    result = {
        "machine": describe_machine(torch.device("cpu"), "fp32"),
        "profile": profile.name,
        "rounds": profile.rounds,
        "epochs": profile.epochs,
        "prompts": profile.prompts,
        "samples": profile.samples,
        "rows": rows,
    }
    if "out" in given:
        write_json(given["out"], result)
    return result


if __name__ == "__main__":
    run_main(main)
