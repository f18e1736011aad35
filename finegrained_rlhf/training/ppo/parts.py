"""What a run is put together from: models with their optimizer, prompts, rewards, an engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.files import Write, write_all
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.inference.config import ResponseMonitor
from finegrained_rlhf.models.families.compiled import compile_blocks
from finegrained_rlhf.models.families.fused import fuse
from finegrained_rlhf.models.policy import Policy, PromptMemory
from finegrained_rlhf.models.value import SeparateValueModel, ValueModel
from finegrained_rlhf.models.weights.reference import ReferencePolicy
from finegrained_rlhf.models.weights.restore import restore_weights
from finegrained_rlhf.models.weights.saving import module_to_save
from finegrained_rlhf.models.weights.sharded import shard_layers
from finegrained_rlhf.rewards.composition import RewardComposer
from finegrained_rlhf.rollout.engine import RolloutEngine
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.optimizer import OptimizerConfig
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.training.micro_batches import MicroBatch
from finegrained_rlhf.training.policy_state import load_policy_state, policy_state_to_save

_VALUE_FILE = "value_state.safetensors"


class PPOModels:
    """Policy, value model and reference.

    The reference is the policy as the run began with it: a frozen copy, or the same weights with the adapter off
    where LoRA is trained. It is never read from a checkpoint, so a resumed run keeps its anchor.

    Args:
        policy: trained; in evaluation mode throughout, so that rollout and update see one function (no dropout).
        value: trained; None for an algorithm that learns no values.
        optimizer: rates and schedule.
        total_steps: training steps that the schedule spans.
        processes: of the run.
    """

    def __init__(
        self,
        policy: Policy,
        value: ValueModel | None,
        optimizer: OptimizerConfig,
        total_steps: int,
        processes: Processes,
    ) -> None:
        self.policy, self.value = policy.eval(), None if value is None else value.eval()
        self.reference = ReferencePolicy(self.policy)
        separate = [value.backbone] if isinstance(value, SeparateValueModel) else []
        models = [self.policy.model, self.reference.model, *separate]
        for model in models if processes.compiled else ():
            compile_blocks(model)  # before sharding, whose classes stand above
        if processes.sharding != "none":
            self._shard(processes)
        for model in models if processes.fused else ():
            fuse(model)
        self._trained = nn.ModuleDict({"policy": self.policy.model, **({} if value is None else {"value": value})})
        self.optimizer = optimizer.build(self._trained.named_parameters(), total_steps, processes)

    def _shard(self, processes: Processes) -> None:
        """Share out the models; each process holds its rows of their matrices (see `shard_layers`)."""
        shard_layers(self.policy.model, processes)
        self.reference.shard(processes)
        if isinstance(self.value, SeparateValueModel):
            shard_layers(self.value.backbone, processes)
        if self.value is not None:
            self.value.to(processes.device)

    @property
    def reference_model(self) -> nn.Module:
        """The model whose weights the reference reads."""
        return self.reference.model

    @property
    def trained(self) -> list[nn.Parameter]:
        """The parameters that PPO moves, in a fixed order."""
        return self.optimizer.parameters

    @torch.no_grad()
    def values(self, batch: MicroBatch) -> Tensor:
        """fp32 [r, t], or [r, t, K] of K heads: values of a micro-batch, of a value model of its own."""
        assert isinstance(self.value, SeparateValueModel)
        ids, mask = self.policy.pad_prompts(batch.prompts)
        values = self.value(PromptMemory(batch.prompts, ids, mask, None), batch.index, batch.ids)
        return masked_values(values, batch.mask)

    def state_to_save(self, main: bool) -> Write:
        """Adapters (a full policy lies beside, in `policy/`), the value model and the optimizer's moments, as of now.

        Args:
            main: whether this is the main process.
        """
        writes = [policy_state_to_save(self.policy, self.optimizer, main)]
        if self.value is not None:
            writes.append(module_to_save(self.value, _VALUE_FILE, main))
        return write_all(writes)

    def load_state(self, checkpoint: Path) -> None:
        """Read what a checkpoint holds.

        Raises:
            CheckpointError: it belongs to another architecture, or a file is missing.
        """
        load_policy_state(self.policy, self.optimizer, checkpoint)
        if self.value is not None:
            restore_weights(self.value, checkpoint / _VALUE_FILE)


def masked_values(values: Tensor, mask: Tensor) -> Tensor:
    """Values [r, t] or [r, t, K], 0 where the mask [r, t] is."""
    return values * (mask if values.dim() == 2 else mask[:, :, None])


@dataclass(frozen=True)
class PPOData:
    """Prompts of a run.

    Attributes:
        train: drawn from in a seeded order, epoch after epoch.
        validation: answered at every validation; may be empty.
    """

    train: Sequence[Prompt]
    validation: Sequence[Prompt]

    def __post_init__(self) -> None:
        if not self.train:
            raise ConfigError("data: there are no training prompts")


@dataclass(frozen=True)
class PPOParts:
    """What PPO puts together.

    Attributes:
        models: policy, value model if any, reference and optimizer.
        engine: draws responses from the policy.
        composer: turns responses into token rewards.
        data: prompts.
        processes: of the run.
        run: where samples are written.
        monitor: measures the validation responses as well.
    """

    models: PPOModels
    engine: RolloutEngine
    composer: RewardComposer
    data: PPOData
    processes: Processes
    run: RunDirectory
    monitor: ResponseMonitor | None = None
