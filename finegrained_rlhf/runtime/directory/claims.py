"""Who may write where: one process at a time, and nothing over what was made with other settings.

A job that makes a whole directory (`output_dir`) or file (`output`) from its settings alone has the key `overwrite`
(one that has a field of that name decides itself what it replaces, and its launcher leaves the key out here). What it
makes is recorded beside (`.made.json` in the directory, `.NAME.made.json` beside the file); the same command may make
it again, another one is refused unless `overwrite` is true.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from finegrained_rlhf.core.errors import ConfigError, DataError, FineGrainedError
from finegrained_rlhf.core.files import read_json, write_json
from finegrained_rlhf.runtime.directory.fingerprints import inputs_of
from finegrained_rlhf.runtime.directory.lock import locked_directory
from finegrained_rlhf.runtime.directory.provenance import PACKAGE, package_versions, provenance
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.directory.run_records import changes

if TYPE_CHECKING:
    from finegrained_rlhf.runtime.process_config import OneProcess
    from finegrained_rlhf.runtime.processes import Processes

MADE = ".made.json"


@contextmanager
def claimed(config: Mapping[str, Any], processes: Processes | OneProcess) -> Iterator[None]:
    """Hold the directory that a configuration writes, in the main process for all, and record what is made.

    Args:
        config: plain containers; `output_dir` is locked, and with `overwrite` among its keys `output_dir` or `output`
            is refused where it was made otherwise.
        processes: that work together.

    Raises:
        ConfigError: another process writes there, or it was made with other settings; in all processes alike, and
            before anything is written.
    """
    target = _target(config)
    with ExitStack() as stack:
        problem: FineGrainedError | None = None
        record: dict[str, Any] = {}
        if processes.is_main:
            try:
                if isinstance(config.get("output_dir"), str):
                    stack.enter_context(locked_directory(config["output_dir"]))
                if target is not None:
                    record = _record(config, processes)
                    _refuse_other(target, record, bool(config["overwrite"]))
                    write_json(target.record, record)
            except FineGrainedError as error:
                problem = error
        problem = processes.broadcast_object(problem)
        if problem is not None:
            raise problem
        try:
            yield
        except BaseException:
            if processes.is_main and target is not None and not target.holds_something:
                target.record.unlink(missing_ok=True)
            raise
        if processes.is_main and target is not None:
            write_json(target.record, {**record, "finished": True})


@dataclass(frozen=True)
class _Target:
    """What is made: a whole directory, or a file."""

    key: Literal["output_dir", "output"]
    path: Path

    @property
    def record(self) -> Path:
        """Where it is recorded how it was made."""
        return self.path / MADE if self.key == "output_dir" else self.path.with_name(f".{self.path.name}{MADE}")

    @property
    def holds_something(self) -> bool:
        """Whether anything lies there that would be replaced."""
        if self.key == "output":
            return self.path.exists()
        return self.path.is_dir() and any(not entry.name.startswith(".") for entry in self.path.iterdir())


def _target(config: Mapping[str, Any]) -> _Target | None:
    if "overwrite" not in config:
        return None
    if "output_dir" in config:
        return _Target("output_dir", Path(config["output_dir"]))
    return _Target("output", Path(config["output"]))


def _record(config: Mapping[str, Any], processes: Processes | OneProcess) -> dict[str, Any]:
    plain = {key: value for key, value in config.items() if key != "overwrite"}
    made = provenance(processes.count)
    return {"config": plain, "inputs": inputs_of(plain), "finished": False, "provenance": made}


def _refuse_other(target: _Target, record: Mapping[str, Any], overwrite: bool) -> None:
    """Raise ConfigError where something else lies than what the same settings made."""
    if target.key == "output_dir":
        RunDirectory(target.path).refuse_run("what this command makes")
    if overwrite or not target.holds_something:
        return
    path = target.record
    if not path.is_file():
        raise ConfigError(
            f"{target.key}: {target.path} exists and no record says how it was made; name another, or replace it with "
            "overwrite=true"
        )
    before = read_json(path)
    try:
        strict = before["provenance"]["versions"].get(PACKAGE) == package_versions().get(PACKAGE)
        now, then = record["config"], before["config"]
        changed = changes(then, now, before["inputs"], record["inputs"], strict=strict)
    except (KeyError, TypeError, AttributeError):
        raise DataError("not a record of how something was made", file=path) from None
    if changed:
        raise ConfigError(
            f"{target.key}: {target.path} was made with other values: {'; '.join(map(str, changed))}; name another, or "
            "replace it with overwrite=true"
        )
