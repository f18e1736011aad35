"""Forecasts from the first steps of a run, by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from finegrained_lab.experiments import Forecast
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import read_json, write_jsonl


def forecast(tmp_path: Path, hours: float = 3.0) -> Forecast:
    return Forecast(str(tmp_path / "run"), 40, 5, 2, hours, str(tmp_path / "forecast.json"), "settings.steps")


def write_run(tmp_path: Path) -> None:
    steps = [{"step": 1, "time/step_s": 90.0}, {"step": 2, "time/step_s": 60.0}]
    write_jsonl(tmp_path / "run" / "metrics.jsonl", steps)
    write_jsonl(tmp_path / "run" / "eval.jsonl", [{"step": 0, "time/validate_s": 120.0}, {"step": 2}])


def test_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """40 steps of the slower 90 s and 5 validations of 120 s are 4,200 s."""
    write_run(tmp_path)
    found = forecast(tmp_path).run()
    hours = 4200 / 3600
    assert found == pytest.approx({"step_s": 90.0, "validation_s": 120.0, "hours_a_run": hours, "hours": 2 * hours})
    assert read_json(tmp_path / "forecast.json") == found
    assert "about 1.2 hours a run of 40 steps, 2.3 for 2 of them" in capsys.readouterr().out


def test_the_processors_part_is_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of the slowest step; a machine that is shared takes the rest."""
    write_run(tmp_path)
    rows = [{"step": 1, "time/step_s": 90.0, "time/processor_s": 30.0}, {"step": 2, "time/step_s": 60.0}]
    write_jsonl(tmp_path / "run" / "metrics.jsonl", rows)
    assert forecast(tmp_path).run()["processor_s"] == 30.0
    assert "a step takes 90.0 s (30.0 s of a processor), a validation" in capsys.readouterr().out


def test_too_much_is_refused_and_says_what_fits(tmp_path: Path) -> None:
    """An hour: n steps take 90 n + 120 (1 + 4 n / 40) seconds, so 34 fit."""
    write_run(tmp_path)
    with pytest.raises(ConfigError, match=r"40 steps would take 1\.2 hours .* may take 1: settings\.steps=34 fits"):
        forecast(tmp_path, hours=1.0).run()
    assert not (tmp_path / "forecast.json").exists()
    with pytest.raises(ConfigError, match=r"no step fits"):
        forecast(tmp_path, hours=0.01).run()


def test_a_run_without_steps_is_named(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "run" / "metrics.jsonl", [])
    with pytest.raises(DataError, match=r"run/metrics\.jsonl.*no step to measure yet"):
        forecast(tmp_path).run()


@pytest.mark.parametrize("changed", [{"steps": 0}, {"runs": 0}, {"hours": 0.0}, {"validations": 0}])
def test_settings_are_checked(changed: dict[str, float]) -> None:
    whole = {"measured": "x", "steps": 1, "validations": 1, "runs": 1, "hours": 1.0, "output": "y"}
    with pytest.raises(ConfigError, match=f"{next(iter(changed))}: expected (at least 1|above 0)"):
        Forecast(**{**whole, **changed})  # type: ignore[arg-type]
