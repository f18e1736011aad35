"""A structured tiny T5: directions, equal words, copying cross-attention, an untouched random state."""

from __future__ import annotations

import pytest
import torch
from transformers import T5ForConditionalGeneration

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.models.tiny import TinyT5Config
from finegrained_rlhf.models.tiny_networks import build_t5, build_tokenizer

TEXTS = ["red green blue white black old new"]


@pytest.fixture(scope="module")
def model() -> T5ForConditionalGeneration:
    return build_t5(build_tokenizer(TEXTS), TinyT5Config(d_model=32, num_heads=4, structured=True))


def test_heads_begin_with_left_right_and_near_words(model: T5ForConditionalGeneration) -> None:
    """Without content in the queries: what the first heads of the word in the middle of 21 see."""
    attention = model.encoder.block[0].layer[0].SelfAttention
    seen = attention.compute_bias(21, 21)[0, :, 10].softmax(dim=-1)
    assert seen[0, :11].sum() > 0.98 and seen[1, 11:].sum() > 0.98
    assert seen[2, 8:13].sum() > 0.95
    assert torch.allclose(seen[0, :11], seen[0, 0].expand(11)) and torch.allclose(seen[1, 11:], seen[1, 11].expand(10))
    assert 0.2 < seen[3, :11].sum() < 0.8


def test_what_is_attended_to_arrives_unchanged(model: T5ForConditionalGeneration) -> None:
    """Cross-attention to one state gives that state, whatever the query."""
    state = torch.randn(1, 1, 32)
    for block in model.decoder.block:
        given = block.layer[1].EncDecAttention(torch.randn(1, 3, 32), key_value_states=state)[0]
        assert torch.allclose(given, state.expand(1, 3, 32), atol=1e-5)


def test_a_head_of_every_layer_begins_with_the_same_word_elsewhere() -> None:
    tokenizer = build_tokenizer([" ".join(f"word{number}" for number in range(40))])
    model = build_t5(tokenizer, TinyT5Config(structured=True, matching=True))
    model.set_attn_implementation("eager")
    ids = torch.arange(5, 37)
    ids[29] = ids[4]
    states = model.get_input_embeddings()(ids)[None]
    bias = model.encoder.block[0].layer[0].SelfAttention.compute_bias(32, 32)
    for block in model.encoder.block:
        attention, norm = block.layer[0].SelfAttention, block.layer[0].layer_norm
        scores = norm(states)
        q, k = (part(scores).view(1, 32, 4, 16).transpose(1, 2) for part in (attention.q, attention.k))
        seen = (q @ k.transpose(2, 3) + bias).softmax(-1)[0, 3]
        assert seen[4, 29] > 0.8 and seen[29, 4] > 0.8
        assert seen[4, 4] < 0.02 < 0.5 < seen.diagonal().mean()  # a word that is nowhere else finds itself


def test_random_numbers() -> None:
    tokenizer = build_tokenizer(TEXTS)
    config = TinyT5Config(d_model=32, structured=True)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first, again, other = (build_t5(tokenizer, config, seed) for seed in (0, 0, 1))
    assert torch.equal(torch.rand(3), expected)
    weights = [m.decoder.block[0].layer[1].EncDecAttention.v.weight for m in (first, again, other)]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])


def test_too_few_heads_are_refused() -> None:
    with pytest.raises(ConfigError, match="structured needs three heads or more, got 2"):
        TinyT5Config(num_heads=2, structured=True)
    with pytest.raises(ConfigError, match="matching needs four heads or more, got 2"):
        TinyT5Config(num_heads=2, matching=True)
