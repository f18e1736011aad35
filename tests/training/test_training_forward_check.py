"""The start of every run: what is trained is what the model's own forward computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from families_toy import batch, family_policy
from rl_toy import policy, prompts
from seq2seq_toy import seq2seq_policy
from torch import Tensor

from finegrained_rlhf.core.errors import ConsistencyError
from finegrained_rlhf.core.records import Prompt, Sample
from finegrained_rlhf.models.families.causal import CausalFamily
from finegrained_rlhf.models.families.fused import FusedLinear, FusedNorm, fuse
from finegrained_rlhf.models.policy import CausalPolicy
from finegrained_rlhf.runtime.process_config import ProcessConfig
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.training.checks import check_forward


@pytest.mark.parametrize("kind", ["t5", "t5-v1.1", "mt5", "gpt2"])
def test_policies_pass(kind: str) -> None:
    assert 0 < check_forward(policy(kind), prompts(kind), Processes()) < 1e-4  # logits reach 60


@pytest.mark.parametrize("family", ["gemma2", "granite", "cohere", "gpt_neo", "mistral"])
def test_a_head_function_that_is_left_out_stops_the_run(family: str) -> None:
    ours = family_policy(family)
    assert 0 < check_forward(ours, batch()[0], Processes()) < 1e-5
    if family in ("gemma2", "granite", "cohere"):
        ours.family = CausalFamily("lm_head alone")
        words = "not those of .*ForCausalLM.forward: they differ by up to [1-9].* nats a token, and 1.0e-03 is allowed"
        with pytest.raises(ConsistencyError, match=words):
            check_forward(ours, batch()[0], Processes())


FAULTS = {
    "not a number": lambda states: states * torch.nan,
    "one token late": lambda states: states.roll(1, dims=1),
    "one percent": lambda states: states * 1.01,
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_other_faults_are_seen_too(fault: Callable[[Tensor], Tensor]) -> None:
    class Broken(CausalPolicy):
        def hidden(self, *arguments: Any) -> Tensor:
            return fault(super().hidden(*arguments))

    base = policy("gpt2")
    with pytest.raises(ConsistencyError, match="do not train it"):
        check_forward(Broken(base.model, base.tokenizer).eval(), prompts("gpt2"), Processes())


def test_what_is_scored_is_compared_as_it_is_scored() -> None:
    ours = policy("t5")
    ours.scored = Sample(1, temperature=0.7, top_k=3)
    assert 0 < check_forward(ours, prompts(), Processes()) < 1e-5


def test_odd_prompts_are_no_fault() -> None:
    ours = family_policy("gpt2")  # 64 positions
    assert check_forward(ours, [], Processes()) == 0.0
    long = Prompt("long", "", tuple(3 + i % 20 for i in range(64)))
    assert check_forward(ours, [long, Prompt("short", "", (5,))], Processes()) < 1e-5


def test_a_decoder_may_start_with_what_looks_like_padding() -> None:
    """T5Gemma's forward without a mask would hide its start token, which generation does not."""
    ours = seq2seq_policy("t5gemma", bos_token_id=0)
    assert ours.start_ids == (ours.pad_id,) == (0,)
    assert check_forward(ours, prompts(), Processes()) < 1e-5


def test_weights_in_bf16_are_compared_in_bf16() -> None:
    ours = family_policy("granite")
    ours.model.bfloat16()
    assert 0 < check_forward(ours, batch()[0], Processes()) <= 0.1


@pytest.mark.parametrize("family", ["t5", "qwen3"])
def test_fused_layers_are_compared_with_plain_ones(family: str) -> None:
    """Norms in fp32 too, copies of weights under bf16; a fault in either stops the run, and nothing stays unfused."""
    ours = policy() if family == "t5" else family_policy(family)
    asked, in_bf16 = prompts("t5" if family == "t5" else "gpt2"), Processes(ProcessConfig("bf16"))
    fuse(ours.model)
    norms = [part for part in ours.model.modules() if isinstance(part, FusedNorm)]
    assert check_forward(ours, asked, Processes()) < 1e-4
    assert check_forward(ours, asked, in_bf16) < 1e-4
    assert all(isinstance(part, FusedNorm) for part in norms)
    norms[-1]._shift += 0.5
    with pytest.raises(ConsistencyError, match="do not train it"):
        check_forward(ours, asked, Processes())
    norms[-1]._shift -= 0.5
    copies = next(part._copies for part in ours.model.modules() if isinstance(part, FusedLinear))
    for copy in copies._copies.values():
        copy.tensor.mul_(3.0)
    assert check_forward(ours, asked, Processes()) < 1e-4
    with pytest.raises(ConsistencyError, match="do not train it"):
        check_forward(ours, asked, in_bf16)
