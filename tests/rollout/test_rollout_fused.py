"""Fused policies decode what plain ones decode, adapters and new weights included."""

from __future__ import annotations

import copy

import pytest
import torch
from families_toy import family_policy
from rl_toy import policy as t5_policy
from rl_toy import prompts
from torch import Tensor

from finegrained_rlhf.core.records import Greedy, Rollout, Sample
from finegrained_rlhf.models.config import LoraConfig
from finegrained_rlhf.models.families.causal import CAUSAL_FAMILIES
from finegrained_rlhf.models.families.fused import add_product, fuse
from finegrained_rlhf.models.lora import add_lora
from finegrained_rlhf.models.policy import CausalPolicy, Policy
from finegrained_rlhf.rollout import make_engine
from finegrained_rlhf.rollout.steppers import fused_layers
from finegrained_rlhf.rollout.steppers import t5 as t5_stepper
from finegrained_rlhf.rollout.steppers.causal import CausalStepper
from finegrained_rlhf.rollout.steppers.fused_layers import FusedLayer

DECODINGS = [Greedy(), Sample(2, temperature=1.3, top_k=12)]
FUSED = [name for name, family in CAUSAL_FAMILIES.items() if family.llama_layers]


def twins(family: str) -> tuple[Policy, Policy]:
    """A policy, and the same one fused."""
    plain = t5_policy() if family == "t5" else family_policy(family)
    other = copy.deepcopy(plain)
    fuse(other.model)
    return plain, other


def drawn(of: Policy) -> Rollout:
    """Three responses to each of three prompts."""
    engine = make_engine(of)
    return engine.decode(engine.encode(prompts(count=3)), DECODINGS, max_new_tokens=6, seed=3, step=1)


def layers_of(stepper: CausalStepper) -> int:
    """How many of a stepper's layers are fused."""
    return sum(isinstance(part, FusedLayer) for part in stepper._copy.policy.model.modules())


@pytest.mark.parametrize("family", ["t5", *FUSED])
def test_a_fused_policy_draws_the_same(family: str) -> None:
    plain, other = twins(family)
    found, expected = drawn(other), drawn(plain)
    assert torch.equal(found.response_ids, expected.response_ids)
    torch.testing.assert_close(found.logprobs, expected.logprobs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", FUSED)
def test_all_layers_of_these_families_are_fused(family: str) -> None:
    plain, other = twins(family)
    memory = plain.encode(prompts(count=2))
    assert layers_of(CausalStepper(plain, memory, 2, 4)) == 0
    assert layers_of(CausalStepper(other, memory, 2, 4)) == other.model.config.num_hidden_layers


def test_layers_of_other_kinds_stay() -> None:
    for family in ("granite", "gemma2", "smollm3"):
        other = twins(family)[1]
        assert layers_of(CausalStepper(other, other.encode(prompts(count=2)), 2, 4)) == 0


def test_adapters_and_new_weights_are_read() -> None:
    plain = family_policy("qwen2")  # with biases
    plain = CausalPolicy(plain.model, plain.tokenizer, add_lora(plain.model, LoraConfig(rank=2))).eval()
    with torch.no_grad():
        for name, parameter in plain.model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3)
    other = copy.deepcopy(plain)
    fuse(other.model)
    memory, position = plain.encode(prompts(count=2)), torch.tensor([0])
    stepper = CausalStepper(other, memory, 2, 4)
    assert layers_of(stepper) == other.model.config.num_hidden_layers

    def compare() -> Tensor:
        exact = CausalStepper(plain, memory, 2, 4)
        found = stepper.logits(stepper.first_tokens, position, 1)
        torch.testing.assert_close(found, exact.logits(exact.first_tokens, position, 1), rtol=1e-5, atol=1e-5)
        return found

    before = compare()
    with torch.no_grad():
        for one, two in zip(plain.parameters(), other.parameters(), strict=True):
            one.mul_(1.1)
            two.copy_(one)
    stepper.reload(memory)
    assert not torch.allclose(compare(), before)


@pytest.mark.parametrize("family", ["t5", "llama", "qwen3"])
def test_under_bf16_a_fused_step_is_as_near_to_fp32(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where what a sublayer adds is added by its last product, as on CUDA."""
    plain, other = twins(family)
    memory, position = plain.encode(prompts(count=3)), torch.tensor([0])
    tried = []

    def in_one(hidden: Tensor, states: Tensor, weight: Tensor, in_place: bool) -> Tensor:
        if not in_place or states.dtype != torch.bfloat16:
            return add_product(hidden, states, weight, False)
        tried.append(hidden.dtype)
        return hidden.add_(states.float() @ weight.float().t())

    def logits(of: Policy) -> Tensor:
        stepper = make_engine(of)._open(of, memory, 2, 4)  # type: ignore[attr-defined]
        return stepper.logits(stepper.first_tokens, position, 1)

    exact = logits(plain)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = (logits(plain) - exact).norm()
        assert (logits(other) - exact).norm() < 1.3 * rounded
        for module in (t5_stepper, fused_layers):
            monkeypatch.setattr(module, "sums_in_product", lambda device: True)
            monkeypatch.setattr(module, "add_product", in_one)
        assert 0 < (logits(other) - exact).norm() < 1.3 * rounded
    assert set(tried) == {torch.float32}
