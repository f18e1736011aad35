"""Reward models as reward components: rewards by label name, formula, order, empty and too long responses."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from feedback_samples import LAKE
from reward_model_samples import CORPUS, enlarged, prompt, save_longformer
from seldom import seldom

from finegrained_rlhf.core.errors import ConfigError, DataError, ModelError
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.rewards import StartableScorer
from finegrained_rlhf.text.segmentation import SpacySegmenter, shared_segmenter
from finegrained_rlhf.text.templates import factuality_input
from reward_models.encoders.inputs import RewardInputEncoder, pad_inputs
from reward_models.encoders.models import RewardModel, load_reward_model, new_reward_model
from reward_models.parts import answer_parts, relevance_parts
from reward_models.record import RewardModelRecord
from reward_models.scorers import SegmentScorer, SequenceScorer

RESPONSES = [
    "It is cold, wide and deep, they say. Yes! It was warm; not so bad, they say.",
    "",
    "It is good.",
    "   ",
    "It is cold. It is wide. It is deep.",
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("models")
    encoder = save_longformer(folder / "encoder")
    for kind in ("relevance", "factuality", "completeness", "preference"):
        moments = {"mean": 0.5, "std": 2.0} if kind in ("completeness", "preference") else {}
        record = RewardModelRecord(kind, global_attention="first", **moments)
        model = enlarged(new_reward_model(encoder, record))
        if record.labels_segments:
            balance(model)
        model.save(folder / kind)
    return {path.name: str(path) for path in folder.iterdir()}


def balance(model: RewardModel) -> None:
    """Move the head's bias so that about half of all segments are found to have an error."""
    parts = [relevance_parts("What is the lake like?", [text, "It is deep."]) for text in CORPUS]
    batch = pad_inputs(RewardInputEncoder(model.tokenizer, model.max_length).encode(parts), model.pad_id)
    with torch.no_grad():
        logits = model.segment_logits(batch)
        model.model.classifier.bias[1] -= (logits[:, 1] - logits[:, 0]).median()


def prompts(count: int = len(RESPONSES)) -> list:
    return [prompt(f"p{i}") for i in range(count)]


@pytest.mark.parametrize("kind", ["relevance", "factuality"])
def test_one_reward_for_each_segment(models: dict[str, str], kind: str) -> None:
    scorer = SegmentScorer(models[kind])
    scorer.setup("cpu")
    scores = scorer.score(prompts(), RESPONSES)
    segmenter = SpacySegmenter()
    cut = segmenter.sub_sentences if kind == "relevance" else segmenter.sentences
    assert [list(spans) for spans in scores.spans] == [cut(text) for text in RESPONSES]
    assert {value for row in scores.values for value in row} <= {1.0, -1.0}
    assert scores.values[1] == () and scores.values[3] == () and not scores.whole_response


def test_factuality_rewards_equal_transformers(models: dict[str, str]) -> None:
    """The whole path again with the tokenizer on the joined text and transformers' own forward."""
    from transformers import AutoTokenizer, LongformerForTokenClassification

    tokenizer = AutoTokenizer.from_pretrained(models["factuality"])
    model = LongformerForTokenClassification.from_pretrained(models["factuality"])
    segments = [RESPONSES[4][a:b] for a, b in SpacySegmenter().sentences(RESPONSES[4])]
    context = f"wikipage: {LAKE.title} text: {LAKE.text}"
    text = " ".join(factuality_input("What is the lake like?", context, segments, "</s>"))
    ids = torch.tensor([tokenizer(text.replace(" </s>", "</s>"))["input_ids"]])
    first = torch.zeros_like(ids)
    first[0, 0] = 1
    labels = model(ids, global_attention_mask=first).logits[0].argmax(-1)
    expected = [1.0 if labels[i] == 0 else -1.0 for i in (ids[0] == 1).nonzero().flatten().tolist()[:-1]]
    assert list(SegmentScorer(models["factuality"]).score([prompt()], [RESPONSES[4]]).values[0]) == expected


@pytest.mark.parametrize(
    ("kind", "attention"),
    seldom(
        list(product(["relevance", "factuality", "completeness", "preference"], ["none", "first", "separators"])),
        [("relevance", "first"), ("factuality", "separators"), ("completeness", "none"), ("preference", "first")],
    ),
)
def test_starting_does_not_wait_for_the_device(
    models: dict[str, str], kind: str, attention: str, tmp_path: Path
) -> None:
    """Tensors of the meta device have shapes and no values: whatever needed a value would fail in `start`."""
    model = load_reward_model(models[kind])
    model.record = replace(model.record, global_attention=attention)
    model.save(tmp_path)
    scorer = (SegmentScorer if kind in ("relevance", "factuality") else SequenceScorer)(str(tmp_path), batch_size=2)
    scorer.setup("meta")
    collect = scorer.start(prompts(), RESPONSES)
    with pytest.raises(NotImplementedError, match="meta"):
        collect()


@pytest.mark.parametrize("kind", ["relevance", "completeness"])
def test_started_scorers_give_what_they_were_asked_for(models: dict[str, str], kind: str) -> None:
    """Two starts before either is collected, in the other order."""
    scorer = (SegmentScorer if kind == "relevance" else SequenceScorer)(models[kind])
    assert isinstance(scorer, StartableScorer)
    expected = scorer.score(prompts(), RESPONSES), scorer.score(prompts(2), RESPONSES[2:4])
    first, second = scorer.start(prompts(), RESPONSES), scorer.start(prompts(2), RESPONSES[2:4])
    later, sooner = second(), first()
    assert (sooner, later) == expected and sooner.values[0] != later.values[0]


class WholeText:
    """A segmenter of one's own: the whole text is one segment."""

    def sentences(self, text: str) -> list[tuple[int, int]]:
        return [(0, len(text))] if text.strip() else []

    sub_sentences = sentences


def test_a_segmenter_of_ones_own(models: dict[str, str]) -> None:
    scores = SegmentScorer(models["relevance"], segmenter=WholeText()).score(prompts(), RESPONSES)
    assert scores.spans == (((0, len(RESPONSES[0])),), (), ((0, 11),), (), ((0, len(RESPONSES[4])),))
    assert [len(values) for values in scores.values] == [1, 0, 1, 0, 1]


def test_scorers_cut_a_response_once(models: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    cut: list[str] = []
    segment = SpacySegmenter._segment

    def counting(self: SpacySegmenter, text: str) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        cut.append(text)
        return segment(self, text)

    monkeypatch.setattr(SpacySegmenter, "_segment", counting)
    shared_segmenter.cache_clear()
    for kind in ("relevance", "factuality"):
        SegmentScorer(models[kind]).score([prompt()], ["It is cold. It is wide."])
    shared_segmenter.cache_clear()
    assert cut == ["It is cold. It is wide."]


@pytest.mark.parametrize("kind", ["relevance", "factuality", "completeness"])
def test_batches_and_order_make_no_difference(models: dict[str, str], kind: str) -> None:
    def score(batch_size: int, order: list[int]) -> list[tuple[float, ...]]:
        make = SequenceScorer if kind == "completeness" else SegmentScorer
        given = [prompts()[i] for i in order], [RESPONSES[i] for i in order]
        values = make(models[kind], batch_size=batch_size).score(*given).values
        return [values[order.index(i)] for i in range(len(order))]

    reference = score(1, [0, 1, 2, 3, 4])
    for found in (score(3, [4, 2, 0, 1, 3]), score(32, [1, 0, 3, 4, 2])):
        for a, b in zip(reference, found, strict=True):
            assert a == pytest.approx(b, abs=1e-5)


def test_reversed_id2label_is_honoured(models: dict[str, str], tmp_path: Path) -> None:
    """A copy whose two classes have changed places, head rows and names alike, gives the same rewards."""
    model = load_reward_model(models["relevance"])
    with torch.no_grad():
        model.model.classifier.weight.copy_(model.model.classifier.weight.flip(0))
        model.model.classifier.bias.copy_(model.model.classifier.bias.flip(0))
    model.save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["id2label"] = {"0": "has_error", "1": "no_error"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    expected = SegmentScorer(models["relevance"]).score(prompts(), RESPONSES).values
    assert {value for row in expected for value in row} == {1.0, -1.0}
    assert SegmentScorer(str(tmp_path)).score(prompts(), RESPONSES).values == expected


def test_rewards_of_both_classes_can_be_set(models: dict[str, str]) -> None:
    plain = SegmentScorer(models["relevance"]).score(prompts(), RESPONSES).values
    other = SegmentScorer(models["relevance"], positive=2.0, negative=0.0).score(prompts(), RESPONSES).values
    assert [[value + 1 for value in row] for row in plain] == [list(row) for row in other]


def test_sequence_reward_is_standardised_once(models: dict[str, str]) -> None:
    model = load_reward_model(models["completeness"])
    encoder = RewardInputEncoder(model.tokenizer, model.max_length)
    inputs = encoder.encode([answer_parts("What is the lake like?", [LAKE], text) for text in RESPONSES])
    with torch.no_grad():
        raw = torch.cat([model.answer_scores(pad_inputs([item], 0)) for item in inputs])
    scores = SequenceScorer(models["completeness"], scale=0.3, bias=0.1).score(prompts(), RESPONSES)
    assert scores.whole_response and scores.spans[1] == ((0, 0),) and scores.spans[2] == ((0, 11),)
    for value, r in zip(scores.values, raw.tolist(), strict=True):
        assert value[0] == pytest.approx((r - 0.5) / 2.0 * 0.3 + 0.1, abs=1e-5)
    other = SequenceScorer(models["completeness"], mean=0.0, std=1.0).score(prompts(), RESPONSES)
    assert [v[0] for v in other.values] == pytest.approx(raw.tolist(), abs=1e-5)


def test_no_responses_no_scores(models: dict[str, str]) -> None:
    for scorer in (SegmentScorer(models["factuality"]), SequenceScorer(models["preference"])):
        assert scorer.score([], []).values in ((), [])
        assert list(scorer.score(prompts(2), ["", ""]).spans[0]) in ([], [(0, 0)])


def test_passages_are_cut_for_a_long_input_and_answers_are_not(models: dict[str, str]) -> None:
    short = SegmentScorer(models["factuality"], max_length=40)
    assert len(short.score([prompt()], [RESPONSES[4]]).values[0]) == 3
    assert short._encoder is not None and short._encoder.inputs_cut == 1
    strict = SegmentScorer(models["factuality"], max_length=40, too_long="refuse")
    with pytest.raises(DataError, match="without its passages"):
        strict.score([prompt()], ["It is cold. " * 20])


@pytest.mark.parametrize("kind", ["factuality", "relevance", "completeness"])
def test_a_response_that_does_not_fit_is_scored_as_far_as_it_does(
    models: dict[str, str], kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One run-on sentence beside a short one: all segments get a value, and the short one keeps its words."""
    make = SequenceScorer if kind == "completeness" else SegmentScorer
    scorer = make(models[kind], max_length=60)
    text = "It is cold. " + "and it is wide and cold " * 30 + "."
    with caplog.at_level(logging.WARNING):
        found = scorer.score([prompt()], [text])
    assert len(found.values[0]) == len(found.spans[0]) >= 1
    assert found.spans[0][-1][1] == len(text)
    encoder = scorer._encoder
    assert encoder is not None and encoder.inputs_lost == 1
    assert "scored without the end of their longest segments" in caplog.text
    with pytest.raises(DataError, match="without its passages"):
        make(models[kind], max_length=60, too_long="refuse").score([prompt()], [text])
    with pytest.raises(ConfigError, match="too_long must be"):
        make(models[kind], too_long="cut")


@pytest.mark.parametrize(
    "call",
    [
        lambda m: SegmentScorer(m["completeness"]).setup(),
        lambda m: SequenceScorer(m["relevance"]).setup(),
        lambda m: SegmentScorer(m["relevance"], granularity="sentence").setup(),
        lambda m: SegmentScorer(m["encoder"]).setup(),
        lambda m: SegmentScorer(m["encoder"], kind="relevance").setup(),
        lambda m: SegmentScorer("nowhere").setup(),
    ],
)
def test_models_that_do_not_fit_are_refused(models: dict[str, str], call: Callable[..., object]) -> None:
    with pytest.raises(ModelError):
        call(models)


def test_a_scalar_model_without_moments_needs_them(models: dict[str, str], tmp_path: Path) -> None:
    model = load_reward_model(models["preference"])
    model.record = replace(model.record, mean=None, std=None)
    model.save(tmp_path)
    with pytest.raises(ModelError, match="mean and std"):
        SequenceScorer(str(tmp_path)).setup()
    SequenceScorer(str(tmp_path), mean=0.0, std=1.0).setup()


def test_a_reward_made_of_rounding_is_told(
    models: dict[str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    SequenceScorer(models["preference"]).setup()
    assert not caplog.records
    model = load_reward_model(models["preference"])
    model.record = replace(model.record, std=5e-6)
    model.save(tmp_path)
    SequenceScorer(str(tmp_path), std=1.0).setup()
    assert not caplog.records
    SequenceScorer(str(tmp_path)).setup()
    assert f"{tmp_path}: the raw scores of this preference model have a standard deviation of 5e-06" in caplog.text


def test_settings_and_prompts_are_checked(models: dict[str, str]) -> None:
    for make in (
        lambda: SegmentScorer("x", granularity="word"),  # type: ignore[arg-type]
        lambda: SegmentScorer("x", batch_size=0),
        lambda: SequenceScorer("x", std=0.0),
        lambda: SequenceScorer("x", max_length=2),
    ):
        with pytest.raises(ConfigError):
            make()
    with pytest.raises(DataError, match="passages"):
        SegmentScorer(models["factuality"]).score([prompt(passages=None)], ["It is."])
    with pytest.raises(DataError, match="passages"):
        SequenceScorer(models["completeness"]).start([prompt(passages=None)], ["It is."])
    bare = replace(prompt(), metadata={})
    with pytest.raises(DataError, match="question"):
        SegmentScorer(models["relevance"]).score([bare], ["It is."])
    assert SegmentScorer(models["relevance"]).score([prompt(passages=None)], ["It is."]).values[0]


def test_a_prompt_without_passages_is_refused_by_models_that_read_them(models: dict[str, str]) -> None:
    """As a conversation has none; an empty list says that there are none."""
    asked = Prompt("talk", "Who?", (5,), {"question": "Who?"})
    for kind, make in (("factuality", SegmentScorer), ("completeness", SequenceScorer), ("relevance", SegmentScorer)):
        scorer = make(models[kind])
        scorer.setup()
        scorer.check_prompts([replace(asked, metadata={"question": "Who?", "passages": ()})])
        if kind == "relevance":
            scorer.check_prompts([asked])
            continue
        with pytest.raises(DataError, match="talk, field metadata.passages: this reward model reads the passages"):
            scorer.check_prompts([asked])


@pytest.mark.parametrize("kind", ["factuality", "relevance", "completeness", "preference"])
@pytest.mark.parametrize("too_long", ["truncate", "refuse"])
def test_a_question_that_leaves_no_room_is_refused_before_the_run(
    models: dict[str, str], kind: str, too_long: Any
) -> None:
    """Exactly where the shortest answer does not fit any more, with a prompt that fits beside it."""
    make = SegmentScorer if kind in ("factuality", "relevance") else SequenceScorer
    fits, asked = prompt("short"), prompt("endless", question="What is the lake like? " * 9)

    def check(limit: int, *prompts: Prompt) -> None:
        scorer = make(models[kind], max_length=limit, too_long=too_long)
        scorer.setup()
        scorer.check_prompts(prompts)

    with pytest.raises(DataError, match=rf"endless, .*the {kind} model .* at most 40 tokens and needs") as caught:
        check(40, fits, asked)
    needed = int(str(caught.value).split("needs ")[1].split()[0])
    check(needed, fits, asked)
    with pytest.raises(DataError, match="no answer to this prompt can be judged"):
        check(needed - 1, fits, asked)
    if too_long == "truncate":
        tight = make(models[kind], max_length=needed)
        text = "It is cold, wide and deep. " * 40
        found = tight.score([asked], [text])
        assert len(found.values[0]) == len(found.spans[0]) == 1


def test_segments_without_a_separator_earn_nothing(models: dict[str, str]) -> None:
    scorer = SegmentScorer(models["relevance"], max_length=40)
    text = " ".join(["Yes!"] * 60)
    found = scorer.score([prompt(), prompt()], [text, "Yes!"])
    assert 1 <= len(found.values[0]) == len(found.spans[0]) < len(scorer.segments(text))
    assert found.spans[0] == tuple(scorer.segments(text))[: len(found.spans[0])] and len(found.values[1]) == 1
    assert scorer._encoder is not None and scorer._encoder.segments_unread == 60 - len(found.spans[0])
