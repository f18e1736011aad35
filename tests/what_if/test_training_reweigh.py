"""Reweighing kept rollouts: advantages come out as training made them, and change as a training would change them."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
import yaml
from ppo_toy import LengthScorer, WordScorer, make_trainer

from finegrained_rlhf.core.errors import ConfigError, ConsistencyError, DataError
from finegrained_rlhf.core.exports import public_path
from finegrained_rlhf.core.files import read_json, read_jsonl, write_jsonl
from finegrained_rlhf.core.records import Prompt, Rollout, SegmentScores
from finegrained_rlhf.rewards import (
    ComponentConfig,
    OverlongPenalty,
    RewardComposer,
    RewardConstraint,
    RewardGate,
    WeightSchedule,
)
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.training.ppo import GAE, GroupAdvantages
from finegrained_rlhf.training.ppo.config import CompatConfig, KLConfig, PPOConfig
from finegrained_rlhf.training.ppo.metrics import KeptSamples
from finegrained_rlhf.what_if.job import RewardChange, Reweigh
from finegrained_rlhf.what_if.kept_rollouts import KeptStep, kept_steps, read_kept_step
from finegrained_rlhf.what_if.reweigh import mean_of, ppo_config_of_run, report_text, run_weighing
from finegrained_rlhf.what_if.weights import StepChange, Weighing, check_recomputed, compare, experience_under

NAMES = ["words", "length"]
PLAIN = PPOConfig(discount=1.0, lambda_=1.0, whiten_rewards=False, whiten_advantages=False)


def make_run(
    path: Path,
    weights: tuple[float, float] = (1.0, 0.5),
    steps: int = 2,
    rows: int = 64,
    moving: Any = None,
    **given: Any,
) -> Path:
    """A PPO run of two steps, with the files that `finegrained train-ppo` leaves."""
    trainer = make_trainer(path, **given)
    trainer.composer.config.weights.update(zip(NAMES, weights, strict=True))  # type: ignore[attr-defined]
    trainer.samples = KeptSamples(every=1, rows=rows)
    moving = moving or {}
    trainer.composer = RewardComposer(replace(trainer.composer.config, **moving), trainer.processes.sum_)
    write_jsonl(path / "metrics.jsonl", [{"step": step, **trainer.train_step(step)} for step in range(1, steps + 1)])
    settings = {name: {"_target_": "any", **vars(setting)} for name, setting in given.get("settings", {}).items()}
    ppo = {
        "_target_": "any",
        **{k: vars(v) if k in ("kl", "entropy", "compat") else v for k, v in vars(trainer.config).items()},
    }
    reward = {"components": {name: {} for name in NAMES}, "weights": dict(zip(NAMES, weights, strict=True))}
    parts = {place: {name: {**vars(part)} for name, part in named.items()} for place, named in moving.items()}
    config: dict[str, Any] = {"ppo": ppo, "reward": {**reward, "settings": settings, **parts}}
    if (algorithm := given.get("algorithm")) is not None:
        config["algorithm"] = {"_target_": public_path(type(algorithm)), **vars(algorithm)}
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("run"))


def measured(run: Path, weights: dict[str, float] | None = None, **settings: Any) -> dict[str, Any]:
    found = Reweigh(str(run), RewardChange(weights or {}, settings)).measured()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    return found


def kept(run: Path, step: int = 1) -> KeptStep:
    metrics = {row["step"]: row for row in read_jsonl(run / "metrics.jsonl")}
    return read_kept_step(RunDirectory(run), step, NAMES, metrics[step])


# Training's own numbers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({}, marks=pytest.mark.slow),
        {"lambda_": 0.5, "discount": 0.9, "value_target": "truncated"},
        pytest.param({"whiten_rewards": False, "whiten_advantages": False}, marks=pytest.mark.slow),
        pytest.param({"algorithm": GroupAdvantages(credit="returns")}, marks=pytest.mark.slow),
        {"algorithm": GroupAdvantages("group_mean", "std", by_component=True, whiten=True), "kl": KLConfig("loss")},
        {"compat": CompatConfig(whiten_by_root_std=True)},
        pytest.param(
            {"settings": {"words": ComponentConfig("none", "mean"), "length": ComponentConfig()}},
            marks=pytest.mark.slow,
        ),
        {"settings": {"words": ComponentConfig("none", "budget", 2.0, "response")}},
        {
            "settings": {
                "words": ComponentConfig("running", "mean", 1.0, "response"),
                "length": ComponentConfig("running"),
            }
        },
    ],
    ids=["plain", "truncated", "unwhitened", "group", "gdpo", "root-std", "mean", "budget-response", "running"],
)
def test_the_runs_own_reward_gives_the_advantages_that_were_kept(tmp_path: Path, given: dict[str, Any]) -> None:
    found = measured(make_run(tmp_path, **given))
    assert [step["step"] for step in found["steps"]] == [1, 2]
    for step in found["steps"]:
        assert step["total_before"] == step["total_now"]
        assert (step["best_changes"], step["advantage_flips"]) == (0.0, 0.0)
        assert step["advantage_correlation"] == pytest.approx(1.0) and step["tau"] == pytest.approx(1.0)
    assert not found["new_best"]


MOVING: dict[str, Any] = {
    "schedule": {"length": WeightSchedule([1, 3], [0.5, 2.0])},
    "constraints": {"words": RewardConstraint(0.5, rate=0.3)},
}


@pytest.mark.parametrize(("normalisation", "at_least"), [("none", -0.1), ("running", -0.205)])
def test_weights_that_moved_are_those_of_each_step(
    tmp_path: Path, normalisation: Literal["none", "running"], at_least: float
) -> None:
    """No mean is below -0.2 as the scorer gives it; normalised, many are below -0.205."""
    settings = {name: ComponentConfig(normalisation) for name in NAMES}
    moving = {**MOVING, "gates": {"length": RewardGate("words", at_least)}}
    run = make_run(tmp_path / "run", moving=moving, settings=settings)
    same = measured(run)
    assert same["moved"] and same["before"] == same["now"] and same["before"]["weights"]["length"] == (0.5 + 1.25) / 2
    steps = [row["reward/words/weight"] for row in read_jsonl(run / "metrics.jsonl")]
    assert steps[1] > steps[0] == 1.0 and same["before"]["weights"]["words"] == pytest.approx(sum(steps) / 2)
    assert all(step["advantage_correlation"] == pytest.approx(1.0) for step in same["steps"])
    told = report_text(same, 0)
    assert "The run's weights moved" in told and "Nothing is changed" in told
    other = measured(run, {"length": 0.0})
    assert other["now"]["weights"] == {**same["before"]["weights"], "length": 0.0}
    assert all(step["shares_now"]["length"] == 0.0 for step in other["steps"])
    lines = [{k: v for k, v in row.items() if k != "reward/words/weight"} for row in read_jsonl(run / "metrics.jsonl")]
    write_jsonl(run / "metrics.jsonl", lines)
    with pytest.raises(DataError, match=r"metrics\.jsonl.*step 1.*reward/words/weight: expected a number, got None"):
        measured(run)


def test_a_group_needs_all_responses_and_heads_their_values(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"step_1\.jsonl.* 5 of 12 responses"):
        measured(make_run(tmp_path / "part", steps=1, rows=5, algorithm=GroupAdvantages()))
    with pytest.raises(ConfigError, match="algorithm.per_component: the values of each head were not kept"):
        measured(make_run(tmp_path / "heads", steps=1, algorithm=GAE(per_component=True)))


def test_other_weights_give_what_training_with_them_would_have(tmp_path: Path) -> None:
    """The first step of two runs draws the same responses: the reward enters after them."""
    ours, theirs = make_run(tmp_path / "a", steps=1), make_run(tmp_path / "b", (0.3, 2.0), steps=1)
    config = read_yaml(ours)
    now = run_weighing(config, RunDirectory(ours)).changed({"words": 0.3, "length": 2.0}, {})
    made, trained = experience_under(kept(ours), now, ppo_config_of_run(config, RunDirectory(ours))), kept(theirs)
    assert made.rollout.texts == trained.rollout.texts
    torch.testing.assert_close(made.advantages, trained.advantages, atol=1e-4, rtol=0)
    torch.testing.assert_close(made.rewards, trained.rewards, atol=1e-4, rtol=0)
    assert (made.advantages - kept(ours).advantages).abs().max() > 0.1


@pytest.mark.parametrize(
    "setting", [ComponentConfig("none", "mean"), ComponentConfig("none", "budget", 2.0, "response")]
)
def test_other_settings_give_what_training_with_them_would_have(tmp_path: Path, setting: ComponentConfig) -> None:
    ours = make_run(tmp_path / "a", steps=1)
    trained = kept(make_run(tmp_path / "b", steps=1, settings={"words": setting}))
    config = read_yaml(ours)
    now = run_weighing(config, RunDirectory(ours)).changed({}, {"words": vars(setting)})
    made = experience_under(kept(ours), now, ppo_config_of_run(config, RunDirectory(ours)))
    torch.testing.assert_close(made.advantages, trained.advantages, atol=1e-4, rtol=0)


def read_yaml(run: Path) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load((run / "config.yaml").read_text())
    return config


def edited(run: Path, path: Path, name: str, old: str, new: str) -> Path:
    """A copy of a run with one text replaced once in one file."""
    shutil.copytree(run, path)
    text = (path / name).read_text()
    assert old in text
    (path / name).write_text(text.replace(old, new, 1))
    return path


def test_numbers_that_do_not_belong_together_are_refused(run: Path, tmp_path: Path) -> None:
    changed = edited(run, tmp_path / "weight", "config.yaml", "length: 0.5", "length: 0.6")
    with pytest.raises(ConsistencyError, match="step 1: with the run's own reward the rewards .* by 0"):
        measured(changed)
    beta = read_jsonl(run / "metrics.jsonl")[1]["beta"]
    lines = read_jsonl(run / "metrics.jsonl")
    shutil.copytree(run, tmp_path / "beta")
    write_jsonl(tmp_path / "beta" / "metrics.jsonl", [lines[0], {**lines[1], "beta": beta + 1.0}])
    with pytest.raises(ConsistencyError, match="step 2"):
        measured(tmp_path / "beta")
    changed = edited(run, tmp_path / "lambda", "config.yaml", "lambda_: 0.95", "lambda_: 0.5")
    with pytest.raises(ConsistencyError, match="step 1: .* the advantages"):
        measured(changed)


def test_a_step_of_which_only_some_rows_were_kept_says_so(tmp_path: Path) -> None:
    part = make_run(tmp_path / "part", rows=8)
    assert not kept(part).complete and kept(part).episodes == 12
    found = measured(part, {"words": 0.2})
    assert [step["complete"] for step in found["steps"]] == [False, False]
    assert [step["responses"] for step in found["steps"]] == [8, 8]
    changed = edited(part, tmp_path / "weight", "config.yaml", "length: 0.5", "length: 5.0")
    with pytest.raises(ConsistencyError, match="step 1: .* the rewards"):
        measured(changed)


# What is said of a change, by hand -------------------------------------------------------------------------------


def step_of(words: list[tuple[float, ...]], length: list[float], prompts: list[str]) -> KeptStep:
    """Responses of two tokens: words are paid at the first, the whole at the second; values are 0."""
    rows = len(prompts)
    texts = ["ab"] * rows
    mask = torch.ones((rows, 2), dtype=torch.long)
    asked = [Prompt(name, f"text of {name}", ()) for name in dict.fromkeys(prompts)]
    index = torch.tensor([list(dict.fromkeys(prompts)).index(name) for name in prompts])
    zeros, one = torch.zeros((rows, 2)), torch.zeros(rows, dtype=torch.long)
    rollout = Rollout(
        asked,
        one[:, None],
        one[:, None],
        index,
        torch.arange(rows),
        one,
        (),
        mask * 0,
        mask,
        zeros,
        texts,
        [(1, 2)] * rows,
    )
    raw = {
        "words": SegmentScores([((0, 1),) * len(found) for found in words], words),
        "length": SegmentScores([((0, 2),)] * rows, [(value,) for value in length], whole_response=True),
    }
    return KeptStep(7, 0.0, rows, rollout, zeros, zeros, zeros, raw, raw)


def change(step: KeptStep, before: tuple[float, float], now: tuple[float, float]) -> tuple[StepChange, list[Any]]:
    experiences = [
        experience_under(
            step, Weighing(dict(zip(NAMES, w, strict=True)), dict.fromkeys(NAMES, ComponentConfig())), PLAIN
        )
        for w in (before, now)
    ]
    return compare(step, *experiences)


def test_a_change_by_hand() -> None:
    step = step_of([(1.0,), (0.0,), (0.5,), (1.0,), (2.0,)], [0.0, 3.0, 1.0, 5.0, 5.0], ["p", "p", "p", "q", "q"])
    told, new = change(step, (1.0, 0.0), (1.0, -1.0))
    # before p: 1, 0, .5 and q: 1, 2; now p: 1, −3, −.5 and q: −4, −3: nothing changes places
    assert (told.tau, told.best_changes, new) == (1.0, 0.0, [])
    assert (told.total_before, told.total_now) == (pytest.approx(0.9), pytest.approx(-1.9))
    told, new = change(step, (1.0, 0.0), (1.0, 1.0))
    # now p: 1, 3, 1.5 and q: 6, 7: all three pairs of p change places, q stays
    assert told.tau == pytest.approx((-1 + 1) / 2) and told.best_changes == 0.5 and told.prompts == 2
    (found,) = new
    assert (found.step, found.id, found.prompt, found.gain) == (7, "p", "text of p", pytest.approx(2.0))
    assert found.before == {"sample": 0, "response": "ab", "total_before": 1.0, "total_now": 1.0}
    assert found.now == {"sample": 1, "response": "ab", "total_before": 0.0, "total_now": 3.0}


def test_advantages_by_hand() -> None:
    # With values 0 and λ = γ = 1 an advantage is the reward still to come: (words + length, length).
    step = step_of([(1.0,), (-1.0,)], [1.0, 2.0], ["p", "q"])
    told, _ = change(step, (1.0, 1.0), (1.0, -1.0))
    # before (2, 1), (1, 2); now (0, −1), (−3, −2): two zeros do not change sign, the other three do
    assert told.advantage_flips == 3 / 4
    before, now = [2, 1, 1, 2], [0, -1, -3, -2]
    mean = [sum(row) / 4 for row in (before, now)]
    both = sum((a - mean[0]) * (b - mean[1]) for a, b in zip(before, now, strict=True))
    size = math.prod(math.sqrt(sum((v - m) ** 2 for v in row)) for row, m in zip((before, now), mean, strict=True))
    assert told.advantage_correlation == pytest.approx(both / size)
    # one sample a prompt is not ranked
    assert (told.prompts, told.tau, told.best_changes) == (0, None, None)


def test_shares_of_the_variance_by_hand() -> None:
    step = step_of([(2.0,), (0.0,)], [0.0, 1.0], ["p", "p"])
    told, _ = change(step, (1.0, 1.0), (0.0, 0.0))
    # totals 2 and 1: variance 1/4; words ±1 with it: 1/2; length ∓1/2: −1/4
    assert told.shares_before == {"words": pytest.approx(2.0), "length": pytest.approx(-1.0)}
    assert told.shares_now == {} and told.tau is None
    told, _ = change(step, (1.0, 0.0), (0.5, 0.0))
    assert told.shares_now == {"words": pytest.approx(1.0), "length": pytest.approx(0.0)}


def test_an_old_best_that_is_still_among_the_best_does_not_change() -> None:
    step = step_of([(0.0,), (1.0,)], [1.0, 0.0], ["p", "p"])
    told, new = change(step, (1.0, 0.0), (1.0, 1.0))  # 0 and 1 before, 1 and 1 now
    assert (told.best_changes, told.tau, new) == (0.0, None, [])


def test_several_words_are_added_up_and_averaged() -> None:
    step = step_of([(1.0, 1.0, 1.0), (2.0,)], [0.0, 0.0], ["p", "p"])
    sums = Weighing({"words": 1.0, "length": 0.0}, dict.fromkeys(NAMES, ComponentConfig()))
    means = sums.changed({}, {"words": {"aggregation": "mean"}})
    told, (found,) = compare(step, experience_under(step, sums, PLAIN), experience_under(step, means, PLAIN))
    assert (told.total_before, told.total_now, found.now["sample"]) == (2.5, 1.5, 1)


def test_the_mean_leaves_out_what_a_step_does_not_have() -> None:
    first = {"total_before": 1.0, "total_now": 2.0, "tau": None, "best_changes": 0.5, "advantage_correlation": 1.0}
    steps = [
        {**first, "advantage_flips": 0.0, "shares_before": {"a": 1.0}, "shares_now": {}},
        {**first, "advantage_flips": 1.0, "shares_before": {"a": 0.5}, "shares_now": {}, "tau": 0.25},
    ]
    mean = mean_of(steps)
    assert (mean["tau"], mean["advantage_flips"], mean["shares_before"], mean["shares_now"]) == (
        0.25,
        0.5,
        {"a": 0.75},
        {},
    )


# The job ---------------------------------------------------------------------------------------------------------


def test_it_prints_a_table_and_writes_everything(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "out" / "reweigh.json"
    Reweigh(str(run), RewardChange({"words": -1.0}), steps=[2], examples=1, output=str(output)).run()
    printed, report = capsys.readouterr().out, read_json(output)
    assert [step["step"] for step in report["steps"]] == [2]
    assert report["before"]["weights"] == {"words": 1.0, "length": 0.5}
    assert report["now"]["weights"] == {"words": -1.0, "length": 0.5}
    assert f"{report['steps'][0]['total_now']:.3f}" in printed and "| words     | 1.000  | -1.000 |" in printed
    gains = [found["gain"] for found in report["new_best"]]
    assert gains == sorted(gains, reverse=True) and gains[0] > 0
    assert printed.count("best now") == 1 and report["new_best"][0]["now"]["response"] in printed
    Reweigh(str(run), examples=0).run()
    assert "Nothing is changed" in capsys.readouterr().out


def test_what_cannot_be_changed_is_one_clear_error(run: Path, tmp_path: Path) -> None:
    for change_, message in (
        (
            RewardChange({"polite": 1.0}),
            r"reward.weights.polite: no such component; the run's reward has length, words",
        ),
        (RewardChange({}, {"polite": {}}), r"reward.settings.polite: no such component"),
        (RewardChange({}, {"words": {"agregation": "mean"}}), r"reward.settings.words.agregation: no such setting"),
        (
            RewardChange({}, {"words": {"aggregation": "max"}}),
            r"words: aggregation: expected one of sum",
        ),
        (RewardChange({}, {"length": {"aggregation": "budget"}}), r"length scores whole responses"),
        (RewardChange({}, {"words": {"normalisation": "running"}}), r"running moments were not kept"),
        (RewardChange({}, {"words": {"budget": "much"}}), r"words: budget: expected a finite number"),
        (RewardChange({}, {"words": {"empty": -1.0}}), r"reward\.settings\.words\.empty: .* it stays"),
    ):
        with pytest.raises(ConfigError, match=message):
            Reweigh(str(run), change_).measured()
    for wrong in ({"words": "much"}, {"words": True}, {"words": None}, {"words": math.nan}):
        with pytest.raises(ConfigError, match="weights.words: expected a finite number"):
            RewardChange(wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="reward.settings.words: expected settings"):
        RewardChange({}, {"words": "mean"})  # type: ignore[dict-item]
    with pytest.raises(ConfigError, match="examples"):
        Reweigh(str(run), examples=-1)
    with pytest.raises(ConfigError, match="step 3 was not kept; kept are 1, 2"):
        Reweigh(str(run), steps=[1, 3]).measured()
    running = make_run(tmp_path / "running", settings={"words": ComponentConfig("running")})
    assert measured(running, {"words": 0.1})["steps"]
    with pytest.raises(ConfigError, match="only the weight of words can be changed"):
        measured(running, words={"aggregation": "mean"})


def test_runs_that_lack_something_say_what(run: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"config.yaml: no such file; is this the directory of a run"):
        measured(tmp_path / "nowhere")

    def copy(name: str) -> Path:
        shutil.copytree(run, tmp_path / name)
        return tmp_path / name

    old = copy("old")
    rows = [{k: v for k, v in row.items() if k != "tokens"} for row in read_jsonl(old / "samples" / "step_1.jsonl")]
    write_jsonl(old / "samples" / "step_1.jsonl", rows)
    with pytest.raises(
        DataError, match=r"step_1.jsonl, record 0, field tokens: .* before values and advantages were kept"
    ):
        measured(old)
    none = copy("none")
    shutil.rmtree(none / "samples")
    with pytest.raises(DataError, match="no rollouts were kept"):
        measured(none)
    sft = copy("sft")
    (sft / "config.yaml").write_text("seed: 0\n")
    with pytest.raises(DataError, match="field reward: .*is this a PPO run"):
        measured(sft)
    (sft / "config.yaml").write_text(yaml.safe_dump({**read_yaml(run), "ppo": {"gamma": 1.0}}))
    with pytest.raises(DataError, match="field ppo: expected the settings of PPO .*gamma"):
        measured(sft)
    line = copy("line")
    write_jsonl(line / "metrics.jsonl", read_jsonl(run / "metrics.jsonl")[:1])
    with pytest.raises(DataError, match=r"metrics.jsonl, record step 2, field beta: expected a number"):
        measured(line)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda row: row["tokens"]["kl"].pop(), r"field tokens.kl: expected \d numbers, one a token"),
        (lambda row: row["tokens"].pop("value"), r"field tokens.value: missing field"),
        (lambda row: row["segments"][0].update(token=99), r"field segments\[0\].token: expected a token from 0"),
        (
            lambda row: row["segments"][0].update(component="x"),
            r"no such component 'x'; the run's reward has length, words",
        ),
        (lambda row: row["segments"][0].pop("raw"), r"field segments\[0\].raw: missing field"),
        (lambda row: row.update(response=3), r"field response: expected text"),
    ],
)
def test_damaged_rows_are_named(run: Path, tmp_path: Path, edit: Any, message: str) -> None:
    shutil.copytree(run, tmp_path / "run")
    path = tmp_path / "run" / "samples" / "step_1.jsonl"
    rows = read_jsonl(path)
    edit(rows[1])
    write_jsonl(path, rows)
    with pytest.raises(DataError, match=message) as error:
        measured(tmp_path / "run")
    assert str(path) in str(error.value) and "record 1" in str(error.value)


def test_what_was_kept_is_read_as_it_was(run: Path) -> None:
    step, rows = kept(run), read_jsonl(run / "samples" / "step_1.jsonl")
    assert kept_steps(RunDirectory(run)) == [1, 2] and step.complete
    assert list(step.rollout.texts) == [row["response"] for row in rows]
    assert [prompt.id for prompt in step.rollout.row_prompts()] == [row["id"] for row in rows]
    assert step.rollout.sample_index.tolist() == [row["sample"] for row in rows]
    for number, row in enumerate(rows):
        real = slice(0, len(row["tokens"]["ends"]))
        for tensor, name in ((step.values, "value"), (step.advantages, "advantage"), (step.rollout.logprobs, "kl")):
            assert tensor[number, real].tolist() == pytest.approx(row["tokens"][name])
    scored = {"words": WordScorer(), "length": LengthScorer()}
    for name, scorer in scored.items():
        fresh = scorer.score(step.rollout.row_prompts(), step.rollout.texts)
        assert step.raw[name].whole_response == fresh.whole_response
        assert [tuple(v) for v in step.raw[name].values] == [pytest.approx(v) for v in fresh.values]
        assert list(step.raw[name].spans) == list(fresh.spans)


def test_the_check_compares_with_what_was_kept(run: Path) -> None:
    config, directory = read_yaml(run), RunDirectory(run)
    made = experience_under(kept(run), run_weighing(config, directory), ppo_config_of_run(config, directory))
    check_recomputed(kept(run), made, ppo_config_of_run(config, directory))
    moved = replace(made, advantages=made.advantages + 1e-3)
    with pytest.raises(ConsistencyError, match="advantages .* by 0.001"):
        check_recomputed(kept(run), moved, ppo_config_of_run(config, directory))
    with pytest.raises(ConsistencyError, match="nan"):
        check_recomputed(
            kept(run), replace(made, rewards=made.rewards * math.nan), ppo_config_of_run(config, directory)
        )


def test_penalties_for_form_are_kept_and_can_be_weighed_anew(tmp_path: Path) -> None:
    """Their weight is the penalty, negative; another penalty is another weight."""
    trainer = make_trainer(tmp_path / "run", max_new_tokens=4)
    config = replace(trainer.composer.config, end_penalty=0.5, overlong=OverlongPenalty(2, 0.25))
    trainer.composer = RewardComposer(config, trainer.processes.sum_, trainer.models.policy.eos_ids)
    trainer.samples = KeptSamples(every=1)
    run = make_run_of(trainer, tmp_path / "run")
    found = measured(run)
    assert found["before"]["weights"] == {"words": 1.0, "length": 0.5, "unfinished": -0.5, "overlong": -0.25}
    assert found["mean"]["tau"] == pytest.approx(1.0) and found["mean"]["advantage_correlation"] == pytest.approx(1.0)
    rows = read_jsonl(trainer.run.samples_path(1))
    segments = [segment for row in rows for segment in row["segments"]]
    raw = {name: [s["raw"] for s in segments if s["component"] == name] for name in found["now"]["weights"]}
    assert sum(raw["unfinished"]) > 0 and sum(raw["overlong"]) > 0
    (first, _) = measured(run, {"unfinished": -2.0})["steps"]
    assert first["total_now"] == pytest.approx(first["total_before"] - 1.5 * sum(raw["unfinished"]) / len(rows))
    with pytest.raises(
        ConfigError, match="no such component; the run's reward has length, overlong, unfinished, words"
    ):
        measured(run, {"politeness": 1.0})


def make_run_of(trainer: Any, path: Path) -> Path:
    """Two steps of a trainer whose configuration says the penalties as `finegrained train-ppo` writes them."""
    write_jsonl(path / "metrics.jsonl", [{"step": step, **trainer.train_step(step)} for step in (1, 2)])
    ppo = {k: vars(v) if k in ("kl", "entropy", "compat") else v for k, v in vars(trainer.config).items()}
    reward = {
        "components": {name: {} for name in NAMES},
        "weights": {"words": 1.0, "length": 0.5},
        "end_penalty": 0.5,
        "overlong": {"_target_": "any", "limit": 2, "per_token": 0.25},
    }
    (path / "config.yaml").write_text(yaml.safe_dump({"ppo": ppo, "reward": reward}))
    return path
