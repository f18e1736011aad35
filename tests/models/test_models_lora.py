"""LoRA: what moves, what the reference is, and merged weights that plain transformers opens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from rl_toy import model, policy, prompts, responses, tokenizer
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

from finegrained_rlhf.core.errors import CheckpointError, ConfigError, ModelError
from finegrained_rlhf.models.config import LoraConfig
from finegrained_rlhf.models.loading import open_policy
from finegrained_rlhf.models.lora import add_lora, merged_state, reference_adapter
from finegrained_rlhf.models.policy import Policy
from finegrained_rlhf.models.weights.restore import restore_weights
from finegrained_rlhf.models.weights.saving import save_policy

ROWS = torch.tensor([0, 0, 1, 1, 2, 2])
CONFIG = LoraConfig(rank=2, alpha=6)


def saved(kind: str, path: Path) -> Path:
    model(kind).save_pretrained(path)
    tokenizer(kind).save_pretrained(path)
    return path


def perturb(policy_: Policy, adapter: str = "default", seed: int = 0) -> None:
    """Give both matrices of every adapter some content (B starts at 0)."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in policy_.model.named_parameters():
            if ".lora_" in name and f".{adapter}." in name:
                parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator))


@torch.no_grad()
def score(policy_: Policy, kind: str) -> torch.Tensor:
    ids, mask = responses(kind)
    return policy_.logprobs(policy_.encode(prompts(kind)), ROWS, ids, mask).logprobs


def far(a: torch.Tensor, b: torch.Tensor) -> bool:
    return float((a - b).abs().max()) > 1e-2


@pytest.mark.parametrize("kind", ["t5", "t5-v1.1", "gpt2"])
def test_a_new_adapter_changes_nothing_and_only_it_trains(kind: str, tmp_path: Path) -> None:
    ours = open_policy(saved(kind, tmp_path), lora=CONFIG)
    assert torch.equal(score(ours, kind), score(policy(kind), kind))
    trained = [name for name, p in ours.model.named_parameters() if p.requires_grad]
    assert trained and all(".lora_" in name for name in trained)
    assert not any(module.training for module in ours.modules())
    before = {n: p.detach().clone() for n, p in ours.model.named_parameters() if ".lora_" not in n}
    ids, mask = responses(kind)
    ours.logprobs(ours.encode(prompts(kind)), ROWS, ids, mask).logprobs.sum().backward()
    torch.optim.SGD([p for p in ours.model.parameters() if p.requires_grad], lr=0.1).step()
    assert far(score(ours, kind), score(policy(kind), kind))
    assert all(torch.equal(p, before[n]) for n, p in ours.model.named_parameters() if ".lora_" not in n)


def test_the_reference_is_the_policy_with_the_adapter_off(tmp_path: Path) -> None:
    ours = open_policy(saved("t5", tmp_path), lora=CONFIG)
    start = score(policy("t5"), "t5")
    perturb(ours)
    moved = score(ours, "t5")
    assert far(moved, start)
    for context in (ours.adapter.disable_adapter, lambda: reference_adapter(ours.adapter)):
        with context():
            torch.testing.assert_close(score(ours, "t5"), start, atol=1e-6, rtol=0)
        assert torch.equal(score(ours, "t5"), moved)
    trained = [name for name, p in ours.model.named_parameters() if p.requires_grad]
    assert trained and all(".lora_" in name for name in trained)


def merged_by_hand(ours: Policy) -> dict[str, torch.Tensor]:
    """W + α/r · B A of every adapted layer."""
    weights = dict(ours.model.named_parameters(remove_duplicate=False))
    result = {}
    for name in weights:
        if name.endswith(".base_layer.weight"):
            layer = name.removesuffix(".base_layer.weight")
            a, b = weights[f"{layer}.lora_A.default.weight"], weights[f"{layer}.lora_B.default.weight"]
            result[f"{layer}.weight"] = (weights[name] + 6 / 2 * b @ a).detach()
    return result


def test_merging_by_hand(tmp_path: Path) -> None:
    ours = open_policy(saved("t5", tmp_path), lora=CONFIG)
    perturb(ours)
    before = {n: p.detach().clone() for n, p in ours.model.named_parameters()}
    merged, expected = merged_state(ours.model), merged_by_hand(ours)
    assert len(expected) == 12  # q and v of two encoder blocks and of two attentions in two decoder blocks
    for name, weight in expected.items():
        torch.testing.assert_close(merged[name], weight)
    assert set(merged) == set(model("t5").state_dict())
    assert all(torch.equal(p, before[n]) for n, p in ours.model.named_parameters())  # the policy itself is untouched


@pytest.mark.parametrize("kind", ["t5", "t5-v1.1", "gpt2"])
def test_a_saved_policy_opens_with_transformers_and_speaks_alike(kind: str, tmp_path: Path) -> None:
    ours = open_policy(saved(kind, tmp_path / "start"), lora=CONFIG)
    perturb(ours)
    save_policy(ours, tmp_path / "saved")
    auto: Any = AutoModelForCausalLM if kind == "gpt2" else AutoModelForSeq2SeqLM
    plain, info = auto.from_pretrained(tmp_path / "saved", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    ids = torch.tensor([prompts(kind)[0].input_ids])
    more = {} if kind == "gpt2" else {"labels": ids}
    with torch.no_grad():
        expected = ours.model(input_ids=ids, **more).logits
        scale = expected.abs().max()  # fp32 rounds in proportion to the largest logit
        torch.testing.assert_close(plain(input_ids=ids, **more).logits / scale, expected / scale, atol=1e-5, rtol=0)
        assert far(model(kind)(input_ids=ids, **more).logits, expected)
    assert (tmp_path / "saved" / "adapter" / "adapter_config.json").is_file()
    assert not list((tmp_path / "saved").rglob("*.bin"))


def test_an_adapter_on_a_tied_head_is_merged_into_the_head_alone(tmp_path: Path) -> None:
    ours = open_policy(saved("t5", tmp_path / "start"), lora=LoraConfig(rank=2, alpha=6, target_modules=("lm_head",)))
    perturb(ours)
    save_policy(ours, tmp_path / "saved")
    torch.testing.assert_close(score(open_policy(tmp_path / "saved"), "t5"), score(ours, "t5"), atol=1e-5, rtol=0)


def test_training_continues_from_an_adapter_whose_start_is_the_reference(tmp_path: Path) -> None:
    base = saved("t5", tmp_path / "start")
    first = open_policy(base, lora=CONFIG)
    perturb(first)
    save_policy(first, tmp_path / "saved")
    start = score(first, "t5")
    second = open_policy(base, adapter=str(tmp_path / "saved" / "adapter"))
    torch.testing.assert_close(score(second, "t5"), start, atol=1e-6, rtol=0)
    perturb(second, seed=1)
    moved = score(second, "t5")
    assert far(moved, start)
    with reference_adapter(second.adapter):
        torch.testing.assert_close(score(second, "t5"), start, atol=1e-6, rtol=0)
    assert torch.equal(score(second, "t5"), moved)
    trained = [name for name, p in second.model.named_parameters() if p.requires_grad]
    assert trained and all(".default." in name for name in trained)
    save_policy(second, tmp_path / "again")
    torch.testing.assert_close(score(open_policy(tmp_path / "again"), "t5"), moved, atol=1e-5, rtol=1e-5)


def test_adapters_are_restored_bit_by_bit(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    ours, other = (open_policy(saved("t5", tmp_path / "start"), lora=CONFIG) for _ in range(2))
    perturb(ours)
    adapters = {n: t.contiguous() for n, t in ours.model.state_dict().items() if ".lora_" in n}
    save_file(adapters, tmp_path / "a.safetensors")
    restore_weights(other.model, tmp_path / "a.safetensors", part=".lora_")
    assert torch.equal(score(other, "t5"), score(ours, "t5"))
    adapters.pop(sorted(adapters)[0])
    save_file(adapters, tmp_path / "b.safetensors")
    with pytest.raises(CheckpointError, match="missing"):
        restore_weights(other.model, tmp_path / "b.safetensors", part=".lora_")


def test_mistakes_have_clear_errors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"policy\.lora"):
        add_lora(model("t5"), LoraConfig(target_modules=("no_such_layer",)))
    with pytest.raises(ModelError, match="no adapter here"):
        open_policy(saved("t5", tmp_path), adapter=str(tmp_path / "nowhere"))
    for wrong in ({"rank": 0}, {"alpha": 0}, {"dropout": 1.0}):
        with pytest.raises(ConfigError, match=f"{next(iter(wrong))}: expected"):
            LoraConfig(**wrong)
