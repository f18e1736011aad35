"""Posterior regularization: predictions may not move when the word embeddings do (thesis, section 3.2.3).

The noise of a passage follows from the seed, the step and the passage alone, not from the batch that it is in; dropout
draws the same masks for clean and noisy inputs, so that noise is all they differ by.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from finegrained_rlhf.dialki.inputs.batches import DialkiBatch
from finegrained_rlhf.dialki.model.config import NoiseConfig
from finegrained_rlhf.dialki.model.heads import NextScores
from finegrained_rlhf.dialki.model.losses import divergence
from finegrained_rlhf.dialki.model.model import DialkiModel

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed number
_MIX = (-4658895280553007687, -7723592293110705685)  # 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def hashed_noise(keys: Tensor, length: int, width: int) -> Tensor:
    """Uniform numbers in [−1, 1), hashes of (key, token, dimension) and of nothing else (SplitMix64).

    Args:
        keys: int64 [G].
        length: tokens.
        width: dimensions a token.

    Returns:
        fp32 [G, length, width], on the device of `keys`.
    """
    counter = torch.arange(1, length * width + 1, device=keys.device)
    x = keys[:, None] + counter * _GOLDEN
    for shift, factor in zip((30, 27), _MIX, strict=True):
        x = (x ^ _shifted(x, shift)) * factor
    bits = _shifted(x ^ _shifted(x, 31), 40)  # 24 bits: exact in fp32
    return (bits.float() * 2.0**-23 - 1.0).view(len(keys), length, width)


def _shifted(x: Tensor, by: int) -> Tensor:
    """A shift to the right that fills with zeros."""
    return (x >> by) & ((1 << (64 - by)) - 1)


def project(noise: Tensor, radius: float) -> Tensor:
    """The nearest noise [G, L, E] whose L2 norm over [L, E] is at most `radius`, row by row."""
    norm = noise.flatten(1).norm(dim=1)[:, None, None]
    return noise * (radius / norm.clamp(min=radius))


def _scaled(noise: Tensor, norm: float) -> Tensor:
    """Rows of noise [G, L, E] with the given norm; rows of zeros stay."""
    size = noise.flatten(1).norm(dim=1)[:, None, None]
    return torch.where(size > 0, noise * (norm / size.clamp(min=torch.finfo(torch.float32).tiny)), noise)


def start_noise(batch: DialkiBatch, width: int, config: NoiseConfig, seed: int) -> list[Tensor]:
    """The random start of each group's inputs, [G, L, width], 0 at padding.

    Args:
        batch: P inputs.
        width: of the word embeddings.
        config: its norm.
        seed: a 63-bit hash of run and step.
    """
    noise = []
    for group in batch.groups:
        drawn = hashed_noise(batch.keys[group.rows] ^ seed, group.ids.shape[1], width)
        noise.append(
            _scaled(drawn if group.mask is None else drawn * group.mask[:, :, None], config.start * config.radius)
        )
    return noise


def worst_noise(
    model: DialkiModel, batch: DialkiBatch, clean: NextScores, start: Sequence[Tensor], config: NoiseConfig
) -> list[Tensor]:
    """Noise of norm ≤ a that moves the predictions far: one ascent step from `start` along the gradient, projected.

    Args:
        model: whose predictions are disturbed; its parameters get no gradient.
        batch: the inputs.
        clean: the predictions without noise; treated as fixed.
        start: fp32 [G, L, width] of each group of G inputs, 0 at padding.
        config: length of the step and radius.

    Returns:
        fp32 [G, L, width] of each group, of norm at most `config.radius` over [L, width], without gradient.
    """
    noise = [delta.detach().requires_grad_() for delta in start]
    fixed = NextScores(
        clean.passage.detach(), clean.begin.detach(), clean.end.detach(), clean.passage_mask, clean.span_mask
    )
    moved = divergence(fixed, model.next_scores(model.encode(batch, noise), batch))
    gradients = torch.autograd.grad(moved, noise)
    worst = []
    for delta, gradient, group in zip(noise, gradients, batch.groups, strict=True):
        if group.mask is not None:
            gradient = gradient * group.mask[:, :, None]
        step = _scaled(gradient.float(), config.step * config.radius)
        worst.append(project(delta.detach() + step, config.radius))
    return worst


@dataclass(frozen=True)
class RandomState:
    """Torch's random state on the CPU and on one device."""

    cpu: Tensor
    device: Tensor | None

    @staticmethod
    def of(device: torch.device) -> RandomState:
        """The present state."""
        return RandomState(torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None)

    @contextmanager
    def again(self, device: torch.device) -> Iterator[None]:
        """Run the block from this state, then go on from where things stood."""
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.set_rng_state(self.cpu)
            if self.device is not None:
                torch.cuda.set_rng_state(self.device, device)
            yield


def adversarial_loss(
    model: DialkiModel, batch: DialkiBatch, clean: NextScores, before: RandomState, config: NoiseConfig, seed: int
) -> Tensor:
    """L_adv: the divergence between the clean predictions and those under the worst noise found.

    The gradient flows through both.

    Args:
        model: trained.
        batch: its inputs.
        clean: its predictions, made from the random state `before` on.
        before: random state, for the same dropout.
        config: of the noise.
        seed: a 63-bit hash of run and step.

    Returns:
        fp32 scalar: sum over the dialogues.
    """
    width = model.encoder.get_input_embeddings().weight.shape[1]
    start = start_noise(batch, width, config, seed)
    with before.again(model.device):
        noise = worst_noise(model, batch, clean, start, config)
    with before.again(model.device):
        noisy = model.next_scores(model.encode(batch, noise), batch)
    return divergence(clean, noisy)
