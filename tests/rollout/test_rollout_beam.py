"""Beam search against enumeration and against transformers' own."""

from __future__ import annotations

import math

import pytest
import torch
from enumeration_toy import every_response, five_token_policy, padded
from rl_toy import model, policy, prompts, tokenizer
from transformers import GenerationConfig

from finegrained_rlhf.core.errors import ModelError
from finegrained_rlhf.core.records import Greedy, Prompt
from finegrained_rlhf.models.policy import Seq2SeqPolicy
from finegrained_rlhf.rollout import make_engine
from finegrained_rlhf.rollout.beam import Hypothesis, beam_search, best
from finegrained_rlhf.rollout.engine import rollout_in_batches


def test_a_wide_beam_finds_every_response_with_its_probability() -> None:
    small, prompt = five_token_policy(), Prompt("x", "", (2, 4, 3, 1))
    responses = every_response(3)
    ids, mask = padded(responses)
    with torch.no_grad():
        memory = small.encode([prompt])
        logprobs = small.logprobs(memory, torch.zeros(len(ids), dtype=torch.long), ids, mask).logprobs.sum(dim=1)
    expected = dict(zip(responses, logprobs.tolist(), strict=True))
    (found,) = beam_search(small, [prompt], 100, 3)
    assert {h.ids for h in found} == set(expected) and len(found) == len(expected)
    for hypothesis in found:
        assert hypothesis.logprob == pytest.approx(expected[hypothesis.ids], abs=1e-4)
        assert hypothesis.finished == (hypothesis.ids[-1] == 1)
    for alpha in (0.0, 0.6, 2.0):
        scores = {row: score / ((5 + len(row)) / 6) ** alpha for row, score in expected.items()}
        assert best(found, alpha).ids == max(scores, key=scores.__getitem__)


@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("kind", ["t5", "mt5"])
def test_the_best_is_that_of_transformers(kind: str, penalty: float) -> None:
    """Its normalisation is |Y|^penalty; the search is the same."""
    ours, asked = policy(kind), prompts(kind, 5)
    found = beam_search(ours, asked, 3, 7)
    settings = GenerationConfig(
        max_new_tokens=7, num_beams=3, length_penalty=penalty, early_stopping="never", do_sample=False,
        eos_token_id=1, pad_token_id=0, decoder_start_token_id=0,
    )  # fmt: skip
    for prompt, hypotheses in zip(asked, found, strict=True):
        output = ours.model.generate(torch.tensor([prompt.input_ids]), generation_config=settings)[0, 1:].tolist()
        chosen = max(hypotheses, key=lambda h: h.logprob / len(h.ids) ** penalty)
        assert output[: len(chosen.ids)] == list(chosen.ids)
        assert set(output[len(chosen.ids) :]) <= {0}


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_one_beam_is_greedy_and_prompts_do_not_meet(kind: str) -> None:
    ours, asked = policy(kind), prompts(kind, 5)
    (greedy,) = rollout_in_batches(make_engine(ours), asked, [Greedy()], max_new_tokens=6)
    together = beam_search(ours, asked, 4, 6)
    for number, prompt in enumerate(asked):
        (alone,) = beam_search(ours, [prompt], 4, 6)
        assert [h.ids for h in alone] == [h.ids for h in together[number]]
        (narrow,) = beam_search(ours, [prompt], 1, 6)
        # with one beam a hypothesis is finished where the end comes first; that is where greedy decoding ends
        length = int(greedy.lengths()[number])
        first = next((h for h in narrow if h.finished), narrow[0])
        assert list(first.ids[:length]) == greedy.response_ids[number, :length].tolist()


def test_length_normalisation_by_hand() -> None:
    short, long = Hypothesis((3, 1), -2.0, True), Hypothesis((3, 4, 5, 6, 7, 8, 1), -3.0, True)
    assert short.normalised(0.0) == -2.0 and long.normalised(1.0) == pytest.approx(-3.0 / 2.0)
    assert short.normalised(1.0) == pytest.approx(-2.0 * 6 / 7)
    assert best([short, long], 0.0) is short and best([short, long], 1.0) is long
    # they change places where 3/2 = (12/7)^α
    even = math.log(1.5) / math.log(12 / 7)
    assert best([short, long], even - 0.01) is short and best([short, long], even + 0.01) is long


def test_what_cannot_be_searched_is_refused() -> None:
    with pytest.raises(ValueError, match="beams"):
        beam_search(policy(), prompts(), 0, 4)
    assert beam_search(policy(), [], 2, 4) == []
    other = Seq2SeqPolicy(model(), tokenizer())
    other.model.train()  # a model in training mode has no stepper
    with pytest.raises(ModelError, match="needs a fast decoder, and T5ForConditionalGeneration has none"):
        beam_search(other, prompts(), 2, 4)
