"""Where metrics go: always to JSON lines in the run directory, to Weights & Biases or TensorBoard when asked.

Only the main process writes.
"""

from __future__ import annotations

import io
import json
import logging
import math
import os
import secrets
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import naming, read_json, read_jsonl, write_json
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory

_COMPLETIONS = 64
"""Rows of a table of completions."""


@dataclass(frozen=True)
class TrackingConfig(Settings):
    """Where metrics go beside the JSON lines.

    Attributes:
        kind: "jsonl" for nothing else, "wandb" for Weights & Biases, "tensorboard" for event files as well.
        project: W&B project.
        mode: W&B mode: "online", "offline" (no account needed) or "disabled"; None leaves it to WANDB_MODE.
        entity: W&B user or team; None takes the account's default.
        name: of the W&B run; None takes the name of the run directory.
        group: W&B group, for example of a sweep's runs; None has none.
        tags: W&B tags.
    """

    kind: Literal["jsonl", "wandb", "tensorboard"] = "jsonl"
    project: str = "finegrained-rlhf"
    mode: Literal["online", "offline", "disabled"] | None = None
    entity: str | None = None
    name: str | None = None
    group: str | None = None
    tags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.tags, str) or not all(isinstance(tag, str) for tag in self.tags):
            raise ConfigError(f"tracking.tags: expected a list of texts, got {self.tags!r}")
        object.__setattr__(self, "tags", tuple(self.tags))

    def check(self) -> None:
        """Find out whether the tracker can be used, before anything is made.

        Raises:
            ConfigError: its package is missing, or W&B is to go online and knows no account.
        """
        if self.kind == "tensorboard":
            _summary_writer()
        if self.kind == "wandb":
            wandb = _wandb()
            mode = self.mode or os.environ.get("WANDB_MODE") or "online"
            if mode == "online" and not _quietly(lambda: _knows_account(wandb)):
                raise ConfigError(
                    "tracking=wandb: no W&B account is known on this machine; run `wandb login` or set WANDB_API_KEY, "
                    "or give tracking.mode=offline"
                )


class MetricSink(Protocol):
    """Something that records numbers by step."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics of a training step."""

    def log_eval(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics of a validation."""

    def close(self) -> None:
        """Finish writing."""


class JsonlSink:
    """`metrics.jsonl` and `eval.jsonl`: one object a line, `step` first, flushed to the system after every line.

    A number that is not finite is written as null, because JSON has no NaN.
    """

    def __init__(self, run: RunDirectory) -> None:
        self._run = run

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append a line to `metrics.jsonl`."""
        _append(self._run.metrics, {"step": step, **metrics})

    def log_eval(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append a line to `eval.jsonl`."""
        _append(self._run.eval, {"step": step, **metrics})

    def close(self) -> None:
        """Nothing is held open."""


class WandbSink:
    """A Weights & Biases run that a resumed training continues (its id is kept in `tracking.json`).

    Raises:
        ConfigError: W&B refuses the run; a new id is not kept then.
    """

    def __init__(self, run: RunDirectory, config: TrackingConfig, settings: Mapping[str, Any] | None = None) -> None:
        self._wandb, self._directory = _wandb(), run
        known = read_json(run.tracking).get("wandb_id") if run.tracking.is_file() else None
        identity = secrets.token_hex(8) if known is None else str(known)
        try:
            self._run = self._wandb.init(
                project=config.project,
                entity=config.entity,
                group=config.group,
                tags=list(config.tags) or None,
                mode=config.mode,
                dir=str(run.path),
                id=identity,
                name=config.name or run.path.name,
                resume="allow",
                config=dict(settings or {}),
            )
        except self._wandb.errors.Error as error:
            raise ConfigError(f"tracking=wandb: {str(error).splitlines()[0]}") from None
        if known is None:
            write_json(run.tracking, {"wandb_id": identity})

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record a training step."""
        self._run.log(dict(metrics), step=step)

    def log_eval(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record a validation, each key under `eval/`, and a table of the answers that it kept."""
        logged: dict[str, Any] = {f"eval/{key}": value for key, value in metrics.items()}
        rows = completions(self._directory, step)
        if rows:
            columns = ["step", "id", "prompt", "response", "reward"]
            logged["eval/completions"] = self._wandb.Table(columns=columns, data=[[step, *row] for row in rows])
        self._run.log(logged, step=step)

    def close(self) -> None:
        """Finish the W&B run."""
        self._run.finish()


class TensorBoardSink:
    """Event files in `tensorboard/`. What an earlier start wrote after the step that this one begins at is marked as
    void, so that every reader shows each step once.

    Args:
        run: whose directory.
        step: the last finished step; logging begins after it.
    """

    def __init__(self, run: RunDirectory, step: int) -> None:
        self._directory = run
        resumed = run.tensorboard.is_dir() and any(run.tensorboard.iterdir())
        self._writer = _summary_writer()(str(run.tensorboard), purge_step=step + 1 if resumed else None)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record a training step, each key under `train/`."""
        self._write(step, {f"train/{key}": value for key, value in metrics.items()})

    def log_eval(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record a validation, each key under `eval/`, and the answers that it kept."""
        self._write(step, {f"eval/{key}": value for key, value in metrics.items()})
        rows = completions(self._directory, step)
        if rows:
            text = "\n\n".join(
                f"**{prompt}**\n\n{response}\n\nreward {reward:.3f}" for _, prompt, response, reward in rows
            )
            self._writer.add_text("eval/completions", text, step)
        self._writer.flush()

    def close(self) -> None:
        """Write what is held back."""
        self._writer.close()

    def _write(self, step: int, metrics: Mapping[str, float]) -> None:
        for key, value in metrics.items():
            self._writer.add_scalar(key, value, step)


class MetricSinks:
    """All sinks of a run. Opened by the training loop, in the main process, after an earlier run was rewound.

    Args:
        tracking: which sinks.
    """

    def __init__(self, tracking: TrackingConfig | None = None) -> None:
        self._tracking = tracking or TrackingConfig()
        self._sinks: list[MetricSink] = []

    def open(self, run: RunDirectory, step: int = 0) -> None:
        """Open every sink of the run, which begins after `step`."""
        self._sinks = [JsonlSink(run)]
        if self._tracking.kind == "wandb":
            self._sinks.append(WandbSink(run, self._tracking, _settings(run.config_path)))
        if self._tracking.kind == "tensorboard":
            self._sinks.append(TensorBoardSink(run, step))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record a training step everywhere."""
        for sink in self._sinks:
            sink.log(step, metrics)

    def log_eval(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record a validation everywhere."""
        for sink in self._sinks:
            sink.log_eval(step, metrics)

    def close(self) -> None:
        """Close every sink."""
        for sink in self._sinks:
            sink.close()
        self._sinks = []


def completions(run: RunDirectory, step: int) -> list[tuple[str, str, str, float]]:
    """Id, prompt, response and summed reward of the answers that a validation kept; empty where it kept none."""
    path = run.validation_samples_path(step)
    if not path.is_file():
        return []
    return [
        (str(row["id"]), row["prompt"], row["response"], sum(s["weighted"] for s in row["segments"]))
        for row in read_jsonl(path)[:_COMPLETIONS]
    ]


def _wandb() -> Any:
    try:
        import wandb
    except ImportError:
        raise ConfigError("tracking=wandb needs the wandb package: pip install wandb") from None
    return wandb


def _knows_account(wandb: Any) -> bool:
    try:
        return bool(wandb.login(prompt=False))
    except TypeError:  # an older version, which can only ask; its init() says what is wrong
        return True


def _summary_writer() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ConfigError("tracking=tensorboard needs the tensorboard package: pip install tensorboard") from None
    return SummaryWriter


def _quietly(call: Callable[[], Any]) -> Any:
    """The result of a call of W&B's without its messages."""
    logger = logging.getLogger("wandb")
    before, logger.disabled = logger.disabled, True
    try:
        with redirect_stderr(io.StringIO()):
            return call()
    finally:
        logger.disabled = before


def _append(path: Path, row: Mapping[str, Any]) -> None:
    finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
    line = json.dumps(finite, ensure_ascii=False, allow_nan=False) + "\n"
    with naming(path), open(path, "ab") as stream:
        stream.write(line.encode("utf-8"))


def _settings(path: Path) -> dict[str, Any]:
    import yaml

    return dict(yaml.safe_load(path.read_text(encoding="utf-8")) or {}) if path.is_file() else {}
