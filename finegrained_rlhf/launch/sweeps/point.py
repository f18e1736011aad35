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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finegrained_rlhf.core.errors import ConfigError, FineGrainedError
from finegrained_rlhf.core.files import write_text
from finegrained_rlhf.launch.sweeps.children import complaint, gpus_for, last_output, locked, run_logged
from finegrained_rlhf.launch.sweeps.config_files import as_yaml, read_config, write_config
from finegrained_rlhf.launch.sweeps.settings import SweepSettings
from finegrained_rlhf.runtime.directory.provenance import commit_of
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory

MODULE = "finegrained_rlhf"
"""What a child runs by `python -m`."""
RECORD = "point.json"
_MAY_CHANGE = ("resume", "tracking", "processes.threads")
"""Keys of training that do not decide what comes out."""


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

    @property
    def log(self) -> Path:
        """What the children print."""
        return self.directory / "log.txt"

    def run(self) -> dict[str, Any]:
        """Train and measure what is not done yet. Returns what that adds to the point's record.

        Raises:
            StageFailed: a child failed.
            ConfigError: the directory holds a point with another configuration, or another process is at work in it.
        """
        locks = self.root / "locks"
        with locked(locks / f"{self.name}.lock", wait=False) as lock:
            self._accept_configuration()
            if self._is_measured(self.directory, self._evaluation()) and self.config["resume"] != "never":
                baselines = {n: self._baseline_at(n) for n in self.settings.best_of}
                if all(self._is_measured(path, self._baseline(n)) for n, path in baselines.items()):
                    self._say("is done")
                    return {"minutes": 0.0}
            with gpus_for(self.settings.gpus, self.settings.processes, locks) as (environment, held):
                return self._work(environment, [lock, *held])

    def _work(self, environment: Mapping[str, str], held: Sequence[int]) -> dict[str, Any]:
        started = time.perf_counter()
        if self.config["resume"] == "never" or not (self.directory / "evaluation.json").is_file():
            (self.directory / "evaluation.json").unlink(missing_ok=True)
            self._child("training", self.log, self._command("train_ppo", "point", self.directory), environment, held)
        self._measure(self.directory, self._evaluation(), environment, held)
        for n in self.settings.best_of:
            with locked(self.root / "locks" / f"{self._baseline_at(n).name}.lock", wait=True) as lock:
                self._measure(self._baseline_at(n), self._baseline(n), environment, [*held, lock])
        minutes = (time.perf_counter() - started) / 60
        self._say(f"is done, {minutes:.1f} min")
        return {"commit": commit_of(Path(__file__).parent), "minutes": round(minutes, 2)}

    def _accept_configuration(self) -> None:
        """Refuse to mix configurations; write the present one where children and the run look for it."""
        run = RunDirectory(self.directory)
        if run.config_path.is_file():
            changed = [key for key in run.differing_keys(self.config) if not key.startswith(_MAY_CHANGE)]
            if run.read_config().get("total_steps") != self.config["total_steps"]:
                changed.append("total_steps")  # a run may be prolonged; a point with an evaluation may not
            if changed and self.config["resume"] != "never":
                raise ConfigError(
                    f"{self.directory} was made with other values of {', '.join(changed)}; expected the same, another "
                    "output_dir, or resume=never, which makes the point anew"
                )
            if changed:
                self._say(f"is made anew with other values of {', '.join(changed)}")
                shutil.rmtree(self.directory)
        write_config(self.directory / "point.yaml", "train_ppo", self.config)
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

    def _is_measured(self, directory: Path, config: Mapping[str, Any]) -> bool:
        written = directory / "evaluation.yaml"
        if not (directory / "evaluation.json").is_file() or not written.is_file():
            return False
        return bool(self._place_free(_essence(read_config(written))) == self._place_free(_essence(config)))

    def _measure(
        self, directory: Path, config: Mapping[str, Any], environment: Mapping[str, str], held: Sequence[int]
    ) -> None:
        if self._is_measured(directory, config):
            return
        (directory / "evaluation.json").unlink(missing_ok=True)
        write_config(directory / "evaluation.yaml", "evaluate", config)
        stage = "evaluation" if directory == self.directory else f"baseline {directory.name}"
        command = self._command("evaluate", "evaluation", directory)
        self._child(stage, directory / "log.txt", command, environment, held)

    def _command(self, script: str, name: str, directory: Path) -> list[str]:
        call = ["-m", MODULE, script, "--config-dir", str(directory), "--config-name", name]
        if script == "evaluate" and self.settings.processes == 1:
            return [sys.executable, *call]
        launch = [sys.executable, "-m", "accelerate.commands.launch", "--num_processes", str(self.settings.processes)]
        launch += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no", "--quiet"]
        if self.settings.processes > 1:
            launch += ["--multi_gpu", "--main_process_port", "0"]  # a free port: points run beside each other
        return [*launch, *self.settings.launch, *call]

    def _child(
        self, stage: str, log: Path, command: Sequence[str], environment: Mapping[str, str], held: Sequence[int]
    ) -> None:
        self._say(f"{stage} (log: {log})")
        status = run_logged(command, log, environment, held)
        if status != 0:
            raise StageFailed(stage, f"exit status {status}: {complaint(last_output(log))}", log)

    def _say(self, text: str) -> None:
        print(f"{self.name}: {text}", flush=True)


def _essence(config: Mapping[str, Any]) -> dict[str, Any]:
    """An evaluation's configuration without the keys that do not decide what comes out."""
    return {**config, "batch_size": None, "trust": None, "processes": {**config["processes"], "threads": None}}
