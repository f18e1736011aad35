"""Rounds of both sides in turn, and what is reported of them.

Knows both sides through `step()`; measures memory around each step. Does not know the command line.
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.limits import Work, limits
from benchmarks.machine import Rates, memory_at_rest, peak_memory
from benchmarks.ours import Ours
from benchmarks.plain import Plain
from benchmarks.plain_causal import plain_side
from benchmarks.plain_rewards import reward_inputs
from benchmarks.profiles import PHASES
from benchmarks.workload import COMPONENTS, EOS, Workload, reward_tokenizer
from finegrained_rlhf.core.errors import ConsistencyError
from finegrained_rlhf.core.records import Rollout
from finegrained_rlhf.text.tables import markdown_table


@dataclass
class Side:
    """One side and what was measured of it.

    Attributes:
        build: makes it.
        runner: it; None before its first step.
        resident: bytes that it holds between steps (weights, optimizer state, caches); None where it is not known.
        rise: bytes by which its steps rose above that, the most of all rounds.
        warm_up: seconds by phase of each round that is not counted.
        steps: seconds by phase of each counted round.
        tokens: response tokens of each counted round.
        work: of each counted round; ours alone tells it.
    """

    build: Callable[[], Ours | Plain]
    runner: Ours | Plain | None = None
    resident: int | None = None
    rise: int | None = None
    warm_up: list[dict[str, float]] = field(default_factory=list)
    steps: list[dict[str, float]] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    work: list[Work] = field(default_factory=list)

    def run(self, device: torch.device, counted: bool) -> None:
        """One step; the first one builds the side."""
        before = memory_at_rest(device)
        first = self.runner is None
        if self.runner is None:
            self.runner = self.build()
        with peak_memory(device) as peak:
            step = self.runner.step()
        if first and before is not None:
            self.resident = (memory_at_rest(device) or 0) - before
        if not first and peak.rise is not None:  # the first step also makes the optimizer's state
            self.rise = max(self.rise or 0, peak.rise)
        (self.steps if counted else self.warm_up).append(step.seconds)
        if counted:
            self.tokens.append(step.tokens)

    def forget(self) -> None:
        """Let go of what it holds; what was measured stays."""
        self.runner = None
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def seconds(self, phase: str) -> float:
        """Median of the rounds."""
        return median(step[phase] for step in self.steps)

    @property
    def peak(self) -> int | None:
        """Peak bytes of this side alone; None where memory or a second step is not known."""
        return None if self.resident is None or self.rise is None else self.resident + self.rise


def work_of(rollout: Rollout, vocabulary: int) -> Work:
    """What a step works on that drew these responses, in a workload with so large a vocabulary."""
    lengths = rollout.lengths().view(len(rollout.prompts), -1).tolist()
    prompts, tokenizer = rollout.row_prompts(), reward_tokenizer(vocabulary)
    inputs = []
    for name in COMPONENTS:
        ids = tokenizer(reward_inputs(name, prompts, rollout.texts))["input_ids"]
        inputs.append([(len(row), 1 if name == "completeness" else row.count(EOS) - 1) for row in ids])
    return Work([len(prompt.input_ids) for prompt in rollout.prompts], lengths, inputs)


def run_rounds(workload: Workload, lengths: str, rates: Rates, say: Callable[[str], None]) -> dict[str, Any]:
    """All rounds of one run; the report of the run.

    On a CPU the sides take turns, since other programs come and go. On a GPU one has the whole memory after the other.
    """
    profile, device = workload.profile, workload.device
    with tempfile.TemporaryDirectory() as directory:
        run = Path(directory)
        sides = {
            "ours": Side(lambda: Ours(workload, lengths, run)),
            "plain": Side(lambda: plain_side(workload, lengths)),
        }
        numbers = range(-profile.warmup, profile.rounds)
        if device.type == "cuda":
            for name, side in sides.items():
                for number in numbers:
                    turn(workload, lengths, number, name, side, say)
                side.forget()
        else:
            for number in numbers:
                for name, side in sides.items():
                    turn(workload, lengths, number, name, side, say)
    work = sides["ours"].work
    return report(sides, [limits(profile, one, rates) for one in work], lengths, work[-1])


def turn(workload: Workload, lengths: str, number: int, name: str, side: Side, say: Callable[[str], None]) -> None:
    """One round of a side; those below 0 are not counted.

    Raises:
        ConsistencyError: a response of the run with fixed lengths ended early.
    """
    start = time.perf_counter()
    side.run(workload.device, counted=number >= 0)
    spent = time.perf_counter() - start
    say(f"{lengths} lengths, {f'round {number + 1}' if number >= 0 else 'warm-up'}, {name}: {spent:.1f} s")
    if isinstance(side.runner, Ours) and number >= 0:
        side.work.append(work_of(side.runner.rollout, workload.profile.vocabulary))
        longest = workload.profile.new_tokens
        if lengths == "fixed" and {n for row in side.work[-1].responses for n in row} != {longest}:
            raise ConsistencyError(f"a response of the run with fixed lengths has not {longest} tokens")


def report(
    sides: Mapping[str, Side], floors: Sequence[Mapping[str, float]], lengths: str, work: Work
) -> dict[str, Any]:
    """Medians over rounds, per phase; everything that was measured beside them."""
    phases = {}
    for phase in PHASES:
        plain, ours = sides["plain"].seconds(phase), sides["ours"].seconds(phase)
        limit = median(floor[phase] for floor in floors)
        phases[phase] = {"plain_s": plain, "ours_s": ours, "ratio": plain / max(ours, 1e-12), "limit_s": limit}
    rate = {
        name: {phase: median(side.tokens) / max(side.seconds(phase), 1e-12) for phase in PHASES}
        for name, side in sides.items()
    }
    return {
        "lengths": lengths,
        "phases": phases,
        "response_tokens_per_s": rate,
        "peak_bytes": {name: side.peak for name, side in sides.items()},
        "resident_bytes": {name: side.resident for name, side in sides.items()},
        "response_tokens": {name: side.tokens for name, side in sides.items()},
        "last_batch": {
            "prompt_tokens": list(work.prompts),
            "response_tokens": [length for row in work.responses for length in row],
        },
        "rounds": {name: side.steps for name, side in sides.items()},
    }


def table(run: Mapping[str, Any], under_load: Mapping[str, Any] | None = None) -> str:
    """The run as a Markdown table, and a line on memory; with the ratios of a run beside a busy process, if given."""
    rows = []
    for phase, seconds in run["phases"].items():
        loaded = {} if under_load is None else {"under load": under_load["phases"][phase]["ratio"]}
        rows.append(
            {
                "phase": phase,
                "plain s": seconds["plain_s"],
                "ours s": seconds["ours_s"],
                "plain / ours": seconds["ratio"],
                **loaded,
                "limit s": seconds["limit_s"],
                "ours / limit": seconds["ours_s"] / seconds["limit_s"],
                "tokens/s plain": run["response_tokens_per_s"]["plain"][phase],
                "tokens/s ours": run["response_tokens_per_s"]["ours"][phase],
            }
        )
    peaks = ", ".join(
        f"{name} {'unknown' if size is None else f'{size / 2**20:,.0f} MiB'}"
        for name, size in run["peak_bytes"].items()
    )
    return f"{run['lengths']} lengths\n{markdown_table(rows, list(rows[0]))}peak memory: {peaks}\n"
