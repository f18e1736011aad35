"""A default that stands both in `conf/` and in a class is one and the same, except where a reason is given here."""

from __future__ import annotations

import re
from typing import Any

import pytest
from script_runs import ROOT

from guards.doubles import doubles_in, read_doubles

INTENDED = {
    r"train_\w+\.yaml: optimizer\.(lr|eps|warmup_steps|max_grad_norm)": "each algorithm has rates of its own; the "
    "optimizer's class is shared by all of them",
    r"optimizer/adafactor\.yaml: warmup_steps": "CONQRR's, the one trainer that has this group",
    r"train_\w+\.yaml: processes\.precision": "scripts train in bf16, as on GPUs; a job made in Python in fp32",
    r"reward_model/\w+\.yaml: (steps|epochs|global_attention|batches\.batch_size|optimizer\.\w+)": "what the "
    "option is for: each kind of reward model is trained in its own way",
    r"(tracking/(tensorboard|wandb)|value/(shared|none))\.yaml: kind": "what the option is for",
    r"algorithm/\w+\.yaml: algorithm\.\w+": "what the option is for",
    r"rewrite_reward/(reciprocal_rank|ndcg)\.yaml: shape": "what the option is for",
    r"reward/fine_grained\.yaml: components\.\w+\.granularity": "checked against the model; null takes the model's",
    r"reward/edits\.yaml: components\.\w+\.granularity": "checked against the model; null takes the model's",
    r"reward/edits\.yaml: settings\.\w+\.aggregation": "texts may be as short as their readers want",
    r"reward/judged\.yaml: components\.\w+\.(counts|granularity)": "what each component is",
    r"text_scorer/perspective\.yaml: remote\.(key_variable|items_per_s)": "the service's own",
    r"reward/inscit_world\.yaml: settings\.\w+\.empty": "a reader that says nothing must not be paid",
    r"reward/(edits|fine_grained|judged)\.yaml: settings\.\w+\.empty": "version 0.1 has no such key, and paid 0",
    r"taxonomy/\w+\.yaml: (correction|preferences)": "what each task asks for",
    r"train_conqrr\.yaml: validation_share": "must be 0 beside validation_data, which a job made in Python names",
}
"""Pattern of `FILE: KEY` → why the two differ."""


@pytest.fixture(scope="module")
def values() -> list[tuple[str, Any, Any]]:
    return [(f"{double.file}: {double.key}", double.value, double.default) for double in read_doubles(ROOT / "conf")]


def test_the_comparison_reaches_scripts_options_and_nested_classes(values: list[tuple[str, Any, Any]]) -> None:
    keys = {key for key, _, _ in values}
    assert len(keys) > 500
    assert {
        "train_ppo.yaml: ppo.kl.beta",
        "retriever/bm25.yaml: k1",
        "make_dialogue_world.yaml: world.noise",
    } <= keys


def test_defaults_are_one_and_the_same(values: list[tuple[str, Any, Any]]) -> None:
    differ = [(key, value, default) for key, value, default in values if value != default]
    assert [(k, v, d) for k, v, d in differ if not any(re.fullmatch(pattern, k) for pattern in INTENDED)] == []


@pytest.mark.parametrize("pattern", INTENDED)
def test_no_reason_outlives_its_difference(pattern: str, values: list[tuple[str, Any, Any]]) -> None:
    assert [key for key, value, default in values if value != default and re.fullmatch(pattern, key)]


def compared(node: Any) -> list[tuple[str, Any, Any]]:
    return [(double.key, double.value, double.default) for double in doubles_in(node, "FILE")]


def test_a_difference_is_found() -> None:
    node = {"_target_": "finegrained_rlhf.training.ppo.PPOConfig", "clip": 0.3, "kl": {"beta": 0.3}, "epochs": "???"}
    assert compared(node) == [("clip", 0.3, 0.2)]
    world = {"_target_": "finegrained_rlhf.worlds.dialogue.DialogueWorldConfig", "noise": 0.1}
    job = {"_target_": "finegrained_rlhf.worlds.dialogue.MakeDialogueWorld", "world": world}
    assert compared(job) == [("world.noise", 0.1, 0.2)]
