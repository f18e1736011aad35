"""What a process holds of weights, gradients and moments under `processes.sharding`: shapes in, bytes out.

M processes in G groups (`shard_group`), B of a model's parameters in matrices of its blocks, b bytes of a value in the
compute dtype. "full" splits every matrix of a block, and embeddings and head, over the M/G processes of a group
(PyTorch's `fully_shard`); a process gathers a block, or a whole model, when it needs it: blocks in the compute dtype,
tables as they are. "gradients" splits those of the blocks that are trained, and keeps what it has gathered until the
update is made. Of what is not split both give every process gradients and moments of whole tensors, in contiguous runs.
"""

from __future__ import annotations

from finegrained_rlhf.preflight.memory.plan import ModelShape, Plan
from finegrained_rlhf.runtime.sharding.ownership import BUCKET_ELEMENTS

BUCKETS_IN_FLIGHT = 3
"""Flat buffers of gradients that are summed while the backward pass goes on."""

BLOCKS_AT_ONCE = 3
"""Blocks whose matrices lie whole in an update: the present one, the next, and one that is not freed yet."""


def trained_models(plan: Plan) -> list[ModelShape]:
    """Policy, and the value model where it has weights of its own."""
    return [plan.policy, *([plan.value] if plan.value else [])]


def split_numbers(plan: Plan, shape: ModelShape, frozen: bool = False) -> int:
    """Parameters of a model of which each process holds its rows; `frozen` as in `weight_bytes`."""
    if plan.splits("full"):
        return shape.blocks.matrices + shape.tables.numbers
    return shape.blocks.trained if plan.splits("gradients") and not frozen else 0


def _split_and_trained(plan: Plan, shape: ModelShape) -> int:
    if plan.splits("full"):
        return shape.blocks.trained + shape.tables.trained
    return shape.blocks.trained if plan.splits("gradients") else 0


def _largest(plan: Plan) -> int:
    """Numbers in the largest trained tensor that belongs to one process."""
    return max(model.largest_beside if plan.splits("full") else model.largest_outside for model in trained_models(plan))


def weight_bytes(plan: Plan, shape: ModelShape, frozen: bool = False) -> int:
    """Weights of a model on one process: 4 bytes each, 2 where frozen and stored in bf16; of split matrices G/M.

    Args:
        plan: of the run.
        shape: of policy, reference or value model.
        frozen: whether `stored_in_bf16` is of this model: the reference, or the policy with adapters.
    """
    stored = plan.stored_in_bf16 if frozen else 0
    total = 4 * shape.parameters - 2 * stored
    split = 4 * split_numbers(plan, shape, frozen)
    split -= 2 * (shape.blocks.linear + shape.tables.linear) if split and stored else 0
    return total - split + -(-split * plan.groups // plan.processes)


def owned_outside(plan: Plan) -> tuple[int, int]:
    """Trained parameters that belong to processes as whole tensors: all of them, and the largest share of a process.

    Contiguous runs of whole tensors: a share is at most 1/M and the largest tensor.
    """
    models = trained_models(plan)
    if not plan.splits("gradients"):
        return (numbers := sum(model.trained for model in models)), numbers
    numbers = sum(model.trained - _split_and_trained(plan, model) for model in models)
    return numbers, min(numbers, -(-numbers // plan.processes) + _largest(plan))


def share_of(plan: Plan, shape: ModelShape) -> int:
    """Parameters of a trained model whose moments one process holds; of what is not split in proportion."""
    numbers, own = owned_outside(plan)
    split = _split_and_trained(plan, shape)
    outside = (shape.trained - split) * own
    return -(-split * plan.groups // plan.processes) + (-(-outside // numbers) if numbers else 0)


def moment_bytes(plan: Plan) -> int:
    """Two fp32 moments of each parameter of this process's share."""
    return 8 * sum(share_of(plan, model) for model in trained_models(plan))


def model_gradient_bytes(plan: Plan, shape: ModelShape) -> int:
    """Gradients of a trained model that stay on a process between two backward passes: 4 bytes each, of its share."""
    return 4 * (share_of(plan, shape) if plan.splits("gradients") else shape.trained)


def moving_bytes(plan: Plan) -> int:
    """What a backward pass holds above the gradients that stay: buckets in flight, and the gradients of the next.

    Never more than all gradients. 0 where gradients are not split.
    """
    if not plan.splits("gradients"):
        return 0
    numbers, own = owned_outside(plan)
    return 4 * min(numbers - own, (BUCKETS_IN_FLIGHT + 1) * max(BUCKET_ELEMENTS, _largest(plan)))


def gathered_bytes(plan: Plan, shape: ModelShape) -> int:
    """All that is split whole, blocks in the compute dtype, B·b, as rollout, scoring and validation need it."""
    tables = shape.tables.numbers if plan.splits("full") else 0
    return plan.value_bytes * (split_numbers(plan, shape) - tables) + 4 * tables


def block_bytes(plan: Plan) -> int:
    """What an update holds of blocks beside a process's share: those that lie whole, and the gradients of one.

    Three blocks, or all split matrices of all models under "gradients", and the gradients of a block in the compute
    dtype; and the fp32 buffer in which these are summed.
    """
    if not plan.splits("gradients"):
        return 0
    b, models = plan.value_bytes, trained_models(plan)
    if not plan.splits("full"):
        summed = max(model.blocks.largest * (b + 4 if model.blocks.trained else 0) for model in models)
        return summed + sum(gathered_bytes(plan, model) for model in models)
    return max(model.blocks.largest * (BLOCKS_AT_ONCE * b + (b + 4 if model.blocks.trained else 0)) for model in models)


def table_bytes(plan: Plan) -> tuple[int, int, int]:
    """What an update holds of embeddings and heads in shards beside a process's share; 0 where they are not.

    Returns:
        The tables of all models, whole while their logits are read chunk by chunk, also in the backward pass (and the
        reference's, where the loss takes the KL over the vocabulary); of their gradients those that come before the
        activations are gone, the head's and those of the value model, whose backward pass is the first; at the end all
        of them, and the buffer that sums one model's.
    """
    if not plan.splits("full"):
        return 0, 0, 0
    models = trained_models(plan)
    whole = sum(model.tables.numbers for model in models)
    whole += plan.policy.tables.numbers if plan.exact_kl_loss and plan.reference_copy else 0
    early = min(plan.policy.tables.trained, plan.policy.vocabulary * plan.policy.width)
    early += plan.value.tables.trained if plan.value else 0
    late = sum(model.tables.trained for model in models) + max(model.tables.trained for model in models)
    return 4 * whole, 4 * early, 4 * late


def copied_parameters(plan: Plan, shape: ModelShape, stored: bool) -> int:
    """Parameters of which autocast can make copies: not those that are stored in bf16 or gathered in it."""
    gathered = shape.blocks.matrices if plan.splits("full") else split_numbers(plan, shape)
    frozen = plan.stored_in_bf16 - (shape.blocks.linear if plan.stored_in_bf16 and gathered else 0)
    return shape.parameters - gathered - (frozen if stored else 0)


def held_bytes(plan: Plan) -> int:
    """Weights of policy, reference and value model with gradients and moments: what sharding can split."""
    policy = weight_bytes(plan, plan.policy, frozen=not plan.reference_copy)
    reference = weight_bytes(plan, plan.policy, frozen=True) if plan.reference_copy else 0
    value = weight_bytes(plan, plan.value) if plan.value else 0
    gradients = sum(model_gradient_bytes(plan, model) for model in trained_models(plan))
    return policy + reference + value + gradients + moment_bytes(plan)
