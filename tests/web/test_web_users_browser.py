"""The page "My notes" in a real browser: notes in every state, and a correction by clicking."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from browser import CONTRAST, faults, launched, listened
from playwright.sync_api import Browser, expect
from served import served

from finegrained_rlhf.personalization import MemoryTools, UserMemory
from finegrained_rlhf.personalization.store.protocol import NoteChange, NoteDecision

pytestmark = pytest.mark.slow
HOSTILE = "<img src=x onerror='window.pwned=1'> " + "Donaudampfschifffahrtsgesellschaft" * 6 + " 🌊 مرحبا"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    yield from launched()


def make_memory(file: Path) -> str:
    """Notes of ada, one of each state, one of them corrected and one with a number; another user's beside them."""
    memory = UserMemory(str(file), durable=False)
    for name in ("ada", "ben"):
        memory.set_consent(name, store=True, train=False)
    tools, handle = MemoryTools(memory, "ada"), memory.user("ada")
    for text, action in ((HOSTILE, "delete"), ("I leave at six.", "expire"), ("I eat no meat.", "hold")):
        handle.decide(NoteDecision(tools.record(text)["note"], action, by="user"))  # type: ignore[arg-type]
    event = handle.record("counted", "edit", {"before": "Dear Sir,", "after": "Hi,"})
    handle.apply(event, [NoteChange("style", {"rule": "Greets with a first name.", "seen": 3})])
    note = str(tools.record("I live in Linz.")["note"])
    tools.correct(note, {"text": "I live in Graz."}, 1)
    MemoryTools(memory, "ben").record("a note of ben")
    memory.close()
    return str(file)


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (1400, "dark"), (390, "light"), (390, "dark")])
def test_a_note_is_corrected_by_clicking(browser: Browser, tmp_path: Path, width: int, scheme: str) -> None:
    page, asked, complaints = listened(browser, width, scheme)
    page.set_default_timeout(120_000)
    with served(tmp_path, memory=make_memory(tmp_path / "users.db"), user="ada") as address:
        page.goto(address)
        page.get_by_role("link", name="My notes").click()
        note = page.get_by_role("region", name="note 1")
        expect(note.get_by_label("text")).to_have_value("I live in Graz.")
        note.get_by_label("text").fill("I live in Wels.")
        note.get_by_role("button", name="correct").click()
        expect(note).to_contain_text("version 3")
        expect(note.get_by_label("text")).to_have_value("I live in Wels.")
        note.locator("summary").click()
        expect(note.locator("dd", has_text="I live in Graz.")).to_be_visible()
        shots = Path(os.environ.get("SCREENSHOTS", tmp_path))
        page.screenshot(path=shots / f"notes_{scheme}_{width}.png", full_page=True)
        seen, weak = page.evaluate(CONTRAST)
        assert seen > 30 and not weak
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert faults(page) == []
        assert "ben" not in page.locator("main").inner_text() and page.evaluate("window.pwned") is None
    assert not complaints and all(url.startswith(address) for url in asked)
    page.context.close()
