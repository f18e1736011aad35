"""What a process holds of weights, gradients and moments under `processes.sharding`: shapes in, bytes out.

M processes in G groups (`shard_group`), B of a model's parameters in matrices of its blocks, b bytes of a value in the
compute dtype. "full" splits every matrix of a block over the M/G processes of a group (PyTorch's `fully_shard`); a
process gathers a block, or a whole model, in the compute dtype when it needs it. "gradients" splits those that are
trained, and keeps what it has gathered until the update is made. Of what lies outside the blocks' matrices both give
every process gradients and moments of whole tensors, in contiguous runs.
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
        return shape.blocks.matrices
    return shape.blocks.trained if plan.splits("gradients") and not frozen else 0


def weight_bytes(plan: Plan, shape: ModelShape, frozen: bool = False) -> int:
    """Weights of a model on one process: 4 bytes each, 2 where frozen and stored in bf16; of split matrices G/M.

    Args:
        plan: of the run.
        shape: of policy, reference or value model.
        frozen: whether `stored_in_bf16` is of this model: the reference, or the policy with adapters.
    """
    stored = plan.stored_in_bf16 if frozen else 0
    total = 4 * shape.parameters - 2 * stored
    blocks = 4 * split_numbers(plan, shape, frozen)
    blocks -= 2 * shape.blocks.linear if blocks and stored else 0
    return total - blocks + -(-blocks * plan.groups // plan.processes)


def owned_outside(plan: Plan) -> tuple[int, int]:
    """Trained parameters that belong to processes as whole tensors: all of them, and the largest share of a process.

    Contiguous runs of whole tensors: a share is at most 1/M and the largest tensor.
    """
    models = trained_models(plan)
    if not plan.splits("gradients"):
        return (numbers := sum(model.trained for model in models)), numbers
    numbers = sum(model.trained - model.blocks.trained for model in models)
    return numbers, min(numbers, -(-numbers // plan.processes) + max(model.largest_outside for model in models))


def share_of(plan: Plan, shape: ModelShape) -> int:
    """Parameters of a trained model whose moments one process holds; of what is outside blocks in proportion."""
    numbers, own = owned_outside(plan)
    blocks = shape.blocks.trained if plan.splits("gradients") else 0
    outside = (shape.trained - blocks) * own
    return -(-blocks * plan.groups // plan.processes) + (-(-outside // numbers) if numbers else 0)


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
    largest = max(model.largest_outside for model in trained_models(plan))
    return 4 * min(numbers - own, (BUCKETS_IN_FLIGHT + 1) * max(BUCKET_ELEMENTS, largest))


def gathered_bytes(plan: Plan, shape: ModelShape) -> int:
    """All split matrices whole in the compute dtype, B·b, as rollout, scoring and validation need them."""
    return plan.value_bytes * split_numbers(plan, shape)


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


def copied_parameters(plan: Plan, shape: ModelShape, stored: bool) -> int:
    """Parameters of which autocast can make copies: not those that are stored in bf16 or gathered in it."""
    gathered = split_numbers(plan, shape)
    frozen = plan.stored_in_bf16 - (shape.blocks.linear if plan.stored_in_bf16 and gathered else 0)
    return shape.parameters - gathered - (frozen if stored else 0)


def held_bytes(plan: Plan) -> int:
    """Weights of policy, reference and value model with gradients and moments: what sharding can split."""
    policy = weight_bytes(plan, plan.policy, frozen=not plan.reference_copy)
    reference = weight_bytes(plan, plan.policy, frozen=True) if plan.reference_copy else 0
    value = weight_bytes(plan, plan.value) if plan.value else 0
    gradients = sum(model_gradient_bytes(plan, model) for model in trained_models(plan))
    return policy + reference + value + gradients + moment_bytes(plan)
