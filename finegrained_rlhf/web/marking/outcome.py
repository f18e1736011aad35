"""What leaves a project: files in today's forms, and reward models that are trained on them at once."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from finegrained_rlhf.annotation.annotations import write_annotations
from finegrained_rlhf.annotation.project import Project
from finegrained_rlhf.core.checks import require
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.files import atomic_directory, write_json, write_text
from finegrained_rlhf.feedback.reading import read_feedback, write_feedback
from finegrained_rlhf.launch.children import as_yaml, run_logged
from finegrained_rlhf.web.marking import figures
from finegrained_rlhf.web.marking.work import Work

FEEDBACK = "feedback.json"
_OURS = ("manifest.json", "items.jsonl", "annotations.jsonl", FEEDBACK, "agreement.json", "decisions.json")
_FEW = 10
"""Records of which the part that is usually held out, a tenth, is less than one: all of them are trained on."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")


def kinds(project: Project) -> list[str]:
    """The reward models that a project's marks can train."""
    taxonomy = project.taxonomy
    made = list(taxonomy.categories)
    made += ["completeness"] if taxonomy.missing and taxonomy.correction else []
    return made + (["preference"] if taxonomy.preferences else [])


def numbers_of(form: Mapping[str, str]) -> dict[str, float]:
    """Epochs and learning rate of a form, where they are given. Raises ConfigError where one is no number."""
    fields = {"reward_model.epochs": form.get("epochs", ""), "reward_model.optimizer.lr": form.get("lr", "")}
    try:
        return {name: float(value) for name, value in fields.items() if value.strip()}
    except ValueError:
        raise ConfigError("epochs and the learning rate are numbers") from None


def write(work: Work, key: str) -> Path:
    """Write what is finished beside the tasks, in `NAME_marked`: the project as it is dealt out now, each annotator's
    export, annotations, one feedback record an item, agreement, and reviewers' decisions.

    Raises:
        DataError: nothing is finished yet, or something else lies there.
    """
    project = work.project(key)
    target = work.directory / f"{work.row(key)['path']}_marked"
    other = [path for path in target.rglob("*") if path.parent != target or not _is_ours(path.name)]
    require(not other, f"{other[:1]} is none of the files that marking writes: move it", str(target.name))
    made = figures.measured(work, key, project)
    records = figures.records(work, key, project, made)
    require(bool(records), "nobody has finished an item yet", "project")
    done, _ = figures.finished(work, key, project)
    with atomic_directory(target) as directory:
        project.write(directory)
        for number, name in enumerate(project.annotators, start=1):
            write_json(directory / f"export_{number}.json", work.export(key, name, drafts=False))
        write_annotations(directory / "annotations.jsonl", done)
        write_feedback(directory / FEEDBACK, records)
        write_json(directory / "agreement.json", made.figures)
        write_json(directory / "decisions.json", list(figures.decided(work, key).values()))
    return target


def _is_ours(name: str) -> bool:
    return name in _OURS or re.fullmatch(r"export_\d+\.json", name) is not None


@dataclass
class Training:
    """A reward model that was started here.

    Attributes:
        project: its id.
        kind: of reward model.
        run: its directory below the served one.
        status: None while it trains, then its exit status.
        said: last line of its log, where it failed.
    """

    project: str
    kind: str
    run: str
    status: int | None = None
    said: str = ""


@dataclass
class Trainings:
    """The reward models that this server started; each goes on where the server ends.

    Attributes:
        directory: that is served, resolved.
        made: in the order in which they were started.
    """

    directory: Path
    made: list[Training] = field(default_factory=list)

    def models(self) -> list[str]:
        """Directories below the served one with a model to start from, by their paths below it; none inside a run."""
        found = []
        for folder, children, files in os.walk(self.directory):
            children[:] = sorted(name for name in children if not name.startswith("."))
            if "config.yaml" in files or "config.json" in files:
                children.clear()
                found += [str(Path(folder).relative_to(self.directory))] if "config.json" in files else []
        return found

    def start(self, work: Work, key: str, kind: str, model: str, run: str, numbers: dict[str, float]) -> Training:
        """Write the files, and train on them in a process of its own.

        Args:
            work: the projects.
            key: of the project.
            kind: one of `kinds`.
            model: one of `models`.
            run: directory of the run below the served one, which is new.
            numbers: `reward_model.epochs`, `reward_model.optimizer.lr`, where they are given.

        Raises:
            DataError: an argument is none of these, or nothing is finished yet.
        """
        project = work.project(key)
        require(kind in kinds(project), f"expected one of {', '.join(kinds(project))}, got {kind!r}", "kind")
        require(model in self.models(), f"expected a directory with a model, got {model!r}", "model")
        require(bool(_NAME.fullmatch(run)), "expected names of letters, digits, _, . and -, divided by /", "run")
        target = self.directory / run
        inside = target.resolve().is_relative_to(self.directory)
        require(inside and not target.exists(), f"{run} is there already, or lies elsewhere", "run")
        marked = write(work, key)
        conf = target.with_name(f".{target.name}_conf")
        named = {"_target_": "finegrained_rlhf.feedback.Taxonomy", **asdict(project.taxonomy)}
        write_text(conf / "taxonomy" / "marked.yaml", as_yaml(named))
        chosen = [f"reward_model={kind}"] if kind in ("completeness", "preference") else ["reward_model=segment"]
        chosen += [f"reward_model.kind={kind}"] if chosen == ["reward_model=segment"] else []
        paths = {"data": marked / FEEDBACK, "model": self.directory / model, "output_dir": target}
        command = [sys.executable, "-m", "finegrained_rlhf", "train-reward-model", "--config-dir", str(conf)]
        command += ["taxonomy=marked", *chosen, "processes.precision=auto"]
        command += [f"{name}={json.dumps(str(path), ensure_ascii=False)}" for name, path in paths.items()]
        command += [f"{name}={value:g}" for name, value in numbers.items()]
        if len(read_feedback(marked / FEEDBACK, project.taxonomy)) < _FEW:
            command += ["held_out=0"]
        made = Training(key, kind, run)
        self.made.append(made)
        threading.Thread(target=self._follow, args=(made, command, conf / "log.txt"), daemon=True).start()
        return made

    @staticmethod
    def _follow(made: Training, command: list[str], log: Path) -> None:
        status: Any = run_logged(command, log)
        lines = log.read_text("utf-8", "replace").strip().splitlines()
        made.said = "" if status == 0 else next((line for line in lines if line.startswith("error:")), lines[-1])
        made.status = status


def exists(work: Work, key: str) -> str | None:
    """Where the files of a project were written last, below the served directory; None where they were not."""
    path = f"{work.row(key)['path']}_marked"
    return path if (work.directory / path / FEEDBACK).is_file() else None
