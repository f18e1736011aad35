"""Training with rewards that are paid when decided, or as corrections: steps, processes, resume, what is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from ppo_toy import LengthScorer, WordScorer, assert_alike, make_trainer, run_together, save_checkpoint
from rl_toy import policy
from torch import Tensor

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.records import Prompt, SegmentScores
from finegrained_rlhf.models.config import LoraConfig
from finegrained_rlhf.models.loading import open_policy
from finegrained_rlhf.models.weights.saving import save_policy
from finegrained_rlhf.rewards import ComponentConfig, RewardComposer
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.directory.samples import read_samples
from finegrained_rlhf.training.ppo import GroupAdvantages
from finegrained_rlhf.training.ppo.trainer import PPOTrainer
from finegrained_rlhf.what_if.kept_rollouts import read_kept_step
from finegrained_rlhf.what_if.weights import Weighing, check_recomputed, experience_under

RETURNS = GroupAdvantages(credit="returns")
CREDITS: dict[str, dict[str, Any]] = {
    "outcome": {"credit": "outcome"},
    "decided": {"credit": "decided"},
    "decided on prefixes": {"credit": "decided", "settings": {"crowded": ComponentConfig(reading="prefix")}},
    "revised": {"credit": "revised"},
    "revised, running": {"credit": "revised", "settings": {"crowded": ComponentConfig("running")}},
    "revised at two places": {"credit": "revised", "revisions": 2},
}


class Words(WordScorer):
    """A word is decided by the beginning of the next one."""

    reads_on, look_ahead = False, 0


class Crowded(Words):
    """What a word is worth depends on how long the response becomes."""

    reads_on = True

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
        spans = super().score(prompts, responses).spans
        return SegmentScores(spans, [(-len(text) / 50,) * len(row) for text, row in zip(responses, spans, strict=True)])


def trainer_of(path: Path, name: str, **options: Any) -> PPOTrainer:
    scorers = {"words": Words(), "crowded": Crowded(), "length": LengthScorer()}
    trainer = make_trainer(path, scorers=scorers, max_new_tokens=8, **{"algorithm": RETURNS, **options})
    changed = replace(trainer.composer.config, **CREDITS[name])
    trainer.composer = RewardComposer(changed, trainer.processes.sum_, longest=8)
    trainer.samples = replace(trainer.samples, every=1)
    return trainer


def steps(trainer: PPOTrainer, first: int, last: int) -> list[dict[str, float]]:
    made = [trainer.train_step(step) for step in range(first, last + 1)]
    return [{name: x for name, x in one.items() if not name.startswith("time/")} for one in made]


def weights(trainer: PPOTrainer) -> Mapping[str, Tensor]:
    return {name: p.detach().clone() for name, p in trainer.models._trained.named_parameters()}


@pytest.mark.parametrize("name", CREDITS)
def test_what_was_paid_is_kept_and_weighed_as_it_was_trained(tmp_path: Path, name: str) -> None:
    trainer = trainer_of(tmp_path, name)
    (metrics,) = steps(trainer, 1, 1)
    config = trainer.composer.config
    rows = read_samples(tmp_path / "samples" / "step_1.jsonl")
    assert metrics["reward/total"] == pytest.approx(sum(row.total for row in rows) / len(rows), abs=1e-4)
    assert ("reward/prefixes" in metrics) == (name not in ("outcome", "decided"))
    assert all(set(row.corrections) == set(config.components if config.credit == "revised" else ()) for row in rows)
    line = {"beta": metrics["beta"], "episodes_per_step": metrics["episodes_per_step"]}
    kept = read_kept_step(RunDirectory(tmp_path), 1, list(config.components), line, critic=False)
    settings = {one: config.settings.get(one, ComponentConfig()) for one in config.components}
    reward = Weighing(config.weights, settings, credit=config.credit)
    check_recomputed(kept, experience_under(kept, reward, trainer.config, RETURNS), trainer.config)
    half = {one: 0.5 * weight for one, weight in config.weights.items()}
    now = experience_under(kept, reward.changed(half, {}), trainer.config, RETURNS)
    assert torch.allclose(now.trace.total, 0.5 * experience_under(kept, reward, trainer.config, RETURNS).trace.total)
    last = reward.changed({}, {"words": {"density": "response"}})
    moved = experience_under(kept, last, trainer.config, RETURNS).trace.components["words"]
    ends = kept.rollout.lengths() - 1
    assert all(set(tokens) <= {int(end)} for tokens, end in zip(moved.tokens, ends, strict=True))
    if config.credit != "outcome":
        with pytest.raises(ConfigError, match=r"settings\.words: with reward\.credit=.* kept what was paid"):
            reward.changed({}, {"words": {"aggregation": "mean"}})


@pytest.mark.parametrize(
    ("name", "algorithm"),
    [
        ("decided on prefixes", None),
        ("revised, running", RETURNS),
        pytest.param("decided on prefixes", RETURNS, marks=pytest.mark.slow),
        pytest.param("revised, running", None, marks=pytest.mark.slow),
    ],
)
def test_processes_pay_as_one(tmp_path: Path, name: str, algorithm: Any) -> None:
    def trained(path: str, **options: Any) -> Any:
        trainer = trainer_of(tmp_path / path, name, algorithm=algorithm, **options)
        return steps(trainer, 1, 2), weights(trainer)

    owners = [policy("t5") for _ in range(4)]  # more than there are prompts: one has none
    together = run_together(4, lambda processes: trained("four", owner=owners.pop(), processes=processes))
    assert_alike(trained("one"), together)


@pytest.mark.parametrize("name", [pytest.param("decided on prefixes", marks=pytest.mark.slow), "revised, running"])
def test_a_resumed_run_pays_on_and_adapters_learn(tmp_path: Path, name: str) -> None:
    save_policy(policy("t5"), tmp_path / "start")

    def fresh(path: str) -> PPOTrainer:
        torch.manual_seed(0)
        owner = open_policy(tmp_path / "start", lora=LoraConfig(rank=2))
        return trainer_of(tmp_path / path, name, owner=owner, lr=5e-3)

    whole, stopped, resumed = fresh("a"), fresh("b"), fresh("c")
    before, expected = weights(whole), steps(whole, 1, 3)
    assert steps(stopped, 1, 2) == expected[:2]
    resumed.load_state(save_checkpoint(stopped, tmp_path / "checkpoint"))
    assert steps(resumed, 3, 3) == expected[2:]
    after = weights(whole)
    assert all(torch.equal(weights(resumed)[key], weight) for key, weight in after.items())
    assert {key for key in after if not torch.equal(before[key], after[key])} == {k for k in after if ".lora_" in k}
