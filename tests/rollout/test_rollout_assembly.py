"""Cutting, ordering and joining of rollout rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from rl_toy import policy, prompts, tokenizer

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.records import Greedy, Prompt, Rollout, Sample
from finegrained_rlhf.models.policy import PromptMemory
from finegrained_rlhf.rollout.assembly import assemble, join_rollouts, mask_after_eos, row_order
from finegrained_rlhf.rollout.config import RolloutConfig
from finegrained_rlhf.rollout.engine import RolloutSampler, rollout_in_batches
from finegrained_rlhf.rollout.generate import GenerateEngine
from finegrained_rlhf.rollout.select import make_engine
from finegrained_rlhf.runtime.processes import Processes


def test_the_mask_ends_with_the_first_end_token() -> None:
    ids = torch.tensor([[5, 1, 5, 1], [1, 1, 1, 1], [5, 6, 7, 8], [5, 6, 7, 1], [9, 3, 1, 2]])
    assert mask_after_eos(ids, [1]).tolist() == [[1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 0]]
    assert mask_after_eos(ids[4:], (1, 3)).tolist() == [[1, 1, 0, 0]]


def test_rows_of_a_prompt_lie_together() -> None:
    prompt, sample, decoding = row_order(2, [Sample(2), Greedy()], torch.device("cpu"))
    assert prompt.tolist() == [0, 0, 0, 1, 1, 1]
    assert sample.tolist() == [0, 1, 0, 0, 1, 0]
    assert decoding.tolist() == [0, 0, 1, 0, 0, 1]


def test_assembling_trims_and_decodes() -> None:
    words = tokenizer()
    ids = words("the cat, red", add_special_tokens=False)["input_ids"]
    asked = prompts(count=1)
    memory = PromptMemory(asked, torch.zeros(1, 1), torch.ones(1, 1), None)
    rows = torch.tensor([[*ids, 1, 9, 9], [1, 9, 9, 9, 9, 9, 9][: len(ids) + 3]])
    mask = mask_after_eos(rows, [1])
    rollout = assemble(memory, [Sample(2)], rows, mask, torch.zeros(rows.shape), words)
    assert rollout.response_ids.shape[1] == len(ids) + 1
    assert list(rollout.texts) == ["the cat, red", ""]
    assert rollout.token_ends[0] == (3, 7, 8, 12, 12)  # the end token has no characters
    assert rollout.token_ends[1] == (0,)


def test_joining_pads_and_renumbers() -> None:
    ours = policy()
    engine, asked = GenerateEngine(ours), prompts(count=5)
    parts = rollout_in_batches(engine, asked, [Sample(2, temperature=2.0)], max_new_tokens=9, prompts_per_batch=2)
    joined = join_rollouts(parts, pad_id=0)
    assert [p.id for p in joined.prompts] == [p.id for p in asked]
    assert joined.prompt_index.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert joined.prompt_mask.sum(dim=1).tolist() == [len(p.input_ids) for p in asked]
    row = 0
    for part in parts:
        for i in range(len(part.texts)):
            length = int(part.response_mask[i].sum())
            assert int(joined.response_mask[row].sum()) == length
            assert torch.equal(joined.response_ids[row, :length], part.response_ids[i, :length])
            assert torch.equal(joined.logprobs[row, :length], part.logprobs[i, :length])
            assert not joined.response_ids[row, length:].any()
            assert (joined.texts[row], joined.token_ends[row]) == (part.texts[i], part.token_ends[i])
            assert joined.row_prompts()[row] is part.row_prompts()[i]
            row += 1
    assert join_rollouts(parts[:1], pad_id=0) is parts[0]
    with pytest.raises(ValueError, match="same decodings"):
        join_rollouts([parts[0], replace(parts[1], decodings=(Greedy(),))], pad_id=0)
    with pytest.raises(ValueError, match="at least one rollout"):
        join_rollouts([], pad_id=0)


def test_a_rollout_checks_its_rows() -> None:
    part = rollout_in_batches(GenerateEngine(policy()), prompts(count=1), [Sample(2)], max_new_tokens=3)[0]
    assert isinstance(part, Rollout)
    with pytest.raises(ValueError, match="2 rows"):
        replace(part, texts=part.texts[:1])
    with pytest.raises(ValueError, match="one shape"):
        replace(part, logprobs=part.logprobs[:, :1] if part.logprobs.shape[1] > 1 else torch.zeros(2, 2))


def test_settings_are_checked() -> None:
    assert RolloutConfig(4, temperature=0.9, top_k=7, top_p=0.5, samples_per_prompt=2).decoding() == Sample(
        2, 0.9, 7, 0.5
    )
    for wrong in ({"prompts_per_step": 0}, {"max_new_tokens": 0}, {"prompts_per_batch": 0}, {"temperature": 0.0}):
        with pytest.raises(ConfigError, match=f"{next(iter(wrong))}: expected"):
            RolloutConfig(**{"prompts_per_step": 1, **wrong})


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_what_a_step_draws_does_not_depend_on_the_batches(kind: str) -> None:
    ours, asked = policy(kind), prompts(kind, 5)

    def drawn(batch: int | None, step: int) -> Rollout:
        sampler = RolloutSampler(make_engine(ours), ours.pad_id, Processes(), 3, 8, batch)
        return sampler.draw(asked, [Greedy(), Sample(2, temperature=2.0)], step)

    whole, parts, later = drawn(None, 4), drawn(2, 4), drawn(2, 5)
    assert whole.texts == parts.texts and torch.equal(whole.response_ids, parts.response_ids)
    assert [p.id for p in parts.row_prompts()] == [p.id for p in asked for _ in range(3)]
    torch.testing.assert_close(whole.logprobs, parts.logprobs, atol=1e-5, rtol=0)
    assert later.texts[::3] == whole.texts[::3] and later.texts != whole.texts  # greedy rows stay, samples are others


def test_a_process_without_a_prompt_draws_nothing() -> None:
    class Untouched(GenerateEngine):
        def encode(self, prompts: Sequence[Prompt]) -> PromptMemory:
            raise AssertionError("the engine was asked")

    ours = policy()
    nothing = RolloutSampler(Untouched(ours), ours.pad_id, Processes(), 0, 8).draw([], [Greedy(), Sample(3)], 1)
    assert nothing.texts == [] and nothing.response_ids.shape == (0, 1)
    assert nothing.decodings == (Greedy(), Sample(3))
