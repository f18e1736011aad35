"""Continuous batching against the other engines: the same draws and log-probabilities, and nothing left behind."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest
import torch
from families_toy import family_policy
from rl_toy import needs_continuous, policy, prompts

from finegrained_rlhf.core.errors import ConfigError, ModelError
from finegrained_rlhf.core.records import Decoding, Greedy, Prompt, Rollout, Sample
from finegrained_rlhf.models.config import LoraConfig
from finegrained_rlhf.models.lora import add_lora
from finegrained_rlhf.models.policy import CausalPolicy, Policy
from finegrained_rlhf.rollout import GenerateEngine, RolloutConfig, continuous, make_engine
from finegrained_rlhf.rollout.fast import FastEngine

pytestmark = needs_continuous
MIXTURE: tuple[Decoding, ...] = (Greedy(), Sample(2, 1.3, top_k=12, top_p=0.95), Sample(1, 0.8))


def asked() -> list[Prompt]:
    """Prompts of different lengths, one of a single token and one drawn a second time."""
    found = prompts("gpt2", 3)
    return [*found, Prompt("short", "x", (7,)), replace(found[0], occurrence=2)]


def draw(ours: Policy, kind: Any = "continuous") -> Rollout:
    engine = make_engine(ours, kind)
    return engine.decode(engine.encode(asked()), MIXTURE, max_new_tokens=9, seed=3, step=2)


def assert_same(one: Rollout, other: Rollout) -> None:
    assert torch.equal(one.response_ids, other.response_ids) and torch.equal(one.response_mask, other.response_mask)
    torch.testing.assert_close(one.logprobs, other.logprobs, atol=1e-5, rtol=1e-5)
    assert one.texts == other.texts and one.token_ends == other.token_ends
    assert torch.equal(one.prompt_index, other.prompt_index) and torch.equal(one.sample_index, other.sample_index)


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_draws_are_those_of_our_own_decoder(family: str) -> None:
    """Mistral has a window shorter than the prompts."""
    ours = family_policy(family)
    found = draw(ours)
    assert isinstance(make_engine(ours), FastEngine)
    assert_same(found, draw(ours, "auto"))
    lengths = found.lengths()
    assert int(lengths.min()) < 9 and not torch.equal(found.response_ids[0], found.response_ids[1])


def test_draws_of_a_family_without_a_decoder_of_ours_are_those_of_generate() -> None:
    ours = family_policy("qwen3_moe", use_sliding_window=False, layer_types=None)
    assert isinstance(make_engine(ours), GenerateEngine)
    assert_same(draw(ours), draw(ours, "generate"))


def test_prompts_that_are_read_in_parts_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = family_policy("llama")
    whole = draw(ours)
    monkeypatch.setattr(continuous, "_READ_AT_ONCE", 3)
    monkeypatch.setattr(continuous, "_PAGE", 4)
    assert_same(draw(ours), whole)


def test_log_probabilities_of_the_distribution_that_is_scored() -> None:
    ours = family_policy("llama")
    ours.scored = Sample(2, 1.3, top_k=12, top_p=0.95)
    found = draw(ours)
    memory = ours.encode(asked())
    with torch.no_grad():
        scored = ours.logprobs(memory, found.prompt_index, found.response_ids, found.response_mask).logprobs
        ours.scored = None
        plain = ours.logprobs(memory, found.prompt_index, found.response_ids, found.response_mask).logprobs
    torch.testing.assert_close(found.logprobs, scored, atol=1e-5, rtol=1e-5)
    assert float((plain - scored).abs().max()) > 0.1


def test_adapters_are_in_what_is_drawn() -> None:
    ours = policy("llama")
    adapted = policy("llama")
    lora = CausalPolicy(adapted.model, adapted.tokenizer, add_lora(adapted.model, LoraConfig(rank=2))).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in lora.model.named_parameters():
            if ".lora_" in name:
                parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator))
    assert_same(draw(lora), draw(lora, "auto"))
    assert not torch.equal(draw(ours).response_ids, draw(lora).response_ids)


def test_under_autocast_the_gap_to_the_update_is_bf16_noise() -> None:
    ours = family_policy("llama")
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        found = draw(ours)
        memory = ours.encode(asked())
        scored = ours.logprobs(memory, found.prompt_index, found.response_ids, found.response_mask).logprobs
    assert 1e-5 < float((found.logprobs - scored).abs().max()) < 0.3


def test_model_generators_and_console_are_left_as_they_were(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers tells of its loop where the root logger lets it, as that of a script does."""
    caplog.set_level(logging.INFO)
    logger = logging.getLogger("ContinuousBatchingLogger")
    monkeypatch.setattr(logger, "handlers", [caplog.handler])  # it passes nothing on
    ours = family_policy("llama")
    ours.model.train()
    ours.model.model.layers[0].eval()
    modes = [module.training for module in ours.model.modules()]
    settings, attention = ours.model.generation_config.to_dict(), ours.model.config._attn_implementation
    torch.manual_seed(11)
    before = torch.random.get_rng_state()
    draw(ours)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert [module.training for module in ours.model.modules()] == modes
    assert ours.model.generation_config.to_dict() == settings
    assert ours.model.config._attn_implementation == attention
    assert caplog.messages == [] and logger.level == logging.NOTSET


def test_no_prompt_is_no_row() -> None:
    engine = make_engine(policy("llama"), "continuous")
    rollout = engine.decode(engine.encode([]), [Greedy(), Sample(2)], max_new_tokens=4)
    assert rollout.response_ids.shape == (0, 1) and rollout.texts == []


def test_what_it_cannot_draw_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot draw from T5ForConditionalGeneration: .* decoder-only models; take"):
        make_engine(policy("t5"), "continuous")
    for family in ("gpt_neo", "gemma2"):  # attention of its own; a soft cap that pages would leave out
        with pytest.raises(ConfigError, match="its attention is not transformers' SDPA"):
            make_engine(family_policy(family), "continuous")
    with pytest.raises(ConfigError, match="its layers have one mask, and its layer_types name several"):
        make_engine(family_policy("qwen3_moe"), "continuous")
    dynamic = family_policy("llama")
    dynamic.model.config.rope_parameters = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    with pytest.raises(ConfigError, match="rotary positions depend on the longest row"):
        make_engine(dynamic, "continuous")


def test_a_failure_inside_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = family_policy("llama")

    def broken(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("no more pages")

    monkeypatch.setattr(ours.model, "forward", broken)
    with pytest.raises(ModelError, match="continuous batching of LlamaForCausalLM failed: no more pages"):
        draw(ours)
    assert ours.model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"engine": "none"}, "engine: expected one of auto, own, generate, continuous, vllm, got 'none'"),
        ({"importance_cap": 0.9}, "importance_cap: expected null or at least 1, got 0.9"),
        ({"importance_mode": "token"}, "importance_mode: expected one of token_truncate, token_mask, prefix"),
        ({"importance_cap": 2.0, "logprobs": "decode"}, "takes the engine's for both; take logprobs=auto or update"),
    ],
)
def test_wrong_settings_are_one_error(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RolloutConfig(1, **settings)
