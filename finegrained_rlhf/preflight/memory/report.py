"""The memory of a PPO step as tables: every model, every phase, the peak, whether it fits and what to change.

Touches no model, file or device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial, reduce

from finegrained_rlhf.preflight.memory import formulas as memory
from finegrained_rlhf.preflight.memory import sharding
from finegrained_rlhf.preflight.memory.plan import ModelShape, Plan
from finegrained_rlhf.runtime.process_config import SHARDING
from finegrained_rlhf.text.tables import markdown_table

GIB = memory.GIB
Change = Callable[[Plan], Plan]
USABLE = 0.9
"""Share of a device that a run can fill: the rest goes to the CUDA context, to libraries and to fragmentation."""


@dataclass(frozen=True)
class Phase:
    """What one phase of a training step needs.

    Attributes:
        name: of the phase.
        batch: its largest batch, in words.
        needed: bytes above what lasts from step to step.
    """

    name: str
    batch: str
    needed: int


def phases(plan: Plan) -> list[Phase]:
    """The phases of a training step and the validation's rollout, in order."""
    lengths = f"{plan.prompt_tokens} + {plan.response_tokens} tokens"
    scored, updated = (f"{n} × {plan.samples} responses, {lengths}" for n in (plan.group, plan.update_group))
    steps = [
        Phase(
            "rollout",
            f"{plan.decoded} × {plan.samples} responses, {lengths}",
            memory.rollout_bytes(plan, plan.decoded, plan.samples),
        ),
        Phase("rewards", _largest_input(plan), memory.reward_bytes(plan)),
        Phase("scoring", scored, memory.scoring_bytes(plan)),
        Phase("update", updated, memory.update_bytes(plan)),
    ]
    if plan.validation_prompts:
        drawn = plan.validation_samples
        batch = f"{plan.validation_prompts} × {drawn} response{'s' * (drawn > 1)}, {lengths}"
        steps.append(Phase("validation", batch, memory.rollout_bytes(plan, plan.validation_prompts, drawn)))
    return steps


def _largest_input(plan: Plan) -> str:
    if not plan.rewards:
        return "no model here" if plan.served else "no model known"
    largest = max(plan.rewards, key=lambda model: model.rows * model.tokens * model.width)
    return f"{largest.rows} inputs of {largest.tokens} tokens ({largest.name})"


def peak(plan: Plan) -> tuple[int, Phase]:
    """The expected peak in bytes and the phase that it falls into."""
    highest = max(phases(plan), key=lambda phase: phase.needed)
    return memory.lasting_bytes(plan) + highest.needed, highest


def remedies(plan: Plan) -> dict[str, Change]:
    """Settings that lower the need without changing the result, and what each makes of a plan."""
    changes: dict[str, Change] = {}
    if plan.group > 1:
        changes["ppo.micro_batch_prompts=1"] = lambda p: replace(p, micro_batch_prompts=1)
    if not plan.checkpointing:
        changes["policy.gradient_checkpointing=true"] = lambda p: replace(p, checkpointing=True)
    at_once = max(plan.decoded, plan.validation_prompts)
    if plan.engine_bytes and plan.cuda and not plan.engine_sleeps:
        changes["+rollout.vllm.options.enable_sleep_mode=true"] = lambda p: replace(p, engine_sleeps=True)
    if at_once > 1 and not plan.elsewhere:
        size = max(1, at_once // 8)
        changes[f"rollout.prompts_per_batch={size}"] = lambda p: replace(
            p, prompts_per_batch=size, validation_prompts=min(p.validation_prompts, size)
        )
    for number, model in enumerate(plan.rewards):
        if model.rows > 1:
            name, rows = f"reward.components.{model.name}.batch_size", max(1, model.rows // 4)
            changes[f"{name}={rows}"] = partial(_with_reward_rows, number=number, rows=rows)
    return changes


def _with_reward_rows(plan: Plan, number: int, rows: int) -> Plan:
    models = [replace(m, rows=rows) if i == number else m for i, m in enumerate(plan.rewards)]
    return replace(plan, rewards=tuple(models))


def model_rows(plan: Plan) -> list[dict[str, object]]:
    """One row a model, in millions of parameters and GiB."""
    rows = [_model_row(plan, "policy", plan.policy, frozen=not plan.reference_copy)]
    if plan.reference_copy:
        rows.append(_model_row(plan, "reference", plan.policy, frozen=True, trained=False))
    if plan.value is not None:
        rows.append(_model_row(plan, "value", plan.value))
    for model in plan.rewards:
        rows.append(
            {"model": model.name, "parameters (M)": model.parameters / 1e6, "weights": 4 * model.parameters / GIB}
        )
    if kept := memory.kept_cache_bytes(plan):
        rows.append({"model": "decoding caches", "weights": kept / GIB})
    if plan.engine_bytes and not plan.engine_sleeps:
        rows.append({"model": "vLLM", "weights": plan.engine_bytes / GIB})
    return rows


def _model_row(
    plan: Plan, name: str, shape: ModelShape, frozen: bool = False, trained: bool = True
) -> dict[str, object]:
    weights = sharding.weight_bytes(plan, shape, frozen)
    row: dict[str, object] = {"model": name, "parameters (M)": shape.parameters / 1e6, "weights": weights / GIB}
    if trained and shape.trained:
        row["trained (M)"] = shape.trained / 1e6
        row["gradients"] = sharding.model_gradient_bytes(plan, shape) / GIB
        row["optimizer"] = 8 * sharding.share_of(plan, shape) / GIB
    return row


def sharding_line(plan: Plan) -> str:
    """What the processes split, and what it makes of weights, gradients and moments; empty where nothing is split."""
    if not plan.splits("gradients"):
        return ""
    what = "gradients and optimizer state"
    if blocks := sharding.split_numbers(plan, plan.policy):
        share = blocks / plan.policy.parameters
        tables = ", embeddings and head" if plan.splits("full") else ""
        what += f", and weights in the matrices of transformer blocks{tables} ({share:.1%} of the policy),"
    held, full = sharding.held_bytes(plan), sharding.held_bytes(replace(plan, sharding="none"))
    over = f"{plan.processes} processes"
    if plan.groups > 1:
        over = f"the {plan.processes // plan.groups} processes of each of {plan.groups} groups"
    return (
        f"processes.sharding={plan.sharding} splits {what} over {over}: each holds "
        f"{held / GIB:.2f} of {full / GIB:.2f} GiB of weights, gradients and optimizer state of policy, reference and "
        "value model."
    )


def elsewhere_line(plan: Plan) -> str:
    """What vLLM takes here, and what the weights for it take; empty where our own decoder draws."""
    if not plan.elsewhere:
        return ""
    copies = 4 * plan.policy.parameters / GIB
    if plan.servers:
        many = f"{len(plan.servers)} vLLM server{'s' * (len(plan.servers) > 1)}"
        where = f"Responses are drawn by {many} ({', '.join(plan.servers)}): nothing of it lies here."
    else:
        kept = "while it draws; asleep, its weights lie in host memory, and what its context and recorded graphs keep"
        when = f"{kept} is not counted" if plan.engine_sleeps else "all the time, because it does not sleep"
        where = (
            "vLLM draws in this process, which must be the only one, and takes "
            f"{plan.engine_bytes / GIB:.2f} GiB of the device (rollout.vllm.options.gpu_memory_utilization) {when}."
        )
    return (
        f"{where} Weights for it are copied in the main process' host memory, {copies:.2f} GiB, and written as files."
    )


def served_line(plan: Plan) -> str:
    """Which components of the reward lie on servers; empty where none does."""
    if not plan.served:
        return ""
    return f"Scored on a server, taking nothing here: {', '.join(plan.served)}."


def report(plan: Plan, available: int, device: str) -> str:
    """Two tables and a verdict, in GiB a process.

    Args:
        plan: of the run.
        available: bytes that one process may use.
        device: in words.
    """
    lasting = memory.lasting_bytes(plan)
    columns = ["model", "parameters (M)", "trained (M)", "weights", "gradients", "optimizer"]
    rows = [
        {"phase": p.name, "largest batch": p.batch, "needs": p.needed / GIB, "peak": (lasting + p.needed) / GIB}
        for p in phases(plan)
    ]
    return "\n".join(
        [
            f"Memory of one process (of {plan.processes}) in GiB",
            "",
            markdown_table(model_rows(plan), columns),
            *filter(None, [sharding_line(plan), elsewhere_line(plan), served_line(plan)]),
            "Weights, optimizer state and kept caches last; each phase needs its batch beside them, the "
            "update also the gradients.",
            "",
            markdown_table(rows, ["phase", "largest batch", "needs", "peak"]),
            memory_verdict(plan, available, device),
        ]
    )


def memory_verdict(plan: Plan, available: int, device: str) -> str:
    """Whether the peak fits, and what to change where it does not."""
    expected, highest = peak(plan)
    text = f"Expected peak: {expected / GIB:.2f} GiB ({highest.name}). {device} has {available / GIB:.2f} GiB"
    if expected <= USABLE * available:
        return f"{text}: fits."
    lines = [f"{text}, of which {USABLE:.0%} can be used: does not fit."]
    changes = remedies(plan)
    after = {name: peak(change(plan))[0] for name, change in changes.items()}
    if useful := sorted((name for name in changes if after[name] < expected), key=lambda name: after[name]):
        lines.append("These settings lower it and leave the result as it is; each alone, and all together:")
        lines += [f"  {name}: {after[name] / GIB:.2f} GiB" for name in useful]
        lines.append(f"  all: {peak(_with_all(plan, changes))[0] / GIB:.2f} GiB")
    lines += sharding_advice(plan, USABLE * available)
    other = [] if plan.bf16 else ["processes.precision=bf16 (activations, caches)"]
    if plan.reference_copy:
        other.append("policy=lora (no reference copy, no optimizer state of the frozen weights)")
    if plan.value is not None:
        other.append("value=shared (no value model)")
    if other:
        lines.append(f"These change the result, or its rounding, and lower it too: {', '.join(other)}.")
    return "\n".join(lines)


def _with_all(plan: Plan, changes: dict[str, Change]) -> Plan:
    return reduce(lambda p, change: change(p), changes.values(), plan)


def sharding_advice(plan: Plan, usable: float) -> list[str]:
    """The first mode of sharding above the present one with which a plan fits, alone or with all remedies; in a line.

    Where none is enough the last one is named with what it needs. No line where no mode is left. With vLLM in this
    process, which is then the only one, how vLLM takes less.
    """
    modes = SHARDING[SHARDING.index(plan.sharding) + 1 :]
    if plan.engine_bytes:
        return [
            "rollout.vllm.options.gpu_memory_utilization is vLLM's share; on servers (rollout.vllm.urls=[URL]) it "
            "takes nothing here."
        ]
    if not modes:
        return []
    if plan.processes == 1:
        return ["More processes share the work, and processes.sharding lets them split what one holds alone."]
    changes = remedies(plan)
    for mode in modes:
        needed = peak(replace(plan, sharding=mode))[0]
        if needed <= usable:
            return [f"processes.sharding={mode}: {needed / GIB:.2f} GiB, fits."]
    for mode in modes:
        least = peak(_with_all(replace(plan, sharding=mode), changes))[0]
        if least <= usable:
            return [f"processes.sharding={mode} with {', '.join(changes)}: {least / GIB:.2f} GiB, fits."]
    words = f" with {', '.join(changes)}" if least < needed else ""
    return [f"processes.sharding={modes[-1]}{words}: {least / GIB:.2f} GiB, does not fit either."]
