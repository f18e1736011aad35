"""Every decoder-only family against transformers' own forward: tiny random models, one unpadded row at a time."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from families_toy import FAMILIES, WINDOW, batch, family_config, family_model, family_policy, transformers_rows
from rl_toy import tokenizer, written_out
from seldom import seldom
from transformers import AutoModel, AutoModelForCausalLM

from finegrained_rlhf.core.errors import ModelError
from finegrained_rlhf.models.config import LoraConfig
from finegrained_rlhf.models.families.causal import divided_logits, multiplied_logits, softcapped_logits
from finegrained_rlhf.models.loading import open_policy
from finegrained_rlhf.models.policy import CausalPolicy
from finegrained_rlhf.models.value import SeparateValueModel
from finegrained_rlhf.models.weights.saving import save_policy

CHANGED_HEADS = ("cohere", "cohere2", "gemma2", "gemma3_text", "granite")


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_logprobs_are_those_of_the_whole_model(family: str) -> None:
    ours = family_policy(family)
    asked, rows, ids, mask = batch()
    with torch.no_grad():
        memory = ours.encode(asked)
        states = ours.hidden(memory, rows, ids)
        logprobs = ours.logprobs(memory, rows, ids, mask).logprobs
        expected = transformers_rows(ours.model, asked, rows, ids)
        alone = ours.model.lm_head(states)
    real = mask.bool()
    torch.testing.assert_close(ours.head(states)[real], expected[real], atol=1e-5, rtol=0)
    chosen = expected.log_softmax(dim=-1).gather(-1, ids.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(logprobs, chosen * mask, atol=1e-5, rtol=0)
    wrong = (alone.log_softmax(dim=-1) - expected.log_softmax(dim=-1))[real].abs().max()
    assert (float(wrong) > 1) == (family in CHANGED_HEADS)  # what `lm_head` alone would be off by, in nats


def test_head_functions_by_hand() -> None:
    config = family_config("gemma2", final_logit_softcapping=2.0)
    logits = torch.tensor([[0.0, 2.0, -6.0]])
    by_hand = torch.tensor([[0.0, 2 * math.tanh(1.0), -2 * math.tanh(3.0)]])
    torch.testing.assert_close(softcapped_logits(logits, config), by_hand)
    config.final_logit_softcapping = None
    assert softcapped_logits(logits, config) is logits
    torch.testing.assert_close(divided_logits(logits, family_config("granite")), torch.tensor([[0.0, 2 / 3, -2.0]]))
    assert multiplied_logits(logits, family_config("cohere")).tolist() == [[0.0, 0.5, -1.5]]
    assert softcapped_logits(logits.bfloat16(), family_config("gemma2")).dtype == torch.float32


def test_the_windows_of_these_models_are_shorter_than_their_prompts() -> None:
    """Otherwise nothing here would show a window that is counted wrongly."""
    asked, rows, ids, _ = batch()
    assert max(len(prompt.input_ids) for prompt in asked) > WINDOW
    for family in ("gemma2", "mistral", "qwen2", "smollm3"):
        narrow = family_model(family)
        wide = family_model(family, sliding_window=60)
        with torch.no_grad():
            gap = transformers_rows(narrow, asked, rows, ids) - transformers_rows(wide, asked, rows, ids)
        assert float(gap.abs().max()) > 0.05, family


@pytest.mark.parametrize(
    ("family", "tied"),
    seldom(
        [(f, False) for f in FAMILIES] + [(f, True) for f in ("gemma2", "gpt2", "llama", "phi3")],
        often=[*((f, False) for f in ("gemma3_text", "gpt2", "gpt_neox", "phi3", "qwen3_moe")), ("gemma2", True)],
    ),
)
def test_a_trained_policy_and_its_adapter_are_saved_and_opened_again(family: str, tied: bool, tmp_path: Path) -> None:
    """Default adapters, one update, merged weights: the same log-probabilities here and in plain transformers."""
    asked, rows, ids, mask = batch(samples=2)
    save_policy(family_policy(family, tied), tmp_path / "start")
    ours = open_policy(tmp_path / "start", lora=LoraConfig(rank=2, alpha=8))
    before = ours.logprobs(ours.encode(asked), rows, ids, mask).logprobs
    before.mean().backward()
    adapters = [parameter for parameter in ours.model.parameters() if parameter.requires_grad]
    assert adapters and all(parameter.grad is not None for parameter in adapters)
    torch.optim.Adam(adapters, lr=0.05).step()
    save_policy(ours, tmp_path / "trained")
    plain = written_out(AutoModelForCausalLM.from_pretrained(tmp_path / "trained").eval())
    assert (plain.lm_head.weight is plain.get_input_embeddings().weight) == tied
    again = open_policy(tmp_path / "trained")
    with torch.no_grad():
        after = ours.logprobs(ours.encode(asked), rows, ids, mask).logprobs
        loaded = again.logprobs(again.encode(asked), rows, ids, mask).logprobs
        logits = transformers_rows(plain, asked, rows, ids)
        backbone = SeparateValueModel(AutoModel.from_pretrained(tmp_path / "trained"), again).eval()
        assert backbone(again.encode(asked), rows, ids).shape == ids.shape
    chosen = logits.log_softmax(dim=-1).gather(-1, ids.unsqueeze(-1)).squeeze(-1) * mask
    assert float((after - before.detach()).abs().max()) > 0.01
    torch.testing.assert_close(loaded, after, atol=1e-5, rtol=0)
    torch.testing.assert_close(chosen, after, atol=1e-5, rtol=0)


def test_models_with_a_head_that_is_not_known_are_refused() -> None:
    from transformers import StableLmConfig

    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = AutoModelForCausalLM.from_config(StableLmConfig(vocab_size=20, **sizes))
    with pytest.raises(ModelError, match=r"type 'stablelm' are not known here: .* \(known: cohere, .*llama.*smollm3\)"):
        CausalPolicy(model, tokenizer("gpt2"))
    both = family_model("gemma3_text", use_bidirectional_attention=True)
    with pytest.raises(ModelError, match="attends in both directions"):
        CausalPolicy(both, tokenizer("gpt2"))
