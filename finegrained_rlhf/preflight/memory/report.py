"""The memory of a PPO step as tables: every model, every phase, the peak, whether it fits and what to change.

Knows plans and formulae; touches no model, file or device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial, reduce

from finegrained_rlhf.preflight.memory import formulas as memory
from finegrained_rlhf.preflight.memory.plan import Plan
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
    group = f"{plan.group} × {plan.samples} responses, {lengths}"
    found = [
        Phase(
            "rollout",
            f"{plan.decoded} × {plan.samples} responses, {lengths}",
            memory.rollout_bytes(plan, plan.decoded, plan.samples),
        ),
        Phase("rewards", _largest_input(plan), memory.reward_bytes(plan)),
        Phase("scoring", group, memory.scoring_bytes(plan)),
        Phase("update", group, memory.update_bytes(plan)),
    ]
    if plan.validation_prompts:
        batch = f"{plan.validation_prompts} × 1 response, {lengths}"
        found.append(Phase("validation", batch, memory.rollout_bytes(plan, plan.validation_prompts, 1)))
    return found


def _largest_input(plan: Plan) -> str:
    if not plan.rewards:
        return "no model known"
    largest = max(plan.rewards, key=lambda model: model.rows * model.tokens * model.width)
    return f"{largest.rows} inputs of {largest.tokens} tokens ({largest.name})"


def peak(plan: Plan) -> tuple[int, Phase]:
    """The expected peak in bytes and the phase that it falls into."""
    highest = max(phases(plan), key=lambda phase: phase.needed)
    return memory.lasting_bytes(plan) + highest.needed, highest


def remedies(plan: Plan) -> dict[str, Change]:
    """Settings that lower the need without changing the result, and what each makes of a plan."""
    found: dict[str, Change] = {}
    if plan.group > 1:
        found["ppo.micro_batch_prompts=1"] = lambda p: replace(p, micro_batch_prompts=1)
    if not plan.checkpointing:
        found["policy.gradient_checkpointing=true"] = lambda p: replace(p, checkpointing=True)
    at_once = max(plan.decoded, plan.validation_prompts)
    if at_once > 1:
        size = max(1, at_once // 8)
        found[f"rollout.prompts_per_batch={size}"] = lambda p: replace(
            p, prompts_per_batch=size, validation_prompts=min(p.validation_prompts, size)
        )
    for number, model in enumerate(plan.rewards):
        if model.rows > 1:
            name, rows = f"reward.components.{model.name}.batch_size", max(1, model.rows // 4)
            found[f"{name}={rows}"] = partial(_with_reward_rows, number=number, rows=rows)
    return found


def _with_reward_rows(plan: Plan, number: int, rows: int) -> Plan:
    models = [replace(m, rows=rows) if i == number else m for i, m in enumerate(plan.rewards)]
    return replace(plan, rewards=tuple(models))


def model_rows(plan: Plan) -> list[dict[str, object]]:
    """One row a model, in millions of parameters and GiB."""
    rows = [_model_row("policy", plan.policy.parameters, plan.policy.trained)]
    if plan.reference_copy:
        rows.append(_model_row("reference", plan.policy.parameters, 0))
    if plan.value is not None:
        rows.append(_model_row("value", plan.value.parameters, plan.value.trained))
    rows += [_model_row(model.name, model.parameters, 0) for model in plan.rewards]
    if kept := memory.kept_cache_bytes(plan):
        rows.append({"model": "decoding caches", "weights": kept / GIB})
    return rows


def _model_row(name: str, parameters: int, trained: int) -> dict[str, object]:
    row: dict[str, object] = {"model": name, "parameters (M)": parameters / 1e6, "weights": 4 * parameters / GIB}
    if trained:
        row |= {"trained (M)": trained / 1e6, "gradients": 4 * trained / GIB, "optimizer": 8 * trained / GIB}
    return row


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
        lines.append(f"  all: {peak(reduce(lambda p, change: change(p), changes.values(), plan))[0] / GIB:.2f} GiB")
    other = [] if plan.bf16 else ["processes.precision=bf16 (activations, caches)"]
    if plan.reference_copy:
        other.append("policy=lora (no reference copy, no optimizer state of the frozen weights)")
    if plan.value is not None:
        other.append("value=shared (no value model)")
    if other:
        lines.append(f"These change the result, or its rounding, and lower it too: {', '.join(other)}.")
    return "\n".join(lines)
