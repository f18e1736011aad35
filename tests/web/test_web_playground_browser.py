"""The playground in a real browser: a weight is moved and another answer wins, without asking the server."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from browser import CONTRAST, faults, launched, listened
from playground_toy import make_run, reward
from playwright.sync_api import Browser, Page, expect
from served import served

from finegrained_rlhf.feedback.reading import read_feedback
from finegrained_rlhf.web.playground.choices import Choices
from finegrained_rlhf.web.playground.marks import FEEDBACK

pytestmark = pytest.mark.slow
VIEWS = [(1400, "light"), (1400, "dark"), (390, "light"), (390, "dark")]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    yield from launched()


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("served")
    make_run(made)
    return made


@pytest.fixture
def address(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Of a server over a run whose reward anyone can check by eye."""
    monkeypatch.setattr(Choices, "reward", lambda self, name: reward(length=0.1, good="two"))
    with served(directory) as url:
        yield url


def played(page: Page, address: str) -> None:
    """From the first page to answers, as a newcomer goes."""
    page.set_default_timeout(120_000)
    page.goto(address)
    page.get_by_role("link", name="Playground").click()
    expect(page.locator("#main")).to_have_value("which colours?", timeout=120_000)
    page.get_by_role("button", name="Answer", exact=True).click()
    expect(page.locator("#answers .cells > div")).to_have_count(4, timeout=120_000)


def winner(page: Page) -> str:
    first = page.locator("#answers .cells > div").first
    expect(first).to_have_class("first")
    return first.locator("h4 bdi").inner_text()


@pytest.mark.parametrize(("width", "scheme"), VIEWS)
def test_a_weight_moves_the_ranking_a_piece_is_explained_and_a_mark_is_kept(
    browser: Browser, address: str, directory: Path, tmp_path: Path, width: int, scheme: str
) -> None:
    page, asked, complaints = listened(browser, width, scheme)
    played(page, address)

    before, count = winner(page), len(asked)
    length = page.get_by_role("slider", name="length")
    place = page.locator(".slider", has=length)
    expect(place.locator(".note")).to_contain_text("wins")  # says from which weight on
    weight, number = re.search(r"([\d.]+) or (?:less|more): answer (\d+) wins", place.inner_text()).groups()  # type: ignore[union-attr]
    length.fill(weight)
    assert winner(page).startswith(f"answer {number} ") and winner(page) != before
    expect(page.locator("#winner")).to_contain_text(f"Answer {number} wins")
    expect(page.locator("#typed")).to_have_text(f"reward.weights.length={float(weight):g}")
    assert len(asked) == count  # the browser ranks
    page.get_by_role("button", name="As configured").click()
    assert winner(page) == before

    page.locator("#answers .first .text .w").first.click()
    expect(page.locator("#piece")).to_contain_text("SegmentScorer rm/words")
    expect(page.locator("#piece")).to_contain_text("paid at the token that ends its segment")
    page.screenshot(
        path=Path(os.environ.get("SCREENSHOTS", tmp_path)) / f"playground_{scheme}_{width}.png", full_page=True
    )
    seen, weak = page.evaluate(CONTRAST)
    assert seen > 40 and not weak
    assert faults(page) == []
    page.get_by_role("button", name="This is wrong").click()
    expect(page.locator("#marked")).to_contain_text("playground_feedback.json", timeout=120_000)
    assert read_feedback(directory / FEEDBACK)

    page.locator("#changed").fill("<img src=x onerror=alert(1)> two two two")
    expect(page.locator("#moved")).to_contain_text("→", timeout=120_000)
    expect(page.locator("#answers").get_by_role("button", name="onerror=alert(1)>")).to_be_visible()
    page.get_by_role("button", name="As the policy wrote it").click()
    expect(page.locator("#moved")).to_contain_text("No component moved", timeout=120_000)
    assert winner(page) == before
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert not complaints and all(url.startswith(address) for url in asked)
    page.context.close()
