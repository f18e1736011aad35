"""The trained policy in a checkpoint: all its weights in `policy/`, or only the adapters of a LoRA policy.

Knows the two places where the weights lie. Does not know which trainer moves them, nor what else a checkpoint holds.
"""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import save_file

from finegrained_rlhf.models.loading import restore_weights
from finegrained_rlhf.models.policy import Policy

_ADAPTER = ".lora_"
_ADAPTER_FILE = "adapter_state.safetensors"


def save_adapters(policy: Policy, directory: Path) -> None:
    """Write the adapters of a LoRA policy as they are; a full policy needs nothing beside its `policy/`."""
    if policy.adapter is None:
        return
    state = policy.model.state_dict()
    adapters = {name: tensor.contiguous() for name, tensor in state.items() if _ADAPTER in name}
    save_file(adapters, directory / _ADAPTER_FILE)


def restore_policy(policy: Policy, checkpoint: Path) -> None:
    """Copy a checkpoint's weights into a policy that exists: the adapters of a LoRA policy, else all weights.

    Raises:
        CheckpointError: they belong to another architecture, or a file is missing.
    """
    if policy.adapter is None:
        restore_weights(policy.model, checkpoint / "policy")
    else:
        restore_weights(policy.model, checkpoint / _ADAPTER_FILE, part=_ADAPTER)
