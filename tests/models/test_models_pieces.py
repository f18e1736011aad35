"""Prompts in pieces (fusion-in-decoder) against a plain loop over transformers; their order changes nothing."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from rl_toy import policy
from seq2seq_toy import FAMILIES, before_response, seq2seq_policy
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutput

from finegrained_rlhf.core.records import Greedy, Prompt, Sample
from finegrained_rlhf.models.families import pieces
from finegrained_rlhf.models.policy import Policy, Seq2SeqPolicy
from finegrained_rlhf.models.value import SeparateValueModel
from finegrained_rlhf.rollout.beam import beam_search
from finegrained_rlhf.rollout.generate import GenerateEngine
from finegrained_rlhf.rollout.select import make_engine
from finegrained_rlhf.training.micro_batches import micro_batches

KINDS = ("t5", "t5-v1.1", *FAMILIES)
CUTS = ((7, 1, 4), (9,), (3, 8))
ANSWERS = torch.tensor([[5, 9, 12, 4], [8, 3, 3, 7], [20, 6, 11, 1]])


def toy(kind: str) -> Seq2SeqPolicy:
    found = policy(kind) if kind.startswith("t5") and not kind.startswith("t5gemma") else seq2seq_policy(kind)
    assert isinstance(found, Seq2SeqPolicy)
    return found


def fused(cuts: tuple[tuple[int, ...], ...] = CUTS) -> list[Prompt]:
    """A prompt for each tuple of lengths, of pieces with ids of their own."""
    generator = torch.Generator().manual_seed(3)
    found = []
    for number, lengths in enumerate(cuts):
        ids = torch.randint(3, 30, (sum(lengths),), generator=generator).tolist()
        found.append(Prompt(f"p{number}", "", tuple(ids), pieces=lengths))
    return found


def pieces_of(prompt: Prompt) -> list[tuple[int, ...]]:
    ends = [0]
    for length in prompt.pieces:
        ends.append(ends[-1] + length)
    return [prompt.input_ids[start:end] for start, end in pairwise(ends)]


def reordered(prompt: Prompt, order: list[int]) -> Prompt:
    parts = [pieces_of(prompt)[i] for i in order]
    return replace(prompt, input_ids=sum(parts, ()), pieces=tuple(map(len, parts)))


def loop_logits(ours: Seq2SeqPolicy, start: list[int], prompt: Prompt, answer: list[int]) -> Tensor:
    """Logits [T, V] by transformers alone: each piece through the encoder, their states one behind the other."""
    encoder = ours.model.get_encoder()
    states = [encoder(input_ids=torch.tensor([ids])).last_hidden_state for ids in pieces_of(prompt)]
    inputs = torch.tensor([[*start, *answer[:-1]]])
    memory = torch.cat(states, dim=1)
    logits = ours.model(
        encoder_outputs=BaseModelOutput(last_hidden_state=memory),
        attention_mask=torch.ones(memory.shape[:2], dtype=torch.long),
        decoder_input_ids=inputs,
        decoder_attention_mask=torch.ones_like(inputs),
        use_cache=False,
    ).logits
    found: Tensor = logits[0, len(start) - 1 :]
    return found


def ours_logits(ours: Policy, asked: list[Prompt]) -> Tensor:
    return ours.head(ours.hidden(ours.encode(asked), torch.arange(len(asked)), ANSWERS[: len(asked)]))


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_pieces_are_encoded_alone_and_read_together(kind: str) -> None:
    ours = toy(kind)
    start = [0] if kind.startswith("t5") and not kind.startswith("t5gemma") else before_response(kind)
    found = ours_logits(ours, fused())
    for row, prompt in enumerate(fused()):
        expected = loop_logits(ours, start, prompt, ANSWERS[row].tolist())
        torch.testing.assert_close(found[row], expected, atol=1e-5, rtol=0)
    whole = ours_logits(ours, [replace(prompt, pieces=()) for prompt in fused()])
    assert float((whole - found)[0].abs().max()) > 1e-3  # a prompt read as one text is another
    torch.testing.assert_close(whole[1], found[1], atol=1e-5, rtol=0)  # and one piece is that text


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_the_order_of_pieces_changes_nothing(kind: str) -> None:
    ours, asked = toy(kind), fused()
    turned = [reordered(asked[0], [2, 0, 1]), asked[1], reordered(asked[2], [1, 0])]
    torch.testing.assert_close(ours_logits(ours, turned), ours_logits(ours, asked), atol=1e-5, rtol=0)


def test_gradients_are_those_of_the_loop_however_pieces_are_grouped(monkeypatch: pytest.MonkeyPatch) -> None:
    def gradients(logits: Tensor, ours: Policy) -> list[Tensor]:
        weights = [p for p in ours.parameters() if p.requires_grad]
        return list(torch.autograd.grad(logits.square().sum(), weights))

    first, second = toy("t5"), toy("t5")
    plain = torch.stack([loop_logits(first, [0], p, ANSWERS[i].tolist()) for i, p in enumerate(fused())])
    expected = gradients(plain, first)
    checkpointed = toy("t5")
    checkpointed.use_gradient_checkpointing()
    together = gradients(ours_logits(second, fused()), second)
    again = gradients(ours_logits(checkpointed, fused()), checkpointed)
    monkeypatch.setattr(pieces, "PIECE_TOKENS", 8)  # every piece, or nearly, in a batch of its own
    alone = gradients(ours_logits(second, fused()), second)
    for one, *others in zip(expected, together, again, alone, strict=True):
        for other in others:
            torch.testing.assert_close(other, one, atol=1e-4, rtol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_engines_and_beam_search_draw_from_the_fused_memory(kind: str) -> None:
    ours, asked = toy(kind), fused()
    decodings = [Greedy(), Sample(2, top_k=5)]
    fast, plain = make_engine(ours), GenerateEngine(ours)
    drawn = [e.decode(e.encode(asked), decodings, max_new_tokens=6, seed=1) for e in (fast, plain)]
    assert drawn[0].response_ids.tolist() == drawn[1].response_ids.tolist()
    torch.testing.assert_close(drawn[0].logprobs, drawn[1].logprobs, atol=1e-5, rtol=0)
    (batch,) = micro_batches(drawn[0], 3)
    scored = ours.logprobs(ours.encode(batch.prompts), batch.index, batch.ids, batch.mask).logprobs
    torch.testing.assert_close(scored, batch.cut(drawn[0].logprobs), atol=1e-5, rtol=0)
    turned = [reordered(asked[0], [1, 2, 0]), asked[1], reordered(asked[2], [1, 0])]
    for straight, other in zip(beam_search(ours, asked, 3, 5), beam_search(ours, turned, 3, 5), strict=True):
        assert [h.ids for h in straight] == [h.ids for h in other]


@torch.no_grad()
def test_a_value_model_reads_the_same_pieces() -> None:
    ours = toy("t5")
    torch.manual_seed(0)
    value = SeparateValueModel(toy("t5").model, ours)
    asked, index = fused(), torch.arange(3)
    turned = [reordered(asked[0], [2, 1, 0]), *asked[1:]]
    found = value(ours.encode(asked), index, ANSWERS)
    torch.testing.assert_close(value(ours.encode(turned), index, ANSWERS), found, atol=1e-5, rtol=0)
    whole = value(ours.encode([replace(p, pieces=()) for p in asked]), index, ANSWERS)
    assert float((whole - found)[0].abs().max()) > 1e-4


def test_pieces_must_be_all_of_a_prompt() -> None:
    with pytest.raises(ValueError, match="prompt 'p' of 3 tokens cannot have pieces of"):
        Prompt("p", "", (3, 4, 5), pieces=(2, 2))
