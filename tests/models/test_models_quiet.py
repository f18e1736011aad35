"""Progress of transformers is never among ours: while a command runs, and while any thread opens or saves a model."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from rl_toy import model
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from finegrained_rlhf.models.quiet import quiet_transformers, silence_transformers


@pytest.fixture(autouse=True)
def loud(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """transformers as it comes."""
    for name in ("TRANSFORMERS_VERBOSITY", "HF_HUB_DISABLE_PROGRESS_BARS"):
        monkeypatch.delenv(name, raising=False)
    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_info()
    logging.enable_progress_bar()
    yield
    logging.set_verbosity(before[0])
    (logging.enable_progress_bar if before[1] else logging.disable_progress_bar)()


def saved_and_opened(directory: Path) -> None:
    model("gpt2").save_pretrained(directory)
    AutoModelForCausalLM.from_pretrained(directory)


def test_within_it_nothing_is_shown_and_the_settings_return(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    saved_and_opened(tmp_path)
    assert "Writing model shards" in capfd.readouterr().err
    with quiet_transformers():
        saved_and_opened(tmp_path)
    assert capfd.readouterr().err == ""
    assert logging.is_progress_bar_enabled() and logging.get_verbosity() == logging.INFO


def test_a_thread_that_leaves_does_not_make_another_loud(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A checkpoint is written while the next policy is opened."""
    within, leave = threading.Event(), threading.Event()

    def write() -> None:
        with quiet_transformers():
            within.set()
            leave.wait(60)

    writer = threading.Thread(target=write)
    writer.start()
    within.wait(60)
    with quiet_transformers():
        leave.set()
        writer.join()
        saved_and_opened(tmp_path)
    assert capfd.readouterr().err == "" and logging.is_progress_bar_enabled()


def test_a_command_is_quiet_to_its_end(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Also where transformers was imported before."""
    silence_transformers()
    saved_and_opened(tmp_path)
    assert capfd.readouterr().err == ""
