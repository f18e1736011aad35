"""What every model with a head has: a network, its tokenizer, where they are and how they are saved.

What stands on the hidden states, and what is written beside the weights, is the subclass's work.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import torch
from torch import nn

from finegrained_rlhf.models.quiet import quiet_transformers


class EncoderModel(nn.Module, ABC):
    """A network on an encoder (or, as a reward model, on a decoder-only model), with its tokenizer.

    Args:
        tokenizer: of the network.
    """

    def __init__(self, tokenizer: Any) -> None:
        super().__init__()
        self.tokenizer = tokenizer

    @property
    @abstractmethod
    def network(self) -> Any:
        """What transformers saves and opens."""

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    @property
    def pad_id(self) -> int:
        """Id of the padding token."""
        return int(self.tokenizer.pad_token_id)

    def save(self, directory: Path) -> None:
        """Write network and tokenizer so that `from_pretrained` opens the directory."""
        with quiet_transformers():
            self.network.save_pretrained(directory)
            self.tokenizer.save_pretrained(directory)
