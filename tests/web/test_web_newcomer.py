"""A newcomer's minute: from `finegrained serve DIR` to a moved weight by which another answer wins."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from browser import launched
from marking_browser import Server
from playwright.sync_api import Browser, Page, expect
from smoke import made_once, run_smoke

pytestmark = pytest.mark.slow
MINUTE_S = 60.0


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    yield from launched()


def first(page: Page) -> str:
    """The number of the answer that stands first."""
    cell = page.locator("#answers .cells > div").first
    expect(cell).to_have_class("first")
    return re.search(r"answer (\d+)", cell.locator("h4 bdi").inner_text()).group(1)  # type: ignore[union-attr]


def test_from_the_command_to_another_answer_that_wins_in_a_minute(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    # DEMO=outputs/demo times the directory that `make demo` made, in place of a run of `experiment=smoke`.
    finished = os.environ.get("DEMO") or made_once(tmp_path_factory, "smoke", run_smoke)
    begun, marks = time.monotonic(), list[tuple[str, float]]()

    def done(what: str) -> None:
        marks.append((what, time.monotonic() - begun))

    server = Server(Path(finished).resolve(), log=tmp_path / "server.txt")
    try:
        done("serves")
        page = browser.new_context(viewport={"width": 1400, "height": 900}).new_page()
        page.set_default_timeout(120_000)
        page.goto(server.url)
        page.get_by_role("link", name="Playground").click()
        expect(page.locator("#main")).not_to_have_value("", timeout=120_000)
        done("a question is there")
        page.get_by_label("Answers of each policy").fill("8")
        page.get_by_role("button", name="Answer", exact=True).click()
        expect(page.locator("#answers .cells > div").nth(7)).to_be_visible(timeout=120_000)
        done("answers are there")
        before = first(page)
        slider = page.locator(".slider", has_text=re.compile(r"answer \d+ wins")).first
        weight, number = re.search(r"([\d.−-]+) or (?:less|more): answer (\d+) wins", slider.inner_text()).groups()  # type: ignore[union-attr]
        slider.get_by_role("slider").fill(weight.replace("−", "-"))
        expect(page.locator("#winner")).to_contain_text(f"Answer {number} wins")
        assert first(page) == number != before
        done("another answer wins")
        page.screenshot(path=Path(os.environ.get("SCREENSHOTS", tmp_path)) / "newcomer.png", full_page=True)
    finally:
        server.end()
        print("; ".join(f"{what} after {seconds:.1f} s" for what, seconds in marks))
    assert marks[-1][1] < MINUTE_S
