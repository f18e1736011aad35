"""BERTQA-Span: all spans of a document in one input, the way there and back, and repeated positions."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from dialki_toy import dialogue, job, passage, save_bert, tiny_dialki, toy_examples
from transformers import AutoModel, RobertaConfig, RobertaModel

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.dialki.data import dialogue_row, write_dialogues
from finegrained_rlhf.dialki.finder import KnowledgeFinder
from finegrained_rlhf.dialki.inputs.batches import collate, passages_to_search
from finegrained_rlhf.dialki.inputs.examples import InputConfig, InputEncoder
from finegrained_rlhf.dialki.inputs.units import joined
from finegrained_rlhf.dialki.model.config import DialkiConfig, LossConfig
from finegrained_rlhf.dialki.model.model import load_dialki, new_dialki
from finegrained_rlhf.dialki.records import NO_PASSAGE
from finegrained_rlhf.dialogue.records import Knowledge, Turn
from finegrained_rlhf.models.encoders.model import repeat_positions
from finegrained_rlhf.models.loading import load_tokenizer


def test_a_document_is_one_passage_there_and_back() -> None:
    gold = (Knowledge(1, 0, 1), Knowledge(2, 0, 0))
    example = dialogue("d", [passage(0, 2), passage(1, 3), NO_PASSAGE], gold, (None, Knowledge(0, 1, 1), None))
    document, way = joined(example)
    (one,) = document.passages
    assert one.spans == (
        "door the door is red .", "the door is blue .",
        "roof the roof is blue .", "the roof is green .", "the roof is white .",
        "no_passages_used",
    )  # fmt: skip
    assert document.gold == (Knowledge(0, 2, 3), Knowledge(0, 5, 5))
    assert document.turns[1].knowledge == Knowledge(0, 1, 1) and way.example is example
    for p, begin, end in ((0, 0, 1), (0, 1, 1), (1, 0, 2), (1, 2, 2), (2, 0, 0)):
        assert way.back(way.forth(Knowledge(p, begin, end))) == Knowledge(p, begin, end)
    assert way.back(Knowledge(0, 1, 3)) == Knowledge(1, 0, 1)  # one span of the first passage, two of the second
    assert way.back(Knowledge(0, 1, 2)) == Knowledge(0, 1, 1)  # of equals the first
    assert [way.searched(count) for count in (1, 2, 3, 5, 6)] == [1, 1, 2, 2, 3]


def test_positions_repeat(tmp_path: Path) -> None:
    """Longer inputs see position i modulo n; inputs that the source can read keep their hidden states."""
    save_bert(tmp_path, layers=2, positions=16)
    source, tokenizer = AutoModel.from_pretrained(tmp_path, add_pooling_layer=False).eval(), load_tokenizer(tmp_path)
    tokenizer.model_max_length = 16
    longer = repeat_positions(source, tokenizer, 40)
    table, larger = (model.get_parameter("embeddings.position_embeddings.weight") for model in (source, longer))
    assert larger.shape[0] == longer.config.max_position_embeddings == tokenizer.model_max_length == 40
    assert all(torch.equal(larger[i], table[i % 16]) for i in range(40))
    ids = torch.arange(10, 26)[None]
    with torch.no_grad():
        assert torch.equal(longer(ids).last_hidden_state, source(ids).last_hidden_state)
        assert longer(torch.arange(10, 50)[None] % 20).last_hidden_state.shape == (1, 40, 16)
    assert repeat_positions(longer, tokenizer, 30) is longer
    roberta = RobertaModel(
        RobertaConfig(hidden_size=8, num_attention_heads=1, num_hidden_layers=1, max_position_embeddings=20)
    )
    with pytest.raises(ConfigError, match=r"dialki\.inputs\.max_length: a roberta reads 20 tokens; only a BERT's"):
        repeat_positions(roberta, tokenizer, 40)


def test_a_model_reads_more_than_its_bert_and_answers_by_passage(tmp_path: Path) -> None:
    save_bert(tmp_path / "bert", layers=1, positions=64)
    config = DialkiConfig(inputs=InputConfig(200, 50), units="document", contextualize=False, dropout=0.0)
    torch.manual_seed(0)
    model = new_dialki(tmp_path / "bert", config)
    assert model.config.inputs.max_length == 200 and model.config.system == "BERTQA-Span"
    model.save(tmp_path / "model")
    finder = KnowledgeFinder(load_dialki(tmp_path / "model"))
    example = dialogue("long", [passage(i, 3) for i in range(6)])
    (item,) = finder.encoder.encode([example])[0]
    assert len(item.input_ids(0)) > 64 and item.candidates == (18,) and item.record is example
    for found, one in zip(finder.identify([example, *toy_examples()]), [example, *toy_examples()], strict=True):
        known = found.knowledge
        assert found.searched == found.passages == (known.passage,) and found.probability == 1.0
        assert known.end < len(one.passages[known.passage].spans) and found.text == one.text_of(known)
        assert found.coverage.passages == len(one.passages) and found.coverage.dropped_spans == 0
        assert found.to_json(one)["passage_id"] == one.passages[known.passage].id
    short = InputEncoder(model.tokenizer, InputConfig(70, 30), "document").encode([example])[0][0]
    assert short.passages_searched((0,)) == sum(3 * p < short.candidates[0] for p in range(6)) < 6


def test_the_answer_is_the_part_of_the_best_run_in_one_passage(tmp_path: Path) -> None:
    """The best run of spans by the logits of the one input, as brute force finds it."""
    save_bert(tmp_path / "bert", layers=1)
    model = tiny_dialki(tmp_path / "bert", units="document", contextualize=False)
    finder = KnowledgeFinder(model)
    crossing = 0
    for example in toy_examples():
        (found,) = finder.identify([example])
        (item,) = finder.encoder.encode([example])[0]
        batch = collate([passages_to_search(item, 20)], model.pad_id)
        with torch.no_grad():
            scores = model.next_scores(model.encode(batch), batch)
        begin, end = (part[0, 0].softmax(0).tolist() for part in (scores.begin, scores.end))
        assert len(begin) == 6  # three passages of two spans
        pairs = {(i, j): begin[i] + end[j] for i in range(6) for j in range(i, min(6, i + 5))}
        i, j = max(pairs, key=lambda pair: pairs[pair])
        owners = [n // 2 for n in range(i, j + 1)]
        owner = max(sorted(set(owners)), key=owners.count)
        own = [n % 2 for n in range(i, j + 1) if n // 2 == owner]
        assert found.knowledge == Knowledge(owner, own[0], own[-1])
        assert found.score == pytest.approx(pairs[i, j], abs=1e-5)
        crossing += len(set(owners)) > 1
    assert crossing


def test_a_run_trains_and_is_measured(tmp_path: Path) -> None:
    save_bert(tmp_path / "bert", layers=1, positions=64)
    lines = [
        dialogue_row(one.id, (*one.turns, Turn("agent", "it is .", one.gold[0])), one.passages)
        for one in toy_examples()
    ]
    write_dialogues(tmp_path / "dialogues.jsonl", lines)
    inputs = DialkiConfig(inputs=InputConfig(160, 50), units="document", contextualize=False, dropout=0.0)
    job(tmp_path, tmp_path / "run", dialki=inputs, losses=LossConfig(0.0, 0.0)).run()
    trained = load_dialki(tmp_path / "run")
    assert trained.config.units == "document" and trained.encoder.config.max_position_embeddings == 160
