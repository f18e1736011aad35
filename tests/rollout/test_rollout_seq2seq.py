"""Rollouts of encoder–decoder families beside T5 against the whole model at every step: one row at a time, no cache.

What the models' generation settings ask for (`helpers/seq2seq_toy.py`: shortest length, no repeated word, a repetition
penalty, a forced end) must not reach the distribution that is sampled; what they force at the start is given.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from rl_toy import prompts
from seldom import seldom
from seq2seq_toy import FAMILIES, POSITIONS, before_response, seq2seq_policy
from torch import Tensor

from finegrained_rlhf.core.errors import ModelError
from finegrained_rlhf.core.records import Greedy, Prompt, Sample
from finegrained_rlhf.models.config import LoraConfig
from finegrained_rlhf.models.distribution import sample_tokens, warp_logits
from finegrained_rlhf.models.loading import open_policy
from finegrained_rlhf.models.policy import Policy
from finegrained_rlhf.models.weights.saving import save_policy
from finegrained_rlhf.rollout import make_engine
from finegrained_rlhf.rollout.beam import beam_search, best
from finegrained_rlhf.rollout.fast import FastEngine
from finegrained_rlhf.rollout.generate import GenerateEngine
from finegrained_rlhf.rollout.noise import uniform_noise

STEPS = 10
SAMPLED = Sample(2, temperature=1.3, top_k=12, top_p=0.95)


def without_cache(ours: Policy, family: str, prompt: Prompt, noise: Tensor | None) -> tuple[list[int], list[float]]:
    """The response of a loop that runs the whole model on prompt and response so far for every token."""
    ids: list[int] = []
    logprobs: list[float] = []
    for step in range(STEPS):
        inputs = torch.tensor([[*before_response(family), *ids]])
        seen = torch.ones_like(inputs)
        with torch.no_grad():
            output = ours.model(
                input_ids=torch.tensor([prompt.input_ids]), decoder_input_ids=inputs, decoder_attention_mask=seen
            )
        logits = output.logits[:, -1]
        token = logits.argmax(dim=-1) if noise is None else sample_tokens(warp_logits(logits, SAMPLED), noise[[step]])
        ids.append(int(token))
        logprobs.append(float(logits.log_softmax(dim=-1)[0, token]))
        if ids[-1] in ours.eos_ids:
            break
    return ids, logprobs


@pytest.mark.parametrize(
    ("family", "engine"),
    seldom(
        [*((f, "stepper") for f in FAMILIES), ("bart", "generate"), ("t5gemma2", "generate")],
        often=[("bart", "stepper"), ("longt5", "stepper"), ("t5gemma", "stepper"), ("t5gemma2", "generate")],
    ),
)
def test_rollouts_are_those_of_the_whole_model_without_cache(family: str, engine: str) -> None:
    ours, asked = seq2seq_policy(family), prompts("t5", 3)
    ours.eos_ids = (1, 9, 12, 14, 20, 22, 27)  # so that rows end one after the other and are dropped
    drawn_by = make_engine(ours) if engine == "stepper" else GenerateEngine(ours)
    assert isinstance(drawn_by, FastEngine) == (engine == "stepper")
    memory = drawn_by.encode(asked)
    rollout = drawn_by.decode(memory, [Greedy(), SAMPLED], max_new_tokens=STEPS, seed=3, step=1)
    assert len(set(rollout.lengths().tolist())) > 1
    noise = torch.from_numpy(uniform_noise(3, 1, [p.draw for p in asked for _ in range(2)], [0, 1] * 3, STEPS))
    for row, mask in enumerate(rollout.response_mask.bool()):
        prompt, sample = divmod(row, 3)
        drawn = noise[2 * prompt + sample - 1] if sample else None
        ids, logprobs = without_cache(ours, family, asked[prompt], drawn)
        assert rollout.response_ids[row, mask].tolist() == ids
        torch.testing.assert_close(rollout.logprobs[row, mask], torch.tensor(logprobs), atol=1e-5, rtol=1e-5)
    with torch.no_grad():
        scored = ours.logprobs(memory, rollout.prompt_index, rollout.response_ids, rollout.response_mask).logprobs
    torch.testing.assert_close(rollout.logprobs, scored, atol=1e-5, rtol=1e-5)


def test_a_prompt_is_encoded_once_for_all_its_rows() -> None:
    ours, asked, rows = seq2seq_policy("bart"), prompts("t5", 3), []
    ours.model.get_encoder().layers[0].register_forward_hook(lambda m, i, o: rows.append(i[0].shape[0]))
    for engine in (make_engine(ours), GenerateEngine(ours)):
        memory = engine.encode(asked)
        rollout = engine.decode(memory, [Sample(4)], max_new_tokens=4)
        ours.logprobs(memory, rollout.prompt_index, rollout.response_ids, rollout.response_mask)
    assert rows == [3, 3]


def test_adapters_draw_as_they_score(tmp_path: Path) -> None:
    save_policy(seq2seq_policy("mbart"), tmp_path)
    ours = open_policy(tmp_path, lora=LoraConfig(rank=2))
    with torch.no_grad():
        for name, parameter in ours.model.named_parameters():
            if ".lora_B" in name:
                parameter.normal_(std=0.3)
    engine, plain = make_engine(ours), make_engine(seq2seq_policy("mbart"))
    memory = engine.encode(prompts("t5", 3))
    rollout = engine.decode(memory, [Sample(3)], max_new_tokens=STEPS)
    with torch.no_grad():
        scored = ours.logprobs(memory, rollout.prompt_index, rollout.response_ids, rollout.response_mask).logprobs
    torch.testing.assert_close(rollout.logprobs, scored, atol=1e-5, rtol=1e-5)
    other = plain.decode(plain.encode(prompts("t5", 3)), [Sample(3)], max_new_tokens=STEPS)
    assert rollout.texts != other.texts


def test_a_beam_of_one_is_greedy_and_a_wider_one_is_no_worse() -> None:
    ours, asked = seq2seq_policy("bart"), prompts("t5", 2)
    greedy = make_engine(ours).decode(ours.encode(asked), [Greedy()], max_new_tokens=5)
    for number, (one, wide) in enumerate(
        zip(beam_search(ours, asked, 1, 5), beam_search(ours, asked, 8, 5), strict=True)
    ):
        ids = greedy.response_ids[number, greedy.response_mask[number].bool()].tolist()
        assert list(one[0].ids) == ids
        assert one[0].logprob == pytest.approx(float(greedy.logprobs[number].sum()), abs=1e-4)
        assert best(wide, 0.0).logprob >= best(one, 0.0).logprob


def test_responses_beyond_the_last_position_are_refused_before_anything_is_drawn() -> None:
    ours = seq2seq_policy("bart")
    memory, words = ours.encode(prompts("t5", 1)), "the longest response takes 41 positions.*max_new_tokens"
    for engine in (make_engine(ours), GenerateEngine(ours)):
        assert engine.decode(memory, [Greedy()], max_new_tokens=POSITIONS - 1).response_ids.shape[0] == 1
        with pytest.raises(ModelError, match=words):
            engine.decode(memory, [Greedy()], max_new_tokens=POSITIONS)
