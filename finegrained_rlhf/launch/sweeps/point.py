"""One point of a sweep: its files, what of it is done already, and the child processes that do the rest.

A point is one run directory, `points/NAME`, with `point.yaml` and `evaluation.yaml` (what its children read),
`log.txt`, `evaluation.json`, and `point.json` (how it ended). Baselines lie beside, in `baselines/NAME`, for the points
that share them.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from finegrained_rlhf.core.errors import ConfigError, FineGrainedError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import write_text
from finegrained_rlhf.core.markers import DataName, at_least
from finegrained_rlhf.launch.children import (
    as_yaml,
    complaint,
    gpus_for,
    last_output,
    locked,
    run_logged,
    write_config,
)
from finegrained_rlhf.launch.finished import Finished
from finegrained_rlhf.launch.steps import Step
from finegrained_rlhf.report.sweeps.results import SweepTable
from finegrained_rlhf.runtime.directory.fingerprints import leaves
from finegrained_rlhf.runtime.directory.provenance import commit_of
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory

MODULE = "finegrained_rlhf"
"""What a child runs by `python -m`."""
RECORD = "point.json"
_MAY_CHANGE = ("resume", "tracking", "processes.threads", "output_dir")
"""Keys of training that do not decide what comes out."""


@dataclass(frozen=True)
class PointEvaluation(Settings):
    """How points and baselines are measured.

    Attributes:
        data: prompt file with references; None takes the run's `validation_data`.
        oracle: option of `finegrained evaluate`'s group.
        rewards: measure what the point's reward models say.
        max_new_tokens: longest answer in tokens.
        batch_size: prompts decoded at once in a process, each with all its samples.
        limit: use at most so many prompts; None uses all.
    """

    data: DataName | None = None
    oracle: str = "none"
    rewards: bool = True
    max_new_tokens: int = 200
    batch_size: int = 16
    limit: int | None = None


@dataclass(frozen=True)
class SweepSettings(Settings):
    """How a sweep runs its points.

    Attributes:
        evaluation: of points and baselines.
        table: what the sweep says at its end.
        prepare: command lines, `NAME KEY=VALUE …`, that run once, before all points.
        parallel: points at once.
        processes: of `accelerate`, for each point.
        launch: further arguments of `accelerate launch`.
        gpus: numbers of the GPUs that the points share; None leaves the choice to accelerate.
        best_of: baselines: the best of so many samples of the initial policy; 1 is its greedy answer.
    """

    evaluation: PointEvaluation = field(default_factory=PointEvaluation)
    table: SweepTable = field(default_factory=SweepTable)
    prepare: Sequence[str] = ()
    parallel: Annotated[int, at_least(1)] = 1
    processes: Annotated[int, at_least(1)] = 1
    launch: Sequence[str] = ()
    gpus: Sequence[int] | None = None
    best_of: Sequence[int] = (1, 8)

    def __post_init__(self) -> None:
        if any(n < 1 for n in self.best_of):
            raise ConfigError(f"sweep.best_of: expected numbers of at least 1, got {list(self.best_of)}")
        if self.gpus is not None and len(self.gpus) < self.parallel * self.processes:
            needed = self.parallel * self.processes
            raise ConfigError(f"sweep.gpus: {self.parallel} points at once need {needed} GPUs, got {len(self.gpus)}")


class StageFailed(FineGrainedError):
    """A child process of a point failed.

    Args:
        stage: which one.
        problem: what it said last.
        log: where it said it.
    """

    def __init__(self, stage: str, problem: str, log: Path) -> None:
        self.stage, self.log = stage, log
        super().__init__(problem)


@dataclass(frozen=True)
class Point:
    """One point of a sweep.

    Attributes:
        name: of its directory.
        root: directory of the sweep.
        config: resolved configuration of `finegrained train-ppo`.
        evaluation: resolved configuration of `finegrained evaluate`, without `checkpoint`, `output`, `best_of` and
            `reward`.
        settings: of the sweep.
    """

    name: str
    root: Path
    config: Mapping[str, Any]
    evaluation: Mapping[str, Any]
    settings: SweepSettings

    @property
    def directory(self) -> Path:
        """The run directory."""
        return self.root / "points" / self.name

    def run(self) -> dict[str, Any]:
        """Train and measure what is not done yet. Returns what that adds to the point's record.

        Raises:
            StageFailed: a child failed.
            ConfigError: the directory holds a point with another configuration, or another process is at work in it.
        """
        locks, started = self.root / "locks", time.perf_counter()
        with locked(locks / f"{self.name}.lock", wait=False) as lock:
            self._accept_configuration()
            steps = self._steps()
            if all(Finished(directory).holds(step) for directory, step in steps):
                self._say("is done")
                return {"minutes": 0.0}
            with gpus_for(self.settings.gpus, self.settings.processes, locks) as (environment, held):
                for directory, step in steps:
                    with ExitStack() as shared:
                        keep = [lock, *held]
                        if directory != self.directory:
                            keep.append(shared.enter_context(locked(locks / f"{directory.name}.lock", wait=True)))
                        self._run(step, directory, environment, keep)
        minutes = (time.perf_counter() - started) / 60
        self._say(f"is done, {minutes:.1f} min")
        return {"commit": commit_of(Path(__file__).parent), "minutes": round(minutes, 2)}

    def _steps(self) -> list[tuple[Path, Step]]:
        """What makes a point, each with the directory that it is kept in."""
        training = {"script": "train_ppo", "config": {**self.config, "output_dir": str(self.directory)}}
        steps = [(self.directory, Step("training", {**training, "known_by": _deciding(self.config)}))]
        measured = {self.directory: self._evaluation()}
        measured |= {self._baseline_at(n): self._baseline(n) for n in self.settings.best_of}
        for directory, config in measured.items():
            name = "evaluation" if directory == self.directory else f"baseline {directory.name}"
            declared = {"script": "evaluate", "config": config, "known_by": self._place_free(_essence(config))}
            steps.append((directory, Step(name, declared)))
        return steps

    def _run(self, step: Step, directory: Path, environment: Mapping[str, str], held: Sequence[int]) -> None:
        finished = Finished(directory)
        if finished.holds(step):
            return
        script, name = step.declared["script"], "point" if step.name == "training" else "evaluation"
        write_config(directory / f"{name}.yaml", script, step.declared["config"])
        begun, log = finished.begun(step), directory / "log.txt"
        self._say(f"{step.name} (log: {log})")
        status = run_logged(self._command(script, name, directory), log, environment, held)
        if status != 0:
            raise StageFailed(step.name, f"exit status {status}: {complaint(last_output(log))}", log)
        finished.add(begun)

    def _accept_configuration(self) -> None:
        """Refuse to mix configurations; write the present one where the run looks for it."""
        run, now = RunDirectory(self.directory), _deciding(self.config)
        before = _deciding(run.read_config()) if run.config_path.is_file() else now
        changed = [key for key in sorted({*before, *now}) if before.get(key) != now.get(key)]
        if changed and self.config["resume"] != "never":
            raise ConfigError(
                f"{self.directory} was made with other values of {', '.join(changed)}; expected the same, another "
                "output_dir, or resume=never, which makes the point anew"
            )
        if changed:
            self._say(f"is made anew with other values of {', '.join(changed)}")
            shutil.rmtree(self.directory)
        if not run.config_path.is_file():  # the mark of a run: training takes a directory with other files for foreign
            write_text(run.config_path, as_yaml(self.config))

    def _evaluation(self) -> dict[str, Any]:
        reward = self.config["reward"] if self.settings.evaluation.rewards else None
        output = str(self.directory / "evaluation.json")
        return {**self.evaluation, "checkpoint": str(self.directory), "output": output, "reward": reward, "best_of": 1}

    def _baseline(self, n: int) -> dict[str, Any]:
        """The evaluation of the initial policy; that of greedy answers is the same for all weights."""
        reward: dict[str, Any] | None = dict(self.config["reward"])
        if n == 1 and reward is not None:
            reward["weights"] = dict.fromkeys(reward["weights"], 1.0)
            reward = reward if self.settings.evaluation.rewards else None
        config = {**self.evaluation, "checkpoint": self._initial_policy(), "reward": reward, "best_of": n}
        return {**config, "output": str(self._baseline_at(n, config) / "evaluation.json")}

    def _initial_policy(self) -> str:
        policy = self.config["policy"]
        if policy["adapter"] is not None:
            raise ConfigError("sweep.best_of: finegrained evaluate does not open adapters; give sweep.best_of=[]")
        exported = RunDirectory(policy["path"]).final("policy")
        return str(exported if exported.is_dir() else policy["path"])

    def _baseline_at(self, n: int, config: Mapping[str, Any] | None = None) -> Path:
        if config is None:
            return Path(self._baseline(n)["output"]).parent
        exact = json.dumps(self._place_free(_essence(config)), sort_keys=True)
        kind = "initial" if n == 1 else f"best_of_{n}"
        return self.root / "baselines" / f"{kind}-{hashlib.sha256(exact.encode()).hexdigest()[:8]}"

    def baselines(self) -> dict[str, str]:
        """Directory of each baseline by its number of samples, seen from the sweep's directory."""
        return {str(n): str(self._baseline_at(n).relative_to(self.root)) for n in self.settings.best_of}

    def _place_free(self, config: Mapping[str, Any]) -> Any:
        """A configuration in which what each point prepares for itself, by equal steps, is one and the same place."""
        points = re.escape(json.dumps(str(self.root / "points"))[1:-1])
        exact = json.dumps(config, sort_keys=True)
        if not re.search(rf"{points}/[^/\"]+/prepared/", exact):
            return config
        steps = json.dumps(self.config.get("prepare"), sort_keys=True)
        return json.loads(re.sub(rf"{points}/[^/\"]+/", "{point}/", f"[{exact}, {steps}]"))

    def _command(self, script: str, name: str, directory: Path) -> list[str]:
        call = ["-m", MODULE, script, "--config-dir", str(directory), "--config-name", name]
        if script == "evaluate" and self.settings.processes == 1:
            return [sys.executable, *call]
        launch = [sys.executable, "-m", "accelerate.commands.launch", "--num_processes", str(self.settings.processes)]
        launch += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no", "--quiet"]
        if self.settings.processes > 1:
            launch += ["--multi_gpu", "--main_process_port", "0"]  # a free port: points run beside each other
        return [*launch, *self.settings.launch, *call]

    def _say(self, text: str) -> None:
        print(f"{self.name}: {text}", flush=True)


def _deciding(config: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a training's configuration that decide what comes out, by key."""
    return {key: value for key, value in leaves(config) if not key.startswith(_MAY_CHANGE)}


def _essence(config: Mapping[str, Any]) -> dict[str, Any]:
    """An evaluation's configuration without the keys that do not decide what comes out."""
    return {**config, "batch_size": None, "trust": None, "processes": {**config["processes"], "threads": None}}
