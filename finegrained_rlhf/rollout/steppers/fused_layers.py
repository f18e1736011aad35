"""A layer of Llama's kind in half the operations, for a decoding step: few products and few casts, weights of now."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from finegrained_rlhf.models.families.causal import CAUSAL_FAMILIES
from finegrained_rlhf.models.families.fused import FusedNorm, add_product, sums_in_product
from finegrained_rlhf.rollout.steppers.shared_prefix import Attend, Scores
from finegrained_rlhf.rollout.steppers.snapshot import StackedWeights, is_plain

_INPUTS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_WITHOUT_BIAS = ("self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")


def can_fuse(layer: Any, config: Any) -> bool:
    """Whether `FusedLayer` computes what a decoder layer of a model with this configuration does.

    Its family is declared as of Llama's kind, its norms are fused (`models/families/fused.py`), and its linear layers
    are plain.
    """
    family = CAUSAL_FAMILIES.get(config.model_type)
    if family is None or not family.llama_layers or not isinstance(layer.input_layernorm, FusedNorm):
        return False
    linear = [layer.get_submodule(name) for name in (*_INPUTS, *_WITHOUT_BIAS)]
    biases = [getattr(part, "base_layer", part).bias is not None for part in linear]
    return all(map(is_plain, linear)) and len(set(biases[:3])) == 1 and not any(biases[3:])


class TurnedHalves(nn.Module):
    """Rotary positions as `FusedLayer` takes them: cos and sin [B, T, 1, d], sin of the first half negative.

    Args:
        rotary: the model's own.
    """

    def __init__(self, rotary: nn.Module) -> None:
        super().__init__()
        self._rotary = rotary

    def forward(self, states: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Of positions int64 [B, T]; `states` name dtype and device."""
        cos, sin = self._rotary(states, position_ids)
        first, second = sin.chunk(2, dim=-1)
        return cos.unsqueeze(2), torch.cat([-first, second], dim=-1).unsqueeze(2)


class FusedLayer(nn.Module):
    """h + attention(norm(h)), then h + feed-forward(norm(h)), without gradient.

    Queries, keys and values are one product, and so are the two inner projections; queries and keys are turned
    together; where the device can, a sublayer's last product is summed into the states themselves (`add_product`).

    Args:
        source: a layer that `can_fuse`.
        weights: hold what is read from it.
    """

    def __init__(self, source: Any, weights: StackedWeights) -> None:
        super().__init__()
        attention, mlp = source.self_attn, source.mlp
        inputs = [source.get_submodule(name) for name in _INPUTS]
        self._weights = (
            weights.weight(*inputs),
            weights.weight(attention.o_proj),
            weights.weight(mlp.gate_proj, mlp.up_proj),
            weights.weight(mlp.down_proj),
        )
        self._bias = weights.bias(*inputs)
        self.norms = nn.ModuleList([source.input_layernorm, source.post_attention_layernorm])
        self.act = mlp.act_fn
        self._head_norms = [getattr(attention, name, None) for name in ("q_norm", "k_norm")]
        self._width: int = attention.head_dim
        self._key_heads = inputs[1].out_features // self._width
        window = getattr(attention, "sliding_window", getattr(attention.config, "sliding_window", None))
        self._scores = Scores(attention.layer_idx, attention.scaling, None, window)
        self._in_place = sums_in_product(self._weights[0].device)
        self.eval()

    def forward(
        self, hidden_states: Tensor, *, position_embeddings: tuple[Tensor, Tensor], attend: Attend, **rest: Any
    ) -> Tensor:
        """States [B, T, D] after the layer.

        Args:
            hidden_states: [B, T, D]; may be overwritten.
            position_embeddings: by `TurnedHalves`.
            attend: as `shared_prefix.py` has it.
            rest: what transformers hands to layers of its own.
        """
        qkv, out, inner, outer = self._weights
        rows, flat = hidden_states.shape[:2], hidden_states.flatten(0, 1)
        projected = F.linear(self.norms[0](flat).to(qkv.dtype), qkv, self._bias)
        parts = projected.unflatten(1, (-1, self._width)).unflatten(0, rows)
        turned, values = parts.tensor_split([-self._key_heads], dim=2)
        turned = self._turn(self._normed(turned), *position_embeddings).transpose(1, 2)
        queries, keys = turned.tensor_split([-self._key_heads], dim=1)
        attended = attend(queries, keys, values.transpose(1, 2), self._scores)
        flat = add_product(flat, attended.reshape(len(flat), -1), out, self._in_place)
        gate, linear = F.linear(self.norms[1](flat).to(inner.dtype), inner).chunk(2, dim=-1)
        return add_product(flat, self.act(gate) * linear, outer, self._in_place).unflatten(0, rows)

    def _normed(self, heads: Tensor) -> Tensor:
        """Queries and keys [B, T, H + K, d] behind norms of their own, if there are any (Qwen3)."""
        norms = self._head_norms
        if norms[0] is None or norms[1] is None:
            return heads
        queries, keys = heads.tensor_split([-self._key_heads], dim=2)
        return torch.cat([norms[0](queries), norms[1](keys)], dim=2)

    @staticmethod
    def _turn(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return torch.addcmul(heads * cos, heads.roll(heads.shape[-1] // 2, -1), sin)
