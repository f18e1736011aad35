"""The runs below a directory, looked at again only where their files changed. Nothing is written, no model is loaded.

What a run's directory holds is somebody else's: a damaged file is named and the rest is shown; a run that links to
somewhere outside the directory is not read at all.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from finegrained_rlhf.core.checks import is_number
from finegrained_rlhf.core.errors import DataError, FineGrainedError
from finegrained_rlhf.core.files import read_json
from finegrained_rlhf.report.console import runs_below
from finegrained_rlhf.report.runs.record import RunRecord, read_run
from finegrained_rlhf.report.runs.state import RunState, last_row, read_state
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.web.runs.rows import GrowingRows

SCAN_S = 5.0
"""Seconds for which the list of directories counts."""
RECORDS = 24
"""Runs whose records stay in memory."""
Points = list[tuple[float, float]]


@dataclass(frozen=True)
class Entry:
    """A run in the table.

    Attributes:
        name: its path below the directory; `.` is the directory itself.
        path: where it lies.
        version: changes when one of its files does.
        state: where it stands.
        kind: what trains: `PPO`, `SFT`, `RewardModel`, …; empty where the configuration does not say.
        reward: mean total reward of the last step, without KL; None where there is none.
        kl: of the last step, in nats an answer; None where there is none.
        started: when the run was first started, as ISO 8601; empty where it is not kept.
        scores: (step, score) of its validations.
        problem: why nothing of it is read; None where it is.
    """

    name: str
    path: Path
    version: str
    state: RunState
    kind: str = ""
    reward: float | None = None
    kl: float | None = None
    started: str = ""
    scores: tuple[tuple[float, float], ...] = ()
    problem: str | None = None

    @property
    def why(self) -> str | None:
        """What is wrong, or why it ended early; None where nothing is."""
        return self.problem or self.state.stop_reason


class Catalog:
    """The runs below a directory; for threads.

    Args:
        directory: resolved.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._lock = threading.RLock()
        self._scanned = float("-inf")
        self._paths: dict[str, Path] = {}
        self._entries: dict[str, Entry] = {}
        self._rows: dict[Path, GrowingRows] = {}
        self._records: dict[str, tuple[str, RunRecord]] = {}

    def entries(self) -> list[Entry]:
        """Every run, in the order of their names."""
        with self._lock:
            self._scan()
            return [self._entry(name) for name in self._paths]

    def entry(self, name: str) -> Entry:
        """One run by its name.

        Raises:
            KeyError: there is no run of that name. A name is looked up and never made a path.
        """
        with self._lock:
            if name not in self._paths:
                self._scan(again=True)
            return self._entry(name)

    def record(self, entry: Entry) -> RunRecord:
        """All that a page shows of a run.

        Raises:
            DataError: nothing of it can be read.
        """
        if entry.problem is not None:
            raise DataError(entry.problem, file=entry.path)
        with self._lock:
            known = self._records.pop(entry.name, None)
            if known is None or known[0] != entry.version:
                known = entry.version, self._read(entry.path)
            self._records[entry.name] = known  # the last one used is the last one here
            for name in list(self._records)[:-RECORDS]:
                del self._records[name]
            return replace(known[1], state=entry.state)

    def _read(self, path: Path) -> RunRecord:
        """With answers of the first, the last and the exported validation; others are read where they are shown."""
        return read_run(path, read_rows=self._read_rows, most=2, within=self.directory, tolerant=True)

    def stride(self, entry: Entry) -> int:
        """So many steps of a run apart are those that are read."""
        rows = self._rows.get(RunDirectory(entry.path).metrics)
        return rows.stride if rows is not None else 1

    def _scan(self, again: bool = False) -> None:
        if time.monotonic() - self._scanned < (0.5 if again else SCAN_S):
            return
        self._paths = {str(path.relative_to(self.directory)): path for path in runs_below(self.directory)}
        self._entries = {name: entry for name, entry in self._entries.items() if name in self._paths}
        self._scanned = time.monotonic()

    def _entry(self, name: str) -> Entry:
        path, known = self._paths[name], self._entries.get(name)
        version = _version(path)
        settled = known is not None and known.version == version and known.state.status != "running"
        if known is None or not settled:
            known = self._entries[name] = self._look(name, path, version)
        return known

    def _look(self, name: str, path: Path, version: str) -> Entry:
        outside = next(_links_out(path, self.directory), None)
        if outside is not None:
            problem = f"{outside.relative_to(path)} links out of the directory that is served"
            return Entry(name, path, version, RunState("damaged"), problem=problem)
        run, state = RunDirectory(path), read_state(path)
        last = last_row(run.metrics)
        damaged = []
        try:
            target = str(run.read_config().get("_target_", "")) if run.config_path.is_file() else ""
        except FineGrainedError as error:
            target = ""
            damaged.append(str(error))
        validations = self._growing(run.eval).read()
        return Entry(
            name,
            path,
            version,
            replace(state, stop_reason=state.stop_reason or next(iter(damaged), None)),
            kind=target.rpartition(".")[2].removeprefix("Train"),
            reward=_number(last, "reward/total"),
            kl=_number(last, "kl"),
            started=_started(run),
            scores=tuple((row["step"], row["score"]) for row in validations if is_number(row.get("score"))),
        )

    def _growing(self, path: Path) -> GrowingRows:
        return self._rows.setdefault(path, GrowingRows(path))

    def _read_rows(self, path: Path, missing: list[str]) -> list[dict[str, Any]]:
        growing = self._growing(path)
        rows = growing.read()
        if not rows:
            missing.append(f"There is no {path.name}, or it is empty.")
        if growing.damaged:
            missing.append(f"Damaged: {path}: {growing.damaged} lines are no JSON objects with a step; left out.")
        return rows


def _version(path: Path) -> str:
    """Changes when a file of a run does that a page reads."""
    run = RunDirectory(path)
    files = [run.config_path, run.metrics, run.eval, run.state, run.results, run.provenance, run.drift, run.injections]
    files += [run.checkpoints, run.samples_path(0).parent, *(run.final(name) / "export.json" for name in _EXPORTS)]
    stamps = []
    for file in files:
        try:
            status = file.stat()
            stamps.append((status.st_mtime_ns, status.st_size))
        except OSError:
            stamps.append((0, 0))
    return hashlib.sha256(json.dumps(stamps).encode()).hexdigest()[:16]


_EXPORTS = ("policy", "model")


def _links_out(path: Path, root: Path) -> Iterator[Path]:
    """Links among what is read of a run that lead out of `root`."""
    run = RunDirectory(path)
    patterns = ("*", "samples/*", "checkpoints/*", "checkpoints/*/*.json", *(f"{name}/*.json" for name in _EXPORTS))
    for file in (file for pattern in patterns for file in run.path.glob(pattern)):
        if file.is_symlink() and not file.resolve().is_relative_to(root):
            yield file


def _number(row: Mapping[str, Any], key: str) -> float | None:
    value = row.get(key)
    return float(value) if is_number(value) else None


def _started(run: RunDirectory) -> str:
    """The date of the first start, as it stands in the run's provenance; empty where it is not there."""
    try:
        starts = read_json(run.provenance).get("starts")
        date = starts[0]["date"]
    except (FineGrainedError, OSError, AttributeError, LookupError, TypeError):
        return ""
    return date[:19] if isinstance(date, str) else ""
