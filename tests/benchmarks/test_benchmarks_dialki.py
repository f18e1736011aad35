"""The DIALKI benchmark: its arithmetic against torch's own counter, its checks, and a tiny run from end to end."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from bare_machine import run_on_a_bare_machine
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertConfig, BertModel

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.dialki import PHASES, check_equality, main, run_rounds, table  # noqa: E402
from benchmarks.dialki_plain import PlainDialki  # noqa: E402
from benchmarks.dialki_workload import (  # noqa: E402
    PROFILES,
    build_model,
    encoder_flops,
    encoder_passes,
    make_examples,
)
from finegrained_rlhf.core.errors import ConfigError  # noqa: E402
from finegrained_rlhf.dialki.finder import KnowledgeFinder  # noqa: E402
from finegrained_rlhf.dialki.inputs.batches import collate, passages_to_search  # noqa: E402
from finegrained_rlhf.dialki.model.model import DialkiModel  # noqa: E402
from finegrained_rlhf.dialki.records import DialogueExample  # noqa: E402

TINY = PROFILES["tiny"]


@pytest.fixture(scope="module")
def examples() -> list[DialogueExample]:
    return make_examples(TINY)


@pytest.fixture(scope="module")
def model(examples: list[DialogueExample], tmp_path_factory: pytest.TempPathFactory) -> DialkiModel:
    return build_model(TINY, examples, tmp_path_factory.mktemp("bert"))


def test_operations_of_the_encoder_are_what_torch_counts() -> None:
    config = BertConfig(
        vocab_size=50,
        hidden_size=TINY.width,
        num_hidden_layers=TINY.layers,
        num_attention_heads=TINY.heads,
        intermediate_size=TINY.inner,
        attn_implementation="eager",  # its products are counted one by one
    )
    bert = BertModel(config, add_pooling_layer=False).eval()
    for tokens in (7, 40):
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            bert(torch.zeros(1, tokens, dtype=torch.long))
        assert encoder_flops(TINY, tokens) == counter.get_total_flops()
    assert (encoder_passes(training=False), encoder_passes(training=True)) == (1, 8)


def test_dialogues_are_uneven_and_always_the_same(examples: list[DialogueExample]) -> None:
    assert examples == make_examples(TINY) != make_examples(replace(TINY, seed=1))
    assert [len(example.passages) for example in examples] == [2, 2, 4, 4, 5, 5]
    assert len({len(passage.spans) for example in examples for passage in example.passages}) > 2
    assert [len(example.turns) for example in examples[:2]] == [1, 3] and all(e.gold for e in examples)
    with pytest.raises(ConfigError, match="most_passages"):
        replace(TINY, most_passages=1)


def test_the_encoder_attends_by_sdpa(
    examples: list[DialogueExample], model: DialkiModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One call a layer and group of inputs, none of them in another attention."""
    assert model.encoder.config._attn_implementation == "sdpa"
    finder = KnowledgeFinder(model, batch_size=len(examples), group_size=4)
    encoded, _ = finder.encoder.encode(examples)
    groups = collate([passages_to_search(item, 20) for item in encoded], model.pad_id, group_size=4).groups
    calls, real = [], F.scaled_dot_product_attention

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(args[0].shape)
        return real(*args, **kwargs)

    monkeypatch.setattr(F, "scaled_dot_product_attention", counted)
    finder.identify(examples)
    assert len(groups) > 4 and len(calls) == TINY.layers * len(groups)
    assert {shape[0] for shape in calls} == {len(group.rows) for group in groups}


def test_both_sides_compute_the_same(examples: list[DialogueExample], model: DialkiModel) -> None:
    """Some inputs are cut: spans, turns and whole passages fall away on both sides."""
    _, report = KnowledgeFinder.new_encoder(model).encode(examples)
    assert report.contexts_cut and report.spans_lost and report.turns_lost
    before = [parameter.detach().clone() for parameter in model.parameters()]
    found = check_equality(TINY, model, examples)
    assert set(found) == {"answers", "scores", "relative_loss", "relative_gradient"}
    assert all(line["ok"] for line in found.values())
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_equality_notices_a_side_that_computes_something_else(
    examples: list[DialogueExample], model: DialkiModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = PlainDialki._contextual
    monkeypatch.setattr(PlainDialki, "_contextual", lambda self, *args: 1.01 * real(self, *args))
    found = check_equality(TINY, model, examples)
    assert not any(found[name]["ok"] for name in ("scores", "relative_loss", "relative_gradient"))


@pytest.mark.slow
def test_rounds_are_counted_after_the_warm_up(examples: list[DialogueExample], model: DialkiModel) -> None:
    said: list[str] = []
    times, inputs = run_rounds(replace(TINY, rounds=1, warmup=1, batch_size=2), model, examples, said.append)
    assert all(len(times[phase][side].seconds) == 1 for phase in PHASES for side in ("plain", "ours"))
    assert [line.split(":")[0] for line in said] == ["warm-up, inference", "warm-up, training"] + [
        "round 1, inference",
        "round 1, training",
    ]
    assert len(inputs["inference"][0]) == sum(len(example.passages) for example in examples)
    assert len(inputs["training"][0]) <= 2 * TINY.train_passages


@pytest.mark.scripts
@pytest.mark.parametrize("bare", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_tiny_run(tmp_path: Path, capsys: pytest.CaptureFixture[str], bare: bool) -> None:
    """Bare: where packages are missing that a bare machine lacks."""
    words = ["profile=tiny", "rounds=1", f"out={tmp_path}/tiny.json"]
    if bare:
        shown = run_on_a_bare_machine("dialki", words, tmp_path)
    else:
        main(words)
        shown = capsys.readouterr().out
    document = json.loads((tmp_path / "tiny.json").read_text(encoding="utf-8"))
    assert document["profile"] == "tiny" and document["attention"] == "sdpa"
    for phase, found in document["phases"].items():
        assert found["ratio"] == pytest.approx(found["plain_s"] / found["ours_s"])
        assert min(found["limit_s"], found["ours_processor_s"], found["plain_processor_s"]) > 0
        assert document["examples_per_s"]["ours"][phase] == pytest.approx(found["examples"] / found["ours_s"])
    rate = document["examples_per_s"]["ours"]["inference"]
    assert document["inference_examples_per_minute"]["ours"] == pytest.approx(60 * rate)
    assert all(line["ok"] for line in document["equal"].values())
    assert table(document) in shown and "thesis: 1,000" in shown
