"""Reward models on decoder-only models: parity with transformers, where a segment is read, padding, what is refused."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from families_toy import FAMILIES, family_config
from feedback_samples import LAKE
from reward_model_samples import CORPUS, enlarged, prompt, save_llama
from rl_toy import sharpen
from rl_toy import tokenizer as toy_tokenizer
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
)

from finegrained_rlhf.core.errors import DataError, ModelError
from finegrained_rlhf.models.tiny_networks import build_tokenizer, causal_tokenizer
from finegrained_rlhf.text.segmentation import SpacySegmenter
from finegrained_rlhf.text.templates import factuality_input
from reward_models.encoders.inputs import EncodedInput, RewardInputEncoder, pad_inputs
from reward_models.encoders.models import RewardModel, causal_families, load_reward_model, new_reward_model
from reward_models.job import MakeTinyRewardModels
from reward_models.parts import answer_parts, factuality_parts, relevance_parts
from reward_models.record import RewardModelRecord
from reward_models.scorers import SegmentScorer, SequenceScorer

QUESTION = "What is the lake like?"
SEGMENTS = ["It is cold,", "wide and deep.", "Yes!"]
AUTO = {"factuality": AutoModelForTokenClassification, "preference": AutoModelForSequenceClassification}
FORM = {"factuality": "segment", "preference": "sequence"}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llama(tmp_path_factory.mktemp("llama") / "model")


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Like Llama's: a tokenizer without a padding token."""
    return save_llama(tmp_path_factory.mktemp("bare") / "model", pad_token=None, sep_token=None, cls_token=None)


def outputs(model: RewardModel, inputs: list[EncodedInput]) -> torch.Tensor:
    batch = pad_inputs(inputs, model.pad_id)
    with torch.no_grad():
        return model.segment_logits(batch) if model.record.labels_segments else model.answer_scores(batch)


def alone(model: Any, item: EncodedInput, kind: str) -> torch.Tensor:
    """What transformers' own classifier says of one unpadded input: at each separator, or of the whole."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([item.ids])).logits[0]
    return logits[list(item.separators)] if kind == "factuality" else logits


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_are_those_of_transformers_classifier(family: str, tmp_path: Path) -> None:
    """From a language model to classifiers on disk, which plain transformers opens; ours pads, theirs does not."""
    torch.manual_seed(0)
    sharpen(AutoModelForCausalLM.from_config(family_config(family)), 0).save_pretrained(tmp_path / "lm")
    toy_tokenizer("gpt2").save_pretrained(tmp_path / "lm")
    for kind, form in FORM.items():
        if family not in causal_families(form):
            with pytest.raises(ModelError, match=f"has no For.*Classification for {family} models.*llama"):
                new_reward_model(tmp_path / "lm", RewardModelRecord(kind))
            continue
        ours = new_reward_model(tmp_path / "lm", RewardModelRecord(kind))
        head = ours.model.classifier if hasattr(ours.model, "classifier") else ours.model.score
        torch.nn.init.normal_(head.weight)
        ours.save(tmp_path / kind)
        theirs = AUTO[kind].from_pretrained(tmp_path / kind).eval()
        inputs = []
        for length, where in ((20, (4, 9, 19)), (7, (6,)), (13, (5, 12))):
            ids = torch.randint(2, ours.model.config.vocab_size, (length,)).tolist()
            inputs.append(EncodedInput(tuple(ids), where if kind == "factuality" else ()))
        expected = torch.cat([alone(theirs, item, kind) for item in inputs])
        found = outputs(ours, inputs)
        assert found.std() > 0.05 and torch.allclose(found.reshape(expected.shape), expected, atol=1e-5)


def test_weights_and_record_come_back(llama: Path, tmp_path: Path) -> None:
    record = RewardModelRecord("completeness", "first", 99, "rules", mean=0.25, std=1.5)
    model = new_reward_model(llama, record)
    model.save(tmp_path / "run" / "model")
    again = load_reward_model(tmp_path / "run")
    assert again.record == record and again.max_length == 99 and not again.training
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


def test_a_segment_is_read_behind_itself(llama: Path) -> None:
    """The ids are those of an encoder; the separators are the next ones, and the last one ends the input."""
    tokenizer = causal_tokenizer(build_tokenizer(CORPUS), 512)
    parts = factuality_parts(QUESTION, [LAKE], SEGMENTS)
    (before,) = RewardInputEncoder(tokenizer, 512).encode([parts])
    (behind,) = RewardInputEncoder(tokenizer, 512, causal=True).encode([parts])
    assert behind.ids == before.ids
    assert behind.separators == (*before.separators[1:], len(before.ids) - 1)
    assert [behind.ids[i] for i in behind.separators] == [tokenizer.eos_token_id] * 3
    words = [tokenizer.decode(behind.ids[a + 1 : b]) for a, b in zip(before.separators, behind.separators, strict=True)]
    assert [text.strip() for text in words] == SEGMENTS


def test_a_score_depends_on_its_segment_and_on_what_stands_before_it(llama: Path) -> None:
    model = enlarged(new_reward_model(llama, RewardModelRecord("factuality")))
    other = [SEGMENTS[0], "warm and not so deep.", SEGMENTS[2]]
    encoder = model.input_encoder()
    plain, changed = (outputs(model, encoder.encode([relevance_parts(QUESTION, s)])) for s in (SEGMENTS, other))
    assert torch.allclose(plain[0], changed[0], atol=1e-5)
    assert (plain[1:] - changed[1:]).abs().amax(dim=1).min() > 1e-2


@pytest.mark.parametrize("kind", ["factuality", "preference"])
def test_without_a_padding_token_the_end_token_pads(bare: Path, kind: str, tmp_path: Path) -> None:
    """Plain transformers, given our padded batch and the configuration that is saved, says the same."""
    model = enlarged(new_reward_model(bare, RewardModelRecord(kind)))
    model.save(tmp_path)
    tokenizer, theirs = AutoTokenizer.from_pretrained(tmp_path), AUTO[kind].from_pretrained(tmp_path).eval()
    assert tokenizer.pad_token == tokenizer.eos_token and tokenizer.padding_side == "right"
    assert theirs.config.pad_token_id == model.pad_id == tokenizer.eos_token_id
    encoder = model.input_encoder()
    if kind == "factuality":
        inputs = encoder.encode([factuality_parts(QUESTION, [LAKE], SEGMENTS[:n]) for n in (3, 1, 2)])
        assert all(item.ids[-1] == model.pad_id for item in inputs)
    else:
        inputs = encoder.encode([answer_parts(QUESTION, [LAKE], text) for text in ("It is cold.", "", "Yes! It is.")])
        assert all(model.pad_id not in item.ids for item in inputs)
    batch = pad_inputs(inputs, model.pad_id)
    with torch.no_grad():
        logits = theirs(batch.ids, attention_mask=batch.mask).logits
    expected = logits[batch.rows, batch.positions] if kind == "factuality" else logits.squeeze(-1)
    assert torch.allclose(outputs(model, inputs), expected, atol=1e-5)
    assert torch.allclose(torch.cat([outputs(model, [item]) for item in inputs]), expected, atol=1e-5)


def test_a_separator_that_pads_is_still_learnt(bare: Path, tmp_path: Path) -> None:
    """`padding_idx` would keep its gradient at zero, in a model that is trained on as in a new one."""
    new_reward_model(bare, RewardModelRecord("factuality")).save(tmp_path)
    for model in (new_reward_model(bare, RewardModelRecord("factuality")), load_reward_model(tmp_path)):
        inputs = model.input_encoder().encode([relevance_parts(QUESTION, SEGMENTS)])
        model.segment_logits(pad_inputs(inputs, model.pad_id)).sum().backward()
        assert model.model.get_input_embeddings().weight.grad[model.pad_id].abs().max() > 0


def test_a_tokenizer_without_a_start_token_gets_none(tmp_path: Path) -> None:
    path = save_llama(tmp_path, bos_token=None, cls_token=None)
    model = new_reward_model(path, RewardModelRecord("relevance"))
    with_start = RewardInputEncoder(causal_tokenizer(build_tokenizer(CORPUS), 160), 160, causal=True)
    parts = relevance_parts(QUESTION, SEGMENTS)
    (plain,), (started,) = model.input_encoder().encode([parts]), with_start.encode([parts])
    assert plain.ids == started.ids[1:] and [i + 1 for i in plain.separators] == list(started.separators)
    assert model.input_encoder().room(parts) == with_start.room(parts) + 1


@pytest.mark.parametrize("lacking", [{"pad_token": None}, {}])
@pytest.mark.parametrize(
    "parts", [relevance_parts(QUESTION, SEGMENTS * 4), answer_parts(QUESTION, [LAKE], "It is. " * 9)]
)
def test_exactly_what_fits_is_read(tmp_path: Path, lacking: dict[str, None], parts: Any) -> None:
    encoder = new_reward_model(save_llama(tmp_path, **lacking), RewardModelRecord("relevance")).input_encoder()
    (whole,) = encoder.encode([parts])
    for limit in range(20, len(whole.ids) + 2):
        (item,) = RewardInputEncoder(encoder.tokenizer, limit, "truncate", causal=True).encode([parts])
        assert item.cut + item.lost == max(0, len(whole.ids) - limit) and (item == whole) == (limit >= len(whole.ids))
        assert len(item.ids) == limit if limit < len(whole.ids) and not parts.segments else len(item.ids) <= limit
        assert [item.ids[i] for i in item.separators] == [encoder.sep_id] * len(item.separators)
        assert not parts.segments or item.separators[-1] == len(item.ids) - 1


def test_control_tokens_in_texts_are_plain_text(llama: Path) -> None:
    encoder = new_reward_model(llama, RewardModelRecord("relevance")).input_encoder()
    (item,) = encoder.encode([relevance_parts("</s> <pad>?", ["It is </s> cold.", "<s> wide"])])
    assert item.ids.count(encoder.sep_id) == 3 and encoder.pad_id not in item.ids and item.ids.count(item.ids[0]) == 1


def save_scored(base: Path, kind: str, to: Path) -> str:
    """A model of a kind with weights large enough to tell texts apart; half of its segments are wrong."""
    model = enlarged(new_reward_model(base, RewardModelRecord(kind, mean=0.5, std=2.0)))
    if model.record.labels_segments:
        cut = [[text[a:b] for a, b in SpacySegmenter().sentences(text)] for text in RESPONSES]
        texts = [model.record.definition.parts(QUESTION, [LAKE], segments) for segments in cut if segments]
        logits = outputs(model, model.input_encoder().encode(texts))
        with torch.no_grad():
            ordered = (logits[:, 1] - logits[:, 0]).sort().values
            middle = len(ordered) // 2  # between two segments: one at the border would be right or wrong by rounding
            model.model.score.bias[1] -= ordered[middle - 1 : middle + 1].mean()
    model.save(to)
    return str(to)


RESPONSES = ["It is cold. It is wide. It was warm; not so, they say.", "", "Yes!", "It is deep. Yes! It is good."]


def test_segment_rewards_equal_transformers(llama: Path, tmp_path: Path) -> None:
    """The whole path again: the tokenizer on the joined text, and the label at the separator behind each sentence."""
    path = save_scored(llama, "factuality", tmp_path)
    tokenizer, model = AutoTokenizer.from_pretrained(path), AutoModelForTokenClassification.from_pretrained(path)
    context = f"wikipage: {LAKE.title} text: {LAKE.text}"
    scores = SegmentScorer(path).score([prompt()] * 4, RESPONSES)
    seen = set()
    for text, values in zip(RESPONSES, scores.values, strict=True):
        segments = [text[a:b] for a, b in SpacySegmenter().sentences(text)]
        if segments:
            joined = " ".join(factuality_input(QUESTION, context, segments, "</s>")).replace(" </s>", "</s>")
            ids = torch.tensor([tokenizer(f"<s>{joined}</s>", add_special_tokens=False)["input_ids"]])
            labels = model(ids).logits[0].argmax(-1)[(ids[0] == tokenizer.eos_token_id).nonzero().flatten()[1:]]
            assert list(values) == [1.0 - 2.0 * label for label in labels.tolist()]
        assert len(values) == len(segments)
        seen |= set(values)
    assert seen == {1.0, -1.0}


@pytest.mark.parametrize("kind", ["relevance", "completeness"])
@pytest.mark.parametrize("base", ["llama", "bare"])
def test_batches_and_order_make_no_difference_to_rewards(
    base: str, kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    path, order = save_scored(request.getfixturevalue(base), kind, tmp_path), [3, 1, 0, 2]
    make = SequenceScorer if kind == "completeness" else SegmentScorer
    one = make(path, batch_size=1).score([prompt()] * 4, RESPONSES).values
    many = make(path, batch_size=3).score([prompt()] * 4, [RESPONSES[i] for i in order]).values
    for place, i in enumerate(order):
        assert many[place] == pytest.approx(one[i], abs=1e-5)


@pytest.mark.parametrize("kind", ["relevance", "completeness"])
def test_what_does_not_fit_is_counted_and_scored_as_far_as_it_does(
    llama: Path, kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = save_scored(llama, kind, tmp_path)
    make = SequenceScorer if kind == "completeness" else SegmentScorer
    scorer, text = make(path, max_length=60), "It is cold. " + "and it is wide and cold " * 30 + "."
    with caplog.at_level(logging.WARNING):
        found = scorer.score([prompt()], [text])
    assert len(found.values[0]) == len(found.spans[0]) >= 1 and found.spans[0][-1][1] == len(text)
    assert scorer._encoder is not None and scorer._encoder.inputs_lost == 1
    assert "scored without the end of their longest segments" in caplog.text
    with pytest.raises(DataError, match="without its passages"):
        make(path, max_length=60, too_long="refuse").score([prompt()], [text])
    with pytest.raises(DataError, match="no answer to this prompt can be judged"):
        make(path, max_length=60).check_prompts([prompt(question="What is the lake like? " * 12)])
    if kind == "relevance":
        many = SegmentScorer(path, max_length=40)
        assert 1 <= len(many.score([prompt()], ["Yes! " * 60]).values[0]) < 60
        assert many._encoder is not None and many._encoder.segments_unread > 0


@pytest.mark.parametrize("kind", ["factuality", "preference"])
def test_bf16_autocast_stays_close(llama: Path, kind: str) -> None:
    model = new_reward_model(llama, RewardModelRecord(kind)).train()
    parts = [factuality_parts(QUESTION, [LAKE], SEGMENTS), answer_parts(QUESTION, [LAKE], "Yes! It is.")]
    batch = pad_inputs(model.input_encoder().encode(parts), model.pad_id)
    run = model.segment_logits if kind == "factuality" else model.answer_scores
    exact = run(batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = run(batch)
    assert rounded.dtype == torch.float32 and not torch.equal(rounded, exact)
    assert torch.allclose(rounded, exact, atol=0.02)
    rounded.sum().backward()
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)


def test_tiny_models_of_every_kind(llama: Path, tmp_path: Path) -> None:
    MakeTinyRewardModels(str(llama), str(tmp_path)).run()
    prompts = [prompt()] * 2
    for kind in ("relevance", "factuality"):
        assert SegmentScorer(str(tmp_path / kind)).score(prompts, ["Yes! It is.", ""]).values[1] == ()
    for kind in ("completeness", "preference"):
        assert len(SequenceScorer(str(tmp_path / kind)).score(prompts, ["Yes! It is.", ""]).values[1]) == 1


def test_what_cannot_be_one_is_refused(llama: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no end token"):
        new_reward_model(save_llama(tmp_path / "endless", eos_token=None), RewardModelRecord("relevance"))
    tokenizer = toy_tokenizer("gpt2")
    both = AutoModelForCausalLM.from_config(family_config("gemma3_text", use_bidirectional_attention=True))
    small = AutoModelForCausalLM.from_config(family_config("llama", vocab_size=1, pad_token_id=None))
    ahead = AutoModelForCausalLM.from_config(family_config("llama"))
    ahead.config.is_causal = False
    for name, model in (("both", both), ("ahead", ahead), ("small", small)):
        model.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    for name in ("both", "ahead"):
        with pytest.raises(ModelError, match="in both directions"):
            new_reward_model(tmp_path / name, RewardModelRecord("preference"))
    with pytest.raises(ModelError, match="has 1 embeddings.*do not belong together"):
        new_reward_model(tmp_path / "small", RewardModelRecord("preference"))


def test_a_long_rope_is_read_as_far_as_it_does_not_change(tmp_path: Path) -> None:
    rotary = {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [2.0], "rope_theta": 10000.0}
    config = family_config("phi3", rope_parameters=rotary, original_max_position_embeddings=24)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    toy_tokenizer("gpt2").save_pretrained(tmp_path)
    assert new_reward_model(tmp_path, RewardModelRecord("relevance")).max_length == 24
