"""A report as a job: what `finegrained report` builds and runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.files import write_text
from finegrained_rlhf.core.markers import InputFile, OutputFile
from finegrained_rlhf.report.pages.compare import compare_page, names_of
from finegrained_rlhf.report.pages.run import run_page
from finegrained_rlhf.report.runs.record import read_run

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
