"""Value models against transformers' own hidden states through the same head."""

from __future__ import annotations

import pytest
import torch
from rl_toy import model, policy, prompts, responses
from torch import nn
from transformers import T5Model

from finegrained_rlhf.core.errors import ModelError
from finegrained_rlhf.models.value import SeparateValueModel, SharedTrunkValueModel, ValueHead

ROWS = torch.tensor([0, 0, 1, 1, 2, 2])


def by_hand(head: ValueHead, states: torch.Tensor) -> torch.Tensor:
    """d→d, exact GELU, d→1, written with matrices."""
    inner = states @ head.hidden.weight.T + head.hidden.bias
    inner = 0.5 * inner * (1 + torch.erf(inner / 2**0.5))
    return (inner @ head.output.weight.T + head.output.bias)[..., 0]


def test_head() -> None:
    torch.manual_seed(0)
    head, states = ValueHead(8), torch.randn(2, 3, 8)
    assert head(states).shape == (2, 3)
    torch.testing.assert_close(head(states), by_hand(head, states))


def value_model(kind: str, policy_kind: str | None = None) -> SeparateValueModel:
    torch.manual_seed(3)
    source = model(kind, seed=4, width=24)  # another width than the policy's
    if kind == "gpt2":
        backbone = source.transformer
    else:
        backbone = T5Model(source.config)
        backbone.load_state_dict({k: v for k, v in source.state_dict().items() if k != "lm_head.weight"})
    return SeparateValueModel(backbone.eval(), policy(policy_kind or kind)).eval()


@pytest.mark.parametrize("kind", ["t5", "t5-v1.1"])
def test_t5_values_equal_transformers(kind: str) -> None:
    ours, owner = value_model(kind), policy(kind)
    ids, mask = responses(kind)
    with torch.no_grad():
        values = ours(owner.encode(prompts(kind)), ROWS, ids)
        for row in range(6):
            prompt = torch.tensor([prompts(kind)[ROWS[row]].input_ids])
            shifted = torch.cat([torch.tensor([0]), ids[row, :-1]])[None]
            states = ours.backbone(input_ids=prompt, decoder_input_ids=shifted).last_hidden_state
            torch.testing.assert_close(values[row], by_hand(ours.head, states)[0], atol=1e-5, rtol=0)
    assert values.std() > 0.01 and values.dtype == torch.float32


def test_gpt2_values_equal_transformers() -> None:
    ours, owner = value_model("gpt2"), policy("gpt2")
    ids, mask = responses("gpt2")
    with torch.no_grad():
        values = ours(owner.encode(prompts("gpt2")), ROWS, ids)
        for row in range(6):
            prompt = prompts("gpt2")[ROWS[row]].input_ids
            whole = torch.tensor([[*prompt, *ids[row].tolist()]])
            states = ours.backbone(input_ids=whole).last_hidden_state[:, len(prompt) - 1 : -1]
            torch.testing.assert_close(values[row], by_hand(ours.head, states)[0], atol=1e-5, rtol=0)


def test_a_value_is_of_the_state_before_its_token() -> None:
    """V(s_t) must not know a_t, and must know a_{t−1}."""
    ours, owner = value_model("t5"), policy("t5")
    ids, _ = responses("t5")
    changed = ids.clone()
    changed[:, 3] = (changed[:, 3] + 1) % 20 + 3
    with torch.no_grad():
        memory = owner.encode(prompts("t5"))
        first, second = ours(memory, ROWS, ids), ours(memory, ROWS, changed)
    torch.testing.assert_close(first[:, :4], second[:, :4])
    assert ((first - second)[:, 4].abs() > 1e-4).all()


def test_shared_trunk_reads_the_policy_and_trains_it() -> None:
    owner = policy("t5")
    torch.manual_seed(0)
    value = SharedTrunkValueModel(owner)
    assert {name for name, _ in value.named_parameters()} == {
        "head.hidden.weight",
        "head.hidden.bias",
        "head.output.weight",
        "head.output.bias",
    }  # the trunk stays the policy's, so that it is neither saved nor optimised twice
    ids, _ = responses("t5")
    hidden = owner.hidden(owner.encode(prompts("t5")), ROWS, ids)
    torch.testing.assert_close(value.from_hidden(hidden), by_hand(value.head, hidden))
    value.from_hidden(hidden).sum().backward()
    assert owner.model.shared.weight.grad.abs().sum() > 0


def test_backbones_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ModelError, match="both be encoder-decoders or both be causal"):
        value_model("gpt2", "t5")
    small = model("gpt2").transformer
    small.config.vocab_size = 5
    with pytest.raises(ModelError, match="5 embeddings"):
        SeparateValueModel(small, policy("gpt2"))
    assert isinstance(value_model("t5").backbone, nn.Module)
