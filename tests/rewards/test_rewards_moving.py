"""Weights that move: schedules, gates and constraints by hand, in a training run, over processes and a resume."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ppo_toy import LengthScorer, WordScorer, make_trainer, run_together
from rewards_toy import TEXTS, rollout, whole
from rl_toy import policy, prompts

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.files import read_jsonl
from finegrained_rlhf.core.records import SegmentScores
from finegrained_rlhf.inference.best_of import BestOf
from finegrained_rlhf.inference.generator import Response
from finegrained_rlhf.rewards import (
    BaseScorer,
    ComponentConfig,
    RewardComposer,
    RewardConfig,
    RewardConstraint,
    RewardGate,
    WeightSchedule,
)
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.training.ppo.metrics import KeptSamples
from finegrained_rlhf.training.ppo.trainer import PPOTrainer

# segments of "the cat sat, one dog ran!" | "red" | "" (rewards_toy): values of the component that decides
JUDGED = SegmentScores((((0, 12), (13, 25)), ((0, 3),), ()), ((1.0, -1.0), (1.0,), ()))


class Bounded(BaseScorer):
    """A scorer of segments that gives -1 or 1."""

    value_range = (-1.0, 1.0)

    def score(self, prompts: Any, responses: Any) -> SegmentScores:
        return SegmentScores([()] * len(responses), [()] * len(responses))


def reward(**moving: Any) -> RewardConfig:
    return RewardConfig({"a": WordScorer(), "b": Bounded()}, {"a": 2.0, "b": 0.5}, {}, **moving)


def compose(config: RewardConfig, **options: Any) -> Any:
    return RewardComposer(config).compose(rollout(), {"a": whole(1.0, 3.0, 5.0), "b": JUDGED}, **options)


# Schedules --------------------------------------------------------------------------------------------------------


def test_a_schedule_by_hand() -> None:
    """From 0.3 at step 200 to 0.5 at step 1000: a quarter of the way at 400, 0.3 + 0.05."""
    linear = WeightSchedule([0, 200, 1000], [0.3, 0.3, 0.5])
    assert [linear.weight_at(step) for step in (1, 200, 1000, 5000)] == [0.3, 0.3, 0.5, 0.5]
    assert linear.weight_at(400) == pytest.approx(0.35) and linear.weight_at(600) == pytest.approx(0.4)
    constant = replace(linear, interpolation="constant")
    assert [constant.weight_at(step) for step in (1, 999, 1000, 1001)] == [0.3, 0.3, 0.5, 0.5]
    assert WeightSchedule([10, 20], [1.0, 2.0]).weight_at(3) == 1.0 and not WeightSchedule().active


def test_a_schedule_is_numpys_interpolation() -> None:
    steps, weights = [3, 7, 8, 40], [1.0, -2.0, 0.5, 0.25]
    ours = [WeightSchedule(steps, weights).weight_at(step) for step in range(1, 60)]
    assert ours == pytest.approx(np.interp(range(1, 60), steps, weights).tolist(), abs=1e-12)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"steps": [1]}, r"one weight a step"),
        ({"steps": [5, 5], "weights": [1.0, 1.0]}, r"that increase"),
        ({"steps": [2, 1], "weights": [1.0, 1.0]}, r"that increase"),
        ({"steps": [-1], "weights": [1.0]}, r"from 0"),
        ({"steps": [1.5], "weights": [1.0]}, r"a whole number"),
        ({"steps": [1], "weights": [float("nan")]}, r"finite"),
        ({"interpolation": "cubic"}, r"one of linear, constant, got 'cubic'"),
    ],
)
def test_a_wrong_schedule_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        WeightSchedule(**fields)


def test_training_follows_the_schedule_and_validation_does_not() -> None:
    config = reward(schedule={"a": WeightSchedule([1, 3], [0.0, 8.0])})
    for step, weight in ((1, 0.0), (2, 4.0), (3, 8.0)):
        trace = compose(config, step=step)
        assert trace.components["a"].weight == weight and trace.components["b"].weight == 0.5
        assert float(trace.components["a"].weighted.sum()) == pytest.approx(9.0 * weight)
        assert float(trace.total.sum()) == pytest.approx(9.0 * weight + 0.5)
        assert float(compose(config, step=step, train=False).total.sum()) == pytest.approx(18.0 + 0.5)


# Gates ------------------------------------------------------------------------------------------------------------


def test_gates_by_hand() -> None:
    """The means of b are 0, 1 and, without a segment, 0; its sums 0, 1, 0."""
    for of in ("mean", "sum"):
        trace = compose(reward(gates={"a": RewardGate("b", 0.5, of)}))
        part = trace.components["a"]
        assert part.gate == (False, True, False) and [part.weight_of(row) for row in range(3)] == [0.0, 2.0, 0.0]
        assert part.weighted.sum(dim=1).tolist() == [0.0, 6.0, 0.0] and part.raw.sum(dim=1).tolist() == [1.0, 3.0, 5.0]
        assert torch.equal(trace.total, part.weighted + trace.components["b"].weighted)
    assert compose(reward(gates={"a": RewardGate("b", 0.0)})).components["a"].gate == (True, True, True)
    plain = compose(reward(gates={"a": RewardGate()}))
    assert plain.components["a"].gate is None and torch.equal(plain.total, compose(reward()).total)


def test_a_closed_gate_takes_every_segment_and_the_deciding_values_are_raw() -> None:
    config = replace(
        reward(gates={"b": RewardGate("a", 2.0)}),
        weights={"a": 0.0, "b": 1.0},
        settings={"a": ComponentConfig("running")},
    )
    trace = compose(config)  # a gives 1, 3, 5, which is -1.2, 0, 1.2 when normalised
    assert trace.components["b"].gate == (False, True, True)
    assert trace.components["b"].weighted.sum(dim=1).tolist() == [0.0, 1.0, 0.0]


def test_a_gate_holds_wherever_the_reward_is_computed() -> None:
    config = RewardConfig(
        {"words": WordScorer(), "length": LengthScorer()},
        {"words": 1.0, "length": 1.0},
        gates={"length": RewardGate("words", 0.0)},
    )
    scores = RewardComposer(config).score(prompts(count=2), ["red", "one"])
    assert RewardComposer(config).totals(scores) == pytest.approx([1.0 - 0.3, -0.2])
    group = [Response("red", 1, True), Response("one", 1, True)]
    (choice,) = BestOf(RewardComposer(config), Processes()).choose(prompts(count=1), [group])
    assert choice.totals == pytest.approx((0.7, -0.2)) and choice.sample == 0
    (worse,) = BestOf(RewardComposer(config), Processes()).choose(prompts(count=1), [group[1:]])
    assert [s.weighted for s in worse.segments] == [-0.2, 0.0]


@pytest.mark.parametrize(
    ("gate", "message"),
    [
        ({"by": "b"}, r"by and at_least belong together, got 'b' and None"),
        ({"at_least": 1.0}, r"by and at_least belong together"),
        ({"by": "b", "at_least": float("inf")}, r"at_least: expected null or a finite number"),
        ({"by": "b", "at_least": 0.0, "of": "max"}, r"of: expected one of mean, sum"),
        ({"by": "c", "at_least": 0.0}, r"reward\.gates\.a\.by: expected another component \(b\), got 'c'"),
        ({"by": "a", "at_least": 0.0}, r"reward\.gates\.a\.by: expected another component"),
        ({"by": "b", "at_least": 1.5}, r"reward\.gates\.a\.at_least: 1\.5 cannot be reached; b .* 1 at most"),
        ({"by": "b", "at_least": -1.0}, r"reward\.gates\.a\.at_least: -1 is always reached; b .* -1 at least"),
    ],
)
def test_a_wrong_gate_is_refused(gate: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        reward(gates={"a": RewardGate(**gate)})


# Constraints ------------------------------------------------------------------------------------------------------


def test_a_dual_variable_by_hand() -> None:
    """b means 0, 1 and 0 in three responses, a third; with 0.5 asked for and rate 0.6, λ rises by 0.1 a step."""
    composer = RewardComposer(reward(constraints={"b": RewardConstraint(0.5, rate=0.6)}))
    scores = {"a": whole(1.0, 3.0, 5.0), "b": JUDGED}
    for step, λ in enumerate((0.0, 0.1, 0.2), start=1):
        trace = composer.compose(rollout(), scores, step=step)
        assert trace.components["b"].weight == pytest.approx(0.5 + λ)
        assert trace.metrics == pytest.approx({"constraint/b/multiplier": λ, "constraint/b/value": 1 / 3})
        assert composer.compose(rollout(), scores, train=False).components["b"].weight == 0.5
    good = {**scores, "b": replace(JUDGED, values=((1.0, 1.0), (1.0,), ()))}  # means 2/3: λ falls by 0.1
    assert composer.compose(rollout(), good).components["b"].weight == pytest.approx(0.8)
    assert composer.compose(rollout(), scores).components["b"].weight == pytest.approx(0.7)
    for _ in range(20):
        composer.compose(rollout(), good)
    assert composer.compose(rollout(), good).components["b"].weight == 0.5  # never below the weight itself
    assert not composer.weights.unmet()


def test_a_multiplier_stops_at_its_limit_and_the_end_says_what_is_missing() -> None:
    composer = RewardComposer(reward(constraints={"b": RewardConstraint(0.9, rate=1.0, max_multiplier=0.7)}))
    for _ in range(30):
        trace = composer.compose(rollout(), {"a": whole(1.0, 3.0, 5.0), "b": JUDGED})
    assert trace.components["b"].weight == pytest.approx(1.2)
    assert composer.weights.unmet() == [
        "reward.constraints.b.at_least=0.9 was not reached: 0.3333 in the last 20 steps, 0.567 too little; missed in "
        "30 of 30 steps, λ is now 0.7"
    ]


def test_means_below_their_thresholds_are_counted() -> None:
    composer = RewardComposer(reward(constraints={"a": RewardConstraint(-2.0), "b": RewardConstraint(0.5)}))
    for a, b, missed in ((-2.0, 0.5, 0), (9.0, 0.49, 1), (-2.1, 0.5, 1), (-2.1, 0.0, 2)):
        means = {"constraint/a/value": a, "constraint/b/value": b, "reward/total": 7.0}
        assert composer.weights.missed(means) == {"constraints_missed": missed}
    assert RewardComposer(reward()).weights.missed({"reward/total": 7.0}) == {}


def test_a_constraint_counts_the_responses_of_all_processes() -> None:
    config = reward(constraints={"b": RewardConstraint(0.5, rate=0.6)})
    one = RewardComposer(config)
    one.compose(rollout(), {"a": whole(1.0, 3.0, 5.0), "b": JUDGED})

    def work(processes: Processes) -> Any:
        ours, rows = RewardComposer(config, processes.sum_), [0, 1] if processes.rank == 0 else [2]
        texts = [TEXTS[i] for i in rows]
        drawn = rollout(texts, [(True, False, True)[i] for i in rows])
        picked = SegmentScores([JUDGED.spans[i] for i in rows], [JUDGED.values[i] for i in rows])
        words = SegmentScores([((0, len(t)),) for t in texts], [(1.0,) for _ in texts], True)
        ours.compose(drawn, {"a": words, "b": picked})
        return ours.state()

    assert run_together(2, work) == [one.state(), one.state()]


@pytest.mark.parametrize(
    ("constraint", "message"),
    [
        ({"at_least": 2.0}, r"reward\.constraints\.b\.at_least: 2 cannot be reached; b .* 1 at most"),
        ({"at_least": -1.0}, r"reward\.constraints\.b\.at_least: -1 is always reached"),
        ({"at_least": 0.5, "rate": 0.0}, r"rate: expected above 0, got 0\.0"),
        ({"at_least": 0.5, "max_multiplier": -1.0}, r"max_multiplier: expected null or above 0"),
        ({"at_least": "high"}, r"at_least: expected null or a finite number, got 'high'"),
        ({"at_least": 0.5, "of": "median"}, r"of: expected one of mean, sum"),
    ],
)
def test_a_constraint_that_cannot_be_met_is_refused(constraint: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        reward(constraints={"b": RewardConstraint(**constraint)})


@pytest.mark.parametrize("given", [3, (1.0,), ("low", "high")])
def test_what_is_no_range_is_refused(given: Any) -> None:
    odd = Bounded()
    odd.value_range = given
    with pytest.raises(ConfigError, match=r"reward\.components\.b: value_range must be the smallest and the largest"):
        RewardConfig({"b": odd}, {"b": 1.0}, constraints={"b": RewardConstraint(0.5)})


def test_a_response_without_a_segment_counts_zero_whatever_an_empty_one_is_paid() -> None:
    low = Bounded()
    low.value_range = (-1.0, -2.0)  # the order does not matter
    paid = {"b": ComponentConfig(empty=-1.0)}
    RewardConfig({"b": low}, {"b": 1.0}, paid, constraints={"b": RewardConstraint(-0.5)})
    with pytest.raises(ConfigError, match="0.5 cannot be reached; b gives a response 0 at most"):
        RewardConfig({"b": low}, {"b": 1.0}, paid, constraints={"b": RewardConstraint(0.5)})


def test_a_sum_has_no_largest_value_and_unknown_names_are_refused() -> None:
    reward(constraints={"b": RewardConstraint(2.0, "sum")})
    for place, part in (("schedule", WeightSchedule()), ("gates", RewardGate()), ("constraints", RewardConstraint())):
        with pytest.raises(ConfigError, match=rf"reward\.{place}\.c: no such component; the reward has a, b"):
            reward(**{place: {"c": part}})
        with pytest.raises(ConfigError, match=rf"reward\.{place}\.a: expected a \w+, got 3"):
            reward(**{place: {"a": 3}})


# In a run ---------------------------------------------------------------------------------------------------------

MOVING: dict[str, Any] = {
    "schedule": {"length": WeightSchedule([1, 4], [0.5, 2.0])},
    "gates": {"length": RewardGate("words", -0.1)},
    "constraints": {"words": RewardConstraint(0.5, rate=0.3)},
}


def moving_trainer(path: Path, **given: Any) -> PPOTrainer:
    if "owner" not in given:  # making one moves the global generator, which threads share
        given["owner"] = copy.deepcopy(policy("t5"))
    trainer = make_trainer(path, validation=3, **given)
    config = replace(trainer.composer.config, **MOVING)
    trainer.composer = RewardComposer(config, trainer.processes.sum_, trainer.models.policy.eos_ids)
    trainer.samples = KeptSamples(every=1)
    return trainer


def weights(trainer: PPOTrainer) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in trainer.models.trained]


def steady(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if not name.startswith(("time/", "processes"))}


def test_metrics_and_samples_keep_the_weights_of_the_step(tmp_path: Path) -> None:
    trainer, multiplier = moving_trainer(tmp_path), 0.0
    scores = []
    for step in (1, 2, 3):
        metrics = trainer.train_step(step)
        assert metrics["reward/length/weight"] == pytest.approx(0.5 * step)
        assert metrics["reward/words/weight"] == pytest.approx(1.0 + multiplier)
        assert metrics["constraint/words/multiplier"] == pytest.approx(multiplier)
        multiplier = max(0.0, multiplier + 0.3 * (0.5 - metrics["constraint/words/value"]))
        assert multiplier > 0
        rows = read_jsonl(trainer.run.samples_path(step))
        closed = 0
        for row in rows:
            parts: dict[str, list[Any]] = {"words": [], "length": []}
            for segment in row["segments"]:
                parts[segment["component"]].append(segment)
            mean = sum(s["raw"] for s in parts["words"]) / max(1, len(parts["words"]))
            for segment in parts["length"]:
                used = metrics["reward/length/weight"] if mean >= -0.1 else 0.0
                assert segment["weighted"] == pytest.approx(used * segment["raw"])
                closed += used == 0.0
        assert metrics["reward/length/open"] == pytest.approx(1 - closed / len(rows))
        scores.append(trainer.validate(step))
    for found in scores:  # on one scale throughout: the configured weights
        assert found["reward/words/weighted"] == pytest.approx(found["reward/words/raw"], abs=1e-6)
        assert "reward/words/weight" not in found and "constraint/words/multiplier" not in found
        assert found["constraint/words/value"] < 0.5 and found["constraints_missed"] == 1
    kept = read_jsonl(trainer.run.validation_samples_path(3))
    raw = [[s["raw"] for s in row["segments"] if s["component"] == "words"] for row in kept]
    assert len(raw) == scores[-1]["examples"] == 3
    means = [sum(values) / max(1, len(values)) for values in raw]
    assert scores[-1]["constraint/words/value"] == pytest.approx(sum(means) / 3, abs=1e-5)


def test_one_process_is_two_and_a_resume_is_bit_identical(tmp_path: Path) -> None:
    whole_run = moving_trainer(tmp_path / "one")
    said = [steady(whole_run.train_step(step)) for step in (1, 2, 3, 4)]

    owners = [copy.deepcopy(policy("t5")) for _ in range(2)]  # threads share the global generator

    def work(processes: Processes) -> Any:
        trainer = moving_trainer(tmp_path / "two", processes=processes, owner=owners.pop())
        return [steady(trainer.train_step(step)) for step in (1, 2)], weights(trainer)

    (metrics, _), (others, _) = run_together(2, work)
    assert metrics == others
    for step in (0, 1):
        for name, value in said[step].items():
            assert metrics[step][name] == pytest.approx(value, rel=1e-3, abs=1e-4), name

    begun = moving_trainer(tmp_path / "begun")
    begun.train_step(1), begun.train_step(2)
    saved = tmp_path / "checkpoint"
    (saved / "policy").mkdir(parents=True)
    begun.model_to_save()(saved / "policy")
    begun.state_to_save()(saved)
    resumed = moving_trainer(tmp_path / "resumed")
    resumed.load_state(saved)
    assert [steady(resumed.train_step(step)) for step in (3, 4)] == said[2:]
    assert all(map(torch.equal, weights(resumed), weights(whole_run)))


def test_checkpoints_of_before_still_load() -> None:
    composer = RewardComposer(replace(reward(), settings={"b": ComponentConfig("running")}))
    composer.load_state({"b": {"running": [4.0, 1.0, 2.0], "validation": None}})
    assert composer.state() == {"moments": {"b": {"running": [4.0, 1.0, 2.0], "validation": None}}, "constraints": {}}
