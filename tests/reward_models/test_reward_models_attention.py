"""Longformer attention without chunking: equal to transformers' own, forward and backward, for the same weights."""

from __future__ import annotations

import pytest
import torch
from transformers import LongformerConfig, LongformerModel

from reward_models.encoders import attention
from reward_models.encoders.attention import GlobalTokens, block_slices, encode_at, keys_seen, make_blocks


def longformer(window: list[int], dropout: float = 0.0, positions: int = 200) -> LongformerModel:
    torch.manual_seed(0)
    config = LongformerConfig(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=len(window),
        num_attention_heads=2,
        attention_window=window,
        max_position_embeddings=positions,
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


def wide_tokens(everywhere: torch.Tensor) -> GlobalTokens | None:
    """The global tokens of a mask [B, L]; fillers repeat position 0."""
    rows = [row.nonzero().flatten().tolist() for row in everywhere]
    width = max(map(len, rows))
    if width == 0:
        return None
    real = torch.tensor([[i < len(row) for i in range(width)] for row in rows])
    return GlobalTokens(torch.tensor([row + [0] * (width - len(row)) for row in rows]), real)


@pytest.fixture(params=["one block", "blocks of a window", "blocks of three"])
def cut(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How queries are cut: all at once as for short inputs, or as for long ones."""
    monkeypatch.setattr(
        attention, "MIN_BLOCK", {"one block": 100, "blocks of a window": 1, "blocks of three": 3}[request.param]
    )
    monkeypatch.setattr(attention, "DENSE_BLOCKS", 1)
    return request.param


ROWS = [[[], [], []], [[0], [0], [0]], [[0, 3, 7], [], [2]], [list(range(24)), list(range(11)), [0]]]


@pytest.mark.parametrize("window", [[4, 4], [4, 8], [6, 4, 12], [64, 64]])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("longest", [22, 23, 24])
def test_equals_transformers(window: list[int], rows: list[list[int]], longest: int, cut: str) -> None:
    """Padding; none, the first, several and all tokens global; lengths that windows divide and that they do not."""
    model = longformer(window)
    lengths = [longest, 11, 1]
    ids, mask = inputs(lengths)
    rows = [[i for i in row if i < length] for row, length in zip(rows, lengths, strict=True)]
    everywhere = globals_at(mask, rows)
    expected = model(ids, attention_mask=mask, global_attention_mask=everywhere).last_hidden_state
    every = torch.arange(longest).expand(3, -1)
    ours = encode_at(model, ids, mask, wide_tokens(everywhere), every)
    assert torch.allclose(ours[mask.bool()], expected[mask.bool()], atol=1e-5)
    some = torch.tensor([[5, 0, 21], [10, 0, 3], [0, 0, 0]])
    picked = encode_at(model, ids, mask, wide_tokens(everywhere), some)
    assert torch.allclose(picked, expected.gather(1, some[..., None].expand(-1, -1, 16)), atol=1e-5)


def test_a_long_input_equals_transformers() -> None:
    """Real sizes of the constants: 400 tokens, a window of 32, blocks of 64 and a last one that is not full."""
    model = longformer([32, 32], positions=500)
    assert len(block_slices(400, 16)) == 7
    ids, mask = inputs([400, 317])
    for rows in ([[], []], [[0], [0]], [[0, 5, 100, 130, 399], [0, 63, 64]]):
        everywhere = globals_at(mask, rows)
        with torch.no_grad():
            expected = model(ids, attention_mask=mask, global_attention_mask=everywhere).last_hidden_state
            every = torch.arange(400).expand(2, -1)
            ours = encode_at(model, ids, mask, wide_tokens(everywhere), every)
        assert torch.allclose(ours[mask.bool()], expected[mask.bool()], atol=1e-5)


def test_window_matters_in_this_comparison() -> None:
    ids, mask = inputs([23])
    every = torch.arange(23)[None]
    narrow, wide = (encode_at(longformer(w), ids, mask, None, every) for w in ([4, 4], [64, 64]))
    assert not torch.allclose(narrow, wide, atol=1e-2)


@pytest.mark.parametrize("rows", [[[], []], [[0, 5], [0]], [[0, 3, 4, 12], [0, 8]]])
def test_gradients_equal_transformers(rows: list[list[int]], cut: str) -> None:
    model = longformer([4, 4, 4])
    ids, mask = inputs([13, 9])
    everywhere = globals_at(mask, rows)
    some = torch.tensor([[0, 5, 9], [0, 8, 1]])
    index = some[..., None].expand(-1, -1, 16)
    target = torch.randn(2, 3, 16, generator=torch.Generator().manual_seed(2))

    def gradients(output: torch.Tensor) -> list[torch.Tensor]:
        found = torch.autograd.grad((output * target).sum(), list(model.parameters()), allow_unused=True)
        return [torch.zeros(1) if g is None else g for g in found]

    theirs = model(ids, attention_mask=mask, global_attention_mask=everywhere).last_hidden_state.gather(1, index)
    expected, ours = gradients(theirs), gradients(encode_at(model, ids, mask, wide_tokens(everywhere), some))
    largest = max(float(g.abs().max()) for g in expected)
    assert largest > 0.1
    for a, b in zip(expected, ours, strict=True):
        assert float((a - b).abs().max()) < 1e-5 * largest


@pytest.mark.parametrize("are_global", [True, False])
def test_what_is_known_of_the_wanted_tokens_only_saves_work(are_global: bool) -> None:
    model = longformer([4, 4])
    ids, mask = inputs([13, 9])
    wide = wide_tokens(globals_at(mask, [[0, 5], [0, 8]]))
    some = torch.tensor([[0, 5], [8, 0]]) if are_global else torch.tensor([[1, 12], [2, 7]])
    plain = encode_at(model, ids, mask, wide, some)
    last = model.encoder.layer[-1].attention.self
    unused = last.key if are_global else last.key_global
    unused.register_forward_hook(lambda *args: pytest.fail("a projection that nothing reads"))
    assert torch.allclose(encode_at(model, ids, mask, wide, some, are_global), plain, atol=1e-6)


def test_global_tokens_that_are_padding_are_none() -> None:
    model = longformer([4, 4])
    ids, mask = inputs([13, 9])
    some = torch.tensor([[3], [4]])
    first = GlobalTokens(torch.tensor([[0], [0]]), torch.tensor([[True], [True]]))
    more = GlobalTokens(torch.tensor([[0, 5], [0, 12]]), torch.tensor([[True, False], [True, True]]))
    assert torch.allclose(encode_at(model, ids, mask, first, some), encode_at(model, ids, mask, more, some), atol=1e-6)


def test_keys_by_hand() -> None:
    real, first = torch.tensor([[1, 1, 1, 1, 0]]).bool(), torch.tensor([[1, 0, 0, 0, 0]]).bool()
    places = torch.arange(5)
    seen = keys_seen(places[None], places, real, first, one_sided=1)[0, 0].int().tolist()
    assert seen == [[1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 0, 1, 1, 0], [1, 0, 0, 1, 1]]


def test_blocks_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven tokens, the last one padding, in blocks of three with one neighbour on each side; tokens 0 and 3 global."""
    monkeypatch.setattr(attention, "MIN_BLOCK", 3)
    monkeypatch.setattr(attention, "DENSE_BLOCKS", 2)
    mask = torch.tensor([[1, 1, 1, 1, 1, 1, 0]])
    wide = GlobalTokens(torch.tensor([[0, 3]]), torch.tensor([[True, True]]))
    first, second, third = make_blocks(mask, wide, one_sided=1)
    assert [(b.queries, b.keys) for b in (first, second, third)] == [
        (slice(0, 3), slice(0, 4)),
        (slice(3, 6), slice(2, 7)),
        (slice(6, 7), slice(5, 7)),
    ]
    # keys 0 1 2 3, then the global 0 and 3; the row of a global query is not read
    assert first.allowed[0, 0, 1:].int().tolist() == [[0, 1, 1, 0, 1, 1], [0, 1, 1, 0, 1, 1]]
    # keys 2 3 4 5 6, then the global ones
    assert second.allowed[0, 0, 1:].int().tolist() == [[0, 0, 1, 1, 0, 1, 1], [0, 0, 1, 1, 0, 1, 1]]
    (whole,) = make_blocks(mask[:, :6], wide, one_sided=1)
    assert whole.allowed.shape == (1, 1, 6, 6) and not whole.appended


def test_memory_grows_linearly() -> None:
    """Every query of a long input sees a bounded slice of the keys."""
    for length in (1000, 10_000):
        slices = block_slices(length, 256)
        assert [i for queries, _ in slices for i in range(length)[queries]] == list(range(length))
        assert max(keys.stop - keys.start for _, keys in slices) <= 768


def test_dropout_is_drawn_in_training_only(cut: str) -> None:
    model = longformer([4, 4, 4], dropout=0.5)
    ids, mask = inputs([13])
    arguments = (model, ids, mask, None, torch.tensor([[3]]))
    assert torch.equal(encode_at(*arguments), encode_at(*arguments))
    model.train()
    assert not torch.allclose(encode_at(*arguments), encode_at(*arguments))
