"""Dense advantages for other trainers: those that TRL's loss was given, however the responses lie on processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from letters_toy import LetterScorer
from ppo_toy import LengthScorer
from rl_toy import policy, prompts, tokenizer
from script_runs import ROOT

from finegrained_rlhf.bridges.advantages import DenseAdvantages
from finegrained_rlhf.bridges.paid import estimate_of_paid, paid_of, read_paid
from finegrained_rlhf.bridges.recording import RunRecorder
from finegrained_rlhf.core.errors import ConfigError, ConsistencyError, DataError
from finegrained_rlhf.core.files import read_json, read_jsonl
from finegrained_rlhf.report.runs.record import read_run
from finegrained_rlhf.rewards import ComponentConfig, RewardConfig, RewardGate, WeightSchedule
from finegrained_rlhf.training.ppo import GAE, GroupAdvantages
from finegrained_rlhf.training.ppo.metrics import KeptSamples

CASE = json.loads((ROOT / "tests/golden/trl/dense.json").read_text(encoding="utf-8"))
ALGORITHMS = {
    "gdpo_by_segment": GroupAdvantages("group_mean", "std", credit="process", by_component=True, whiten=True),
    "returns": GroupAdvantages(credit="returns"),
}
ASKED = {prompt.text: prompt for prompt in prompts("llama", 5)}
ROWS = [(ASKED[text], ids) for text, ids in CASE["rows"]]
FULL: dict[str, Any] = {
    "settings": {"words": ComponentConfig(aggregation="mean", empty=-1.0)},
    "end_penalty": 0.7,
    "gates": {"length": RewardGate("words", 0.0)},
}


def dense(algorithm: Any = ALGORITHMS["gdpo_by_segment"], samples: int = 4, **given: Any) -> DenseAdvantages:
    reward = RewardConfig({"words": LetterScorer(), "length": LengthScorer()}, {"words": 1.0, "length": 0.5}, **given)
    eos = policy("llama").eos_ids
    return DenseAdvantages(reward, algorithm, tokenizer("llama"), eos_ids=eos, samples=samples, longest=6)


def scored(made: DenseAdvantages, rows: Any = ROWS) -> Any:
    return made.score([prompt for prompt, _ in rows], [ids for _, ids in rows])


@pytest.mark.parametrize("name", ALGORITHMS)
def test_advantages_are_those_that_the_loss_of_trl_was_given(name: str) -> None:
    """Three ways: as gathered in TRL, as they travel through an engine, and with responses in another order."""
    made = dense(ALGORITHMS[name])
    experience = made.experience([scored(made)], 1)
    keys = {(tuple(row["prompt"]), tuple(row["ids"])): row["advantages"] for row in CASE["loss"][name]}
    expected = torch.tensor([keys[tuple(prompt.input_ids), tuple(ids)] for prompt, ids in ROWS])
    assert len(CASE["loss"][name]) == len(ROWS) and int((expected != 0).sum()) > 20
    torch.testing.assert_close(experience.advantages, expected, atol=1e-5, rtol=0)
    order = torch.randperm(8, generator=torch.Generator().manual_seed(1)).tolist()
    paid = [json.loads(json.dumps(paid_of(experience.trace, row))) for row in order]
    mask, groups = experience.rollout.response_mask[order], [ROWS[row][0].id for row in order]
    travelled = estimate_of_paid(paid, mask, groups, ALGORITHMS[name]).advantages
    torch.testing.assert_close(travelled, expected[order], atol=1e-5, rtol=0)


@pytest.mark.parametrize("given", [{}, FULL, {"credit": "revised", "revisions": 2}], ids=["plain", "full", "revised"])
def test_it_does_not_matter_on_which_process_a_response_lies(given: dict[str, Any]) -> None:
    made = dense(**given)
    whole = made.experience([scored(made)], 1)
    for cut in (1, 3, 4):
        parts = [scored(made, ROWS[:cut]), scored(made, ROWS[cut:])]
        found = made.experience(parts, 1)
        torch.testing.assert_close(found.advantages, whole.advantages, atol=0, rtol=0)
        assert {name: part.scores for name, part in found.trace.components.items()} == {
            name: part.scores for name, part in whole.trace.components.items()
        }
    paid = [paid_of(whole.trace, row) for row in range(8)]
    groups = [prompt.id for prompt, _ in ROWS]
    found = estimate_of_paid(paid, whole.rollout.response_mask, groups, made.algorithm).advantages
    torch.testing.assert_close(found, whole.advantages, atol=1e-5, rtol=0)


def test_what_moves_follows_the_steps_and_is_kept() -> None:
    moving = {
        "schedule": {"length": WeightSchedule((1, 3), (0.0, 1.0))},
        "settings": {"words": ComponentConfig(normalisation="running")},
    }
    made, again = dense(**moving), dense(**moving)
    first, second = (made.experience([scored(made)], step) for step in (1, 2))
    assert [one.trace.components["length"].weight for one in (first, second)] == [0.0, 0.5]
    again.composer.load_state(json.loads(json.dumps(made.composer.state())))
    states = [one.composer.state() for one in (made, again)]
    assert states[0] == states[1] and states[0] != dense(**moving).composer.state()
    measured = made.experience([scored(made)], 2, train=False)
    assert made.composer.state() == states[0] and not measured.advantages.any()


def test_a_response_without_a_score_teaches_nothing_wherever_it_travels() -> None:
    class Odd(LetterScorer):
        """Has no score of the first response."""

        def score(self, prompts: Any, responses: Any) -> Any:
            found = super().score(prompts, responses)
            spans, values = ((), *found.spans[1:]), ((), *found.values[1:])
            return type(found)(spans, values, unscored=frozenset({0}))

    made = DenseAdvantages(
        RewardConfig({"words": Odd()}, {"words": 1.0}),
        ALGORITHMS["returns"],
        tokenizer("llama"),
        eos_ids=[2],
        samples=4,
    )
    experience = made.experience([scored(made)], 1)
    paid = [paid_of(experience.trace, row) for row in range(8)]
    assert paid[0]["words"]["tokens"] is None and paid[1]["words"]["tokens"]
    groups = [prompt.id for prompt, _ in ROWS]
    found = estimate_of_paid(paid, experience.rollout.response_mask, groups, made.algorithm)
    assert not found.advantages[0].any() and found.learnt.tolist() == [False, *[True] * 7]
    torch.testing.assert_close(found.advantages, experience.advantages, atol=1e-6, rtol=0)


def test_what_cannot_be_is_one_error() -> None:
    with pytest.raises(ConfigError, match="GAE learns a value model, which only our trainer has"):
        dense(GAE())
    with pytest.raises(ConfigError, match="needs at least 2, got 1"):
        dense(samples=1)
    made = dense()
    with pytest.raises(DataError, match="response 1 has no token"):
        scored(made, [ROWS[0], (ROWS[0][0], [])])
    with pytest.raises(ConsistencyError, match="expected 4 neighbouring responses"):
        made.experience([scored(made, ROWS[1:] + ROWS[:1])], 1)
    experience = made.experience([scored(made)], 1)
    paid, mask = [paid_of(experience.trace, row) for row in range(8)], experience.rollout.response_mask
    groups = [prompt.id for prompt, _ in ROWS]
    with pytest.raises(DataError, match="8 responses need as many"):
        estimate_of_paid(paid[1:], mask, groups, made.algorithm)
    with pytest.raises(DataError, match="record 1.*components and weights of the first"):
        estimate_of_paid([paid[0], {"words": paid[1]["words"]}, *paid[2:]], mask, groups, made.algorithm)
    with pytest.raises(DataError, match="record 0.*words.*or fewer, got tokens"):
        far = {**paid[0], "words": {**paid[0]["words"], "tokens": [99], "values": [1.0]}}
        estimate_of_paid([far, *paid[1:]], mask, groups, made.algorithm)
    with pytest.raises(ConfigError, match="needs at least 2, got 1"):
        estimate_of_paid(paid, mask, list(range(8)), made.algorithm)
    for odd in ("[]", "{", None, '{"words": {"tokens": [1]}}'):
        with pytest.raises(DataError, match="expected what VerlRewardManager"):
            read_paid(odd)


def test_a_run_of_another_trainer_is_a_run_of_ours(tmp_path: Path) -> None:
    made = dense()
    (tmp_path / "README.md").write_text("TRL's own")

    def recorder() -> RunRecorder:
        config = {"reward": {"components": {"words": {}, "length": {}}}, "seed": 3}
        return RunRecorder(str(tmp_path), config, KeptSamples(every=2, rows=3), tokenizer("llama"), [2])

    run = recorder()
    run.begin(0, 2)
    for step in (1, 2, 3):
        run.add(step, made.experience([scored(made)], step))
        run.log({"trl/loss": step / 2, "lr": 1e-3, "skipped": "text", "odd": float("nan")})
    run.add_validation(3, made.experience([scored(made)], 3, train=False))
    run.end_validation(3)
    run.end(3, 4)
    read = read_run(tmp_path)
    assert [(row["step"], row["trl/loss"]) for row in read.steps] == [(1, 0.5), (2, 1.0), (3, 1.5)]
    assert "kl" not in read.steps[0] and list(read.samples) == [1, 2] and len(read.samples[2]) == 3
    assert set(read.samples[2][0].tokens.numbers) == {"reward", "advantage"}
    assert read.validations[0]["score"] == pytest.approx(read.steps[0]["reward/total"]) and len(read.answers[3]) == 8
    assert read_json(tmp_path / "run.json")["status"] == "training"
    with pytest.raises(ConfigError, match="holds a run already; name another directory, or continue it"):
        recorder().begin(0, 1)
    again = recorder()
    again.begin(2, 1)
    assert [row["step"] for row in read_jsonl(tmp_path / "metrics.jsonl")] == [1, 2]


@pytest.mark.parametrize(("module", "package"), [("trl", "TRL"), ("verl", "verl"), ("skyrl", "SkyRL")])
def test_a_missing_engine_is_one_line(module: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib
    import sys

    monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
    monkeypatch.delitem(sys.modules, f"finegrained_rlhf.bridges.{module}", raising=False)
    with pytest.raises(ConfigError, match=f"{package} cannot be imported .*; make env-{module} makes an environment"):
        importlib.import_module(f"finegrained_rlhf.bridges.{module}")
