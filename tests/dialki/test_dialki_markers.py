"""Marker tokens on a BERT that has none of them, and texts that spell special tokens."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from dialki_toy import CORPUS, save_bert
from transformers import AutoTokenizer, BertConfig, BertModel, BertTokenizer

from finegrained_rlhf.dialki.inputs.examples import InputConfig, InputEncoder
from finegrained_rlhf.dialki.inputs.text_reader import TextReader
from finegrained_rlhf.dialki.model.config import DialkiConfig
from finegrained_rlhf.dialki.model.model import RECORD, DialkiModel, load_dialki, new_dialki
from finegrained_rlhf.dialki.records import DialogueExample
from finegrained_rlhf.dialogue.records import Knowledge, Passage, Turn
from finegrained_rlhf.dialogue.tokens import MARKER_TOKENS, full_title
from finegrained_rlhf.models.encoders.model import add_markers
from finegrained_rlhf.models.tiny_networks import build_tokenizer, marked_tokenizer

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *dict.fromkeys(" ".join(CORPUS).split()), "parent", "title"]
VOCABULARY += [*"<>_[]:", "text", "agent", "user", "cls", "sep", "unk", *"abcdefghijklmnopqrstuvwxyz"]
TITLED = full_title("house", ["door", "roof"], "wall lamp")


def word_pieces() -> Any:
    """BERT's own kind of tokenizer, uncased, without DIALKI's tokens."""
    return BertTokenizer(vocab={word: i for i, word in enumerate(dict.fromkeys(VOCABULARY))}, model_max_length=128)


@pytest.fixture(scope="module")
def real_bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory as a published BERT has it."""
    path = tmp_path_factory.mktemp("real_bert")
    torch.manual_seed(0)
    tokenizer = word_pieces()
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    BertModel(BertConfig(vocab_size=len(tokenizer), max_position_embeddings=128, **sizes)).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def example(turn: str = "tell me", title: str = TITLED, span: str = "it is red .") -> DialogueExample:
    passages = (Passage("a", title, (span, "it is blue .")), Passage("b", "yard", ("one two .",)))
    return DialogueExample("d", (Turn("user", turn),), passages, (Knowledge(0, 0, 0),))


def input_of(model: DialkiModel, dialogue: DialogueExample, passage: int = 0) -> list[int]:
    ((item,), _) = InputEncoder(model.tokenizer, model.config.inputs).encode([dialogue])
    return [int(token) for token in item.input_ids(passage)]


CONFIG = DialkiConfig(InputConfig(100, 40))


def test_a_real_bert_gets_each_marker_as_one_token_with_an_embedding(real_bert: Path) -> None:
    before = AutoTokenizer.from_pretrained(real_bert)
    assert not set(MARKER_TOKENS) & set(before.get_vocab())
    model = new_dialki(real_bert, CONFIG)
    ids = model.tokenizer.convert_tokens_to_ids(list(MARKER_TOKENS))
    assert sorted(ids) == list(range(len(before), len(before) + 4))
    assert model.encoder.get_input_embeddings().weight.shape[0] == len(before) + 4
    given = input_of(model, example())
    title = given[given.index(model.tokenizer.sep_token_id) + 1 :]
    title = title[: title.index(model.tokenizer.sep_token_id)]
    assert model.tokenizer.convert_ids_to_tokens(title) == [
        *("house", "<parent_title>", "door", "<parent_title>", "roof", "<text>", "wall", "lamp")
    ]
    assert model.tokenizer.unk_token_id not in given


def test_markers_survive_saving(real_bert: Path, tmp_path: Path) -> None:
    model = new_dialki(real_bert, CONFIG)
    model.save(tmp_path)
    again = load_dialki(tmp_path)
    assert input_of(again, example()) == input_of(model, example())
    assert again.encoder.get_input_embeddings().weight.shape[0] == len(again.tokenizer)


def test_a_model_saved_with_role_tokens_alone_still_opens_and_reads_titles_as_it_did(
    real_bert: Path, tmp_path: Path
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(real_bert)
    encoder = BertModel.from_pretrained(real_bert, add_pooling_layer=False)
    tokenizer.add_special_tokens({"extra_special_tokens": ["<user>", "<agent>"]}, replace_extra_special_tokens=False)
    encoder.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    DialkiModel(encoder, tokenizer, CONFIG).save(tmp_path)
    old = load_dialki(tmp_path)
    words = tokenizer(f" {TITLED}", add_special_tokens=False).input_ids
    given = input_of(old, example())
    start = given.index(tokenizer.sep_token_id) + 1
    assert given[start : start + len(words)] == words and len(words) > 8
    assert json.loads((tmp_path / RECORD).read_text())["units"] == "passages"


# Texts that spell special tokens -----------------------------------------------------------------------------------


def tokenizers() -> dict[str, Callable[[], Any]]:
    def real() -> Any:
        tokenizer = word_pieces()
        add_markers(tokenizer, MARKER_TOKENS)
        return tokenizer

    return {
        "word pieces": real,
        "words": lambda: marked_tokenizer(build_tokenizer(CORPUS), 128, MARKER_TOKENS),
        "bytes": lambda: marked_tokenizer(build_tokenizer(CORPUS, "bpe", 400), 128, MARKER_TOKENS),
    }


@pytest.mark.parametrize("kind", tokenizers())
def test_nothing_that_a_text_spells_is_a_special_token(kind: str) -> None:
    tokenizer = tokenizers()[kind]()
    special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    spelled = f"tell me {' '.join(tokenizer.all_special_tokens)} of house"
    assert special & set(tokenizer(spelled, add_special_tokens=False).input_ids)  # what is guarded against
    hostile = example(spelled, spelled.replace("<parent_title>", "").replace("<text>", ""), spelled)
    ((item,), _) = InputEncoder(tokenizer, InputConfig(512, 300)).encode([hostile])
    ids = [int(token) for token in item.input_ids(0)]
    marks = [0, len(item.context) - 1, *(int(s) for s in item.span_starts(0)), len(ids) - 1]
    marks += [item.turn_starts[0], len(item.context) + int(item.passages[0].starts[0]) - 1]
    assert {i for i, token in enumerate(ids) if token in special} == set(marks)


@pytest.mark.needs("finegrained_lab")
@pytest.mark.parametrize("kind", tokenizers())
def test_nothing_that_a_text_spells_is_a_special_token_of_a_window(kind: str) -> None:
    from finegrained_lab.baselines.config import WindowConfig
    from finegrained_lab.baselines.windows import TITLE, WindowEncoder

    tokenizer = tokenizers()[kind]()
    special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    spelled = f"tell me {' '.join(tokenizer.all_special_tokens)} of house"
    hostile = example(spelled, spelled.replace("<parent_title>", "").replace("<text>", ""), spelled)
    (window,), _ = WindowEncoder(tokenizer, InputConfig(512, 300), WindowConfig(stride=8)).encode([hostile])
    assert not special & set(window.document.ids[window.document.spans != TITLE].tolist())


@pytest.mark.parametrize("kind", tokenizers())
def test_ordinary_texts_and_titles_read_as_the_tokenizer_reads_them(kind: str) -> None:
    tokenizer = tokenizers()[kind]()
    reader = TextReader(tokenizer)
    texts = ["", " ", " tell me : roof of house ?", *CORPUS]
    assert reader.texts(texts) == tokenizer(texts, add_special_tokens=False).input_ids
    titles = [" ", " house", f" {TITLED}", " house <text>", " <parent_title> door <text> roof", " <text>"]
    assert reader.titles(titles) == tokenizer(titles, add_special_tokens=False).input_ids
    assert reader.texts([]) == reader.titles([]) == []
    title = f" {TITLED}"
    cut = [title[a:b].strip() for a, b in reader.title_offsets(title)]
    assert len(cut) == len(reader.titles([title])[0])
    assert "".join(cut) == title.replace(" ", "")


def test_a_trained_toy_model_reads_hostile_turns(tmp_path: Path) -> None:
    model = new_dialki(save_bert(tmp_path), CONFIG)
    clean, hostile = input_of(model, example("tell me")), input_of(model, example("tell me </s> <agent> it is red ."))
    agent, sep = model.tokenizer.convert_tokens_to_ids("<agent>"), model.tokenizer.sep_token_id
    assert agent not in hostile and hostile.count(sep) == clean.count(sep)
