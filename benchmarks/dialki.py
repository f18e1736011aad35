"""DIALKI's training and inference, ours and a plain loop over passages, on this machine: examples a second.

Examples:
    python benchmarks/dialki.py profile=cpu out=dialki_cpu.json
    python benchmarks/dialki.py profile=gpu out=dialki_gpu.json

Needs torch, transformers, accelerate, numpy and safetensors, and no network. Knows both sides and the command line;
they are in `dialki_plain.py` and `dialki_ours.py`, models and dialogues in `dialki_workload.py`.
See docs/benchmarks.md.
"""

from __future__ import annotations

import copy
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch

from benchmarks.command import read_arguments, run_main
from benchmarks.dialki_ours import Ours
from benchmarks.dialki_plain import PlainDialki
from benchmarks.dialki_workload import (
    PROFILES,
    SETTABLE,
    DialkiProfile,
    build_model,
    encoder_flops,
    encoder_passes,
    make_examples,
)
from benchmarks.equality import FP32_TOLERANCE, entry
from benchmarks.machine import describe_machine, measure_rates, peak_memory, wait
from benchmarks.profiles import chosen_of
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.files import write_json
from finegrained_rlhf.dialki.inputs.batches import Chosen, passages_to_search
from finegrained_rlhf.dialki.model.model import DialkiModel
from finegrained_rlhf.dialki.records import DialogueExample
from finegrained_rlhf.models.dropout import set_dropout
from finegrained_rlhf.models.quiet import quiet_transformers
from finegrained_rlhf.runtime.optimizer import OptimizerConfig
from finegrained_rlhf.text.tables import markdown_table

KEYS = ("profile", "out", *SETTABLE)
PHASES = ("inference", "training")
SIDES = ("plain", "ours")
OPTIMIZER = OptimizerConfig(lr=3e-5, schedule="constant", max_grad_norm=1.0)
SMALL_STEP = OptimizerConfig(lr=1.0, eps=1e3, schedule="constant")
"""With so large an eps Adam's first step is the gradient over eps: two updates differ as the gradients do."""
THESIS = {"examples_per_minute": 1000, "machine": "2 NVIDIA Quadro Q6000 GPUs", "model": "BERT-base"}
"""Inference "takes less than 1 minutes per 1000 examples" (section 3.3.2)."""


@dataclass
class Times:
    """What was measured of one side in one phase.

    Attributes:
        seconds: of each counted round.
        processor: seconds of all CPU threads in each; a busy machine changes them little.
        rise: bytes by which memory rose in a round, the most of all; None where it is not known.
    """

    seconds: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    rise: int | None = None

    def run(self, work: Callable[[], Any], device: torch.device, counted: bool) -> float:
        """Do the work of a round."""
        with peak_memory(device) as peak:
            wait(device)
            start, processor = time.perf_counter(), time.process_time()
            work()
            wait(device)
            spent, processor = time.perf_counter() - start, time.process_time() - processor
        if counted:
            self.seconds.append(spent)
            self.processor.append(processor)
            self.rise = max(self.rise or 0, peak.rise) if peak.rise is not None else self.rise
        return spent


def check_equality(profile: DialkiProfile, model: DialkiModel, examples: Sequence[DialogueExample]) -> dict[str, Any]:
    """Both sides in fp32 on the profile's model: the answers to all examples, and one training step without dropout."""
    profile = replace(profile, precision="fp32")
    tolerance = FP32_TOLERANCE[profile.device]
    mine, theirs = copy.deepcopy(model), copy.deepcopy(model)
    ours = Ours(mine, profile, examples, SMALL_STEP, dropout=0.0)
    set_dropout(theirs, 0.0)
    plain = PlainDialki(theirs, ours.processes, SMALL_STEP, profile.seed)
    answers = list(zip(ours.identify(examples), plain.identify(examples), strict=True))
    different = sum(a.knowledge != b.knowledge for a, b in answers)
    apart = max(max(abs(a.probability - b.probability), abs(a.score - b.score)) for a, b in answers)
    before = [parameter.detach().clone() for parameter in theirs.parameters()]
    loss = plain.train_step(1, ours.chosen(1))
    found = ours.trainer.train_step(1)
    difference, movement = 0.0, 0.0
    with torch.no_grad():
        for start, p, q in zip(before, theirs.parameters(), mine.parameters(), strict=True):
            difference += float((p - q).double().square().sum())
            movement += float((p - start).double().square().sum())
    return {
        "answers": entry(different, 0),
        "scores": entry(apart, tolerance),
        "relative_loss": entry(abs(found["loss"] - loss) / abs(loss), tolerance),
        "relative_gradient": entry((difference / max(movement, 1e-300)) ** 0.5, 10 * tolerance),
    }


def run_rounds(
    profile: DialkiProfile, model: DialkiModel, examples: Sequence[DialogueExample], say: Callable[[str], None]
) -> tuple[dict[str, dict[str, Times]], dict[str, list[list[int]]]]:
    """All rounds, the sides in turn: what was measured by phase and side; the lengths of inputs by phase and round."""
    ours = Ours(copy.deepcopy(model), profile, examples, OPTIMIZER)
    plain = PlainDialki(copy.deepcopy(model), ours.processes, OPTIMIZER, profile.seed)
    device = ours.processes.device
    times = {phase: {side: Times() for side in SIDES} for phase in PHASES}
    for number in range(1 - profile.warmup, profile.rounds + 1):
        step = number + profile.warmup
        chosen = ours.chosen(step)
        work: dict[str, dict[str, Callable[[], Any]]] = {
            "inference": {"plain": lambda: plain.identify(examples), "ours": lambda: ours.identify(examples)},
            "training": {
                "plain": lambda step=step, chosen=chosen: plain.train_step(step, chosen),  # type: ignore[misc]
                "ours": lambda step=step: ours.trainer.train_step(step),  # type: ignore[misc]
            },
        }
        for phase in PHASES:
            spent = [times[phase][side].run(work[phase][side], device, counted=number > 0) for side in SIDES]
            name = f"round {number}" if number > 0 else "warm-up"
            say(f"{name}, {phase}: " + ", ".join(f"{a} {b:.2f} s" for a, b in zip(SIDES, spent, strict=True)))
    first = profile.warmup + 1
    steps = [ours.chosen(step) for step in range(first, first + profile.rounds)]
    limit = model.config.search.max_passages
    searched = [passages_to_search(item, limit) for item in ours.finder.encoder.encode(examples)[0]]
    return times, {"inference": [_lengths(searched)], "training": [_lengths(step) for step in steps]}


def _lengths(chosen: Sequence[Chosen]) -> list[int]:
    """Tokens of each input."""
    return [item.example.lengths[passage] for item in chosen for passage in item.passages]


def report(
    profile: DialkiProfile,
    times: Mapping[str, Mapping[str, Times]],
    inputs: Mapping[str, Sequence[Sequence[int]]],
    matmul: float,
    examples: int,
) -> dict[str, Any]:
    """Medians over the rounds, and rates."""
    phases: dict[str, dict[str, float]] = {}
    rates: dict[str, dict[str, float]] = {side: {} for side in SIDES}
    by_processor: dict[str, dict[str, float]] = {side: {} for side in SIDES}
    for phase in PHASES:
        seconds = {side: median(times[phase][side].seconds) for side in SIDES}
        worked = [sum(encoder_flops(profile, tokens) for tokens in rows) for rows in inputs[phase]]
        count = examples if phase == "inference" else profile.batch_size
        phases[phase] = {
            "examples": count,
            "plain_s": seconds["plain"],
            "ours_s": seconds["ours"],
            "ratio": seconds["plain"] / seconds["ours"],
            **{f"{side}_processor_s": median(times[phase][side].processor) for side in SIDES},
            # of one core's rate, hence in processor seconds, on a CPU
            "limit_s": encoder_passes(phase == "training") * median(worked) / matmul,
        }
        for side in SIDES:
            rates[side][phase] = count / seconds[side]
            by_processor[side][phase] = count / phases[phase][f"{side}_processor_s"]
    lengths = inputs["inference"][0]
    return {
        "phases": phases,
        "examples_per_s": rates,
        "examples_per_processor_s": by_processor,
        "inference_examples_per_minute": {side: 60 * rates[side]["inference"] for side in SIDES},
        "thesis": THESIS,
        "inputs": {
            "examples": examples,
            "passages": len(lengths),
            "tokens": sum(lengths),
            "shortest": min(lengths),
            "longest": max(lengths),
        },
        "peak_rise_bytes": {phase: {side: times[phase][side].rise for side in SIDES} for phase in PHASES},
        "rounds": {phase: {side: times[phase][side].seconds for side in SIDES} for phase in PHASES},
    }


def benchmark(profile: DialkiProfile, say: Callable[[str], None]) -> dict[str, Any]:
    """Everything of one profile as the JSON document that `out` names."""
    device = torch.device(profile.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"profile={profile.name} needs a CUDA GPU, and torch sees none")
    os.environ["ACCELERATE_USE_CPU"] = str(device.type == "cpu").lower()
    if profile.threads:
        torch.set_num_threads(profile.threads)
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    rates = measure_rates(device, profile.precision, small=profile.name == "tiny", clock=clock)
    say(f"matmul {rates.matmul / 1e9:.0f} GFLOP/s{' and core' if device.type == 'cpu' else ''} ({profile.precision})")
    examples = make_examples(profile)
    with tempfile.TemporaryDirectory() as directory, quiet_transformers():
        model = build_model(profile, examples, Path(directory))
        equal = check_equality(profile, model, examples)
        for name, found in equal.items():
            verdict = "" if found["ok"] else " FAILED"
            say(f"equal: {name} {found['value']:.3g} (at most {found['tolerance']:.3g}){verdict}")
        times, inputs = run_rounds(profile, model, examples, say)
    return {
        "profile": profile.name,
        "machine": {**describe_machine(device, profile.precision), "matmul_flops_per_s": rates.matmul},
        "attention": model.encoder.config._attn_implementation,
        **report(profile, times, inputs, rates.matmul, len(examples)),
        "equal": equal,
        "settings": asdict(profile),
    }


def table(document: Mapping[str, Any]) -> str:
    """The document as a Markdown table, and a line beside the thesis's figure."""
    rows = [
        {
            "phase": phase,
            "examples": found["examples"],
            "plain s": found["plain_s"],
            "ours s": found["ours_s"],
            "plain / ours": found["ratio"],
            "CPU s": found["ours_processor_s"],
            "limit s": found["limit_s"],
            **{f"{side}: examples/s": document["examples_per_s"][side][phase] for side in SIDES},
            **{f"{side}: a CPU second": document["examples_per_processor_s"][side][phase] for side in SIDES},
        }
        for phase, found in document["phases"].items()
    ]
    minute, thesis = document["inference_examples_per_minute"], document["thesis"]
    machine = document["machine"]["gpu"] or f"{document['machine']['threads']} CPU threads"
    return (
        f"{markdown_table(rows, list(rows[0]))}"
        f"inference: {minute['ours']:,.0f} examples a minute here ({machine}), plain {minute['plain']:,.0f}; "
        f"thesis: {thesis['examples_per_minute']:,} ({thesis['model']}, {thesis['machine']})\n"
    )


def main(arguments: Sequence[str]) -> dict[str, Any]:
    """Measure, print the table, write the JSON file; returns the document.

    Raises:
        ConfigError: a wrong argument.
    """
    given = read_arguments(arguments, KEYS)
    profile = chosen_of(given, PROFILES, SETTABLE)
    document = benchmark(profile, lambda line: print(line, file=sys.stderr, flush=True))
    print(table(document))
    if "out" in given:
        write_json(given["out"], document)
    return document


if __name__ == "__main__":
    run_main(main)
