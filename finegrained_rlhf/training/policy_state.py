"""The trained policy in a checkpoint: all its weights in `policy/`, or only the adapters of a LoRA policy.

Knows the two places where the weights lie, and the optimizer beside them. Does not know what moves them, nor what else
a checkpoint holds.
"""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import save_file

from finegrained_rlhf.models.loading import save_policy
from finegrained_rlhf.models.policy import Policy
from finegrained_rlhf.models.weights.restore import restore_weights
from finegrained_rlhf.runtime.loop.trainer import OptimizerTrainer
from finegrained_rlhf.runtime.optimizer import Optimizer

_ADAPTER = ".lora_"
_ADAPTER_FILE = "adapter_state.safetensors"


def save_policy_state(policy: Policy, optimizer: Optimizer, directory: Path) -> None:
    """Write what a checkpoint needs beside `policy/`: the adapters of a LoRA policy as they are, and the moments."""
    if policy.adapter is not None:
        state = policy.model.state_dict()
        adapters = {name: tensor.contiguous() for name, tensor in state.items() if _ADAPTER in name}
        save_file(adapters, directory / _ADAPTER_FILE)
    optimizer.save(directory)


def load_policy_state(policy: Policy, optimizer: Optimizer, checkpoint: Path) -> None:
    """Copy a checkpoint's weights and moments into a policy and an optimizer that exist.

    The weights are the adapters of a LoRA policy, else all of them.

    Raises:
        CheckpointError: they belong to another architecture or optimizer, or a file is missing.
    """
    if policy.adapter is None:
        restore_weights(policy.model, checkpoint / "policy")
    else:
        restore_weights(policy.model, checkpoint / _ADAPTER_FILE, part=_ADAPTER)
    optimizer.load(checkpoint)


class PolicyTrainer(OptimizerTrainer):
    """A trainer of a policy and of nothing else: what supervised and self-critical training save alike.

    Attributes:
        policy: trained.
    """

    policy: Policy

    def save_model(self, directory: Path) -> None:
        """Write the policy with its tokenizer in the Hugging Face layout."""
        save_policy(self.policy, directory)

    def save_state(self, directory: Path) -> None:
        """Write the adapters of a LoRA policy and the optimizer's moments; a step depends on nothing else."""
        save_policy_state(self.policy, self.optimizer, directory)

    def load_state(self, checkpoint: Path) -> None:
        """Read what a checkpoint holds.

        Raises:
            CheckpointError: it belongs to another architecture or optimizer, or a file is missing.
        """
        load_policy_state(self.policy, self.optimizer, checkpoint)
