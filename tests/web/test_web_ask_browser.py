"""The page "Ask" in a real browser: a question, its answer, the document at the place, a mark, the next question."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from ask_served import FILES, QUESTION, make_served
from browser import CONTRAST, faults, launched
from playwright.sync_api import Browser, expect
from served import served

from finegrained_rlhf.feedback.reading import read_feedback
from finegrained_rlhf.web.ask.routes import FEEDBACK

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    yield from launched()


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_served(tmp_path_factory.mktemp("asked"))


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (1400, "dark"), (390, "light"), (390, "dark")])
def test_a_question_is_answered_its_place_opens_and_a_mark_is_kept(
    browser: Browser, directory: Path, tmp_path: Path, width: int, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
    page, asked, complaints = context.new_page(), [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.set_default_timeout(120_000)
    with served(directory) as address:
        page.goto(address)
        page.get_by_role("link", name="Ask", exact=True).click()
        page.get_by_label("Question").fill(QUESTION)
        page.get_by_role("button", name="Ask", exact=True).click()
        expect(page.locator(".turn .answer")).to_contain_text("The museum opened in 1931.", timeout=120_000)
        page.get_by_role("button", name="Citation 1").click()
        expect(page.locator("#source mark")).to_have_text(page.locator(".citations q").first.inner_text())
        assert page.locator("#source pre").inner_text().strip() == FILES["museum.md"].strip()
        shots = Path(os.environ.get("SCREENSHOTS", tmp_path))
        page.screenshot(path=shots / f"ask_source_{scheme}_{width}.png", full_page=True)
        assert faults(page) == []
        page.get_by_role("button", name="Close").click()
        page.locator(".searched summary").click()
        expect(page.locator(".searched mark").first).to_be_visible()
        page.locator(".answer [data-start]").first.select_text()
        page.get_by_role("button", name="Mark what is selected").click()
        expect(page.locator(".said")).to_have_text(f"kept in {FEEDBACK}")
        page.get_by_label("Question").fill("Who won the cup in 1998?")
        page.get_by_label("Question").press("Enter")
        expect(page.locator(".turn .kind").first).to_have_text("not in these documents", timeout=120_000)
        page.screenshot(path=shots / f"ask_{scheme}_{width}.png", full_page=True)
        seen, weak = page.evaluate(CONTRAST)
        assert seen > 15 and not weak
        assert faults(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    (record,) = read_feedback(directory / FEEDBACK)
    (mark,) = record.feedback.errors
    assert record.predictions[0][mark.start : mark.end] == record.predictions[0].split(" Its ")[0]
    assert not complaints and all(url.startswith(address) for url in asked)
    context.close()
