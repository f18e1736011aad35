"""What a file of a run may name: nothing but classes of the project's own configurations is imported or built."""

from __future__ import annotations

import inspect
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.fields import is_ours, named_class
from finegrained_rlhf.launch.build import build
from finegrained_rlhf.launch.checks.foreign import check_foreign, classes_of_project, trusted_classes
from finegrained_rlhf.launch.rewards import with_reward_of_run
from finegrained_rlhf.runtime.directory.run_directory import run_of_model

PAYLOAD = "open({marker!r}, 'w').close()\n\n\nclass Scorer:\n    pass\n"


def reward(component: Any) -> dict[str, Any]:
    return {
        "_target_": "finegrained_rlhf.rewards.RewardConfig",
        "weights": {"a": 1.0},
        "components": {"a": component},
    }


def written(directory: Path, component: Any) -> Path:
    """A run whose reward has one component."""
    directory.mkdir(parents=True)
    config = {"_target_": "finegrained_rlhf.training.ppo.TrainPPO", "reward": reward(component)}
    (directory / "config.yaml").write_text(yaml.safe_dump(config))
    (directory / "run.json").write_text("{}")
    return directory


def taken(checkpoint: Path, trusted: tuple[str, ...] = (), **given: Any) -> Any:
    """The reward that `best_of=2` takes up."""
    config = {"best_of": 2, "checkpoint": str(checkpoint), "reward": None, **given}
    return with_reward_of_run(config, trusted)["reward"]


def test_paths_of_a_run_lead_from_where_it_was_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    component = {
        "_target_": "finegrained_rlhf.rewards.WholeTextScorer",
        "path": "outputs/words/model",
        "models": ["outputs/words/model", "org/name", str(tmp_path / "absent"), "a\0b/c"],
        "note": "yes/no",
    }
    run = tmp_path / "start" / "outputs" / "run"
    run.mkdir(parents=True)
    config = {"output_dir": "outputs/run", "reward": reward(component)}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    (run / "run.json").write_text("{}")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert taken(run)["components"]["a"] == component  # nothing is there yet
    model = tmp_path / "start" / "outputs" / "words" / "model"
    model.mkdir(parents=True)
    led = taken(run)["components"]["a"]
    assert led == {**component, "path": str(model), "models": [str(model), *component["models"][1:]]}
    monkeypatch.chdir(tmp_path / "start")
    assert taken(run)["components"]["a"] == component  # they lead there as they stand
    monkeypatch.chdir(elsewhere)
    (elsewhere / "outputs" / "words" / "model").mkdir(parents=True)
    assert taken(run)["components"]["a"] == component  # what lies here comes first, as it always did
    run.rename(tmp_path / "moved")
    (elsewhere / "outputs" / "words" / "model").rmdir()
    assert taken(tmp_path / "moved")["components"]["a"] == component  # nothing tells where a moved run was started


@pytest.fixture
def marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that exists when the module `hostile_scorers`, which can be imported, was."""
    path = tmp_path / "MARKER"
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "hostile_scorers.py").write_text(PAYLOAD.format(marker=str(path)))
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    monkeypatch.delitem(sys.modules, "hostile_scorers", raising=False)
    return path


HOSTILE = {
    "a module of the working directory": {"_target_": "hostile_scorers.Scorer"},
    "a pickle": {"_target_": "numpy.load", "file": "x.npy", "allow_pickle": True},
    "torch's pickle": {"_target_": "torch.load", "f": "x.pt", "weights_only": False},
    "a model's code": {"_target_": "transformers.AutoConfig.from_pretrained", "trust_remote_code": True},
    "Hydra's own": {"_target_": "hydra.utils.get_method", "path": "os.system"},
    "a function of ours": {"_target_": "finegrained_rlhf.core.files.write_text", "path": "x", "text": "y"},
    "behind our door": {"_target_": "finegrained_rlhf.core.files.os.system", "command": "true"},
    "a class of ours that writes": {"_target_": "finegrained_rlhf.personalization.UserMemory", "path": "x"},
    "no text": {"_target_": ["numpy", "load"]},
    "no class": {"_target_": "numpy"},
    "inside": {
        "_target_": "finegrained_rlhf.rewards.WholeTextScorer",
        "scorer": {"_target_": "hostile_scorers.Scorer"},
    },
    "in a list": {
        "_target_": "finegrained_rlhf.rewards.WholeTextScorer",
        "scorer": [[{"_target_": "hostile_scorers.S"}]],
    },
    "without a class around it": {"scorer": {"_target_": "hostile_scorers.Scorer"}},
    "partly": {"_target_": "reward_models.SegmentScorer", "_partial_": True},
    "by place": {"_target_": "reward_models.SegmentScorer", "_args_": ["x"]},
    "an environment variable": {"_target_": "reward_models.SegmentScorer", "path": "${oc.env:HOME}"},
    "a key that is one": {"_target_": "reward_models.SegmentScorer", "${oc.env:HOME}": 1},
    "another place": {"_target_": "reward_models.SegmentScorer", "path": "${..weights}"},
    "a server of passages": {"_target_": "finegrained_rlhf.retrieval.OpenSearchConfig", "name": "x"},
    "a service": {"_target_": "finegrained_rlhf.runtime.RemoteConfig", "url": "https://x", "key_variable": "HOME"},
}


@pytest.mark.parametrize("component", HOSTILE.values(), ids=list(HOSTILE))
@pytest.mark.parametrize("inside", ["", "policy", "checkpoints/step_5", "checkpoints/step_5/policy"])
def test_a_run_names_classes_of_the_project_alone(
    tmp_path: Path, marker: Path, component: dict[str, Any], inside: str
) -> None:
    run = written(tmp_path / "run", component)
    with pytest.raises(ConfigError) as caught:
        taken(run / inside)
    message = str(caught.value)
    assert message.startswith(f"{run}/config.yaml: reward.components.a") and "\n" not in message
    target = component.get("_target_")
    if isinstance(target, str) and target not in classes_of_project():
        assert target in message
    assert not marker.exists() and "hostile_scorers" not in sys.modules


def test_a_file_that_holds_itself_is_refused(tmp_path: Path) -> None:
    run = written(tmp_path / "run", {})
    (run / "config.yaml").write_text("reward: &a\n  components: [*a]\n")
    with pytest.raises(DataError, match="holds itself"):
        taken(run)


def test_what_is_admitted_by_name_passes_and_nothing_else_does(tmp_path: Path, marker: Path) -> None:
    run = written(tmp_path / "run", {"_target_": "hostile_scorers.Scorer"})
    for other in ("hostile_scorers.Other", "hostile_scorers", "hostile_scorers.Scorer.x"):
        with pytest.raises(ConfigError, match=r"trust=hostile_scorers\.Scorer"):
            taken(run, (other,))
    found = taken(run, ("hostile_scorers.Scorer",))
    assert not marker.exists()
    assert type(build(found["components"]["a"])).__module__ == "hostile_scorers" and marker.exists()


def test_what_the_user_gives_is_not_looked_at(tmp_path: Path) -> None:
    run = written(tmp_path / "run", {"_target_": "reward_models.SegmentScorer", "path": "x"})
    own = {"_target_": "my_rewards.Own", "_partial_": True}
    assert taken(run, reward={"components": {"a": own}})["components"]["a"] == {**own, "path": "x"}
    whole = reward(own)
    assert taken(run, reward=whole) == whole


def test_trust_counts_on_the_command_line_alone() -> None:
    assert trusted_classes({}, []) == trusted_classes({"trust": None}, ["trust=null"]) == ()
    assert trusted_classes({"trust": "a.B"}, ["checkpoint=x", "trust=a.B"]) == ("a.B",)
    assert trusted_classes({"trust": ["a.B", "c.D"]}, ["+trust=[a.B,c.D]"]) == ("a.B", "c.D")
    for given in ([], ["checkpoint=trust=a.B"], ["trusted=a.B"]):
        with pytest.raises(ConfigError, match="command line alone"):
            trusted_classes({"trust": "a.B"}, given)
    for wrong in ("all", True, ["a.B", 1], {"a": "b"}, "a.B; c", "*"):
        with pytest.raises(ConfigError, match="expected MODULE.CLASS"):
            trusted_classes({"trust": wrong}, ["trust=x"])


def test_a_directory_above_a_model_is_no_run_of_it(tmp_path: Path) -> None:
    above = written(tmp_path / "shared", {"_target_": "numpy.load"})
    for place in (
        "alice",
        "alice/models/gpt2",
        "models/policy",
        "checkpoints/last",
        "step_5/policy",
        "x/checkpoints/step_5",
    ):
        (above / place).mkdir(parents=True, exist_ok=True)
        assert run_of_model(above / place) is None and taken(above / place) is None
    assert run_of_model("org/name") is None
    (above / "run.json").unlink()
    assert run_of_model(above / "policy") is None  # a file of that name makes no run
    assert run_of_model(above) is not None  # which the user named


def test_the_run_of_a_model_is_known_by_its_layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = written(tmp_path / "run", {})
    for inside in ("", "policy", "model", "checkpoints/step_12", "checkpoints/step_12/policy"):
        (run / inside).mkdir(parents=True, exist_ok=True)
        found = run_of_model(run / inside)
        assert found is not None and found.path == run
    monkeypatch.chdir(run / "policy")
    found = run_of_model(".")
    assert found is not None and os.path.samefile(found.path, run)


def test_every_class_that_a_run_may_name_is_one_of_ours() -> None:
    names = classes_of_project()
    assert len(names) > 150
    for name in names:
        assert inspect.isclass(named_class(name)), name
        assert is_ours(named_class(name).__module__), name


def test_the_rewards_of_our_own_runs_are_taken_up(tmp_path: Path) -> None:
    component = {"_target_": "reward_models.SegmentScorer", "path": "runs/c1/model", "weights": {0: 1.0, 10: 0.5}}
    check_foreign(reward(component), "reward", tmp_path / "config.yaml")
