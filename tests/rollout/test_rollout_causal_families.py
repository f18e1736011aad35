"""Rollouts of every decoder-only family against the whole model at every step: one row at a time, no cache, no padding.

The tiny models have what sets their family apart switched on (`helpers/families_toy.py`): windows shorter than the
prompts, soft caps, scales, grouped queries, norms of queries and keys.
"""

from __future__ import annotations

import pytest
import torch
from families_toy import family_policy
from rl_toy import prompts
from seldom import seldom
from torch import Tensor

from finegrained_rlhf.core.records import Greedy, Prompt, Sample
from finegrained_rlhf.models.config import LoraConfig
from finegrained_rlhf.models.distribution import sample_tokens, warp_logits
from finegrained_rlhf.models.families.causal import CAUSAL_FAMILIES
from finegrained_rlhf.models.lora import add_lora
from finegrained_rlhf.models.policy import CausalPolicy
from finegrained_rlhf.rollout import make_engine
from finegrained_rlhf.rollout.fast import FastEngine
from finegrained_rlhf.rollout.generate import GenerateEngine
from finegrained_rlhf.rollout.noise import uniform_noise

STEPS = 10
SAMPLED = Sample(2, temperature=1.3, top_k=12, top_p=0.95)


def without_cache(ours: CausalPolicy, prompt: Prompt, noise: Tensor | None) -> tuple[list[int], list[float]]:
    """The response of a loop that runs the whole model on prompt and response so far for every token."""
    ids: list[int] = []
    logprobs: list[float] = []
    for step in range(STEPS):
        with torch.no_grad():
            logits = ours.model(input_ids=torch.tensor([[*prompt.input_ids, *ids]])).logits[:, -1]
        token = logits.argmax(dim=-1) if noise is None else sample_tokens(warp_logits(logits, SAMPLED), noise[[step]])
        ids.append(int(token))
        logprobs.append(float(logits.log_softmax(dim=-1)[0, token]))
        if ids[-1] in ours.eos_ids:
            break
    return ids, logprobs


@pytest.mark.parametrize(
    "family",
    seldom(
        [name for name, family in CAUSAL_FAMILIES.items() if family.stepped],
        often=["cohere", "gemma2", "gpt2", "gpt_neox", "granite", "phi3", "qwen3"],
    ),
)
def test_rollouts_are_those_of_the_whole_model_without_cache(family: str) -> None:
    ours, asked = family_policy(family), prompts("gpt2", 4)
    engine = make_engine(ours)
    assert isinstance(engine, FastEngine)
    memory = engine.encode(asked)
    rollout = engine.decode(memory, [Greedy(), SAMPLED], max_new_tokens=STEPS, seed=3, step=1)
    noise = torch.from_numpy(uniform_noise(3, 1, [p.draw for p in asked for _ in range(2)], [0, 1] * 4, STEPS))
    for row, mask in enumerate(rollout.response_mask.bool()):
        prompt, sample = divmod(row, 3)
        ids, logprobs = without_cache(ours, asked[prompt], None if sample == 0 else noise[2 * prompt + sample - 1])
        assert rollout.response_ids[row, mask].tolist() == ids
        torch.testing.assert_close(rollout.logprobs[row, mask], torch.tensor(logprobs), atol=1e-5, rtol=1e-5)
    with torch.no_grad():
        scored = ours.logprobs(memory, rollout.prompt_index, rollout.response_ids, rollout.response_mask).logprobs
    torch.testing.assert_close(rollout.logprobs, scored, atol=1e-5, rtol=1e-5)


def test_a_family_that_the_stepper_does_not_know_is_drawn_by_generate() -> None:
    assert [name for name, family in CAUSAL_FAMILIES.items() if not family.stepped] == ["gpt_neo", "qwen3_moe"]
    for name in ("gpt_neo", "qwen3_moe"):
        assert isinstance(make_engine(family_policy(name)), GenerateEngine)


def test_under_autocast_keys_and_values_lie_in_its_dtype() -> None:
    """Rotary positions make fp32 of a bf16 key; the cache holds what attention computes with."""
    ours, asked = family_policy("llama"), prompts("gpt2", 3)
    exact = make_engine(ours).decode(ours.encode(asked), [Greedy()], max_new_tokens=1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        engine = make_engine(ours)
        assert isinstance(engine, FastEngine)
        stepper = engine._open(ours, ours.encode(asked), 1, 1)
        rounded = engine.decode(ours.encode(asked), [Greedy()], max_new_tokens=1)
    layers = stepper._cache.layers.values()
    assert {t.dtype for layer in layers for t in vars(layer).values()} == {torch.bfloat16}
    same = exact.response_ids == rounded.response_ids
    gap = (exact.logprobs - rounded.logprobs)[same].abs()
    assert bool(same.any()) and 1e-5 < float(gap.max()) < 0.3


@pytest.mark.parametrize("lora", [False, True])
def test_gradient_checkpointing_leaves_the_fast_engine(lora: bool) -> None:
    """It is for the update; transformers' hook on the embeddings would send rollouts to `generate`."""
    ours = family_policy("llama")
    if lora:
        ours = CausalPolicy(ours.model, ours.tokenizer, add_lora(ours.model, LoraConfig(rank=2))).eval()
    ours.use_gradient_checkpointing()
    assert isinstance(make_engine(ours), FastEngine)
