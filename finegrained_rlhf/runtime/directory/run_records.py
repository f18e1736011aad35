"""What a run remembers of how it was begun: its configuration, each start, and digests of what it reads.

A run without these records (made before they were kept) is compared by its `config.yaml` alone.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import read_json, write_json, write_text
from finegrained_rlhf.runtime.directory.changes import Change, changes
from finegrained_rlhf.runtime.directory.fingerprints import inputs_of
from finegrained_rlhf.runtime.directory.provenance import PACKAGE, package_versions, provenance
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.loop.checkpoints import CheckpointStore, reporting_full_disk

if TYPE_CHECKING:
    from finegrained_rlhf.runtime.processes import Processes

logger = logging.getLogger(__name__)
FORMAT = 1
"""Of `provenance.json`."""


def changes_of_run(run: RunDirectory, config: Mapping[str, Any]) -> list[Change]:
    """What differs from how a run with checkpoints was begun, of what decides its result; nothing for a new run."""
    if not run.config_path.is_file() or not CheckpointStore(run.checkpoints, 1).steps():
        return []
    record = read_provenance(run)
    inputs = record.get("inputs")
    strict = inputs is not None and _version(record) == package_versions().get(PACKAGE)
    return changes(run.read_config(), config, inputs, None if inputs is None else inputs_of(config), strict=strict)


def refuse_changes(run: RunDirectory, config: Mapping[str, Any], resume: str, resume_changed: str) -> None:
    """Raise ConfigError when a run would go on with other data, models or settings than it was begun with.

    Args:
        run: where it writes.
        config: plain containers.
        resume: the run's key; with "never" nothing is compared.
        resume_changed: "refuse", or "allow": the differences are then only said.
    """
    changed = [] if resume == "never" else changes_of_run(run, config)
    if not changed:
        return
    listed = "; ".join(map(str, changed))
    if resume_changed == "allow":
        logger.warning("%s goes on with other values than it began with: %s", run.path, listed)
        return
    raise ConfigError(
        f"the run in {run.path} began with other values: {listed}; set them back, name another output_dir, start over "
        "with resume=never, or go on with the new ones with resume_changed=allow"
    )


@contextmanager
def recorded(run: RunDirectory, config: Mapping[str, Any], resume: str, processes: Processes) -> Iterator[None]:
    """Write configuration and provenance in the main process; take them back when no step was trained."""
    if not processes.is_main:
        yield
        return
    records = (run.config_path, run.provenance)
    before = {path: path.read_text(encoding="utf-8") if path.is_file() else None for path in records}
    untouched = _stamp(run.metrics)
    with reporting_full_disk(f"files in {run.path}"):
        started = _with_start(run, config, resume, processes)
        run.write_config(config, resume)
        write_json(run.provenance, started)
    try:
        yield
    finally:
        for path, text in before.items():
            if _stamp(run.metrics) == untouched and text is not None:
                write_text(path, text)
            elif not run.checkpoints.is_dir():
                path.unlink(missing_ok=True)


def read_provenance(run: RunDirectory) -> dict[str, Any]:
    """`provenance.json`; empty where the run has none."""
    if not run.provenance.is_file():
        return {}
    record = read_json(run.provenance)
    if not isinstance(record, dict) or not isinstance(record.get("starts"), list):
        raise DataError("expected an object with `starts`; was it written by a run?", file=run.provenance)
    return record


def _with_start(run: RunDirectory, config: Mapping[str, Any], resume: str, processes: Processes) -> dict[str, Any]:
    goes_on = resume != "never" and bool(CheckpointStore(run.checkpoints, 1).steps())
    start = provenance(processes.count)
    if goes_on:
        start["changed"] = [str(change) for change in changes_of_run(run, config)]
    earlier = read_provenance(run).get("starts", []) if goes_on else []
    return {"format": FORMAT, "starts": [*earlier, start], "inputs": inputs_of(config)}


def _version(record: Mapping[str, Any]) -> str | None:
    starts = record.get("starts") or [{}]
    version = starts[-1].get("versions", {}).get(PACKAGE)
    return None if version is None else str(version)


def _stamp(path: Path) -> tuple[int, int] | None:
    """What tells whether a file was written to; None while it is absent."""
    return (path.stat().st_size, path.stat().st_mtime_ns) if path.is_file() else None
