"""The dropout of a whole model, whatever its architecture keeps it in."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

_NUMBERS = ("dropout", "attention_dropout", "activation_dropout")


def own_rates(module: nn.Module) -> dict[str, float]:
    """The rates that a module keeps as numbers of its own, by the name of the attribute."""
    values = {name: getattr(module, name, None) for name in _NUMBERS}
    return {name: value for name, value in values.items() if isinstance(value, float)}


def set_dropout(model: nn.Module, rate: float) -> None:
    """Give every dropout of a model this rate: `nn.Dropout` layers, and the rates kept as numbers."""
    from torch import nn

    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = rate
        for name in own_rates(module):
            setattr(module, name, rate)
