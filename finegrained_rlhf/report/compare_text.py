"""Runs compared as text: what differs in their configurations, and their scores at the exported policies.

What `finegrained compare` builds and runs; the same numbers as the page that `finegrained report` makes of several
runs.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.markers import InputFile
from finegrained_rlhf.report.elements.html import number
from finegrained_rlhf.report.elements.text_table import print_table
from finegrained_rlhf.report.pages.compare import measures_by_group, names_of
from finegrained_rlhf.report.pages.verdict import policy_name, warnings_of_run
from finegrained_rlhf.report.runs.record import RunRecord, read_run
from finegrained_rlhf.report.runs.settings import by_identity, changed_keys


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
