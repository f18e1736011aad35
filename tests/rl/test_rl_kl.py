"""KL estimate and controllers of β."""

from __future__ import annotations

import math

import pytest
import torch

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.rl.kl import AdaptiveKL, FixedKL, KLEstimator, kl_estimates, kl_over_vocabulary, log_ratio_kl


def test_log_ratio_by_hand() -> None:
    logprobs = torch.tensor([[-1.0, -2.0, 0.0]], requires_grad=True)
    reference = torch.tensor([[-1.5, -1.0, -7.0]])
    kl = log_ratio_kl(logprobs, reference, torch.tensor([[1, 1, 0]]))
    assert kl.tolist() == [[0.5, -1.0, 0.0]]
    assert not kl.requires_grad


@pytest.mark.parametrize(
    ("estimator", "values", "slopes"),
    [
        ("k1", [0.5, -1.0], [1.0, 1.0]),
        ("k2", [0.125, 0.5], [0.5, -1.0]),
        ("k3", [math.exp(-0.5) - 0.5, math.e - 2], [1 - math.exp(-0.5), 1 - math.e]),
    ],
)
def test_the_estimators_by_hand(estimator: KLEstimator, values: list[float], slopes: list[float]) -> None:
    logprobs = torch.tensor([[-1.0, -2.0, 300.0]], requires_grad=True)
    reference = torch.tensor([[-1.5, -1.0, -300.0]])
    kl = kl_estimates(logprobs, reference, torch.tensor([[1, 1, 0]]), estimator)
    assert kl.tolist()[0] == pytest.approx([*values, 0.0], abs=1e-6)
    kl.sum().backward()
    assert logprobs.grad is not None and logprobs.grad.tolist()[0] == pytest.approx([*slopes, 0.0], abs=1e-6)


def test_which_estimators_have_the_divergence_as_mean_or_as_gradient() -> None:
    """Exactly, over all actions: k1 and k3 have the mean of the KL, k2's mean gradient is the KL's, k1's is 0."""
    logits = torch.randn(5, generator=torch.Generator().manual_seed(1), dtype=torch.float64).requires_grad_()
    policy = torch.distributions.Categorical(logits=logits)
    reference = torch.distributions.Categorical(logits=torch.linspace(-1, 1, 5, dtype=torch.float64))
    exact = torch.distributions.kl_divergence(policy, reference)
    (wanted,) = torch.autograd.grad(exact, logits, retain_graph=True)
    for name, mean, gradient in (("k1", True, False), ("k2", False, True), ("k3", True, False)):
        mask = torch.ones(1, 5, dtype=torch.long)
        kl = kl_estimates(policy.logits[None], reference.logits[None], mask, name)[0]  # type: ignore[arg-type]
        assert (abs(float((policy.probs * kl).sum().detach() - exact.detach())) < 1e-12) == mean
        (found,) = torch.autograd.grad((policy.probs.detach() * kl).sum(), logits, retain_graph=True)
        assert bool(torch.allclose(found, wanted, atol=1e-12)) == gradient
        assert bool(torch.allclose(found, torch.zeros(5).double(), atol=1e-12)) == (name == "k1")
    with pytest.raises(ValueError, match="k1, k2 or k3"):
        kl_estimates(torch.ones(1, 1), torch.ones(1, 1), torch.ones(1, 1).long(), "k4")  # type: ignore[arg-type]


def test_its_mean_over_samples_is_the_divergence() -> None:
    """E_{a ~ π}[log π(a) − log π_ref(a)] = KL(π‖π_ref), which torch.distributions knows in closed form."""
    generator = torch.Generator().manual_seed(0)
    policy = torch.distributions.Categorical(logits=torch.randn(6, generator=generator))
    reference = torch.distributions.Categorical(logits=torch.randn(6, generator=generator))
    actions = torch.multinomial(policy.probs, 40_000, replacement=True, generator=generator)
    logprobs, reference_logprobs = policy.log_prob(actions)[None], reference.log_prob(actions)[None]
    estimate = log_ratio_kl(logprobs, reference_logprobs, torch.ones(1, 40_000, dtype=torch.long)).mean()
    exact = torch.distributions.kl_divergence(policy, reference)
    other_way = torch.distributions.kl_divergence(reference, policy)
    assert abs(float(exact - other_way)) > 0.08  # the two directions differ here
    assert float(estimate) == pytest.approx(float(exact), abs=0.02)


def test_the_divergence_over_a_vocabulary_by_hand() -> None:
    """KL of (1/2, 1/2, 0) from (1/4, 1/2, 1/4) is ln 2 / 2; its gradient in log p_v is p_v (log p_v/q_v + 1)."""
    log_p = torch.tensor([[math.log(0.5), math.log(0.5), -math.inf]], requires_grad=True)
    log_q = torch.tensor([[math.log(0.25), math.log(0.5), math.log(0.25)]])
    found = kl_over_vocabulary(log_p, log_q)
    assert found.tolist() == pytest.approx([math.log(2) / 2])
    found.sum().backward()
    assert log_p.grad is not None
    assert log_p.grad.tolist()[0] == pytest.approx([0.5 * (math.log(2) + 1), 0.5, 0.0])
    assert kl_over_vocabulary(log_p.detach(), log_p.detach()).tolist() == [0.0]
    with pytest.raises(ValueError, match="twice"):
        kl_over_vocabulary(log_q, log_q[:, :2])


def test_only_the_divergence_itself_is_right_whatever_was_drawn() -> None:
    """A policy flatter than its reference, drawn at temperature 0.7 from the top 20: the mean log-ratio is below 0."""
    reference = torch.randn(50, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 3
    log_p, log_q = (0.7 * reference).log_softmax(0)[None], reference.log_softmax(0)[None]
    logits = reference  # the policy's logits over 0.7
    drawn = logits.masked_fill(logits < logits.topk(20).values[-1], -torch.inf).softmax(0)
    each = log_ratio_kl(log_p.T, log_q.T, torch.ones(50, 1, dtype=torch.long))[:, 0]
    assert float((drawn * each).sum()) < -0.1
    expected = torch.distributions.kl_divergence(*(torch.distributions.Categorical(logits=x) for x in (log_p, log_q)))
    torch.testing.assert_close(kl_over_vocabulary(log_p, log_q), expected)
    assert float(expected) > 0.1


def test_a_padded_nan_stays_out() -> None:
    nan = torch.tensor([[0.0, float("nan")]])
    assert log_ratio_kl(nan, nan, torch.tensor([[1, 0]])).tolist() == [[0.0, 0.0]]


def test_fixed_never_moves_and_keeps_the_configured_value() -> None:
    controller = FixedKL(0.3)
    controller.update(100.0, 64)
    assert controller.beta == 0.3
    controller.load_state({"beta": 9.0})
    assert controller.beta == 0.3
    assert controller.state() == {"beta": 0.3}


@pytest.mark.parametrize(
    ("kl", "factor"),
    [
        (6.0, 1.0),  # on target
        (6.6, 1.0 + 0.1 * 64 / 1000),
        (5.4, 1.0 - 0.1 * 64 / 1000),
        (60.0, 1.0 + 0.2 * 64 / 1000),  # clamped
        (-60.0, 1.0 - 0.2 * 64 / 1000),
    ],
)
def test_adaptive_by_hand(kl: float, factor: float) -> None:
    controller = AdaptiveKL(0.2, target=6.0, horizon=1000.0)
    controller.update(kl, 64)
    assert controller.beta == pytest.approx(0.2 * factor, rel=1e-12)


def test_adaptive_resumes_where_it_stood() -> None:
    first = AdaptiveKL(0.2, target=6.0, horizon=100.0)
    first.update(20.0, 32)
    second = AdaptiveKL(0.2, target=6.0, horizon=100.0)
    second.load_state(first.state())
    for controller in (first, second):
        controller.update(1.0, 32)
    assert first.beta == second.beta != 0.2


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="beta"):
        FixedKL(-0.1)
    for wrong in ({"beta": 0.0}, {"target": 0.0}, {"horizon": -1.0}):
        with pytest.raises(ConfigError, match="adaptive KL"):
            AdaptiveKL(**{"beta": 0.1, "target": 6.0, "horizon": 10.0, **wrong})
