"""What a run remembers of how it was begun (its configuration, each start, digests of what it reads), and what differs
between that and the present where it matters.

A run without these records (made before they were kept) is compared by its `config.yaml` alone.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.fields import TARGET, filled, is_ours, places
from finegrained_rlhf.core.files import read_json, write_json, write_text
from finegrained_rlhf.runtime.directory.fingerprints import inputs_of, leaves
from finegrained_rlhf.runtime.directory.provenance import PACKAGE, package_versions, provenance
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.job import RESERVED_KEYS
from finegrained_rlhf.runtime.loop.checkpoints import CheckpointStore, reporting_full_disk
from finegrained_rlhf.runtime.process_config import Precision

_ABSENT = object()
logger = logging.getLogger(__name__)
FORMAT = 1
"""Of `provenance.json`."""


@dataclass(frozen=True)
class Change:
    """One difference.

    Attributes:
        key: dotted.
        before: the value then, or a digest of the file's content.
        now: the present one.
    """

    key: str
    before: str
    now: str

    def __str__(self) -> str:
        return f"{self.key}: {self.before} -> {self.now}"


def changes(
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    inputs_before: Mapping[str, Any] | None = None,
    inputs_now: Mapping[str, Any] | None = None,
    *,
    strict: bool = True,
) -> list[Change]:
    """The differences that decide what comes out, by key.

    What a configuration leaves out is what its class takes for it. What a class marks as harmless, or as written, is
    not compared, nor what is below it. A path that leads to the same content as before is no difference; an unchanged
    path that leads to other content is. Classes are compared by their names, so that moving a module changes nothing.

    Args:
        before: configuration then, plain containers.
        now: the present one.
        inputs_before: `fingerprints.inputs_of` then; None where it was not kept.
        inputs_now: the same now.
        strict: whether a key that only one of them has counts; else (another version of the code may have had fewer
            keys) only another default than null does, and the coming and going of whole objects (`_target_`) that say
            more than the defaults of a class of ours.
    """
    whole_old, whole_new = filled(before), filled(now)
    old, new = _plain(whole_old), _plain(whole_new)
    harmless = {place.key for whole in (whole_old, whole_new) for place in places(whole) if place.is_harmless}
    then, present = inputs_before or {}, inputs_now or {}
    found = []
    plain_parts = set() if strict else _plain_parts(old, new) | _plain_parts(new, old)
    said_then = _plain(before)
    for key in sorted(old.keys() | new.keys()):
        if _is_harmless(key, harmless) or key in plain_parts:
            continue
        one, other = (side.get(key, _ABSENT) for side in (old, new))
        if not strict and one is None and key not in said_then:
            one = _ABSENT
        digests = [inputs[key]["sha256"] if key in inputs else None for inputs in (then, present)]
        if None not in digests:
            if digests[0] != digests[1]:
                found.append(Change(key, f"{one} (content {digests[0]})", f"{other} (content {digests[1]})"))
        elif not _same(key, one, other, strict):
            found.append(Change(key, _shown(one), _shown(other)))
    return found


def _plain_parts(one: Mapping[str, Any], other: Mapping[str, Any]) -> set[str]:
    """The keys of parts of which the other side has nothing, and which hold the defaults of their class alone."""
    found: set[str] = set()
    for key, target in one.items():
        part, _, last = key.rpartition(".")
        held = part in other or any(name.startswith(f"{part}.") for name in other)
        if last != TARGET or not is_ours(str(target)) or held:
            continue
        values = {name: value for name, value in one.items() if name.startswith(f"{part}.")}
        if values == dict(leaves(_listed(filled({TARGET: target})), part)):
            found |= values.keys()
    return found


def _plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves of a configuration as they would be read back from YAML."""
    return dict(leaves({key: part for key, part in _listed(config).items() if key not in RESERVED_KEYS}))


def _listed(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _listed(item) for key, item in value.items()}
    return [_listed(item) for item in value] if isinstance(value, list | tuple) else value


def _is_harmless(key: str, harmless: Collection[str]) -> bool:
    """Whether a key is one of those, or lies below one; the name of the job's own class is not compared."""
    return key == TARGET or any(key == name or key.startswith((f"{name}.", f"{name}[")) for name in harmless)


def _same(key: str, one: Any, other: Any, strict: bool) -> bool:
    is_class = key.endswith("._target_")
    if one is _ABSENT or other is _ABSENT:
        value = other if one is _ABSENT else one
        return value in (None, {}, []) or not (strict or is_class)
    if is_class:
        return str(one).rpartition(".")[2] == str(other).rpartition(".")[2]
    return bool(one == other)


def _shown(value: Any) -> str:
    return "absent" if value is _ABSENT else "null" if value is None else str(value)


if TYPE_CHECKING:
    from finegrained_rlhf.runtime.processes import Processes


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


def precision_of_run(run: RunDirectory) -> Precision | None:
    """The precision that `processes.precision=auto` took when a run with checkpoints began; None where it did not."""
    if not CheckpointStore(run.checkpoints, 1).steps():
        return None
    return next((start["precision"] for start in read_provenance(run).get("starts", []) if "precision" in start), None)


def _with_start(run: RunDirectory, config: Mapping[str, Any], resume: str, processes: Processes) -> dict[str, Any]:
    goes_on = resume != "never" and bool(CheckpointStore(run.checkpoints, 1).steps())
    start = provenance(processes.count)
    if processes.chosen:
        start["precision"] = processes.precision
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
