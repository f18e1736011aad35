"""From composed configurations to finished jobs: one job, what must be prepared for it, or an experiment of many steps.

Steps are named, so that one experiment can change another's; null leaves one out. A step is a command with arguments,
composed and run in this process, or a job of its own:
`{script: NAME, args: [KEY=VALUE, …], unless: FILE, each: {NAME: [VALUES]}}` or `{job: {_target_: …}, unless: FILE}`.
An argument that is a mapping gives one KEY=VALUE for each of its keys whose value is not null.
`{like: STEP, …}` is that step of the same experiment with some keys replaced and some arguments changed or added.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import os
import shlex
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra import compose
from omegaconf import DictConfig, OmegaConf

from finegrained_rlhf.core.errors import ConfigError, FineGrainedError
from finegrained_rlhf.core.files import read_json, write_json
from finegrained_rlhf.launch.build import build, resolved
from finegrained_rlhf.launch.checks.contents import problems_of_contents
from finegrained_rlhf.launch.checks.experiments import check_experiment
from finegrained_rlhf.launch.checks.foreign import trusted_classes
from finegrained_rlhf.launch.checks.paths import (
    Made,
    check_inputs,
    check_outputs,
    check_writable,
    missing_inputs,
    outputs,
)
from finegrained_rlhf.launch.checks.schema import check_keys, keys_of_job, problem_of_seed, problems
from finegrained_rlhf.launch.command_line import CommandLine, hydras_words
from finegrained_rlhf.launch.configurations import typed
from finegrained_rlhf.launch.mistakes import explain_command_line, is_of_configuration
from finegrained_rlhf.launch.rewards import with_reward_of_run
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.launcher import follow
from finegrained_rlhf.runtime.process_config import OneProcess

if TYPE_CHECKING:
    from finegrained_rlhf.runtime.processes import Processes

_STEP_KEYS = {"script", "args", "job", "unless", "each"}


def run_config(cfg: DictConfig, arguments: Sequence[str] = ()) -> None:
    """Prepare, build and run the job that a composed configuration describes.

    A job that shares its work among processes says so (`every_process`); any other runs in the main process alone.

    Args:
        cfg: composed.
        arguments: the arguments that it was composed with; `trust=…` counts among them alone.

    Raises:
        FineGrainedError: a user's error.
    """
    config = resolved(cfg)
    config = follow(with_reward_of_run(config, trusted_classes(config, arguments)), sys.argv[1:])
    prepare = list(expanded(config.get("prepare") or {}))
    job = checked(config, prepare)
    processes = _processes_of(job)
    from finegrained_rlhf.runtime.directory.claims import claimed
    from finegrained_rlhf.runtime.training_run import configured

    own = {"overwrite"} & keys_of_job(config).keys()  # a job that has it decides itself what it replaces
    with claimed({key: value for key, value in config.items() if key not in own}, processes):
        for name, step in prepare:
            run_step(step, f"[prepare: {name}]", processes)
        with configured(config):
            _run_job(job, processes)


def checked(
    config: Mapping[str, Any], prepare: Sequence[tuple[str, Mapping[str, Any]]] = (), *, inputs: bool = True
) -> Any:
    """The job that a resolved configuration describes, when nothing is wrong with it that can be known beforehand.

    Cheap checks come first: keys and types, then paths, and only then the imports that values are checked by. Steps of
    `prepare` are checked as well. Nothing is made.

    Args:
        config: resolved.
        prepare: steps before the job.
        inputs: whether its files must be there, but for those that `prepare` makes.

    Raises:
        FineGrainedError: a user's error.
    """
    job = keys_of_job(config)
    check_keys(job)
    check_outputs(job)
    if "resume" in job:
        RunDirectory(job["output_dir"]).refuse_foreign()
    made = check_steps(prepare, "prepare: ", Made())
    if inputs:
        check_inputs(job, made)
    built = build(job)
    if inputs:
        _refuse(problems_of_contents(job, made))
    return built


def _refuse(messages: Iterable[str], where: str = "") -> None:
    """Raise ConfigError with all problems in one line, where there are any."""
    if line := "; ".join(dict.fromkeys(messages)):
        raise ConfigError(f"{where}{line}")


def check_steps(steps: Iterable[tuple[str, Mapping[str, Any]]], kind: str, made: Made) -> Made:
    """Compose and check every step that is still to be run, before the first one runs; later ones may read `made`.

    Keys and paths of all steps come first; then, what takes an import, their settings and what their inputs hold.

    Raises:
        ConfigError: what is wrong with which step: all that is, in one line.
    """
    jobs = []
    for name, step in steps:
        if not ("unless" in step and Path(step["unless"]).exists()):
            try:
                job = keys_of_job(
                    step["job"] if "job" in step else resolved(_composed(step["script"], tuple(_args(step))))
                )
                check_outputs(job)
            except FineGrainedError as error:
                raise ConfigError(f"{kind}{name}: {error}") from None
            wants_reward = {"best_of", "reward"} <= job.keys() and "_target_" not in (job["reward"] or {"_target_": ""})
            if not wants_reward:  # else the reward is that of a run which an earlier step may have to make
                _refuse(problems(job), f"{kind}{name}: ")
                jobs.append((name, job))
            _refuse(missing_inputs(job, made), f"{kind}{name}: ")
            made.add(path for _, path in outputs(job))
        made.add([step["unless"]] if "unless" in step else [])
    for name, job in jobs:
        try:
            build(job)
        except FineGrainedError as error:
            raise ConfigError(f"{kind}{name}: {error}") from None
        _refuse(problems_of_contents(job, made), f"{kind}{name}: ")
    return made


def _args(step: Mapping[str, Any]) -> list[str]:
    return [str(argument) for argument in step.get("args", [])]


@cache
def _composed(script: str, args: tuple[str, ...]) -> DictConfig:
    """The configuration of a step; it is composed once, when it is checked, and taken again when it is run."""
    check_experiment(script, args)
    line = CommandLine(tuple(hydras_words(args)))
    try:
        return compose(script, overrides=list(line.overrides))
    except Exception as error:
        if not is_of_configuration(error):
            raise
        raise ConfigError(f"{script}: {explain_command_line(error, script, line)}") from None


def _processes_of(job: Any) -> Processes | OneProcess:
    """The processes that a job is run by; torch is imported where it may share its work, after mistakes were said."""
    config = getattr(job, "processes", None)
    if config is None and not getattr(job, "every_process", False) and os.environ.get("WORLD_SIZE", "1") == "1":
        return OneProcess()
    from finegrained_rlhf.runtime.processes import Processes

    return Processes(config)


def _run_job(job: Any, processes: Processes | OneProcess) -> None:
    if processes.is_main or getattr(job, "every_process", False):
        job.run()
    processes.barrier()


def run_pipeline(cfg: DictConfig) -> None:
    """Run every step for every seed, then `collect`. Each step prints the command line that it equals."""
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
    check_writable("output_dir", experiments[0]["output_dir"], directory=True)
    check_steps(expanded(experiments[0]["steps"]), "step ", Made([experiments[0]["output_dir"]]))
    from finegrained_rlhf.runtime.directory.claims import claimed
    from finegrained_rlhf.runtime.processes import Processes

    processes, started = Processes(), time.perf_counter()
    for seed, experiment in zip(seeds, experiments, strict=True):
        steps, directory = list(expanded(experiment["steps"])), {"output_dir": experiment["output_dir"]}
        with claimed(directory, processes):
            if processes.is_main:
                _claim(Path(experiment["output_dir"]), {"seed": seed, "settings": experiment["settings"]})
            processes.barrier()
            with claimed(directory, processes):  # the one before may have been moved aside
                for number, (name, step) in enumerate(steps, start=1):
                    minutes = (time.perf_counter() - started) / 60
                    label = f"[{minutes:.1f} min, seed {seed}, step {number} of {len(steps)}: {name}]"
                    run_step(step, label, processes)
    if collect is not None:
        _run_job(collector(resolved(cfg)), processes)


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


def _claim(directory: Path, now: dict[str, Any]) -> None:
    """Mark a directory with what its results are drawn from; results of another seed are moved aside, never mixed."""
    record = directory / "experiment.json"
    if record.is_file():
        before = read_json(record)
        if before["seed"] != now["seed"]:
            aside = next(
                p for n in itertools.count() if not (p := directory.with_name(f"{directory.name}.{n}")).exists()
            )
            os.replace(directory, aside)
            print(f"{directory} holds results of seed {before['seed']}: moved to {aside}", flush=True)
        else:
            changed = [k for k, v in now["settings"].items() if before["settings"].get(k, v) != v]
            if changed:
                print(f"warning: {directory} was begun with other settings: {', '.join(changed)}", flush=True)
    write_json(record, now)


def expanded(steps: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Steps with `each` repeated for every combination; `{name}` in their texts becomes the value.

    Raises:
        ConfigError: a step has an unknown key, not exactly one of `script` and `job`, or is like one that is not there.
    """
    for name in (name for name, step in steps.items() if step is not None):
        step = _unlike(name, steps)
        unknown = sorted(set(step) - _STEP_KEYS)
        if unknown or ("script" in step) == ("job" in step):
            what = f"unknown key {unknown[0]}" if unknown else "expected one of script and job"
            raise ConfigError(f"step {name}: {what}")
        each: Mapping[str, Any] = step.get("each") or {}
        for values in itertools.product(*each.values()):
            yield name, _filled({k: v for k, v in step.items() if k != "each"}, dict(zip(each, values, strict=True)))


def _unlike(name: str, steps: Mapping[str, Any], seen: tuple[str, ...] = ()) -> dict[str, Any]:
    """A step with what it takes from the step that it is like; of arguments with one key the last is kept."""
    step = dict(steps[name])
    if "args" in step:
        step["args"] = list(_arguments(step["args"]))
    model = step.pop("like", None)
    if model is None:
        return step
    if steps.get(model) is None or model in (*seen, name):
        raise ConfigError(f"step {name}: like {model!r}: expected another step of the experiment that is not left out")
    base = _unlike(model, steps, (*seen, name))
    args = {arg.partition("=")[0]: arg for arg in [*base.get("args", []), *step.get("args", [])]}
    return {**base, **step, **({"args": list(args.values())} if args else {})}


def _arguments(args: Iterable[Any]) -> Iterator[str]:
    """A step's arguments as texts; what is null in a mapping is left out, so that the command's own value holds."""
    for arg in args:
        if isinstance(arg, Mapping):
            yield from (f"{key}={value}" for key, value in arg.items() if value is not None)
        else:
            yield str(arg)


def _filled(value: Any, names: Mapping[str, Any]) -> Any:
    if isinstance(value, dict):
        return {key: _filled(item, names) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, names) for item in value]
    if isinstance(value, str):
        for name, text in names.items():
            value = value.replace(f"{{{name}}}", str(text))
    return value


def run_step(step: Mapping[str, Any], label: str, processes: Processes | OneProcess) -> None:
    """Run one step unless its result exists."""

    def say(text: str) -> None:
        if processes.is_main:
            print(f"\n{label} {text}", flush=True)

    if "unless" in step and processes.broadcast_object(Path(step["unless"]).exists()):
        say(f"{step['unless']} exists")
    elif "job" in step:
        say(step["job"]["_target_"].rpartition(".")[2])
        _run_job(build(step["job"]), processes)
    else:
        say(f"{typed(step['script'])} {shlex.join(_args(step))}")
        run_config(_composed(step["script"], tuple(_args(step))), _args(step))
