"""How much memory a PPO step needs on one process: shapes in, bytes out.

Builds no model and reads no file (`preflight/memory/preflight.py` does). What autograd keeps of a layer is not derived
here but measured (`preflight/memory/probe.py`): it depends on kernels. What several processes split is counted in
`preflight/memory/sharding.py`.

Symbols: P prompts, N responses to each, R = P·N rows, L prompt tokens, T response tokens, D width, F feed-forward
width, V vocabulary, b bytes of a value in the compute dtype (4 in fp32, 2 in bf16). Weights, gradients, moments and the
states between layers are fp32.
"""

from __future__ import annotations

from inspect import signature

from finegrained_rlhf.models.families.pieces import PIECE_TOKENS
from finegrained_rlhf.models.logprobs import token_logprobs
from finegrained_rlhf.preflight.memory import sharding
from finegrained_rlhf.preflight.memory.plan import Activations, ModelShape, Plan
from finegrained_rlhf.rollout.fast import KEPT_BYTES, MOST_RECORDED, PROMPT_BUCKET
from finegrained_rlhf.runtime.sharding.ownership import BUCKET_ELEMENTS

GIB = 2**30

CHUNK_TOKENS: int = signature(token_logprobs).parameters["chunk_tokens"].default
"""Response tokens whose logits exist at once (`token_logprobs`)."""

LOGIT_COPIES = {"plain": (2.0, 5.0), "top_k": (3.5, 5.3), "top_p": (10.3, 5.3)}
"""fp32 tensors of the size of a chunk's logits that exist together in `token_logprobs`, without gradients and with a
backward pass (or the entropy, its gradient included), by the distribution that is scored. Plain: logits and their
exponentials; in the backward pass also the gradients of both terms of logit − logsumexp and their sum. Truncation adds
masks; top-p also sorting, with sums in fp64 (on a CPU less, where the vocabulary is large), where it is not said what
was left: in a validation, but not in the update."""

EXACT_KL_COPIES = 4.0
"""More of them where the KL is taken over the vocabulary: the reference's logits, log-probabilities, a difference."""

SAMPLING_BYTES = 28
"""Bytes for each logit of a decoding step without top-k: fp32 logits and their tempered copy, its softmax and
cumulative sum in fp64, and what lies between."""


def gradient_bytes(plan: Plan) -> int:
    """4 bytes a trained parameter (of a share), from the first backward pass of an epoch to its optimizer step."""
    return sum(sharding.model_gradient_bytes(plan, model) for model in sharding.trained_models(plan))


def lasting_bytes(plan: Plan) -> int:
    """What stays from step to step: weights, two fp32 moments a trained parameter, kept caches, a rollout drawn ahead.

    Weights are fp32, but for frozen linear layers where `policy.frozen_dtype` is bfloat16. So does vLLM's share of the
    device, where it draws in this process and does not sleep.
    """
    gradients = gradient_bytes(plan)
    rewards = 4 * sum(model.parameters for model in plan.rewards)
    engine = 0 if plan.engine_sleeps else plan.engine_bytes
    return sharding.held_bytes(plan) - gradients + rewards + engine + kept_cache_bytes(plan) + kept_rollout_bytes(plan)


def kept_rollout_bytes(plan: Plan) -> int:
    """Rollouts drawn ahead: R·T·(8 + 8 + 4) of ids, mask and log-probabilities, P·L·(8 + 8) of the prompts."""
    responses = 20 * plan.prompts * plan.samples * plan.response_tokens
    return plan.ahead * (responses + 16 * plan.prompts * plan.prompt_tokens)


def pass_bytes(shape: ModelShape, tokens: int, b: int) -> int:
    """The largest moment of a layer without gradients: tokens · (2·D·4 + copies·F·b), in the feed-forward part."""
    return tokens * (8 * shape.width + shape.feed_forward_copies * shape.feed_forward * b)


def attention_bytes(plan: Plan, shape: ModelShape, rows: int, length: int) -> int:
    """T5's self-attention with its position bias, fused on a GPU and written out on the CPU.

    Fused: a copy of the bias in bf16. Written out: scores and probabilities, each rows·H·length²·b.
    """
    if shape.causal or (plan.cuda and not plan.bf16):
        return 0
    return rows * shape.heads * length**2 * plan.value_bytes * (1 if plan.cuda else 2)


def encoding_bytes(plan: Plan, shape: ModelShape, prompts: int) -> int:
    """An encoder pass, no gradients: output P·L·D·4, bias R·H·l²·4, one layer over R·l tokens of prompts or pieces."""
    length, rows = plan.piece_tokens, prompts
    if length < plan.prompt_tokens:
        rows = min(-(-prompts * plan.prompt_tokens // length), max(1, PIECE_TOKENS // length))
    lasting = 4 * (prompts * plan.prompt_tokens * shape.width + rows * shape.heads * length**2)
    layer = pass_bytes(shape, rows * length, plan.value_bytes)
    return lasting + max(layer, 8 * rows * length * shape.width + attention_bytes(plan, shape, rows, length))


def head_bytes(plan: Plan, prompts: int, backward: bool = False) -> int:
    """Logits of one chunk of n response tokens with what their log-probabilities take, and the states they come from.

    n·V·4·copies + 2·R·T·D·4: the last states, and those of real tokens alone.
    """
    tokens = prompts * plan.samples * plan.response_tokens
    exact = plan.exact_kl_loss if backward else plan.exact_kl
    copies = LOGIT_COPIES[plan.scored][backward] + (EXACT_KL_COPIES if exact else 0.0)
    logits = 4 * min(CHUNK_TOKENS, tokens) * plan.policy.vocabulary * copies
    return round(logits) + 8 * tokens * plan.policy.width


def reference_state_bytes(plan: Plan) -> int:
    """The reference's states of a whole rollout, R·T·D·4, which the KL over the vocabulary keeps through the update."""
    tokens = plan.prompts * plan.samples * plan.response_tokens
    return 4 * tokens * plan.policy.width if plan.exact_kl else 0


def cast_bytes(plan: Plan, shape: ModelShape, head: bool) -> int:
    """bf16 copies of the weights of all layers, and of the head, in a forward pass under autocast; 0 in fp32.

    Frozen layers of the policy that are stored in bf16 are not copied, nor is what is gathered in bf16.
    """
    embeddings = 0 if head else shape.vocabulary * shape.width
    stored = not plan.reference_copy and shape is plan.policy
    return 2 * (sharding.copied_parameters(plan, shape, stored) - embeddings) if plan.bf16 else 0


def cached_bytes(plan: Plan, shape: ModelShape, head: bool) -> int:
    """Of `cast_bytes`, what lasts through a pass without gradients: autocast keeps its copies of trained weights only,
    the head's own copy (`HeadOfPass`) stays in any case.
    """
    if shape.trained == shape.parameters:
        return cast_bytes(plan, shape, head)
    return head_copy_bytes(plan, shape) if head else 0


def head_copy_bytes(plan: Plan, shape: ModelShape) -> int:
    """The bf16 copy of a head, V·D·2; at most, for a frozen head may be stored in bf16. 0 in fp32."""
    return 2 * shape.vocabulary * shape.width if plan.bf16 else 0


def prompt_cache_bytes(plan: Plan, prompts: int, samples: int) -> int:
    """Keys and values of the prompts: layers · 2 · P·L · keys · b, R·L where the samples share nothing.

    On a GPU the fast engine rounds L up, so that a recorded step serves more batches.
    """
    length = plan.prompt_tokens
    if plan.cuda and plan.fast:
        length += -length % PROMPT_BUCKET
    copies = prompts if plan.fast else prompts * samples
    return plan.policy.decoder_layers * 2 * copies * length * plan.policy.keys * plan.value_bytes


def cache_bytes(plan: Plan, prompts: int, samples: int) -> int:
    """Keys and values of a decoding: those of the prompts and layers · 2 · R·T · keys · b of the responses."""
    own = plan.policy.decoder_layers * 2 * prompts * samples * plan.response_tokens * plan.policy.keys
    return prompt_cache_bytes(plan, prompts, samples) + own * plan.value_bytes


def snapshot_bytes(plan: Plan) -> int:
    """The fast engine's copies of decoder weights: in bf16 all and the head; in fp32 what T5's stepper joins, which is
    query, key and value, and the two inner projections of a gated feed-forward part (of split weights, all layers). Of
    split tables the embeddings as they are, and in fp32 the head.
    """
    shape = plan.policy
    if not plan.fast:
        return 0
    table = shape.vocabulary * shape.width
    embeddings = 4 * table if plan.splits("full") and shape.tables.numbers else 0
    if plan.bf16:
        return 2 * (shape.decoder_parameters + table) + embeddings
    if sharding.split_numbers(plan, shape):
        return 4 * shape.decoder_parameters + 2 * embeddings
    joined = 3 * shape.keys + (2 * shape.feed_forward if shape.gated else 0)
    return 0 if shape.causal else 4 * shape.decoder_layers * shape.width * joined


def kept_cache_bytes(plan: Plan) -> int:
    """What the fast engine keeps on a GPU with its recorded steps: the caches of two batch shapes, or of more while all
    but the last one take at most `KEPT_BYTES`, and one copy of the weights.
    """
    if not plan.recorded:
        return 0
    training = cache_bytes(plan, plan.decoded, plan.samples)
    validation = training
    if plan.validation_prompts:
        validation = cache_bytes(plan, plan.validation_prompts, plan.validation_samples)
    largest = max(training, validation)
    more = min(KEPT_BYTES + largest, MOST_RECORDED * largest)
    return max(training + validation, more) + snapshot_bytes(plan)


def rollout_bytes(plan: Plan, prompts: int, samples: int) -> int:
    """Reading the prompts or decoding, whichever is larger, above what lasts; `generate` scores what it drew as well.

    A causal model fills its caches while it reads. See `cache_bytes`, `snapshot_bytes` and `SAMPLING_BYTES`.
    On a GPU the prompts' part of the caches is made anew and copied into those that last; a causal model writes into
    those that last, and so does a reading of the weights. Drawn by vLLM, weights that are split are gathered alone, and
    one that has slept takes its share of the device again.
    """
    shape, rows = plan.policy, prompts * samples
    if plan.elsewhere:
        return sharding.gathered_bytes(plan, shape) + (plan.engine_bytes if plan.engine_sleeps else 0)
    width = prompts if plan.fast else rows
    if shape.causal:
        read = pass_bytes(shape, width * plan.prompt_tokens, plan.value_bytes)
        read += 0 if plan.recorded else prompt_cache_bytes(plan, prompts, samples)
        states = 0
    else:
        read = encoding_bytes(plan, shape, prompts)
        states = 4 * (prompts if plan.fast else prompts + rows) * plan.prompt_tokens * shape.width
    made = prompt_cache_bytes if plan.recorded else cache_bytes
    step = made(plan, prompts, samples)
    if plan.recorded and shape.causal:
        step = 0
    if not plan.recorded:
        step += snapshot_bytes(plan)
    step += rows * (1 + plan.draft) * shape.vocabulary * SAMPLING_BYTES
    casts = cached_bytes(plan, shape, head=not plan.fast)
    if plan.fast and casts and not sharding.split_numbers(plan, shape):
        casts -= 2 * shape.decoder_parameters  # the snapshot stands for them
    scored = 0
    if not plan.fast:
        own = pass_bytes(shape, rows * plan.response_tokens, plan.value_bytes)
        layers = causal_bytes(plan, shape, prompts, samples) if shape.causal else own
        scored = max(layers, head_bytes(plan, prompts))
    return casts + sharding.gathered_bytes(plan, shape) + max(read, states + step, states + scored)


def scoring_bytes(plan: Plan) -> int:
    """Passes without gradients over the largest micro-batch: policy, its logits, then the value model.

    The copies that autocast keeps of the policy's weights lie beside the value model's pass; of split weights one model
    is whole at a time. The reference's pass is as large as the policy's.
    """
    casts = cached_bytes(plan, plan.policy, head=True)
    gathered = sharding.gathered_bytes(plan, plan.policy)
    needed = casts + gathered + max(reading_bytes(plan, plan.policy), head_bytes(plan, plan.group))
    if plan.value is not None:
        casts += cached_bytes(plan, plan.value, head=False) + sharding.gathered_bytes(plan, plan.value)
        needed = max(needed, casts + reading_bytes(plan, plan.value))
    return needed + reference_state_bytes(plan)


def reading_bytes(plan: Plan, shape: ModelShape) -> int:
    """A pass of one model without gradients over the largest micro-batch: its encoder or its decoder.

    The decoder has the encoder's output and one layer's shared keys and values of the prompts beside it.
    """
    prompts, b = plan.group, plan.value_bytes
    rows = prompts * plan.samples
    if shape.causal:
        return causal_bytes(plan, shape, prompts, plan.samples)
    shared = prompts * plan.prompt_tokens * (4 * shape.width + 2 * shape.keys * b)
    tokens = rows * plan.response_tokens
    attention = 8 * tokens * shape.width + attention_bytes(plan, shape, rows, plan.response_tokens)
    return max(encoding_bytes(plan, shape, prompts), shared + max(pass_bytes(shape, tokens, b), attention))


def causal_bytes(plan: Plan, shape: ModelShape, prompts: int, samples: int) -> int:
    """A pass of a causal model without gradients over so many prompts with so many responses each.

    R·(L + T) tokens; with n responses in a row, rows of S = L + n·T, and the mask, S²·b a row and one byte for what it
    is made from.
    """
    length, own, b = plan.prompt_tokens, plan.response_tokens, plan.value_bytes
    slots = shape.slots(samples, length, own)
    columns = prompts * shape.columns(samples, length, own)
    return pass_bytes(shape, columns, b) + (0 if slots is None else columns * (length + slots * own) * (b + 1))


def reward_bytes(plan: Plan) -> int:
    """A batch of the largest reward model without gradients: B·L·(s·D + c·F) and masks of B·L·reach bytes, twice.

    S states of width D and c of width F exist together: 2 and 2 in a Longformer, 4 and 3 in a Llama.
    In bf16 the copies of all reward models' weights last through the phase.
    """
    b = plan.value_bytes
    casts = sum(2 * model.layer_parameters for model in plan.rewards) if plan.bf16 else 0
    batches = [
        model.rows
        * model.tokens
        * (
            4 * model.states * model.width
            + model.feed_forward_copies * model.feed_forward * b
            + 2 * min(model.reach, model.tokens)
        )
        for model in plan.rewards
    ]
    return casts + max(batches, default=0)


def kept_bytes(plan: Plan, shape: ModelShape, one: Activations, checkpointing: bool) -> int:
    """Activations of the largest micro-batch: P · (outside + Σ layers); with checkpointing only each layer's input."""
    encoder, decoder = one.encoder_layer, one.decoder_layer
    if checkpointing:
        encoder, decoder = one.encoder_input, one.decoder_input
    return plan.update_group * (one.outside + shape.encoder_layers * encoder + shape.decoder_layers * decoder)


def update_bytes(plan: Plan) -> int:
    """The update of the largest micro-batch; the largest of three moments.

    - After the forward pass: activations of policy and value model with their bf16 copies of weights, and the logits
      where a single chunk holds them all (they are then not computed again).
    - After the value model's backward pass, which comes first: activations of the policy and the logits of a chunk, or
      one layer computed again where checkpointing is on.
    - After the last backward pass: all gradients, and a buffer where several processes sum them.

    The gradients of earlier micro-batches lie beside the first two; where there are none, those of the value model
    beside the second. Where gradients are split, what is on its way lies beside the last two, and buffers of blocks
    beside all; embeddings and heads in shards (`sharding.table_bytes`) too.
    """
    policy = kept_bytes(plan, plan.policy, plan.policy_activations, plan.checkpointing)
    if not (plan.checkpointing and plan.policy.trained < plan.policy.parameters):
        policy += cast_bytes(plan, plan.policy, head=True)
    else:
        policy += head_copy_bytes(plan, plan.policy)
    value = value_gradients = 0
    if plan.value is not None and plan.value_activations is not None:
        value = kept_bytes(plan, plan.value, plan.value_activations, False) + cast_bytes(plan, plan.value, head=False)
        value_gradients = sharding.model_gradient_bytes(plan, plan.value)
    gradients, moving = gradient_bytes(plan), sharding.moving_bytes(plan)
    before = gradients if plan.update_group < plan.mini_batch_prompts else 0
    summing = moving
    if plan.processes > 1 and not plan.splits("gradients"):
        summing = min(4 * BUCKET_ELEMENTS, gradients)
    again = head_bytes(plan, plan.update_group, backward=True)
    if plan.checkpointing:
        one = plan.policy_activations
        again = max(again, plan.update_group * max(one.encoder_layer, one.decoder_layer))
    tokens = plan.update_group * plan.samples * plan.response_tokens
    logits = 4 * tokens * plan.policy.vocabulary if tokens <= CHUNK_TOKENS else 0
    whole, early, late = sharding.table_bytes(plan)
    backward = (before or value_gradients) + moving + policy + again + early
    return (
        reference_state_bytes(plan)
        + sharding.block_bytes(plan)
        + whole
        + max(before + policy + logits + value, backward, gradients + summing + late)
    )
