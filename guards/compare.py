"""`python -m guards.compare BASE NEW out=DIR [only=CASE,…] [cases=FILE]`: do two checkouts compute the same?

BASE and NEW are directories with a checkout, or git revisions of this repository, which are cloned below `out`. Each
case of `cases.yaml` is run in both, by one thread, and its results are compared: tensors by name, JSON by key, tables
by cell; what `exclusions.toml` names is left out. A case that was run is kept in `out` and not run again as long as
neither its declaration nor the code of the checkout changes. Writes `report.md` and `report.json`; the status is 1
where a case differs or fails.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from benchmarks.command import read_arguments, run_main
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.files import read_json, write_json
from guards.command import ROOT, chosen
from guards.differences import Difference, Exclusions, Tree, compare_trees, largest
from guards.forks import import_libraries, start, wait

CASES = Path(__file__).with_name("cases.yaml")
INPUTS = Path(__file__).with_name("inputs")
_SECONDS, _LONG_SECONDS = 400.0, 3600.0
_SHOWN = 5
_CODE = ("finegrained_rlhf", "reward_models", "conf", "scripts", "lab")
_VARIABLES = {
    "ACCELERATE_USE_CPU": "true",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "WANDB_MODE": "offline",
}


@dataclass(frozen=True)
class Case:
    """What is run, and what of its results is compared.

    Attributes:
        name: of the case.
        command: its NAME, as `finegrained NAME` takes it.
        arguments: `{out}` is the directory of its results, `{CASE}` that of another case, `{inputs}` that of the
            committed inputs.
        printed: whether what it prints is compared.
        long: run only where it is named.
        copies: what is copied to a path below `{out}` before it begins, since the command writes there.
    """

    name: str
    command: str
    arguments: tuple[str, ...]
    printed: bool = True
    long: bool = False
    copies: Mapping[str, str] = field(default_factory=dict)

    @property
    def needs(self) -> tuple[str, ...]:
        """The cases whose results it reads, in order."""
        words = re.findall(r"\{(\w+)\}", " ".join([*self.arguments, *self.copies.values()]))
        return tuple(dict.fromkeys(word for word in words if word not in ("out", "inputs")))


def read_cases(path: Path = CASES) -> dict[str, Case]:
    """The committed cases by name, each after those that it needs.

    Raises:
        ConfigError: a key is unknown, or a case needs one that does not stand before it.
    """
    cases: dict[str, Case] = {}
    for name, row in yaml.safe_load(path.read_text(encoding="utf-8")).items():
        unknown = set(row) - {"command", "arguments", "more", "printed", "long", "copies"}
        if unknown:
            raise ConfigError(f"{path.name}: {name}: unknown key {sorted(unknown)[0]!r}")
        arguments = tuple(map(str, [*row["arguments"], *row.get("more", ())]))
        options = {key: row[key] for key in ("printed", "long", "copies") if key in row}
        case = Case(name, row["command"], arguments, **options)
        if absent := [need for need in case.needs if need not in cases]:
            raise ConfigError(f"{path.name}: {name}: {{{absent[0]}}}: no such case before it")
        cases[name] = case
    return cases


@dataclass(frozen=True)
class Checkout:
    """A checkout of the project with its results.

    Attributes:
        root: of the checkout.
        results: directory below which each state of its code has its own.
        again: whether the other side has the same code: two runs of it are compared then.
    """

    root: Path
    results: Path
    again: bool = False

    @staticmethod
    def of(given: str, out: Path) -> Checkout:
        """A directory with a checkout, or a clone of a revision.

        Raises:
            ConfigError: it is neither.
        """
        if Path(given).is_dir():
            root = Path(given).resolve()
            if not (root / "finegrained_rlhf").is_dir():
                raise ConfigError(f"{given}: no checkout, it has no finegrained_rlhf/")
            return Checkout(root, out)
        try:
            commit = _git(ROOT, "rev-parse", "--verify", "--quiet", f"{given}^{{commit}}")
        except ConfigError:
            raise ConfigError(f"{given}: neither a directory nor a revision of {ROOT}") from None
        root = out / "checkouts" / commit[:12]
        if not (root / "finegrained_rlhf").is_dir():
            shutil.rmtree(root, ignore_errors=True)
            repository = _git(ROOT, "rev-parse", "--path-format=absolute", "--git-common-dir")
            _git(ROOT, "clone", "--quiet", "--shared", "--no-checkout", repository, str(root))
            _git(root, "checkout", "--quiet", "--detach", commit)
        return Checkout(root, out)

    @cached_property
    def digest(self) -> str:
        """Of all files that a command may read."""
        hashed = hashlib.sha256()
        for path in sorted(path for top in _CODE for path in (self.root / top).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                hashed.update(f"{path.relative_to(self.root)}\0".encode())
                hashed.update(hashlib.sha256(path.read_bytes()).digest())
        return hashed.hexdigest()[:12]

    @property
    def home(self) -> Path:
        """Where the results of its present code lie."""
        return self.results / (f"{self.digest}-again" if self.again else self.digest)

    @property
    def paths(self) -> tuple[Path, ...]:
        """From where the project is imported."""
        return tuple(path for path in (self.root, self.root / "lab") if path.is_dir())

    def command(self, name: str) -> list[str]:
        """The command line of a command: its script where the checkout has one, else the package with its name."""
        script = self.root / "scripts" / f"{name}.py"
        return [str(script)] if script.is_file() else ["-m", "finegrained_rlhf", name]


def _git(directory: Path, *words: str) -> str:
    """What git prints. Raises ConfigError with its last line where it fails."""
    done = subprocess.run(["git", "-C", str(directory), *words], capture_output=True, text=True)
    if done.returncode:
        raise ConfigError(f"git {words[0]}: {done.stderr.strip().splitlines()[-1:]}")
    return done.stdout.strip()


class Side:
    """Runs cases in one checkout, and keeps what they gave.

    Args:
        checkout: where they run.
        cases: all of them.
    """

    def __init__(self, checkout: Checkout, cases: Mapping[str, Case]) -> None:
        self.checkout, self._cases = checkout, cases
        self._running: dict[str, int] = {}

    def declared(self, case: Case) -> str:
        """A hash of the declaration of a case and of those that it needs, and of the committed inputs it reads."""
        needs = [self.declared(self._cases[name]) for name in case.needs]
        read = sorted(INPUTS.glob("*")) if any("{inputs}" in word for word in case.arguments) else []
        inputs = [hashlib.sha256(path.read_bytes()).hexdigest() for path in read]
        words = [case.command, case.arguments, case.printed, dict(case.copies), needs, inputs]
        return hashlib.sha256(json.dumps(words).encode()).hexdigest()[:16]

    def status(self, case: Case) -> int | None:
        """Exit status of a case that was run as it is declared now, else None."""
        path = self.checkout.home / case.name / "done.json"
        done: Any = read_json(path) if path.is_file() else {}
        return int(done["status"]) if done.get("declared") == self.declared(case) else None

    def begin(self, case: Case) -> None:
        """Start a case, where it has not been run and all that it needs went well."""
        if self.status(case) is not None or any(self.status(self._cases[n]) != 0 for n in case.needs):
            return
        home = self.checkout.home / case.name
        shutil.rmtree(home, ignore_errors=True)
        (home / "out").mkdir(parents=True)
        places = {need: self.checkout.home / need / "out" for need in case.needs}
        places |= {"out": home / "out", "inputs": INPUTS}
        for target, source in case.copies.items():
            shutil.copytree(_filled(source, places), home / "out" / target)
        arguments = [_filled(word, places) for word in case.arguments]
        command = [*self.checkout.command(case.command), *arguments]
        self._running[case.name] = start(command, home, self.checkout.paths, _VARIABLES)

    def end(self, case: Case) -> None:
        """Wait for a case that was started."""
        if case.name not in self._running:
            return
        status, seconds = wait(self._running[case.name], _LONG_SECONDS if case.long else _SECONDS)
        del self._running[case.name]
        home = self.checkout.home / case.name
        if case.printed:
            shutil.copyfile(home / "stdout.txt", home / "out" / "printed.txt")
        done = {"declared": self.declared(case), "status": status, "processor_seconds": round(seconds, 1)}
        write_json(home / "done.json", {**done, "checkout": str(self.checkout.root)})

    def tree(self, case: Case) -> Tree:
        """The results of a case, with words for the places of the checkout that gave them."""
        home = self.checkout.home
        root = read_json(home / case.name / "done.json")["checkout"]
        return Tree(home / case.name / "out", {str(home): "RESULTS", root: "CHECKOUT", str(INPUTS): "INPUTS"})

    def stop(self) -> None:
        """Kill what still runs."""
        for pid in self._running.values():
            wait(pid, 0.0)

    def complaint(self, case: Case) -> str | None:
        """Why there are no results; None where there are."""
        status = self.status(case)
        if status == 0:
            return None
        if status is None:
            return "not run, since what it needs failed"
        lines = (self.checkout.home / case.name / "stderr.txt").read_text(encoding="utf-8", errors="replace").strip()
        return f"ended with {status}: {lines.splitlines()[-1] if lines else ''}"


def _filled(word: str, places: Mapping[str, Path]) -> str:
    for name, place in places.items():
        word = word.replace(f"{{{name}}}", str(place))
    return word


@dataclass(frozen=True)
class Result:
    """What a case gave.

    Attributes:
        verdict: `equal`, `different` or `failed`.
        compared: values that were compared.
        differences: what differs, or why it failed.
    """

    verdict: str
    compared: int
    differences: tuple[Difference, ...]

    @property
    def row(self) -> dict[str, Any]:
        """As the report has it."""
        return {
            "result": self.verdict,
            "compared": self.compared,
            "differences": [{"name": one.name, "what": one.what, "size": one.size} for one in self.differences],
        }


def compare_case(case: Case, base: Side, new: Side, exclusions: Exclusions) -> Result:
    """Compare what a case gave on both sides; one that gave nothing to compare has failed."""
    complaints = tuple(
        Difference(name, complaint)
        for name, side in (("base", base), ("new", new))
        if (complaint := side.complaint(case)) is not None
    )
    if complaints:
        return Result("failed", 0, complaints)
    comparison = compare_trees(base.tree(case), new.tree(case), exclusions, f"{case.name}/")
    if comparison.differences:
        return Result("different", comparison.compared, comparison.differences)
    nothing = (Difference("both", "no value to compare"),)
    return Result("equal", comparison.compared, ()) if comparison.compared else Result("failed", 0, nothing)


def table(results: Mapping[str, Result]) -> str:
    """One Markdown table: case, result, values compared and different, the largest difference, the first of them."""
    lines = ["| case | result | compared | different | largest difference | first |", "|---|---|---:|---:|---:|---|"]
    for name, result in results.items():
        first = "<br>".join(f"`{one.name}`: {one.what}".replace("|", "¦") for one in result.differences[:_SHOWN])
        most = largest(result.differences)
        size = "" if most is None else f"{most:.3g}"
        count = len(result.differences) or ""
        lines.append(f"| {name} | {result.verdict} | {result.compared:,} | {count} | {size} | {first} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str]) -> Mapping[str, Any]:
    """Run and compare."""
    if len(arguments) < 2 or "=" in arguments[0] or "=" in arguments[1]:
        raise ConfigError("expected BASE NEW out=DIR [only=CASE,…]: two checkouts or revisions, and where results go")
    given = read_arguments(arguments[2:], ("out", "only", "cases"), ("out",))
    cases, out = read_cases(Path(given.get("cases", CASES))), Path(given["out"]).resolve()
    names = chosen(list(cases), given.get("only"))
    names = [name for name in names if "only" in given or not cases[name].long]
    exclusions = Exclusions.read()
    base, new = (Checkout.of(word, out) for word in arguments[:2])
    sides = Side(base, cases), Side(replace(new, again=new.digest == base.digest), cases)
    import_libraries()
    results: dict[str, Result] = {}
    try:
        for name in _with_needs(names, cases):
            for side in sides:
                side.begin(cases[name])
            for side in sides:
                side.end(cases[name])
            if name in names:
                results[name] = result = compare_case(cases[name], *sides, exclusions)
                shown = "".join(f"\n  {one.name}: {one.what}" for one in result.differences[:_SHOWN])
                print(f"{result.verdict}: {name}{shown}", flush=True)
    finally:
        for side in sides:
            side.stop()
    (out / "report.md").write_text(table(results), encoding="utf-8")
    write_json(out / "report.json", {name: result.row for name, result in results.items()})
    equal = {name: {"ok": result.verdict == "equal"} for name, result in results.items()}
    print(f"{sum(one['ok'] for one in equal.values())} of {len(results)} cases equal; {out / 'report.md'}")
    return {"equal": equal}


def _with_needs(names: Sequence[str], cases: Mapping[str, Case]) -> list[str]:
    """The names and all that they need, in the order of the file."""
    wanted: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in wanted:
            wanted.add(name)
            waiting += cases[name].needs
    return [name for name in cases if name in wanted]


if __name__ == "__main__":
    run_main(main)
