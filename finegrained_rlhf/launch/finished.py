"""Which steps of a directory are finished: declared how, run with which settings, from what, and what they made.

A step is known by its declaration and by the configurations that it may name, so that a finished one is neither
composed nor started again. Where either has changed, its settings are compared as those of a run that is resumed.
Inputs count by their content, and the directory by its place in paths: a copy of it is finished too.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from hydra.core.global_hydra import GlobalHydra

from finegrained_rlhf.core.errors import DataError, FineGrainedError
from finegrained_rlhf.core.files import read_json, write_text
from finegrained_rlhf.launch.checks.paths import outputs
from finegrained_rlhf.launch.configurations import conf_directories
from finegrained_rlhf.launch.steps import Step
from finegrained_rlhf.runtime.directory.fingerprints import fingerprint, inputs_of
from finegrained_rlhf.runtime.directory.provenance import PACKAGE, package_versions
from finegrained_rlhf.runtime.directory.run_records import changes

FILE = ".steps.json"
_DIRECTORY = "{directory}"


class Finished:
    """The finished steps of a directory, in its `.steps.json`.

    Args:
        directory: that the steps write to.
        digest_of: what reads inputs, each once as long as no step ends (`Digests`); None: one of its own.

    Raises:
        DataError: the file holds something else.
    """

    def __init__(self, directory: str | Path, digest_of: Digests | None = None) -> None:
        self._directory = str(directory)
        self._path = Path(directory) / FILE
        text = json.dumps(read_json(self._path)) if self._path.is_file() else "[]"
        own = json.dumps(self._directory)[1:-1]
        self._entries: list[dict[str, Any]] = json.loads(text.replace(_DIRECTORY, own))
        if not isinstance(self._entries, list) or not all(map(_is_entry, self._entries)):
            raise DataError("not a record of finished steps; without it, they are run again", file=self._path)
        self._digest_of = digest_of or Digests()

    def holds(self, step: Step) -> bool:
        """Whether a step is finished: what it made is there, and what it read is what it was."""
        if step.is_anew:
            return False
        declared = self._declared(step)
        entry = next((entry for entry in self._entries if entry["declared"] == declared), None)
        if entry is not None:
            return self._stands(entry)
        try:
            return any(self._same(entry, step.job) and self._stands(entry) for entry in self._entries)
        except FineGrainedError:  # what checks it says why it is no configuration
            return False

    def begun(self, step: Step) -> dict[str, Any]:
        """What is to be written of a step when it has ended well, taken before it starts."""
        return {"step": step.name, "declared": self._declared(step), "job": step.job, "inputs": inputs_of(step.job)}

    def add(self, entry: Mapping[str, Any]) -> None:
        """A step has ended well: write what `begun` gave, and what was made; one that makes no file is not kept.

        What it read and has changed itself tells nothing of the next time, and is left out.
        """
        self._digest_of.forget()
        made = [path for _, path in outputs(entry["job"]) if Path(path).exists()]
        if made:
            now = {**entry, "made": made, "inputs": {k: v for k, v in entry["inputs"].items() if self._is_there(v)}}
            self._entries = [*(other for other in self._entries if not _replaces(now, other)), now]
            self.write()

    def write(self) -> None:
        """Write what is finished, be it nothing."""
        write_text(self._path, self._portable(json.dumps(self._entries, default=str)) + "\n")

    def _stands(self, entry: Mapping[str, Any]) -> bool:
        return all(Path(path).exists() for path in entry["made"]) and all(map(self._is_there, entry["inputs"].values()))

    def _is_there(self, read: Mapping[str, str]) -> bool:
        return "commit" in read or self._digest_of(read["path"]) == read["sha256"]

    def _same(self, entry: Mapping[str, Any], job: Mapping[str, Any]) -> bool:
        """Whether a step was run with the settings that a job has."""
        if "resume" in job or entry["job"].get("_target_") != job.get("_target_"):  # training says itself what it needs
            return False
        if not set(entry["made"]) <= {path for _, path in outputs(job)}:
            return False
        return not changes(entry["job"], job, entry["inputs"], inputs_of(job), strict=False)

    def _declared(self, step: Step) -> str:
        own = {key: value for key, value in step.declared.items() if key != "gpus"}
        declaration = json.dumps(step.declared.get("known_by", own), sort_keys=True, default=str)
        return hashlib.sha256(f"{configurations()}{self._portable(declaration)}".encode()).hexdigest()[:16]

    def _portable(self, text: str) -> str:
        """A text of JSON with the directory by a word, wherever it is a whole path or the beginning of one."""
        own = re.escape(json.dumps(self._directory)[1:-1])
        return re.sub(rf"(?<![\w./-]){own}(?![\w.-])", lambda _: _DIRECTORY, text)


def _is_entry(value: Any) -> bool:
    return isinstance(value, dict) and {"declared", "job", "inputs", "made"} <= value.keys()


def _replaces(now: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    """Whether a step wrote over what one before it made: a file, or a directory made from the same."""
    files = {path for path in now["made"] if Path(path).is_file()}
    read, once_read = ({value["path"] for value in entry["inputs"].values()} for entry in (now, before))
    return bool(files & set(before["made"])) or (now["made"] == before["made"] and read == once_read)


class Digests:
    """The fingerprints of files and directories, each read once until it is told to forget them."""

    def __init__(self) -> None:
        self._known: dict[str, str | None] = {}

    def __call__(self, path: str) -> str | None:
        """The fingerprint; None where there is nothing, or nothing that can be read to its end."""
        if path not in self._known:
            try:
                self._known[path] = fingerprint(path) if Path(path).is_file() or Path(path).is_dir() else None
            except OSError:
                self._known[path] = None
        return self._known[path]

    def forget(self) -> None:
        """A step has run, which may have written anything."""
        self._known.clear()


@cache
def configurations() -> str:
    """A digest of the files that a step may be composed of, and of the package's version."""
    digest = hashlib.sha256(str(package_versions().get(PACKAGE)).encode())
    groups = {path.name for directory in conf_directories() for path in directory.iterdir() if path.is_dir()}
    for directory in dict.fromkeys((*conf_directories(), *_users())):
        files = [*directory.glob("*.yaml"), *(file for group in groups for file in (directory / group).rglob("*.yaml"))]
        for file in sorted(files):
            digest.update(f"{file.relative_to(directory)}\0{hashlib.sha256(file.read_bytes()).hexdigest()}".encode())
    return digest.hexdigest()


def _users() -> Iterator[Path]:
    """The directories of configurations that the command line adds (`--config-dir`, `hydra.searchpath`)."""
    if GlobalHydra.instance().is_initialized():
        for source in GlobalHydra.instance().config_loader().get_sources():
            if source.scheme() == "file":
                yield Path(source.path)
