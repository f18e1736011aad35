"""Steps of an experiment: what one step takes from another that it is like."""

from __future__ import annotations

from typing import Any

import pytest

from finegrained_rlhf.core.errors import ConfigError  # noqa: E402
from finegrained_rlhf.launch.steps import expanded

RUN = {"script": "train_ppo", "args": ["experiment=factworld/fine_grained", "output_dir=runs/base", "seed=3"]}


def steps_of(steps: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [(step.name, dict(step.declared)) for step in expanded(steps)]


def test_arguments_are_replaced_by_key_and_added() -> None:
    like = {"like": "run", "args": ["output_dir=runs/other", "+reward.weights.style=1"]}
    (_, base), (name, step) = steps_of({"run": RUN, "other": like})
    assert base == RUN and name == "other"
    assert step["script"] == "train_ppo"
    assert step["args"] == [
        "experiment=factworld/fine_grained",
        "output_dir=runs/other",
        "seed=3",
        "+reward.weights.style=1",
    ]


def test_other_keys_are_replaced_and_choices_filled_in_both() -> None:
    base = {
        "script": "evaluate",
        "each": {"system": ["a", "b"]},
        "unless": "{system}.json",
        "args": ["output={system}"],
    }
    steps = steps_of({"base": base, "more": {"like": "base", "each": {"system": ["c"]}}})
    assert [(name, step["unless"], step["args"]) for name, step in steps] == [
        ("base", "a.json", ["output=a"]),
        ("base", "b.json", ["output=b"]),
        ("more", "c.json", ["output=c"]),
    ]


def test_like_a_step_that_is_like_another() -> None:
    steps = {"run": RUN, "a": {"like": "run", "args": ["seed=4"]}, "b": {"like": "a", "args": ["output_dir=runs/b"]}}
    assert steps_of(steps)[2][1]["args"] == ["experiment=factworld/fine_grained", "output_dir=runs/b", "seed=4"]


@pytest.mark.parametrize(
    "steps",
    [
        {"a": {"like": "missing"}},
        {"run": None, "a": {"like": "run"}},
        {"a": {"like": "a"}},
        {"a": {"like": "b"}, "b": {"like": "a"}},
    ],
)
def test_like_nothing_is_one_error_that_names_the_step(steps: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="step [ab]: like '(missing|run|a|b)': expected another step"):
        steps_of(steps)


def test_a_mapping_gives_arguments_and_null_leaves_one_to_the_script() -> None:
    steps = {
        "run": {"script": "train_ppo", "args": ["seed=1", {"total_steps": None, "samples_every": 5, "a.b": "{x}"}]},
        "more": {"like": "run", "each": {"x": [7]}, "args": [{"total_steps": 3, "samples_every": None}]},
    }
    found = {name: step["args"] for name, step in steps_of(steps)}
    assert found["run"] == ["seed=1", "samples_every=5", "a.b={x}"]
    assert found["more"] == ["seed=1", "samples_every=5", "a.b=7", "total_steps=3"]
