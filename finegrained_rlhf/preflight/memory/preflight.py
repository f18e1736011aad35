"""Whether a PPO run fits into memory, before it starts: from its configuration to a table.

Reads no weights, trains nothing and writes nothing; the formulae are in `preflight/memory/formulas.py`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psutil
import torch
from torch import nn
from transformers import AutoModel

from finegrained_rlhf.models.families.causal import CAUSAL_FAMILIES
from finegrained_rlhf.models.loading import load_tokenizer, model_directory
from finegrained_rlhf.models.policy import Policy
from finegrained_rlhf.models.value import SeparateValueModel, SharedTrunkValueModel
from finegrained_rlhf.models.weights.frozen import linear_parameters
from finegrained_rlhf.preflight.memory.plan import Plan, RewardModelShape
from finegrained_rlhf.preflight.memory.probe import (
    Layers,
    ProbeBatch,
    ProbeDevice,
    config_of_model,
    count,
    feed_forward_copies,
    feed_forward_width,
    layer_parameters,
    policy_activations,
    policy_shell,
    shape_of,
    value_activations,
    value_shell,
)
from finegrained_rlhf.preflight.memory.report import report
from finegrained_rlhf.rewards import ServedScorer
from finegrained_rlhf.rollout.select import stepper_of
from finegrained_rlhf.rollout.steppers.seq2seq import Seq2SeqStepper
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.training.ppo.job import TrainPPO
from finegrained_rlhf.training.ppo.parts import PPOData

VLLM_SHARE = 0.92
"""The `gpu_memory_utilization` of vLLM 0.32 where none is given."""

_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


@dataclass(frozen=True)
class Machine:
    """GPUs that are not here.

    Attributes:
        gpus: how many, one process each.
        gb: memory of each in 10⁹ bytes.
    """

    gpus: int
    gb: int

    @staticmethod
    def of(job: TrainPPO) -> Machine | None:
        """What `dry_run_on` of a job says: `8x80` is eight GPUs of 80 GB; None where it says nothing."""
        if job.dry_run_on is None:
            return None
        gpus, gb = job.dry_run_on.split("x")
        return Machine(int(gpus), int(gb))


def plan_of(job: TrainPPO, processes: Processes, data: PPOData | None = None, machine: Machine | None = None) -> Plan:
    """Read the configuration files of all models and the prompts, and count one layer of policy and value model.

    Args:
        job: the run.
        processes: of the run.
        data: its prompts; None reads them.
        machine: the GPUs that the plan is for; None is for this machine.

    Raises:
        ModelError: a model's directory holds no configuration, or models do not fit each other.
        DataError: the prompt file is damaged.
    """
    policy = policy_shell(job.policy, load_tokenizer(model_directory(job.policy.path, revision=job.policy.revision)))
    data = data or job.read_data(policy)
    value = value_shell(job.value, policy, heads=job.value_heads)
    own = isinstance(value, SeparateValueModel)
    most = max((*data.train, *data.validation), key=lambda prompt: len(prompt.input_ids))
    longest = len(most.input_ids)
    sampling, number = job.rollout, machine.gpus if machine else processes.count
    prompts = -(-sampling.prompts_per_step // number)
    batch = ProbeBatch(sampling.samples_per_prompt, longest, sampling.max_new_tokens, most.pieces)
    drawn = batch.samples if job.validation_decoding == "sampling" else 1
    validation = min(-(-len(data.validation) // number), sampling.prompts_per_step * batch.samples // number // drawn)
    at_once = sampling.prompts_per_batch
    scored: Literal["plain", "top_k", "top_p"] = "plain"
    if job.ppo.score_sampling_distribution and not sampling.decoding().plain:
        scored = "top_p" if sampling.top_p < 1 else "top_k"
    head = value if isinstance(value, SharedTrunkValueModel) else None
    trunk = policy if head is None else nn.ModuleList([policy, head])
    cuda = machine is not None or processes.device.type == "cuda"
    device = "cuda" if cuda else "cpu"
    fused = cuda and processes.precision == "bf16" if job.processes.fused is None else job.processes.fused
    probe = ProbeDevice(processes, cuda, fused)
    return Plan(
        policy=shape_of(trunk, policy.model.config, device),
        policy_activations=policy_activations(policy, job.policy, head is not None, batch, probe),
        value=shape_of(value, value.backbone.config, device) if isinstance(value, SeparateValueModel) else None,
        value_activations=value_activations(policy, job.value, batch, probe) if own else None,
        rewards=tuple(_reward_models(job, prompts * batch.samples, longest + batch.response_tokens)),
        reference_copy=policy.adapter is None,
        bf16=processes.precision == "bf16",
        cuda=cuda,
        fast=_fast(job, policy),
        processes=number,
        prompts=prompts,
        samples=batch.samples,
        prompt_tokens=longest,
        piece_tokens=max(most.pieces, default=longest),
        response_tokens=batch.response_tokens,
        prompts_per_batch=at_once or prompts,
        validation_prompts=min(validation, at_once or validation),
        validation_samples=drawn,
        mini_batches=job.ppo.mini_batches,
        ahead=sampling.ahead,
        draft=sampling.draft,
        micro_batch_prompts=job.ppo.micro_batch_prompts,
        micro_batch_tokens=job.ppo.micro_batch_tokens,
        checkpointing=job.policy.gradient_checkpointing,
        scored=scored,
        exact_kl=job.kl.exact,
        exact_kl_loss=job.kl.in_loss and job.kl.estimator == "exact",
        stored_in_bf16=count(linear_parameters(policy.model)) if job.policy.frozen_dtype == "bfloat16" else 0,
        sharding=job.processes.sharding,
        groups=job.processes.groups(number),
        servers=tuple(job.rollout.vllm.servers()) if job.rollout.engine == "vllm" else (),
        engine_bytes=_engine_bytes(job, processes, machine),
        engine_sleeps=cuda and bool(job.rollout.vllm.options.get("enable_sleep_mode")),
        served=_served(job),
    )


def _served(job: TrainPPO) -> tuple[str, ...]:
    """Components that a server scores, and where."""
    components = job.reward.components.items()
    return tuple(f"{name} at {one.remote.url}" for name, one in components if isinstance(one, ServedScorer))


def _engine_bytes(job: TrainPPO, processes: Processes, machine: Machine | None) -> int:
    """What vLLM in this process takes of the whole device, or of the machine's memory; 0 where it draws elsewhere."""
    if job.rollout.engine != "vllm" or job.rollout.vllm.urls:
        return 0
    if machine is not None:
        whole = machine.gb * 10**9
    elif processes.device.type == "cuda":
        whole = torch.cuda.get_device_properties(processes.device).total_memory
    else:
        whole = psutil.virtual_memory().total
    return round(whole * float(job.rollout.vllm.options.get("gpu_memory_utilization", VLLM_SHARE)))


def _fast(job: TrainPPO, policy: Policy) -> bool:
    """Whether a stepper that keeps a prompt's keys once will serve.

    The job's engine or gradient checkpointing can be in its way. `Seq2SeqStepper` repeats them for each row, as
    transformers' `generate` does.
    """
    if job.rollout.engine not in ("auto", "own"):
        return False
    shell = policy_shell(job.policy, policy.tokenizer, Layers(1, 1))
    if job.policy.gradient_checkpointing:
        shell.use_gradient_checkpointing()
    return stepper_of(shell) not in (None, Seq2SeqStepper)


def _reward_models(job: TrainPPO, responses: int, tokens: int) -> Iterator[RewardModelShape]:
    """Scorers that say where their model is (`path`), as those of `reward_models` do; others count as nothing.

    Their inputs are taken to be as long as prompt and response together, or as the model reads at most.
    """
    for name, scorer in job.reward.components.items():
        path: Any = getattr(scorer, "path", None)
        if not isinstance(path, str):
            continue
        config = config_of_model(path, export="model")
        with torch.device("meta"):
            model = AutoModel.from_config(config)
        limit = min(getattr(scorer, "max_length", None) or tokens, config.max_position_embeddings)
        window = getattr(config, "attention_window", None)
        causal = config.model_type in CAUSAL_FAMILIES
        widest = max(window) if isinstance(window, list) else window
        yield RewardModelShape(
            name=name,
            parameters=count(model.parameters()),
            layer_parameters=count(layer_parameters(model, config)),
            width=config.hidden_size,
            feed_forward=feed_forward_width(config),
            reach=tokens if widest is None else 3 * widest // 2,
            rows=min(getattr(scorer, "batch_size", responses), responses),
            tokens=min(tokens, limit),
            states=4 if causal else 2,
            feed_forward_copies=feed_forward_copies(model, config) if causal else 2,
        )


def device_bytes(processes: Processes) -> int:
    """Memory that one process may use: all of its GPU, or its share of the machine's available memory."""
    if processes.device.type == "cuda":
        return torch.cuda.get_device_properties(processes.device).total_memory
    available = int(psutil.virtual_memory().available)
    if _CGROUP_LIMIT.is_file() and (limit := _CGROUP_LIMIT.read_text().strip()).isdigit():
        available = min(available, int(limit))
    return available // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def preflight(job: TrainPPO, processes: Processes) -> str:
    """The report on a run that has not begun: on this machine, or on the GPUs that `dry_run_on` names."""
    machine, device = Machine.of(job), processes.device
    if machine is not None:
        return report(plan_of(job, processes, machine=machine), machine.gb * 10**9, f"A GPU of {machine.gb} GB")
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "This machine"
    return report(plan_of(job, processes), device_bytes(processes), name)
