"""Groups of whole prompts."""

from __future__ import annotations

import torch
from properties import given, settings, st

from finegrained_rlhf.core.records import Prompt, Rollout, Sample, pad_rows
from finegrained_rlhf.training.micro_batches import micro_batches

NO_EXAMPLES_TOO_SLOW = settings(deadline=None, max_examples=60)


def rollout(prompts: list[int], responses: list[int]) -> Rollout:
    """Prompts and responses of given lengths in tokens; equally many responses a prompt."""
    each = len(responses) // len(prompts) if prompts else 0
    ids, mask = pad_rows([range(length) for length in prompts], 0)
    answers, answer_mask = pad_rows([range(100 * row, 100 * row + length) for row, length in enumerate(responses)], 0)
    owner = torch.arange(len(prompts)).repeat_interleave(each)
    return Rollout(
        [Prompt(str(i), "", tuple(range(length))) for i, length in enumerate(prompts)],
        ids, mask, owner, owner, owner, (Sample(each or 1),), answers, answer_mask, answer_mask.float(),
        [""] * len(responses), [()] * len(responses),
    )  # fmt: skip


LENGTHS = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=9)


@NO_EXAMPLES_TOO_SLOW
@given(LENGTHS, st.integers(1, 4), st.none() | st.integers(1, 90))
def test_groups_hold_every_prompt_once_and_keep_to_the_limits(
    lengths: list[tuple[int, int, int]], size: int, tokens: int | None
) -> None:
    data = rollout([p for p, _, _ in lengths], [answer for _, a, b in lengths for answer in (a, b)])
    batches = micro_batches(data, size, tokens)
    assert sorted(row for batch in batches for row in batch.rows.tolist()) == list(range(2 * len(lengths)))
    for batch in batches:
        assert 1 <= len(batch.prompts) <= size
        padded = len(batch.prompts) * max(len(prompt.input_ids) for prompt in batch.prompts) + batch.ids.numel()
        assert tokens is None or padded <= tokens or len(batch.prompts) == 1
        assert [batch.prompts[i].id for i in batch.index.tolist()] == [
            str(i) for i in data.prompt_index[batch.rows].tolist()
        ]
        assert batch.index.tolist() == sorted(batch.index.tolist())  # the rows of a prompt are contiguous
        assert batch.ids.shape[1] == int(data.response_mask[batch.rows].sum(dim=1).max())
        assert torch.equal(batch.cut(data.response_ids), batch.ids) and torch.equal(
            batch.cut(data.response_mask), batch.mask
        )


def test_prompts_of_similar_lengths_go_together() -> None:
    data = rollout([10, 3, 9, 2], [1] * 4)
    assert [[len(p.input_ids) for p in batch.prompts] for batch in micro_batches(data, 2)] == [[2, 3], [9, 10]]
    assert [len(batch.prompts) for batch in micro_batches(data, 4, tokens=13)] == [2, 1, 1]


def test_a_process_without_prompts_has_no_group() -> None:
    assert micro_batches(rollout([], []), 2) == []
