"""Value models: V(s_t) for each response token, from a model of their own or on the policy's trunk."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor, nn

from finegrained_rlhf.core.errors import ModelError
from finegrained_rlhf.models.families import seq2seq
from finegrained_rlhf.models.families.attention import exact_attention
from finegrained_rlhf.models.families.causal import CAUSAL_FAMILIES
from finegrained_rlhf.models.families.packed import causal_states
from finegrained_rlhf.models.families.pieces import encode_in_pieces
from finegrained_rlhf.models.policy import Policy, PromptMemory, Seq2SeqPolicy
from finegrained_rlhf.runtime.sharding.shards import computed


class ValueHead(nn.Module):
    """MLP d→d, GELU, d→1 on a hidden state. Source: original code, `fgrlhf/value.py`. With K outputs d→K."""

    def __init__(self, width: int, outputs: int = 1) -> None:
        super().__init__()
        self.hidden = nn.Linear(width, width)
        self.activation = nn.GELU()
        self.output = nn.Linear(width, outputs)

    def forward(self, states: Tensor) -> Tensor:
        """Values [R, T] of states [R, T, D]; [R, T, K] where K > 1."""
        return self.output(self.activation(self.hidden(states))).squeeze(-1)


def _width(config: Any) -> int:
    return seq2seq.decoder_width(config) if config.is_encoder_decoder else int(config.hidden_size)


def _require_causal(config: Any) -> None:
    if config.model_type not in CAUSAL_FAMILIES or getattr(config, "use_bidirectional_attention", False):
        known = ", ".join(sorted(CAUSAL_FAMILIES))
        raise ModelError(
            f"a value model of type {config.model_type!r} is not known to look back only: it could value a token by "
            f"those that follow (known: {known})"
        )


class SeparateValueModel(nn.Module):
    """A language-model backbone of its own with a value head on the last decoder hidden state.

    Args:
        backbone: an encoder–decoder of a family of `families/seq2seq.py` or a causal model of one of
            `families/causal.py`, without its head.
        policy: only to check that the two fit (same kind of architecture, same vocabulary).
        heads: K, values of a token.

    Raises:
        ModelError: the backbone cannot read the policy's tokens, or is of no family that is known here.
    """

    def __init__(self, backbone: Any, policy: Policy, heads: int = 1) -> None:
        super().__init__()
        policy_config, config = policy.model.config, backbone.config
        if policy_config.is_encoder_decoder != config.is_encoder_decoder:
            raise ModelError("policy and value model must both be encoder-decoders or both be causal")
        if not config.is_encoder_decoder:
            _require_causal(config)
        vocabulary = seq2seq.decoder_vocabulary(config) if config.is_encoder_decoder else config.vocab_size
        if vocabulary < len(policy.tokenizer):
            raise ModelError(
                f"the value model has {vocabulary} embeddings, the policy's tokenizer {len(policy.tokenizer)} ids"
            )
        exact_attention(backbone)
        self.backbone = backbone
        self.head = ValueHead(_width(config), heads)
        self.start_ids: tuple[int, ...] | None = None
        if isinstance(policy, Seq2SeqPolicy):
            self.start_ids = policy.start_ids
            seq2seq.freeze_unread(backbone)
        self.pad_id = policy.pad_id

    def forward(self, memory: PromptMemory, prompt_index: Tensor, response_ids: Tensor) -> Tensor:
        """V(s_t) for each response token; encodes each prompt once.

        Args:
            memory: P prompts (their ids and mask are used, not the policy's states).
            prompt_index: int64 [R].
            response_ids: int64 [R, T].

        Returns:
            fp32 [R, T], or [R, T, K] of K heads, meaningful at real tokens.
        """
        if self.start_ids is None:
            prompts = memory.prompt_ids, memory.prompt_mask
            inputs = *prompts, prompt_index, response_ids, self.pad_id, memory.lengths
            states = computed(self.backbone, partial(causal_states, self.backbone, *inputs))
        else:
            mask = memory.prompt_mask
            encode = partial(encode_in_pieces, self.backbone, memory.prompts)
            encoded = computed(self.backbone, encode, memory.prompt_ids, mask)
            rest = mask, prompt_index, response_ids, self.start_ids
            states = computed(self.backbone, partial(seq2seq.decoder_states, self.backbone, encoded, *rest))
        return self.head(states).float()


class SharedTrunkValueModel(nn.Module):
    """A value head on the policy's own hidden states; the value loss then trains the policy's trunk too."""

    def __init__(self, policy: Policy, heads: int = 1) -> None:
        super().__init__()
        self.head = ValueHead(_width(policy.model.config), heads)

    def from_hidden(self, hidden: Tensor) -> Tensor:
        """V(s_t) fp32 [R, T], or [R, T, K] of K heads, from the policy's states [R, T, D]."""
        return self.head(hidden).float()


ValueModel = SeparateValueModel | SharedTrunkValueModel
