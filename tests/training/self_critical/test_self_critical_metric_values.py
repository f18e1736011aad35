"""What `metrics.jsonl` says of a self-critical step, every number of a small step by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from rl_toy import policy, prompts
from self_critical_toy import make_trainer
from torch import Tensor

from finegrained_rlhf.core.records import Prompt, Rollout, pad_rows
from finegrained_rlhf.models.logprobs import TokenLogprobs
from finegrained_rlhf.models.policy import Policy
from finegrained_rlhf.rollout.engine import RolloutSampler
from finegrained_rlhf.training.self_critical.rows import Imitation
from finegrained_rlhf.training.self_critical.trainer import SelfCriticalTrainer

END = 1
RESPONSES = {
    "p0": ((5, 6, END), (7, END), (8, 9, 3, END)),
    "p1": ((4, END), (2, 3, 4, 5, END), (9,)),
}
"""Of the rewarded prompts: the greedy response, then two samples."""
SCORES = {"p0": (0.5, 1.5, 0.0), "p1": (1.0, 1.0, -1.0)}
ANSWERS = {"p1": (6, 7, END), "p2": (8, END)}
"""References; p2 has no reward and p0 no reference."""


class Table:
    """The scores of `SCORES`, whatever the responses are."""

    def score(self, step_prompts: Sequence[Prompt], prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float]:
        names = dict.fromkeys(prompt.id for prompt in prompts)
        return [score for name in names for score in SCORES[name]]


def drawn(self: RolloutSampler, asked: Sequence[Prompt], decodings: Any, step: int) -> Rollout:
    """The responses of `RESPONSES` to some prompts."""
    rows = [ids for prompt in asked for ids in RESPONSES[prompt.id]]
    ids, mask = pad_rows(rows, 0)
    prompt_ids, prompt_mask = pad_rows([prompt.input_ids for prompt in asked], 0)
    index = torch.arange(len(asked)).repeat_interleave(3)
    decoding, sample = (torch.tensor(numbers).repeat(len(asked)) for numbers in ([0, 1, 1], [0, 0, 1]))
    return Rollout(
        asked, prompt_ids, prompt_mask, index, sample, decoding, decodings, ids, mask,
        torch.zeros(ids.shape), [""] * len(rows), [()] * len(rows),
    )  # fmt: skip


def token_costs(self: Policy, memory: Any, index: Tensor, ids: Tensor, mask: Tensor, **_: Any) -> TokenLogprobs:
    """A policy for which token n has the log-probability −n, wherever it stands."""
    return TokenLogprobs(-ids * mask + 0 * next(self.parameters()).sum(), torch.zeros(ids.shape))


@pytest.fixture
def trainer(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SelfCriticalTrainer:
    data = [Imitation(p, ANSWERS.get(p.id), rewarded=p.id in SCORES) for p in prompts(count=3)]
    owner = policy()
    monkeypatch.setattr(type(owner), "logprobs", token_costs)
    monkeypatch.setattr(RolloutSampler, "draw", drawn)
    return make_trainer(tmp_path, owner=owner, data=data, reward=Table(), batch_size=3, samples=2, **request.param)


@pytest.mark.parametrize("trainer", [{"alpha": 0.6}, {"alpha": 0.2, "micro_batch_prompts": 1}], indirect=True)
def test_every_number_of_a_step_by_hand(trainer: SelfCriticalTrainer) -> None:
    found = trainer.train_step(1)
    # −log p of the samples: 8 and 21 of p0, 15 and 9 of p1; their scores less greedy's: 1 and −½, 0 and −2.
    # L_RL = ½ (8 − 10.5) = −1.25 of p0, ½ (0 − 18) = −9 of p1; −log p of the references: 14 and 9, of 3 and 2 tokens.
    assert found["loss/rl"] == pytest.approx((-1.25 - 9) / 2)
    assert found["loss/ce"] == pytest.approx((14 + 9) / 5)
    alpha = trainer.config.alpha
    assert found["loss"] == pytest.approx(alpha * -5.125 + (1 - alpha) * 4.6)
    assert (found["response_length/greedy"], found["response_length/samples"]) == (2.5, 3.0)  # 3, 2; 2, 4, 5, 1
    assert (found["score/greedy"], found["score/samples"]) == (0.75, 0.375)
    assert (found["reward"], found["rewarded_samples"]) == (-0.375, 0.75)
    assert (found["examples"], found["epoch"]) == (3, 1)
