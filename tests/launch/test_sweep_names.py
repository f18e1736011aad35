"""Names of the points of a multirun, and the directories that jobs get."""

from __future__ import annotations

import itertools
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from script_runs import ROOT, run_script

from finegrained_rlhf.launch.sweeps.points import SharedKeys, first_point, own_overrides, point_name, swept_keys


@pytest.mark.parametrize(
    "own, name",
    [
        ({"reward.weights.relevance": "0.2", "seed": "1"}, "relevance_0.2-seed_1"),
        ({"preset": "factworld_short", "seed": "9"}, "preset_factworld_short-seed_9"),
        ({"optimizer.lr": "1e-4", "value.optimizer.lr": "1e-5"}, "optimizer.lr_1e-4-value.optimizer.lr_1e-5"),
        ({"policy.path": "a", "value.path": "b", "seed": "0"}, "policy.path_a-value.path_b-seed_0"),
        ({}, "point"),
    ],
)
def test_names(own: dict[str, str], name: str) -> None:
    assert point_name(own) == name


@settings(max_examples=25)
@given(st.dictionaries(st.text(min_size=1, max_size=60), st.text(max_size=60), min_size=1, max_size=4))
def test_a_name_is_one_short_directory(own: list[str]) -> None:
    name = point_name(own)
    assert not set(name) & set("=,/ '\"$\\\n") and 0 < len(name) <= 80 and name not in (".", "..")
    assert name == point_name(dict(own))


def test_points_that_differ_have_different_names() -> None:
    values = ["0.2", "0.20", "a b", "a_b", "[1,2]", "[1;2]", "x" * 100, "x" * 101, "/a/b", "/a_b", "é", "è"]
    names = [point_name({"data": first, "seed": second}) for first, second in itertools.product(values, values)]
    assert len(set(names)) == len(names)


def test_settings_of_the_sweep_are_in_no_name() -> None:
    task = ["reward.weights.relevance=0.2", "sweep.best_of=[]", "sweep.parallel=2"]
    for shared in ([], ["seed"]):
        assert point_name(own_overrides(task, shared)) == "relevance_0.2"


def test_what_all_points_share_is_left_out() -> None:
    task = ["experiment=smoke", "output_dir=/tmp/x", "+total_steps=3", "reward.weights.relevance=0.2", "data=/a/b"]
    assert own_overrides(task, ["experiment", "output_dir", "total_steps", "data"]) == {
        "reward.weights.relevance": "0.2"
    }
    assert own_overrides(task, []) == {"total_steps": "3", "reward.weights.relevance": "0.2"}


@pytest.mark.parametrize(
    "task, params, shared",
    [
        (["experiment=a", "seed=0,1", "lr=1"], None, ["experiment", "lr", "output_dir"]),
        (["experiment=a,b", "output_dir=x"], None, ["output_dir"]),
        (["seed=choice(9)", "+q=range(0,3)", "~z"], None, ["output_dir", "z"]),
        (["seed=9", "total_steps=2"], {"seed": "9,10", "preset": "a,b"}, ["output_dir", "total_steps"]),
    ],
)
def test_jobs_are_told_which_keys_are_not_swept(
    task: list[str], params: dict[str, str] | None, shared: list[str]
) -> None:
    config = OmegaConf.create({"hydra": {"overrides": {"task": task, "hydra": []}, "sweeper": {"params": params}}})
    SharedKeys().on_multirun_start(config)
    keys = ",".join(f"'{key}'" for key in shared)
    assert list(config.hydra.overrides.hydra) == [f"hydra.job.config.override_dirname.exclude_keys=[{keys}]"]


@pytest.mark.parametrize(
    ("task", "params", "keys"),
    [
        (["seed=3", "lr=[1,2]"], None, set()),
        (["seed=3,4"], {"preset": "a,b"}, {"seed", "preset"}),
        (["+a=range(1,3)"], None, {"a"}),
    ],
)
def test_keys_of_several_values(task: list[str], params: dict[str, str] | None, keys: set[str]) -> None:
    config = OmegaConf.create({"hydra": {"overrides": {"task": task}, "sweeper": {"params": params}}})
    assert swept_keys(config) == keys


def test_the_first_point() -> None:
    params = {"seed": "9,10", "preset": "short,long"}
    task = ["seed=3,4", "+a=choice(1,2)", "b=[1,2]", "c='x, y'"]
    config = OmegaConf.create({"hydra": {"overrides": {"task": task}, "sweeper": {"params": params}}})
    assert first_point(config) == ["seed=3", "preset=short", "+a=1", "b=[1,2]", "c='x, y'"]


def test_nothing_is_handed_on_where_nothing_is_swept() -> None:
    config = OmegaConf.create({"hydra": {"overrides": {"task": ["seed=1"], "hydra": []}, "sweeper": {"params": None}}})
    SharedKeys().on_multirun_start(config)
    assert list(config.hydra.overrides.hydra) == []


@pytest.mark.scripts
def test_every_job_of_a_multirun_has_its_directory(tmp_path: Path) -> None:
    def worlds(*seeds: int) -> dict[str, bytes]:
        small = ["train=3", "dev=0", "test=0", "sft_train=3", "sft_dev=0"]
        seeds_given = f"seed={','.join(map(str, seeds))}"
        done = run_script("make_factworld", "-m", "output_dir=worlds", *small, seeds_given, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        found = sorted((tmp_path / "worlds").glob("*/train.json"))
        return {path.parent.name: path.read_bytes() for path in found}

    first = worlds(0, 1)
    assert set(first) == {"seed_0", "seed_1"} and first["seed_0"] != first["seed_1"]
    assert {path.name for path in tmp_path.iterdir()} == {"worlds"}  # nothing of Hydra's beside


def test_the_process_of_a_job_composes_as_the_first_one_does() -> None:
    """A launcher hands the callbacks over; a key that no file of configurations has is then known there too."""
    code = f"""
import pickle
pickle.loads({pickle.dumps(SharedKeys())!r})
from hydra import compose, initialize_config_dir
with initialize_config_dir({str(ROOT / "conf")!r}, version_base=None):
    print(compose("train_ppo", ["experiment=smoke", "processes.threads=1"]).processes.threads)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "1\n", done.stderr
