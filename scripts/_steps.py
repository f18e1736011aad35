"""From composed configurations to finished jobs: one job, what must be prepared for it, or an experiment of many steps.

Steps are named, so that one experiment can change another's; null leaves one out. A step is a script with arguments,
composed and run in this process, or a job of its own:
`{script: NAME, args: [KEY=VALUE, …], unless: FILE, each: {NAME: [VALUES]}}` or `{job: {_target_: …}, unless: FILE}`.
`{like: STEP, …}` is that step of the same experiment with some keys replaced and some arguments changed or added.
"""

from __future__ import annotations

import copy
import itertools
import os
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from _rewards import with_reward_of_run
from hydra import compose
from hydra.errors import HydraException, InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from finegrained_rlhf.core.errors import ConfigError, FineGrainedError
from finegrained_rlhf.core.files import read_json, write_json
from finegrained_rlhf.runtime.claims import claimed
from finegrained_rlhf.runtime.job import RESERVED_KEYS
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.runtime.training_run import configured

_STEP_KEYS = {"script", "args", "job", "unless", "each"}


def run_config(cfg: DictConfig) -> None:
    """Prepare, build and run the job that a composed configuration describes.

    A job that shares its work among processes says so (`every_process`); any other runs in the main process alone.

    Raises:
        FineGrainedError: a user's error.
    """
    config = with_reward_of_run(resolved(cfg))
    processes = Processes()
    with claimed(config, processes):
        for name, step in expanded(config.get("prepare") or {}):
            run_step(step, f"[prepare: {name}]", processes)
        job = build({key: value for key, value in config.items() if key not in RESERVED_KEYS})
        with configured(config):
            _run_job(job, processes)


def _run_job(job: Any, processes: Processes) -> None:
    if processes.is_main or getattr(job, "every_process", False):
        job.run()
    processes.barrier()


def run_pipeline(cfg: DictConfig) -> None:
    """Run every step for every seed, then `collect`. Each step prints the command line that it equals."""
    if OmegaConf.is_missing(cfg, "steps"):
        raise ConfigError("name an experiment with steps: experiment=NAME  (--help lists them)")
    processes, started = Processes(), time.perf_counter()
    seeds = [cfg.seed] if cfg.seeds is None else list(cfg.seeds)
    for seed in seeds:
        one = copy.deepcopy(cfg)
        one.seed, one.seeds, one.collect = seed, None, None
        if cfg.seeds is not None:
            one.output_dir = f"{cfg.output_dir}/seed_{seed}"
        whole = resolved(one)
        directory = {"output_dir": whole["output_dir"]}
        with claimed(directory, processes):
            if processes.is_main:
                _claim(Path(whole["output_dir"]), {"seed": seed, "settings": whole["settings"]})
            processes.barrier()
            steps = list(expanded(whole["steps"]))
            with claimed(directory, processes):  # the one before may have been moved aside
                for number, (name, step) in enumerate(steps, start=1):
                    minutes = (time.perf_counter() - started) / 60
                    run_step(
                        step, f"[{minutes:.1f} min, seed {seed}, step {number} of {len(steps)}: {name}]", processes
                    )
    if cfg.collect is not None:
        _run_job(build(resolved(cfg)["collect"]), processes)


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
    model = step.pop("like", None)
    if model is None:
        return step
    if steps.get(model) is None or model in (*seen, name):
        raise ConfigError(f"step {name}: like {model!r}: expected another step of the experiment that is not left out")
    base = _unlike(model, steps, (*seen, name))
    args = {str(arg).partition("=")[0]: arg for arg in [*base.get("args", []), *step.get("args", [])]}
    return {**base, **step, **({"args": list(args.values())} if args else {})}


def _filled(value: Any, names: Mapping[str, Any]) -> Any:
    if isinstance(value, dict):
        return {key: _filled(item, names) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, names) for item in value]
    if isinstance(value, str):
        for name, text in names.items():
            value = value.replace(f"{{{name}}}", str(text))
    return value


def run_step(step: Mapping[str, Any], label: str, processes: Processes) -> None:
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
        args = [str(arg) for arg in step.get("args", [])]
        say(f"scripts/{step['script']}.py {' '.join(args)}")
        try:
            cfg = compose(step["script"], overrides=args)
        except HydraException as error:
            raise ConfigError(f"step {step['script']}: {str(error).splitlines()[0]}") from None
        run_config(cfg)


def resolved(cfg: DictConfig) -> dict[str, Any]:
    """The configuration as plain containers, interpolations resolved.

    Raises:
        ConfigError: a key must be given and is not, or an interpolation points nowhere.
    """
    try:
        missing = sorted(OmegaConf.missing_keys(cfg))
        if missing:
            keys = ", ".join(f"{key}=…" for key in missing)
            raise ConfigError(f"give a value for {keys}  (--help explains the keys)")
        container = OmegaConf.to_container(cfg, resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError(str(error).splitlines()[0]) from None
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}


def build(config: Mapping[str, Any]) -> Any:
    """The object that a mapping with `_target_` describes.

    Raises:
        FineGrainedError: what its constructor refuses; an unknown or missing key, or an unknown `_target_`.
    """
    try:
        return instantiate(config, _convert_="all")
    except InstantiationException as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, FineGrainedError):
            cause = cause.__cause__
        if cause is not None:
            raise cause from None
        raise ConfigError(_explain(error)) from None


def _explain(error: InstantiationException) -> str:
    """One line for what went wrong while an object was built."""
    lines = str(error).splitlines()
    where = next((line.split("full_key:")[1].strip() for line in lines if "full_key:" in line), "")
    reason = str(error.__cause__ or lines[0]).splitlines()[0]
    match = re.search(r"(unexpected keyword argument|missing \d+ required .*argument\w*:?) (.*)", reason)
    if match:
        reason = f"{'unknown key' if 'unexpected' in match.group(1) else 'missing key'} {match.group(2)}"
    return f"{where}: {reason}" if where else reason
