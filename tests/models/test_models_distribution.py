"""Top-p over a whole vocabulary: found without sorting it, equal to the sort."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from finegrained_rlhf.core.records import Sample
from finegrained_rlhf.models import distribution
from finegrained_rlhf.models.distribution import draw, sample_tokens, support_of, warp_logits, within


def by_sorting(logits: Tensor, decoding: Sample) -> Tensor:
    """Top-p one token after the other, from the most likely on; of equal ones the lower id first."""
    warped = logits.float() / decoding.temperature
    for row in warped:
        probabilities = row.double().softmax(dim=-1).tolist()
        order = sorted(range(len(probabilities)), key=lambda token: (-probabilities[token], token))
        before = 0.0
        for token in order:
            if before >= decoding.top_p:
                row[token] = -torch.inf
            before += probabilities[token]
    return warped


@pytest.mark.parametrize("size", [300, 6000])  # sorted, and searched row by row
@pytest.mark.parametrize("kind", ["flat", "peaked", "bf16", "many equal"])
def test_the_nucleus_and_what_is_drawn_are_those_of_sorting(kind: str, size: int) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, size, generator=generator) * (3 if kind == "peaked" else 1)
    if kind == "bf16":
        logits = logits.bfloat16()
    if kind == "many equal":
        logits = (2 * logits).round() / 2
    for top_p in (0.3, 0.95):
        decoding = Sample(1, temperature=0.7, top_k=0, top_p=top_p)
        expected = by_sorting(logits, decoding)
        kept = expected.isfinite().sum(dim=1)
        assert int(kept.max()) < size and (top_p < 0.9 or int(kept.max()) > 1)
        assert torch.equal(warp_logits(logits, decoding), expected)
        uniform = torch.rand(3, generator=generator, dtype=torch.float64)
        assert torch.equal(draw(logits, decoding, uniform), sample_tokens(expected, uniform))


def test_top_p_by_hand_in_a_large_vocabulary() -> None:
    """Probabilities .4, .3, .2 and the rest in equal shares: 0.5 keeps two tokens, 0.8 three; .7 is reached by two."""
    assert distribution._SEARCHED < 5000
    logits = torch.full((1, 5000), 0.1 / 4997).log()
    logits[0, [17, 4000, 3]] = torch.tensor([0.4, 0.3, 0.2]).log()
    for top_p, kept in ((0.39, {17}), (0.5, {17, 4000}), (0.69, {17, 4000}), (0.8, {17, 4000, 3})):
        warped = warp_logits(logits, Sample(1, 1.0, 0, top_p))
        assert set(warped[0].isfinite().nonzero().flatten().tolist()) == kept
    tokens = [
        int(draw(logits, Sample(1, 1.0, 0, 0.8), torch.tensor([u], dtype=torch.float64))) for u in (0.1, 0.4, 0.9)
    ]
    assert tokens == [3, 17, 4000]  # in order of id: .2 / .9, .6 / .9


def test_gradients_pass_through_what_is_kept() -> None:
    logits = torch.randn(2, 5000, generator=torch.Generator().manual_seed(1)).requires_grad_()
    warped = warp_logits(logits, Sample(1, 0.5, 0, 0.6), keep=torch.tensor([7, 9]))
    assert bool(warped[[0, 1], [7, 9]].isfinite().all())
    kept = warped.isfinite()
    warped[kept].sum().backward()
    assert logits.grad is not None and torch.equal(logits.grad, 2.0 * kept)


def test_a_policy_that_is_no_number_any_more_still_draws_a_token() -> None:
    """The check of the losses says what happened."""
    logits = torch.full((2, 5000), torch.nan)
    tokens = draw(logits, Sample(1, 1.0, 0, 0.9), torch.rand(2, dtype=torch.float64))
    assert tokens.shape == (2,) and int(tokens.max()) < 5000


@pytest.mark.parametrize("size", [7, 61, 6000])
@pytest.mark.parametrize("decoding", [Sample(1, 0.7, 5), Sample(1, 1.3, 0, 0.8), Sample(1, 1.0, 6, 0.6)])
def test_a_support_holds_what_was_left_and_nothing_else(decoding: Sample, size: int) -> None:
    """Ties at the k-th and a drawn token that is cut among them; the weights that it is held to later are others."""
    generator = torch.Generator().manual_seed(1)
    logits = (2 * torch.randn(2, 4, size, generator=generator)).round() / 2
    tokens = logits.argmin(dim=-1)
    left = warp_logits(logits, decoding, keep=tokens)
    support = support_of(left, tokens, decoding)
    assert support.shape == (2, 4, -(-size // 8) if decoding.top_k == 0 else 1 + min(size, decoding.top_k + 44))
    assert torch.equal(within(logits, decoding, support), left)
    moved = torch.randn(2, 4, size, generator=generator).bfloat16()
    held = within(moved, decoding, support)
    assert torch.equal(held == -torch.inf, left == -torch.inf) and held.dtype == torch.float32
    kept = held != -torch.inf
    assert torch.equal(held[kept], (moved.float() / decoding.temperature)[kept])
