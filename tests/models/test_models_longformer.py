"""A Longformer of a BERT or RoBERTa: equal to its source on what its window covers, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from reward_model_samples import CORPUS, save_bert, save_llama
from transformers import AutoModel, AutoTokenizer, LongformerModel, RobertaConfig, RobertaModel

from finegrained_rlhf.core.errors import ConfigError, ModelError
from finegrained_rlhf.models.encoders.conversions import tiled_positions
from finegrained_rlhf.models.encoders.jobs import MakeLongformer
from finegrained_rlhf.models.tiny_networks import build_tokenizer, encoder_tokenizer
from reward_models.encoders.attention import GlobalTokens, encode_at


def save_roberta(directory: Path, length: int = 48) -> Path:
    """A tiny RoBERTa: positions behind the padding token's, and one token type."""
    tokenizer = encoder_tokenizer(build_tokenizer(CORPUS), length)
    config = RobertaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=length + tokenizer.pad_token_id + 1,
        type_vocab_size=1,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        RobertaModel(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


@pytest.fixture(scope="module", params=["bert", "roberta"])
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sources") / request.param
    return save_bert(path) if request.param == "bert" else save_roberta(path)


def opened(directory: Path) -> Any:
    """By plain transformers, sharpened so that attention matters; both sides by the same factor."""
    return AutoModel.from_pretrained(directory).eval()


def batch(directory: Path, lengths: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Random right-padded ids and their mask [B, L]."""
    tokenizer = AutoTokenizer.from_pretrained(directory)
    generator = torch.Generator().manual_seed(0)
    ids = torch.full((len(lengths), max(lengths)), tokenizer.pad_token_id)
    for row, length in enumerate(lengths):
        ids[row, :length] = torch.randint(5, len(tokenizer), (length,), generator=generator)
    return ids, (ids != tokenizer.pad_token_id).long()


@pytest.mark.parametrize("is_global", [False, True])
def test_hidden_states_are_those_of_the_source(source: Path, tmp_path: Path, is_global: bool) -> None:
    """At every length that the source reads, by transformers and by our own attention, with a global token or none."""
    MakeLongformer(str(source), str(tmp_path / "long"), max_length=400).run()
    theirs, ours = opened(source), opened(tmp_path / "long")
    assert isinstance(ours, LongformerModel)
    longest = min(AutoTokenizer.from_pretrained(source).model_max_length, 160)
    ids, mask = batch(source, (longest, longest // 3, 5))
    wide = torch.zeros_like(mask)
    wide[:, 0] = int(is_global)
    positions = torch.arange(ids.shape[1]).expand(len(ids), -1)
    first = GlobalTokens(torch.zeros(len(ids), 1, dtype=torch.long), torch.ones(len(ids), 1, dtype=torch.bool))
    with torch.no_grad():
        expected = theirs(input_ids=ids, attention_mask=mask).last_hidden_state
        found = ours(input_ids=ids, attention_mask=mask, global_attention_mask=wide).last_hidden_state
        own = encode_at(ours, ids, mask, first if is_global else None, positions)
    real = mask.bool()
    assert expected[real].std() > 0.5
    torch.testing.assert_close(found[real], expected[real], atol=1e-5, rtol=0)
    torch.testing.assert_close(own[real], expected[real], atol=1e-5, rtol=0)


def test_a_narrow_window_is_equal_only_where_it_covers_the_text(source: Path, tmp_path: Path) -> None:
    MakeLongformer(str(source), str(tmp_path / "long"), max_length=200, window=16).run()
    theirs, ours = opened(source), opened(tmp_path / "long")
    for length, equal in ((9, True), (40, False)):
        ids, mask = batch(source, (length,))
        with torch.no_grad():
            expected = theirs(input_ids=ids, attention_mask=mask).last_hidden_state
            found = ours(input_ids=ids, attention_mask=mask).last_hidden_state
        assert torch.allclose(found, expected, atol=1e-5) == equal


def test_longer_texts_are_read_with_positions_that_repeat(source: Path, tmp_path: Path) -> None:
    MakeLongformer(str(source), str(tmp_path / "long"), max_length=400).run()
    ours, tokenizer = opened(tmp_path / "long"), AutoTokenizer.from_pretrained(tmp_path / "long")
    assert tokenizer.model_max_length == 400
    ids, mask = batch(source, (400,))
    with torch.no_grad():
        assert torch.isfinite(ours(input_ids=ids, attention_mask=mask).last_hidden_state).all()
    old, new = (opened(path).embeddings.position_embeddings.weight for path in (source, tmp_path / "long"))
    length = min(AutoTokenizer.from_pretrained(source).model_max_length, 160)
    first = new[-400:]
    assert torch.equal(first[:length], old[-length:]) and torch.equal(
        first[length : 2 * length], old[-length:][: 400 - length]
    )


def test_positions_by_hand() -> None:
    table = torch.tensor([[9.0], [8.0], [1.0], [2.0], [3.0]])
    assert tiled_positions(table, 2, 1, 7).flatten().tolist() == [9, 8, 1, 2, 3, 1, 2, 3, 1]
    assert tiled_positions(table[2:], 0, 3, 4).flatten().tolist() == [0, 0, 0, 0, 1, 2, 3, 1]


def test_what_cannot_become_one_is_refused(tmp_path: Path) -> None:
    llama, bert = save_llama(tmp_path / "llama"), save_bert(tmp_path / "bert")
    with pytest.raises(ModelError, match="expected an encoder such as BERT"):
        MakeLongformer(str(llama), str(tmp_path / "x")).run()
    made = MakeLongformer(str(bert), str(tmp_path / "long"), max_length=300).run()
    with pytest.raises(ModelError, match="a longformer model, expected a BERT or RoBERTa"):
        MakeLongformer(str(made), str(tmp_path / "x")).run()
    with pytest.raises(
        ConfigError, match="max_length: the source reads 160 tokens, expected at least as many, got 100"
    ):
        MakeLongformer(str(bert), str(tmp_path / "x"), max_length=100).run()
    with pytest.raises(ConfigError, match="window: expected null or an even number of at least 2, got 7"):
        MakeLongformer(str(bert), str(tmp_path / "x"), window=7)
    assert not (tmp_path / "x").exists()
