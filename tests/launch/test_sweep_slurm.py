"""A sweep's points as Slurm jobs: what sbatch is given, what is missing, and a sweep on a stand-in for a cluster."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import OmegaConf
from script_runs import ROOT, run_process
from slurm_toy import make_slurm

from finegrained_rlhf.core.files import read_json
from finegrained_rlhf.launch.command_line import CommandLine
from finegrained_rlhf.launch.mistakes import explain_command_line


def test_the_launcher_asks_for_what_the_sweep_says() -> None:
    given = ["experiment=smoke", "hydra/launcher=slurm", "sweep.parallel=3", "sweep.processes=8", "output_dir=out"]
    with initialize_config_dir(str(ROOT / "conf"), version_base=None):
        config = compose("sweep", [*given, "hydra.launcher.partition=gpu"], return_hydra_config=True)
    launcher = OmegaConf.to_container(config.hydra.launcher)
    assert launcher["_target_"].endswith(".SlurmLauncher") and launcher["partition"] == "gpu"
    resolved = {key: config.hydra.launcher[key] for key in ("array_parallelism", "gpus_per_node", "nodes")}
    assert resolved == {"array_parallelism": 3, "gpus_per_node": 8, "nodes": 1}
    assert config.hydra.launcher.submitit_folder == "out/.submitit/%j"
    assert (launcher["tasks_per_node"], launcher["timeout_min"], launcher["max_num_timeout"]) == (1, 1440, 10)


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("joblib", "needs joblib: pip install -e '.[sweeps]'"),
        ("submitit_slurm", "needs submitit: pip install -e '.[slurm]'"),
    ],
)
def test_a_launcher_that_is_not_installed_is_named_with_its_extra(option: str, told: str) -> None:
    error = HydraException(f"In 'hydra/launcher/local': Could not load 'hydra/launcher/{option}'.\nAvailable options:")
    assert told in explain_command_line(error, "sweep", CommandLine(()))


@pytest.mark.slow
@pytest.mark.scripts
def test_a_sweep_on_a_stand_in_for_slurm(smoke_keys: list[str], tmp_path: Path) -> None:
    commands, root = make_slurm(tmp_path / "cluster"), tmp_path / "sweep"
    small = ("experiment=smoke", "total_steps=1", "validate_every=1", "processes.threads=1", "sweep.best_of=[]")
    own = ("hydra/launcher=slurm", "sweep.parallel=2", "optimizer.lr=1e30,1e-3", f"output_dir={root}")
    path = f"{commands}:{os.environ['PATH']}"
    done = run_process(str(ROOT / "scripts/sweep.py"), *small, *own, *smoke_keys, timeout=800, PATH=path)
    assert done.returncode == 1, done.stderr  # one point cannot be trained
    result = read_json(root / "sweep.json")
    assert [row["swept"] for row in result["rows"]] == [{"optimizer.lr": "0.001"}]
    assert [failure["name"] for failure in result["failed"]] == ["lr_1e+30"]
    submitted = (tmp_path / "cluster/submitted.sh").read_text(encoding="utf-8")
    wanted = ("--array=0-1%2", "--gpus-per-node=1", "--nodes=1", "--ntasks-per-node=1", "--time=1440")
    assert all(f"#SBATCH {flag}\n" in submitted for flag in wanted)
    assert "lr_0.001: training" in (tmp_path / "cluster/job_1.log").read_text(encoding="utf-8")
