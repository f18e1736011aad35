"""Statistics over masked token tensors, from sufficient statistics that can be summed over processes.

Knows nothing of processes: the caller passes `reduce`, which sums a small tensor over all ranks. Also the check that
every formula runs on entry.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def check_token_tensors(mask: Tensor, **tensors: Tensor) -> None:
    """Require rank 2, one shape, floating-point values and a 0/1 mask.

    Args:
        mask: [R, T], 1 = real token.
        **tensors: named float tensors [R, T].

    Raises:
        ValueError: naming the tensor that does not fit.
    """
    if mask.dim() != 2:
        raise ValueError(f"mask must be [R, T], got shape {tuple(mask.shape)}")
    if mask.is_floating_point():
        raise ValueError("mask must be an integer or boolean tensor with 1 = real token")
    for name, tensor in tensors.items():
        if tensor.shape != mask.shape:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}, the mask {tuple(mask.shape)}")
        if not tensor.is_floating_point():
            raise ValueError(f"{name} must be floating point, got {tensor.dtype}")


Reduce = Callable[["Tensor"], "Tensor"]


def _identity(tensor: Tensor) -> Tensor:
    return tensor


def _check(values: Tensor, mask: Tensor) -> None:
    if values.shape != mask.shape:
        raise ValueError(f"values {tuple(values.shape)} and mask {tuple(mask.shape)} must have one shape")


def masked_mean(values: Tensor, mask: Tensor, reduce: Reduce = _identity) -> Tensor:
    """Mean of `values` where `mask` is 1; 0 when nothing is.

    Args:
        values: float, any shape.
        mask: same shape, 1 = counted.
        reduce: sums a 1-d tensor over all processes.

    Returns:
        fp64 scalar.
    """
    import torch

    _check(values, mask)
    real = values.double()[mask.bool()]
    total, count = reduce(torch.stack([real.sum(), torch.as_tensor(real.numel(), device=real.device).double()]))
    return total / count.clamp(min=1.0)


def masked_var(values: Tensor, mask: Tensor, mean: Tensor, reduce: Reduce = _identity) -> Tensor:
    """Population variance Σ (x − mean)² / n of `values` where `mask` is 1, about a `mean` computed before.

    The squares are taken after the mean is subtracted, in fp64: E[x²] − E[x]² cancels in low precision.

    Args:
        values: float [..., T].
        mask: same shape, 1 = real token.
        mean: fp64 scalar, over all processes.
        reduce: sums a 1-d tensor over all processes.

    Returns:
        fp64 scalar; 0 when nothing is counted.
    """
    import torch

    _check(values, mask)
    squares = (values.double()[mask.bool()] - mean) ** 2
    count = torch.as_tensor(squares.numel(), device=squares.device).double()
    total, count = reduce(torch.stack([squares.sum(), count]))
    return total / count.clamp(min=1.0)


@dataclass(frozen=True)
class Whitening:
    """What `masked_whiten` does to each number: x → (x − mean) · factor, plus mean where it is kept.

    Attributes:
        mean: fp64 scalar.
        factor: fp64 scalar, 1 / √(σ² + ε).
    """

    mean: Tensor
    factor: Tensor

    def __call__(self, values: Tensor, mask: Tensor, *, shift_mean: bool = True) -> Tensor:
        """Whiten `values` of any shape; 0 where `mask` (same shape) is 0."""
        import torch

        whitened = (values.double() - self.mean) * self.factor
        if not shift_mean:
            whitened = whitened + self.mean
        return torch.where(mask.bool(), whitened, 0.0).to(values.dtype)


def whitening(
    values: Tensor,
    mask: Tensor,
    *,
    epsilon: float = 1e-8,
    by_root_std: bool = False,
    reduce: Reduce = _identity,
) -> Whitening:
    """Mean and factor by which `masked_whiten` whitens.

    Args:
        values: float [..., T].
        mask: same shape, 1 = counted.
        epsilon: added to the variance.
        by_root_std: the factor is 1 / √(σ + ε) instead.
        reduce: sums a 1-d tensor over all processes.
    """
    import torch

    mean = masked_mean(values, mask, reduce)
    variance = masked_var(values, mask, mean, reduce)
    spread = variance.sqrt() if by_root_std else variance
    return Whitening(mean, torch.rsqrt(spread + epsilon))


def masked_whiten(
    values: Tensor,
    mask: Tensor,
    *,
    shift_mean: bool = True,
    epsilon: float = 1e-8,
    by_root_std: bool = False,
    reduce: Reduce = _identity,
) -> Tensor:
    """Scale to unit variance over all real tokens of all processes: (x − μ) / √(σ² + ε), plus μ back if not shifted.

    Source: Ziegler et al. (2019); the original fine-grained code divides by the square root of the standard deviation
    (DEVIATIONS.md). Padding is set to 0 again afterwards, so it cannot enter what is computed from the result.

    Args:
        values: float [..., T].
        mask: same shape, 1 = real token.
        shift_mean: True returns mean 0; False keeps the mean.
        epsilon: added to the variance.
        by_root_std: divide by √(σ + ε) instead, as the original code does.
        reduce: sums a 1-d tensor over all processes.

    Returns:
        Same shape and dtype as `values`, 0 at padding.
    """
    found = whitening(values, mask, epsilon=epsilon, by_root_std=by_root_std, reduce=reduce)
    return found(values, mask, shift_mean=shift_mean)


@dataclass
class RunningMoments:
    """Mean and variance of a stream of numbers, merged batch by batch (Chan et al., 1979).

    Attributes:
        count: numbers seen.
        mean: their mean.
        m2: their summed squared deviation from the mean.
    """

    count: float = 0.0
    mean: float = 0.0
    m2: float = 0.0

    def update(self, values: Tensor, reduce: Reduce = _identity) -> None:
        """Merge a batch, float [n], of this rank; every rank gets the same moments when `reduce` sums over ranks."""
        import torch

        ones = torch.ones_like(values)
        count = float(reduce(ones.double().sum()[None])[0])
        if count == 0:
            return
        mean = masked_mean(values, ones, reduce)
        variance = float(masked_var(values, ones, mean, reduce))
        delta, total = float(mean) - self.mean, self.count + count
        self.m2 += variance * count + delta**2 * self.count * count / total
        self.mean += delta * count / total
        self.count = total

    @property
    def std(self) -> float:
        """Population standard deviation; 1.0 until two different numbers were seen."""
        deviation = (self.m2 / self.count) ** 0.5 if self.count > 1 else 0.0
        return deviation if deviation > 0 else 1.0
