"""Ours beside another framework's trainer at one shape: episodes a second, and whether both learn the same.

Knows our side (`peer_ours.py`) and the other one as a process that answers (`peer_process.py`).
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from benchmarks.equality import FP32_TOLERANCE, entry
from benchmarks.families import CAUSAL
from benchmarks.peer_ours import BETA, CLIP, TEMPERATURE, TOP_K, GroupSide, token_rewards
from benchmarks.peer_process import SCRIPTS, PeerProcess
from benchmarks.profiles import PHASES, Profile
from benchmarks.workload import Workload
from finegrained_rlhf.core.errors import ConfigError, ConsistencyError
from finegrained_rlhf.core.files import write_json
from finegrained_rlhf.runtime.optimizer import OptimizerConfig
from finegrained_rlhf.text.tables import markdown_table
from finegrained_rlhf.training.order import items_of_step

KEYS = ("peer", "peer_python", "peer_head")
HEADS = ("installed", "responses")
CHECK_ADAM = OptimizerConfig(lr=1e-3, eps=1e-5, schedule="constant", max_grad_norm=1.0)
"""A large step, as in `equality.py`, so that the second step's loss has a KL that shows."""
ADAM = OptimizerConfig(lr=1e-5, schedule="constant", max_grad_norm=1.0)
CHECK_STEPS = 2
TOLERANCE = 1e-4

Say = Callable[[str], None]


@dataclass(frozen=True)
class Peer:
    """Another trainer.

    Attributes:
        name: of its framework.
        python: that runs it.
        head: over which positions its updates compute logits: `installed`, what it does by itself on the device;
            `responses`, those that predict a response token alone.
    """

    name: str
    python: str = sys.executable
    head: str = "installed"


def choose_peer(given: Mapping[str, str], profile: Profile) -> Peer | None:
    """The other trainer; None where the command line asks for none.

    Raises:
        ConfigError: a peer or a head that is none, or a profile that cannot be compared.
    """
    if "peer" not in given:
        for key in KEYS[1:]:
            if key in given:
                raise ConfigError(f"{key} says how a peer is run; it needs peer=trl")
        return None
    name = given["peer"]
    if name not in SCRIPTS:
        raise ConfigError(f"peer: expected {' or '.join(SCRIPTS)}, got {name!r}")
    if profile.family not in CAUSAL:
        raise ConfigError(
            f"peer={name} trains decoder-only models alone: expected family={', '.join(CAUSAL)}, got {profile.family}"
        )
    if profile.samples < 2:
        raise ConfigError(f"samples: peer={name} compares the responses to a prompt and needs at least 2, got 1")
    if profile.prompts % profile.micro_batch_prompts:
        raise ConfigError(
            f"micro_batch_prompts: with peer={name} it must divide prompts={profile.prompts}, got "
            f"{profile.micro_batch_prompts}"
        )
    peer = Peer(name, given.get("peer_python", sys.executable), given.get("peer_head", "installed"))
    if peer.head not in HEADS:
        raise ConfigError(f"peer_head: expected {' or '.join(HEADS)}, got {peer.head!r}")
    return peer


def compare(peer: Peer, profile: Profile, models: Path, say: Say) -> dict[str, Any]:
    """Both trainers on the same weights: first on the same responses, then each on its own, in turn.

    Args:
        peer: the other one.
        profile: shapes and sizes; one epoch is run whatever it says, and one step is not counted.
        models: directory with the profile's reward models, which are written where they are missing.
        say: gets a line for everything that is done.

    Returns:
        What the result file has under `peer`, and under `equal` the checks that go to the file's own `equal`.

    Raises:
        ConfigError: the peer cannot be started.
        ConsistencyError: it failed, or a response of a measured step is shorter than the limit.
    """
    timing = replace(profile, epochs=1, warmup=1, lengths=("fixed",))
    samples = max(2, profile.equal_samples)
    sizes: dict[str, Any] = {"prompts": profile.equal_prompts, "samples": samples, "micro_batch_prompts": 1}
    check = replace(timing, **sizes, rounds=CHECK_STEPS, warmup=0, precision="fp32")
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        workload, small = Workload(timing, models), Workload(check, models)
        checked, responses = learn_from_ours(small, directory)
        workload.policy.save_pretrained(directory / "model")
        workload.tokenizer.save_pretrained(directory / "model")
        weights = directory / "weights.safetensors"
        task: dict[str, Any] = {
            "device": profile.device,
            "precision": profile.precision,
            "threads": torch.get_num_threads(),
            "seed": profile.seed,
            "new_tokens": profile.new_tokens,
            "temperature": TEMPERATURE,
            "top_k": TOP_K,
            "beta": BETA,
            "clip": CLIP,
            "head": peer.head,
            "check": {**_part(small, "spread", CHECK_ADAM), "responses": responses, "weights": str(weights)},
            "timing": _part(workload, "fixed", ADAM),
        }
        write_json(directory / "task.json", {**task, "rewards": token_rewards(profile.vocabulary)})
        with PeerProcess(peer.name, peer.python, directory) as process:
            versions = process.answer()["versions"]
            say(f"{peer.name} {versions[peer.name]}: both learn from the same {len(responses)} batches of responses")
            theirs = process.ask("check")
            equal = _differences(checked, theirs, load_file(weights), 10 * FP32_TOLERANCE[profile.device])
            for key, found in equal.items():
                say(f"equal: {key} {found['value']:.3g} (at most {found['tolerance']:.3g})")
            rounds = _rounds(process, workload, directory / "ours", say)
    settings = {key: task[key] for key in ("temperature", "top_k", "beta", "clip", "head")}
    return {
        "name": peer.name,
        "versions": versions,
        **_report(timing, rounds),
        "loss": {"ours": checked["losses"], "peer": theirs["losses"]},
        "gradient_norm": {"ours": checked["gradient_norms"], "peer": theirs["gradient_norms"]},
        "equal": equal,
        "settings": {**settings, "epochs": 1, "check_adam": asdict(CHECK_ADAM), "adam": asdict(ADAM)},
    }


def _part(workload: Workload, lengths: str, adam: OptimizerConfig) -> dict[str, Any]:
    """Sizes of the check or of the measured steps and their prompts, in the order in which ours takes them."""
    profile, prompts = workload.profile, workload.prompts(lengths)
    steps = range(1, profile.warmup + profile.rounds + 1)
    ordered = [prompt for step in steps for prompt in items_of_step(prompts, step, profile.prompts, profile.seed)]
    return {
        "lengths": lengths,
        "prompts": profile.prompts,
        "samples": profile.samples,
        "micro_batch": profile.micro_batch_prompts * profile.samples,
        "steps": profile.warmup + profile.rounds,
        "adam": asdict(adam),
        "data": [{"text": prompt.text, "ids": list(prompt.input_ids)} for prompt in ordered],
    }


def learn_from_ours(workload: Workload, directory: Path) -> tuple[dict[str, Any], list[list[dict[str, Any]]]]:
    """Train our side for a few steps on responses of spread lengths.

    Returns:
        Its losses and gradient norms by step, its parameters before and after the first step; and the responses of each
        step, in the order of the prompts.
    """
    side = GroupSide(workload, "spread", directory / "check", CHECK_ADAM)
    model = side.policy.model
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    found: dict[str, Any] = {"losses": [], "gradient_norms": [], "before": before}
    responses = []
    for step in range(CHECK_STEPS):
        side.step()
        found["losses"].append(side.loss)
        found["gradient_norms"].append(side.gradient_norm)
        if step == 0:
            found["after"] = {name: p.detach().clone() for name, p in model.named_parameters()}
        rollout = side.rollout
        rows = zip(rollout.row_prompts(), rollout.response_ids, rollout.response_mask, strict=True)
        responses.append(
            [
                {"text": prompt.text, "prompt_ids": list(prompt.input_ids), "ids": ids[mask.bool()].tolist()}
                for prompt, ids, mask in rows
            ]
        )
    return found, responses


def _differences(
    ours: Mapping[str, Any], theirs: Mapping[str, Any], weights: Mapping[str, Tensor], relative: float
) -> dict[str, Any]:
    """Of losses, gradient norms and updated parameters, each with its tolerance; `relative` is that of the last two."""
    if set(weights) != set(ours["after"]):
        raise ConsistencyError("the peer trained other parameters than ours")
    moved = sum(float((p - ours["before"][name]).double().square().sum()) for name, p in ours["after"].items())
    apart = sum(float((p.cpu() - weights[name]).double().square().sum()) for name, p in ours["after"].items())
    losses = [abs(a - b) for a, b in zip(ours["losses"], theirs["losses"], strict=True)]
    norms = [abs(a - b) / a for a, b in zip(ours["gradient_norms"], theirs["gradient_norms"], strict=True)]
    return {
        "peer_first_loss": entry(losses[0], TOLERANCE),
        "peer_second_loss": entry(losses[1], TOLERANCE),
        "peer_relative_gradient_norm": entry(max(norms), relative),
        "peer_relative_update": entry((apart / max(moved, 1e-300)) ** 0.5, relative),
    }


def _rounds(peer: PeerProcess, workload: Workload, run: Path, say: Say) -> dict[str, list[dict[str, float]]]:
    """Seconds of each counted step of both sides, which run in turn; the first step of each is not counted."""
    profile = workload.profile
    ours = GroupSide(workload, "fixed", run, ADAM)
    rounds: dict[str, list[dict[str, float]]] = {"ours": [], "peer": []}
    for number in range(profile.warmup + profile.rounds):
        mine, answer = ours.step().seconds, peer.ask("step")
        lengths = {*ours.rollout.lengths().tolist(), *answer["lengths"]}
        if lengths != {profile.new_tokens}:
            raise ConsistencyError(f"a response of the run beside a peer has not {profile.new_tokens} tokens")
        if number >= profile.warmup:
            rounds["ours"].append(mine)
            rounds["peer"].append(answer["seconds"])
        name = f"round {number - profile.warmup + 1}" if number >= profile.warmup else "warm-up"
        say(f"{peer.name}, {name}: ours {mine['total']:.1f} s, {peer.name} {answer['seconds']['total']:.1f} s")
    return rounds


def _report(profile: Profile, rounds: Mapping[str, list[dict[str, float]]]) -> dict[str, Any]:
    """Medians over rounds; `processor` counts the processor time of a step, which other programs disturb less."""
    episodes = profile.prompts * profile.samples
    phases = {}
    for phase in (*PHASES, "processor"):
        ours, theirs = (median(step[phase] for step in rounds[side]) for side in ("ours", "peer"))
        phases[phase] = {"peer_s": theirs, "ours_s": ours, "ratio": theirs / max(ours, 1e-12)}
    total = phases["total"]
    return {
        "episodes_per_s": {"ours": episodes / total["ours_s"], "peer": episodes / total["peer_s"]},
        "ratio": total["ratio"],
        "processor": phases.pop("processor"),
        "phases": phases,
        "rounds": dict(rounds),
    }


def peer_table(report: Mapping[str, Any]) -> str:
    """The comparison as a Markdown table, and a line with both losses of the first step."""
    name = report["name"]
    rows = [
        {
            "phase": phase,
            f"{name} s": line["peer_s"],
            "ours s": line["ours_s"],
            f"{name} / ours": line["ratio"],
        }
        for phase, line in {**report["phases"], "processor time": report["processor"]}.items()
    ]
    loss, rate = report["loss"], report["episodes_per_s"]
    return (
        f"GRPO, ours beside {name} {report['versions'][name]}\n{markdown_table(rows, list(rows[0]))}"
        f"episodes a second: ours {rate['ours']:.3g}, {name} {rate['peer']:.3g}, ratio {report['ratio']:.2f}\n"
        f"loss of the first step: ours {loss['ours'][0]:.6f}, {name} {loss['peer'][0]:.6f}\n"
    )
