"""What a run left on disk, read for a report, and a line for everything that is missing."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from finegrained_rlhf.core.checks import is_number
from finegrained_rlhf.core.errors import DataError, FineGrainedError
from finegrained_rlhf.core.files import read_json, read_jsonl
from finegrained_rlhf.metrics.stress import read_stress
from finegrained_rlhf.report.runs.state import RunState, read_state
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory, below_start
from finegrained_rlhf.runtime.directory.samples import OracleMark, SampleRecord, read_marks, read_samples, sample_files

Row = Mapping[str, Any]
SAMPLED_STEPS = 6
"""Files of sampled responses that are read; a long run has hundreds."""
ANSWERED_STEPS = 8
"""Files of answers to validation prompts that are read, spread over the run; that of the exported policy on top."""


@dataclass(frozen=True)
class RunRecord:
    """One training run.

    Attributes:
        path: its directory.
        config: resolved configuration; empty where it is missing.
        steps: lines of `metrics.jsonl`, by step.
        validations: lines of `eval.jsonl`, by step.
        exported: step of the exported policy; None where nothing was exported.
        samples: sampled training responses of a few steps spread over the run, by step.
        answers: kept greedy answers to validation prompts by step: of the first, the exported and the last validation,
            and of some between.
        references: human answers to validation prompts, by the prompt's text; empty where the data is not there.
        state: where the run stands, and why it ended early if it did.
        trust: what each reward model's run says of itself, by component.
        stress: the stress test beside each reward model, by component (`read_stress`).
        drift: agreement of reward models with an oracle over training, by component.
        injections: how often its judge changes its mind where an answer tells it to; None where nobody tried.
        evaluation: what `finegrained evaluate` measured of the run.
        commit: version of the code that made it; None where it was not kept.
        missing: what a reader might look for and why it is not there, a line each.
    """

    path: Path
    config: Row
    steps: Sequence[Row]
    validations: Sequence[Row]
    exported: int | None
    samples: Mapping[int, Sequence[SampleRecord]]
    answers: Mapping[int, Sequence[SampleRecord]]
    references: Mapping[str, Sequence[str]]
    state: RunState
    trust: Mapping[str, Row]
    stress: Mapping[str, Row]
    drift: Row | None
    injections: Row | None
    evaluation: Row | None
    commit: str | None
    missing: Sequence[str]

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.path.resolve().name

    @property
    def components(self) -> list[str]:
        """Names of the reward components, in the order of the configuration."""
        named = list(_mapping(self.config, "reward", "components"))
        for row in (*self.validations[:1], *self.steps[:1]):
            for key in row:
                parts = key.split("/")
                if parts[0] == "reward" and len(parts) > 2 and "/".join(parts[1:-1]) not in named:
                    named.append("/".join(parts[1:-1]))
        return named

    @property
    def best(self) -> Row | None:
        """The validation of the exported policy; where none was exported, the best one as a run would choose it."""
        return _best(self.validations, self.exported)

    @property
    def is_initial(self) -> bool:
        """True where the exported policy (or, while none is, the best one) is the one that the run started with."""
        return self.best is not None and self.best["step"] == 0

    @property
    def found_nothing_better(self) -> str:
        """What no later validation did where the initial policy was exported, in words."""
        fewer = any("constraints_missed" in row for row in self.validations[:1])
        return f"no later validation {'missed fewer constraints, or as few and ' if fewer else ''}scored higher"

    @property
    def shown_answers(self) -> dict[int, Sequence[SampleRecord]]:
        """The kept answers of the first, the exported and the last validation, by step."""
        steps = [row["step"] for row in (*self.validations[:1], *self.validations[-1:])]
        steps += [self.best["step"]] if self.best else []
        chosen = {step: rows for step, rows in self.answers.items() if step in steps}
        return chosen or {
            step: self.answers[step] for step in sorted({*list(self.answers)[:1], *list(self.answers)[-1:]})
        }

    def setting(self, *keys: str) -> Any:
        """A value of the configuration; None where it is absent."""
        value: Any = self.config
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        return value


def read_run(
    path: str | Path,
    *,
    read_rows: Callable[[Path, list[str]], list[dict[str, Any]]] | None = None,
    most: int | None = None,
    within: Path | None = None,
    tolerant: bool = False,
) -> RunRecord:
    """Read a run, finished or still under way.

    Args:
        path: its directory.
        read_rows: reads a file of metrics by step and adds lines to what is missing; None reads all of it.
        most: files of samples of each kind that are read, spread over the run; None reads some more.
        within: nothing outside this directory is read, whatever the configuration names; None has no such limit.
        tolerant: a damaged file is a line of what is missing, and the rest is shown.

    Raises:
        DataError: `path` is no run, or, unless `tolerant`, one of its files is damaged.
    """
    run = RunDirectory(path)
    if not run.path.is_dir():
        raise DataError("no such directory; expected the directory of a training run", file=run.path)
    if not run.metrics.is_file() and not run.eval.is_file():
        raise DataError("holds no metrics.jsonl and no eval.jsonl; expected the directory of a training run", file=path)
    parts = _Parts(tolerant)
    part, missing = parts.read, parts.missing
    config = part(run.read_config, {}) if run.config_path.is_file() else {}
    if not config:
        missing.append("config.yaml is missing: weights, seed and reward models are unknown.")
    rows = read_rows or _read_rows
    steps, validations = (part(partial(rows, file, missing), []) for file in (run.metrics, run.eval))
    if not validations:
        missing.append("There is no validation: the run has no validation data, or has not come to it yet.")
    exported = (part(partial(_read_optional, run.final("policy") / "export.json"), None) or {}).get("step")
    best = int((_best(validations, exported) or {"step": -1})["step"])
    samples, answers = _read_texts(run, best, most, parts)
    _note_damage(run, missing)
    drift = part(partial(_read_optional, run.drift), None)
    if drift is None:
        missing.append("There is no drift.json: agreement of the reward models with an oracle was not measured.")
    trust, stress = part(lambda: _read_trust(run, config, missing, within), ({}, {}))
    results, point, injections = (
        part(partial(_read_optional, file), None) for file in (run.results, run.path / "point.json", run.injections)
    )
    evaluation = {key: value for key, value in (results or {}).items() if key != "training"} or None
    return RunRecord(
        path=run.path,
        config=config,
        steps=steps,
        validations=validations,
        exported=exported,
        samples=samples,
        answers=answers,
        references=_read_references(run, config, missing, within),
        state=read_state(run.path),
        trust=trust,
        stress=stress,
        drift=drift,
        injections=injections,
        evaluation=evaluation,
        commit=next(
            (str(known["commit"]) for known in (point, evaluation, config) if known and "commit" in known), None
        ),
        missing=missing,
    )


@dataclass(frozen=True)
class _Parts:
    """Reads the parts of a run, and keeps a line for everything that is missing.

    Attributes:
        tolerant: a damaged part is such a line and no error.
        missing: the lines.
    """

    tolerant: bool
    missing: list[str] = field(default_factory=list)

    def read(self, read: Callable[[], Any], default: Any) -> Any:
        """What `read` reads, or the default where that is damaged.

        Raises:
            FineGrainedError: it is damaged, and this is not `tolerant`.
        """
        try:
            return read()
        except FineGrainedError as error:
            if not self.tolerant:
                raise
            self.missing.append(f"Damaged: {error}")
            return default


def _read_texts(
    run: RunDirectory, best: int, most: int | None, parts: _Parts
) -> tuple[dict[int, list[SampleRecord]], dict[int, list[SampleRecord]]]:
    """Sampled responses and answers to validation prompts by step, with marks; those of step `best` are read."""
    files, answered = sample_files(run), sample_files(run, "validation_step")
    chosen = evenly(sorted(files), most or SAMPLED_STEPS)
    samples = {step: parts.read(partial(read_samples, files[step]), []) for step in sorted(chosen)}
    chosen = evenly(sorted(answered), most or ANSWERED_STEPS) | ({best} & set(answered))
    answers = {step: parts.read(partial(read_samples, answered[step]), []) for step in sorted(chosen)}
    _note_samples(samples, answers, parts.missing)
    marks = parts.read(partial(read_marks, run), {})
    return _with_marks(samples, marks), _with_marks(answers, marks)


def evenly(steps: Sequence[int], count: int) -> set[int]:
    """At most `count` of `steps`, spread over them, the first and the last among them."""
    if len(steps) <= count:
        return set(steps)
    return {steps[round(i * (len(steps) - 1) / (count - 1))] for i in range(count)}


def _best(validations: Sequence[Row], exported: int | None) -> Row | None:
    for row in validations:
        if row.get("step") == exported:
            return row
    scored = [row for row in validations if is_number(row.get("score"))]
    return max(scored, key=lambda row: (-row.get("constraints_missed", 0), row["score"]), default=None)


def _read_optional(path: Path) -> Row | None:
    if not path.is_file():
        return None
    value = read_json(path)
    if not isinstance(value, Mapping):
        raise DataError(f"expected a JSON object, got {type(value).__name__}", file=path)
    return value


def _mapping(config: Row, *keys: str) -> Mapping[str, Any]:
    value: Any = config
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def _read_rows(path: Path, missing: list[str]) -> list[dict[str, Any]]:
    """The lines of a metrics file by step; a last line that is being written is left out and told."""
    if not path.is_file():
        missing.append(f"There is no {path.name}.")
        return []
    try:
        rows = read_jsonl(path)
    except DataError:
        text = path.read_text(encoding="utf-8", errors="replace")
        if text.endswith("\n"):
            raise
        rows = [json.loads(line) for line in text.split("\n")[:-1] if line.strip()]
        missing.append(f"The last line of {path.name} is not complete and was left out.")
    if not rows:
        missing.append(f"{path.name} is empty.")
    for number, row in enumerate(rows):
        if not is_number(row.get("step")):
            raise DataError("expected a number", file=path, record=number, field="step")
    return sorted(rows, key=lambda row: row["step"])


def _with_marks(
    steps: Mapping[int, Sequence[SampleRecord]], marks: Mapping[tuple[str, str], Sequence[OracleMark]]
) -> dict[int, list[SampleRecord]]:
    return {step: [replace(row, marks=marks.get((row.id, row.text))) for row in rows] for step, rows in steps.items()}


def _note_damage(run: RunDirectory, missing: list[str]) -> None:
    """A line for each record of the run itself that is not there, is empty or cannot be read."""
    records = {
        run.state: "how far the run is and why it ended is read from its checkpoints",
        run.provenance: "which commands, code and data made the run is unknown",
    }
    for path, without in records.items():
        if not path.is_file():
            missing.append(f"There is no {path.name}: {without}.")
            continue
        try:
            empty = not _read_optional(path)
        except DataError as error:
            missing.append(f"{path.name} is damaged ({error.problem}): {without}.")
        else:
            if empty:
                missing.append(f"{path.name} is empty: {without}.")


def _note_samples(samples: Mapping[int, Any], answers: Mapping[int, Any], missing: list[str]) -> None:
    if not samples:
        missing.append("There are no sampled training responses (samples/step_N.jsonl).")
    if not answers:
        missing.append(
            "There are no answers to validation prompts (samples/validation_step_N.jsonl): the run is of an earlier "
            "version, or has no validation."
        )
    if any(response.tokens is None for group in (samples, answers) for rows in group.values() for response in rows):
        missing.append("Some samples have no token records (earlier version): no value, advantage or KL by token.")


def _read_trust(
    run: RunDirectory, config: Row, missing: list[str], within: Path | None
) -> tuple[dict[str, Row], dict[str, Row]]:
    """`trust.json` and `stress.json` of the runs that the components' paths name."""
    trust: dict[str, Row] = {}
    stress: dict[str, Row] = {}
    for name, component in _mapping(config, "reward", "components").items():
        path = component.get("path") if isinstance(component, Mapping) else None
        if not isinstance(path, str):
            missing.append(f"{name}: the component names no reward model, so there is nothing on its quality.")
            continue
        places = _places(run, config, path, within)
        try:
            attacked = next((values for place in places if (values := read_stress(place)) is not None), None)
        except DataError as error:
            missing.append(f"{name}: {error}")
        else:
            stress |= {} if attacked is None else {str(name): attacked}
        files = [RunDirectory(folder).trust for folder in places]
        existing = next((file for file in files if file.is_file()), None)
        if existing is None:
            missing.append(f"{name}: no trust.json in {path}; finegrained evaluate-reward-model writes it.")
        else:
            trust[str(name)] = _read_optional(existing) or {}
    return trust, stress


def _read_references(run: RunDirectory, config: Row, missing: list[str], within: Path | None) -> dict[str, list[str]]:
    """The human answers in the run's validation data, by the prompt's text."""
    path = config.get("validation_data")
    if not isinstance(path, str):
        return {}
    file = next((place for place in below_start(run, config, path, within) if place.is_file()), None)
    try:
        rows = read_json(file) if file is not None else None
    except DataError:
        rows = None
    if not isinstance(rows, list):
        missing.append(f"No reference answers: the validation data {path} cannot be read from here.")
        return {}
    references = {}
    for row in rows:
        answers = row.get("answer") if isinstance(row, Mapping) else None
        answers = [answers] if isinstance(answers, str) else answers
        if isinstance(answers, list) and isinstance(row.get("text"), str):
            references[row["text"]] = [answer for answer in answers if isinstance(answer, str)]
    return references


def _places(run: RunDirectory, config: Row, path: str, within: Path | None) -> list[Path]:
    """Directories in which a component's reward model may lie."""
    folders = below_start(run, config, path, within)
    return [place for folder in folders for place in ((folder.parent,) if folder.name == "model" else (folder,))]
