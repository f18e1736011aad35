"""From a composed PPO configuration to the doctor's case: parts that are built one by one, and a sample of the run."""

from __future__ import annotations

import copy
import logging
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from finegrained_rlhf.core.errors import ConfigError, ConsistencyError, FineGrainedError
from finegrained_rlhf.core.files import read_jsonl, write_json
from finegrained_rlhf.launch.build import build
from finegrained_rlhf.launch.checks.schema import check_keys
from finegrained_rlhf.launch.checks.schema import problems as problems_of_keys
from finegrained_rlhf.launch.children import complaint, ended_by_signals, last_output, run_logged, write_config
from finegrained_rlhf.launch.preflight.dry_run import prepared
from finegrained_rlhf.preflight.doctor.case import Case, Finding, Problem
from finegrained_rlhf.preflight.doctor.config import DoctorConfig
from finegrained_rlhf.preflight.doctor.run import as_json, examine, failures, line, verdict
from finegrained_rlhf.runtime.console import status_line
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.processes import Processes

_MISSING = "???"
_RAISED = re.compile(r"(\[rank\d+\]: )?[\w.]+(Error|Exception): ")
_COMPONENTS = "reward.components."
_VALIDATED = 4
"""Validation prompts that the two processes answer before and after their step."""


def examine_config(cfg: DictConfig) -> int:
    """Make all checks on a run's configuration and print what they find. Returns the exit code: 0 ready, 1 not.

    Raises:
        FineGrainedError: the doctor is asked for something that it cannot do.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("the doctor starts two processes itself: run it without accelerate launch")
    cfg = copy.deepcopy(cfg)
    with open_dict(cfg):
        settings = OmegaConf.to_container(cfg.pop("doctor"), resolve=True)
        check_keys(settings, "doctor")  # type: ignore[arg-type]
        options: DoctorConfig = build(settings)  # type: ignore[arg-type]
    output = None if OmegaConf.is_missing(cfg, "output_dir") else Path(cfg.output_dir)
    if options.output and output and Path(options.output).resolve().is_relative_to(output.resolve()):
        raise ConfigError(f"doctor.output: {options.output} lies in output_dir, which the doctor leaves as it is")
    findings = []
    with _errors_only(), status_line() as show:
        for finding in _findings(cfg, options, lambda name: show(f"checking {name} …")):
            findings.append(finding)
            show("")
            print(line(finding), flush=True)
    print(verdict(findings))
    if options.output is not None:
        write_json(options.output, as_json(findings))
    return 1 if failures(findings) else 0


@contextmanager
def _errors_only() -> Iterator[None]:
    """Our own messages below errors are not logged: what they would say is in the report."""
    ours = logging.getLogger("finegrained_rlhf")
    before = ours.level
    ours.setLevel(logging.ERROR)
    try:
        yield
    finally:
        ours.setLevel(before)


def _findings(cfg: DictConfig, options: DoctorConfig, announce: Callable[[str], None]) -> Iterator[Finding]:
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        try:
            with redirect_stdout(sys.stderr):  # what the steps of `prepare` print
                config, hint = stack.enter_context(prepared(cfg, Processes(), _plain))
        except FineGrainedError as error:
            assignments = " ".join(f"{key}=…" for key in missing_keys(cfg))
            yield Finding(
                "fail", str(error), assignments or "correct that key; --help and conf/ explain it", "configuration"
            )
            return
        case = case_of(config, missing_keys(cfg), options, scratch, hint)
        yield from examine(case, announce=announce)


def _plain(cfg: DictConfig) -> dict[str, Any]:
    """Plain containers, interpolations resolved; a key that has no value keeps its `???`."""
    try:
        container = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=False)
    except OmegaConfBaseException as error:
        raise ConfigError(str(error).splitlines()[0]) from None
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}


def missing_keys(cfg: DictConfig) -> list[str]:
    """The dotted keys that say `???`; interpolations are left alone, which may point at one of them."""

    def within(value: Any, key: str) -> Iterator[str]:
        if isinstance(value, Mapping):
            for name, item in value.items():
                yield from within(item, f"{key}.{name}" if key else str(name))
        elif value == _MISSING:
            yield key

    return sorted(within(OmegaConf.to_container(cfg, resolve=False), ""))


def case_of(
    config: Mapping[str, Any], missing: list[str], options: DoctorConfig, scratch: Path, hint: str = ""
) -> Case:
    """The case of a run.

    Args:
        config: the job's keys.
        missing: dotted keys that have no value.
        options: of the doctor.
        scratch: an empty directory, for all that is written.
        hint: for the mend of what is missing.
    """
    problems = [Problem(f"no value for {', '.join(missing)}", " ".join(f"{k}=…" for k in missing))] if missing else []
    wrong = list(problems_of_keys(config))
    problems += [Problem(text, "correct that key; --help explains it") for text in wrong]
    built, refused = _parts(config, missing)
    problems += [p for p in refused if not any(text.startswith(p.measured.partition(":")[0]) for text in wrong)]
    job = sample = exact = launch = None
    if not problems:
        small = first_step(config, options.prompts, scratch / "run")
        in_fp32 = {
            **small,
            "processes": {**small["processes"], "precision": "fp32"},
            "policy": {**small["policy"], "frozen_dtype": "float32"},  # bfloat16 needs precision=bf16
        }
        try:
            job, sample = build(config), build(small)
            exact = sample if sample.processes.precision == "fp32" else build(in_fp32)
        except FineGrainedError as error:
            problems.append(Problem(str(error), "correct that key; --help and conf/ explain it"))
        if options.two_processes:
            launch = partial(_launch, in_fp32, scratch, options.timeout)
    scorers = {name.removeprefix(_COMPONENTS): part for name, part in built.items() if name.startswith(_COMPONENTS)}
    return Case(
        keys={key: value for key, value in config.items() if value != _MISSING},
        parts=built,
        scorers=scorers if sample is None else sample.reward.components,
        problems=problems,
        processes=Processes(built.get("processes")),
        job=job,
        sample=sample,
        exact=exact,
        launch=launch,
        hint=hint,
    )


def _parts(config: Mapping[str, Any], missing: list[str]) -> tuple[dict[str, Any], list[Problem]]:
    """What can be built by itself, by key, and why the rest cannot; reward components too are built one by one."""
    components = (config.get("reward") or {}).get("components") or {}
    parts = {**{f"{_COMPONENTS}{name}": part for name, part in components.items()}, **config}
    built: dict[str, Any] = {}
    problems = []
    for key, part in parts.items():
        given = not any(f"{name}.".startswith(f"{key}.") for name in missing)
        complete = key != "reward" or all(f"{_COMPONENTS}{name}" in built for name in components)
        if isinstance(part, Mapping) and "_target_" in part and given and complete:
            try:
                built[key] = build(part)
            except FineGrainedError as error:
                named = re.search(rf"\b{re.escape(key)}[\w.]*", str(error))
                problems.append(
                    Problem(f"{key}: {error}", f"{named[0] if named else key}: --help and conf/ explain it")
                )
    return built, problems


def first_step(config: Mapping[str, Any], prompts: int | None, output: Path) -> dict[str, Any]:
    """The configuration of a run of one step on a few prompts, at the full learning rate, that no tracker hears of."""
    count = int(config["rollout"]["prompts_per_step"])
    few = min(count, prompts or count)
    return {
        **config,
        "output_dir": str(output),
        "total_steps": 1,
        "resume": "never",
        "dry_run": False,
        "validation_prompts": min(config["validation_prompts"] or _VALIDATED, _VALIDATED),
        "rollout": {**config["rollout"], "prompts_per_step": few},
        "ppo": {**config["ppo"], "mini_batches": min(int(config["ppo"].get("mini_batches", 1)), few)},
        "optimizer": {**config["optimizer"], "warmup_steps": 0, "warmup_ratio": 0.0},
        "tracking": {**config["tracking"], "kind": "jsonl"},
    }


def _launch(config: Mapping[str, Any], scratch: Path, timeout: float) -> dict[str, float]:
    """Run finegrained train-ppo with two processes and return the metrics of its first step.

    Raises:
        ConsistencyError: it failed, or took too long.
    """
    output = scratch / "two"
    job = {**config, "output_dir": str(output), "prepare": None, "settings": {}}
    write_config(scratch / "step.yaml", "train_ppo", job)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    command += ["--num_machines", "1", "--mixed_precision", "no", "--main_process_port", str(port)]
    command += [
        "--module",
        "finegrained_rlhf",
        "train_ppo",
        "--config-dir",
        str(scratch),
        "--config-name",
        "step",
    ]
    on_cpu = {"ACCELERATE_USE_CPU": "true"} if Processes().device.type != "cuda" else {}
    log = scratch / "two.log"
    try:
        with ended_by_signals():
            status = run_logged(command, log, on_cpu, timeout=timeout)
    except subprocess.TimeoutExpired:
        raise ConsistencyError(f"two processes did not finish their step within {timeout:g} s") from None
    if status != 0:
        log_lines = last_output(log)
        raised = [text for text in log_lines if _RAISED.match(text)]  # the launcher has more to say after it
        raise ConsistencyError(f"two processes failed: {complaint([*log_lines, *raised[:1]])}")
    return read_jsonl(RunDirectory(output).metrics)[0]
