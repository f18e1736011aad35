"""Dynamic sampling: which prompts come in place of which, what takes responses in, and steps that teach nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from ppo_toy import LengthScorer, WordScorer, assert_alike, make_trainer, run_together, save_checkpoint
from rewarded_toy import component, identity, rollout, trace
from rl_toy import policy
from torch import Tensor

from finegrained_rlhf.core.records import Experience, Prompt, SegmentScores
from finegrained_rlhf.rewards import ComponentConfig, RewardConstraint
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.training.ppo import GAE, GroupAdvantages
from finegrained_rlhf.training.ppo.config import KLConfig, PPOConfig
from finegrained_rlhf.training.ppo.experience import make_experience
from finegrained_rlhf.training.ppo.spread import without_advantage
from finegrained_rlhf.training.ppo.trainer import PPOTrainer

MASK = torch.ones(6, 3, dtype=torch.int64)
GROUPS = [0, 0, 0, 1, 1, 1]
THIRDS: list[dict[int, float]] = [{2: 0.1}, {1: 0.1}, {0: 0.1}]
PLAIN = PPOConfig(kl=KLConfig(place="loss"))


class SomeWords(WordScorer):
    """Words, but every response to some prompts earns the same; keeps all values that it gave."""

    def __init__(self, dull: Sequence[str]) -> None:
        super().__init__()
        self.dull, self.given = set(dull), []

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
        scores = super().score(prompts, responses)
        values = [
            (0.0,) * len(row) if prompt.id in self.dull else row
            for prompt, row in zip(prompts, scores.values, strict=True)
        ]
        self.given += [(prompt.id, row) for prompt, row in zip(prompts, values, strict=True)]
        return SegmentScores(scores.spans, values)


def made(words: list[dict[int, float]], algorithm: Any, unscored: Sequence[int] = (), **options: Any) -> list[bool]:
    """Which of two groups of three teach nothing."""
    part = component(0.5, words, MASK)
    object.__setattr__(part.scores, "unscored", frozenset(unscored))
    experience = make_experience(
        rollout(MASK, torch.randn(6, 3), GROUPS),
        trace(words=part),
        torch.zeros(6, 3),
        None,
        beta=0.3,
        config=options.pop("config", PLAIN),
        reduce=identity,
        algorithm=algorithm,
        **options,
    )
    return without_advantage(experience)


GDPO = GroupAdvantages("group_mean", "std", by_component=True, whiten=True)


def test_it_is_asked_of_advantages_and_not_of_outcomes() -> None:
    """0.1 + 0.2 at two segments are 0.3 at one: by outcome alike, and segment by segment not."""
    split: list[dict[int, float]] = [{2: 0.5}, {0: 0.25, 2: 0.25}, {0: 0.5}]
    assert made([*split, *THIRDS], GroupAdvantages()) == [True, True]
    assert made([*split, *THIRDS], GroupAdvantages(credit="process")) == [False, True]
    assert made([*split, *THIRDS], GroupAdvantages(credit="returns", position="share")) == [False, False]
    differing: list[dict[int, float]] = [{2: 0.1}, {2: 0.1}, {2: 0.4}]
    for algorithm in (GroupAdvantages(), GroupAdvantages("group_mean", "std"), GDPO):  # 3 · 0.1 / 3 is not 0.1
        assert made([*THIRDS, *differing], algorithm) == [True, False]
    assert made([*THIRDS, *differing], GroupAdvantages(), unscored=[5]) == [True, True]
    masked = torch.tensor([False] * 3 + [True] * 3)
    assert made([*THIRDS, *differing], GroupAdvantages(), masked=masked) == [True, True]
    assert made([*THIRDS, *differing], GroupAdvantages(), config=PPOConfig()) == [True, False]  # whatever the penalty
    assert made([{}] * 6, GroupAdvantages()) == [True, True]


def watched(trainer: PPOTrainer) -> list[Experience]:
    seen: list[Experience] = []
    run = trainer._update.run
    trainer._update.run = lambda *a: seen.append(a[1]) or run(*a)  # type: ignore[func-returns-value,method-assign]
    return seen


def weights(trainer: PPOTrainer) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in trainer.models._trained.named_parameters()}


def resampling(path: Path, dull: Sequence[str], rounds: int = 2, **options: Any) -> PPOTrainer:
    return make_trainer(
        path,
        **{
            "scorers": {"words": SomeWords(dull)},
            "settings": {"words": ComponentConfig(normalisation="running")},
            "reward": {"constraints": {"words": RewardConstraint(at_least=0.3)}},
            "algorithm": GDPO,
            "kl": KLConfig(place="loss", estimator="k3", beta=0.04),
            "prompts_per_step": 2,
            "max_new_tokens": 8,
            "epochs": 1,
            "drawn": {"resample": rounds},
            **options,
        },
    )


def test_other_prompts_come_in_place_and_every_response_is_taken_in_once(tmp_path: Path) -> None:
    trainer = resampling(tmp_path, ["p0", "p2", "p3"])
    seen, scorer = watched(trainer), trainer.composer.config.components["words"]
    first = [prompt.id for prompt in trainer.draws.prompts(1)]
    others = [prompt.id for prompt in trainer.draws.others(1, 9)]
    assert sorted(first + others) == ["p0", "p1", "p2", "p3", "p4"]
    metrics = trainer.train_step(1)
    assert isinstance(scorer, SomeWords)
    drawn = list(dict.fromkeys(name for name, _ in scorer.given))
    expected, left, further = list(first), list(others), 0
    for _ in range(2):
        for slot in [slot for slot, name in enumerate(expected) if name in scorer.dull]:
            if left:
                expected[slot], further = left.pop(0), further + 1
    assert [prompt.id for prompt in seen[0].rollout.prompts] == expected and further > 0
    assert drawn == first + others[:further] and len(scorer.given) == 4 * len(drawn)  # each was scored once
    assert (metrics["resample/further"], metrics["resample/skipped"]) == (further, 0.0)
    values = torch.tensor([value for _, row in scorer.given for value in row], dtype=torch.float64)
    moments = trainer.composer._normalisers["words"].running
    assert moments.count == len(values) and moments.mean == pytest.approx(float(values.mean()))
    means = [sum(row) / len(row) if row else 0.0 for _, row in scorer.given]
    (dual,) = trainer.composer.weights._duals.values()
    assert dual.steps == 1 and dual.recent == [pytest.approx(sum(means) / len(means))]
    assert metrics["constraint/words/value"] == dual.recent[0]
    standardised = (torch.tensor(seen[0].trace.components["words"].scores.values[0]) - moments.mean) / moments.std
    assert seen[0].trace.components["words"].normalised_values[0] == pytest.approx(standardised.tolist(), abs=1e-5)
    one = seen[0].rollout.response_mask.cumsum(dim=1) == 1  # whitened over what is trained on, and nothing else
    kept = seen[0].advantages[one.logical_and(seen[0].rollout.response_mask.bool())]
    assert float(kept.mean()) == pytest.approx(0.0, abs=1e-5)
    teaching = 2 - sum(without_advantage(seen[0]))
    assert metrics["groups/no_advantage"] == 1 - teaching / 2
    rows = [json.loads(line) for line in trainer.run.samples_path(1).read_text().splitlines()]
    assert [row["id"] for row in rows] == [name for name in expected for _ in range(4)]


@pytest.mark.parametrize("place", ["loss", "reward"])
def test_a_step_of_which_nothing_is_left_moves_nothing(tmp_path: Path, place: Any) -> None:
    """Neither weights nor moments, though a penalty and Adam's momentum would; the next steps go on."""
    every = [f"p{i}" for i in range(5)]
    kl, algorithm = KLConfig(place=place, beta=0.1), GroupAdvantages()
    trainer = resampling(tmp_path, [], algorithm=algorithm, kl=kl, lr=1e-2, settings={})
    scorer = trainer.composer.config.components["words"]
    assert isinstance(scorer, SomeWords)
    assert trainer.train_step(1)["gradient_norm"] > 0
    before, scorer.dull = weights(trainer), set(every)
    metrics = trainer.train_step(2)
    assert metrics["resample/skipped"] == 1.0 and metrics["gradient_norm"] == 0.0 and "loss/policy" not in metrics
    assert metrics["resample/further"] == 3 and metrics["groups/no_advantage"] == 1.0
    assert metrics["groups/same_reward"] == 1.0 and metrics["reward/words/spread"] == 0.0
    assert all(torch.equal(weight, before[name]) for name, weight in weights(trainer).items())
    scorer.dull = set()
    assert trainer.train_step(3)["gradient_norm"] > 0


def test_without_further_rounds_the_step_is_the_plain_one(tmp_path: Path) -> None:
    """Where all prompts teach, nothing is drawn, and the step is that of a run without the key to the bit."""
    found = []
    for rounds in (0, 3):
        trainer = resampling(tmp_path / str(rounds), [], rounds, lr=1e-2)
        metrics = [trainer.train_step(step) for step in (1, 2)]
        kept = [{k: v for k, v in one.items() if not k.startswith(("time/", "resample/"))} for one in metrics]
        found.append((kept, weights(trainer)))
    (plain, moved), (asked, other) = found
    assert plain == asked and all(torch.equal(moved[name], weight) for name, weight in other.items())


def trained(path: Path, processes: Processes, **options: Any) -> tuple[list[dict[str, float]], Mapping[str, Tensor]]:
    drawn = {"resample": 2, "truncated": "masked", "ahead": 1, "importance_cap": 2.0}
    trainer = resampling(path, ["p0", "p2", "p4"], processes=processes, drawn=drawn, prompts_per_step=3, **options)
    metrics = [trainer.train_step(step) for step in (1, 2, 3)]
    return [{k: v for k, v in one.items() if not k.startswith("time/")} for one in metrics], weights(trainer)


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_processes_draw_and_learn_as_one(tmp_path: Path, kind: str) -> None:
    """Four processes and three prompts: one has none, and others none in the further rounds."""
    alone = trained(tmp_path / "one", Processes(), kind=kind, owner=policy(kind))
    assert sum(step["resample/further"] for step in alone[0]) > 0 and max(x["truncated"] for x in alone[0]) > 0
    for count in (4,) if kind == "t5" else (2,):
        owners = [policy(kind) for _ in range(count)]

        def work(processes: Processes, owners: list[Any] = owners) -> tuple[list[dict[str, float]], Any]:
            return trained(tmp_path / str(processes.count), processes, kind=kind, owner=owners.pop())

        assert_alike(alone, run_together(count, work))


def test_dense_credit_and_whole_responses_are_drawn_on_alike(tmp_path: Path) -> None:
    """A component of whole responses and one of segments, joined from rounds in which a process had no response."""
    scorers = {"words": SomeWords(["p0", "p1", "p2", "p3"]), "length": LengthScorer()}
    options: dict[str, Any] = {"scorers": scorers, "reward": {}, "settings": {}}
    algorithm = GroupAdvantages(credit="returns")
    trainer = resampling(tmp_path, [], algorithm=algorithm, **options)
    seen = watched(trainer)
    trainer.train_step(1)
    lengths = seen[0].trace.components["length"]
    assert lengths.scores.whole_response
    assert [row[0] for row in lengths.scores.values] == [-len(text) / 10 for text in seen[0].rollout.texts]


def test_a_resumed_run_is_the_uninterrupted_one(tmp_path: Path) -> None:
    def fresh(name: str) -> PPOTrainer:
        drawn = {"resample": 2, "truncated": "masked"}
        return resampling(tmp_path / name, ["p0", "p2", "p3"], owner=policy("t5"), drawn=drawn, lr=5e-3)

    whole, stopped, resumed = fresh("a"), fresh("b"), fresh("b")
    expected = [whole.train_step(step) for step in (1, 2, 3)][-1]
    for step in (1, 2):
        stopped.train_step(step)
    resumed.load_state(save_checkpoint(stopped, tmp_path / "checkpoint"))
    again = resumed.train_step(3)
    assert {k: v for k, v in again.items() if "time/" not in k} == {
        k: v for k, v in expected.items() if "time/" not in k
    }
    assert all(torch.equal(weights(resumed)[name], weight) for name, weight in weights(whole).items())


def test_the_spread_of_a_group_is_that_of_its_weighted_rewards(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, epochs=1, prompts_per_step=2, algorithm=GAE())
    seen = watched(trainer)
    metrics = trainer.train_step(1)
    for name, weight in (("words", 1.0), ("length", 0.5)):
        sums = torch.tensor([weight * sum(row) for row in seen[0].trace.components[name].scores.values]).view(2, 4)
        assert metrics[f"reward/{name}/spread"] == pytest.approx(float(sums.std(dim=1).mean()), abs=1e-5)
    assert metrics["groups/same_reward"] == 0.0 and metrics["groups/no_advantage"] == 0.0
    assert not any("spread" in name for name in make_trainer(tmp_path, samples=1, epochs=1).train_step(1))
