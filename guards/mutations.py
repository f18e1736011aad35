"""`python -m guards.mutations [only=NAME,…] [output=FILE]`: is every mutation caught by its fast test?

Each mutation of `mutations.toml` is made in a copy of the tree, never in the tree itself; the test that it names must
pass without it and fail with it. Prints a line a mutation; the status is 1 where one is not caught.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.command import read_arguments, run_main
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.files import write_json
from guards.command import ROOT, chosen
from guards.forks import import_libraries, start, wait

LIST = Path(__file__).with_name("mutations.toml")
_LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "results")
_LEFT_OUT_AT_THE_TOP = {"models", "multirun", "outputs"}
_FAILED = 1  # pytest's status where a test failed; other ones say that it could not run
_SECONDS = 300.0


@dataclass(frozen=True)
class Mutation:
    """A change of the code that a test must notice.

    Attributes:
        name: one of its own.
        file: below the root of the tree.
        original: text that stands in it exactly once.
        replacement: what it is replaced by.
        test: file, directory or node id of the test that catches it.
    """

    name: str
    file: str
    original: str
    replacement: str
    test: str

    def mutated(self, root: Path = ROOT) -> str:
        """The text of the file with the replacement.

        Raises:
            ConfigError: the file is gone, or the original does not stand in it exactly once.
        """
        path = root / self.file
        if not path.is_file():
            raise ConfigError(f"{LIST.name}: {self.name}: {self.file}: no such file")
        text = path.read_text(encoding="utf-8")
        if (count := text.count(self.original)) != 1:
            raise ConfigError(f"{LIST.name}: {self.name}: {self.file}: original: expected once, stands there {count}×")
        return text.replace(self.original, self.replacement)


def read_mutations(path: Path = LIST) -> dict[str, Mutation]:
    """The committed mutations by name.

    Raises:
        ConfigError: a key is missing or unknown, a name is given twice, or a mutation changes nothing.
    """
    mutations: dict[str, Mutation] = {}
    for row in tomllib.loads(path.read_text(encoding="utf-8"))["mutation"]:
        try:
            mutation = Mutation(**row)
        except TypeError:
            raise ConfigError(f"{path.name}: {row}: expected {', '.join(Mutation.__annotations__)}") from None
        if mutation.name in mutations or mutation.original == mutation.replacement:
            raise ConfigError(f"{path.name}: {mutation.name}: given twice, or it changes nothing")
        mutations[mutation.name] = mutation
    return mutations


class Copy:
    """A copy of the tree in which mutations are made, one after the other.

    Args:
        root: of the copy, which does not exist yet.
        source: the tree.
    """

    def __init__(self, root: Path, source: Path = ROOT) -> None:
        self._root = root

        def left_out(folder: str, names: list[str]) -> set[str]:
            return _LEFT_OUT(folder, names) | (_LEFT_OUT_AT_THE_TOP & {*names} if Path(folder) == source else set())

        shutil.copytree(source, root / "tree", ignore=left_out)
        self._tree, self._runs = root / "tree", 0

    def run(self, tests: Sequence[str]) -> tuple[int, str]:
        """Pytest's status with some tests, and what it printed."""
        command = ("-m", "pytest", "-q", "-x", "-m", "not slow", "-p", "no:cacheprovider", "--tb=line", *tests)
        variables = {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "offline"}
        status, _ = wait(start(command, self._tree, (self._tree,), variables), _SECONDS)
        return status, (self._tree / "stdout.txt").read_text(encoding="utf-8", errors="replace")

    def run_mutated(self, mutation: Mutation) -> tuple[int, str]:
        """The same with a mutation and its test; the copy is as before afterwards."""
        path = self._tree / mutation.file
        original = path.read_text(encoding="utf-8")
        try:
            self._write(path, mutation.mutated(self._tree))
            return self.run([mutation.test])
        finally:
            self._write(path, original)

    def _write(self, path: Path, text: str) -> None:
        """Each time with another time of change, by whole seconds: a compiled module must not outlive its text."""
        self._runs += 2
        path.write_text(text, encoding="utf-8")
        os.utime(path, (self._runs, self._runs))


def first_failure(printed: str) -> str | None:
    """The node id of the first test that failed, by pytest's short summary; None where it says nothing."""
    line = re.search(r"^(?:FAILED|ERROR) (\S+::\w+)", printed, re.MULTILINE)
    return line.group(1) if line else None


def examine(mutation: Mutation, copy: Copy) -> dict[str, Any]:
    """One row of the result: name, test, whether it was caught, by which test."""
    status, printed = copy.run_mutated(mutation)
    caught = status == _FAILED
    row = {"name": mutation.name, "test": mutation.test, "caught": caught, "by": first_failure(printed)}
    reason = "" if status in (0, _FAILED) else f" (pytest ended with {status}: {printed.strip()[-200:]})"
    print(
        f"{'caught' if caught else 'NOT CAUGHT'}: {mutation.name} by {row['by'] or mutation.test}{reason}", flush=True
    )
    return row


def main(arguments: Sequence[str]) -> Mapping[str, Any]:
    """Examine the mutations."""
    given = read_arguments(arguments, ("only", "output"))
    mutations = read_mutations()
    names = chosen(list(mutations), given.get("only"))
    for name in names:
        mutations[name].mutated()
    import_libraries()
    directory = Path(tempfile.mkdtemp(prefix="mutations_"))  # whose removal no forked process inherits
    try:
        copy = Copy(directory)
        status, printed = copy.run(sorted({mutations[name].test for name in names}))
        if status:
            raise ConfigError(f"the named tests do not pass without a mutation: {printed.strip()[-2000:]}")
        rows = [examine(mutations[name], copy) for name in names]
    finally:
        shutil.rmtree(directory)
    print(f"{sum(row['caught'] for row in rows)} of {len(rows)} mutations caught")
    if "output" in given:
        write_json(Path(given["output"]), rows)
    return {"equal": {row["name"]: {"ok": row["caught"]} for row in rows}}


if __name__ == "__main__":
    run_main(main)
