"""Training examples that share rows: states and gradients of each by itself, and what is computed for them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from families_toy import FAMILIES, family_policy
from rl_toy import policy, sharpen, tokenizer
from seq2seq_toy import seq2seq_policy
from torch import Tensor
from transformers import UMT5Config, UMT5ForConditionalGeneration

from finegrained_rlhf.core.errors import ModelError
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.models.config import LoraConfig
from finegrained_rlhf.models.dropout import set_dropout
from finegrained_rlhf.models.families.attention import FLEX_OR_SDPA
from finegrained_rlhf.models.families.causal import CAUSAL_FAMILIES
from finegrained_rlhf.models.families.rows import lay_out
from finegrained_rlhf.models.lora import add_lora
from finegrained_rlhf.models.policy import Policy, Seq2SeqPolicy

PACKED = tuple(family for family in FAMILIES if CAUSAL_FAMILIES[family].packed)
T5 = ("t5", "t5-v1.1", "mt5", "umt5")
LENGTHS = ((12, 5), (3, 2), (6, 9), (1, 1), (7, 3))
"""Tokens of prompts and of their answers; the windows of families that have one are shorter."""


def toy(family: str) -> Policy:
    if family != "umt5":
        return policy(family) if family in T5 else family_policy(family)
    torch.manual_seed(0)
    size = len(tokenizer())
    config = UMT5Config(vocab_size=size, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2)
    config.decoder_start_token_id = 0
    return Seq2SeqPolicy(sharpen(UMT5ForConditionalGeneration(config), 0), tokenizer()).eval()


def examples() -> tuple[list[Prompt], list[tuple[int, ...]]]:
    """Prompts and answers of `LENGTHS`, without special tokens."""
    ids = iter(torch.randint(3, 30, (100,), generator=torch.Generator().manual_seed(5)).tolist())
    drawn = [[tuple(next(ids) for _ in range(count)) for count in lengths] for lengths in LENGTHS]
    return [Prompt(f"p{i}", "", prompt) for i, (prompt, _) in enumerate(drawn)], [answer for _, answer in drawn]


def states_and_gradients(ours: Policy, in_rows: bool, prompts: list[Prompt] | None) -> tuple[Tensor, dict[str, Tensor]]:
    """The states, and the gradients of a loss that weighs every number in them otherwise."""
    asked, answers = examples()
    ours.zero_grad(set_to_none=True)
    states = ours.answer_states(prompts or asked, answers, in_rows)
    (states * torch.linspace(-1, 1, states.numel()).view_as(states)).mean().backward()
    named = ours.model.named_parameters()
    return states.detach(), {name: value.grad for name, value in named if value.grad is not None}


def assert_equal_in_rows(ours: Policy, prompts: list[Prompt] | None = None) -> None:
    (rows, of_rows), (padded, of_padded) = (states_and_gradients(ours, way, prompts) for way in (True, False))
    torch.testing.assert_close(rows, padded, atol=1e-5, rtol=1e-5)
    assert of_rows.keys() == of_padded.keys() and any(float(grad.abs().max()) > 1e-3 for grad in of_padded.values())
    for name, grad in of_padded.items():
        torch.testing.assert_close(of_rows[name], grad, atol=1e-5, rtol=1e-5, msg=name)


def columns(ours: Policy, in_rows: bool) -> list[tuple[int, ...]]:
    """The shapes of the ids that are embedded, padding included."""
    seen: list[tuple[int, ...]] = []
    for module in ours.model.modules():
        if isinstance(module, torch.nn.Embedding) and module.num_embeddings == ours.model.config.vocab_size:
            module.register_forward_pre_hook(lambda module, args: seen.append(tuple(args[0].shape)))
    with torch.no_grad():
        ours.answer_states(*examples(), in_rows)
    return seen


def test_the_largest_text_comes_first_and_each_goes_where_it_fits_first() -> None:
    assert lay_out([(3,), (9,), (5,), (4,), (2,), (6,)]) == [[1], [5, 0], [2, 3], [4]]
    assert lay_out([(2, 9), (4, 1), (2, 1), (1, 1)]) == [[1], [0], [2, 3]]
    assert lay_out([(1,)]) == [[0]]


@pytest.mark.parametrize("family", [*T5, *PACKED])
def test_states_and_gradients_are_those_of_padded_rows(family: str) -> None:
    ours = toy(family)
    assert ours.takes_rows
    assert_equal_in_rows(ours)


@pytest.mark.parametrize("family", ["t5", "umt5", "gpt2", "mistral", "gemma2"])
def test_in_training_mode_too(family: str) -> None:
    """There a model's own passes run, under dropout, which is 0 here so that they can be compared."""
    ours = toy(family)
    set_dropout(ours.model, 0.0)
    assert_equal_in_rows(ours.train())


@pytest.mark.parametrize("family", ["t5", "qwen2"])
def test_adapters_and_recomputation(family: str) -> None:
    model = toy(family).model
    torch.manual_seed(2)
    wrapper = add_lora(model, LoraConfig(rank=2, alpha=4))
    for name, parameter in model.named_parameters():
        if ".lora_B." in name:
            torch.nn.init.normal_(parameter, std=0.3)
    plain = toy(family)
    ours = type(plain)(model, plain.tokenizer, wrapper).eval()
    assert_equal_in_rows(ours)
    ours.use_gradient_checkpointing()
    assert_equal_in_rows(ours)


def test_pieces_of_a_prompt_are_encoded_alone() -> None:
    prompts, _ = examples()
    cuts = ((7, 1, 4), (3,), (2, 4), (1,), (4, 3))
    pieces = [replace(prompt, pieces=cut) for prompt, cut in zip(prompts, cuts, strict=True)]
    assert_equal_in_rows(toy("t5"), pieces)
    whole, cut = (states_and_gradients(toy("t5"), True, asked)[0] for asked in (prompts, pieces))
    assert float((whole - cut).abs().max()) > 1e-2


def test_what_is_computed_for_them() -> None:
    """Texts of 16, 14, 9, 4 and 1 tokens, and T5's prompts and answers: all in rows as long as the longest."""
    assert columns(toy("llama"), False) == [(5, 12 + 9)]
    assert columns(toy("llama"), True) == [(3, 16)]  # 16 | 14 and 1 | 9 and 4
    assert columns(toy("t5"), False) == [(5, 12), (5, 9)]
    assert columns(toy("t5"), True) == [(3, 12), (3, 9)]


def test_rows_of_one_example_need_no_mask() -> None:
    ours, masks = toy("llama"), []
    ours.model.base_model.layers[0].register_forward_pre_hook(
        lambda module, args, kwargs: masks.append(kwargs["attention_mask"]), with_kwargs=True
    )
    prompts, answers = examples()
    few = prompts[:1] + prompts[2:3], answers[:1] + answers[2:3]
    with torch.no_grad():
        rows, padded = (ours.answer_states(*few, way) for way in (True, False))
    torch.testing.assert_close(rows, padded, atol=1e-5, rtol=1e-5)
    assert masks[0] is None and masks[1] is not None


def test_they_are_no_matter_for_flex_attention() -> None:
    """Where it was chosen for packed responses, rows run under SDPA, as any other mask does."""
    ours = toy("mistral")
    expected = states_and_gradients(ours, False, None)[0]
    ours.model.config._attn_implementation = FLEX_OR_SDPA
    assert ours.takes_rows
    torch.testing.assert_close(states_and_gradients(ours, True, None)[0], expected, atol=1e-5, rtol=1e-5)


def test_others_are_padded_as_ever() -> None:
    """What counts distances in columns, or positions in a table, cannot share rows; nor can an empty prompt."""
    for ours in (family_policy("gpt_neo"), seq2seq_policy("bart"), seq2seq_policy("t5gemma")):
        assert not ours.takes_rows
        with torch.no_grad():
            assert torch.equal(*(ours.answer_states(*examples(), way) for way in (True, False)))
    with pytest.raises(ModelError, match="at least one prompt token"):
        toy("llama").answer_states([Prompt("p", "", ())], [(3, 4)], True)
