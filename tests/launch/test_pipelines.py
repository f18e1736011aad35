"""Experiments of several steps: what is finished, what is run again, what is checked first, and a kill in between."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from other_processes import wait_until
from script_runs import ENVIRONMENT, ROOT

from finegrained_rlhf.core.errors import ConfigError, DataError, FineGrainedError
from finegrained_rlhf.core.files import read_json
from finegrained_rlhf.launch import finished as _finished
from finegrained_rlhf.launch import pipeline as _pipeline
from finegrained_rlhf.launch import steps as _steps
from finegrained_rlhf.launch.pipeline import run_pipeline

JOBS = """
import time
from dataclasses import dataclass
from pathlib import Path
from finegrained_rlhf.core.markers import InputFile, OutputFile

@dataclass
class Copy:
    data: InputFile
    output: OutputFile
    note: str = ""
    seconds: float = 0.0
    every_process = False

    def run(self):
        Path("begun.txt").open("a").write(f"{self.output}\\n")
        time.sleep(self.seconds)
        Path(self.output).write_text(Path(self.data).read_text() + self.note)
"""
PIPELINE = """
# @package _global_
output_dir: out
settings: {seconds: 0, note: "!"}
steps:
  world:
    script: make_factworld
    args: ["output_dir=${output_dir}/world", "seed=${seed}", train=4, dev=2, test=0, sft_train=2, sft_dev=0]
  copies:
    each: {split: [train, dev]}
    job: {_target_: own_jobs.Copy, data: "${output_dir}/world/{split}.json", output: "${output_dir}/{split}.txt"}
  last:
    job:
      _target_: own_jobs.Copy
      data: ${output_dir}/train.txt
      output: ${output_dir}/last.txt
      note: ${settings.note}
      seconds: ${settings.seconds}
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user's directory: jobs, and the pipeline `own` in a directory of configurations."""
    (tmp_path / "own_conf/pipeline").mkdir(parents=True)
    (tmp_path / "own_conf/pipeline/own.yaml").write_text(PIPELINE)
    (tmp_path / "own_jobs.py").write_text(JOBS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    _finished.configurations.cache_clear()
    with initialize_config_dir(str(ROOT / "conf"), version_base=None):
        yield tmp_path
    _steps._composed.cache_clear()
    sys.modules.pop("own_jobs", None)


def run(*arguments: str) -> list[str]:
    """Run the pipeline; the files that its copies wrote."""
    begun = Path("begun.txt")
    begun.unlink(missing_ok=True)
    path = f"hydra.searchpath=[file://{Path('own_conf').resolve()}]"
    run_pipeline(compose("run_experiment", ["pipeline=own", path, *arguments]))
    return begun.read_text().split() if begun.is_file() else []


def uncomposed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a finished step was composed, or built")

    _steps._composed.cache_clear()
    monkeypatch.setattr(_steps, "compose", refuse)
    monkeypatch.setattr(_steps, "build", refuse)
    return refuse


def test_a_finished_pipeline_says_so_without_composing_a_step(
    own: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run() == ["out/train.txt", "out/dev.txt", "out/last.txt"]
    shutil.copytree(own / "out", own / "copy")
    capsys.readouterr()
    uncomposed(monkeypatch)
    assert run() == [] and run("output_dir=copy") == [] and run(f"output_dir={own / 'out'}") == []
    names = ["world", "copies", "copies", "last"]
    lines = [f"[seed 0, step {number} of 4: {name}] is done" for number, name in enumerate(names, start=1)]
    assert capsys.readouterr().out.splitlines() == lines * 3


TRAINED = """
@dataclass
class Train:
    data: InputFile
    output_dir: OutputDirectory
    every_process = False

    def run(self):
        for name in ("policy", "checkpoints/step_2/policy"):
            directory = Path(self.output_dir, name)
            directory.mkdir(parents=True)
            (directory / "config.json").write_text("{}")
            (directory / "model.safetensors").write_bytes(bytes(99))

@dataclass
class Answer(Copy):
    checkpoint: InputFile = ""
"""
TRAINING = """
# @package _global_
output_dir: out
steps:
  policy:
    job: {_target_: own_jobs.Train, data: asked.txt, output_dir: "${output_dir}/run"}
  answers:
    each: {name: [one, two]}
    job:
      _target_: own_jobs.Answer
      data: asked.txt
      checkpoint: ${output_dir}/run
      output: ${output_dir}/{name}.txt
"""
OPENED: list[str] | None = None


def watch_files(event: str, arguments: tuple) -> None:
    if OPENED is not None and event == "open" and isinstance(arguments[0], str | Path):
        OPENED.append(os.path.relpath(arguments[0]))


def test_a_finished_pipeline_opens_no_checkpoint_and_every_input_once(
    own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inputs for their digests, the policy as one of them; nothing that a step has made and none reads."""
    (own / "own_jobs.py").write_text(JOBS.replace("OutputFile", "OutputDirectory, OutputFile", 1) + TRAINED)
    (own / "own_conf/pipeline/own.yaml").write_text(TRAINING)
    (own / "asked.txt").write_text("asked")
    assert run() == ["out/one.txt", "out/two.txt"]
    uncomposed(monkeypatch)
    sys.addaudithook(watch_files)  # stays until the process ends
    monkeypatch.setattr(sys.modules[__name__], "OPENED", opened := [])
    assert run() == []
    inputs = ["asked.txt", "out/run/policy/config.json", "out/run/policy/model.safetensors"]
    assert sorted(name for name in opened if name.startswith(("asked", "out/run", "out/one", "out/two"))) == inputs


def test_what_is_gone_or_reads_other_content_is_run_again_and_nothing_else(own: Path) -> None:
    run()
    (own / "out/dev.txt").unlink()
    assert run() == ["out/dev.txt"]
    (own / "out/train.txt").write_text("something else")  # what a person put there stays
    assert run() == ["out/last.txt"] and (own / "out/last.txt").read_text() == "something else!"
    (own / "out/world/train.json").write_text("[]")
    assert run() == ["out/train.txt", "out/last.txt"] and run() == []


def test_other_settings_run_the_steps_that_have_them(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run()
    assert run("settings.note='?'") == ["out/last.txt"] and (own / "out/last.txt").read_text().endswith("?")
    assert "out was begun with other settings: note" in capsys.readouterr().out
    assert run("settings.note='?'") == []
    assert run() == ["out/last.txt"]  # that of the first settings was replaced


def test_changed_files_of_configurations_are_composed_and_compared(
    own: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_finished, "conf_directories", lambda: (own / "own_conf",))
    run()
    (own / "own_conf/pipeline/another.yaml").write_text("steps: {}")
    _finished.configurations.cache_clear()
    _steps._composed.cache_clear()
    composed: list[str] = []
    monkeypatch.setattr(_steps, "compose", lambda name, overrides: composed.append(name) or compose(name, overrides))
    assert run() == [] and composed == ["make_factworld"]
    assert "4: world] is done" in capsys.readouterr().out


def test_a_step_that_fails_is_named_and_is_not_finished(own: Path) -> None:
    assert run("steps.last=null")
    with pytest.raises(
        FineGrainedError, match=r"^step world: output_dir: out/world was made with other values: .*train: 4 -> 5"
    ):
        run("steps.world.args=['output_dir=${output_dir}/world','train=5']")
    assert [entry["step"] for entry in read_json("out/.steps.json")] == ["world", "copies", "copies"]


def late(script: str, *args: str) -> str:
    return f"steps.late={{script:{script},args:{list(args)}}}"


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("steps.last.job.datta=x", "step last: unknown key 'datta'"),
        ("steps.last.job.data=out/dve.txt", "step last: data: out/dve.txt: no such file or directory"),
        ("steps.last.job.data=out/last.txt", "step last: output: out/last.txt is also data"),
        ("steps.late.script=make_factwrld", "step late: "),
        (late("make_factworld", "sed=1", "output_dir=out/x"), "step late: make_factworld: unknown key 'sed'"),
        (late("train_sft", "experiment=factworld/sft", "output_dir=out/x", "policy.path=out/model"), "path: out/model"),
        ("steps=null", "steps: expected steps by name; steps.NAME=null leaves one out"),
    ],
)
def test_all_steps_are_checked_before_the_first(own: Path, wrong: str, told: str) -> None:
    with pytest.raises(FineGrainedError, match=r"^steps?( last| late)?: ") as caught:
        run(f"++{wrong}")
    assert told in str(caught.value) and "\n" not in str(caught.value)
    assert not (own / "out").exists() and not (own / "begun.txt").exists()


def test_seeds_that_have_the_same_steps_left_are_checked_once(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[list[str]] = []
    check = _pipeline.check_steps
    monkeypatch.setattr(
        _pipeline, "check_steps", lambda s, *rest: checked.append([x.name for x in s]) or check(s, *rest)
    )
    run("seeds=[1]")
    run("seeds=[1,2,3]", "++steps.last.job.note=other")
    assert checked[1:] == [["last"], ["world", "copies", "copies", "last"]]
    assert len(list(own.glob("out/seed_*/last.txt"))) == 3


def test_what_an_earlier_version_made_is_kept(own: Path) -> None:
    run()
    (own / "out/.steps.json").unlink()
    (own / "out/dev.txt").unlink()
    assert run() == ["out/dev.txt"] and run() == []


def test_a_damaged_record_is_one_line(own: Path) -> None:
    for text in ("[{", '{"a": 1}', '[{"declared": "a"}]'):
        (own / "out").mkdir(exist_ok=True)
        (own / "out/.steps.json").write_text(text)
        with pytest.raises(DataError, match=r"^file out/\.steps\.json") as caught:
            run()
        assert "\n" not in str(caught.value)


def test_a_result_that_was_brought_along_is_taken(own: Path) -> None:
    (own / "given.txt").write_text("given")
    given = "steps.given={job:{_target_:own_jobs.Copy,data:nowhere,output:out/given.txt},unless:given.txt}"
    assert run(f"+{given}") == ["out/train.txt", "out/dev.txt", "out/last.txt"]
    (own / "given.txt").unlink()
    with pytest.raises(FineGrainedError, match="^step given: data: nowhere: no such file"):
        run(f"+{given}")


SFT = ["data=out/world/sft_train.json", "validation_data=null", "policy.path=out/models/t5", "output_dir=out/sft"]
TINY = ["total_steps=2", "batch_size=4", "micro_batch_size=2", "processes.precision=fp32", "processes.threads=1"]


def added(name: str, script: str, args: list[str], **keys: object) -> str:
    """A step more, in Hydra's grammar."""
    more = "".join(f", {key}: {value}" for key, value in keys.items())
    return f"+steps.{name}={{script: {script}, args: {args!r}{more}}}"


MODELS = added("models", "make_tiny_models", ["data=out/world/corpus.txt", "output_dir=out/models", "t5.d_model=32"])


def trained_on(gpus: object) -> str:
    return added("sft", "train_sft", [*SFT, *TINY], gpus=gpus)


def test_a_step_starts_processes_of_its_own(
    own: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    monkeypatch.setenv("PYTHONPATH", f"{own}:{ROOT}:{ENVIRONMENT.get('PYTHONPATH', '')}")
    run(MODELS, trained_on(2))
    assert "2 processes, each on CPU" in capfd.readouterr().err
    assert read_json(own / "out/sft/run.json")["step"] == 2
    run(MODELS, trained_on(3))  # as many as there are now: what is finished stays so
    assert "step 6 of 6: sft] is done" in capfd.readouterr().out
    (own / "out/sft/policy/config.json").unlink()
    shutil.rmtree(own / "out/models/t5")
    with pytest.raises(FineGrainedError, match="^step sft: policy.path: out/models/t5: no such"):
        run(trained_on(2))  # known before any process starts
    assert "processes" not in capfd.readouterr().err


def test_processes_that_fail_name_the_step(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr(_steps, "run_shown", lambda command: asked.append(command) or 3)
    with pytest.raises(FineGrainedError, match="^step sft: its 2 processes ended with status 3; what they said stands"):
        run(MODELS, trained_on(2))
    assert asked[0][-len(SFT + TINY) - 1 :] == ["train_sft", *SFT, *TINY]
    assert asked[0][asked[0].index("--num_processes") + 1] == "2"
    for count in (0, "many"):
        with pytest.raises(ConfigError, match="^step sft: gpus: expected a whole number from 1 on"):
            run(trained_on(count))
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="^step sft: gpus: 2 starts processes, but the experiment runs in 2"):
        run(MODELS, trained_on(2))
    monkeypatch.delenv("WORLD_SIZE")
    with pytest.raises(ConfigError, match="^step last: gpus: expected .* of a step with a script"):
        run("+steps.last.gpus=2")


def test_a_killed_pipeline_goes_on_where_it_was(own: Path) -> None:
    command = [sys.executable, "-m", "finegrained_rlhf", "run_experiment", "--config-dir", "own_conf", "pipeline=own"]
    environment = {**ENVIRONMENT, "PYTHONPATH": f"{own}:{ROOT}:{ENVIRONMENT.get('PYTHONPATH', '')}"}
    begun = own / "begun.txt"
    slow = subprocess.Popen([*command, "settings.seconds=300"], env=environment, stdout=subprocess.DEVNULL)
    wait_until(lambda: begun.is_file() and "last" in begun.read_text(), "the last step has not begun")
    slow.send_signal(signal.SIGKILL)
    slow.wait()
    begun.unlink()
    again = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert again.returncode == 0, again.stderr
    assert begun.read_text().split() == ["out/last.txt"] and (own / "out/last.txt").is_file()
    assert again.stdout.count("is done") == 3
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.stdout.count("is done") == 4 and not done.stderr
    kept = json.loads((own / "out/.steps.json").read_text())
    assert [entry["step"] for entry in kept] == ["world", "copies", "copies", "last"]
