"""The dropout of a whole model, whatever its architecture keeps it in."""

from __future__ import annotations

from torch import nn


def set_dropout(model: nn.Module, rate: float) -> None:
    """Give every dropout of a model this rate: `nn.Dropout` layers, and the attention rates kept as numbers."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = rate
        for name in ("dropout", "attention_dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, rate)
