"""Where metrics go: always to JSON lines in the run directory, to Weights & Biases when asked.

Knows no metric by name. Only the main process writes.
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.files import read_json, write_json
from finegrained_rlhf.runtime.run_directory import RunDirectory

_MODES = ("online", "offline", "disabled")


@dataclass(frozen=True)
class TrackingConfig:
    """Where metrics go beside the JSON lines.

    Attributes:
        kind: "jsonl" for nothing else, "wandb" for Weights & Biases as well.
        project: W&B project.
        mode: W&B mode: "online", "offline" (no account needed) or "disabled"; None leaves it to WANDB_MODE.
    """

    kind: str = "jsonl"
    project: str = "finegrained-rlhf"
    mode: str | None = None

    def __post_init__(self) -> None:
        if self.kind not in ("jsonl", "wandb"):
            raise ConfigError(f"tracking.kind: expected jsonl or wandb, got {self.kind!r}")
        if self.mode is not None and self.mode not in _MODES:
            raise ConfigError(f"tracking.mode: expected one of {', '.join(_MODES)} or null, got {self.mode!r}")


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
    """A Weights & Biases run that a resumed training continues (its id is kept in `tracking.json`)."""

    def __init__(self, run: RunDirectory, config: TrackingConfig, settings: Mapping[str, Any] | None = None) -> None:
        try:
            import wandb
        except ImportError:
            raise ConfigError(
                "tracking=wandb needs the wandb package: pip install -e '.[tracking]' in a checkout"
            ) from None
        if run.tracking.is_file():
            identity = str(read_json(run.tracking)["wandb_id"])
        else:
            identity = secrets.token_hex(8)
            write_json(run.tracking, {"wandb_id": identity})
        self._run = wandb.init(
            project=config.project,
            mode=config.mode,  # type: ignore[arg-type]
            dir=str(run.path),
            id=identity,
            name=run.path.name,
            resume="allow",
            config=dict(settings or {}),
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record a training step."""
        self._run.log(dict(metrics), step=step)

    def log_eval(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record a validation, each key under `eval/`."""
        self._run.log({f"eval/{key}": value for key, value in metrics.items()}, step=step)

    def close(self) -> None:
        """Finish the W&B run."""
        self._run.finish()


class MetricSinks:
    """All sinks of a run. Opened by the training loop, in the main process, after an earlier run was rewound.

    Args:
        tracking: which sinks.
        extra: more sinks, for example a test's own list.
    """

    def __init__(self, tracking: TrackingConfig | None = None, extra: tuple[MetricSink, ...] = ()) -> None:
        self._tracking = tracking or TrackingConfig()
        self._extra = extra
        self._sinks: list[MetricSink] = []

    def open(self, run: RunDirectory) -> None:
        """Open every sink of the run."""
        self._sinks = [JsonlSink(run), *self._extra]
        if self._tracking.kind == "wandb":
            self._sinks.append(WandbSink(run, self._tracking, _settings(run.config_path)))

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


def _append(path: Path, row: Mapping[str, Any]) -> None:
    finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
    line = json.dumps(finite, ensure_ascii=False, allow_nan=False) + "\n"
    with open(path, "ab") as stream:
        stream.write(line.encode("utf-8"))


def _settings(path: Path) -> dict[str, Any]:
    import yaml

    return dict(yaml.safe_load(path.read_text(encoding="utf-8")) or {}) if path.is_file() else {}
