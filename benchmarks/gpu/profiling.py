"""Where a step of ours spends its time: by phase how long the device works, what it runs, and what the host does.

Four stretches of a step, each short enough that what the profiler notes can be summed up in seconds: a few tokens of
the rollout, scoring, rewards, and one micro-batch of the update after the first epoch. Knows the trainer's phases.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity
from torch.profiler import profile as profiler

from benchmarks.gpu.items import Item, Result, Setting
from benchmarks.gpu.steps import SHAPES, of_shapes
from benchmarks.machine import wait
from benchmarks.ours import Ours
from benchmarks.workload import Workload

TOKENS, LISTED, LONGEST_NAME = 16, 15, 100
LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaGraphLaunch")
"""How calls begin by which a host starts work on a device; a recorded step is one."""


@dataclass(frozen=True)
class Stretch:
    """What was measured of some work.

    Attributes:
        totals: wall seconds without the profiler (`seconds`) and under it, seconds that the device worked (0 on a
            CPU), kernels and copies that it ran, calls that launched kernels, and aten operations of the host, nested
            ones included.
        kernels: those that cost the device most, each with `kernel`, `calls` and `ms`.
        operations: those that cost the host most by themselves, each with `operation`, `calls` and `ms`.
    """

    totals: dict[str, float]
    kernels: list[dict[str, Any]]
    operations: list[dict[str, Any]]


def profile_items() -> list[Item]:
    """One a shape."""
    return of_shapes("profile", profile_step, 180)


def profile_step(name: str, setting: Setting) -> Result:
    """The stretches of one step of a shape, after one that is not measured; what there is after each is kept."""
    profile = SHAPES[name](setting)
    ours = Ours(Workload(profile, setting.scratch / "models"), profile.lengths[0], setting.scratch / "run")
    ours.step()
    found: Result = {"model": profile.note, "phases": {}, "kernels": [], "operations": []}

    def measured(phase: str, work: Callable[[], Any]) -> Any:
        given, stretch = measure(work, setting.device)
        found["phases"][phase] = stretch.totals
        found["kernels"] += [{"phase": phase, **row} for row in stretch.kernels]
        found["operations"] += [{"phase": phase, **row} for row in stretch.operations]
        setting.say(f"{phase}: {', '.join(f'{key} {value:.4g}' for key, value in stretch.totals.items())}")
        setting.keep(found)
        return given

    def watch(phase: str, owner: Any, method: str) -> None:
        function = getattr(owner, method)

        def watched(*arguments: Any, **options: Any) -> Any:
            if phase in found["phases"] or options.get("first"):
                return function(*arguments, **options)
            return measured(phase, partial(function, *arguments, **options))

        setattr(owner, method, watched)

    trainer = ours.trainer
    few = replace(trainer.sampler, max_new_tokens=min(TOKENS, profile.new_tokens))
    draw = partial(few.draw, list(trainer.data.train)[: profile.prompts], [trainer.rollout_config.decoding()], 1)
    with torch.no_grad():
        draw()  # what is recorded is recorded here
        measured(f"rollout of {few.max_new_tokens} tokens", draw)
    watch("scoring", trainer._scorer, "score")
    watch("rewards", trainer, "_scores")
    watch("one micro-batch of the update", trainer._update, "_backward")
    ours.step()
    return found


def measure(work: Callable[[], Any], device: torch.device) -> tuple[Any, Stretch]:
    """Do some work three times, once under the profiler; its last result, and what was measured."""
    work()  # shapes that are new here
    seconds = _seconds(work, device)[1]
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    with profiler(activities=activities, acc_events=True) as seen:
        given, watched = _seconds(work, device)
    rows = seen.key_averages()
    kernels = [row for row in rows if row.device_type == DeviceType.CUDA and not row.is_user_annotation]
    host = [row for row in rows if row.device_type == DeviceType.CPU]
    totals = {
        "seconds": seconds,
        "profiled_s": watched,
        "device_s": sum(row.self_device_time_total for row in kernels) / 1e6,
        "kernels": sum(row.count for row in kernels),
        "launches": sum(row.count for row in host if row.key.startswith(LAUNCHES)),
        "operations": sum(row.count for row in host if row.key.startswith("aten::")),
    }
    by_device = sorted(kernels, key=lambda row: -row.self_device_time_total)[:LISTED]
    by_host = sorted(host, key=lambda row: -row.self_cpu_time_total)[:LISTED]
    return given, Stretch(
        totals,
        [_row("kernel", row, row.self_device_time_total) for row in by_device],
        [_row("operation", row, row.self_cpu_time_total) for row in by_host],
    )


def _seconds(work: Callable[[], Any], device: torch.device) -> tuple[Any, float]:
    wait(device)
    start = time.perf_counter()
    given = work()
    wait(device)
    return given, time.perf_counter() - start


def _row(kind: str, row: Any, microseconds: float) -> dict[str, Any]:
    return {kind: row.key.replace("|", "/")[:LONGEST_NAME], "calls": row.count, "ms": microseconds / 1e3}
