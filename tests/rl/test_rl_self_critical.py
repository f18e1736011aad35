"""The self-critical reward and loss: by hand, by loop, and against the exact gradient of the expected score."""

from __future__ import annotations

import pytest
import torch
from enumeration_toy import EOS, PAD, every_response, five_token_policy, padded
from properties import given, settings, st
from torch import Tensor

from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.models.policy import Policy
from finegrained_rlhf.rl.self_critical import (
    self_critical_rewards,
    weighted_kl_loss,
    weighted_likelihood_loss,
)


def test_rewards_by_hand() -> None:
    sampled, greedy = torch.tensor([[1.0, 0.0, 0.5], [0.0, 0.0, 1.0]]), torch.tensor([1.0, 0.0])
    assert self_critical_rewards(sampled, greedy).tolist() == [[0.0, -1.0, -0.5], [0.0, 0.0, 1.0]]


def test_the_loss_by_hand() -> None:
    """Two samples of one prompt: −½ (1 · (−1 − 2) + (−1) · (−4)) = −½, padding left out."""
    logprobs = torch.tensor([[-1.0, -2.0], [-4.0, -100.0]])
    mask = torch.tensor([[1, 1], [1, 0]])
    assert float(weighted_likelihood_loss(logprobs, torch.tensor([0.5, -0.5]), mask)) == pytest.approx(-0.5)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 6), st.integers(1, 5), st.integers(0, 1000))
def test_loss_and_gradient_are_those_of_a_loop(rows: int, width: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logprobs = -torch.rand(rows, width, generator=generator, dtype=torch.float64)
    weights = torch.randn(rows, generator=generator, dtype=torch.float64)
    lengths = torch.randint(0, width + 1, (rows,), generator=generator).tolist()
    mask = torch.tensor([[1 if t < n else 0 for t in range(width)] for n in lengths])
    expected = -sum(float(weights[r]) * float(logprobs[r, t]) for r in range(rows) for t in range(lengths[r]))
    logprobs = logprobs.requires_grad_()
    loss = weighted_likelihood_loss(logprobs, weights, mask)
    assert float(loss.detach()) == pytest.approx(expected, abs=1e-12)
    loss.backward()
    assert logprobs.grad is not None
    assert torch.equal(logprobs.grad, -weights[:, None] * mask)


def test_the_kl_loss_by_hand() -> None:
    """d = 1, 2 and 3 with weights ½ and 2: k2 gives ½ (½ + 2) + 2 · 4.5; k3 has exp(−d) − 1 + d."""
    logprobs = torch.tensor([[-1.0, -1.0], [-1.0, -100.0]])
    reference = torch.tensor([[-2.0, -3.0], [-4.0, float("nan")]])
    weights, mask = torch.tensor([0.5, 2.0]), torch.tensor([[1, 1], [1, 0]])
    assert float(weighted_kl_loss(logprobs, reference, weights, mask, "k2")) == pytest.approx(10.25)
    k3 = [0.36787944117 - 1 + 1, 0.13533528324 - 1 + 2, 0.04978706837 - 1 + 3]
    expected = 0.5 * (k3[0] + k3[1]) + 2 * k3[2]
    assert float(weighted_kl_loss(logprobs, reference, weights, mask, "k3")) == pytest.approx(expected)
    twice = torch.tensor([[2.0, 0.0], [1.0, float("nan")]])
    assert float(weighted_kl_loss(logprobs, reference, weights, mask, "k2", twice)) == pytest.approx(9.5)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 6), st.integers(1, 5), st.integers(0, 1000))
def test_kl_loss_and_gradient_are_those_of_a_loop(rows: int, width: int, seed: int) -> None:
    """Under k2 the gradient of a token is its weight times its log ratio."""
    generator = torch.Generator().manual_seed(seed)
    logprobs, reference = (-torch.rand(rows, width, generator=generator, dtype=torch.float64) for _ in range(2))
    weights = torch.rand(rows, generator=generator, dtype=torch.float64)
    lengths = torch.randint(0, width + 1, (rows,), generator=generator).tolist()
    mask = torch.tensor([[1 if t < n else 0 for t in range(width)] for n in lengths])
    gaps = [[float(logprobs[r, t]) - float(reference[r, t]) for t in range(lengths[r])] for r in range(rows)]
    logprobs, reference = logprobs.requires_grad_(), reference.requires_grad_()
    loss = weighted_kl_loss(logprobs, reference, weights, mask, "k2")
    expected = sum(float(weights[r]) * gap**2 / 2 for r, row in enumerate(gaps) for gap in row)
    assert float(loss.detach()) == pytest.approx(expected, abs=1e-12)
    loss.backward()
    assert logprobs.grad is not None and reference.grad is None
    for r, row in enumerate(gaps):
        assert logprobs.grad[r, : len(row)].tolist() == pytest.approx([float(weights[r]) * gap for gap in row])
        assert not logprobs.grad[r, len(row) :].any()


def test_what_padding_holds_does_not_matter() -> None:
    logprobs = torch.tensor([[-1.0, float("nan")], [float("-inf"), float("inf")]], requires_grad=True)
    mask = torch.tensor([[1, 0], [0, 0]])
    loss = weighted_likelihood_loss(logprobs, torch.tensor([2.0, 3.0]), mask)
    loss.backward()
    assert float(loss.detach()) == 2.0 and logprobs.grad is not None
    assert logprobs.grad.tolist() == [[-2.0, 0.0], [0.0, 0.0]]


def test_shapes_and_types_are_checked() -> None:
    with pytest.raises(ValueError, match="scores"):
        self_critical_rewards(torch.zeros(2, 3), torch.zeros(3))
    with pytest.raises(ValueError, match="floating"):
        self_critical_rewards(torch.zeros(2, 3, dtype=torch.long), torch.zeros(2, dtype=torch.long))
    with pytest.raises(ValueError, match="weights"):
        weighted_likelihood_loss(torch.zeros(2, 3), torch.zeros(3), torch.ones(2, 3, dtype=torch.long))
    with pytest.raises(ValueError, match="weights"):
        weighted_kl_loss(torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(3), torch.ones(2, 3).long(), "k2")
    with pytest.raises(ValueError, match="reference_logprobs"):
        weighted_kl_loss(torch.zeros(2, 3), torch.zeros(2, 2), torch.zeros(2), torch.ones(2, 3).long(), "k2")


# The exact gradient --------------------------------------------------------------------------------------------------


def gradient_of(policy: Policy, loss: Tensor) -> list[Tensor]:
    policy.zero_grad()
    loss.backward()
    return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in policy.model.parameters()]


@pytest.mark.parametrize("length", [1, 2])
def test_the_gradient_is_that_of_the_expected_score_by_full_enumeration(length: int) -> None:
    """Σ_q Pr(q) · (gradient of the self-critical loss with sample q) = −∇ Σ_q Pr(q) score(q), whatever the baseline.

    The right side goes through products of softmax probabilities, written out here from transformers' own logits; the
    left side through the policy's log-probabilities and the loss under test, a sample at a time.
    """
    policy = five_token_policy()
    prompt = Prompt("x", "", (2, 4, 3, EOS))
    responses = every_response(length)
    ids, mask = padded(responses)
    scores = torch.tensor([float(sum(row) % 3 == 1) for row in responses], dtype=torch.float64)
    assert 0 < scores.sum() < len(scores)

    shifted = torch.cat([torch.full((len(ids), 1), PAD), ids[:, :-1]], dim=1)
    inputs = torch.tensor([prompt.input_ids]).expand(len(ids), -1)
    softmax = policy.model(input_ids=inputs, decoder_input_ids=shifted).logits.softmax(dim=-1)
    chosen = softmax.gather(2, ids.unsqueeze(2)).squeeze(2)
    probabilities = torch.where(mask.bool(), chosen, 1.0).prod(dim=1)
    assert float(probabilities.detach().sum()) == pytest.approx(1.0, abs=1e-12)
    exact = gradient_of(policy, -(probabilities * scores).sum())

    greedy = scores[int(probabilities.argmax())]
    rewards = self_critical_rewards(scores.unsqueeze(0), greedy.unsqueeze(0)).squeeze(0)
    mean = [torch.zeros_like(p) for p in policy.model.parameters()]
    for row, probability in enumerate(probabilities.detach().tolist()):
        memory = policy.encode([prompt])
        one = slice(row, row + 1)
        logprobs = policy.logprobs(memory, torch.zeros(1, dtype=torch.long), ids[one], mask[one]).logprobs
        loss = weighted_likelihood_loss(logprobs, rewards[one], mask[one])
        for total, gradient in zip(mean, gradient_of(policy, loss), strict=True):
            total += probability * gradient
    for ours, theirs in zip(mean, exact, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-4)
    assert max(float(g.abs().max()) for g in exact) > 1e-2


@pytest.mark.parametrize(("estimator", "length"), [("k3", 2), ("k2", 1)])
def test_the_kl_is_that_of_the_softmax_by_full_enumeration(estimator: str, length: int) -> None:
    """Weighted by Pr(q), k3 sums to KL(π‖π_ref) over all responses, and k2's gradient over single tokens is ∇KL.

    The other side is written out from transformers' own logits of both policies.
    """
    policy, reference = five_token_policy(), five_token_policy()
    with torch.no_grad():
        for parameter in reference.model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2)))
    prompt = Prompt("x", "", (2, 4, 3, EOS))
    ids, mask = padded(every_response(length))
    shifted = torch.cat([torch.full((len(ids), 1), PAD), ids[:, :-1]], dim=1)
    inputs = torch.tensor([prompt.input_ids]).expand(len(ids), -1)

    def log_probability(owner: Policy) -> Tensor:
        logits = owner.model(input_ids=inputs, decoder_input_ids=shifted).logits.log_softmax(dim=-1)
        return torch.where(mask.bool(), logits.gather(2, ids.unsqueeze(2)).squeeze(2), 0.0).sum(dim=1)

    ours, theirs = log_probability(policy), log_probability(reference).detach()
    exact = (ours.exp() * (ours - theirs)).sum()
    assert float(exact.detach()) > 1e-2
    wanted = gradient_of(policy, exact)
    index = torch.zeros(len(ids), dtype=torch.long)
    anchor = reference.logprobs(reference.encode([prompt]), index, ids, mask).logprobs
    logprobs = policy.logprobs(policy.encode([prompt]), index, ids, mask).logprobs
    loss = weighted_kl_loss(logprobs, anchor, ours.detach().exp().to(logprobs.dtype), mask, estimator)
    if estimator == "k3":
        assert float(loss.detach()) == pytest.approx(float(exact.detach()), abs=1e-6)
        return
    for one, other in zip(gradient_of(policy, loss), wanted, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)
