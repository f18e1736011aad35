"""`finegrained doctor` from the command line: a sound configuration, a broken one, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from script_runs import PRELOADED_PYTHON, ROOT, Done, run_script

from finegrained_rlhf.core.errors import ConsistencyError
from finegrained_rlhf.core.files import read_json

pytestmark = pytest.mark.scripts


def doctor(*arguments: str, **environment: str) -> Done:
    return run_script("doctor", "experiment=smoke", *arguments, environment=environment, timeout=800)


def test_a_sound_configuration(tmp_path: Path) -> None:
    """The whole examination, two processes included; with adapters, which only these two would show drawn apart."""
    words = ["policy=lora", f"doctor.output={tmp_path}/report.json", "doctor.prompts=2"]
    done = doctor(f"output_dir={tmp_path}/run", *words, PYTHONEXECUTABLE=str(PRELOADED_PYTHON))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("ready")
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]  # no run directory
    report = read_json(tmp_path / "report.json")
    assert report["ready"] and report["failed"] == []
    status = {finding["check"]: finding["status"] for finding in report["findings"]}
    (line,) = [line for line in done.stdout.splitlines() if "two processes" in line]
    assert "metrics of the step are those of one process" in line
    assert status["alignment"] == status["training step"] == status["two processes"] == status["untouched"] == "pass"


def test_a_broken_configuration(tmp_path: Path) -> None:
    words = ["policy.path=nowhere", "doctor.two_processes=false", f"doctor.output={tmp_path}/report.json"]
    done = doctor(f"output_dir={tmp_path}/run", *words)
    assert done.returncode == 1, done.stderr
    assert done.stdout.splitlines()[-1] == "2 checks failed"  # its tokenizer and its weights
    assert "→ policy.path" in done.stdout
    assert read_json(tmp_path / "report.json")["failed"] == ["prompts", "models"]
    assert not (tmp_path / "run").exists()


def test_keys_without_which_nothing_can_be_read(tmp_path: Path) -> None:
    done = doctor("output_dir=???")
    assert done.returncode == 1 and "output_dir=…" in done.stdout
    assert done.stdout.splitlines()[-1] == "1 check failed"


@pytest.mark.parametrize(
    ("timeout", "told"),
    [
        pytest.param(300.0, "two processes failed: error: policy.path: nowhere: no such file", marks=pytest.mark.slow),
        (0.5, "did not finish their step within 0.5 s"),
    ],
)
def test_two_processes_that_end_badly(tmp_path: Path, timeout: float, told: str) -> None:
    from finegrained_rlhf.launch.preflight.doctor import _launch
    from finegrained_rlhf.launch.steps import resolved

    with initialize_config_dir(str(ROOT / "conf"), version_base=None):
        words = ["experiment=smoke", "prepare=null", "policy.path=nowhere"]
        config = resolved(compose("train_ppo", overrides=words))
    with pytest.raises(ConsistencyError, match=told):
        _launch(config, tmp_path, timeout)


@pytest.mark.parametrize(
    ("arguments", "environment", "told"),
    [
        (["ppo.kl.bta=1"], {}, "ppo.kl.bta"),
        (["doctor.prompts=0"], {}, "doctor.prompts"),
        (["output_dir=run", "doctor.output=run/report.json"], {}, "doctor.output"),
        ([], {"WORLD_SIZE": "2"}, "without accelerate launch"),
    ],
)
def test_refusals_are_one_line(arguments: list[str], environment: dict[str, str], told: str) -> None:
    done = doctor(*arguments, **environment)
    assert done.returncode in (1, 2) and done.stdout == ""
    assert [line for line in done.stderr.splitlines() if line.strip()][-1].startswith("error: ") and told in done.stderr
