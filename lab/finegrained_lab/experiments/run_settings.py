"""The resolved settings of the runs behind a results table: of one seed, and where the seeds differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory

_DIRECTORY, _SEED = "DIRECTORY", "SEED"
_ABSENT = "not set"


def settings_of_runs(roots: Mapping[int, Path], runs: Sequence[str]) -> dict[str, Any]:
    """What every run was set to.

    Args:
        roots: the directory of each seed.
        runs: run directories below them.

    Returns:
        `runs`: run → its configuration, of the first seed, with `DIRECTORY` for the seed's own directory and `SEED` for
        the seed where a key named `seed` or `…_seed` holds it; `differ`: run → key → its value by seed, of the keys
        that are not the same for all seeds.

    Raises:
        DataError: a run's configuration is missing or is no mapping.
    """
    collected: dict[str, Any] = {"runs": {}, "differ": {}}
    for run in runs:
        by_seed = {seed: _settings(root, run, seed) for seed, root in roots.items()}
        collected["runs"][run] = next(iter(by_seed.values()))
        if differ := _differences({seed: _flat(settings) for seed, settings in by_seed.items()}):
            collected["differ"][run] = differ
    return collected


def settings_words(result: Mapping[str, Any]) -> str:
    """A sentence on where a results file has the settings behind it, and which of them its seeds do not share."""
    settings = result.get("run_settings", {"runs": {}})
    if settings["runs"]:
        differ = [f"`{key}` of {run}" for run, keys in settings["differ"].items() for key in keys]
        several = len(result.get("seeds") or ()) != 1
        odd = f"; not the same for all seeds: {', '.join(differ)}" if differ else ", the same for all seeds" * several
        return f"Resolved settings of every run: `run_settings` in the JSON file{odd}."
    if result.get("configuration"):
        return "Settings: `configuration` in the JSON file."
    return "Older than the keeping of settings in results files: those of the commit above hold, under `conf/`."


def _settings(root: Path, run: str, seed: int) -> Any:
    path = RunDirectory(root / run).config_path
    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"the settings of this run cannot be read: {error.strerror}", file=path) from None
    if not isinstance(settings, dict):
        raise DataError("expected the configuration of a run, a mapping", file=path)
    return _neutral(settings, str(root), seed)


def _neutral(value: Any, root: str, seed: int, key: str = "") -> Any:
    """A part of a configuration without what each seed has of its own: its directory and its number."""
    if isinstance(value, dict):
        return {name: _neutral(item, root, seed, str(name)) for name, item in value.items()}
    if isinstance(value, list):
        return [_neutral(item, root, seed) for item in value]
    if isinstance(value, str):
        return value.replace(root, _DIRECTORY)
    return _SEED if value == seed and (key == "seed" or key.endswith("_seed")) else value


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {prefix: value}
    flat: dict[str, Any] = {}
    for name, item in value.items():
        flat.update(_flat(item, f"{prefix}.{name}" if prefix else str(name)))
    return flat


def _differences(by_seed: Mapping[int, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    keys = dict.fromkeys(key for settings in by_seed.values() for key in settings)
    values = {key: {seed: settings.get(key, _ABSENT) for seed, settings in by_seed.items()} for key in keys}
    return {
        key: {str(seed): value for seed, value in of_key.items()}
        for key, of_key in values.items()
        if any(value != next(iter(of_key.values())) for value in of_key.values())
    }
