"""Policies against transformers' own forward passes, for copied weights and ragged prompts."""

from __future__ import annotations

import copy

import pytest
import torch
from rl_toy import ARCHITECTURES, SEQ2SEQ, model, policy, prompts, responses, tokenizer
from torch import Tensor

from finegrained_rlhf.core.errors import ModelError
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.models.families.packed import left_pad
from finegrained_rlhf.models.policy import CausalPolicy, Policy, Seq2SeqPolicy

ROWS = torch.tensor([0, 0, 1, 1, 2, 2])


def transformers_logits(kind: str, ids: Tensor) -> Tensor:
    """Logits [R, T, V] of each response token from the whole model, one unpadded prompt at a time."""
    plain, rows = model(kind), []
    for prompt, row in zip([prompts(kind)[i] for i in ROWS], ids, strict=True):
        prompt_ids = torch.tensor([prompt.input_ids])
        with torch.no_grad():
            if kind == "gpt2":
                logits = plain(input_ids=torch.cat([prompt_ids, row[None]], dim=1)).logits
                rows.append(logits[0, len(prompt.input_ids) - 1 : -1])
            else:
                rows.append(plain(input_ids=prompt_ids, labels=row[None]).logits[0])
    return torch.stack(rows)


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_logprobs_and_entropy_equal_transformers(kind: str) -> None:
    ids, mask = responses(kind)
    expected = transformers_logits(kind, ids).log_softmax(dim=-1).gather(-1, ids.unsqueeze(-1)).squeeze(-1)
    ours = policy(kind)
    with torch.no_grad():
        result = ours.logprobs(ours.encode(prompts(kind)), ROWS, ids, mask, entropy=True)
    torch.testing.assert_close(result.logprobs, expected * mask, atol=1e-5, rtol=1e-5)
    assert result.logprobs.dtype == torch.float32
    assert (expected * mask).min() < -4  # far from uniform: a wrong head would show
    entropy = torch.distributions.Categorical(logits=transformers_logits(kind, ids)).entropy()
    torch.testing.assert_close(result.entropy, entropy * mask, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_a_row_depends_on_its_own_prompt_and_tokens_only(kind: str) -> None:
    ours = policy(kind)
    ids, mask = responses(kind)
    with torch.no_grad():
        whole = ours.logprobs(ours.encode(prompts(kind)), ROWS, ids, mask).logprobs
        for row in range(6):
            length = int(mask[row].sum())
            alone = ours.encode([prompts(kind)[ROWS[row]]])
            cut = ids[row : row + 1, :length]
            one = ours.logprobs(alone, torch.tensor([0]), cut, torch.ones_like(cut)).logprobs
            torch.testing.assert_close(one[0], whole[row, :length], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_one_encoding_for_several_responses_gives_the_gradient_of_repeated_prompts(kind: str) -> None:
    ids, mask = responses(kind)

    def gradient(shared: bool) -> dict[str, Tensor]:
        ours = policy(kind)
        rows = ROWS if shared else torch.arange(6)
        asked = prompts(kind) if shared else [prompts(kind)[i] for i in ROWS]
        (ours.logprobs(ours.encode(asked), rows, ids, mask).logprobs ** 2).sum().backward()
        return {name: p.grad for name, p in ours.model.named_parameters()}

    once, repeated = gradient(True), gradient(False)
    assert max(float(g.abs().max()) for g in once.values()) > 1
    for name, value in once.items():
        torch.testing.assert_close(value, repeated[name], atol=1e-5 * float(value.abs().max()), rtol=0)


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_gradient_checkpointing_recomputes_layers_and_changes_nothing_else(kind: str) -> None:
    ids, mask = responses(kind)
    plain, ours = policy(kind), policy(kind)
    ours.model.config.dropout_rate = 0.5
    ours.use_gradient_checkpointing()
    ours.eval()
    name = "decoder.block.0" if kind == "t5" else "transformer.h.0"
    calls = []
    layer = ours.model.get_submodule(name)
    inner = layer.layer[0].layer_norm if kind == "t5" else layer.attn
    inner.register_forward_hook(lambda *_: calls.append(1))
    results = []
    for each in (plain, ours):
        logprobs = each.logprobs(each.encode(prompts(kind)), ROWS, ids, mask).logprobs
        logprobs.sum().backward()
        results.append((logprobs.detach(), {n: p.grad for n, p in each.model.named_parameters()}))
    assert len(calls) == 2  # forward, and again in the backward pass
    torch.testing.assert_close(results[0], results[1], atol=1e-5, rtol=1e-5)
    assert not any(module.training for module in ours.modules())  # dropout stayed off
    with torch.no_grad():
        ours.logprobs(ours.encode(prompts(kind)), ROWS, ids, mask)
    assert len(calls) == 3  # nothing to recompute without gradients
    ours.train()
    ours.logprobs(ours.encode(prompts(kind)), ROWS, ids, mask)
    assert all(module.training for module in ours.modules())  # a trainer that wants dropout keeps it


def test_padding_moves_to_the_left() -> None:
    ids = torch.tensor([[5, 6, 7], [8, 0, 0], [9, 0, 0]])
    mask = torch.tensor([[1, 1, 1], [1, 0, 0], [1, 1, 0]])
    moved, moved_mask = left_pad(ids, mask, pad=4)
    assert moved.tolist() == [[5, 6, 7], [4, 4, 8], [4, 9, 0]]  # the last row has a real token that equals a pad id
    assert moved_mask.tolist() == [[1, 1, 1], [0, 0, 1], [0, 1, 1]]


@pytest.mark.parametrize("kind", SEQ2SEQ)
def test_encoder_states_of_real_tokens_ignore_padding(kind: str) -> None:
    ours = policy(kind)
    with torch.no_grad():
        states = ours.encode(prompts(kind)).states
        short = ours.encode(prompts(kind)[1:2]).states
    torch.testing.assert_close(states[1, : short.shape[1]], short[0], atol=1e-5, rtol=0)


def with_tokens(base: Policy, pad: int | None, eos: int | None, generation_eos: int | list[int] | None) -> Policy:
    changed = copy.deepcopy(tokenizer("gpt2"))
    changed.pad_token = None if pad is None else changed.convert_ids_to_tokens(pad)
    changed.eos_token = None if eos is None else changed.convert_ids_to_tokens(eos)
    base.model.generation_config.eos_token_id = generation_eos
    return CausalPolicy(base.model, changed)


def test_end_and_padding_ids() -> None:
    base = policy("gpt2")
    assert with_tokens(base, pad=0, eos=1, generation_eos=[5, 1]).eos_ids == (5, 1)
    assert with_tokens(base, pad=0, eos=1, generation_eos=None).eos_ids == (1,)
    assert with_tokens(base, pad=None, eos=1, generation_eos=1).pad_id == 1
    with pytest.raises(ModelError, match="end-of-sequence"):
        with_tokens(base, pad=0, eos=None, generation_eos=None)


def test_other_architectures_are_refused() -> None:
    with pytest.raises(ModelError, match="encoder-decoders of type 'gpt2' are not known here"):
        Seq2SeqPolicy(model("gpt2"), tokenizer("gpt2"))
    with pytest.raises(ModelError, match="expected a policy, a causal language model with one lm_head, got GPT2Model"):
        CausalPolicy(model("gpt2").transformer, tokenizer("gpt2"))
    with pytest.raises(ModelError, match="at least one prompt token"):
        policy("gpt2").encode([Prompt("p", "", ())])
