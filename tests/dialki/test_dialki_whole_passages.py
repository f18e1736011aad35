"""Passages without spans: one score a passage, nothing lost to a limit, and a loss of each passage by itself."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from dialki_toy import dialogue, job, passage, save_bert, tiny_dialki
from share_toy import Share

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.dialki import DialkiBatchConfig, DialkiConfig, LossConfig, SearchConfig, TrainDialki
from finegrained_rlhf.dialki.data import parse_dialogue
from finegrained_rlhf.dialki.finder import KnowledgeFinder
from finegrained_rlhf.dialki.inputs.batches import NO_LABEL, Targets, passages_to_train
from finegrained_rlhf.dialki.inputs.examples import EncodedExample, InputEncoder
from finegrained_rlhf.dialki.inputs.report import InputReport
from finegrained_rlhf.dialki.model.heads import MASKED, NextScores
from finegrained_rlhf.dialki.model.model import DialkiModel, load_dialki
from finegrained_rlhf.dialki.model.objective import binary_loss, objective
from finegrained_rlhf.dialki.model.search import tune_threshold
from finegrained_rlhf.dialki.records import DialogueExample
from finegrained_rlhf.dialki.training.trainer import DialkiTrainer
from finegrained_rlhf.dialogue.records import Knowledge, Passage
from finegrained_rlhf.runtime.optimizer import OptimizerConfig


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_bert(tmp_path_factory.mktemp("whole") / "bert", layers=1)


def of_one_span(name: str = "d", count: int = 4) -> DialogueExample:
    """A dialogue whose passages have one span each; two of them are gold."""
    passages = [replace(passage(i), spans=(passage(i).text,)) for i in range(count)]
    history = (None, Knowledge(0, 0, 0), None, Knowledge(2, 0, 0), None)
    return dialogue(name, passages, (Knowledge(1, 0, 0), Knowledge(3, 0, 0)), history)


def inputs(model: DialkiModel, examples: Sequence[DialogueExample], **limits: int) -> tuple[Any, InputReport]:
    config = replace(model.config.inputs, **limits)
    return InputEncoder(model.tokenizer, config, model.config.units).encode(examples, training=True)


def losses_of(
    model: DialkiModel, items: Sequence[EncodedExample], config: LossConfig
) -> tuple[torch.Tensor, torch.Tensor]:
    return objective(model, [passages_to_train(item, 3, 0, 1, config.gold) for item in items], config, 7)


@pytest.mark.parametrize("gold", ["one", "all"])
def test_losses_are_those_of_the_passages_of_a_model_with_spans(bert: Path, gold: Any) -> None:
    config = LossConfig(2.0, 0.0, gold)
    old = tiny_dialki(bert, contextualize=False)
    new = tiny_dialki(bert, contextualize=False, units="whole")
    assert not [name for name, _ in new.heads.named_parameters() if "span" in name or "start" in name or "end" in name]
    new.encoder.load_state_dict(old.encoder.state_dict())
    kept = {name: value for name, value in old.heads.state_dict().items() if name in new.heads.state_dict()}
    new.heads.load_state_dict(kept)
    examples = [of_one_span("d"), of_one_span("e", 5)]
    total, parts = losses_of(new, inputs(new, examples)[0], config)
    _, expected = losses_of(old, inputs(old, examples)[0], config)
    values, others = parts.tolist(), expected.tolist()
    assert values[1] == pytest.approx(others[1], rel=1e-6) and values[1] > 0.1
    assert values[2:4] == [0.0, 0.0] and others[2:4] == [0.0, 0.0]  # of one span the old model's are constant too
    assert values[4] == pytest.approx(others[4], rel=1e-6) and values[4] > 0.1
    assert total.item() == pytest.approx(values[1] + 2 * values[4], rel=1e-6)
    total.backward()
    assert all(p.grad is not None and float(p.grad.abs().sum()) > 0 for p in new.heads.parameters() if p.ndim > 1)
    noisy, with_noise = losses_of(new, inputs(new, examples)[0], LossConfig(0.0, 1.0, gold))
    assert with_noise[5] > 0 and torch.isfinite(noisy)


def test_contextual_vectors_enter_the_passages_score_by_a_switch(bert: Path) -> None:
    items, _ = inputs(tiny_dialki(bert, units="whole"), [of_one_span()])
    for contextualize in (True, False):
        model = tiny_dialki(bert, units="whole", contextualize=contextualize)
        width = model.encoder.config.hidden_size
        assert model.heads.passage_head.in_features == (3 * width if contextualize else width)
        before = KnowledgeFinder(model).answer(items)[0].logits
        with torch.no_grad():
            if contextualize:
                model.heads.contextualize["user"].turn.weight.add_(1.0)
        assert (KnowledgeFinder(model).answer(items)[0].logits != before) == contextualize


def test_a_long_passage_is_cut_and_counted_and_never_lost(bert: Path) -> None:
    model = tiny_dialki(bert, units="whole")
    long = Passage("long", "door", (" ".join(["ten"] * 300),))
    title = Passage("title", " ".join(["nine"] * 300), ("one two",))
    example = replace(of_one_span(), passages=(*of_one_span().passages[:3], long, title), turns=of_one_span().turns[:1])
    example = replace(example, gold=(Knowledge(3, 0, 0), Knowledge(4, 0, 0)))
    (item,), report = inputs(model, [example])
    assert item.candidates == (1,) * 5 and item.gold == example.gold and max(item.lengths) == 160
    counts = {name: value for name, value in report.to_json().items() if value}
    assert counts == {"examples": 1, "passages": 5, "passages_cut": 2, "gold_cut": 2}
    assert "2 gold cut" in str(report)
    words = model.tokenizer.convert_ids_to_tokens(item.input_ids(4).tolist())
    assert len(words) == item.lengths[4] < 160 and words.count("▁nine") == (160 - len(item.context) - 1) // 2
    assert words[-4:] == [model.tokenizer.cls_token, "▁one", "▁two", model.tokenizer.sep_token]
    for number in range(5):
        place = int(item.span_starts(number)[0])
        assert item.input_ids(number)[place] == model.tokenizer.cls_token_id
    tight, _ = inputs(model, [example], max_context=4, max_length=10)
    assert tight[0].candidates == (1,) * 5 and all(len(tight[0].input_ids(i)) <= 10 for i in range(5))
    spans = tiny_dialki(bert)
    assert inputs(spans, [example])[1].gold_lost == 2


def test_passages_of_several_spans_are_read_as_one(bert: Path) -> None:
    model = tiny_dialki(bert, units="whole", threshold=0.0)
    example = dialogue("d", gold=(Knowledge(1, 0, 1), Knowledge(1, 2, 2), Knowledge(3, 0, 0)))
    (item,), _ = inputs(model, [example])
    assert item.example.gold == (Knowledge(1, 0, 0), Knowledge(3, 0, 0)) and item.record is example
    (found,) = KnowledgeFinder(model).answer([item])
    assert found.knowledge == Knowledge(found.knowledge.passage, 0, 2)
    assert found.text == example.passages[found.knowledge.passage].text
    assert (found.coverage.spans, found.coverage.total_spans, found.coverage.dropped_spans) == (12, 12, 0)
    assert found.score == 2.0 and len(found.passages) == 4


def test_a_loss_of_every_passage_by_itself() -> None:
    """Logits 2, 0, −1 of which the first and the last are gold, and 1 alone which is not."""
    logits = torch.tensor([[2.0, 0.0, -1.0], [1.0, 0.5, MASKED]], requires_grad=True)
    mask = torch.tensor([[True] * 3, [True, True, False]])
    zeros = torch.zeros(2, 3, 1)
    entries = torch.tensor([[[0, 0, 0], [2, 0, 0]], [[1, 0, 0], [NO_LABEL] * 3]])
    none = torch.full((2, 1), NO_LABEL)
    zero = torch.zeros(2, dtype=torch.int64)
    labels = Targets(zero, zero, zero, none, none, none, entries)
    loss = binary_loss(NextScores(logits, zeros, zeros, mask, mask[:, :, None]), labels)

    def log_sigmoid(x: float) -> float:
        return -math.log(1 + math.exp(-x))

    right = [log_sigmoid(2), log_sigmoid(-1), log_sigmoid(0.5)]
    wrong = [log_sigmoid(-0.0), log_sigmoid(-1)]
    assert loss.tolist() == pytest.approx([-sum(right) - sum(wrong), 0, 0], rel=1e-6)
    loss.sum().backward()
    assert logits.grad is not None and logits.grad[1, 2] == 0
    with pytest.raises(ValueError, match="gold entries"):
        binary_loss(NextScores(logits, zeros, zeros, mask, mask[:, :, None]), replace(labels, entries=entries[:1]))


def test_what_is_right_as_well_is_never_drawn_as_wrong(bert: Path) -> None:
    model = tiny_dialki(bert, units="whole")
    example = replace(of_one_span("d", 6), gold=(Knowledge(1, 0, 0),), also_right=(0, 3))
    (item,), _ = inputs(model, [example])
    drawn = [passages_to_train(item, 3, 0, step).passages for step in range(40)]
    assert all(1 in row for row in drawn) and {number for row in drawn for number in row} == {1, 2, 4, 5}


def test_the_files_field(bert: Path) -> None:
    passages = [{"id": name, "spans": ["one"]} for name in "abc"]
    row = {"turns": [{"role": "user", "text": "x"}], "passages": passages, "gold": {"passage": "a", "begin": 0}}
    (example,) = parse_dialogue({**row, "also_right": ["c", 1]})
    assert example.also_right == (2, 1)
    with pytest.raises(DataError, match=r"also_right\[0\]: no passage has the id 'd'"):
        parse_dialogue({**row, "also_right": ["d"]})
    with pytest.raises(DataError, match=r"also_right\[1\].*passage 3 does not exist"):
        parse_dialogue({**row, "also_right": [0, 3]})
    with pytest.raises(DataError, match="also_right: belongs to a dialogue that ends with a user turn"):
        parse_dialogue(
            {**row, "gold": None, "also_right": [0], "turns": [*row["turns"], {"role": "agent", "text": "y"}]}
        )


def test_a_saved_model_says_what_it_is_and_old_ones_load(bert: Path, tmp_path: Path) -> None:
    search = SearchConfig(select_by="logits")
    model = tiny_dialki(bert, units="whole", search=search, threshold=2.4)
    model.save(tmp_path / "new")
    again = load_dialki(tmp_path / "new")
    assert again.config == model.config and again.config.threshold == 2.4
    items, _ = inputs(model, [of_one_span()])
    (found,) = KnowledgeFinder(again).answer(items)
    logits = torch.tensor(found.logits, dtype=torch.float64)
    assert found.probabilities == pytest.approx(logits.softmax(0).tolist(), abs=1e-6)
    assert found.scores("sigmoid") == pytest.approx(logits.sigmoid().tolist())
    above = {p for p, value in zip(found.searched, found.logits, strict=True) if value > 2.4}
    assert set(found.passages) == above or (not above and len(found.passages) == 1)

    tiny_dialki(bert).save(tmp_path / "old")
    record = json.loads((tmp_path / "old/dialki.json").read_text())
    del record["search"]["select_by"]
    (tmp_path / "old/dialki.json").write_text(json.dumps(record))
    assert load_dialki(tmp_path / "old").config.search.select_by == "probabilities"


def test_gamma_of_logits_is_no_probability() -> None:
    rows, gold = [[4.0, 3.5, -1.0], [2.0, -3.0, 5.0]], [frozenset({0, 1}), frozenset({2})]
    tuned = tune_threshold(rows, gold, most=4, select_by="logits")
    assert tuned is not None and tuned.f1 == 1.0 and 2.0 <= tuned.value < 3.5
    alone = tune_threshold([[4.0, 3.0], [9.0, 1.0]], [frozenset({0})] * 2, most=4, select_by="logits")
    assert alone is not None and alone.value == 9.0


def test_settings_that_do_not_go_together(bert: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="select_by: expected one of probabilities, logits, sigmoid"):
        SearchConfig(select_by="loud")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="dialki.threshold"):
        DialkiConfig(threshold=2.0, search=SearchConfig(select_by="sigmoid"))
    with pytest.raises(ConfigError, match="losses.gold: each asks of passages without spans"):
        job(tmp_path, tmp_path / "run", losses=LossConfig(gold="each"))


@pytest.mark.parametrize("gold", ["one", "each"])
def test_gradients_of_processes_add_up(bert: Path, gold: Any) -> None:
    def gradients(rank: int, count: int) -> Sequence[torch.Tensor]:
        share = Share(rank, count)
        model = tiny_dialki(bert, units="whole")
        items, _ = inputs(model, [of_one_span(name) for name in "abc"])
        batches = DialkiBatchConfig(batch_size=3, passages=3)
        settings = {"optimizer": OptimizerConfig(lr=1e-2), "losses": LossConfig(1.0, 0.5, gold), "batches": batches}
        one = TrainDialki(output_dir="", data="", model="", dialki=model.config, total_steps=10, **settings)
        DialkiTrainer(one, model, items, [], share).train_step(1)
        return share.gradients

    whole, parts = gradients(0, 1), [gradients(rank, 2) for rank in range(2)]
    assert max(float(g.abs().max()) for g in whole) > 1e-3
    for i, expected in enumerate(whole):
        assert torch.allclose(sum(part[i] for part in parts), expected, atol=2e-5, rtol=1e-3)
