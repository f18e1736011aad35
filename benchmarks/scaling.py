"""How a PPO step of this project grows with prompts, prompt length, response length and samples a prompt.

Examples:
    python benchmarks/scaling.py out=scaling
    python benchmarks/scaling.py out=scaling sizes=tiny
    python benchmarks/scaling.py out=scaling part=communication

One factor at a time, the others as in the base; T5-small shapes on the CPU (`sizes=cpu`). Writes `scaling.json` and
`scaling.png` under `out`. Needs matplotlib beside what `ppo_step.py` needs. `part=communication` counts what two
processes send each other in a step, and writes `scaling_communication.json` and `.md`. See docs/benchmarks.md.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch

from benchmarks.command import read_arguments, run_main
from benchmarks.communication import communication_page, measure_communication
from benchmarks.machine import describe_machine
from benchmarks.ours import Ours
from benchmarks.profiles import PHASES, PROFILES, Profile
from benchmarks.rounds import Side
from benchmarks.workload import Workload
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.files import atomic_path, write_json, write_text
from finegrained_rlhf.models.quiet import quiet_transformers

KEYS = ("out", "sizes", "part", "threads", "rounds")
MEASURED = ("time", "communication")
BASES = {
    "cpu": replace(PROFILES["cpu"], prompts=2, prompt_tokens=256, new_tokens=32, epochs=1, warmup=1),
    "tiny": replace(PROFILES["tiny"], epochs=1, warmup=1),
}
FACTORS: dict[str, dict[str, tuple[int, ...]]] = {
    "cpu": {
        "prompts": (1, 2, 4, 8),
        "prompt_tokens": (128, 256, 512, 1024),
        "new_tokens": (16, 32, 64, 128),
        "samples": (1, 2, 4, 8),
    },
    "tiny": {"prompts": (1, 2), "prompt_tokens": (40, 80), "new_tokens": (6, 12), "samples": (1, 3)},
}
TITLES = {
    "prompts": "prompts a step",
    "prompt_tokens": "prompt length (tokens)",
    "new_tokens": "response length (tokens)",
    "samples": "samples a prompt",
}
PARTS = {"update": "#0072B2", "scoring": "#56B4E9", "rewards": "#E69F00", "rollout": "#009E73", "other": "#999999"}


def measure(profile: Profile, models: Path) -> dict[str, Any]:
    """Seconds by phase (median of the rounds after the first step) and memory of one setting."""
    device = torch.device(profile.device)
    with tempfile.TemporaryDirectory() as run:
        workload = Workload(profile, models)
        side = Side(lambda: Ours(workload, "fixed", Path(run)))
        for number in range(-profile.warmup, profile.rounds):
            side.run(device, counted=number >= 0)
    return {
        "phases": {phase: side.seconds(phase) for phase in PHASES},
        "resident_bytes": side.resident,
        "peak_bytes": side.peak,
        "response_tokens": side.tokens[-1],
    }


def measure_all(
    base: Profile, factors: Mapping[str, Sequence[int]], say: Callable[[str], None]
) -> dict[str, list[dict[str, Any]]]:
    """All settings; one that several factors share is measured once."""
    known: dict[Profile, dict[str, Any]] = {}
    found: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as models, quiet_transformers():
        for factor, values in factors.items():
            found[factor] = []
            for value in values:
                change: dict[str, Any] = {factor: value}
                profile = replace(base, **change)
                if profile not in known:
                    known[profile] = measure(profile, Path(models))
                found[factor].append({"value": value, **known[profile]})
                say(f"{factor}={value}: {known[profile]['phases']['total']:.2f} s a step")
    return found


def draw(document: Mapping[str, Any], path: Path) -> None:
    """One panel a factor: the step's time by phase as stacked bars, its peak memory written above."""
    try:
        import matplotlib
    except ImportError:
        raise ConfigError("the plot needs matplotlib: pip install -e '.[plots]' in a checkout") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(document["factors"]), figsize=(14, 4.2), sharey=True, layout="constrained")
    for axis, (factor, points) in zip(axes, document["factors"].items(), strict=True):
        below = [0.0] * len(points)
        for part, colour in PARTS.items():
            heights = [_seconds(point["phases"], part) for point in points]
            axis.bar(range(len(points)), heights, 0.62, bottom=below, color=colour, label=part)
            below = [a + b for a, b in zip(below, heights, strict=True)]
        for i, (point, top) in enumerate(zip(points, below, strict=True)):
            if point["peak_bytes"] is not None:
                size = _size(point["peak_bytes"])
                axis.annotate(size, (i, top), (0, 4), textcoords="offset points", ha="center", fontsize=8, color="#444")
        base = document["base"][factor]
        labels = [f"{p['value']:,}" + ("\nbase" if p["value"] == base else "") for p in points]
        axis.set_xticks(range(len(points)), labels)
        axis.set_xlabel(TITLES[factor])
        axis.margins(y=0.14)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", linewidth=0.5, alpha=0.5)
        axis.set_axisbelow(True)
    axes[0].set_ylabel("seconds a step")
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles[::-1], names[::-1], loc="outside right center", frameon=False)
    figure.suptitle("One PPO step by phase; above each bar the peak memory of training", fontsize=11)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=150, format="png")
    pyplot.close(figure)


def _size(count: int) -> str:
    """Bytes in words, on two lines."""
    return f"{count / 2**30:.1f}\nGiB" if count >= 2**30 else f"{count / 2**20:.0f}\nMiB"


def _seconds(phases: Mapping[str, float], part: str) -> float:
    """A phase's seconds; `other` is what the step spent outside the four."""
    if part != "other":
        return phases[part]
    return max(0.0, phases["total"] - sum(phases[name] for name in PARTS if name != "other"))


def main(arguments: Sequence[str]) -> dict[str, Any]:
    """Measure what `part` names and write its files; returns the document.

    Raises:
        ConfigError: a wrong argument.
    """
    out, sizes, part, base = chosen(arguments)
    os.environ["ACCELERATE_USE_CPU"] = "true"

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    if part == "communication":
        document = measure_communication(sizes, say)
        page = communication_page(document)
        write_json(out / "scaling_communication.json", document)
        write_text(out / "scaling_communication.md", page)
        print(f"{page}\n{out / 'scaling_communication.json'}\n{out / 'scaling_communication.md'}")
        return document
    if base.threads:
        torch.set_num_threads(base.threads)
    factors = measure_all(base, FACTORS[sizes], say)
    machine = describe_machine(torch.device("cpu"), base.precision)
    document = {"machine": machine, "base": asdict(base), "factors": factors}
    write_json(out / "scaling.json", document)
    draw(document, out / "scaling.png")
    print(f"{out / 'scaling.json'}\n{out / 'scaling.png'}")
    return document


def chosen(arguments: Sequence[str]) -> tuple[Path, str, str, Profile]:
    """What a command line asks for: the directory, the sizes, the part and the base of the timed steps.

    Raises:
        ConfigError: a wrong argument.
    """
    given = read_arguments(arguments, KEYS)
    sizes, part = given.get("sizes", "cpu"), given.get("part", "time")
    if sizes not in BASES:
        raise ConfigError(f"sizes: expected one of {', '.join(BASES)}, got {sizes!r}")
    if part not in MEASURED:
        raise ConfigError(f"part: expected one of {', '.join(MEASURED)}, got {part!r}")
    if part == "communication" and {"threads", "rounds"} & set(given):
        raise ConfigError("part=communication counts one step: it takes no threads and no rounds")
    if "out" not in given:
        raise ConfigError("out=DIRECTORY is missing")
    try:
        threads, rounds = int(given.get("threads", 0)), int(given.get("rounds", 1))
    except ValueError:
        raise ConfigError("threads and rounds must be whole numbers") from None
    return Path(given["out"]), sizes, part, replace(BASES[sizes], threads=threads, rounds=rounds)


if __name__ == "__main__":
    run_main(main)
