"""Longformer attention without chunking: equal to transformers' own, forward and backward, for the same weights."""

from __future__ import annotations

import pytest
import torch
from transformers import LongformerConfig, LongformerModel

from reward_models import attention
from reward_models.attention import attention_mask, encode_at


def longformer(window: list[int], heads: int = 2, dropout: float = 0.0) -> LongformerModel:
    torch.manual_seed(0)
    config = LongformerConfig(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=len(window),
        num_attention_heads=heads,
        attention_window=window,
        max_position_embeddings=200,
        type_vocab_size=1,
        pad_token_id=1,
        attention_probs_dropout_prob=dropout,
        hidden_dropout_prob=dropout,
    )
    model = LongformerModel(config, add_pooling_layer=False).eval()
    for parameter in model.parameters():  # larger weights than at initialisation, so that attention matters
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def inputs(lengths: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(lengths)
    mask = torch.tensor([[1] * length + [0] * (width - length) for length in lengths])
    ids = torch.randint(2, 50, mask.shape, generator=torch.Generator().manual_seed(1)) * mask + (1 - mask)
    return ids, mask


def globals_at(mask: torch.Tensor, rows: list[list[int]]) -> torch.Tensor:
    everywhere = torch.zeros_like(mask)
    for row, positions in enumerate(rows):
        everywhere[row, positions] = 1
    return everywhere


@pytest.mark.parametrize("window", [[4, 4], [4, 8], [64, 64]])
@pytest.mark.parametrize(
    "rows", [[[], [], []], [[0], [0], [0]], [[0, 3, 7], [], [2]], [list(range(23)), list(range(11)), [0]]]
)
def test_equals_transformers(window: list[int], rows: list[list[int]]) -> None:
    model = longformer(window)
    ids, mask = inputs([23, 11, 1])
    rows = [[i for i in row if i < length] for row, length in zip(rows, [23, 11, 1], strict=True)]
    everywhere = globals_at(mask, rows)
    expected = model(ids, attention_mask=mask, global_attention_mask=everywhere).last_hidden_state
    every = torch.arange(23).expand(3, -1)
    ours = encode_at(model, ids, mask, everywhere, every)
    assert torch.allclose(ours[mask.bool()], expected[mask.bool()], atol=1e-5)
    some = torch.tensor([[5, 0, 22], [10, 0, 3], [0, 0, 0]])
    picked = encode_at(model, ids, mask, everywhere, some)
    assert torch.allclose(picked, expected.gather(1, some[..., None].expand(-1, -1, 16)), atol=1e-5)


def test_window_matters_in_this_comparison() -> None:
    ids, mask = inputs([23])
    none = torch.zeros_like(mask)
    every = torch.arange(23)[None]
    narrow, wide = (encode_at(longformer(w), ids, mask, none, every) for w in ([4, 4], [64, 64]))
    assert not torch.allclose(narrow, wide, atol=1e-2)


def test_gradients_equal_transformers() -> None:
    model = longformer([4, 4])
    ids, mask = inputs([13, 9])
    everywhere = globals_at(mask, [[0, 5], [0]])
    some = torch.tensor([[0, 5, 9], [0, 8, 1]])
    index = some[..., None].expand(-1, -1, 16)
    target = torch.randn(2, 3, 16, generator=torch.Generator().manual_seed(2))

    def gradients(output: torch.Tensor) -> list[torch.Tensor]:
        found = torch.autograd.grad((output * target).sum(), list(model.parameters()), allow_unused=True)
        return [torch.zeros(1) if g is None else g for g in found]

    theirs = model(ids, attention_mask=mask, global_attention_mask=everywhere).last_hidden_state.gather(1, index)
    expected, ours = gradients(theirs), gradients(encode_at(model, ids, mask, everywhere, some))
    largest = max(float(g.abs().max()) for g in expected)
    assert largest > 0.1
    for a, b in zip(expected, ours, strict=True):
        assert float((a - b).abs().max()) < 1e-5 * largest


def test_long_inputs_use_transformers_own(monkeypatch: pytest.MonkeyPatch) -> None:
    model = longformer([4, 4])
    ids, mask = inputs([23, 11])
    everywhere = globals_at(mask, [[0], [0]])
    some = torch.tensor([[22, 0], [10, 1]])
    dense = encode_at(model, ids, mask, everywhere, some)
    monkeypatch.setattr(attention, "DENSE_LIMIT", 8)
    calls = []
    model.register_forward_hook(lambda *args: calls.append(1))
    assert torch.allclose(encode_at(model, ids, mask, everywhere, some), dense, atol=1e-5)
    assert calls == [1]


def test_mask_by_hand() -> None:
    mask = torch.tensor([[1, 1, 1, 1, 0]])
    seen = attention_mask(mask, torch.tensor([[1, 0, 0, 0, 0]]), one_sided=1)[0, 0].int().tolist()
    assert seen == [[1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 0, 1, 1, 0], [1, 0, 0, 1, 1]]


def test_dropout_is_drawn_in_training_only() -> None:
    model = longformer([4, 4], dropout=0.5)
    ids, mask = inputs([13])
    arguments = (model, ids, mask, torch.zeros_like(mask), torch.tensor([[3]]))
    assert torch.equal(encode_at(*arguments), encode_at(*arguments))
    model.train()
    assert not torch.allclose(encode_at(*arguments), encode_at(*arguments))
