"""A Hydra multirun whose jobs are the points of a sweep: before them what they share, after them what they found.

The only module of the sweep that knows Hydra. A job may run in this process, in another, or on another machine: it
finds all it needs in its configuration and in the sweep's directory.
"""

from __future__ import annotations

import copy
import logging
import os
import shlex
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra import compose
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from finegrained_rlhf.core.errors import ConfigError, FineGrainedError
from finegrained_rlhf.core.files import read_json, write_json
from finegrained_rlhf.launch.build import build, resolved
from finegrained_rlhf.launch.checks.paths import check_writable
from finegrained_rlhf.launch.checks.schema import check_keys
from finegrained_rlhf.launch.children import ended_by_signals, last_output
from finegrained_rlhf.launch.configurations import typed
from finegrained_rlhf.launch.mistakes import user_errors
from finegrained_rlhf.launch.steps import checked, expanded
from finegrained_rlhf.launch.sweeps.point import MODULE, RECORD, Point, StageFailed, SweepSettings
from finegrained_rlhf.launch.sweeps.points import (
    first_point,
    point_name,
    swept_keys,
    swept_overrides,
    use_own_directory,
)
from finegrained_rlhf.report.sweeps.results import SweepTable
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory

STARTED = "started.json"
"""In the sweep's directory: which start its points belong to."""
_OTHER_MODES = set("--multirun -m --run -r --cfg -c --info -i --shell-completion -sc --hydra-help --version".split())
"""Options that say themselves what is to be done with the configuration."""
_LINES = 5
"""Of a failed point's log, on the console."""


class SweepCallback(Callback):
    """What happens once a sweep, on the machine where it is started."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Check what can be checked in one point, run the commands of `sweep.prepare`, and mark the start."""
        with _stops_the_sweep():
            root = _root(config)
            RunDirectory(root).refuse_run("the sweep")
            _check_first(compose(config.hydra.job.config_name, overrides=first_point(config)), root)
            if not swept_keys(config):
                print("no key has several values (KEY=A,B): the sweep has one point", flush=True)
            for line in config.sweep.prepare:
                script, *arguments = shlex.split(line)
                print(f"before all points: {typed(script)} {shlex.join(arguments)}", flush=True)
                done = subprocess.run([sys.executable, "-m", MODULE, script, *arguments])
                if done.returncode != 0:
                    raise ConfigError(f"sweep.prepare: {typed(script)} ended with exit status {done.returncode}")
            write_json(root / STARTED, {"start": f"{time.time_ns()}-{os.getpid()}", "command": _command()})

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Collect the points of this start, and end with exit status 1 if one failed."""
        with _stops_the_sweep():
            root = _root(config)
            started = read_json(root / STARTED)
            records = [read_json(path) for path in sorted(root.glob(f"points/*/{RECORD}"))]
            records = sorted((r for r in records if r["start"] == started["start"]), key=lambda r: r["job"])
            table: SweepTable = build(resolved(config.sweep.table))
            result = table.collect(root, records, started["command"])
        print(f"\n{(root / 'sweep.md').read_text(encoding='utf-8')}\nreport: {root / 'report.html'}")
        for name in table.missing(result):
            print(f"warning: not every evaluation has {name!r}: no column, no plot", file=sys.stderr)
        for failure in result["failed"]:
            print(f"failed: {failure['name']}, {failure['stage']}: {failure['error']}", file=sys.stderr)
        if result["failed"]:
            sys.exit(1)


def run_point(cfg: DictConfig) -> None:
    """The job of one point: train, measure, and write how it ended; a failure is recorded, so that others go on."""
    root, own = _root(cfg), swept_overrides()
    name = point_name(own)
    directory = root / "points" / name
    record = {"name": name, "job": HydraConfig.get().job.num, "start": read_json(root / STARTED)["start"], "swept": own}
    before = read_json(directory / RECORD) if (directory / RECORD).is_file() else {}
    record |= {key: before.get(key, value) for key, value in (("commit", "unknown"), ("minutes", 0.0))}
    with ended_by_signals():
        try:
            use_own_directory(cfg, "points")
            point = _point(cfg, root, name)
            record |= {"seed": point.config["seed"], "weights": point.config["reward"]["weights"]}
            earlier = 0.0 if point.config["resume"] == "never" else record["minutes"]
            record |= {"baselines": point.baselines()} | point.run() | {"status": "done"}
            record["minutes"] += earlier
        except FineGrainedError as error:
            stage, log = (error.stage, error.log) if isinstance(error, StageFailed) else ("configuration", None)
            record |= _failure(name, stage, str(error), log)
        except Exception as error:
            traceback.print_exc()
            record |= _failure(name, "sweep", f"{type(error).__name__}: {error}", None)
    write_json(directory / RECORD, record)


def _failure(name: str, stage: str, error: str, log: Path | None) -> dict[str, Any]:
    print(f"{name}: failed in {stage}: {error}", file=sys.stderr)
    if log is not None:
        print(*(f"    {line}" for line in [f"{log} ends with", *last_output(log)[-_LINES:]]), sep="\n", file=sys.stderr)
    sys.stderr.flush()
    return {"status": "failed", "stage": stage, "error": error, "log": None if log is None else str(log)}


def _check_first(cfg: DictConfig, root: Path) -> None:
    """Refuse what is wrong with the first point, and with the directory of the sweep, before anything is started."""
    check_writable("output_dir", str(root), directory=True)
    point = _point(cfg, root, "first")
    job = {**point.config, "output_dir": str(point.directory)}
    checked(job, list(expanded(job.get("prepare") or {})), inputs=not point.settings.prepare)


def _point(cfg: DictConfig, root: Path, name: str) -> Point:
    config = resolved(cfg)
    check_keys(config["sweep"], "sweep")
    settings: SweepSettings = build(config.pop("sweep"))
    if config["dry_run"]:
        raise ConfigError("dry_run: a sweep trains; dry-run a point with finegrained train-ppo")
    return Point(name, root, config, _evaluation(config, settings), settings)


def _evaluation(config: Mapping[str, Any], settings: SweepSettings) -> dict[str, Any]:
    """The configuration of `finegrained evaluate` that points and baselines share."""
    composed = compose("evaluate", overrides=[f"oracle={settings.evaluation.oracle}"])
    measured = settings.evaluation
    composed.output = "given by the point"
    composed.data = measured.data or config["validation_data"]
    if composed.data is None:
        raise ConfigError("give sweep.evaluation.data=FILE: the run has no validation_data to measure points on")
    for key in ("max_new_tokens", "batch_size", "limit"):
        composed[key] = getattr(measured, key)
    for key in ("seed", "max_prompt_tokens", "prompt_too_long", "processes"):
        composed[key] = copy.deepcopy(config[key])
    return {key: value for key, value in resolved(composed).items() if key != "output"}


def _root(config: DictConfig) -> Path:
    if OmegaConf.is_missing(config, "output_dir"):
        raise ConfigError("give output_dir=…, the directory of the sweep")
    return Path(config.output_dir)


def as_multirun(arguments: Sequence[str]) -> list[str]:
    """The command line with `--multirun`, as the configuration has it: no mistake is then taken for its lack."""
    return list(arguments) if _OTHER_MODES & set(arguments) else [*arguments, "--multirun"]


def _command() -> str:
    return shlex.join(["finegrained", "sweep", *(word for word in sys.argv[1:] if word != "--multirun")])


@contextmanager
def _stops_the_sweep() -> Iterator[None]:
    """An error in what happens once ends the sweep; Hydra itself would only warn of it."""
    with user_errors("sweep"):
        for launcher in ("hydra", "hydra_plugins"):  # they repeat every point's command line
            logging.getLogger(launcher).setLevel(logging.WARNING)
        try:
            yield
        except (FineGrainedError, HydraException, OmegaConfBaseException, OSError):
            raise
        except Exception:
            traceback.print_exc()
            sys.exit(1)


@contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C and SIGTERM end a sweep with its children, in one line and exit status 130."""
    with ended_by_signals():
        try:
            yield
        except KeyboardInterrupt:
            print("stopped; the same command goes on from here", file=sys.stderr)
            sys.exit(130)
