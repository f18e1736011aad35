"""What a command makes is not replaced by another command unless that is asked for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from script_runs import Done, run_script

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.markers import InputFile, OutputDirectory, OutputFile
from finegrained_rlhf.runtime.directory.claims import MADE, claimed
from finegrained_rlhf.runtime.processes import ProcessConfig, Processes


@dataclass
class Made:
    """What a job that makes something takes."""

    output_dir: OutputDirectory | None = None
    output: OutputFile | None = None
    data: Sequence[InputFile] = ()
    seed: int = 0
    processes: ProcessConfig | None = None


MADE_BY = {"_target_": f"{__name__}.Made"}


def make(path: Path, text: str = "made", **changes: Any) -> None:
    """A job that writes a directory from its settings."""
    with claimed({**MADE_BY, "output_dir": str(path), "seed": 0, "overwrite": False, **changes}, Processes()):
        (path / "world.json").write_text(text)


def test_the_same_command_may_repeat_another_one_must_say_so(tmp_path: Path) -> None:
    path = tmp_path / "world"
    make(path)
    make(path, "again")
    with pytest.raises(ConfigError, match="was made with other values: seed: 0 -> 1; .*overwrite=true"):
        make(path, "other", seed=1)
    assert (path / "world.json").read_text() == "again"
    make(path, "other", seed=1, overwrite=True)
    make(path, "repeated", seed=1)
    assert (path / "world.json").read_text() == "repeated"
    record = json.loads((path / MADE).read_text())
    assert record["finished"] and record["config"] == {**MADE_BY, "output_dir": str(path), "seed": 1}
    assert {"command", "commit", "versions"} <= record["provenance"].keys()


def test_other_input_is_another_command(tmp_path: Path) -> None:
    data = tmp_path / "data.json"
    data.write_text("[1]")
    make(tmp_path / "models", data=[str(data)])
    data.write_text("[2]")
    with pytest.raises(ConfigError, match=r"data\[0\]: .* \(content "):
        make(tmp_path / "models", data=[str(data)])


def test_files_without_a_record_stay_and_an_interrupted_command_may_repeat(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "world.json").write_text("old")
    with pytest.raises(ConfigError, match="no record says how it was made"):
        make(tmp_path / "old")
    assert [file.name for file in (tmp_path / "old").iterdir()] == ["world.json"]
    config = {**MADE_BY, "output_dir": str(tmp_path / "new"), "seed": 0, "overwrite": False}
    with pytest.raises(KeyboardInterrupt), claimed(config, Processes()):
        (tmp_path / "new" / "world.json").write_text("half")
        raise KeyboardInterrupt
    make(tmp_path / "new")
    with pytest.raises(KeyboardInterrupt), claimed({**config, "output_dir": str(tmp_path / "none")}, Processes()):
        raise KeyboardInterrupt
    assert not (tmp_path / "none").exists()


def test_nothing_is_made_in_the_directory_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(ConfigError, match="is the directory of a training run; name another"):
        make(tmp_path, overwrite=True)


def test_a_file_is_recorded_beside_it(tmp_path: Path) -> None:
    def sample(seed: int, threads: int = 1, overwrite: bool = False) -> None:
        processes = {"_target_": "finegrained_rlhf.runtime.ProcessConfig", "threads": threads}
        config = {**MADE_BY, "output": str(tmp_path / "out.jsonl"), "seed": seed, "processes": processes}
        with claimed({**config, "overwrite": overwrite}, Processes()):
            (tmp_path / "out.jsonl").write_text(str(seed))

    sample(0)
    sample(0, threads=4)
    with pytest.raises(ConfigError, match="output: .*out.jsonl was made with other values: seed: 0 -> 1"):
        sample(1)
    sample(1, overwrite=True)
    assert sorted(file.name for file in tmp_path.iterdir()) == [".out.jsonl.made.json", "out.jsonl"]


def test_a_world_is_not_replaced_under_its_runs(tmp_path: Path) -> None:
    def world(*changes: str) -> Done:
        sizes = ["train=4", "dev=2", "test=2", "sft_train=0", "sft_dev=0"]
        return run_script("make_factworld", f"output_dir={tmp_path}/world", *sizes, *changes)

    assert world().returncode == 0
    before = (tmp_path / "world" / "train.json").read_bytes()
    refused = world("seed=1")
    assert refused.returncode == 2 and "seed: 0 -> 1" in refused.stderr and "Traceback" not in refused.stderr
    assert (tmp_path / "world" / "train.json").read_bytes() == before
    replaced = world("seed=1", "overwrite=true")
    assert replaced.returncode == 0, replaced.stderr
    assert (tmp_path / "world" / "train.json").read_bytes() != before
