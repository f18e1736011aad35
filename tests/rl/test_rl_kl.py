"""KL estimate and controllers of β."""

from __future__ import annotations

import pytest
import torch

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.rl.kl import AdaptiveKL, FixedKL, log_ratio_kl


def test_log_ratio_by_hand() -> None:
    logprobs = torch.tensor([[-1.0, -2.0, 0.0]], requires_grad=True)
    reference = torch.tensor([[-1.5, -1.0, -7.0]])
    kl = log_ratio_kl(logprobs, reference, torch.tensor([[1, 1, 0]]))
    assert kl.tolist() == [[0.5, -1.0, 0.0]]
    assert not kl.requires_grad


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
