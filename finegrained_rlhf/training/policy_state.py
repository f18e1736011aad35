"""The trained policy in a checkpoint: all its weights in `policy/`, or only the adapters of a LoRA policy."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import save_file

from finegrained_rlhf.core.files import Write, write_all
from finegrained_rlhf.models.lora import ADAPTER, adapter_weights
from finegrained_rlhf.models.policy import Policy
from finegrained_rlhf.models.weights.restore import restore_weights
from finegrained_rlhf.models.weights.saving import Copies, policy_to_save
from finegrained_rlhf.runtime.loop.trainer import OptimizerTrainer
from finegrained_rlhf.runtime.optimizer import Optimizer

_ADAPTER_FILE = "adapter_state.safetensors"


def policy_state_to_save(policy: Policy, optimizer: Optimizer, main: bool) -> Write:
    """What a checkpoint needs beside `policy/`, taken now: the adapters of a LoRA policy as they are, and the moments.

    Args:
        policy: trained.
        optimizer: its own.
        main: whether this is the main process, which writes all but the moments of others.
    """
    writes = [optimizer.to_save()]
    if policy.adapter is not None and main:
        take = Copies()
        adapters = {name: take(tensor).contiguous() for name, tensor in adapter_weights(policy.model).items()}
        writes.append(lambda directory: save_file(adapters, directory / _ADAPTER_FILE))
    return write_all(writes)


def load_policy_state(policy: Policy, optimizer: Optimizer, checkpoint: Path) -> None:
    """Copy a checkpoint's weights and moments into a policy and an optimizer that exist.

    The weights are the adapters of a LoRA policy, else all of them.

    Raises:
        CheckpointError: they belong to another architecture or optimizer, or a file is missing.
    """
    if policy.adapter is None:
        restore_weights(policy.model, checkpoint / "policy")
    else:
        restore_weights(policy.model, checkpoint / _ADAPTER_FILE, part=ADAPTER)
    optimizer.load(checkpoint)


class PolicyTrainer(OptimizerTrainer):
    """A trainer of a policy and of nothing else: what supervised and self-critical training save alike.

    Attributes:
        policy: trained.
    """

    policy: Policy

    def model_to_save(self) -> Write:
        """The policy with its tokenizer in the Hugging Face layout."""
        return policy_to_save(self.policy, self.processes.is_main)

    def state_to_save(self) -> Write:
        """The adapters of a LoRA policy and the optimizer's moments; a step depends on nothing else."""
        return policy_state_to_save(self.policy, self.optimizer, self.processes.is_main)

    def load_state(self, checkpoint: Path) -> None:
        """Read what a checkpoint holds.

        Raises:
            CheckpointError: it belongs to another architecture or optimizer, or a file is missing.
        """
        load_policy_state(self.policy, self.optimizer, checkpoint)
