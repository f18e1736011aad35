"""What two processes send each other in one PPO step, counted; and what 64 would take for the gradients, on paper.

Run by `benchmarks/scaling.py part=communication`. As a program it is one of the two processes.
"""

from __future__ import annotations

import json
import os
import subprocess
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
from transformers import T5ForConditionalGeneration, T5Model

from benchmarks.collectives import OTHER, Recorder
from benchmarks.command import read_arguments, run_main
from benchmarks.machine import describe_machine
from benchmarks.ours import Ours
from benchmarks.profiles import BASE, LARGE, PROFILES, Profile
from benchmarks.workload import Workload, t5_config
from finegrained_rlhf.core.errors import ConsistencyError
from finegrained_rlhf.core.files import read_json, write_json
from finegrained_rlhf.models.quiet import quiet_transformers
from finegrained_rlhf.models.value import ValueHead
from finegrained_rlhf.runtime.process_config import ProcessConfig
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.text.tables import markdown_table

MODES = ("none", "gradients", "full")
"""Values of `processes.sharding` that are counted; `none` is the default and is not passed on."""
PURPOSES = {"gradients": ("all_reduce_gradients", "start_reduce"), "parameters": ("start_broadcast",)}
"""What the methods of `Processes` send for; what other code sends is for something else."""
OF_SHARDS = {"all_gather_single": "parameters", "reduce_scatter_single": "gradients"}
"""What FSDP2 sends for, under the names that torch 2.13 gives these calls."""
STEPS = ("first", "later")
PROCESSES = 2
COUNTED = {
    "cpu": replace(PROFILES["cpu"], prompts=2, prompt_tokens=256, new_tokens=32, epochs=4, warmup=1, rounds=1),
    "tiny": replace(PROFILES["tiny"], epochs=4, warmup=1, rounds=1),
}
LINKS = {
    "NVLink, 450 GB/s a GPU": 450e9,
    "InfiniBand, 400 Gb/s a GPU": 50e9,
    "Ethernet, 100 Gb/s a node": 12.5e9,
}
"""Bytes a second of one link in one direction."""
GPUS = (2, 8, 64)
PAPER_EPOCHS = 4
_GATHERS = ("all_gather", "all_gather_into_tensor", "all_gather_single")
_SCATTERS = ("reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_single")
_WORST_OTHER = 0.1
"""Of the gradients' bytes: more of other kinds grows with the model, and belongs into the arithmetic."""


def count_step(profile: Profile, mode: str, directory: Path) -> dict[str, Any]:
    """What this process sends in a run's first training step, which also compares models, and in a later one.

    Args:
        profile: sizes; `prompts` of all processes together.
        mode: of `MODES`.
        directory: empty, for reward models and what the trainer writes.

    Returns:
        `trained_parameters`, and `collectives`: step, purpose, collective, calls, bytes.
    """
    sharding: dict[str, Any] = {} if mode == "none" else {"sharding": mode}
    config = ProcessConfig(profile.precision, **sharding)
    recorders = {step: Recorder() for step in STEPS}
    with quiet_transformers():
        ours = Ours(Workload(profile, directory), "fixed", directory / "run", processes=config)
        trained = sum(parameter.numel() for parameter in ours.trainer.models.trained)
        for recorder in recorders.values():
            with recorder.recording(OF_SHARDS), recorder.naming(Processes, PURPOSES):
                ours.step()
    ours.trainer.processes.close()
    found = [
        {"step": step, "for": purpose, "collective": name, "calls": calls, "bytes": recorder.sizes[purpose, name]}
        for step, recorder in recorders.items()
        for (purpose, name), calls in sorted(recorder.calls.items())
    ]
    return {"trained_parameters": trained, "collectives": found}


def count_in_two_processes(sizes: str, mode: str) -> dict[str, Any]:
    """Start the processes, wait for them and put their counts together.

    Returns:
        `trained_parameters`, and `collectives` whose calls and bytes are lists with a number for each process.

    Raises:
        ConsistencyError: a process failed, or one made a call that another did not.
    """
    with tempfile.TemporaryDirectory() as directory:
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(PROCESSES)]
        own = [str(Path(__file__).resolve()), f"directory={directory}", f"sizes={sizes}", f"mode={mode}"]
        done = subprocess.run([sys.executable, *launch, *own], capture_output=True, text=True)
        if done.returncode != 0:
            raise ConsistencyError(f"mode {mode}: a process failed:\n{done.stderr[-4000:]}")
        ranks = [read_json(Path(directory, f"rank_{rank}.json")) for rank in range(PROCESSES)]
    kinds = [[(line["step"], line["for"], line["collective"]) for line in rank["collectives"]] for rank in ranks]
    if any(one != kinds[0] for one in kinds):
        raise ConsistencyError(f"mode {mode}: the processes call different collectives: {kinds}")
    together = [
        {**lines[0], "calls": [line["calls"] for line in lines], "bytes": [line["bytes"] for line in lines]}
        for lines in zip(*(rank["collectives"] for rank in ranks), strict=True)
    ]
    return {"trained_parameters": ranks[0]["trained_parameters"], "collectives": together}


def link_bytes(collective: str, sizes: Sequence[float], processes: int) -> float:
    """Bytes that one collective moves through each link of a ring, in one direction.

    With x the bytes of the whole tensor: 2(N−1)/N · x for all_reduce, (N−1)/N · x for reduce_scatter and all_gather,
    x for reduce and broadcast (the tensor goes round in pieces).

    Args:
        collective: its name.
        sizes: bytes that each of the counted processes handed in: the whole tensor, for all_gather its own part of it.
        processes: N, those that the answer is for.

    Raises:
        ConsistencyError: no formula for this collective.
    """
    part = (processes - 1) / processes
    if collective in _GATHERS:
        return part * sum(sizes)
    if collective in _SCATTERS:
        return part * max(sizes)
    if collective == "all_reduce":
        return 2 * part * max(sizes)
    if collective in ("reduce", "broadcast"):
        return max(sizes)
    raise ConsistencyError(f"{collective}: no formula for what it moves through a link")


def paper_parameters() -> int:
    """Trained parameters of the paper's run: T5-large as policy, T5-base with a head as value model."""
    with torch.device("meta"), quiet_transformers():
        policy = T5ForConditionalGeneration(t5_config(LARGE, 32128))
        value = T5Model(t5_config(BASE, 32128))
        models = (policy, value, ValueHead(BASE.width))
    return sum(parameter.numel() for model in models for parameter in model.parameters())


def extrapolate(counted: Mapping[str, Any], epochs: int, parameters: int) -> list[dict[str, Any]]:
    """Seconds a step that gradients and parameters take on a link, by arithmetic from what two processes handed in.

    No latency, nothing sent while something else is computed, one ring.

    Args:
        counted: a mode's counts.
        epochs: optimizer steps of the counted training step.
        parameters: trained ones of the run that the answer is for.

    Returns:
        `link`, `gpus`, `bytes` through each link, `seconds`.

    Raises:
        ConsistencyError: no gradients were counted, or much else was.
    """
    scale = parameters / counted["trained_parameters"] * PAPER_EPOCHS / epochs
    later = [line for line in counted["collectives"] if line["step"] == "later"]
    own = [line for line in later if line["for"] != OTHER]
    size = sum(max(line["bytes"]) for line in own)
    rest = sum(max(line["bytes"]) for line in later if line["for"] == OTHER)
    if size == 0 or rest > _WORST_OTHER * size:
        raise ConsistencyError(
            f"{size} bytes of gradients and {rest} of other kinds were counted: PURPOSES must name all methods that "
            "send what grows with the model"
        )
    found = []
    for link, rate in LINKS.items():
        for gpus in GPUS:
            moved = scale * sum(link_bytes(line["collective"], line["bytes"], gpus) for line in own)
            found.append({"link": link, "gpus": gpus, "bytes": moved, "seconds": moved / rate})
    return found


def measure_communication(sizes: str, say: Callable[[str], None]) -> dict[str, Any]:
    """Counts of all modes, and the arithmetic from them."""
    profile, modes = COUNTED[sizes], {}
    for mode in MODES:
        modes[mode] = count_in_two_processes(sizes, mode)
        say(f"sharding={mode}: {sum(line['calls'][0] for line in modes[mode]['collectives'])} calls in two steps")
    parameters = paper_parameters()
    seconds = {mode: extrapolate(counted, profile.epochs, parameters) for mode, counted in modes.items()}
    return {
        "machine": describe_machine(torch.device("cpu"), profile.precision),
        "base": asdict(profile),
        "backend": "gloo",
        "processes": PROCESSES,
        "modes": modes,
        "on_paper": {"parameters": parameters, "epochs": PAPER_EPOCHS, "links": LINKS, "seconds": seconds},
    }


def communication_page(document: Mapping[str, Any]) -> str:
    """Both tables as Markdown: what was counted, and what follows from it by arithmetic."""
    epochs, paper = document["base"]["epochs"], document["on_paper"]
    lines, seconds = [], []
    for mode, counted in document["modes"].items():
        for line in counted["collectives"]:
            each = max(line["bytes"]) / counted["trained_parameters"] / epochs
            row = {"sharding": mode, "step": line["step"], "for": line["for"], "collective": line["collective"]}
            row |= {"calls": _spread(line["calls"]), "bytes handed in": _spread(line["bytes"])}
            lines.append({**row, "bytes a parameter and epoch": "" if line["for"] == OTHER else f"{each:.6f}"})
        for link in paper["links"]:
            times = {f"{one['gpus']} GPUs": one["seconds"] for one in paper["seconds"][mode] if one["link"] == link}
            seconds.append({"sharding": mode, "link": link, **times})
    sizes = {counted["trained_parameters"] for counted in document["modes"].values()}
    trained = " and ".join(f"{size:,}" for size in sorted(sizes))
    return (
        "# Communication of one PPO step\n\n"
        f"Counted: a run's first training step, in which models are also compared, and a later one; {epochs} epochs, "
        f"{document['processes']} processes, {document['backend']}, {trained} trained parameters. Calls and bytes are "
        "those of each process.\n\n"
        f"{markdown_table(lines, list(lines[0]))}\n"
        f"**Arithmetic, not a measurement**: seconds that gradients and parameters take, {paper['parameters']:,} of "
        f"them, in a step of {paper['epochs']} epochs with one micro-batch each, from the bytes counted above and the "
        "nominal bandwidth of a link in one direction; one ring, no latency, nothing computed meanwhile.\n\n"
        f"{markdown_table(seconds, list(seconds[0]))}"
    )


def _spread(numbers: Sequence[int]) -> str:
    """A number that all processes share, or the least and the largest."""
    return f"{min(numbers):,}" if len(set(numbers)) == 1 else f"{min(numbers):,} to {max(numbers):,}"


def main(arguments: Sequence[str]) -> None:
    """Be one of the processes: count and write `rank_R.json`."""
    keys = ("directory", "sizes", "mode")
    given = read_arguments(arguments, keys, needed=keys)
    rank = int(os.environ["RANK"])
    with tempfile.TemporaryDirectory() as own:  # every process makes the same models for itself
        found = count_step(COUNTED[given["sizes"]], given["mode"], Path(own))
    write_json(Path(given["directory"], f"rank_{rank}.json"), json.loads(json.dumps(found)))


if __name__ == "__main__":
    run_main(main)
