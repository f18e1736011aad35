"""What `finegrained report` and `finegrained compare` build and run."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.files import write_text
from finegrained_rlhf.core.markers import InputFile, OutputFile
from finegrained_rlhf.report.console import print_table
from finegrained_rlhf.report.elements.html import number
from finegrained_rlhf.report.pages.compare import compare_page, measures_by_group, names_of
from finegrained_rlhf.report.pages.run import run_page
from finegrained_rlhf.report.pages.verdict import policy_name, warnings_of_run
from finegrained_rlhf.report.runs.record import RunRecord, read_run
from finegrained_rlhf.report.runs.settings import by_identity, changed_keys

NAME = "report.html"


class Report:
    """One HTML page about a training run, or about several beside one another.

    Args:
        run: run directory, or several to compare.
        output: HTML file; None writes `report.html` in the run directory, and has to be given for several runs.

    Raises:
        ConfigError: no run is named, one is named twice, or several are and no output.
    """

    def __init__(self, run: InputFile | Sequence[InputFile], output: OutputFile | None = None) -> None:
        self.paths = [Path(path) for path in ([run] if isinstance(run, str) else run)]
        if not self.paths:
            raise ConfigError("run: expected a run directory, or a list of them")
        if len({path.resolve() for path in self.paths}) < len(self.paths):
            raise ConfigError("run: a directory is named twice")
        if len(self.paths) > 1 and output is None:
            raise ConfigError("output: name the HTML file that compares the runs")
        self.output = Path(output) if output is not None else self.paths[0] / NAME

    def run(self) -> None:
        """Write the page and say where.

        Raises:
            DataError: a directory is no run, or one of its files is damaged.
        """
        records = [read_run(path) for path in self.paths]
        one = len(records) == 1
        page = run_page(records[0]) if one else compare_page(dict(zip(names_of(self.paths), records, strict=True)))
        write_text(self.output, page)
        print(f"report: {self.output}")


class Compare:
    """Compare training runs on the console.

    Args:
        runs: two or more run directories.
    """

    def __init__(self, runs: InputFile | Sequence[InputFile]) -> None:
        self.paths = [Path(path) for path in ([runs] if isinstance(runs, str) else runs)]

    def run(self) -> None:
        """Print the comparison.

        Raises:
            ConfigError: fewer than two runs are named, or one twice.
            DataError: a directory is no run, or one of its files is damaged.
        """
        if len({path.resolve() for path in self.paths}) < max(len(self.paths), 2):
            named = ", ".join(map(str, self.paths)) or "none"
            raise ConfigError(f"runs: expected two or more directories, each once, got {named}")
        records = [read_run(path) for path in self.paths]
        print_comparison(dict(zip(names_of(self.paths), records, strict=True)))


def print_comparison(runs: Mapping[str, RunRecord], stream: TextIO | None = None) -> None:
    """Configurations, then measures at the exported policies, then what every run's own report warns of."""
    out = stream if stream is not None else sys.stdout
    rows = [[key, *values] for key, values in changed_keys(runs).items()]
    print("Configuration" if rows else "Configuration: the same in all runs", file=out)
    if rows:
        print_table(["key", *runs], rows, words=len(runs) + 1, stream=out)
    print("\nExported policies", file=out)
    cells: list[list[str]] = [["policy", "", *map(policy_name, runs.values())]]
    for _, measures in measures_by_group(runs):
        for (name, unit), values in measures.items():
            cells.append([f"{name} ({unit})" if unit else name, *map(number, values)])
    print_table(["measure", "start", *runs], cells, stream=out)
    for name, record in runs.items():
        for line in _remarks(record):
            print(f"{name}: {line}", file=out)
    if len(by_identity(runs)) > 1:
        print("The rewards differ: weighted totals are in different units.", file=out)


def _remarks(record: RunRecord) -> list[str]:
    lines = [f"stopped early: {record.state.stop_reason}"] if record.state.stop_reason else []
    if record.is_initial:
        lines.append(f"exported the initial policy: {record.found_nothing_better}")
    return lines + [f"{w.kind} hacking? step {step}: {w.message}" for step, w in warnings_of_run(record)]
