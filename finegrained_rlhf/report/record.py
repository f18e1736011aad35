"""What a run left on disk, read for a report: complete where it is complete, and a line for everything that is missing.

Knows the files of a PPO run and of the reward models that its configuration names. Knows no HTML and no task.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json, read_jsonl
from finegrained_rlhf.report.html import is_number
from finegrained_rlhf.report.responses import Response, read_responses
from finegrained_rlhf.runtime.run_directory import RunDirectory

Row = Mapping[str, Any]
SAMPLED_STEPS = 6
"""Files of sampled responses that are read; a long run has hundreds."""


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
        answers: greedy answers to validation prompts of the first, the best and the last validation, by step.
        trust: what each reward model's run says of itself, by component.
        drift: agreement of reward models with an oracle over training, by component.
        evaluation: what `evaluate.py` measured of the run.
        commit: version of the code that made it; None where it was not kept.
        missing: what a reader might look for and why it is not there, a line each.
    """

    path: Path
    config: Row
    steps: Sequence[Row]
    validations: Sequence[Row]
    exported: int | None
    samples: Mapping[int, Sequence[Response]]
    answers: Mapping[int, Sequence[Response]]
    trust: Mapping[str, Row]
    drift: Row | None
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
        """The validation of the exported policy; where none was exported, the one with the highest score."""
        return _best(self.validations, self.exported)

    @property
    def after(self) -> Row | None:
        """What the first validation is compared with: the best one, or the last where the first was the best."""
        best = self.best
        return self.validations[-1] if best is not None and best is self.validations[0] else best

    def setting(self, *keys: str) -> Any:
        """A value of the configuration; None where it is absent."""
        value: Any = self.config
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        return value


def read_run(path: str | Path) -> RunRecord:
    """Read a run, finished or still under way.

    Raises:
        DataError: `path` is no run, or one of its files is damaged.
    """
    run = RunDirectory(path)
    if not run.path.is_dir():
        raise DataError("no such directory; expected the directory of a training run", file=run.path)
    if not run.metrics.is_file() and not run.eval.is_file():
        raise DataError("holds no metrics.jsonl and no eval.jsonl; expected the directory of a training run", file=path)
    missing: list[str] = []
    config = run.read_config() if run.config_path.is_file() else {}
    if not config:
        missing.append("config.yaml is missing: weights, seed and reward models are unknown.")
    steps, validations = _read_rows(run.metrics, missing), _read_rows(run.eval, missing)
    if not validations:
        missing.append("There is no validation: the run has no validation data, or has not come to it yet.")
    export = run.final("policy") / "export.json"
    exported = read_json(export).get("step") if export.is_file() else None
    best = int((_best(validations, exported) or {"step": -1})["step"])
    samples = _read_samples(run, "step_", lambda found: evenly(found, SAMPLED_STEPS))
    answers = _read_samples(run, "validation_step_", lambda found: {found[0], found[-1], best} & set(found))
    _note_samples(samples, answers, missing)
    drift = _read_optional(run.drift)
    if drift is None:
        missing.append("There is no drift.json: agreement of the reward models with an oracle was not measured.")
    results, point = _read_optional(run.results) or {}, _read_optional(run.path / "point.json")
    evaluation = {key: value for key, value in results.items() if key != "training"} or None
    return RunRecord(
        path=run.path,
        config=config,
        steps=steps,
        validations=validations,
        exported=exported,
        samples=samples,
        answers=answers,
        trust=_read_trust(run, config, missing),
        drift=drift,
        evaluation=evaluation,
        commit=next(
            (str(known["commit"]) for known in (point, evaluation, config) if known and "commit" in known), None
        ),
        missing=missing,
    )


def evenly(steps: Sequence[int], count: int) -> set[int]:
    """At most `count` of `steps`, spread over them, the first and the last among them."""
    if len(steps) <= count:
        return set(steps)
    return {steps[round(i * (len(steps) - 1) / (count - 1))] for i in range(count)}


def _best(validations: Sequence[Row], exported: int | None) -> Row | None:
    for row in validations:
        if row.get("step") == exported:
            return row
    return max((r for r in validations if is_number(r.get("score"))), key=lambda r: r["score"], default=None)


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
    for number, row in enumerate(rows):
        if not is_number(row.get("step")):
            raise DataError("expected a number", file=path, record=number, field="step")
    return sorted(rows, key=lambda row: row["step"])


def _read_samples(
    run: RunDirectory, prefix: str, choose: Callable[[Sequence[int]], set[int]]
) -> dict[int, list[Response]]:
    files = {}
    for path in run.samples_path(0).parent.glob(f"{prefix}*.jsonl"):
        if (step := path.stem.removeprefix(prefix)).isdigit():
            files[int(step)] = path
    return {step: read_responses(files[step]) for step in sorted(choose(sorted(files)))} if files else {}


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


def _read_trust(run: RunDirectory, config: Row, missing: list[str]) -> dict[str, Row]:
    """`trust.json` of the runs that the components' paths name."""
    found: dict[str, Row] = {}
    for name, component in _mapping(config, "reward", "components").items():
        path = component.get("path") if isinstance(component, Mapping) else None
        if not isinstance(path, str):
            missing.append(f"{name}: the component names no reward model, so there is nothing on its quality.")
            continue
        files = [RunDirectory(folder).trust for folder in _places(run, config, path)]
        existing = next((file for file in files if file.is_file()), None)
        if existing is None:
            missing.append(f"{name}: no trust.json in {path}; scripts/evaluate_reward_model.py writes it.")
        else:
            found[str(name)] = _read_optional(existing) or {}
    return found


def _places(run: RunDirectory, config: Row, path: str) -> list[Path]:
    """Where a path of the configuration may lie: as it stands, or below the directory that the run was started in."""
    roots = [Path()]
    output = Path(str(config.get("output_dir", "")))
    here = run.path.resolve()
    if output.parts and here.parts[-len(output.parts) :] == output.parts:
        roots.append(Path(*here.parts[: -len(output.parts)]))
    folders = [root / path for root in roots]
    return [place for folder in folders for place in ((folder.parent,) if folder.name == "model" else (folder,))]
