"""GAE and value targets: hand numbers, the definition as a double loop, and what padding must not do."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from finegrained_rlhf.rl.advantages import generalised_advantages, truncated_returns


def naive_gae(rewards: list[float], values: list[float], discount: float, lambda_: float) -> list[float]:
    """A_t = Σ_{t' ≥ t} (γλ)^{t'−t} (r_{t'} + γ V(s_{t'+1}) − V(s_{t'})), V = 0 after the end."""
    after = [*values[1:], 0.0]
    deltas = [r + discount * n - v for r, n, v in zip(rewards, after, values, strict=True)]
    return [sum((discount * lambda_) ** (k - t) * deltas[k] for k in range(t, len(deltas))) for t in range(len(deltas))]


def ragged(seed: int = 0) -> tuple[Tensor, Tensor, Tensor, list[int]]:
    generator = torch.Generator().manual_seed(seed)
    lengths = [7, 1, 4, 6]
    mask = (torch.arange(7) < torch.tensor(lengths).unsqueeze(1)).long()
    return (
        torch.randn(4, 7, generator=generator, dtype=torch.float64),
        torch.randn(4, 7, generator=generator, dtype=torch.float64),
        mask,
        lengths,
    )


def test_gae_by_hand() -> None:
    # δ_2 = 3 − 1 = 2; δ_1 = 0 + 0.5·1 − 2 = −1.5; δ_0 = 1 + 0.5·2 − 4 = −2. With γλ = 0.25:
    # A_2 = 2; A_1 = −1.5 + 0.5 = −1; A_0 = −2 − 0.25 = −2.25.
    r_t = torch.tensor([[1.0, 0.0, 3.0, 50.0]])
    v_t = torch.tensor([[4.0, 2.0, 1.0, 70.0]])
    mask = torch.tensor([[1, 1, 1, 0]])
    advantages, returns = generalised_advantages(r_t, v_t, mask, discount=0.5, lambda_=0.5)
    assert advantages.tolist() == [[-2.25, -1.0, 2.0, 0.0]]
    assert returns.tolist() == [[1.75, 1.0, 3.0, 0.0]]


@pytest.mark.parametrize(("discount", "lambda_"), [(1.0, 0.95), (0.9, 0.8), (1.0, 1.0), (0.99, 0.0)])
def test_gae_against_the_double_loop(discount: float, lambda_: float) -> None:
    r_t, v_t, mask, lengths = ragged()
    advantages, returns = generalised_advantages(r_t, v_t, mask, discount=discount, lambda_=lambda_)
    for row, length in enumerate(lengths):
        expected = naive_gae(r_t[row, :length].tolist(), v_t[row, :length].tolist(), discount, lambda_)
        assert advantages[row, :length].tolist() == pytest.approx(expected, abs=1e-12)
        expected_returns = [a + v for a, v in zip(expected, v_t[row, :length].tolist(), strict=True)]
        assert returns[row, :length].tolist() == pytest.approx(expected_returns, abs=1e-12)


def test_with_lambda_one_the_return_is_the_sum_of_rewards() -> None:
    r_t, v_t, mask, lengths = ragged(1)
    _, returns = generalised_advantages(r_t, v_t, mask, discount=1.0, lambda_=1.0)
    for row, length in enumerate(lengths):
        sums = [float(r_t[row, t:length].sum()) for t in range(length)]
        assert returns[row, :length].tolist() == pytest.approx(sums, abs=1e-12)


def test_padding_is_zero_and_its_content_never_matters() -> None:
    r_t, v_t, mask, _ = ragged(2)
    real = mask.bool()
    settings = {"discount": 0.97, "lambda_": 0.9}
    advantages, returns = generalised_advantages(r_t, v_t, mask, **settings)
    assert not advantages[~real].any() and not returns[~real].any()
    junk_r, junk_v = torch.where(real, r_t, 1e6), torch.where(real, v_t, -1e6)
    again = generalised_advantages(junk_r, junk_v, mask, **settings)
    assert torch.equal(again[0], advantages) and torch.equal(again[1], returns)
    assert torch.equal(truncated_returns(junk_r, mask, discount=0.9), truncated_returns(r_t, mask, discount=0.9))
    wider = [torch.nn.functional.pad(x, (0, 3), value=5) for x in (r_t, v_t)]
    more = generalised_advantages(*wider, torch.nn.functional.pad(mask, (0, 3)), **settings)  # type: ignore[call-arg]
    assert torch.equal(more[0][:, :7], advantages) and not more[0][:, 7:].any()


def test_truncated_returns_by_hand() -> None:
    # Three real tokens, γ = 0.5: G_2 = 100, G_1 = 2 + 50 = 52, G_0 = 1 + 26 = 27.
    r_t = torch.tensor([[1.0, 2.0, 100.0, 9.0], [5.0, 5.0, 5.0, 5.0]])
    mask = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0]])
    returns = truncated_returns(r_t, mask, discount=0.5)
    assert returns.tolist() == [[27.0, 52.0, 100.0, 0.0], [5.0, 0.0, 0.0, 0.0]]


def test_the_last_tokens_reward_enters_every_target() -> None:
    """Rewards of whole responses lie there: a target without it would teach the value model nothing of them."""
    r_t, mask = torch.zeros(1, 4), torch.ones(1, 4, dtype=torch.long)
    paid = r_t.clone()
    paid[0, 3] = 100.0
    gained = truncated_returns(paid, mask, discount=0.5) - truncated_returns(r_t, mask, discount=0.5)
    assert gained.tolist() == [[12.5, 25.0, 50.0, 100.0]]


def test_truncated_returns_against_the_formula() -> None:
    """Σ_{t'=t}^{T−1} γ^{t'−t} r_{t'} + γ^{T−t} V(s_T) as a double loop, the value after the end being 0."""
    r_t, _, mask, lengths = ragged(3)
    discount, value_at_the_end = 0.9, 0.0
    returns = truncated_returns(r_t, mask, discount=discount)
    for row, length in enumerate(lengths):
        for t in range(length):
            total = discount ** (length - t) * value_at_the_end
            for k in range(t, length):
                total += discount ** (k - t) * float(r_t[row, k])
            assert float(returns[row, t]) == pytest.approx(total)
        assert not returns[row, length:].any()


def test_no_rows_and_empty_rows() -> None:
    none = torch.zeros(0, 1)
    advantages, returns = generalised_advantages(none, none, none.long(), discount=1.0, lambda_=0.95)
    assert advantages.shape == returns.shape == (0, 1)
    one = torch.ones(1, 2)
    advantages, _ = generalised_advantages(one, one, torch.zeros(1, 2).long(), discount=1.0, lambda_=0.95)
    assert not advantages.any()
    assert not truncated_returns(one, torch.zeros(1, 2).long(), discount=1.0).any()


def test_wrong_input_is_refused() -> None:
    x, mask = torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.long)
    call = {"discount": 1.0, "lambda_": 0.95}
    with pytest.raises(ValueError, match="prefix"):
        generalised_advantages(x, x, torch.tensor([[1, 0, 1], [1, 1, 1]]), **call)
    with pytest.raises(ValueError, match="v_t has shape"):
        generalised_advantages(x, x[:, :2], mask, **call)
    with pytest.raises(ValueError, match="r_t must be floating"):
        generalised_advantages(mask, x, mask, **call)
    with pytest.raises(ValueError, match="mask must be an integer"):
        generalised_advantages(x, x, x, **call)
    with pytest.raises(ValueError, match=r"mask must be \[R, T\]"):
        truncated_returns(x[0], mask[0], discount=1.0)
