"""Responses that no reward is known of: in no advantage, no statistic and no loss; and all that is measured says so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from ppo_toy import LengthScorer, WordScorer, assert_alike, make_trainer, run_together
from rewarded_toy import component, identity, rollout, trace
from rl_toy import policy
from torch import Tensor

from finegrained_rlhf.core.records import ComponentTrace, Experience, Prompt, RewardTrace, SegmentScores
from finegrained_rlhf.rewards import ComponentConfig, RewardComposer, RewardConfig, RewardConstraint
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.directory.samples import read_samples
from finegrained_rlhf.training.ppo import GAE, GroupAdvantages
from finegrained_rlhf.training.ppo.config import KLConfig, PPOConfig
from finegrained_rlhf.training.ppo.experience import make_experience
from finegrained_rlhf.what_if.kept_rollouts import read_kept_step
from finegrained_rlhf.what_if.weights import Weighing, check_recomputed, compare, experience_under

MASK = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 1, 1], [1, 1, 1], [1, 0, 0], [1, 1, 1]])
GROUPS = [0, 0, 0, 1, 1, 1]
WORDS: list[dict[int, float]] = [{0: 2.0, 2: 2.0}, {1: -1.0}, {}, {0: 1.0, 1: -2.0}, {0: 0.5}, {}]
WHOLE: list[dict[int, float]] = [{2: 4.0}, {1: 0.0}, {2: 9.0}, {2: 1.0}, {0: -3.0}, {2: 7.0}]
NO_KL, WITH_KL = PPOConfig(kl=KLConfig(place="loss")), PPOConfig()
ALGORITHMS: dict[str, tuple[Any, PPOConfig]] = {
    "gae": (GAE(), replace(WITH_KL, whiten_rewards=True)),
    "gae by component": (GAE(per_component=True), WITH_KL),
    "rloo": (GroupAdvantages(), WITH_KL),
    "grpo": (GroupAdvantages("group_mean", "std"), WITH_KL),
    "gdpo": (GroupAdvantages("group_mean", "std", by_component=True, whiten=True), NO_KL),
    "reinforce": (GroupAdvantages("batch_mean", whiten=True), WITH_KL),
    "process": (GroupAdvantages(credit="process"), WITH_KL),
    "returns": (GroupAdvantages(credit="returns", whiten=True), WITH_KL),
    "returns by share": (GroupAdvantages("group_mean", "std", credit="returns", position="share"), NO_KL),
    "returns of the batch": (GroupAdvantages("batch_mean", credit="returns"), NO_KL),
}


def without(component: ComponentTrace, *rows: int) -> ComponentTrace:
    return replace(component, scores=replace(component.scores, unscored=frozenset(rows)))


def rows_of(tensor: Tensor | None, rows: Sequence[int]) -> Tensor | None:
    return None if tensor is None else tensor[list(rows)]


def made(name: str, rows: Sequence[int], unscored: Sequence[int] = ()) -> Experience:
    """The experience of some of the six responses."""
    algorithm, config = ALGORITHMS[name]
    generator = torch.Generator().manual_seed(1)
    heads = {"gae": (), "gae by component": (3,)}.get(name)
    values = None if heads is None else torch.randn(*MASK.shape, *heads, generator=generator)
    logprobs, reference = (torch.randn(MASK.shape, generator=generator) * MASK for _ in range(2))
    mask = MASK[list(rows)]
    words = without(component(0.5, [{} if n in unscored else WORDS[r] for n, r in enumerate(rows)], mask), *unscored)
    whole = component(0.25, [WHOLE[r] for r in rows], mask)
    drawn = rollout(mask, logprobs[list(rows)], [GROUPS[r] for r in rows])
    found = make_experience(
        drawn,
        trace(words=words, whole=whole),
        reference[list(rows)],
        rows_of(values, rows),
        beta=0.2,
        config=config,
        reduce=identity,
        algorithm=algorithm,
    )
    whole_sum = sum(found.shares.values(), torch.zeros_like(found.advantages))
    torch.testing.assert_close(whole_sum, found.advantages, atol=1e-6, rtol=0)
    return found


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_others_learn_as_if_the_response_had_not_been(name: str) -> None:
    every, few = made(name, range(6), unscored=[2, 5]), made(name, [0, 1, 3, 4])
    assert every.learnt is not None and every.learnt.tolist() == [True, True, False, True, True, False]
    assert few.learnt is None and torch.equal(few.mask, few.rollout.response_mask)
    torch.testing.assert_close(every.advantages[[0, 1, 3, 4]], few.advantages, atol=1e-6, rtol=0)
    assert not every.advantages[[2, 5]].any() and not every.mask[[2, 5]].any()
    if few.returns is not None and every.returns is not None:
        torch.testing.assert_close(every.returns[[0, 1, 3, 4]], few.returns, atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", ["rloo", "grpo", "gdpo", "process", "returns", "returns by share"])
def test_a_response_that_is_left_alone_is_compared_with_nothing(name: str) -> None:
    found = made(name, range(6), unscored=[2, 4, 5])
    assert found.learnt is not None and found.learnt.tolist() == [True, True, False, False, False, False]
    torch.testing.assert_close(found.advantages[:2], made(name, [0, 1]).advantages, atol=1e-6, rtol=0)
    assert not found.advantages[2:].any()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_where_no_response_has_a_reward_nothing_is_learnt(name: str) -> None:
    found = made(name, range(6), unscored=range(6))
    assert found.learnt is not None and not found.learnt.any() and not found.advantages.any()
    assert torch.isfinite(found.advantages).all()


class OddScorer(WordScorer):
    """Has no score of a response whose characters can be divided by three."""

    counted = ("read", "refused")

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
        scores = super().score(prompts, responses)
        odd = frozenset(row for row, text in enumerate(responses) if len(text) % 3 == 0)
        spans = [() if row in odd else spans for row, spans in enumerate(scores.spans)]
        values = [() if row in odd else values for row, values in enumerate(scores.values)]
        counts = {"read": float(len(responses) - len(odd)), "refused": float(len(odd))}
        return SegmentScores(spans, values, unscored=odd, counts=counts)


def trained(path: Path, **options: Any) -> tuple[list[dict[str, float]], Mapping[str, Tensor]]:
    scorers = {"words": OddScorer(), "length": LengthScorer()}
    trainer = make_trainer(path, scorers=scorers, prompts_per_step=3, max_new_tokens=8, **options)
    metrics = [trainer.train_step(step) for step in (1, 2)]
    kept = [{name: x for name, x in one.items() if not name.startswith("time/")} for one in metrics]
    return kept, {name: p.detach().clone() for name, p in trainer.models._trained.named_parameters()}


@pytest.mark.parametrize("algorithm", [pytest.param(None, marks=pytest.mark.slow), GroupAdvantages()])
def test_two_processes_count_and_learn_as_one(tmp_path: Path, algorithm: Any) -> None:
    alone = trained(tmp_path / "one", algorithm=algorithm)
    first = alone[0][0]
    odd = first["outcome/words/refused"]
    assert 0 < odd < 12 and odd == first["outcome/words/unscored"] and first["outcome/words/read"] == 12 - odd
    assert "outcome/length/read" not in first
    owners = [policy("t5") for _ in range(4)]  # more than there are prompts: one has none
    together = run_together(
        4,
        lambda processes: trained(
            tmp_path / "four", algorithm=algorithm, owner=owners.pop(), processes=processes, training_prompts=5
        ),
    )
    assert_alike(alone, together)


def test_what_is_kept_of_a_step_says_so_and_is_weighed_as_it_was_trained(tmp_path: Path) -> None:
    algorithm = GroupAdvantages()
    scorers = {"words": OddScorer(), "length": LengthScorer()}
    trainer = make_trainer(tmp_path, scorers=scorers, max_new_tokens=8, algorithm=algorithm)
    metrics = trainer.train_step(1)
    rows = read_samples(tmp_path / "samples" / "step_1.jsonl")
    odd = [row for row in rows if row.unscored]
    assert len(odd) == metrics["outcome/words/unscored"] > 0
    assert all(len(row.text) % 3 == 0 and row.unscored == ("words",) and not row.of("words") for row in odd)
    known = [row for row in rows if not row.unscored]
    assert metrics["reward/total"] == pytest.approx(sum(row.total for row in known) / len(known), abs=1e-4)
    of_words = sum(row.totals("words")[0] for row in known) / len(known)
    assert metrics["reward/words/raw"] == pytest.approx(of_words, abs=1e-4)
    line = {"beta": metrics["beta"], "episodes_per_step": metrics["episodes_per_step"]}
    kept = read_kept_step(RunDirectory(tmp_path), 1, ["words", "length"], line, critic=False)
    reward = Weighing(trainer.composer.config.weights, {"words": ComponentConfig(), "length": ComponentConfig()}, {})
    again = experience_under(kept, reward, trainer.config, algorithm)
    check_recomputed(kept, again, trainer.config)
    change, _ = compare(kept, again, again)
    assert change.total_now == pytest.approx(metrics["reward/total"], abs=1e-4)


def test_a_constraint_and_an_empty_response_know_nothing_of_it() -> None:
    class Fixed:
        def setup(self, device: torch.device) -> None:
            """Nothing to load."""

        def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
            return SegmentScores([((0, 1),), (), ()], [(3.0,), (), ()], unscored=frozenset({1}))

    config = RewardConfig(
        {"a": Fixed()},
        {"a": 1.0},
        {"a": ComponentConfig(empty=-1.0)},
        constraints={"a": RewardConstraint(at_least=0.5)},
    )
    composer = RewardComposer(config)
    scores = composer.score([Prompt("p", "", ())] * 3, ["x", " ", " "])
    assert scores["a"].values == ((3.0,), (), (-1.0,)) and scores["a"].unscored == {1}
    assert composer.weights.sums(scores) == {"constraint/a/value": (2.0, 2.0)}
    assert RewardTrace({}, torch.zeros(2, 1)).scored is None
