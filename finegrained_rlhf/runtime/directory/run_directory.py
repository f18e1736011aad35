"""Where the files of one training run lie."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import atomic_path, read_json, write_json, write_text
from finegrained_rlhf.runtime.directory.lock import LOCK_FILE
from finegrained_rlhf.runtime.moved import is_of_0_1, with_current_names

logger = logging.getLogger(__name__)

_FILES = (
    "metrics.jsonl",
    "eval.jsonl",
    "metrics.json",
    "run.json",
    "tracking.json",
    "report.html",
    "trust.json",
    "drift.json",
    "injections.json",
    "stress.json",
    "stress.html",
)
_DIRECTORIES = ("checkpoints", "samples", "tensorboard", "policy", "model")
_EXPORTS = ("policy", "model")
_RECORDS = ("config.yaml", "provenance.json", "metrics.jsonl", "eval.jsonl", "run.json", "tracking.json")
"""What only the run itself writes."""
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # PyYAML's in C, where it was built
_STEP = re.compile(r"step_\d+")
PREPARED = "prepared"
"""The one directory that may exist before the run: what its `prepare` steps made (a sample world, tiny models)."""
_RESUME_WORDS = ("auto", "never")


class RunDirectory:
    """The directory of one run.

    Layout: `config.yaml` (resolved), `metrics.jsonl` (one line a training step), `eval.jsonl` (one line a validation),
    `samples/step_N.jsonl` and `samples/validation_step_N.jsonl`, `checkpoints/step_N/`, `policy/` or `model/` (the
    exported model), `run.json` (how far it is, and why it ended), `provenance.json` (each start: command, code,
    machine; and digests of what it reads), `metrics.json` (how training ended, and what an evaluation measured),
    `trust.json` (of a reward model), `drift.json` (of the reward models of a PPO run, once measured),
    `injections.json` (of its judge, once attacked), `stress.json` (of a reward model, once attacked) with its page.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @property
    def config_path(self) -> Path:
        """The resolved configuration."""
        return self.path / "config.yaml"

    @property
    def metrics(self) -> Path:
        """One JSON object a training step."""
        return self.path / "metrics.jsonl"

    @property
    def eval(self) -> Path:
        """One JSON object a validation."""
        return self.path / "eval.jsonl"

    @property
    def results(self) -> Path:
        """What an evaluation of the finished run measured."""
        return self.path / "metrics.json"

    @property
    def state(self) -> Path:
        """How far training is, and why it ended: see `checkpoints.LoopState.to_json`."""
        return self.path / "run.json"

    @property
    def provenance(self) -> Path:
        """Each start of the run, and digests of what it reads."""
        return self.path / "provenance.json"

    @property
    def tensorboard(self) -> Path:
        """Event files of TensorBoard."""
        return self.path / "tensorboard"

    @property
    def trust(self) -> Path:
        """How far a reward model agrees with people, on its dev set."""
        return self.path / "trust.json"

    @property
    def drift(self) -> Path:
        """How far the reward models of a PPO run agree with an oracle on what its policy wrote."""
        return self.path / "drift.json"

    @property
    def injections(self) -> Path:
        """How often the judge of a PPO run changes its mind where an answer tells it to."""
        return self.path / "injections.json"

    @property
    def tracking(self) -> Path:
        """Which record of an outside tracker belongs to this run."""
        return self.path / "tracking.json"

    @property
    def checkpoints(self) -> Path:
        """The directory of the checkpoints."""
        return self.path / "checkpoints"

    def samples_path(self, step: int) -> Path:
        """Where the sampled responses of a step go."""
        return self.path / "samples" / f"step_{step}.jsonl"

    def validation_samples_path(self, step: int) -> Path:
        """Where the kept greedy responses of a validation go."""
        return self.path / "samples" / f"validation_step_{step}.jsonl"

    def scored_samples_path(self, step: int) -> Path:
        """Where the greedy and sampled responses of a self-critical step go, with their scores."""
        return self.path / "samples" / f"scored_step_{step}.jsonl"

    def final(self, export: str) -> Path:
        """The exported model: `export` is "policy" or "model"."""
        return self.path / export

    def create(self) -> RunDirectory:
        """Make the directory if it is absent. Returns itself."""
        self.path.mkdir(parents=True, exist_ok=True)
        return self

    def is_run(self) -> bool:
        """True when a run of ours has written here."""
        return any(path.is_file() for path in (self.config_path, self.metrics, self.state)) or self.checkpoints.is_dir()

    def owns(self, file: Path) -> bool:
        """Whether a file below the directory is one that only the run itself writes: a record, a checkpoint, a model.

        Args:
            file: an absolute path, without links.
        """
        first, *rest = file.relative_to(self.path.resolve()).parts
        return first in (_DIRECTORIES if rest else _RECORDS)

    def has_begun(self) -> bool:
        """True when a run of ours began here: its configuration, and something that only its loop writes."""
        return self.config_path.is_file() and (self.state.is_file() or self.metrics.is_file())

    def is_foreign(self) -> bool:
        """True when the directory holds files that no run of ours writes, but none that only a run of ours writes.

        What a run leaves that failed before its first checkpoint is not foreign: the same command starts anew.
        """
        if not self.path.is_dir() or self.is_run():
            return False
        return not all(_may_be_ours(entry) for entry in self.path.iterdir())

    def refuse_run(self, what: str) -> None:
        """Raise ConfigError when the directory is that of a training run, whose files `what` would overwrite."""
        if self.is_run():
            raise ConfigError(f"output_dir: {self.path} is the directory of a training run; name another for {what}")

    def start_over(self) -> None:
        """Delete what an earlier run left: metrics, samples, checkpoints and exported models, but not
        `config.yaml` and `provenance.json`, which are those of the new run.

        Raises:
            ConfigError: the directory holds files that are not those of a run.
        """
        self.refuse_foreign()
        existing = [name for name in (*_FILES, *_DIRECTORIES) if (self.path / name).exists()]
        if existing:
            logger.warning("resume=never: deleting %s of the earlier run in %s", ", ".join(existing), self.path)
        for name in existing:
            path = self.path / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def refuse_foreign(self) -> None:
        """Raise ConfigError when the directory is not empty and holds no run of ours."""
        if self.is_foreign():
            raise ConfigError(
                f"output_dir: {self.path} is not empty and holds no training run; name a new directory, or empty it"
            )

    def write_results(self, report: Mapping[str, Any], *, keep: bool = True) -> None:
        """Put what was measured into `metrics.json`, beside what lies there and how training ended.

        Args:
            report: keys that are added or replaced.
            keep: the other keys that lie there.
        """
        kept = self.read_results() if keep else {}
        ended = read_json(self.state) if self.state.is_file() else None
        training = {"training": ended} if ended is not None else {}
        results = {**kept, **report, **training}
        if not keep or results != kept:
            write_json(self.results, results)

    def read_results(self) -> dict[str, Any]:
        """What lies in `metrics.json`; empty where nothing was measured."""
        if not self.results.is_file():
            return {}
        results = read_json(self.results)
        if not isinstance(results, dict):
            raise DataError(f"expected a JSON object, got {type(results).__name__}", file=self.results)
        return results

    def write_config(self, config: Mapping[str, Any], resume: str) -> list[str]:
        """Write the resolved configuration, warning of what differs from the one that the run began with.

        Args:
            config: plain containers.
            resume: the run's `resume` key; with "never" nothing is compared.

        Returns:
            The dotted keys that differ, `resume` and `total_steps` aside.
        """
        self.refuse_foreign()
        self.create()
        different: list[str] = []
        if resume != "never" and self.config_path.is_file() and self.checkpoints.is_dir():
            different = self.differing_keys(config)
            if different:
                logger.warning(
                    "the run in %s began with another configuration; these keys differ: %s",
                    self.path,
                    ", ".join(different),
                )
        write_text(self.config_path, yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True))
        return different

    def differing_keys(self, config: Mapping[str, Any]) -> list[str]:
        """The dotted keys of a configuration that differ from the run's own, `resume` and `total_steps` aside."""
        before = dict(_leaves(self.read_config()))
        now = dict(_leaves(config))
        different = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
        return [key for key in different if key not in ("resume", "resume_changed", "total_steps")]

    def read_config(self) -> dict[str, Any]:
        """The resolved configuration, as plain containers; classes that version 0.2 named have their current names.

        Raises:
            DataError: there is none, it is no YAML mapping, or version 0.1 wrote it.
        """
        try:
            config = yaml.load(self.config_path.read_text(encoding="utf-8"), Loader=_LOADER)
        except (FileNotFoundError, NotADirectoryError):
            raise DataError("no such file; is this the directory of a run?", file=self.config_path) from None
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise DataError(f"not valid YAML ({str(error).splitlines()[0]})", file=self.config_path) from None
        if not isinstance(config, dict):
            raise DataError(f"expected a mapping, got {type(config).__name__}", file=self.config_path)
        if is_of_0_1(config):
            problem = "a run of version 0.1, which is not read any more; expected one of version 0.2 or later"
            raise DataError(problem, file=self.config_path)
        try:
            return dict(with_current_names(config))
        except RecursionError:
            raise DataError("not a configuration: it holds itself", file=self.config_path) from None

    def rewind(self, step: int) -> None:
        """Forget what came after `step`: later lines of the metrics, a half-written last line, later samples.

        Args:
            step: the last step that stays; −1 forgets everything.
        """
        for path in (self.metrics, self.eval):
            if path.exists():
                _keep_lines(path, step)
        for samples in self.samples_path(0).parent.glob("*step_*.jsonl"):
            number = samples.stem.rpartition("step_")[2]
            if number.isdigit() and int(number) > step:
                samples.unlink()

    def clean(self, exports: tuple[str, ...] = ("policy", "model")) -> None:
        """Remove what a killed process left half-written; finish an exchange of an exported model it left half-done."""
        for export in exports:
            for old in sorted(self.path.glob(f".{export}.*.old")):
                if not self.final(export).exists():
                    os.replace(old, self.final(export))
        for folder in (self.path, self.checkpoints, self.samples_path(0).parent):
            for pattern in (".*.tmp", ".*.old"):
                for left in folder.glob(pattern):
                    shutil.rmtree(left) if left.is_dir() else left.unlink()


def run_of_model(path: str | Path) -> RunDirectory | None:
    """The run that a model belongs to by the layout of a run; None where it belongs to none.

    Args:
        path: RUN, which has a `config.yaml`, or RUN/policy, RUN/checkpoints/step_N or RUN/checkpoints/step_N/policy,
            where a run has begun in RUN. No other directory above a model is looked at.
    """
    if RunDirectory(path).config_path.is_file():
        return RunDirectory(path)
    place = Path(os.path.abspath(path))
    exported = place.parent if place.name in _EXPORTS else place
    if exported.parent.name == "checkpoints" and _STEP.fullmatch(exported.name):
        exported = exported.parent.parent
    run = RunDirectory(exported)
    return run if exported != place and run.has_begun() else None


def _may_be_ours(entry: Path) -> bool:
    """Whether a file or directory may be what a run left that wrote no configuration, metrics or checkpoint."""
    name = entry.name
    if entry.is_dir():
        if name in _EXPORTS:  # a user's own model may lie in a directory of that name
            return (entry / "export.json").is_file()
        if name == "samples":
            return all("step_" in file.name for file in entry.iterdir())
        return name in (PREPARED, "tensorboard", "wandb") or (name[0] == "." and name.endswith((".tmp", ".old")))
    return name in (*_FILES, "provenance.json", LOCK_FILE) or (name[0] == "." and name.endswith(".tmp"))


def is_checkpoint_word(resume: str) -> bool:
    """True when `resume` names a path, not "auto" or "never"."""
    return resume not in _RESUME_WORDS


def _keep_lines(path: Path, step: int) -> None:
    with atomic_path(path) as temporary, open(temporary, "wb") as kept:
        with open(path, "rb") as lines:
            for line in lines:
                try:
                    if line.endswith(b"\n") and json.loads(line)["step"] <= step:
                        kept.write(line)
                except (ValueError, KeyError, TypeError):
                    logger.warning("%s: dropping a damaged line", path)


def _leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for name, child in value.items():
            yield from _leaves(child, f"{key}.{name}" if key else str(name))
    else:
        yield key, value


def below_start(run: RunDirectory, config: Mapping[str, Any], path: str, within: Path | None = None) -> list[Path]:
    """Where a path of a run's configuration may lie: as it stands, or below the directory that the run was started in.

    Args:
        run: that may be read from elsewhere.
        config: its configuration, whose `output_dir` tells where it was started.
        path: to look for; it need not exist.
        within: nothing outside this directory is named; None has no such limit.
    """
    roots = [Path()]
    output = Path(str(config.get("output_dir", "")))
    here = run.path.resolve()
    if output.parts and here.parts[-len(output.parts) :] == output.parts:
        roots.append(Path(*here.parts[: -len(output.parts)]))
    places = [root / path for root in roots]
    return [place for place in places if within is None or place.resolve().is_relative_to(within)]


def seen_from_here(run: RunDirectory, config: Mapping[str, Any], part: Any) -> Any:
    """A part of a run's configuration whose paths lead where they led when the run was started.

    Of texts with a `/` that name nothing here, those that name a file or directory below the start are made absolute.
    """
    if isinstance(part, Mapping):
        return {key: seen_from_here(run, config, value) for key, value in part.items()}
    if isinstance(part, list):
        return [seen_from_here(run, config, value) for value in part]
    if not isinstance(part, str) or "/" not in part:
        return part
    found = next((place for place in below_start(run, config, part) if _is_there(place)), None)
    return part if found is None or found == Path(part) else str(found)


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a text that no file can be called
        return False
