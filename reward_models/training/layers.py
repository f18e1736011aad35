"""Which layers of a pretrained model are trained, and how fast: freezing, layer-wise rates, the head's rate."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import above, at_least, at_most

if TYPE_CHECKING:
    from torch import nn

_LAYER = re.compile(r"\.(?:layer|layers|h)\.(\d+)\.")
_HEAD = re.compile(r"^(?:model\.)?(classifier|pre_classifier|score)\.|\bpooler\.")
_LAST = re.compile(r"\.(norm|ln_f|final_norm)\.(weight|bias)$")


@dataclass(frozen=True)
class LayerConfig(Settings):
    """What is trained of a pretrained model with a new head, and at what rates.

    The learning rate of layer l of L is lr · decay^(L − l), l from 1; embeddings count as layer 0, and norms behind
    the last layer as layer L (Howard and Ruder 2018, section 3.2, discriminative fine-tuning).

    Attributes:
        frozen: the embeddings and so many layers from the bottom are not trained; 0 trains everything.
        decay: of the rate from one layer to the one below, in (0, 1].
        head: rate of the head as a multiple of lr, above 0.
    """

    frozen: Annotated[int, at_least(0)] = 0
    decay: Annotated[float, above(0), at_most(1)] = 1.0
    head: Annotated[float, above(0)] = 1.0

    def prepare(self, model: nn.Module) -> dict[str, float]:
        """Freeze what is frozen, and return the rate of every parameter that was not, as a multiple of lr.

        Raises:
            ConfigError: the model has fewer layers than are to be frozen, or rates are asked for and its layers are
                not known by their names.
        """
        names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        count = max((int(match[1]) + 1 for name in names if (match := _LAYER.search(name))), default=0)
        if self.frozen > count or (self.decay < 1 and not count):
            raise ConfigError(f"layers: the model has {count} layers, asked for {self}")
        depths = _depths(names, count)
        if self.frozen:
            for name, parameter in model.named_parameters():
                if (depth := depths.get(name)) is not None and depth <= self.frozen:
                    parameter.requires_grad_(False)
        return {n: self.head if depth is None else self.decay ** (count - depth) for n, depth in depths.items()}


def _depths(names: list[str], count: int) -> dict[str, int | None]:
    """The layer of each parameter, from 1; 0 for embeddings, `count` behind the last layer, None for the head."""
    depths: dict[str, int | None] = {}
    for name in names:
        match = _LAYER.search(name)
        if _HEAD.search(name):
            depths[name] = None
        elif match:
            depths[name] = int(match[1]) + 1
        else:
            depths[name] = count if _LAST.search(name) else 0
    return depths
