"""The training loop: resume, checkpoints, metrics and bad ends, with a toy trainable."""

from __future__ import annotations

import errno
import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from runtime_toy import Toy, rows, weights
from script_runs import run_in_two_processes, run_process, run_script

from finegrained_rlhf.core.errors import CheckpointError, ConfigError
from finegrained_rlhf.core.files import Write, write_all
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.loop.checkpoints import CheckpointStore, DiskFullError, read_checkpoint
from finegrained_rlhf.runtime.loop.run import run_loop
from finegrained_rlhf.runtime.loop.types import LoopConfig, LoopResult
from finegrained_rlhf.runtime.processes import Processes

TOY = Path(__file__).parents[2] / "tests/helpers/runtime_toy.py"
SCORES = {0: 0.0, 3: 1.0, 6: 3.0, 9: 2.0, 12: 2.5}


def train(
    path: Path,
    fail_at: tuple[int, str] | None = None,
    total: int = 12,
    missed: dict[int, int] | None = None,
    **options: object,
) -> LoopResult:
    settings = {"seed": 3, "checkpoint_every": 4, "validate_every": 3} | options
    toy = Toy(Processes(), 12, SCORES, missed)
    toy.fail_at = fail_at
    return run_loop(toy, RunDirectory(path), LoopConfig(total_steps=total, **settings), Processes())  # type: ignore[arg-type]


def run_toy(options: dict, **environment: str) -> subprocess.CompletedProcess[str]:
    return run_script(str(TOY), json.dumps(options), environment=environment)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing disturbed, in a process of its own."""
    path = tmp_path_factory.mktemp("whole") / "run"
    done = run_toy({"output": str(path)})
    assert done.returncode == 0, done.stderr
    return path


def assert_same_run(path: Path, reference: Path) -> None:
    for name in ("metrics.jsonl", "eval.jsonl"):
        assert rows(path / name) == rows(reference / name)
    names = sorted(entry.name for entry in (reference / "checkpoints").iterdir())
    assert sorted(entry.name for entry in (path / "checkpoints").iterdir()) == names
    for name in names:
        for file in ("policy/model.safetensors", "optimizer.safetensors", "loop.json", "toy.json"):
            ours, theirs = path / "checkpoints" / name / file, reference / "checkpoints" / name / file
            assert ours.read_bytes() == theirs.read_bytes(), (name, file)
    assert (path / "policy/model.safetensors").read_bytes() == (reference / "policy/model.safetensors").read_bytes()
    assert not [entry for entry in path.rglob(".*") if entry.name.endswith((".tmp", ".old"))]


def test_an_undisturbed_run_has_the_documented_layout(whole: Path) -> None:
    assert [line["step"] for line in rows(whole / "metrics.jsonl")] == list(range(1, 13))
    assert [line["step"] for line in rows(whole / "eval.jsonl")] == [0, 3, 6, 9, 12]
    assert all("time/step_s" in json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines())
    # the last two checkpoints and step 0
    assert sorted(entry.name for entry in (whole / "checkpoints").iterdir()) == ["step_0", "step_12", "step_8"]
    assert json.loads((whole / "policy/export.json").read_text()) == {"step": 6, "score": 3.0}
    assert weights(whole / "checkpoints/step_0") != weights(whole / "checkpoints/step_12")


def test_a_run_killed_in_a_step_or_at_any_moment_ends_like_the_undisturbed_one(whole: Path, tmp_path: Path) -> None:
    done = run_toy({"output": str(tmp_path), "steps": [1, 4, 7, 9, 12]})
    assert done.returncode == 0, done.stderr
    *in_steps, at_any_moment = [json.loads(line) for line in done.stdout.splitlines()]
    assert in_steps == [{"step": step, "killed": True, "ended": True} for step in (1, 4, 7, 9, 12)]
    assert at_any_moment["kills"] >= 5
    for name in ("step_1", "step_4", "step_7", "step_9", "step_12", "any"):
        assert_same_run(tmp_path / name, whole)


def test_the_first_step_is_redone_when_no_checkpoint_was_reached(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path).create()
    run.metrics.write_text('{"step": 1, "loss": 0.5}\n{"step": 2, "lo')
    train(tmp_path)
    assert [line["step"] for line in rows(run.metrics)] == list(range(1, 13))


def test_a_half_written_line_is_dropped_and_written_once(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, fail_at=(7, "interrupt"))
    with open(tmp_path / "metrics.jsonl", "a") as stream:
        stream.write('{"step": 7, "los')
    train(tmp_path)
    assert [line["step"] for line in rows(tmp_path / "metrics.jsonl")] == list(range(1, 13))


def test_ctrl_c_says_from_which_step_it_resumes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, fail_at=(7, "interrupt"))
    assert "the same command resumes from step 4" in caplog.text


@pytest.mark.parametrize("damage", ["truncate", "flip", "remove", "manifest"])
def test_a_damaged_checkpoint_is_reported_and_the_one_before_it_used(
    whole: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, fail_at=(11, "interrupt"))
    checkpoint = tmp_path / "checkpoints/step_8"
    file = checkpoint / "policy/model.safetensors"
    data = bytearray(file.read_bytes())
    if damage == "truncate":
        file.write_bytes(data[:-3])
    elif damage == "flip":
        data[-1] ^= 1
        file.write_bytes(data)
    elif damage == "remove":
        file.unlink()
    else:
        (checkpoint / "manifest.json").write_text('{"step": 8, "fil')
    train(tmp_path)
    assert "step_8 is damaged" in caplog.text
    assert "step_4" not in [entry.name for entry in (tmp_path / "checkpoints").iterdir()]  # no longer kept
    assert weights(tmp_path / "checkpoints/step_12") == weights(whole / "checkpoints/step_12")
    assert (tmp_path / "checkpoints/step_8.damaged").is_dir()


def test_when_every_checkpoint_is_damaged_nothing_is_deleted(tmp_path: Path) -> None:
    train(tmp_path)
    before = (tmp_path / "metrics.jsonl").read_bytes()
    for manifest in tmp_path.glob("checkpoints/*/manifest.json"):
        manifest.write_text("[]")
    with pytest.raises(CheckpointError, match="every checkpoint is damaged"):
        train(tmp_path)
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


def test_a_finished_run_says_so_and_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    train(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    result = train(tmp_path)
    assert result == LoopResult(step=12, best_step=6, best_score=3.0, stop_reason=None, already_done=True)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()} == before
    assert "is done: it ended at step 12" in caplog.text


def test_total_steps_can_be_raised(tmp_path: Path) -> None:
    train(tmp_path, total=8)
    result = train(tmp_path, total=12)
    assert result.step == 12
    assert [line["step"] for line in rows(tmp_path / "metrics.jsonl")] == list(range(1, 13))


def test_never_starts_over_and_says_what_it_deletes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    train(tmp_path, total=8)
    (tmp_path / "config.yaml").write_text("seed: 3\n")
    train(tmp_path, total=4, resume="never")
    assert [line["step"] for line in rows(tmp_path / "metrics.jsonl")] == [1, 2, 3, 4]
    assert sorted(entry.name for entry in (tmp_path / "checkpoints").iterdir()) == ["step_0", "step_4"]
    assert "deleting metrics.jsonl, eval.jsonl, metrics.json, run.json, checkpoints, policy" in caplog.text
    assert (tmp_path / "config.yaml").exists()


def test_never_refuses_a_directory_that_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match="holds no training run"):
        train(tmp_path, resume="never")
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.tex"]


def test_resume_from_a_checkpoint_of_the_same_run_goes_back(whole: Path, tmp_path: Path) -> None:
    train(tmp_path)
    train(tmp_path, resume=str(tmp_path / "checkpoints/step_8"))
    assert rows(tmp_path / "metrics.jsonl") == rows(whole / "metrics.jsonl")
    assert weights(tmp_path / "checkpoints/step_12") == weights(whole / "checkpoints/step_12")
    assert json.loads((tmp_path / "policy/export.json").read_text())["step"] == 6


def test_resume_from_another_run_brings_its_history(whole: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "a", fail_at=(10, "interrupt"))
    train(tmp_path / "b", resume=str(tmp_path / "a"))
    for name in ("metrics.jsonl", "eval.jsonl"):
        assert rows(tmp_path / "b" / name) == rows(whole / name)
    for step in (0, 12):  # step 8 stays where it was
        assert weights(tmp_path / f"b/checkpoints/step_{step}") == weights(whole / f"checkpoints/step_{step}")
    assert (tmp_path / "b/policy/model.safetensors").read_bytes() == (whole / "policy/model.safetensors").read_bytes()
    # the same command again finds its own checkpoints and does not start from a's
    assert train(tmp_path / "b", resume=str(tmp_path / "a")).already_done


@pytest.mark.parametrize("what", ["missing", "empty"])
def test_resume_from_nothing_is_one_clear_error(tmp_path: Path, what: str) -> None:
    if what == "empty":
        (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="neither a checkpoint nor a run directory"):
        train(tmp_path / "run", resume=str(tmp_path / what))


def test_resume_past_the_end_is_refused(tmp_path: Path) -> None:
    train(tmp_path / "a", total=8)
    with pytest.raises(ConfigError, match="already stands at step 8"):
        train(tmp_path / "b", resume=str(tmp_path / "a"), total=8)


def test_a_total_before_the_exported_best_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):  # checkpoint at 4, best model exported at 6
        train(tmp_path, fail_at=(7, "interrupt"))
    before = {path: path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file()}
    with pytest.raises(ConfigError, match=r"total_steps: got 5.*step 6.*expected at least 6"):
        train(tmp_path, total=5)
    with pytest.raises(ConfigError, match=r"total_steps: got 5"):
        train(tmp_path, total=5, resume=str(tmp_path / "checkpoints/step_4"))
    assert {path: path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file()} == before
    assert train(tmp_path, total=6).best_step == 6


def test_without_validation_the_last_model_is_exported(tmp_path: Path) -> None:
    result = train(tmp_path, validate_every=None)
    assert (result.best_step, result.best_score) == (12, None)
    assert (tmp_path / "policy/model.safetensors").read_bytes() == weights(tmp_path / "checkpoints/step_12")


def test_patience_and_stop_reason_end_a_run_for_good(tmp_path: Path) -> None:
    result = train(tmp_path / "a", patience=2)
    assert (result.step, result.best_step) == (12, 6)  # 9 and 12 were no better
    result = train(tmp_path / "b", patience=1)
    assert (result.step, result.stop_reason) == (9, "no better validation for 1 validations")
    assert (tmp_path / "b/checkpoints/step_9").is_dir()
    assert train(tmp_path / "b", patience=1).already_done


@pytest.mark.parametrize(
    ("missed", "best"),
    [
        ((1, 1, 1, 0, 0), 12),  # 9 meets them with 2, 12 with 2.5; 6 had 3
        ((2, 2, 1, 0, 1), 9),
        ((1, 0, 1, 1, 1), 3),
        ((2, 2, 2, 2, 2), 6),  # all miss as many: the score
        ((0, 0, 0, 0, 0), 6),
        ((0, 1, 1, 1, 1), 0),
    ],
)
def test_the_best_model_misses_fewest_constraints(tmp_path: Path, missed: tuple[int, ...], best: int) -> None:
    """Whatever the score; with a run that stops and goes on, too."""
    asked = dict(zip(SCORES, missed, strict=True))
    with pytest.raises(KeyboardInterrupt):  # 6 was the best at the checkpoint of step 8 in the first three
        train(tmp_path / "resumed", fail_at=(11, "interrupt"), missed=asked)
    ways = {"whole": train(tmp_path / "whole", missed=asked), "resumed": train(tmp_path / "resumed", missed=asked)}
    for name, result in ways.items():
        assert (result.best_step, result.best_score, result.best_missed) == (best, SCORES[best], asked[best])
        assert json.loads((tmp_path / name / "policy/export.json").read_text())["step"] == best
        assert [row["constraints_missed"] for row in rows(tmp_path / name / "eval.jsonl")] == list(missed)
    assert_same_run(tmp_path / "resumed", tmp_path / "whole")
    assert train(tmp_path / "whole", missed=asked).best_missed == asked[best]


def test_a_validation_that_misses_fewer_constraints_is_waited_for_like_a_better_score(tmp_path: Path) -> None:
    result = train(tmp_path, patience=1, missed={0: 2, 3: 2, 6: 1, 9: 0, 12: 1})
    assert (result.step, result.best_step, result.stop_reason) == (12, 9, "no better validation for 1 validations")


def test_a_kill_between_the_last_checkpoint_and_the_removal_of_old_ones_leaves_none_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(self: CheckpointStore) -> None:
        if 12 in self.steps():
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(CheckpointStore, "prune", killed)
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path)
    assert CheckpointStore(tmp_path / "checkpoints", keep=2).steps() == [0, 4, 8, 12]
    assert train(tmp_path).already_done
    assert CheckpointStore(tmp_path / "checkpoints", keep=2).steps() == [0, 8, 12]


def test_a_killed_exchange_of_the_export_is_finished(tmp_path: Path) -> None:
    train(tmp_path, total=8)
    os.replace(tmp_path / "policy", tmp_path / ".policy.abc.old")
    (tmp_path / ".policy.def.tmp").mkdir()
    train(tmp_path)
    assert json.loads((tmp_path / "policy/export.json").read_text())["step"] == 6
    assert not list(tmp_path.glob(".policy*"))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_leaves_the_checkpoint_before_intact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    whole = Toy.state_to_save

    def half(self: Toy) -> Write:
        def full(directory: Path) -> None:
            (directory / "part").write_bytes(b"half")
            raise OSError(code, os.strerror(code))

        late = self.memory > 0 and len(rows(tmp_path / "metrics.jsonl")) >= 8
        return write_all([whole(self), *([full] if late else [])])

    with monkeypatch.context() as patched:
        patched.setattr(Toy, "state_to_save", half)
        with pytest.raises(DiskFullError, match=r"the disk is full: could not write checkpoint .*resumes from step 4"):
            train(tmp_path)
    assert sorted(entry.name for entry in (tmp_path / "checkpoints").iterdir()) == ["step_0", "step_4"]
    assert read_checkpoint(tmp_path / "checkpoints/step_4").step == 4
    assert train(tmp_path).step == 12


def test_a_really_full_disk_is_one_clear_error(tmp_path: Path, whole: Path) -> None:
    """A file-size limit stands in for a full disk: the system refuses the write, and safetensors says so in words."""
    limited = (
        "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (900, 900)); "
        f"sys.argv = ['toy', sys.argv[1]]; sys.path.append({str(TOY.parent)!r}); "
        f"runpy.run_path({str(TOY)!r}, run_name='__main__')"
    )
    toy = {"output": str(tmp_path / "run")}
    result = run_process("-c", limited, json.dumps(toy), preloaded=True, timeout=120)
    assert result.returncode != 0
    assert "DiskFullError: the disk is full: could not write" in result.stderr
    done = run_toy({"output": str(tmp_path / "run")})
    assert done.returncode == 0, done.stderr
    assert_same_run(tmp_path / "run", whole)


@pytest.mark.parametrize(
    "bad", [{"total_steps": 0}, {"checkpoint_every": 0}, {"validate_every": 0}, {"export": "x"}, {"patience": 0}]
)
def test_bad_numbers_are_refused(bad: dict) -> None:
    with pytest.raises(ConfigError, match=next(iter(bad))):
        LoopConfig(**{"total_steps": 1} | bad)


def test_two_processes_end_where_one_does_and_nothing_hangs(tmp_path: Path, whole: Path) -> None:
    broken = run_in_two_processes(str(TOY), json.dumps({"output": str(tmp_path / "run"), "fail_at": [6, "rank1"]}))
    assert broken.returncode != 0 and "rank 1 broke" in broken.stderr
    apart = run_in_two_processes(str(TOY), json.dumps({"output": str(tmp_path / "apart"), "fail_at": [6, "apart"]}))
    assert apart.returncode != 0
    assert (
        "step 8: process 1 does not hold the trained parameters of process 0 (1 of 6 differ, first model.0.bias)"
        in apart.stderr
    )
    assert sorted(p.name for p in (tmp_path / "apart/checkpoints").iterdir()) == ["step_0", "step_4"]
    hung = {"output": str(tmp_path / "hung"), "fail_at": [6, "hang"], "timeout_s": 2}
    late = run_in_two_processes(str(TOY), json.dumps(hung))
    assert late.returncode != 0 and "another process did not answer within 2 s" in late.stderr
    assert "processes.timeout_s" in late.stderr
    done = run_in_two_processes(str(TOY), json.dumps({"output": str(tmp_path / "run")}))
    assert done.returncode == 0, done.stderr
    ours, theirs = rows(tmp_path / "run/metrics.jsonl"), rows(whole / "metrics.jsonl")
    assert [line["step"] for line in ours] == list(range(1, 13))
    assert all(line["processes"] == 2 for line in ours)
    assert [line["loss"] for line in ours] == pytest.approx([line["loss"] for line in theirs], abs=1e-6)
    from safetensors.torch import load_file

    two = load_file(tmp_path / "run/checkpoints/step_12/policy/model.safetensors")
    one = load_file(whole / "checkpoints/step_12/policy/model.safetensors")
    for name in one:
        torch.testing.assert_close(two[name], one[name], atol=1e-6, rtol=0)


def test_what_could_not_be_exported_is_in_no_later_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Step 12 exports and saves; the checkpoint would call a model the best that is nowhere."""
    whole = Toy.model_to_save

    def refused(directory: Path) -> None:
        if "policy" in directory.parent.name:  # an export, no part of a checkpoint
            raise PermissionError(errno.EACCES, "not allowed", str(directory))

    def late(self: Toy) -> Write:
        wrong = len(rows(tmp_path / "metrics.jsonl")) >= 12 if (tmp_path / "metrics.jsonl").is_file() else False
        return write_all([whole(self), *([refused] if wrong else [])])

    with monkeypatch.context() as patched:
        patched.setattr(Toy, "model_to_save", late)
        patched.setitem(SCORES, 12, 9.0)
        with pytest.raises(PermissionError):
            train(tmp_path)
        assert CheckpointStore(tmp_path / "checkpoints", keep=2).steps() == [0, 4, 8]
    assert train(tmp_path).step == 12 and not list(tmp_path.rglob(".*.tmp"))


def test_an_error_in_the_main_process_alone_ends_all(tmp_path: Path) -> None:
    """A file stands where the checkpoints belong: only the main process makes their directory."""
    output = tmp_path / "run"
    done = run_in_two_processes(str(TOY), json.dumps({"output": str(output), "fail_at": [3, "block"], "timeout_s": 30}))
    assert done.returncode != 0 and "the main process: " in done.stderr
