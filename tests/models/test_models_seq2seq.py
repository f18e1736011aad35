"""Encoder–decoder families beside T5 against transformers' own forward: tiny random models."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from packaging.version import Version
from rl_toy import policy, tokenizer, written_out
from seldom import seldom
from seq2seq_toy import (
    FAMILIES,
    LANGUAGE,
    POSITIONS,
    batch,
    before_response,
    seq2seq_config,
    seq2seq_model,
    seq2seq_policy,
    transformers_rows,
)
from torch import Tensor
from transformers import AutoModel, AutoModelForSeq2SeqLM, LongT5Config, MarianConfig

from finegrained_rlhf.core.errors import ModelError
from finegrained_rlhf.core.records import Prompt, pad_rows
from finegrained_rlhf.models.config import LoraConfig, PolicyConfig, ValueConfig
from finegrained_rlhf.models.families.seq2seq import SEQ2SEQ_FAMILIES, seq2seq_family
from finegrained_rlhf.models.loading import open_policy
from finegrained_rlhf.models.policy import Seq2SeqPolicy
from finegrained_rlhf.models.value import SeparateValueModel, SharedTrunkValueModel, ValueHead
from finegrained_rlhf.models.weights.saving import save_policy


def chosen(logits: Tensor, ids: Tensor) -> Tensor:
    return logits.log_softmax(dim=-1).gather(-1, ids.unsqueeze(-1)).squeeze(-1)


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_logprobs_are_those_of_the_whole_model(family: str) -> None:
    ours = seq2seq_policy(family)
    asked, rows, ids, mask = batch()
    ids[1, 2] = 0  # padding that was sampled is read like any other token
    mask[1] = 1
    with torch.no_grad():
        memory = ours.encode(asked)
        states = ours.hidden(memory, rows, ids)
        logprobs = ours.logprobs(memory, rows, ids, mask).logprobs
        expected = transformers_rows(ours.model, family, asked, rows, ids)
        alone = ours.model.lm_head(states)
    if family == "t5gemma":  # its forward would hide padding from later tokens, but generation does not
        seen = torch.ones(1, 7, dtype=torch.long)
        inputs = torch.tensor([[3, *ids[1, :-1].tolist()]])
        encoded = torch.tensor([asked[0].input_ids])
        with torch.no_grad():
            whole = ours.model(input_ids=encoded, decoder_input_ids=inputs, decoder_attention_mask=seen)
        assert float((whole.logits[0, 3:] - expected[1, 3:]).abs().max()) > 1e-3
        expected[1] = whole.logits[0]
    assert list(ours.start_ids) == before_response(family)
    real = mask.bool()
    torch.testing.assert_close(ours.head(states)[real], expected[real], atol=1e-5, rtol=0)
    torch.testing.assert_close(logprobs, chosen(expected, ids) * mask, atol=1e-5, rtol=0)
    assert float((alone.log_softmax(dim=-1) - expected.log_softmax(dim=-1))[real].abs().max()) > 1  # `lm_head` alone


def by_hand(head: ValueHead, states: Tensor) -> Tensor:
    inner = torch.nn.functional.gelu(states @ head.hidden.weight.T + head.hidden.bias)
    return (inner @ head.output.weight.T + head.output.bias)[..., 0]


def plain_states(model: Any, asked: list[Prompt], rows: Tensor, inputs: Tensor) -> Any:
    """transformers' forward over padded rows, every prompt repeated for its rows."""
    ids, mask = pad_rows([prompt.input_ids for prompt in asked], 0)
    options = {"decoder_attention_mask": torch.ones_like(inputs), "output_hidden_states": True, "use_cache": False}
    return model(input_ids=ids[rows], attention_mask=mask[rows], decoder_input_ids=inputs, **options)


@pytest.mark.parametrize(("family", "tied"), [(f, None) for f in FAMILIES] + [("bart", False), ("t5gemma", False)])
def test_values_and_gradients_are_those_of_transformers(family: str, tied: bool | None) -> None:
    """A step with log-probabilities, values on the trunk and values of a model of their own; then another."""
    ours, plain = seq2seq_policy(family, tied), written_out(seq2seq_model(family, tied))
    asked, rows, ids, mask = batch(samples=2)
    start = torch.tensor([before_response(family)]).expand(len(ids), -1)
    inputs = torch.cat([start, ids[:, :-1]], dim=1)
    torch.manual_seed(0)
    shared = SharedTrunkValueModel(ours)
    own = SeparateValueModel(AutoModel.from_config(seq2seq_config(family, tied)), ours).eval()
    head, backbone = copy.deepcopy(shared.head), copy.deepcopy(own.backbone)
    pairs = [(ours.model, plain), (shared.head, head), (own.backbone, backbone)]
    for _ in range(2):
        memory = ours.encode(asked)
        states = ours.hidden(memory, rows, ids)
        values = [shared.from_hidden(states), own(memory, rows, ids)]
        logprobs = ours.logprobs(memory, rows, ids, mask).logprobs
        output = plain_states(plain, asked, rows, inputs)
        late = start.shape[1] - 1
        theirs = [
            by_hand(head, output.decoder_hidden_states[-1][:, late:]),
            by_hand(own.head, plain_states(backbone, asked, rows, inputs).last_hidden_state[:, late:]),
        ]
        expected = chosen(output.logits[:, late:], ids) * mask
        torch.testing.assert_close(logprobs, expected, atol=1e-5, rtol=0)
        for mine, other in zip(values, theirs, strict=True):
            torch.testing.assert_close(mine, other, atol=1e-5, rtol=0)
        assert float(values[1].detach().std()) > 1e-3
        for terms in ([logprobs, *values], [expected, *theirs]):
            torch.stack([(term * mask).sum() for term in terms]).sum().div(mask.sum()).backward()
        for mine, other in pairs:
            for (name, a), b in zip(mine.named_parameters(), other.parameters(), strict=True):
                if any(part in name for part in seq2seq_family(ours.model.config).unread):
                    assert not a.requires_grad and a.grad is None and b.grad is None
                    continue
                if a.grad is None:
                    # Pegasus' positions, and the embeddings that nothing reads where BART's are untied
                    assert b.grad is None and (not a.requires_grad or "shared" in name)
                    continue
                torch.testing.assert_close(a.grad, b.grad, atol=1e-5, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}")
                with torch.no_grad():
                    a.sub_(0.05 * a.grad)
                    b.sub_(0.05 * b.grad)
                a.grad = b.grad = None
        own.head.zero_grad()


def test_decoders_start_as_transformers_shifts_labels() -> None:
    labels = torch.tensor([[9, 10, 1]])
    for family in ("pegasus", "t5gemma", "t5gemma2"):
        shifted = seq2seq_model(family).prepare_decoder_input_ids_from_labels(labels)
        assert shifted.tolist() == [[*before_response(family), 9, 10]]
    spoken = torch.tensor([[9, 10, 1, LANGUAGE]])  # mBART writes the language last and reads it first
    assert seq2seq_model("mbart").prepare_decoder_input_ids_from_labels(spoken).tolist() == [[LANGUAGE, 9, 10, 1]]
    forced = torch.tensor([[3, 9, 10, 1]])  # BART's tokenizer writes <s> before an answer
    assert seq2seq_model("bart").prepare_decoder_input_ids_from_labels(forced).tolist() == [[1, 3, 9, 10]]


@pytest.mark.parametrize(
    ("family", "tied"),
    seldom([(f, None) for f in FAMILIES] + [("t5gemma", False)], often=[("bart", None), ("t5gemma2", None)]),
)
def test_a_trained_policy_and_its_adapter_are_saved_and_opened_again(
    family: str, tied: bool | None, tmp_path: Path
) -> None:
    """Default adapters, one update, merged weights: the same log-probabilities here and in plain transformers."""
    asked, rows, ids, mask = batch(samples=2)
    save_policy(seq2seq_policy(family, tied), tmp_path / "start")
    ours = open_policy(tmp_path / "start", lora=LoraConfig(rank=2, alpha=8))
    before = ours.logprobs(ours.encode(asked), rows, ids, mask).logprobs
    before.mean().backward()
    adapters = {name: p for name, p in ours.model.named_parameters() if p.requires_grad}
    assert all(parameter.grad is not None and ".lora_" in name for name, parameter in adapters.items())
    assert len(adapters) >= 16 and not any("vision" in name for name, _ in ours.model.named_modules() if "lora" in name)
    torch.optim.Adam(adapters.values(), lr=0.05).step()
    save_policy(ours, tmp_path / "trained")
    plain = written_out(AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "trained").eval())
    again = open_policy(tmp_path / "trained")
    assert isinstance(again, Seq2SeqPolicy) and list(again.start_ids) == before_response(family)
    with torch.no_grad():
        after = ours.logprobs(ours.encode(asked), rows, ids, mask).logprobs
        loaded = again.logprobs(again.encode(asked), rows, ids, mask).logprobs
        logits = transformers_rows(plain, family, asked, rows, ids)
        own = ValueConfig("separate", str(tmp_path / "trained"))
        if family == "t5gemma2" and Version(transformers.__version__) < Version("5.21"):
            with pytest.raises(ModelError, match=r"are missing, for example encoder\.vision_tower"):
                own.load(again)  # transformers names these weights otherwise without the head, and does not find them
        else:
            value = own.load(again)
            assert isinstance(value, SeparateValueModel) and value(again.encode(asked), rows, ids).shape == ids.shape
    assert float((after - before.detach()).abs().max()) > 0.01
    torch.testing.assert_close(loaded, after, atol=1e-5, rtol=0)
    torch.testing.assert_close(chosen(logits, ids) * mask, after, atol=1e-5, rtol=0)
    embeddings = [part.weight for part in plain.modules() if isinstance(part, torch.nn.Embedding)]
    assert any(plain.get_output_embeddings().weight is weight for weight in embeddings) == (tied is not False)
    if family == "t5gemma2":  # what reads images is saved as it was read
        first, last = (
            {n: p for n, p in model.named_parameters() if "vision" in n or "multi_modal" in n}
            for model in (AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "start"), plain)
        )
        assert len(first) > 10 and all(torch.equal(first[name], last[name]) for name in first)


@pytest.mark.parametrize("family", FAMILIES)
def test_gradient_checkpointing_changes_nothing(family: str) -> None:
    """BART's layers keep their dropout as numbers, which training mode of the layer alone would switch on."""
    asked, rows, ids, mask = batch(samples=1)
    found = []
    for recompute in (False, True):
        ours = seq2seq_policy(family)
        if recompute:
            ours.use_gradient_checkpointing()
        loss = ours.logprobs(ours.encode(asked), rows, ids, mask).logprobs.sum()
        loss.backward()
        found.append([loss.detach(), *(p.grad for p in ours.model.parameters() if p.grad is not None)])
        assert not any(module.training for module in ours.modules())
        assert getattr(ours.model.config, "dropout", 0.0) == (0.1 if hasattr(ours.model, "final_logits_bias") else 0.0)
    for plain, again in zip(*found, strict=True):
        torch.testing.assert_close(again, plain, atol=1e-5, rtol=1e-4)


def test_longt5_has_t5s_head() -> None:
    torch.manual_seed(0)
    sizes = {"vocab_size": len(tokenizer()), "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2}
    model = AutoModelForSeq2SeqLM.from_config(LongT5Config(**sizes, local_radius=3, decoder_start_token_id=0))
    ours = Seq2SeqPolicy(model, tokenizer()).eval()
    asked, rows, ids, mask = batch(samples=1)
    with torch.no_grad():
        logprobs = ours.logprobs(ours.encode(asked), rows, ids, mask).logprobs
        expected = transformers_rows(model, "pegasus", asked, rows, ids)  # it starts with 0 too
    torch.testing.assert_close(logprobs, chosen(expected, ids) * mask, atol=1e-5, rtol=0)


# What is refused ----------------------------------------------------------------------------------------------------


def test_families_that_are_not_known_are_refused() -> None:
    config = MarianConfig(vocab_size=20, d_model=8, encoder_layers=1, decoder_layers=1, pad_token_id=0)
    config.encoder_attention_heads = config.decoder_attention_heads = 2
    model = AutoModelForSeq2SeqLM.from_config(config)
    words = r"type 'marian' are not known here: .* \(known: bart, .*t5gemma2, umt5\)"
    with pytest.raises(ModelError, match=words):
        Seq2SeqPolicy(model, tokenizer())
    with pytest.raises(ModelError, match=words):
        SeparateValueModel(model.model, policy("t5"))
    assert {*FAMILIES, "t5", "mt5", "umt5", "longt5"} == set(SEQ2SEQ_FAMILIES)


def test_a_model_without_a_start_of_its_decoder_is_refused() -> None:
    model = seq2seq_model("mbart", decoder_start_token_id=None)
    words = "MBart.* does not say with which one token its decoder starts: set decoder_start_token_id"
    for start in (None, [LANGUAGE, 3]):  # a list has one for each row of a batch
        model.generation_config.decoder_start_token_id = start
        with pytest.raises(ModelError, match=words):
            Seq2SeqPolicy(model, tokenizer())
    model.generation_config.decoder_start_token_id = LANGUAGE
    assert Seq2SeqPolicy(model, tokenizer()).start_ids == (LANGUAGE,)


@pytest.mark.parametrize("family", ["bart", "mbart", "pegasus"])
def test_texts_beyond_the_last_position_are_refused_by_name(family: str) -> None:
    ours = seq2seq_policy(family)
    fits = [Prompt("p", "", (5,) * POSITIONS)]
    memory = ours.encode(fits)
    words = rf"the longest prompt takes {POSITIONS + 1} positions, and this \w+.* has {POSITIONS} .*max_prompt_tokens"
    with pytest.raises(ModelError, match=words):
        ours.encode([Prompt("p", "", (5,) * (POSITIONS + 1))])
    room = POSITIONS - len(ours.start_ids) + 1
    index = torch.zeros(1, dtype=torch.long)
    assert ours.hidden(memory, index, torch.full((1, room), 5)).shape[1] == room
    with pytest.raises(
        ModelError, match=rf"the longest response takes {POSITIONS + 1} positions.*max_new_tokens to {room} or less"
    ):
        ours.hidden(memory, index, torch.full((1, room + 1), 5))


def test_a_value_model_reads_what_the_policys_decoder_starts_with() -> None:
    """Its own configuration may say otherwise, and its vocabulary stands where its family keeps it."""
    owner = seq2seq_policy("bart")
    value = SeparateValueModel(AutoModel.from_config(seq2seq_config("pegasus")), owner)
    assert value.start_ids == owner.start_ids == (1, 3)
    small = seq2seq_config("t5gemma")
    small.decoder.vocab_size = 5
    with pytest.raises(ModelError, match="the value model has 5 embeddings"):
        SeparateValueModel(AutoModel.from_config(small), seq2seq_policy("t5gemma"))


def test_frozen_weights_in_bf16_leave_what_images_pass_through(tmp_path: Path) -> None:
    save_policy(seq2seq_policy("t5gemma2"), tmp_path)
    whole = PolicyConfig(str(tmp_path), frozen_dtype="bfloat16").load()
    assert {p.dtype for p in whole.model.parameters()} == {torch.float32}
    adapted = PolicyConfig(str(tmp_path), lora=LoraConfig(rank=2), frozen_dtype="bfloat16").load()
    assert {p.dtype for p in adapted.model.parameters()} == {torch.float32, torch.bfloat16}
