"""Our dense advantages by verl's own functions (`make test-verl`): its reward loop, its `compute_advantage`. No GPU."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from letters_toy import LetterScorer
from ppo_toy import LengthScorer
from rl_toy import policy, prompts, tokenizer
from tensordict import TensorDict
from verl import DataProto
from verl.trainer.ppo.core_algos import get_adv_estimator_fn
from verl.trainer.ppo.ray_trainer import compute_advantage

from finegrained_rlhf.bridges import DenseReward, VerlRewardManager
from finegrained_rlhf.bridges.verl import register_verl_estimator
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.records import Rollout, Sample
from finegrained_rlhf.rewards import RewardComposer, RewardConfig
from finegrained_rlhf.rollout import make_engine
from finegrained_rlhf.training.ppo import GroupAdvantages
from finegrained_rlhf.training.ppo.config import KLConfig, PPOConfig
from finegrained_rlhf.training.ppo.experience import make_experience

ALGORITHMS = [
    GroupAdvantages("group_mean", "std", credit="process", by_component=True, whiten=True),
    GroupAdvantages(credit="returns"),
    GroupAdvantages("batch_mean", credit="returns", whiten=True),
]


def reward() -> RewardConfig:
    return RewardConfig({"words": LetterScorer(), "length": LengthScorer()}, {"words": 1.0, "length": 0.5})


class Manager(VerlRewardManager):
    """What verl loads."""

    def make_reward(self) -> DenseReward:
        return DenseReward(reward())


def drawn() -> Rollout:
    ours = policy("llama")
    engine = make_engine(ours)
    return engine.decode(engine.encode(prompts("llama", 3)), [Sample(4, temperature=2.0)], max_new_tokens=7, seed=1)


def expected(rollout: Rollout, algorithm: GroupAdvantages) -> torch.Tensor:
    """What our own trainer would take."""
    composer = RewardComposer(reward(), eos_ids=policy("llama").eos_ids)
    trace = composer.compose(rollout, composer.score(rollout.row_prompts(), rollout.texts))
    made = make_experience(
        rollout,
        trace,
        rollout.logprobs,
        None,
        beta=0.0,
        config=PPOConfig(kl=KLConfig(place="loss")),
        reduce=lambda sums: sums,
        algorithm=algorithm,
    )
    return made.advantages


def as_verl_has_it(rollout: Rollout) -> DataProto:
    """A batch after verl's rollout: prompts padded at the left, every response's reward asked of the reward loop."""
    rows, width = len(rollout.texts), 12
    asked, mask = torch.zeros(rows, width, dtype=torch.long), torch.zeros(rows, width, dtype=torch.long)
    for row, prompt in enumerate(rollout.row_prompts()):
        asked[row, width - len(prompt.input_ids) :] = torch.tensor(prompt.input_ids)
        mask[row, width - len(prompt.input_ids) :] = 1
    batch = TensorDict(
        {
            "prompts": asked,
            "responses": rollout.response_ids,
            "attention_mask": torch.cat([mask, rollout.response_mask], dim=1),
            "response_mask": rollout.response_mask,
        },
        batch_size=rows,
    )
    extra = np.array([{} for _ in range(rows)], dtype=object)
    return DataProto(
        batch=batch, non_tensor_batch={"extra_info": extra, "uid": rollout.prompt_index.numpy().astype(str)}
    )


def rewarded(data: DataProto) -> DataProto:
    """The batch as `AgentLoopWorker` and `RewardLoopManager` put together what `run_single` gives of each response."""
    manager = Manager(tokenizer("llama"))

    async def score() -> list[dict[str, Any]]:
        return await asyncio.gather(*(manager.run_single(data[i : i + 1]) for i in range(len(data))))

    outputs = asyncio.run(score())
    infos = [output["reward_extra_info"] for output in outputs]
    for key in infos[0]:
        data.non_tensor_batch[key] = np.array([info[key] for info in infos])
    lengths = data.batch["response_mask"].sum(dim=1)
    scores = torch.zeros(data.batch["responses"].shape)
    scores[torch.arange(len(data)), lengths - 1] = torch.tensor([output["reward_score"] for output in outputs])
    data.batch["token_level_rewards"] = scores
    return data


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=["gdpo_by_segment", "returns", "batch"])
def test_verl_computes_our_advantages(algorithm: GroupAdvantages) -> None:
    rollout = drawn()
    data = rewarded(as_verl_has_it(rollout))
    data.reorder(torch.randperm(len(data), generator=torch.Generator().manual_seed(3)))  # as verl balances its ranks
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(3))
    register_verl_estimator(algorithm)
    made = compute_advantage(data, adv_estimator="gdpo", config=None)
    torch.testing.assert_close(made.batch["advantages"], expected(rollout, algorithm)[order], atol=1e-5, rtol=0)
    assert torch.equal(made.batch["returns"], made.batch["advantages"])
    assert max(len(row.unique()) for row in made.batch["advantages"]) > 3  # dense


def test_what_travels_is_small_and_plain() -> None:
    data = rewarded(as_verl_has_it(drawn()))
    paid = json.loads(data.non_tensor_batch["fine_grained"][0])
    assert set(paid) == {"words", "length"} and set(paid["words"]) == {"weight", "tokens", "values"}
    assert isinstance(data.non_tensor_batch["fine_grained"][0], str)  # which verl's metrics of validation leave out


def test_an_estimator_that_is_handed_nothing_says_what_to_set() -> None:
    register_verl_estimator()
    assert get_adv_estimator_fn("fine_grained") is get_adv_estimator_fn("gdpo")
    data = rewarded(as_verl_has_it(drawn()))
    with pytest.raises(ConfigError, match=r"expected algorithm.adv_estimator=gdpo"):
        compute_advantage(data, adv_estimator="fine_grained", config=None)
    data.non_tensor_batch.pop("fine_grained")
    with pytest.raises(ConfigError, match=r"no reward_extra_info\['fine_grained'\]"):
        compute_advantage(data, adv_estimator="gdpo", config=None)


def test_the_reward_loop_of_verl_takes_the_manager() -> None:
    """As `load_reward_manager` makes it, by keywords."""
    manager = Manager(config=None, tokenizer=tokenizer("llama"), compute_score=None, reward_router_address=None)
    one = asyncio.run(manager.run_single(as_verl_has_it(drawn())[0:1]))
    shares = [value for name, value in one["reward_extra_info"].items() if name.startswith("reward/")]
    assert one["reward_score"] == pytest.approx(sum(shares))


def test_an_external_module_registers_it_in_every_process(tmp_path: Path) -> None:
    """verl imports such modules while it is itself imported."""
    module = "from finegrained_rlhf.bridges.verl import register_verl_estimator\nregister_verl_estimator()\n"
    (tmp_path / "my_reward.py").write_text(module)
    code = "from verl.trainer.ppo.core_algos import get_adv_estimator_fn as f; print(f('gdpo').__module__)"
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])
    environment = {**os.environ, "PYTHONPATH": path, "VERL_USE_EXTERNAL_MODULES": "my_reward"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1:] == ["finegrained_rlhf.bridges.verl"], done.stderr
