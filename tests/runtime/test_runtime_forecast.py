"""The forecast after the first micro-batch: once a start, in numbers that can be worked by hand."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from finegrained_rlhf.runtime.loop import forecast
from finegrained_rlhf.runtime.loop.forecast import first_measured, first_step


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[list[float]]:
    """Seconds that the clock shows, which a test moves on."""
    now = [100.0]
    monkeypatch.setattr(forecast.time, "perf_counter", lambda: now[0])
    caplog.set_level(logging.INFO)
    yield now


def forecasts(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [message for message in caplog.messages if message.startswith("forecast")]


def test_a_step_and_a_run_are_foretold_from_one_micro_batch(
    clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    """30 s of rollout, then 2 s a micro-batch: 30 + 4 epochs × 5 × 2 = 70 s a step, 100 steps take 7,000 s."""
    with first_step(100, shown=True):
        clock[0] += 30
        for _ in range(4):
            for _ in first_measured(range(5), passes=4):
                clock[0] += 2
    assert forecasts(caplog) == [
        "forecast: a micro-batch took 2 s, 19 more make a step of about 70 s; "
        "100 steps about 1.9 h, without validations"
    ]


def test_it_is_said_before_the_second_micro_batch(clock: list[float], caplog: pytest.LogCaptureFixture) -> None:
    with first_step(1, shown=True):
        for number in first_measured([0, 1]):
            assert len(forecasts(caplog)) == number
            clock[0] += 1


@pytest.mark.parametrize(("shown", "inside", "count"), [(False, True, 3), (True, False, 3), (True, True, 1)])
def test_where_nothing_is_said(
    clock: list[float], caplog: pytest.LogCaptureFixture, shown: bool, inside: bool, count: int
) -> None:
    """Another process, a later step, and a step of one micro-batch, whose own line comes as soon."""
    if inside:
        with first_step(5, shown):
            assert list(first_measured(range(count))) == list(range(count))
    else:
        with first_step(5, shown):
            pass
        assert list(first_measured(range(count))) == list(range(count))
    assert forecasts(caplog) == []
