"""Log-probabilities from hidden states: torch's log_softmax as reference, chunks, and the sampling distribution."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from finegrained_rlhf.core.records import Sample
from finegrained_rlhf.models.distribution import sample_tokens, warp_logits
from finegrained_rlhf.models.logprobs import Anchor, TokenLogprobs, token_logprobs

VOCABULARY, WIDTH = 11, 5


def batch() -> tuple[Tensor, Tensor, Tensor, nn.Linear]:
    torch.manual_seed(0)
    hidden = torch.randn(4, 6, WIDTH)
    tokens = torch.randint(0, VOCABULARY, (4, 6))
    mask = (torch.arange(6) < torch.tensor([[6], [1], [4], [3]])).long()
    head = nn.Linear(WIDTH, VOCABULARY, bias=False)
    nn.init.normal_(head.weight)
    return hidden, tokens, mask, head


def test_by_hand() -> None:
    """Two tokens with logits (ln 3, 0): p = 3/4 and 1/4, entropy 2 ln 2 − 3/4 ln 3."""
    hidden = torch.log(torch.tensor([[[3.0], [3.0]]]))
    result = token_logprobs(
        hidden, torch.tensor([[0, 1]]), torch.ones(1, 2), lambda h: torch.cat([h, torch.zeros_like(h)], dim=-1)
    )
    ln = torch.log(torch.tensor([0.75, 0.25, 2.0, 3.0]))
    torch.testing.assert_close(result.logprobs, ln[None, :2])
    torch.testing.assert_close(result.entropy, (2 * ln[2] - 0.75 * ln[3]).expand(1, 2))


def test_against_log_softmax_and_distributions() -> None:
    hidden, tokens, mask, head = batch()
    result = token_logprobs(hidden, tokens, mask, head)
    plain = torch.distributions.Categorical(logits=head(hidden))
    torch.testing.assert_close(result.logprobs, plain.log_prob(tokens) * mask)
    torch.testing.assert_close(result.entropy, plain.entropy() * mask)
    assert not result.entropy.requires_grad


def run(chunk_tokens: int) -> tuple[TokenLogprobs, Tensor, Tensor]:
    hidden, tokens, mask, head = batch()
    hidden.requires_grad_()
    result = token_logprobs(hidden, tokens, mask, head, chunk_tokens=chunk_tokens)
    (result.logprobs * torch.arange(24.0).view(4, 6)).sum().backward()
    return result, hidden.grad, head.weight.grad


@pytest.mark.parametrize("chunk_tokens", [1, 3, 14, 100])
def test_chunks_change_neither_values_nor_gradients(chunk_tokens: int) -> None:
    hidden, tokens, mask, head = batch()
    hidden.requires_grad_()
    reference = head(hidden).log_softmax(dim=-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1) * mask
    (reference * torch.arange(24.0).view(4, 6)).sum().backward()
    result, hidden_gradient, head_gradient = run(chunk_tokens)
    torch.testing.assert_close(result.logprobs, reference)
    torch.testing.assert_close(hidden_gradient, hidden.grad, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(head_gradient, head.weight.grad, atol=1e-5, rtol=1e-5)


def test_at_most_a_chunk_of_logits_exists_and_none_for_padding() -> None:
    hidden, tokens, mask, head = batch()
    hidden.requires_grad_()
    sizes: list[int] = []

    def counting(states: Tensor) -> Tensor:
        sizes.append(states.shape[0])
        return head(states)

    token_logprobs(hidden, tokens, mask, counting, chunk_tokens=5).logprobs.sum().backward()
    assert sizes[:3] == [5, 5, 4]  # 14 real tokens
    assert sorted(sizes[3:]) == [4, 5, 5]  # computed again in the backward pass, not stored


def test_padding_content_does_not_matter() -> None:
    hidden, tokens, mask, head = batch()
    clean = token_logprobs(hidden, tokens, mask, head)
    junk = torch.where(mask.bool().unsqueeze(-1), hidden, float("nan"))
    dirty = token_logprobs(junk, torch.where(mask.bool(), tokens, -100), mask, head)
    assert torch.equal(clean.logprobs, dirty.logprobs) and torch.equal(clean.entropy, dirty.entropy)
    assert not clean.logprobs[~mask.bool()].any()


def test_nothing_real_and_wrong_shapes() -> None:
    hidden, tokens, mask, head = batch()
    assert not token_logprobs(hidden, tokens, torch.zeros_like(mask), head).logprobs.any()
    with pytest.raises(ValueError, match="differ"):
        token_logprobs(hidden, tokens[:, :2], mask, head)


def test_half_precision_logits_are_normalised_in_fp32() -> None:
    hidden, tokens, mask, head = batch()
    result = token_logprobs(hidden, tokens, mask, lambda h: head(h).bfloat16())
    logits = head(hidden).bfloat16().double()
    expected = logits.log_softmax(dim=-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1) * mask
    torch.testing.assert_close(result.logprobs.double(), expected, atol=1e-5, rtol=0)


# The sampling distribution --------------------------------------------------------------------------------------

# Probabilities 0.4, 0.1, 0.3, 0.2 in the order of ids.
LOGITS = torch.log(torch.tensor([0.4, 0.1, 0.3, 0.2]))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [0.4, 0.1, 0.3, 0.2]),
        ({"top_k": 2}, [4 / 7, 0, 3 / 7, 0]),
        ({"top_k": 9}, [0.4, 0.1, 0.3, 0.2]),
        ({"top_p": 0.6}, [4 / 7, 0, 3 / 7, 0]),  # 0.4 < 0.6 ≤ 0.7
        ({"top_p": 0.71}, [4 / 9, 0, 3 / 9, 2 / 9]),
        ({"top_p": 0.01}, [1.0, 0, 0, 0]),  # never empty
        ({"temperature": 0.5}, [16 / 30, 1 / 30, 9 / 30, 4 / 30]),
        ({"temperature": 0.5, "top_k": 3}, [16 / 29, 0, 9 / 29, 4 / 29]),
        ({"temperature": 0.5, "top_p": 0.6}, [16 / 25, 0, 9 / 25, 0]),  # the temperature comes first
        ({"top_k": 3, "top_p": 0.75}, [4 / 7, 0, 3 / 7, 0]),  # top-p of what top-k left: 7/9 ≥ 0.75
    ],
)
def test_warping_by_hand(settings: dict[str, float], expected: list[float]) -> None:
    warped = warp_logits(LOGITS, Sample(1, **settings))
    torch.testing.assert_close(warped.softmax(dim=-1), torch.tensor(expected), atol=1e-6, rtol=0)


def test_warping_equals_transformers() -> None:
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    scores = torch.randn(20, 30, generator=torch.Generator().manual_seed(0)) * 2
    theirs = TopPLogitsWarper(0.8)(None, TopKLogitsWarper(12)(None, TemperatureLogitsWarper(0.7)(None, scores)))
    ours = warp_logits(scores, Sample(1, temperature=0.7, top_k=12, top_p=0.8))
    assert torch.equal(ours.isinf(), theirs.isinf())
    torch.testing.assert_close(ours.softmax(dim=-1), theirs.softmax(dim=-1))


def test_tokens_come_from_their_interval_of_the_cumulative_distribution() -> None:
    warped = warp_logits(LOGITS, Sample(1, top_k=3))  # 4/9, 0, 3/9, 2/9 in order of id
    uniform = torch.tensor([1e-9, 0.4, 0.45, 0.7, 0.78, 0.99, 1 - 2.0**-53], dtype=torch.float64)
    assert sample_tokens(warped.expand(7, -1), uniform).tolist() == [0, 0, 2, 2, 3, 3, 3]
    ends = torch.log(torch.tensor([0.0, 0.5, 0.0, 0.5, 0.0]))  # tokens without probability are never drawn
    uniform = torch.tensor([2.0**-53, 0.5, 1 - 2.0**-53], dtype=torch.float64)
    assert sample_tokens(ends.expand(3, -1), uniform).tolist() == [1, 3, 3]


def test_scoring_the_sampling_distribution() -> None:
    hidden, tokens, mask, head = batch()
    sampling = Sample(1, temperature=0.6, top_k=4)
    logits = head(hidden) / 0.6
    kept = logits.topk(4, dim=-1)
    tokens = kept.indices[..., 1]  # every token could have been drawn
    expected = (kept.values[..., 1] - kept.values.logsumexp(dim=-1)) * mask
    result = token_logprobs(hidden, tokens, mask, head, scored=sampling)
    torch.testing.assert_close(result.logprobs, expected)
    entropy = torch.distributions.Categorical(logits=kept.values).entropy() * mask
    torch.testing.assert_close(result.entropy, entropy)


def test_a_token_that_fell_out_of_the_truncation_keeps_a_finite_logprob_and_gradient() -> None:
    hidden, _, mask, head = batch()
    hidden.requires_grad_()
    tokens = head(hidden).argmin(dim=-1)
    result = token_logprobs(hidden, tokens, mask, head, scored=Sample(1, top_k=2))
    kept = head(hidden).topk(2, dim=-1).values
    least = head(hidden).min(dim=-1, keepdim=True).values
    expected = (least.squeeze(-1) - torch.cat([kept, least], dim=-1).logsumexp(dim=-1)) * mask
    torch.testing.assert_close(result.logprobs, expected)
    result.logprobs.sum().backward()
    assert torch.isfinite(hidden.grad).all() and hidden.grad[mask.bool()].abs().sum() > 0


@pytest.mark.parametrize("chunk_tokens", [3, 100])
@pytest.mark.parametrize("scored", [None, Sample(1, temperature=0.7), Sample(1, temperature=0.7, top_k=4)])
def test_divergence_from_an_anchor(scored: Sample | None, chunk_tokens: int) -> None:
    """Against torch.distributions, gradients too: at the temperature that is scored, over what can be drawn."""
    hidden, tokens, mask, head = batch()
    hidden.requires_grad_()
    other, states = nn.Linear(WIDTH, VOCABULARY, bias=False), torch.randn(4, 6, WIDTH)
    temperature = 1.0 if scored is None else scored.temperature
    logits, anchored = head(hidden) / temperature, other(states).detach() / temperature
    if scored is not None and scored.top_k:
        cut = (logits < logits.topk(scored.top_k).values[..., -1:]).scatter(-1, tokens.unsqueeze(-1), False)
        logits, anchored = logits.masked_fill(cut, -1e9), anchored.masked_fill(cut, -1e9)
    policy, reference = (torch.distributions.Categorical(logits=of) for of in (logits, anchored))
    expected = torch.distributions.kl_divergence(policy, reference) * mask
    (wanted,) = torch.autograd.grad((expected**2).sum(), hidden)
    anchor = Anchor(states, other)
    result = token_logprobs(hidden, tokens, mask, head, scored=scored, chunk_tokens=chunk_tokens, anchor=anchor)
    torch.testing.assert_close(result.kl, expected, atol=1e-5, rtol=1e-5)
    (found,) = torch.autograd.grad((result.kl**2).sum(), hidden)
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)
    assert token_logprobs(hidden, tokens, mask, head).kl is None


@pytest.mark.parametrize("scored", [None, Sample(1, temperature=0.7, top_k=4), Sample(1, temperature=1.3, top_p=0.8)])
@pytest.mark.parametrize("chunk_tokens", [2, 512])
def test_the_gradient_of_the_entropy(scored: Sample | None, chunk_tokens: int) -> None:
    """Against autograd through −Σ p log p, written out over what can be drawn."""
    generator = torch.Generator().manual_seed(2)
    hidden = 2 * torch.randn(2, 3, 5, generator=generator)
    matrix = torch.randn(9, 5, generator=generator)
    tokens, mask = torch.randint(0, 9, (2, 3), generator=generator), torch.tensor([[1, 1, 1], [1, 0, 0]])
    wanted = torch.randn(2, 3, generator=generator)
    states = [hidden.clone().requires_grad_() for _ in range(2)]
    result = token_logprobs(
        states[0], tokens, mask, lambda x: x @ matrix.T, scored=scored, entropy_gradient=True, chunk_tokens=chunk_tokens
    )
    total = (wanted * (result.entropy + 0.3 * result.logprobs)).sum()
    expected = torch.zeros(())
    for row, t in mask.nonzero().tolist():
        logits = states[1][row, t] @ matrix.T
        if scored is not None:
            kept = warp_logits(logits.detach()[None], scored, keep=tokens[row, t][None])[0] > -torch.inf
            place = int(kept[: int(tokens[row, t])].sum())
            logits = (logits / scored.temperature)[kept]
        else:
            place = int(tokens[row, t])
        log_p = logits - logits.exp().sum().log()
        expected = expected + wanted[row, t] * (-(log_p.exp() * log_p).sum() + 0.3 * log_p[place])
    assert float(total.detach()) == pytest.approx(float(expected.detach()), abs=1e-5)
    ours, theirs = (torch.autograd.grad(x, state)[0] for x, state in zip((total, expected), states, strict=True))
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    assert float(theirs.abs().max()) > 0.1
