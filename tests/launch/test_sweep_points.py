"""A sweep's point: what it starts, what it skips, what it refuses; children, locks and GPUs."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from other_processes import alive, wait_until

ROOT = Path(__file__).parents[2]

from finegrained_rlhf.core.errors import ConfigError  # noqa: E402
from finegrained_rlhf.core.files import write_json, write_text  # noqa: E402
from finegrained_rlhf.launch.children import complaint, gpus_for, last_output, locked, run_logged  # noqa: E402
from finegrained_rlhf.launch.sweeps import point as _point  # noqa: E402
from finegrained_rlhf.launch.sweeps.point import (  # noqa: E402
    Point,
    StageFailed,
    SweepSettings,  # noqa: E402
)

PYTHON = sys.executable


def training_config(**changes: Any) -> dict[str, Any]:
    config = {
        "_target_": "finegrained_rlhf.training.ppo.TrainPPO",
        "seed": 0,
        "resume": "auto",
        "total_steps": 2,
        "policy": {"path": "sft", "adapter": None},
        "reward": {"components": {"relevance": {"path": "rm"}}, "weights": {"relevance": 0.3}},
        "optimizer": {"lr": 1e-3},
        "processes": {"precision": "fp32", "threads": 1},
        "tracking": {"kind": "jsonl"},
    }
    return {**config, **changes}


def evaluation_config(**changes: Any) -> dict[str, Any]:
    target = {"_target_": "finegrained_rlhf.inference.Evaluate"}
    return {**target, "data": "test.json", "seed": 0, "batch_size": 16, "processes": {"threads": 1}, **changes}


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Children that do at once what the scripts do, and the list of them."""
    started: list[dict[str, Any]] = []

    def run(command: list[str], log: Path, environment: dict[str, str], keep: list[int]) -> int:
        directory = Path(command[command.index("--config-dir") + 1])
        name = command[command.index("--config-name") + 1]
        started.append({"name": name, "at": directory.name, "command": command, "environment": environment})
        assert (directory / f"{name}.yaml").is_file()
        if name == "point":
            write_json(directory / "policy/config.json", {})
        else:
            write_json(directory / "evaluation.json", {"completeness": 0.5})
        return 0

    monkeypatch.setattr(_point, "run_logged", run)
    return started


def point(root: Path, name: str = "p", **changes: Any) -> Point:
    settings = changes.pop("settings", SweepSettings(best_of=(1, 4)))
    evaluation = changes.pop("evaluation", evaluation_config())
    return Point(name, root, training_config(**changes), evaluation, settings)


def names(children: list[dict[str, Any]]) -> list[str]:
    found = [child["name"] if child["name"] == "point" else child["at"].partition("-")[0] for child in children]
    children.clear()
    return found


def test_a_point_is_trained_measured_and_compared_with_baselines(
    tmp_path: Path, children: list[dict[str, Any]]
) -> None:
    assert set(point(tmp_path).run()) == {"commit", "minutes"}
    command = children[0]["command"]
    assert command[:3] == [PYTHON, "-m", "accelerate.commands.launch"] and "--num_processes" in command
    assert command[-7:-4] == ["-m", "finegrained_rlhf", "train_ppo"] and children[1]["command"][0] == PYTHON
    assert names(children) == ["point", "p", "initial", "best_of_4"]
    assert point(tmp_path).run() == {"minutes": 0.0} and children == []


def test_point_files_compose_as_hydra_reads_them(tmp_path: Path, children: list[dict[str, Any]]) -> None:
    from hydra import compose, initialize_config_dir

    point(tmp_path, optimizer={"lr": 1e-5, "name": "1e-4", "none": None}).run()
    with initialize_config_dir(str(tmp_path / "points/p"), version_base=None):
        cfg, both = (compose(n, overrides=[f"hydra.searchpath=[file://{ROOT}/conf]"]) for n in ("point", "evaluation"))
    assert {"lr": 1e-5, "name": "1e-4", "none": None}.items() <= cfg.optimizer.items() and "hydra" not in cfg
    assert (both.best_of, both.checkpoint) == (1, str(tmp_path / "points/p"))


def test_no_configuration_of_the_project_hides_that_of_a_point() -> None:
    assert not {"point.yaml", "evaluation.yaml"} & {path.name for path in (ROOT / "conf").iterdir()}


def test_what_was_stopped_goes_on(
    tmp_path: Path, children: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as stopped:
        stopped.setattr(_point, "run_logged", lambda *_: -15)
        with pytest.raises(StageFailed):
            point(tmp_path).run()
    point(tmp_path).run()
    assert names(children) == ["point", "p", "initial", "best_of_4"]
    (tmp_path / "points/p/evaluation.json").unlink()  # stopped in the evaluation
    point(tmp_path).run()
    assert names(children) == ["p"]
    write_json(tmp_path / "points/p/policy/config.json", {"another": 1})  # what was measured is gone
    point(tmp_path).run()
    assert names(children) == ["p"]
    next(tmp_path.glob("baselines/best_of_4*/evaluation.json")).unlink()
    point(tmp_path).run()
    assert names(children) == ["best_of_4"]


def test_another_evaluation_is_measured_without_training(tmp_path: Path, children: list[dict[str, Any]]) -> None:
    point(tmp_path).run()
    children.clear()
    point(tmp_path, evaluation=evaluation_config(data="other.json")).run()
    assert names(children) == ["p", "initial", "best_of_4"]
    point(tmp_path, evaluation=evaluation_config(data="other.json", batch_size=4)).run()
    assert names(children) == []


@pytest.mark.parametrize(
    "changes, key", [({"optimizer": {"lr": 0.1}}, "optimizer.lr"), ({"total_steps": 3}, "total_steps")]
)
def test_configurations_are_not_mixed(
    tmp_path: Path, children: list[dict[str, Any]], changes: dict[str, Any], key: str
) -> None:
    point(tmp_path).run()
    children.clear()
    write_text(tmp_path / "points/p/metrics.jsonl", "{}\n")
    with pytest.raises(ConfigError, match=f"{key}; expected the same"):
        point(tmp_path, **changes).run()
    assert children == [] and (tmp_path / "points/p/evaluation.json").is_file()
    point(tmp_path, resume="never", **changes).run()
    assert names(children) == ["point", "p"] and not (tmp_path / "points/p/metrics.jsonl").exists()
    point(tmp_path, **changes).run()
    assert names(children) == []


def test_threads_and_tracking_do_not_make_another_point(tmp_path: Path, children: list[dict[str, Any]]) -> None:
    point(tmp_path).run()
    children.clear()
    point(tmp_path, processes={"precision": "fp32", "threads": 2}, tracking={"kind": "wandb"}).run()
    assert children == []


def test_points_share_baselines_of_equal_weights(tmp_path: Path, children: list[dict[str, Any]]) -> None:
    def reward(weight: float) -> dict[str, Any]:
        return {"components": {"relevance": {"path": "rm"}}, "weights": {"relevance": weight}}

    point(tmp_path, "a").run()
    children.clear()
    point(tmp_path, "b", optimizer={"lr": 1.0}).run()
    assert names(children) == ["point", "b"]
    point(tmp_path, "c", reward=reward(0.9)).run()
    assert names(children) == ["point", "c", "best_of_4"]
    assert point(tmp_path, "a").baselines()["1"] == point(tmp_path, "c", reward=reward(0.9)).baselines()["1"]


def test_points_share_the_initial_policy_that_each_prepares_by_the_same_steps(
    tmp_path: Path, children: list[dict[str, Any]]
) -> None:
    def prepared(name: str, weight: float, train: int = 16) -> Point:
        place = f"{tmp_path / 'points' / name}/prepared"
        return point(
            tmp_path,
            name,
            policy={"path": f"{place}/t5", "adapter": None},
            reward={"components": {"relevance": {"path": f"{place}/rm"}}, "weights": {"relevance": weight}},
            prepare={"world": {"args": [f"output_dir={place}", f"train={train}"]}},
            settings=SweepSettings(best_of=(1,)),
        )

    prepared("a", 0.2).run()
    assert names(children) == ["point", "a", "initial"]
    prepared("b", 0.3).run()
    assert names(children) == ["point", "b"]
    prepared("c", 0.2, train=32).run()  # another world: another initial policy
    assert names(children) == ["point", "c", "initial"]
    prepared("b", 0.3).run()
    assert names(children) == []


def test_the_baseline_is_the_exported_policy_of_a_run(tmp_path: Path, children: list[dict[str, Any]]) -> None:
    (tmp_path / "sft/policy").mkdir(parents=True)
    one = point(tmp_path, policy={"path": str(tmp_path / "sft"), "adapter": None})
    one.run()
    config = (tmp_path / one.baselines()["4"] / "evaluation.yaml").read_text()
    assert f"checkpoint: {tmp_path / 'sft/policy'}\n" in config  # not the run: its metrics.json stays its own
    with pytest.raises(ConfigError, match="best_of"):
        point(tmp_path, policy={"path": "t5", "adapter": "lora"}).baselines()


def test_a_failed_child_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], log: Path, environment: dict[str, str], keep: list[int]) -> int:
        log.write_text("$ old\nerror: old\n$ new\nstarting\nerror: optimizer.lr: -1\nsome launcher's word\n")
        return 2

    monkeypatch.setattr(_point, "run_logged", run)
    with pytest.raises(StageFailed, match="^exit status 2: error: optimizer.lr: -1$") as caught:
        point(tmp_path).run()
    assert caught.value.stage == "training" and caught.value.log == tmp_path / "points/p/log.txt"


def test_one_process_works_on_a_point(tmp_path: Path, children: list[dict[str, Any]]) -> None:
    with locked(tmp_path / "locks/p.lock", wait=False):
        with pytest.raises(ConfigError, match="another process"):
            point(tmp_path).run()
    point(tmp_path).run()


def test_gpus_are_dealt_out(tmp_path: Path, children: list[dict[str, Any]]) -> None:
    settings = SweepSettings(best_of=(), gpus=(3, 4, 5, 6), processes=2, parallel=2)
    with gpus_for((3, 4, 5, 6), 2, tmp_path / "locks") as (environment, _):
        assert environment == {"CUDA_VISIBLE_DEVICES": "3,4"}
        point(tmp_path, settings=settings).run()
    assert {child["environment"]["CUDA_VISIBLE_DEVICES"] for child in children} == {"5,6"}
    assert all("--multi_gpu" in child["command"] for child in children)


@pytest.mark.parametrize("wrong", [{"parallel": 0}, {"best_of": (0,)}, {"gpus": (0,), "parallel": 2}])
def test_settings_that_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        replace(SweepSettings(), **wrong)


# Children ---------------------------------------------------------------------------------------------------------


def test_output_and_command_go_to_the_log(tmp_path: Path) -> None:
    log = tmp_path / "a/log.txt"
    assert run_logged([PYTHON, "-c", "print('one')"], log) == 0
    code = "import os, sys; sys.stderr.write('5%\\r50%\\r\\n'); print(os.environ['X']); sys.exit(3)"
    assert run_logged([PYTHON, "-c", code], log, {"X": "two words"}) == 3
    assert last_output(log)[-1] == "two words" and "one" not in last_output(log)
    assert "$ X='two words' " in log.read_text()
    assert complaint(last_output(log)) == "two words" and complaint([]) == "no output"


def test_interrupted_children_end_with_all_that_they_started(tmp_path: Path) -> None:
    grandchild = "import os, time; open('pid', 'w').write(str(os.getpid())); time.sleep(100)"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {grandchild!r}])"
    parent = (
        f"import sys; sys.path.append({str(ROOT)!r})\n"
        "from pathlib import Path\nfrom finegrained_rlhf.launch.children import ended_by_signals, run_logged\n"
        f"with ended_by_signals(): run_logged([sys.executable, '-c', {child!r}], Path('log.txt'))"
    )
    process = subprocess.Popen([PYTHON, "-c", parent], cwd=tmp_path, stderr=subprocess.DEVNULL)
    pid = tmp_path / "pid"
    wait_until(lambda: pid.is_file() and bool(pid.read_text()), "the grandchild has not begun")
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) != 0
    assert not alive(int(pid.read_text()))


def test_the_lock_outlives_a_killed_parent(tmp_path: Path) -> None:
    child = "open('up', 'w'); import time; time.sleep(100)"
    parent = (
        f"import sys; sys.path.append({str(ROOT)!r})\n"
        "from pathlib import Path\nfrom finegrained_rlhf.launch.children import locked, run_logged\n"
        "with locked(Path('lock'), wait=False) as lock:\n"
        f"    run_logged([sys.executable, '-c', {child!r}], Path('log'), {{}}, [lock])"
    )
    process = subprocess.Popen([PYTHON, "-c", parent], cwd=tmp_path)
    wait_until((tmp_path / "up").is_file, "the child has not begun")
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True)
    process.kill()
    process.wait()
    with pytest.raises(ConfigError, match="another process"), locked(tmp_path / "lock", wait=False):
        pass
    subprocess.run(["kill", "-9", listed.stdout.strip()], check=True)
    with locked(tmp_path / "lock", wait=True):
        pass
