"""The application in a real browser, wide and narrow, light and dark: what a person sees, and no script that fails."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from browser import CONTRAST, faults, launched
from playwright.sync_api import Browser, Page, expect
from report_toy import step_row, write_toy_run
from served import served

pytestmark = pytest.mark.slow
RUN = "/runs/run?name=toy"
PAGES = {
    "table": "/runs",
    "overview": RUN,
    "curves": f"{RUN}&view=curves",
    "answers": f"{RUN}&view=answers",
    "over_time": f"{RUN}&view=answers&prompt=prompt-1",
    "answer": f"{RUN}&view=answer&kind=training&step=3&row=1",
    "rewards": f"{RUN}&view=rewards",
    "settings": f"{RUN}&view=settings",
    "compare": "/runs/compare?run=toy&run=other",
    "error": "/runs/run?name=none",
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    yield from launched()


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    for name in ("toy", "other"):
        write_toy_run(tmp_path / name)
    with served(tmp_path) as url:
        yield url


def opened(browser: Browser, address: str, width: int = 1400, scheme: str = "light") -> tuple[Page, list[str]]:
    """A page and what it complains about; a request that leaves this machine is a complaint."""
    page = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme).new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: complaints.append("dialog") or dialog.dismiss())
    page.on("request", lambda request: request.url.startswith(address) or complaints.append(request.url))
    return page, complaints


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 390])
def test_every_page_fits_and_can_be_read(
    browser: Browser, address: str, tmp_path: Path, width: int, scheme: str
) -> None:
    page, complaints = opened(browser, address, width, scheme)
    pictures = Path(os.environ.get("SCREENSHOTS", tmp_path))
    for name, path in PAGES.items():
        page.goto(address + path)
        page.screenshot(path=pictures / f"{name}_{scheme}_{width}.png", full_page=True)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        seen, weak = page.evaluate(CONTRAST)
        assert seen > 5 and not weak, name
        assert page.evaluate("window.pwned") is None
        assert faults(page) == [], name
        assert [line for line in complaints if name != "error" or "404" not in line] == [], name
        complaints.clear()
    page.context.close()


def test_pages_follow_a_run_and_keep_their_choices_in_the_address(
    browser: Browser, address: str, tmp_path: Path
) -> None:
    page, complaints = opened(browser, address)
    page.goto(f"{address}{RUN}&view=curves")
    with open(tmp_path / "toy" / "metrics.jsonl", "a", encoding="utf-8") as stream:
        stream.write(json.dumps(step_row(7)) + "\n")
    expect(page.locator("#live")).to_contain_text("step 7", timeout=20_000)
    expect(page.get_by_role("img", name=re.compile("Total reward.*to 1.05")).first).to_be_visible()
    page.goto(f"{address}{RUN}&view=answers")
    page.locator("label.t2").click()
    page.locator(".find").fill("Donau")
    assert "answers-colour=answers-2" in page.url and "answers-search=Donau" in page.url
    page.reload()
    assert page.locator("#answers-2").is_checked() and page.locator("article:visible").count() == 1
    page.goto(f"{address}/runs?q=t")
    page.get_by_label("State").select_option("finished")
    page.wait_for_url("**state=finished**")
    page.goto(f"{address}/runs")
    page.get_by_label("compare toy").check()
    page.get_by_label("compare other").check()
    page.get_by_role("button", name="Side by side").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("2 runs side by side")
    assert complaints == []
    page.context.close()
