"""Fused layers compute what the modules compute, follow the weights, and stay out where something else happens."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fused_toy import away, gradients, model, states
from torch import nn
from transformers.models.cohere.modeling_cohere import CohereLayerNorm
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.olmo2.modeling_olmo2 import Olmo2RMSNorm
from transformers.models.t5.modeling_t5 import T5LayerNorm

from finegrained_rlhf.models.families import fused
from finegrained_rlhf.runtime.optimizer import AdafactorConfig, OptimizerConfig

ORDER = 2e-6
"""Of fp32 numbers of size 1 that are multiplied in another order."""


@pytest.mark.parametrize("kind", [T5LayerNorm, LlamaRMSNorm, Gemma2RMSNorm, Olmo2RMSNorm])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_fused_norm_is_the_family_s(kind: type[nn.Module], dtype: torch.dtype) -> None:
    plain = kind(24, eps=1e-5)
    with torch.no_grad():
        plain.weight.uniform_(-1, 1)
    other = copy.deepcopy(plain)
    fused.fuse(other)
    assert type(other) is not kind and isinstance(other, kind)
    rows = torch.randn(3, 5, 24, dtype=dtype, requires_grad=True)
    found, expected = other(rows), plain(rows)
    assert found.dtype == expected.dtype
    tolerance = ORDER if dtype == torch.float32 else 2.0**-7
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    weighed = torch.linspace(-1, 1, rows.numel()).view(rows.shape)
    ours, own = (torch.autograd.grad((of(rows) * weighed).sum(), [rows, of.weight]) for of in (other, plain))
    for one, two in zip(ours, own, strict=True):
        torch.testing.assert_close(one, two, rtol=10 * tolerance, atol=10 * tolerance)


def test_other_norms_stay_as_they_are() -> None:
    parts = nn.ModuleList([nn.LayerNorm(8), nn.LayerNorm(8, bias=False), CohereLayerNorm(8), LlamaRMSNorm(8)])
    parts[3].register_forward_hook(lambda *_: None)
    parts.append(LlamaRMSNorm(8).to(torch.bfloat16))
    before = [type(part) for part in parts]
    fused.fuse(parts)
    assert [type(part) for part in parts] == before


@pytest.mark.parametrize("gated", [False, True])
def test_a_fused_t5_computes_the_same(gated: bool) -> None:
    """In fp32 up to the order of products; under bf16 no further from fp32 than autocast's own passes are."""
    plain, other = model(gated), model(gated)
    fused.fuse(other)
    torch.testing.assert_close(states(other, False), states(plain, False), rtol=ORDER, atol=ORDER)
    exact = gradients(plain, False)
    assert away(gradients(other, False), exact) < ORDER
    torch.testing.assert_close(states(other, True), states(plain, True), rtol=2.0**-8, atol=2.0**-8)
    assert 0 < away(gradients(other, True), exact) < 1.1 * away(gradients(plain, True), exact)
    assert all(parameter.grad is None or parameter.grad.dtype == torch.float32 for parameter in other.parameters())


def test_a_fused_t5_can_keep_its_layers_inputs_alone() -> None:
    other = model()
    fused.fuse(other)
    expected = gradients(other, True)
    for block in (*other.encoder.block, *other.decoder.block):
        block.gradient_checkpointing = True
    assert torch.equal(gradients(other, True), expected)


def _adamw(of: Any) -> None:
    gradients(of, True)
    OptimizerConfig(lr=0.1, schedule="constant").build(of.named_parameters(), 1).step(1)


def _adafactor(of: Any) -> None:
    gradients(of, True)
    AdafactorConfig(lr=0.01, schedule="constant").build(of.named_parameters(), 1).step(1)


def _loading(of: Any) -> None:
    of.load_state_dict({name: value * 1.5 for name, value in of.state_dict().items()})


def _moving(of: Any) -> None:
    for parameter in of.parameters():
        parameter.data = parameter.data * 1.5


@pytest.mark.parametrize("change", [_adamw, _adafactor, _loading, _moving])
def test_copies_follow_the_weights(change: Callable[[Any], None]) -> None:
    other = model()
    fused.fuse(other)
    before = states(other, True)
    change(other)
    anew = model()
    anew.load_state_dict(other.state_dict())
    after = states(other, True)
    assert not torch.allclose(after, before)
    torch.testing.assert_close(after, states(anew, True), rtol=2.0**-8, atol=2.0**-8)


def test_copies_that_were_dropped_are_made_again() -> None:
    other = model()
    fused.fuse(other)
    before = states(other, True)
    fused.drop_copies(other, None)
    copies = other.encoder.block[0].layer[0].SelfAttention.q._copies
    assert all(copy.tensor is None for copy in copies._copies.values())
    assert torch.equal(states(other, True), before)


def test_a_layer_may_be_asked_for_with_others_and_alone() -> None:
    """T5's own modules ask for one projection at a time (dropout, `generate`), our passes for all of one input."""
    plain, other = model(), model()
    fused.fuse(other)
    ids = torch.randint(48, (2, 7), generator=torch.Generator().manual_seed(2))
    states(other, True)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        found, expected = (of(input_ids=ids, decoder_input_ids=ids).logits for of in (other, plain))
    torch.testing.assert_close(found, expected, rtol=2.0**-6, atol=2.0**-6)
    torch.testing.assert_close(states(other, True), states(plain, True), rtol=2.0**-8, atol=2.0**-8)


def test_a_copied_model_has_copies_of_its_own() -> None:
    other = model()
    fused.fuse(other)
    before = states(other, True)
    twin = copy.deepcopy(other)
    _loading(twin)
    assert torch.equal(states(other, True), before)
    assert not torch.allclose(states(twin, True), before)


def test_what_is_more_than_a_product_is_called() -> None:
    """A hook, a bias or bf16 weights: the layers are asked themselves."""
    other, called = model(), []
    fused.fuse(other)
    attention = other.encoder.block[0].layer[0].SelfAttention
    attention.k.register_forward_hook(lambda *_: called.append("k"))
    states(other, True)
    assert called == ["k"]
    biased = nn.Linear(4, 4)
    frozen = nn.Linear(4, 4, bias=False).to(torch.bfloat16)
    fused.fuse(nn.ModuleList([biased, frozen]))
    with torch.autocast("cpu", torch.bfloat16):
        rows = torch.randn(2, 4)
        for layer in (biased, frozen):
            assert torch.equal(fused.products(rows, layer)[0], layer(rows))
