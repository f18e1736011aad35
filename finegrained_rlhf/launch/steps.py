"""Steps: what is declared, checked and run once, in this process; and a job with the steps that prepare it.

Steps are named, so that one experiment can change another's; null leaves one out. A step is a command with arguments,
or a job of its own: `{script: NAME, args: [KEY=VALUE, …], each: {NAME: [VALUES]}}` or `{job: {_target_: …}}`.
`unless: FILE` leaves a step out where a file exists that it would give: made before, or brought along. An argument that
is a mapping gives one KEY=VALUE for each of its keys whose value is not null. `{like: STEP, …}` is that step of the
same experiment with some keys replaced and some arguments changed or added. `gpus: N` starts a step's command in N
processes of its own, as `accelerate launch` would. A sweep's steps have `config`, the resolved configuration of their
command, in place of arguments.
"""

from __future__ import annotations

import itertools
import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hydra import compose
from omegaconf import DictConfig

from finegrained_rlhf.core.errors import ConfigError, FineGrainedError
from finegrained_rlhf.launch.build import build, check_imports, resolved
from finegrained_rlhf.launch.checks.contents import problems_of_contents
from finegrained_rlhf.launch.checks.experiments import check_experiment
from finegrained_rlhf.launch.checks.foreign import trusted_classes
from finegrained_rlhf.launch.checks.paths import (
    Made,
    check_inputs,
    check_outputs,
    missing_inputs,
    outputs,
)
from finegrained_rlhf.launch.checks.schema import check_keys, keys_of_job, problems
from finegrained_rlhf.launch.children import run_shown
from finegrained_rlhf.launch.command_line import CommandLine, hydras_words
from finegrained_rlhf.launch.configurations import typed
from finegrained_rlhf.launch.mistakes import explain_command_line, is_of_configuration
from finegrained_rlhf.launch.rewards import with_reward_of_run
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.launcher import follow
from finegrained_rlhf.runtime.process_config import OneProcess

if TYPE_CHECKING:
    from finegrained_rlhf.runtime.processes import Processes

_STEP_KEYS = {"script", "args", "job", "unless", "each", "gpus"}


class Step(NamedTuple):
    """A step with what repeats it, and what it is like, filled in.

    Attributes:
        name: of its declaration; repetitions share it.
        declared: `script` with `args` or `config`, or `job`; where it is given, `unless`, `gpus`, and `known_by`: what
            is compared in place of all this.
    """

    name: str
    declared: Mapping[str, Any]

    @property
    def args(self) -> tuple[str, ...]:
        """The arguments of its command."""
        return tuple(map(str, self.declared.get("args", ())))

    @property
    def job(self) -> dict[str, Any]:
        """The keys of its job, resolved; a command is composed, once.

        Raises:
            FineGrainedError: its arguments are no configuration.
        """
        own = self.declared.get("job", self.declared.get("config"))
        return keys_of_job(resolved(_composed(self.declared["script"], self.args)) if own is None else own)

    @property
    def gpus(self) -> int:
        """In how many processes of its own it is started; 1: it runs in this one, or in all that run the experiment."""
        return self.declared.get("gpus") or 1

    @property
    def is_given(self) -> bool:
        """Whether what it would make was brought along."""
        return "unless" in self.declared and Path(self.declared["unless"]).exists()

    @property
    def is_anew(self) -> bool:
        """Whether it is to be run again though it is finished (`resume=never`), or from elsewhere."""
        given = [str(self.declared.get("config", {}).get("resume", "auto"))]
        given += [arg.partition("=")[2] for arg in self.args if arg.startswith("resume=")]
        return given[-1] != "auto"

    def __str__(self) -> str:
        """What one would type, or the name of the class."""
        if "job" in self.declared:
            return str(self.declared["job"]["_target_"]).rpartition(".")[2]
        return shlex.join([*typed(self.declared["script"]).split(), *self.args])


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
    processes = processes_of(job)
    from finegrained_rlhf.runtime.directory.claims import claimed
    from finegrained_rlhf.runtime.training_run import configured

    own = {"overwrite"} & keys_of_job(config).keys()  # a job that has it decides itself what it replaces
    with claimed({key: value for key, value in config.items() if key not in own}, processes):
        for step in prepare:
            run_step(step, f"[prepare: {step.name}]", processes)
        with configured(config):
            run_job(job, processes)


def checked(config: Mapping[str, Any], prepare: Sequence[Step] = (), *, inputs: bool = True) -> Any:
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


def check_steps(steps: Iterable[Step], kind: str, made: Made) -> Made:
    """Compose and check steps before the first of them runs; later ones may read what earlier ones make.

    Keys and paths of all steps come first; then, what takes an import, their settings and what their inputs hold.

    Args:
        steps: that are still to be run; one whose result was brought along is not checked.
        kind: begins each message.
        made: what is made before them; what they make is added.

    Raises:
        ConfigError: what is wrong with which step: all that is, in one line.
    """
    jobs = []
    for step in steps:
        if step.is_given:
            continue
        try:
            job = step.job
            check_imports(job)
            check_outputs(job)
        except FineGrainedError as error:
            raise ConfigError(f"{kind}{step.name}: {error}") from None
        wants_reward = {"best_of", "reward"} <= job.keys() and "_target_" not in (job["reward"] or {"_target_": ""})
        if not wants_reward:  # else the reward is that of a run which an earlier step may have to make
            _refuse(problems(job), f"{kind}{step.name}: ")
            jobs.append((step.name, job))
        _refuse(missing_inputs(job, made), f"{kind}{step.name}: ")
        made.add(path for _, path in outputs(job))
        made.add(path for key, path in step.declared.items() if key == "unless")
    for name, job in jobs:
        try:
            build(job)
        except FineGrainedError as error:
            raise ConfigError(f"{kind}{name}: {error}") from None
        _refuse(problems_of_contents(job, made), f"{kind}{name}: ")
    return made


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


def processes_of(job: Any = None) -> Processes | OneProcess:
    """The processes that a job, or an experiment, is run by.

    torch is imported where it may share its work, after mistakes were said.
    """
    config = getattr(job, "processes", None)
    if config is None and not getattr(job, "every_process", False) and os.environ.get("WORLD_SIZE", "1") == "1":
        return OneProcess()
    from finegrained_rlhf.runtime.processes import Processes

    return Processes(config)


def run_job(job: Any, processes: Processes | OneProcess) -> None:
    """Run a job in the processes that share its work, and wait for all."""
    if processes.is_main or getattr(job, "every_process", False):
        job.run()
    processes.barrier()


def expanded(steps: Mapping[str, Any]) -> Iterator[Step]:
    """Steps with `each` repeated for every combination; `{name}` in their texts becomes the value.

    Raises:
        ConfigError: there are no steps, or a step has an unknown key, not exactly one of `script` and `job`, or is like
            one that is not there.
    """
    if not isinstance(steps, Mapping):
        raise ConfigError("steps: expected steps by name; steps.NAME=null leaves one out")
    for name in (name for name, step in steps.items() if step is not None):
        step = _unlike(name, steps)
        unknown = sorted(set(step) - _STEP_KEYS)
        if unknown or ("script" in step) == ("job" in step):
            what = f"unknown key {unknown[0]}" if unknown else "expected one of script and job"
            raise ConfigError(f"step {name}: {what}")
        gpus = step.get("gpus")
        if gpus is not None and ("job" in step or not isinstance(gpus, int) or gpus < 1):
            raise ConfigError(f"step {name}: gpus: expected a whole number from 1 on, of a step with a script")
        if (gpus or 1) > 1 and (here := int(os.environ.get("WORLD_SIZE", "1"))) > 1:
            raise ConfigError(
                f"step {name}: gpus: {gpus} starts processes, but the experiment runs in {here}: start it in one"
            )
        each: Mapping[str, Any] = step.get("each") or {}
        for values in itertools.product(*each.values()):
            filled = dict(zip(each, values, strict=True))
            yield Step(name, _filled({key: value for key, value in step.items() if key != "each"}, filled))


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


def run_step(step: Step, label: str, processes: Processes | OneProcess) -> None:
    """Run one step, unless its result was brought along."""
    given = processes.broadcast_object(step.is_given)
    if processes.is_main:
        print(f"\n{label} {step.declared['unless'] + ' exists' if given else step}", flush=True)
    if given:
        return
    if "job" in step.declared:
        run_job(build(step.declared["job"]), processes)
    elif step.gpus > 1:
        _launch(step)
    else:
        run_config(_composed(step.declared["script"], step.args), step.args)


def _launch(step: Step) -> None:
    launcher = ["--multi_gpu", "--num_processes", str(step.gpus), "--num_machines", "1", "--main_process_port", "0"]
    alike = ["--mixed_precision", "no", "--dynamo_backend", "no"]  # processes.precision and processes.compiled hold
    program = [sys.executable, "-m", "accelerate.commands.launch", *launcher, *alike, "-m", "finegrained_rlhf"]
    if status := run_shown([*program, step.declared["script"], *step.args]):
        raise FineGrainedError(f"its {step.gpus} processes ended with status {status}; what they said stands above")
