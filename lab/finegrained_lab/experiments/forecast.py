"""How long runs of an experiment will take, from the first steps of one of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import read_jsonl, write_json
from finegrained_rlhf.core.markers import InputFile, OutputFile, above, at_least
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory


@dataclass(frozen=True)
class Forecast(Settings):
    """A job: prints what one step and one validation took and what that makes for whole runs, and refuses too much.

    Attributes:
        measured: run directory with at least one step; its slowest one counts, so that a first step in which memory is
            still being had makes the forecast longer, never shorter.
        steps: of a whole run.
        validations: of a whole run, that before its first step included.
        runs: how many of them are to come.
        hours: that one run may take.
        output: JSON file for the forecast; written only where it is kept.
        setting: the key that makes runs shorter, for the error.
    """

    measured: InputFile
    steps: Annotated[int, at_least(1)]
    validations: Annotated[int, at_least(1)]
    runs: Annotated[int, at_least(1)]
    hours: Annotated[float, above(0)]
    output: OutputFile
    setting: str = "total_steps"

    def hours_of(self, step_s: float, validation_s: float, steps: int) -> float:
        """Hours of one run of so many steps, in which validations come as often as in a whole one."""
        validations = 1 + (self.validations - 1) * steps / self.steps
        return (step_s * steps + validation_s * validations) / 3600

    def run(self) -> dict[str, float]:
        """Print the forecast and write it.

        Returns:
            `step_s` and `validation_s` in seconds, `hours_a_run` and `hours` of all runs; where the run kept it,
            `processor_s`, what the slowest step took of a processor, all threads together: a machine that other
            programs share takes longer than its parts add up to.

        Raises:
            DataError: the run has no step yet.
            ConfigError: a run would take longer than `hours`; says how many steps fit.
        """
        run = RunDirectory(self.measured)
        measured = read_jsonl(run.metrics)
        steps = [row["time/step_s"] for row in measured]
        if not steps:
            raise DataError("no step to measure yet", file=run.metrics)
        rows = read_jsonl(run.eval) if run.eval.is_file() else []
        validation_s = max((row.get("time/validate_s", 0.0) for row in rows), default=0.0)
        hours = self.hours_of(max(steps), validation_s, self.steps)
        if hours > self.hours:
            numbers = range(1, self.steps)
            fits = max((n for n in numbers if self.hours_of(max(steps), validation_s, n) <= self.hours), default=None)
            raise ConfigError(
                f"a run of {self.steps} steps would take {hours:.1f} hours here (a step {max(steps):.0f} s, a "
                f"validation {validation_s:.0f} s), and may take {self.hours:g}: "
                f"{'no step fits' if fits is None else f'{self.setting}={fits} fits'}"
            )
        forecast = {
            "step_s": max(steps),
            "validation_s": validation_s,
            "hours_a_run": hours,
            "hours": hours * self.runs,
        }
        slowest, worked = max(measured, key=lambda row: row["time/step_s"]), ""
        if "time/processor_s" in slowest:
            forecast["processor_s"] = slowest["time/processor_s"]
            worked = f" ({forecast['processor_s']:.1f} s of a processor)"
        print(
            f"a step takes {max(steps):.1f} s{worked}, a validation {validation_s:.1f} s: about {hours:.1f} hours a "
            f"run of {self.steps} steps, {forecast['hours']:.1f} for {self.runs} of them"
        )
        write_json(Path(self.output), forecast)
        return forecast
