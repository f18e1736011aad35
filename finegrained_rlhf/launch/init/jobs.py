"""`finegrained init` makes a project of a file, and `finegrained try` runs it on ten records."""

from __future__ import annotations

import inspect
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from hydra import compose

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings, named_class
from finegrained_rlhf.core.files import atomic_directory
from finegrained_rlhf.core.markers import InputFile, ModelName, Seed
from finegrained_rlhf.launch.build import check_imports, resolved
from finegrained_rlhf.launch.checks.paths import Made
from finegrained_rlhf.launch.init.columns import Layout, layout_of, read_rows
from finegrained_rlhf.launch.init.files import (
    Project,
    commands,
    write_data,
    write_given_reward,
    write_policy,
    write_readme,
    write_reward_model,
)
from finegrained_rlhf.launch.init.records import Asked, Understood, divided, understand
from finegrained_rlhf.launch.init.rehearsal import Rehearsal, duration, rehearse
from finegrained_rlhf.launch.init.settings import Model, Plan
from finegrained_rlhf.launch.steps import Step, check_steps

Reward = Literal["marks", "judge", "function"]
_ASKED: Mapping[str, str] = {
    "name": "Name of the project, a directory that is made",
    "data": "File with your data (JSON, JSON lines, CSV, parquet)",
    "reward_from": "Where the reward comes from: marks, judge or function",
    "model": "Model to make a reward model of (directory or Hub name)",
    "policy_path": "Policy to train (directory or Hub name; empty for none)",
    "judge_name": "Name of the judge at its endpoint",
    "function": "The function, as MODULE.NAME",
}


@dataclass(frozen=True)
class Init(Settings):
    """Make a project of a file of data: configuration, feedback and prompts in our formats, and the commands to run.

    Nothing is overwritten, and nothing is made where something is wrong. In a terminal, what is missing is asked for.

    Attributes:
        name: of the project, a directory that is made.
        data: JSON, JSON lines, CSV, TSV or parquet file: prompts with answers and marks, or prompts alone.
        reward_from: (typed `reward=`) where it comes from: the `marks` of the file, a `judge` behind an endpoint, or a
            `function` of Python.
        model: that a reward model is made of.
        policy_path: (typed `policy=`) to train; None takes `model` where it generates text.
        judge_name: (typed `judge=`) name of the judge at its endpoint.
        function: `MODULE.NAME` of a function of two texts, prompt and response, or of a class that scores.
        fields: columns of the file by role, for those that are not known by their names: `{answer: reply}`.
        good: values of a label that mean that nothing is wrong, where it cannot be known.
        measure: time a step of each training here, and say how long they will take; a judge is not asked for it.
        seed: of the division into what is trained on and what is measured on.
    """

    name: str | None = None
    data: InputFile | None = None
    reward_from: Reward | None = None
    model: ModelName | None = None
    policy_path: ModelName | None = None
    judge_name: str | None = None
    function: str | None = None
    fields: Mapping[str, str] = field(default_factory=dict)
    good: Sequence[Any] = ()
    measure: bool = True
    seed: Seed = 0

    def run(self) -> None:
        """Look, write, check, measure.

        Raises:
            FineGrainedError: something is missing, wrong, or in the way; nothing is made.
            SystemExit: with status 1, where a step of what was made fails.
        """
        job = self._answered()
        assert job.name is not None and job.data is not None
        marked = job.reward_from == "marks"
        named = job._reward_named()
        if "${" in f"{job.name}{job.data}{job.model}{job.policy_path}" or not Path(job.name).name:
            raise ConfigError(f"name: expected a path without ${{, got {job.name!r}")
        if Path(job.name).exists():
            raise ConfigError(f"name: {job.name} exists, and nothing is overwritten")
        rows = read_rows(job.data)
        layout = layout_of(rows, marked, job.fields, job.good, job.data)
        found = understand(rows, layout, job.data)
        model = Model.read(job.model) if marked and job.model else None
        policy = Model.read(job.policy_path) if job.policy_path else model if model and model.generates else None
        if model is not None and model.seq2seq:
            raise ConfigError(f"model: {model.path}: expected an encoder or a decoder-only model; is it the policy?")
        if policy is not None and not policy.generates:
            raise ConfigError(f"policy: {policy.path} generates no text")
        train, dev = divided(found, job.seed)
        parts = {"train": train, "dev": dev}
        lines = [*_understood(rows, layout, found, parts)]
        project = Project(job.name, Path(job.name))
        with atomic_directory(job.name) as place:
            plans = _write(Project(job.name, place), found, parts, model, policy, (job.reward_from, named), lines)
        try:
            check(project)
        except BaseException:
            shutil.rmtree(project.place)
            raise
        print("\n".join(lines), f"\n{job.name}/ is made. To run, in this order:", *commands(project), sep="\n")
        if job.measure and job.reward_from != "judge":  # which would be asked, and paid
            _measured(project, plans)

    def _answered(self) -> Init:
        """With what a terminal is asked for; one line that names all that is missing where there is none."""
        asks, values, missing = sys.stdin.isatty(), {key: getattr(self, key) for key in _ASKED}, []
        of_reward = {"model": "marks", "judge_name": "judge", "function": "function"}
        for key, question in _ASKED.items():
            if values[key] is not None or of_reward.get(key, values["reward_from"]) != values["reward_from"]:
                continue
            if asks:
                values[key] = input(f"{question}: ").strip() or None
            if values[key] is None and (key, values["reward_from"]) != ("policy_path", "marks"):
                missing.append(f"{key.partition('_')[0]}=…")
        if missing:
            raise ConfigError(f"give {', '.join(missing)}  (--help explains the keys)")
        return replace(self, **values)

    def _reward_named(self) -> str:
        """What the reward is, where it is no reward model: a judge's name, or an import path."""
        if self.reward_from != "function":
            return self.judge_name or ""
        assert self.function is not None
        check_imports({"_target_": self.function}, "function")
        if not callable(named_class(self.function)):
            raise ConfigError(f"function: {self.function} is neither a function nor a class")
        return self.function


def _understood(
    rows: Sequence[Any], layout: Layout, found: Understood, parts: Mapping[str, set[Asked]]
) -> Iterator[str]:
    """What was understood of a file, and what was left out, in lines."""
    what = {"pairs": "pairs of answers", "spans": "marked spans", "sentences": "labels of sentences"}
    what |= {"thumbs": "a thumb an answer", "prompts": "prompts"}
    columns = ", ".join(f"{role} = {name}" for role, name in layout.columns.items())
    yield f"{len(rows)} rows with {what[layout.form]} ({columns})"
    if layout.good:
        yield f"nothing is wrong where the label is {', '.join(map(repr, sorted(layout.good)))}"
    marks = ", ".join(f"{name} {count}" for name, count in found.types.most_common())
    yield f"{len(found.prompts)} prompts, {len(found.feedback)} judged answers{f'; marks: {marks}' if marks else ''}"
    yield f"divided by prompt: {len(parts['train'])} to train on, {len(parts['dev'])} to measure on"
    for reason, count in found.left_out.items():
        yield f"left out: {count} rows {reason}"
    if layout.unread:
        yield f"not read: {', '.join(layout.unread)}"


def _write(
    project: Project,
    found: Understood,
    parts: Mapping[str, set[Asked]],
    model: Model | None,
    policy: Model | None,
    reward: tuple[str | None, str],
    lines: Sequence[str],
) -> dict[str, Plan]:
    """All files of a project; how each of its experiments is trained."""
    plans = {}
    write_data(project, found, parts, policy is not None and policy.chat)
    kind, named = reward
    if model is not None:
        examples = sum(one in parts["train"] for one, _ in found.feedback)
        plans["my_reward_model"] = write_reward_model(project, found, model, examples)
    else:
        is_class = kind == "function" and inspect.isclass(named_class(named))
        write_given_reward(project, "class" if is_class else str(kind), named)
    if policy is not None:
        plans["my_ppo"] = write_policy(project, found, policy, parts)
    write_readme(project, lines)
    return plans


def check(project: Project) -> None:
    """Compose the commands of a project and check them as they check themselves: keys, files, models, in their order.

    Raises:
        ConfigError: what is wrong with which, in one line.
    """
    conf = f"hydra.searchpath=[file://{(project.place / 'conf').resolve()}]"
    jobs = {"my_sft": "train_sft", "my_reward_model": "train_reward_model", "my_ppo": "train_ppo"}
    steps = []
    for experiment, script in jobs.items():
        if project.has(experiment):
            cfg = compose(script, overrides=[conf, f"experiment={experiment}"])
            steps.append(Step(experiment, {"script": script, "config": resolved(cfg)}))
    check_steps(steps, "", Made())


def _measured(project: Project, plans: Mapping[str, Plan]) -> None:
    """Time the steps of a rehearsal and say how long the trainings will take."""
    with tempfile.TemporaryDirectory() as scratch:
        rehearsal = rehearse(project, Path(scratch))
    for experiment, plan in plans.items():
        if (seconds := rehearsal.seconds(experiment, plan.batch)) is not None:
            total = duration(seconds * plan.steps)
            print(f"{experiment}: {plan.steps} steps of {seconds:.2f} s on this machine, {total} and the validations")
    for problem in rehearsal.problems:
        print(f"wrong: {problem}")
    if rehearsal.problems:
        sys.exit(1)


@dataclass(frozen=True)
class Try(Settings):
    """Run all of a project on ten records, in a temporary directory: a few steps of the reward model, two of PPO.

    Attributes:
        name: of the project, as `finegrained init` was given it.
    """

    name: InputFile

    def run(self) -> None:
        """Print what moved and what is wrong.

        Raises:
            FineGrainedError: there is no such project, or its configuration is wrong.
            SystemExit: with status 1, where something is wrong.
        """
        project = Project(self.name, Path(self.name))
        if not any(map(project.has, ("my_reward_model", "my_ppo"))):
            raise ConfigError(f"name: {self.name}: no project here (expected {project.conf}/experiment/my_ppo.yaml)")
        check(project)
        print("configuration, data and models: ready", flush=True)
        with tempfile.TemporaryDirectory() as scratch:
            rehearsal: Rehearsal = rehearse(project, Path(scratch), lambda line: print(line, flush=True))
        print("\n".join(f"wrong: {problem}" for problem in rehearsal.problems) or "nothing is wrong")
        if rehearsal.problems:
            sys.exit(1)
