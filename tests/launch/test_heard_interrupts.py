"""Ctrl-C that falls into a callback of a weak reference, where Python drops every exception, still ends a command."""

from __future__ import annotations

import signal
import sys
import time
import weakref
from collections.abc import Callable

import pytest

from finegrained_rlhf.launch.commands import heard_interrupts


class Thing:
    """What a weak reference can point to."""


def drop_within(callback: Callable[[object], None]) -> None:
    """Call a function where Python only prints what it raises."""
    thing = Thing()
    _watched = weakref.ref(thing, callback)
    del thing


def test_an_interrupt_that_python_drops_comes_again(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), heard_interrupts():
        drop_within(lambda _: signal.raise_signal(signal.SIGINT))
        time.sleep(20)
    assert capsys.readouterr().err == ""


def test_other_dropped_exceptions_are_printed_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[type[BaseException]] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda dropped: seen.append(dropped.exc_type))
    with heard_interrupts():
        drop_within(lambda _: {}[0])
    assert seen == [KeyError]
    drop_within(lambda _: {}[1])
    assert seen == [KeyError, KeyError]
