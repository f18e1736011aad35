"""Penalties for the form of a response: what they count, what they take, and that they are components like others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from ppo_toy import LengthScorer, WordScorer, make_trainer
from rewards_toy import rollout, whole
from rl_toy import policy, prompts

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.files import read_jsonl
from finegrained_rlhf.core.records import Greedy, Sample
from finegrained_rlhf.inference.best_of import BestOf
from finegrained_rlhf.inference.generator import Response
from finegrained_rlhf.rewards import OverlongPenalty, RewardComposer, RewardConfig
from finegrained_rlhf.rewards.penalties import FormPenalties
from finegrained_rlhf.rollout import make_engine
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.training.hacking import hacking_warnings
from finegrained_rlhf.training.ppo.metrics import KeptSamples


def reward(**penalties: Any) -> RewardConfig:
    return RewardConfig({"words": WordScorer()}, {"words": 2.0}, {}, **penalties)


def cells(placed: torch.Tensor) -> dict[tuple[int, int], float]:
    return {(r, t): round(float(placed[r, t]), 6) for r, t in placed.nonzero().tolist()}


def test_by_hand() -> None:
    """Nine tokens with an end, one word without, an end alone; limit 2, so that seven tokens are too many."""
    config = reward(end_penalty=0.5, overlong=OverlongPenalty(2, 0.25))
    trace = RewardComposer(config, eos_ids=(1,)).compose(rollout(), {"words": whole(1.0, 0.0, 3.0)})
    assert list(trace.components) == ["words", "unfinished", "overlong"]
    unfinished, overlong = trace.components["unfinished"], trace.components["overlong"]
    assert [row[0] for row in unfinished.scores.values] == [0.0, 1.0, 0.0]
    assert [row[0] for row in overlong.scores.values] == [7.0, 0.0, 0.0]
    assert (unfinished.weight, overlong.weight) == (-0.5, -0.25)
    assert cells(unfinished.weighted) == {(1, 0): -0.5}
    assert cells(overlong.weighted) == {(0, 8): -1.75}
    assert cells(trace.total) == {(0, 8): 2.0 - 1.75, (1, 0): -0.5, (2, 0): 6.0}


def test_off_there_is_no_component_and_nothing_changes() -> None:
    plain = RewardComposer(reward(), eos_ids=(1,)).compose(rollout(), {"words": whole(1.0, 0.0, 3.0)})
    assert list(plain.components) == ["words"] and cells(plain.total) == {(0, 8): 2.0, (2, 0): 6.0}


def test_exactly_at_the_limit_nothing_is_taken() -> None:
    counted = FormPenalties(0.0, OverlongPenalty(3, 1.0)).count([True] * 3, [2, 3, 4], ["a", "b", "c"])
    assert counted["overlong"].values == ((0.0,), (0.0,), (1.0,)) and "unfinished" not in counted


def test_two_samples_are_penalised_as_each_alone() -> None:
    """Samples of one prompt in one rollout, of which one is padded to the other's length, and each in its own."""
    ours = policy()
    engine, asked = make_engine(ours), prompts(count=3)
    drawn = engine.decode(engine.encode(asked), [Sample(2, temperature=2.0), Greedy()], max_new_tokens=7, seed=1)
    penalties = FormPenalties(1.0, OverlongPenalty(2, 0.5))
    together = penalties.count_in(drawn, ours.eos_ids)
    assert len(set(together["overlong"].values)) > 1
    for row, length in enumerate(drawn.lengths().tolist()):
        ids = drawn.response_ids[row, :length].tolist()
        ended = any(i in ours.eos_ids for i in ids)
        alone = penalties.count([ended], [length], [drawn.texts[row]])
        for name, scores in together.items():
            assert (scores.spans[row], scores.values[row]) == (alone[name].spans[0], alone[name].values[0])


@pytest.mark.parametrize(
    ("penalties", "message"),
    [
        ({"end_penalty": -1.0}, r"reward\.end_penalty: expected 0 or a positive number, got -1\.0"),
        ({"end_penalty": float("nan")}, r"end_penalty: expected a finite number"),
        ({"end_penalty": "much"}, r"end_penalty: expected a finite number"),
        ({"overlong": 7}, r"reward\.overlong: expected an OverlongPenalty, got 7"),
    ],
)
def test_wrong_settings_are_refused(penalties: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        reward(**penalties)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"limit": 3}, r"reward\.overlong\.per_token: expected a positive number, got 0\.0"),
        ({"limit": 0, "per_token": 1.0}, r"limit: .*at least 1, got 0"),
        ({"limit": 2.5, "per_token": 1.0}, r"limit: expected null or a whole number"),
        ({"limit": 3, "per_token": float("inf")}, r"per_token: expected a finite number"),
        ({"per_token": 1.0}, r"reward\.overlong\.per_token=1\.0 needs reward\.overlong\.limit"),
    ],
)
def test_a_wrong_limit_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        OverlongPenalty(**fields)


def test_a_name_belongs_to_the_penalty_while_it_is_on() -> None:
    named = RewardConfig({"unfinished": WordScorer()}, {"unfinished": 1.0})
    with pytest.raises(ConfigError, match=r"reward\.components\.unfinished: this name is the penalty's"):
        replace(named, end_penalty=1.0)
    with pytest.raises(ConfigError, match="ends of sequence of the policy are not known"):
        RewardComposer(reward(end_penalty=1.0)).compose(rollout(), {"words": whole(1.0, 1.0, 1.0)})


def test_best_of_n_takes_them_too() -> None:
    config = RewardConfig({"length": LengthScorer()}, {"length": 0.0}, {}, 1.0, OverlongPenalty(2, 0.5))
    # tokens without the end of sequence: 3 ended (4 in all, 2 too many), 2 cut off, 1 ended
    group = [Response("red one on", 3, True), Response("red one", 2, False), Response("red", 1, True)]
    (choice,) = BestOf(RewardComposer(config), Processes()).choose(prompts(count=1), [group])
    assert choice.totals == pytest.approx((-1.0, -1.0, 0.0)) and choice.sample == 2
    (worse,) = BestOf(RewardComposer(config), Processes()).choose(prompts(count=1), [group[:1]])
    assert [(s.component, s.raw, s.weighted) for s in worse.segments if s.component != "length"] == [
        ("unfinished", 0.0, 0.0),
        ("overlong", 2.0, -1.0),
    ]


def test_a_training_step_shows_them_in_metrics_and_samples(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, validation=3, whiten_rewards=False)
    plain = trainer.validate(0)
    config = replace(trainer.composer.config, end_penalty=0.5, overlong=OverlongPenalty(3, 0.1))
    trainer.composer = RewardComposer(config, trainer.processes.sum_, trainer.models.policy.eos_ids)
    trainer.samples = KeptSamples(every=1)
    metrics, validation = trainer.train_step(1), trainer.validate(1)
    assert metrics["reward/unfinished/raw"] == pytest.approx(1.0 - metrics["eos_rate"])
    assert metrics["reward/unfinished/weighted"] == pytest.approx(-0.5 * metrics["reward/unfinished/raw"])
    names = ("words", "length", "unfinished", "overlong")
    assert metrics["reward/total"] == pytest.approx(sum(metrics[f"reward/{name}/weighted"] for name in names))
    assert "reward/overlong/raw" in validation and "reward/overlong/raw" not in plain
    rows = read_jsonl(trainer.run.samples_path(1))
    for row in rows:
        found = {s["component"]: s for s in row["segments"] if s["component"] in ("unfinished", "overlong")}
        length = len(row["tokens"]["ends"])
        assert found["overlong"]["raw"] == max(0, length - 3) and found["overlong"]["token"] == length - 1
        assert found["overlong"]["weighted"] == pytest.approx(-0.1 * max(0, length - 3))
    assert any(s["component"] == "overlong" and s["raw"] > 0 for row in rows for s in row["segments"])


def test_a_gain_that_a_penalty_asks_for_is_no_hacking() -> None:
    first = {
        "reward/overlong/raw": 9.0,
        "reward/overlong/weighted": -0.9,
        "segments/overlong": 1.0,
        "response_length": 20.0,
        "repetition": 0.0,
        "eos_rate": 1.0,
    }
    now = {**first, "reward/overlong/raw": 0.0, "reward/overlong/weighted": 0.0, "response_length": 10.0}
    assert hacking_warnings(first, now) == []
    others = {key.replace("overlong", "facts"): value for key, value in first.items()}
    assert hacking_warnings(others, {key.replace("overlong", "facts"): value for key, value in now.items()})
