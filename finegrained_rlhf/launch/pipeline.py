"""An experiment of several steps, for one seed or several, and what collects its results."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from finegrained_rlhf.core.errors import ConfigError, FineGrainedError
from finegrained_rlhf.core.files import read_json, write_json
from finegrained_rlhf.launch.build import build, resolved
from finegrained_rlhf.launch.checks.paths import Made, check_outputs, check_writable, outputs
from finegrained_rlhf.launch.checks.schema import check_keys, problem_of_seed
from finegrained_rlhf.launch.finished import FILE, Digests, Finished
from finegrained_rlhf.launch.steps import Step, check_steps, expanded, processes_of, run_job, run_step
from finegrained_rlhf.runtime.directory.claims import claimed
from finegrained_rlhf.runtime.process_config import OneProcess

if TYPE_CHECKING:
    from finegrained_rlhf.runtime.processes import Processes


def run_pipeline(cfg: DictConfig) -> None:
    """Run every step that is not finished for every seed, then `collect`.

    All steps are checked before the first one runs. Each prints the command line that it equals.

    Raises:
        FineGrainedError: what is wrong with which step.
    """
    if OmegaConf.is_missing(cfg, "steps"):
        raise ConfigError("name an experiment of several steps: pipeline=NAME  (--help lists them)")
    for key in ("seed", "seeds"):
        if problem := problem_of_seed(key, OmegaConf.to_container(cfg)[key]):  # type: ignore[index,call-overload]
            raise ConfigError(problem)
    seeds = [cfg.seed] if cfg.seeds is None else list(cfg.seeds)
    if not seeds:
        raise ConfigError("seeds: expected one or more, or null, got []")
    experiments = [_of_seed(cfg, seed) for seed in seeds]
    collect = None if cfg.collect is None else resolved(cfg)["collect"]
    if collect is not None:
        check_keys(collect)
        check_outputs(collect)
    digest_of = Digests()
    _check(experiments, digest_of)
    processes, started = processes_of(), time.perf_counter()
    for experiment in experiments:
        directory = Path(experiment["output_dir"])
        own = {"output_dir": str(directory)}
        with claimed(own, processes):
            if processes.is_main:
                _claim(directory, experiment)
            processes.barrier()
            with claimed(own, processes):  # the one before may have been moved aside
                steps, finished = list(expanded(experiment["steps"])), Finished(directory, digest_of)
                for number, step in enumerate(steps, start=1):
                    minutes = (time.perf_counter() - started) / 60
                    what = f"seed {experiment['seed']}, step {number} of {len(steps)}: {step.name}"
                    if not processes.broadcast_object(processes.is_main and finished.holds(step)):
                        _run(step, f"[{minutes:.1f} min, {what}]", processes, finished)
                        digest_of.forget()
                    elif processes.is_main:
                        print(f"[{what}] is done", flush=True)
    if collect is not None:
        run_job(collector(resolved(cfg)), processes)


def _check(experiments: Sequence[Mapping[str, Any]], digest_of: Digests) -> None:
    """Check the steps that are to be run; of seeds that have the same ones left, for the first of them alone."""
    checked: set[int] = set()
    for experiment in experiments:
        check_writable("output_dir", experiment["output_dir"], directory=True)
        finished = Finished(experiment["output_dir"], digest_of)
        left = {n: step for n, step in enumerate(expanded(experiment["steps"])) if not finished.holds(step)}
        if not left.keys() <= checked:
            check_steps(left.values(), "step ", Made())
            checked |= left.keys()


def _run(step: Step, label: str, processes: Processes | OneProcess, finished: Finished) -> None:
    begun = finished.begun(step) if processes.is_main and not step.is_given else None
    try:
        run_step(step, label, processes)
    except FineGrainedError as error:
        raise FineGrainedError(f"step {step.name}: {error}") from error
    if begun is not None:
        finished.add(begun)


def collector(experiment: Mapping[str, Any]) -> Any:
    """The job that collects an experiment's results; one with a field `configuration` gets the resolved one."""
    job = build(experiment["collect"])
    takes = any(field.name == "configuration" for field in dataclasses.fields(job))
    return dataclasses.replace(job, configuration=experiment) if takes else job


def _of_seed(cfg: DictConfig, seed: int) -> dict[str, Any]:
    """An experiment for one seed, resolved."""
    one = copy.deepcopy(cfg)
    one.seed, one.seeds, one.collect = seed, None, None
    if cfg.seeds is not None:
        one.output_dir = f"{cfg.output_dir}/seed_{seed}"
    return resolved(one)


def _claim(directory: Path, experiment: Mapping[str, Any]) -> None:
    """Mark a directory with what its results are drawn from; results of another seed are moved aside, never mixed."""
    record, seed, settings = directory / "experiment.json", experiment["seed"], experiment["settings"]
    before = read_json(record) if record.is_file() else {"seed": seed, "settings": {}}
    if before["seed"] != seed:
        aside = next(p for n in itertools.count() if not (p := directory.with_name(f"{directory.name}.{n}")).exists())
        os.replace(directory, aside)
        print(f"{directory} holds results of seed {before['seed']}: moved to {aside}", flush=True)
    elif changed := [k for k, v in settings.items() if before["settings"].get(k, v) != v]:
        print(f"warning: {directory} was begun with other settings: {', '.join(changed)}", flush=True)
    elif record.is_file() and not (directory / FILE).is_file():
        _adopt(Finished(directory), expanded(experiment["steps"]))
    write_json(record, {"seed": seed, "settings": settings})
    if not (directory / FILE).is_file():
        Finished(directory).write()


def _adopt(finished: Finished, steps: Iterable[Step]) -> None:
    """Take what an earlier version made for finished, as it did; training says itself how far it is."""
    for step in steps:
        made = [path for _, path in outputs(step.job)]
        if made and "resume" not in step.job and all(Path(path).exists() for path in made):
            finished.add(finished.begun(step))
