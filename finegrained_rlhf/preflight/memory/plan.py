"""What the memory of a PPO step depends on: sizes of models, batches and settings.

The formulas are in `preflight/memory/formulas.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from finegrained_rlhf.models.families.packed import PassCost, columns_of, packed_slots
from finegrained_rlhf.models.policy import encoded_once
from finegrained_rlhf.runtime.process_config import SHARDING


@dataclass(frozen=True)
class Blocks:
    """Matrices of a model's transformer blocks, which `processes.sharding` splits. Numbers, not bytes.

    Attributes:
        matrices: in all of them; position biases and adapters are left out.
        trained: of these, what the optimizer moves.
        linear: of these, what linear layers have (`policy.frozen_dtype` stores it).
        largest: in those of the largest block.
    """

    matrices: int = 0
    trained: int = 0
    linear: int = 0
    largest: int = 0


@dataclass(frozen=True)
class Tables:
    """Embeddings and head of a model, tied ones once, which `processes.sharding=full` splits. Numbers, not bytes.

    Attributes:
        numbers: in all of them.
        trained: of these, what the optimizer moves.
        linear: of these, what a head that is a linear layer has (`policy.frozen_dtype` stores it).
    """

    numbers: int = 0
    trained: int = 0
    linear: int = 0


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a language model.

    Attributes:
        parameters: all of them, tied ones once.
        trained: those that the optimizer moves.
        decoder_parameters: of the decoder's layers (of all layers where there is no encoder).
        encoder_layers: 0 for a causal model.
        decoder_layers: all layers of a causal model.
        width: D.
        keys: width of a layer's keys, heads times head width; values have the same.
        heads: of an attention.
        feed_forward: F.
        feed_forward_copies: tensors of width F that exist together in a forward pass: 2, 3 with a gate, 4 where the
            activation is computed in several steps (transformers' `gelu_new`).
        vocabulary: V.
        packed: whether responses to a prompt may be packed behind it in one row (causal models).
        cost: what a pass costs by how many are.
        gated: whether a feed-forward layer has two inner projections.
        blocks: what of it lies in matrices of transformer blocks.
        tables: what of it lies in embeddings and head.
        largest_outside: numbers in the largest trained tensor that is no matrix of a block.
        largest_beside: of those that are no table either.
    """

    parameters: int
    trained: int
    decoder_parameters: int
    encoder_layers: int
    decoder_layers: int
    width: int
    keys: int
    heads: int
    feed_forward: int
    feed_forward_copies: int
    vocabulary: int
    packed: bool = False
    cost: PassCost = PassCost()
    gated: bool = False
    blocks: Blocks = Blocks()
    tables: Tables = Tables()
    largest_outside: int = 0
    largest_beside: int = 0

    @property
    def causal(self) -> bool:
        """True where prompt and response are one sequence."""
        return self.encoder_layers == 0

    def slots(self, samples: int, prompt_tokens: int, response_tokens: int) -> int | None:
        """Responses that share a row of a causal model's pass; None: each has its own."""
        return packed_slots([samples], prompt_tokens, response_tokens, self.cost) if self.packed else None

    def columns(self, samples: int, prompt_tokens: int, response_tokens: int) -> int:
        """Tokens that a pass over one prompt with its responses computes."""
        counted = [samples], prompt_tokens, response_tokens
        return columns_of(*counted, self.slots(samples, *counted[1:])) if self.causal else encoded_once(*counted)


@dataclass(frozen=True)
class Activations:
    """Bytes that autograd keeps of a forward pass over one prompt with its N responses; copies of weights left out.

    Attributes:
        outside: embeddings, final norms, value head.
        encoder_layer: one encoder layer; 0 for a causal model.
        decoder_layer: one decoder layer.
        encoder_input: the states that enter one encoder layer.
        decoder_input: the states that enter one decoder layer.
    """

    outside: int
    encoder_layer: int
    decoder_layer: int
    encoder_input: int
    decoder_input: int


@dataclass(frozen=True)
class RewardModelShape:
    """A reward model and its batches.

    Attributes:
        name: of the component.
        parameters: all of them.
        layer_parameters: without embeddings.
        width: D.
        feed_forward: F.
        reach: keys that the mask of one query holds, at most the tokens of the input.
        rows: inputs in one forward pass.
        tokens: of the longest input.
        states: fp32 states of width D that a layer holds together: 2 in a Longformer, 4 in a decoder-only model.
        feed_forward_copies: values of width F that it holds together.
    """

    name: str
    parameters: int
    layer_parameters: int
    width: int
    feed_forward: int
    reach: int
    rows: int
    tokens: int
    states: int = 2
    feed_forward_copies: int = 2


@dataclass(frozen=True)
class Plan:
    """All that the memory of one process depends on.

    Attributes:
        policy: its shape.
        policy_activations: of the policy.
        value: None for a value head on the policy's trunk (counted with the policy's parameters), and without one.
        value_activations: of the value model.
        rewards: reward models.
        reference_copy: True where the reference has weights of its own (no LoRA).
        bf16: bf16 autocast, else fp32.
        cuda: whether the device is a GPU.
        fast: a stepper that keeps a prompt's keys once serves the policy; else its samples share nothing while decoded.
        processes: of the run.
        prompts: P of one step on this process.
        samples: N.
        prompt_tokens: L, the longest prompt.
        piece_tokens: its longest piece, where its pieces are encoded alone; L where it is encoded whole.
        response_tokens: T.
        prompts_per_batch: prompts decoded at once.
        validation_prompts: prompts answered at once in a validation; 0 for none.
        micro_batch_prompts: prompts in one forward and backward pass, at most.
        micro_batch_tokens: tokens in one, at most (a single prompt may have more); None for no limit.
        checkpointing: gradient checkpointing of the policy.
        scored: the distribution that the update scores: the softmax, or it tempered and truncated.
        exact_kl: whether the KL from the reference is taken over the vocabulary.
        exact_kl_loss: whether the update's passes take it too, for their loss.
        stored_in_bf16: numbers of frozen linear layers that `policy.frozen_dtype` stores in 2 bytes instead of 4.
        sharding: what the processes split (`processes.sharding`).
        groups: how many groups of processes each hold all that is in shards (`processes.shard_group`).
        validation_samples: responses to a prompt of a validation.
        mini_batches: optimizer steps in an epoch.
        ahead: rollouts that are kept beside the one that is trained on (`rollout.ahead`).
        draft: tokens that a row is fed beside its last one, at most (`rollout.draft`).
        servers: addresses of vLLM's servers, where responses are drawn; none: they are drawn here.
        engine_bytes: of the device, which vLLM in this process takes while it draws; 0 where it does not.
        engine_sleeps: whether it gives them back until it draws again.
        served: components of the reward that a server scores, and where.
    """

    policy: ModelShape
    policy_activations: Activations
    value: ModelShape | None
    value_activations: Activations | None
    rewards: tuple[RewardModelShape, ...]
    reference_copy: bool
    bf16: bool
    cuda: bool
    fast: bool
    processes: int
    prompts: int
    samples: int
    prompt_tokens: int
    piece_tokens: int
    response_tokens: int
    prompts_per_batch: int
    validation_prompts: int
    micro_batch_prompts: int
    micro_batch_tokens: int | None
    checkpointing: bool
    scored: Literal["plain", "top_k", "top_p"]
    exact_kl: bool = False
    exact_kl_loss: bool = False
    stored_in_bf16: int = 0
    validation_samples: int = 1
    ahead: int = 0
    draft: int = 0
    sharding: str = "none"
    groups: int = 1
    mini_batches: int = 1
    servers: tuple[str, ...] = ()
    engine_bytes: int = 0
    engine_sleeps: bool = False
    served: tuple[str, ...] = ()

    @property
    def elsewhere(self) -> bool:
        """Whether vLLM draws instead of this process' own decoder."""
        return bool(self.servers or self.engine_bytes)

    def splits(self, what: str) -> bool:
        """Whether the processes split "gradients" with moments, or all that "full" does; one alone splits nothing."""
        return self.processes > 1 and SHARDING.index(self.sharding) >= SHARDING.index(what)

    @property
    def value_bytes(self) -> int:
        """Bytes of a value in the compute dtype."""
        return 2 if self.bf16 else 4

    @property
    def recorded(self) -> bool:
        """Whether the fast engine records its steps and keeps what they work on: on a GPU, without drafts."""
        return self.cuda and self.fast and not self.draft

    @property
    def group(self) -> int:
        """Prompts of the largest micro-batch that is scored, all as long as the longest."""
        return self._together(self.prompts)

    @property
    def mini_batch_prompts(self) -> int:
        """Prompts of one optimizer step on this process, at most.

        One goes with each `mini_batches` neighbours of the whole step; those of several processes need not begin here.
        """
        parts = self.mini_batches
        if self.processes == 1:
            return -(-self.prompts // parts)
        return min(self.prompts, (self.prompts + 2 * parts - 2) // parts)

    @property
    def update_group(self) -> int:
        """Prompts of the largest micro-batch of the update."""
        return self._together(self.mini_batch_prompts)

    def _together(self, prompts: int) -> int:
        most = min(self.micro_batch_prompts, prompts)
        if self.micro_batch_tokens is None:
            return most
        each = self.policy.columns(self.samples, self.prompt_tokens, self.response_tokens)
        return max(1, min(most, self.micro_batch_tokens // each))

    @property
    def decoded(self) -> int:
        """Prompts of the largest rollout batch."""
        return min(self.prompts_per_batch, self.prompts)
