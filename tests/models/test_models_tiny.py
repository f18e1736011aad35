"""Tiny models and tokenizers: exact round trips, the Hugging Face layout, determinism, and refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from properties import given, st
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    LongformerForTokenClassification,
)

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.dialogue.tokens import MARKER_TOKENS
from finegrained_rlhf.models.tiny import (
    MakeTinyModels,
    TinyBertConfig,
    TinyGPT2Config,
    TinyLlamaConfig,
    TinyLongformerConfig,
    TinyT5Config,
    read_corpus,
)
from finegrained_rlhf.models.tiny_networks import (
    build_bert,
    build_llama,
    build_longformer,
    build_t5,
    build_tokenizer,
    causal_tokenizer,
    encoder_tokenizer,
    make_tiny_models,
    marked_tokenizer,
)

PROSE = [
    'The "quick" fox (a mammal) didn\'t jump; it ran: 3.5 km, in 20-odd minutes!',
    "Is it? Yes... é, ß and 東京 — all at 50%.\n\nA new paragraph,\twith a tab.",
    "Two  spaces, and an email: someone@example.org / x_y.",
]
WORDS = ["the", "fox", "didn't", "3.5", "(a", "mammal)", '"quick"', "東京", "ran,", "it?", "50%.", "—", "x_y"]


@pytest.fixture(scope="module", params=["word", "bpe"])
def tokenizer(request: pytest.FixtureRequest) -> Any:
    return build_tokenizer([*PROSE, " ".join(WORDS)], request.param, 600)


def decode(tokenizer: Any, text: str) -> str:
    return tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True)


def test_round_trip_of_prose(tokenizer: Any) -> None:
    for text in PROSE:
        assert decode(tokenizer, text) == text
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text + "</s>"


@given(words=st.lists(st.sampled_from(WORDS), max_size=12), gap=st.sampled_from([" ", "  ", "\n"]))
def test_round_trip_of_any_order(words: list[str], gap: str) -> None:
    for kind in ("word", "bpe"):
        text = gap.join(words)
        assert decode(cached(kind), text) == text


def cached(kind: str, made: dict[str, Any] = {}) -> Any:  # noqa: B006 - one tokenizer a kind for all examples
    if kind not in made:
        made[kind] = build_tokenizer([*PROSE, *(gap.join(WORDS * 2) for gap in (" ", "  ", "\n"))], kind, 600)
    return made[kind]


@pytest.mark.parametrize("kind", ["word", "bpe"])
def test_lower_case(kind: str) -> None:
    tokenizer = build_tokenizer([*PROSE, "WiFi the Fox"], kind, 600, lowercase=True)  # type: ignore[arg-type]
    assert tokenizer("Is The FOX here?")["input_ids"] == tokenizer("is the fox here?")["input_ids"]
    assert decode(tokenizer, "The Fox ran") == "the fox ran"
    bert = marked_tokenizer(tokenizer, 40, MARKER_TOKENS)
    assert bert("<user> WIFI", add_special_tokens=False)["input_ids"][0] == bert.get_vocab()["<user>"]
    assert bert.unk_token_id not in bert("<user> WIFI")["input_ids"]


def test_word_pieces_and_special_ids(tokenizer: Any) -> None:
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id) == (0, 1, 2)
    assert (tokenizer.sep_token_id, tokenizer.cls_token_id, tokenizer.mask_token_id) == (1, 3, 4)
    assert tokenizer("the fox")["input_ids"][-1] == 1
    assert tokenizer.clean_up_tokenization_spaces is False
    encoder = encoder_tokenizer(tokenizer, 77)
    plain = tokenizer("the fox", add_special_tokens=False)["input_ids"]
    assert encoder("the fox")["input_ids"] == [3, *plain, 1]
    assert encoder.model_max_length == 77
    causal = causal_tokenizer(tokenizer, 88)
    assert causal("the fox")["input_ids"] == plain and causal.padding_side == "left"


def test_vocabulary_limit_keeps_frequent_and_template_words() -> None:
    corpus = ["often often often rare"] + [f"filler{i}" for i in range(100)]
    tokenizer = build_tokenizer(corpus, "word", 40)
    assert len(tokenizer) == 40
    unknown = tokenizer.unk_token_id
    assert unknown not in tokenizer("often question: context: wikipage: text: | answer:")["input_ids"]
    assert unknown in tokenizer("rare2")["input_ids"]


def test_bpe_knows_every_text() -> None:
    tokenizer = build_tokenizer(["a b"], "bpe", 300)
    assert decode(tokenizer, "unseen ☃ wörds,\x00 \ufffd") == "unseen ☃ wörds,\x00 \ufffd"


def test_models_open_with_from_pretrained(tmp_path: Path) -> None:
    paths = make_tiny_models(PROSE, tmp_path, seed=3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bert", "gpt2", "llama", "longformer", "t5"]
    for path in paths.values():
        assert not [file.name for file in path.iterdir() if file.suffix in (".bin", ".model", ".pt")]
        loaded = AutoTokenizer.from_pretrained(path)
        assert loaded.is_fast and decode(loaded, PROSE[0]) == PROSE[0]
    t5 = AutoModelForSeq2SeqLM.from_pretrained(paths["t5"])
    assert t5.config.decoder_start_token_id == 0 and sum(p.numel() for p in t5.parameters()) < 500_000
    assert AutoModelForCausalLM.from_pretrained(paths["gpt2"]).config.n_positions == 1024
    llama = AutoModelForCausalLM.from_pretrained(paths["llama"])
    assert llama.config.num_key_value_heads == 2 and llama.lm_head.weight is llama.model.embed_tokens.weight
    longformer = LongformerForTokenClassification.from_pretrained(paths["longformer"])
    assert longformer.config.attention_window == [64, 64]
    ids = torch.randint(5, 20, (1, 1024))
    assert longformer(ids).logits.shape == (1, 1024, 2)
    assert AutoModel.from_pretrained(paths["bert"]).config.max_position_embeddings == 512


def test_same_seed_same_weights_and_the_callers_generator_is_left_alone() -> None:
    tokenizer = build_tokenizer(PROSE)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    models = [build_t5(tokenizer, seed=seed) for seed in (1, 1, 2)]
    assert torch.equal(torch.rand(3), expected)
    first, same, other = (model.shared.weight for model in models)
    assert torch.equal(first, same) and not torch.equal(first, other)
    assert not any(model.training for model in models)


def test_t5_variants(tmp_path: Path) -> None:
    tokenizer = build_tokenizer(PROSE)
    untied = build_t5(tokenizer, TinyT5Config(d_model=32, d_ff=48, num_layers=3, gated=True, tied=False))
    block = untied.encoder.block[0].layer[1].DenseReluDense
    assert hasattr(block, "wi_0") and len(untied.decoder.block) == 3
    assert untied.lm_head.weight.data_ptr() != untied.shared.weight.data_ptr()
    tied = build_t5(tokenizer)
    assert tied.lm_head.weight.data_ptr() == tied.shared.weight.data_ptr()
    untied.save_pretrained(tmp_path)
    again = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert torch.equal(again.lm_head.weight, untied.lm_head.weight)


def test_llama_variants() -> None:
    tokenizer = build_tokenizer(PROSE)
    untied = build_llama(tokenizer, TinyLlamaConfig(d_model=24, num_heads=3, num_key_value_heads=1, tied=False))
    assert untied.lm_head.weight is not untied.model.embed_tokens.weight
    assert untied.model.layers[0].self_attn.k_proj.weight.shape == (8, 24)
    for sizes, words in (
        ({"num_key_value_heads": 3}, "multiple of num_key_value_heads, got 4 and 3"),
        ({"d_model": 12, "num_heads": 4}, "heads of even width, got 12 / 4 = 3"),
        ({"d_ff": 0}, "sizes must be positive"),
        ({"initializer_range": 0.0}, "initializer_range"),
    ):
        with pytest.raises(ConfigError, match=words):
            TinyLlamaConfig(**sizes)


def test_longest_longformer_input_has_positions() -> None:
    tokenizer = encoder_tokenizer(build_tokenizer(PROSE), 20)
    model = build_longformer(tokenizer, TinyLongformerConfig(max_length=20, attention_window=8))
    assert model(torch.full((1, 20), 6)).logits.shape[:2] == (1, 20)
    with pytest.raises(IndexError):
        model(torch.full((1, 21), 6))


def test_bert_knows_the_tokens_of_dialogues(tmp_path: Path) -> None:
    tokenizer = marked_tokenizer(build_tokenizer(PROSE), 40, MARKER_TOKENS)
    build_bert(tokenizer).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    tokenizer, model = AutoTokenizer.from_pretrained(tmp_path), AutoModel.from_pretrained(tmp_path)
    ids = tokenizer.convert_tokens_to_ids(list(MARKER_TOKENS))
    assert len(set(ids)) == 4 and tokenizer.unk_token_id not in ids and max(ids) < model.config.vocab_size
    plain = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("Two spaces", "a tab")]
    both = tokenizer("Two spaces <parent_title> a tab")["input_ids"]
    assert both == [3, *plain[0], ids[2], *plain[1], 1]
    assert model(torch.tensor([both])).last_hidden_state.shape == (1, len(both), 64)
    plain_model = build_bert(tokenizer, TinyBertConfig(structured=False)).bert
    assert plain_model.embeddings.word_embeddings.weight[5:].std().item() == pytest.approx(0.1, rel=0.1)


def test_structured_bert_begins_with_near_positions_and_equal_words() -> None:
    tokenizer = marked_tokenizer(build_tokenizer(PROSE), 64, MARKER_TOKENS)
    bert = build_bert(tokenizer, seed=3).bert
    bert.set_attn_implementation("eager")
    ids = torch.randperm(len(tokenizer), generator=torch.Generator().manual_seed(0))[:32]
    ids[29] = ids[4]
    first = bert(ids[None], output_attentions=True).attentions[0][0]  # [heads, query, key]
    of_positions, of_words = first[:2].mean(0), first[2:].mean(0)
    distance = (torch.arange(32)[:, None] - torch.arange(32)).abs()
    assert (of_positions * (distance <= 3)).sum(1).min() > 0.5 > 7 / 32
    uniform = 1 / 32
    assert of_words[4, 29] > 3 * uniform and of_words[29, 4] > 3 * uniform
    others = of_words[4, [j for j in range(32) if j not in (4, 29)]]
    assert others.max() < of_words[4, 29]


def test_random_state_is_left_alone_by_a_structured_bert() -> None:
    tokenizer = marked_tokenizer(build_tokenizer(PROSE), 64, MARKER_TOKENS)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one, two, other = (build_bert(tokenizer, seed=seed).bert.state_dict() for seed in (0, 0, 1))
    assert torch.equal(before, torch.get_rng_state())
    name = "encoder.layer.1.attention.self.key.weight"
    assert torch.equal(one[name], two[name]) and not torch.equal(one[name], other[name])


@pytest.mark.parametrize(
    "make",
    [
        lambda: TinyT5Config(d_model=30, num_heads=4),
        lambda: TinyT5Config(num_layers=0),
        lambda: TinyGPT2Config(max_length=0),
        lambda: TinyLongformerConfig(attention_window=7),
        lambda: TinyLongformerConfig(max_length=3),
        lambda: TinyBertConfig(num_heads=3),
        lambda: TinyBertConfig(d_model=63, num_heads=3),
        lambda: TinyBertConfig(max_length=3),
        lambda: TinyBertConfig(initializer_range=0),
        lambda: build_tokenizer(PROSE, "sentencepiece"),  # type: ignore[arg-type]
        lambda: build_tokenizer(PROSE, "bpe", 100),
        lambda: build_tokenizer(PROSE, "word", 5),
        lambda: read_corpus([]),
    ],
)
def test_impossible_settings_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(ConfigError):
        make()


def test_corpus_files(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps([{"question": "Who?", "passages": [["T", "S1"]], "n": 1}]))
    (tmp_path / "b.jsonl").write_text('{"text": "one"}\n\n{"text": "two"}\n')
    (tmp_path / "c.txt").write_text("plain\n\ntext\n")
    names = [tmp_path / name for name in ("a.json", "b.jsonl", "c.txt")]
    assert read_corpus(names) == ["Who?", "T", "S1", "one", "two", "plain", "text"]
    (tmp_path / "cut.json").write_text('[{"question": "Wh')
    (tmp_path / "empty.txt").write_text("\n")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    for bad in ("cut.json", "empty.txt", "latin.txt", "absent.txt"):
        with pytest.raises(DataError, match=bad):
            read_corpus(tmp_path / bad)


def test_job_writes_what_it_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "c.txt").write_text("\n".join(PROSE))
    made = MakeTinyModels(str(tmp_path / "c.txt"), tmp_path / "out", tokenizer="bpe", vocab_size=300).run()
    assert "vocabulary 300" in capsys.readouterr().out
    assert AutoTokenizer.from_pretrained(made["longformer"]).vocab_size == 300
