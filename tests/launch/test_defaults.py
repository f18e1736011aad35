"""A default that stands both in `conf/` and in a class is one and the same, except where a reason is given here."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest
import yaml
from script_runs import ROOT

CONF = ROOT / "conf"
OVERRIDES = ("experiment", "pipeline", "preset", "hydra")
"""Groups that exist to set other values."""
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
MISSING = inspect.Parameter.empty


def plain(value: Any) -> Any:
    """A value as YAML would write it."""
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def default_of(kind: Any, name: str, instance: Any) -> Any:
    """What a class takes for a name that is not given: the holder's own default instance says it, if there is one."""
    if type(instance) is kind:
        return getattr(instance, name, MISSING)
    if not dataclasses.is_dataclass(kind):
        parameter = inspect.signature(kind).parameters.get(name)
        return MISSING if parameter is None else parameter.default
    field = {f.name: f for f in dataclasses.fields(kind)}.get(name)
    if field is None:
        return MISSING
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return MISSING if field.default is dataclasses.MISSING else field.default


def compared(node: Any, key: str = "", instance: Any = None) -> Iterator[tuple[str, Any, Any]]:
    """(key, value in YAML, default of the class) of every value of a class below a node; what must be given is none."""
    if not isinstance(node, dict):
        return
    module, _, name = str(node.get("_target_", "")).rpartition(".")
    kind = getattr(import_module(module), name) if module else None
    for name, value in node.items():
        default = MISSING if kind is None or name == "_target_" else default_of(kind, name, instance)
        if isinstance(value, dict):
            yield from compared(value, f"{key}{name}.", default)
        elif default is not MISSING and not (isinstance(value, str) and re.search(r"\?\?\?|\$\{", value)):
            yield f"{key}{name}", plain(value), plain(default)


def everything() -> Iterator[tuple[str, Any, Any]]:
    """The same of every script and of every option of a group, with keys as in `INTENDED`."""
    for path in sorted([*CONF.glob("*.yaml"), *CONF.glob("*/*.yaml")]):
        file = path.relative_to(CONF).as_posix()
        if path.parent.name not in OVERRIDES:
            for key, value, default in compared(yaml.safe_load(path.read_text(encoding="utf-8"))):
                yield f"{file}: {key}", value, default


@pytest.fixture(scope="module")
def values() -> list[tuple[str, Any, Any]]:
    return list(everything())


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


def test_a_difference_is_found() -> None:
    node = {"_target_": "finegrained_rlhf.training.ppo.PPOConfig", "clip": 0.3, "kl": {"beta": 0.3}, "epochs": "???"}
    assert list(compared(node)) == [("clip", 0.3, 0.2)]
    world = {"_target_": "finegrained_rlhf.worlds.dialogue.DialogueWorldConfig", "noise": 0.1}
    job = {"_target_": "finegrained_rlhf.worlds.dialogue.MakeDialogueWorld", "world": world}
    assert list(compared(job)) == [("world.noise", 0.1, 0.2)]
