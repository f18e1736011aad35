"""What every results table does alike: the rows of several seeds, the results file, the page beside it, the figure."""

from __future__ import annotations

import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from finegrained_lab.experiments.comparison import Claim, check_claims, claims_page
from finegrained_lab.experiments.run_settings import settings_of_runs, settings_words
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import read_json, write_json, write_text
from finegrained_rlhf.core.markers import OutputFile
from finegrained_rlhf.factworld.report import run_seconds
from finegrained_rlhf.runtime.directory.provenance import command_line, commit_of, nameless_hardware
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory

Evidence = Literal["generated world", "real data", "real data and pretrained weights"]
JudgedBy = Literal["oracle", "labels", "learned model", "no judge"]
"""What says how good a table's rows are: the oracle (or script) of a world, labels of people or of a data set, a model
that was trained to judge, or nothing: a judge itself is measured. A learned model needs a gate (`experiments.gate`).
"""
Subjects = Literal["models", "scripts", "scripts, one step by a model"]
"""What a table's rows are of: models that were trained or loaded, scripts that stand in for one, or such scripts with a
model for one of their steps.
"""
_CHECKOUT = Path(__file__).resolve().parents[3]
_DIRTY = "-dirty"


def made_of_changed_files(result: Mapping[str, Any]) -> bool:
    """Whether a results file was made of files that differ from the commit that it names: no checkout gives it."""
    return str(result.get("commit", "")).endswith(_DIRTY)


@dataclass(frozen=True)
class Results(Settings, ABC):
    """A job that writes a results file and the page beside it, and what the file says of how it was made.

    Attributes:
        output: the results file; the page gets the same name with `.md`.
        command: what was run, as the page shows it.
        chosen: which settings were chosen, on which data of which seeds, in a sentence or two.
        evidence: what the numbers are evidence of, for `docs/proven.md`.
        judged_by: what says how good its rows are.
        subjects: what its rows are of.
        made_before: every earlier making of this table, the oldest first: its seeds, and why it was made again.
        configuration: the resolved configuration of the experiment whose results these are, for the file; the script
            that runs the experiment gives it.
    """

    output: OutputFile
    command: str
    chosen: str = field(kw_only=True)
    evidence: Evidence = field(default="generated world", kw_only=True)
    judged_by: JudgedBy = field(default="oracle", kw_only=True)
    subjects: Subjects = field(default="models", kw_only=True)
    made_before: Sequence[str] = field(default=(), kw_only=True)
    configuration: Mapping[str, Any] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.judged_by == "oracle" and self.evidence != "generated world":
            raise ConfigError(f"judged_by: no oracle knows {self.evidence}; expected labels, learned model or no judge")

    @abstractmethod
    def page(self, result: Mapping[str, Any]) -> str:
        """The page of a results file."""

    def made_by(self) -> dict[str, Any]:
        """Fields of the results file: `command`, `command_line` (of this process), `commit`, `evidence`, `judged_by`,
        `subjects`, `chosen`, `made_before`, `hardware` (of this machine), `configuration`.
        """
        return {
            "command": self.command,
            "command_line": command_line(),
            "commit": _commit(),
            "evidence": self.evidence,
            "judged_by": self.judged_by,
            "subjects": self.subjects,
            "chosen": self.chosen.strip(),
            "made_before": [entry.strip() for entry in self.made_before],
            "hardware": nameless_hardware(),
            "configuration": self.configuration,
        }

    def opening(self, result: Mapping[str, Any], title: str, about: str, more: str = "") -> str:
        """How every page begins: its title, what was measured on what, how it was made, and what came before it."""
        line = result.get("command_line", result["command"])
        run = "" if line == result["command"] else f" (collected by `{line}`)"
        return (
            f"# {title}\n\nGenerated from the JSON file of the same name; do not edit. {about}\n\n"
            f"`{result['command']}`{run} at commit `{result['commit']}`{more}\n\n"
            f"{result['chosen']} {_makings(result['made_before'])} {settings_words(result)}"
        )

    def write(self, result: dict[str, Any]) -> dict[str, Any]:
        """Write a result and its page, and print the page.

        Returns:
            The result.

        Raises:
            ConfigError: it would be a table of this repository, and tracked files differ from its commit.
        """
        if made_of_changed_files(result) and Path(self.output).resolve().is_relative_to(_CHECKOUT / "docs/results"):
            raise ConfigError(f"no checkout gives a table of {result['commit']}: commit first, then collect again")
        write_json(self.output, result)
        page = self.page(result)
        write_text(Path(self.output).with_suffix(".md"), page)
        print(f"\n{page}\nresults: {self.output}")
        return result


@dataclass(frozen=True)
class ResultsTable(Results):
    """Collects an experiment of several seeds into a results file, its page and its figure.

    The figure gets the results file's name with `.svg`.

    Attributes:
        directory: of the experiment; each seed has `seed_N/` below it.
        seeds: which of them.
    """

    title: ClassVar[str]
    about: ClassVar[str]
    """What was measured on what, in a sentence or two; `{NAME}` is the experiment's setting of that name."""
    world: ClassVar[str]
    """Where the numbers come from, as the page names it."""
    runs: ClassVar[tuple[str, ...]]
    """What the experiment trains, as run directories of a seed."""
    claims: ClassVar[tuple[Claim, ...]] = ()
    stated_settings: ClassVar[tuple[str, ...]] = ()
    """Settings of the experiment that the results state and the page may speak of."""
    caption: ClassVar[str] = ""
    """Of the figure; a table without one has no figure."""

    directory: str
    seeds: Sequence[int] | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Refuse a table with a caption that draws nothing, and one that draws without a caption.

        Raises:
            TypeError: `caption` and `draw` do not come together.
        """
        super().__init_subclass__(**kwargs)
        if bool(cls.caption) == (cls.draw is ResultsTable.draw):
            raise TypeError(f"{cls.__name__}: a figure needs both a caption and draw()")

    def run(self) -> dict[str, Any]:
        """Write results and page, print the page, draw the figure.

        Raises:
            ConfigError: no seeds are given, or the figure needs matplotlib (results and page are written then).
            DataError: a step's result is missing or is not what it should be.
        """
        if not self.seeds:
            raise ConfigError("a table is made of several seeds: seeds=[9,10,11], or collect=null to make none")
        roots = {seed: Path(self.directory) / f"seed_{seed}" for seed in self.seeds}
        measured = self.measure(roots)
        trained = [run for runs in self._timed().values() for run in runs]
        result: dict[str, Any] = {
            **self.made_by(),
            "seeds": list(self.seeds),
            "run_settings": settings_of_runs(roots, trained),
            **self.conditions(roots),
            "seconds": {name: _seconds(roots, runs) for name, runs in self._timed().items()},
            **measured,
        }
        if self.claims:
            result["claims"] = check_claims(self.claims, measured["rows"])
        self.write(result)
        self.draw(result, self.figure_path)
        return result

    @abstractmethod
    def measure(self, roots: Mapping[int, Path]) -> dict[str, Any]:
        """The table's own part of the results: `rows`, one a system and seed, `summary`, and what else it has.

        Args:
            roots: the directory of each seed.
        """

    @abstractmethod
    def body(self, result: Mapping[str, Any]) -> str:
        """The table's own part of the page."""

    def conditions(self, roots: Mapping[int, Path]) -> dict[str, Any]:
        """What else the results hold for, as fields of the results file: the `stated_settings`, where there are any.

        Raises:
            DataError: it is not the same for all seeds.
        """
        stated = {name: setting_of(roots, name) for name in self.stated_settings}
        return {"settings": stated} if stated else {}

    def draw(self, result: Mapping[str, Any], path: Path) -> None:
        """Draw the figure; only a table with a caption has one."""

    @property
    def figure_path(self) -> Path:
        """Where the figure goes."""
        return Path(self.output).with_suffix(".svg")

    def introduction(self, result: Mapping[str, Any]) -> str:
        """The first paragraph of the page, after how it was made."""
        return self.about.format_map((result.get("configuration") or {}).get("settings", {}))

    def page(self, result: Mapping[str, Any]) -> str:
        """The page of a results file."""
        seeds = f", seeds {', '.join(map(str, result['seeds']))}"
        parts = [self.opening(result, self.title, self.introduction(result), seeds)]
        if self.caption:
            parts.append(f"![{self.caption}]({self.figure_path.name})")
        parts.append(self.body(result).strip())
        if "claims" in result:
            parts.append(f"## The thesis and {self.world}\n\n{claims_page(result['claims'], self.world).strip()}")
        parts.append(f"## What it took\n\n{self.took(result)}")
        return "\n\n".join(parts) + "\n"

    def _timed(self) -> dict[str, tuple[str, ...]]:
        return {"table": self.runs}

    def took(self, result: Mapping[str, Any]) -> str:
        """How long the runs took, in a sentence or two."""
        runs = result["seconds"]["table"]
        minutes = sum(runs.values()) / 60
        return (
            f"Training steps and validations of the runs ({', '.join(runs)}), all seeds together: {minutes:.1f} "
            "minutes, one run after the other. Loading, making data and evaluating are not counted."
        )


def _commit() -> str:
    """The commit of this checkout; other tables that were just made anew do not count as a difference."""
    commit = commit_of(_CHECKOUT)
    if not commit.endswith(_DIRTY):
        return commit
    changed = ["git", "-C", str(_CHECKOUT), "status", "--porcelain", "--untracked-files=no"]
    rest = subprocess.run([*changed, ":!docs/results"], capture_output=True, text=True, check=True).stdout.strip()
    return commit if rest else commit.removesuffix(_DIRTY)


def _makings(before: Sequence[str]) -> str:
    """A sentence on how often a table was made before, and each of those times."""
    if not before:
        return "The table was made once."
    times = {1: "once", 2: "twice"}.get(len(before), f"{len(before)} times")
    return f"The table was made {times} before: {'; '.join(entry.rstrip('.') for entry in before)}."


def setting_of(roots: Mapping[int, Path], name: str) -> Any:
    """A setting of the experiment, which must be the same for all seeds.

    Raises:
        DataError: it is not, or a directory holds another seed.
    """
    by_seed = {}
    for seed, root in roots.items():
        record = read_json(root / "experiment.json")
        if record["seed"] != seed:
            raise DataError(f"expected seed {seed}, got {record['seed']}", file=root / "experiment.json", field="seed")
        by_seed[seed] = record["settings"][name]
    if len(set(by_seed.values())) > 1:
        raise DataError(f"the seeds were run with different {name}: {by_seed}", file=next(iter(roots.values())).parent)
    return next(iter(by_seed.values()))


def _seconds(roots: Mapping[int, Path], runs: Sequence[str]) -> dict[str, float]:
    """Seconds that each run spent in training steps and validations, summed over seeds."""
    return {run: sum(run_seconds(RunDirectory(root / run)) for root in roots.values()) for run in runs}
