"""T5's own forward passes against transformers' with the same weights: values, gradients, shared prompts."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from rl_toy import model, sharpen, written_out
from torch import Tensor
from transformers import T5Config, T5ForConditionalGeneration, UMT5Config, UMT5ForConditionalGeneration
from transformers.models.t5.modeling_t5 import T5Attention

from finegrained_rlhf.models.families import seq2seq, t5

KINDS = ("t5", "t5-v1.1", "mt5", "umt5")
LENGTHS = (9, 4, 1)
ROWS = torch.tensor([0, 0, 1, 1, 2, 2])
UNEVEN = torch.tensor([2, 0, 0, 1, 0])


def build(kind: str) -> Any:
    if kind != "umt5":
        return model(kind)
    torch.manual_seed(0)
    config = UMT5Config(vocab_size=50, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, decoder_start_token_id=0)
    return written_out(sharpen(UMT5ForConditionalGeneration(config), 0))


def batch(network: Any, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Prompt ids, prompt mask and responses."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(2, network.config.vocab_size, (len(LENGTHS), max(LENGTHS)), generator=generator)
    mask = (torch.arange(max(LENGTHS))[None] < torch.tensor(LENGTHS)[:, None]).long()
    responses = torch.randint(2, network.config.vocab_size, (len(rows), 7), generator=generator)
    return ids * mask, mask, responses


def ours(network: Any, rows: Tensor) -> tuple[Tensor, Tensor]:
    ids, mask, responses = batch(network, rows)
    states = seq2seq.encode(network, ids, mask)
    hidden = seq2seq.decoder_states(network, states, mask, rows, responses, (0,))
    return states[mask.bool()], t5.head(network, network.lm_head, hidden)


def theirs(network: Any, rows: Tensor) -> tuple[Tensor, Tensor]:
    """transformers, every prompt repeated for its rows."""
    ids, mask, responses = batch(network, rows)
    states = network.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
    logits = network(input_ids=ids[rows], attention_mask=mask[rows], labels=responses).logits
    return states[mask.bool()], logits


@pytest.mark.parametrize("rows", [ROWS, UNEVEN], ids=["shared", "uneven"])
@pytest.mark.parametrize("kind", KINDS)
def test_values_and_gradients_are_those_of_transformers(kind: str, rows: Tensor) -> None:
    plain = build(kind)
    mine = copy.deepcopy(plain)
    expected, found = theirs(plain, rows), ours(mine, rows)
    for a, b in zip(expected, found, strict=True):
        assert float(a.detach().std()) > 0.1
        torch.testing.assert_close(a, b, atol=1e-5 * max(1.0, float(a.detach().abs().max())), rtol=0)
    for (states, logits), network in ((expected, plain), (found, mine)):
        (logits.log_softmax(-1)[..., 3].sum() + states.pow(2).sum()).backward()
        assert all(p.grad is not None for p in network.parameters() if p.requires_grad)
    for (name, p), q in zip(plain.named_parameters(), mine.parameters(), strict=True):
        scale = max(1.0, float(p.grad.abs().max()))
        torch.testing.assert_close(p.grad / scale, q.grad / scale, atol=2e-5, rtol=0, msg=name)


def test_keys_and_values_of_a_prompt_are_projected_once() -> None:
    network = build("t5")
    seen: list[int] = []
    network.decoder.block[1].layer[1].EncDecAttention.k.register_forward_hook(lambda m, i, o: seen.append(o.shape[0]))
    ours(network, ROWS)
    ours(network, UNEVEN)
    assert seen == [3, 5]


def test_training_mode_keeps_dropout() -> None:
    network = build("t5")
    network.config.dropout_rate = 0.5
    for module in network.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.5
    network.train()
    first, second = ours(network, ROWS)[1], ours(network, ROWS)[1]
    assert float((first - second).abs().max()) > 0.1


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "farthest"), [(32, 128), (8, 20)])
def test_buckets_are_those_of_transformers(bidirectional: bool, buckets: int, farthest: int) -> None:
    distance = torch.arange(-300, 301)
    expected = T5Attention._relative_position_bucket(distance, bidirectional, buckets, farthest)
    assert torch.equal(t5.relative_buckets(distance, bidirectional, buckets, farthest), expected)


@pytest.mark.parametrize("gated", [False, True])
def test_bf16_autocast_is_as_near_as_transformers(gated: bool) -> None:
    """Both compute the same matmuls in bf16; what differs is where attention rounds."""
    torch.manual_seed(0)
    kind = "gated-gelu" if gated else "relu"
    config = T5Config(
        vocab_size=64, d_model=64, d_kv=16, d_ff=128, num_layers=3, num_heads=4, feed_forward_proj=kind,
        tie_word_embeddings=not gated, decoder_start_token_id=0,
    )  # fmt: skip
    network = T5ForConditionalGeneration(config).eval()
    with torch.no_grad():
        exact = theirs(network, ROWS)[1]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            plain, mine = theirs(network, ROWS)[1].float(), ours(network, ROWS)[1].float()
    error, other = (mine - exact).abs().mean(), (plain - exact).abs().mean()
    assert 0 < float(error) < 1.5 * float(other)


def test_rows_are_shared_only_where_they_are_even_and_in_order() -> None:
    assert t5.rows_are_shared(ROWS, 3)
    assert not t5.rows_are_shared(UNEVEN, 3)
    assert not t5.rows_are_shared(torch.tensor([0, 1, 0, 1]), 2)
    assert not t5.rows_are_shared(torch.tensor([0, 0]), 0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_pass_rounds_alike_with_and_without_gradients(kind: str) -> None:
    """Scoring, the frozen reference and the update are one function bit by bit, so the first ratio is exactly 1."""
    network, frozen = build(kind), build(kind).requires_grad_(False)
    _, trained = ours(network, ROWS)
    with torch.no_grad():
        _, scored = ours(network, ROWS)
    assert torch.equal(trained, scored) and torch.equal(trained, ours(frozen, ROWS)[1])
