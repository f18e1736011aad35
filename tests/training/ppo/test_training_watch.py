"""Answers that nobody has to learn, scored at every validation: metrics, warnings, processes, resume, adapters."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import ppo_toy
import pytest
import rl_toy
import torch
from ppo_toy import make_trainer, run_together, save_checkpoint
from rl_toy import policy

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.files import write_jsonl
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.models.loading import open_policy
from finegrained_rlhf.models.lora import LoraConfig
from finegrained_rlhf.models.policy import Policy
from finegrained_rlhf.models.weights.saving import save_policy
from finegrained_rlhf.rewards import ComponentConfig, RewardConfig
from finegrained_rlhf.rewards.config import WatchedAnswer
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.training.ppo.trainer import PPOTrainer
from finegrained_rlhf.training.watch import watched_answer

WATCH: Sequence[WatchedAnswer] = ("cut_lead", "best_sentence", "gold")
PASSAGE = Passage("", "mats", ("red cat. A dog ran.", "The mat is blue, who saw it."))
TEXTS = {"cut_lead": "red cat. A dog ran. The mat is blue, who saw it.", "best_sentence": "red cat.", "gold": "red red"}


def known(kind: str = "t5", count: int = 3) -> list[Prompt]:
    """Prompts of which the last has neither passages nor references."""
    found = rl_toy.prompts(kind, count)
    metadata = {"question": "red cat?", "passages": (PASSAGE,), "references": ("red red", "dog")}
    return [replace(prompt, metadata=metadata) for prompt in found[:-1]] + found[-1:]


@pytest.fixture(autouse=True)
def prompts_with_passages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ppo_toy, "prompts", known)


def trainer_of(path: Path, watch: Sequence[WatchedAnswer] = WATCH, **options: Any) -> PPOTrainer:
    return make_trainer(path, validation=4, reward={"watch": watch}, **options)


def own(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if name.startswith("watch/")}


def test_answers_are_made_of_what_a_prompt_has() -> None:
    *_, bare = asked = known("t5", 2)
    assert {name: watched_answer(name, asked[0]) for name in WATCH} == TEXTS
    assert [watched_answer(name, bare) for name in WATCH] == [None] * 3


def test_each_is_compared_with_the_policy_on_the_prompts_that_have_it(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, settings={"words": ComponentConfig(normalisation="running")})
    metrics = trainer.validate(0)
    having = known("t5", 4)[:3]
    rollout = trainer.draws.draw(having, trainer.validation, 0)
    policy_totals = trainer.composer.totals(trainer.composer.score(having, rollout.texts))
    for name, text in TEXTS.items():
        (total,) = trainer.composer.totals(trainer.composer.score(having[:1], [text]))
        assert metrics[f"watch/{name}/total"] == pytest.approx(total)
        assert metrics[f"watch/{name}/policy"] == pytest.approx(fmean(policy_totals))
        assert metrics[f"watch/{name}/ahead"] == pytest.approx(fmean(total > one for one in policy_totals))
    trainer.train_step(1)
    again = trainer.validate(1)
    assert all(again[f"watch/{name}/total"] == metrics[f"watch/{name}/total"] for name in WATCH)


def test_nothing_changes_without_it_and_nothing_else_with_it(tmp_path: Path) -> None:
    def run(path: str, watch: Sequence[WatchedAnswer]) -> list[dict[str, float]]:
        trainer = trainer_of(tmp_path / path, watch)
        made = [trainer.validate(0), trainer.train_step(1), trainer.validate(1)]
        return [{name: value for name, value in one.items() if not name.startswith("time/")} for one in made]

    without, with_it = run("a", ()), run("b", WATCH)
    assert without == [{name: value for name, value in one.items() if name not in own(one)} for one in with_it]
    assert not any(map(own, without)) and len(own(with_it[0])) == 9


def test_processes_watch_as_one(tmp_path: Path) -> None:
    """Four validation prompts on five processes: one has none."""
    owners = [policy("t5") for _ in range(5)]
    expected = own(trainer_of(tmp_path / "one").validate(0))
    together = run_together(
        5, lambda processes: own(trainer_of(tmp_path / "five", owner=owners.pop(), processes=processes).validate(0))
    )
    assert all(one == pytest.approx(expected) for one in together)


@pytest.mark.parametrize("lora", [False, True])
def test_a_resumed_run_watches_on(tmp_path: Path, lora: bool) -> None:
    save_policy(policy("t5"), tmp_path / "start")

    def fresh(path: str) -> PPOTrainer:
        torch.manual_seed(0)
        owner: Policy = open_policy(tmp_path / "start", lora=LoraConfig(rank=2)) if lora else policy("t5")
        settings = {"words": ComponentConfig(normalisation="running")}
        return trainer_of(tmp_path / path, owner=owner, lr=5e-3, settings=settings)

    whole, stopped, resumed = fresh("a"), fresh("b"), fresh("c")
    for trainer in (whole, stopped):
        trainer.validate(0)
        trainer.train_step(1)
    resumed.load_state(save_checkpoint(stopped, tmp_path / "checkpoint"))
    whole.train_step(2)
    resumed.train_step(2)
    assert own(resumed.validate(2)) == own(whole.validate(2))


def test_it_warns_when_overtaken_and_says_when_it_falls_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    watch, run = trainer_of(tmp_path, ("cut_lead", "gold"))._watch, RunDirectory(tmp_path)

    def said(cut_lead: float, gold: float = 0.0) -> list[tuple[str, str]]:
        """What is logged of a validation in which the policy has 1, which is then written down."""
        now = {f"watch/{name}/policy": 1.0 for name in ("cut_lead", "gold")}
        now |= {"watch/cut_lead/total": cut_lead, "watch/gold/total": gold}
        now |= {f"watch/{name}/ahead": 0.75 for name in ("cut_lead", "gold")}
        caplog.clear()
        watch.warn(now)
        rows.append(now)
        write_jsonl(run.eval, rows)
        return [(record.levelname, record.getMessage()) for record in caplog.records]

    rows: list[dict[str, float]] = []
    with caplog.at_level(logging.INFO):
        assert said(0.5) == []
        ((level, message),) = said(2.0)
        assert (
            level == "WARNING"
            and "by the reward cut_lead, the first words of the first passage, cut off, is now above" in message
        )
        assert "2.000 against 1.000 a response, more in 75% of the prompts" in message
        assert said(2.5) == []  # once
        ((level, message),) = said(0.5)
        assert level == "INFO" and "has fallen back behind the policy's answers" in message
        ((level, message),) = said(0.5, gold=2.0)  # as it should be
        assert level == "INFO" and "gold, the reference answer, is now above" in message


def test_what_cannot_be_watched_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ppo_toy, "prompts", rl_toy.prompts)
    with pytest.raises(ConfigError, match="reward.watch: cut_lead is .* none of the 4 validation prompts has passages"):
        trainer_of(tmp_path)
    with pytest.raises(ConfigError, match="reward.watch: gold is .* has a reference"):
        trainer_of(tmp_path, ("gold",))
    scorers = {"words": ppo_toy.WordScorer()}
    for wrong in ("gold", ["lead"], [["gold"]], [None]):
        with pytest.raises(ConfigError, match="^watch: expected "):
            RewardConfig(scorers, {"words": 1.0}, watch=wrong)  # type: ignore[arg-type]
