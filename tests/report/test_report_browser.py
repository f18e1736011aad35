"""Reports in a real browser: offline, with hostile text, on a phone, in the dark, by mouse, touch and keyboard.

Needs Chromium (on the path, or named by CHROMIUM). Without one the tests are skipped, unless REQUIRE_BROWSER=1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import CONTRAST, PHONE, Opened, launched
from playwright.sync_api import Browser, Locator, expect
from report_toy import HOSTILE, write_old_run, write_toy_run
from seldom import seldom

from finegrained_rlhf.report.pages.compare import compare_page
from finegrained_rlhf.report.pages.run import run_page
from finegrained_rlhf.report.runs.record import read_run
from finegrained_rlhf.report.sweeps.page import sweep_page


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    yield from launched()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One page of each kind, all with hostile text and a name that is no tag."""
    root = tmp_path_factory.mktemp("pages")
    run = write_toy_run(root / "<b>run & co")
    record, old = read_run(run), read_run(write_old_run(root / "old"))
    failed = [{"name": "p", "stage": "train", "error": HOSTILE[0], "log": HOSTILE[6]}]
    plot = '<svg viewBox="0 0 10 10"><text y="9">x</text><path style="stroke: #000000" d="M0 0L9 9"/></svg>'
    pages = {
        "run": run_page(record),
        "old": run_page(old),
        "compared": compare_page({"a": record, HOSTILE[0]: record, HOSTILE[6]: old}),
        "sweep": sweep_page(HOSTILE[1], {"failed": failed, "description": HOSTILE[3]}, plot, [("a", run), ("b", run)]),
    }
    for name, page in pages.items():
        (root / f"{name}.html").write_text(page, encoding="utf-8")
    return {name: root / f"{name}.html" for name in pages}


@pytest.mark.parametrize("width", seldom([375, 390], [375]))
@pytest.mark.parametrize("name", ["run", "old", "compared", "sweep"])
def test_it_asks_for_nothing_runs_nothing_and_fits_a_phone(
    browser: Browser, files: dict[str, Path], name: str, width: int
) -> None:
    with Opened(browser, files[name], **{**PHONE, "viewport": {"width": width, "height": 812}}) as opened:
        opened.unfold()
        for choice in opened.page.locator(".tabs").first.locator("label").all():
            choice.click()
        assert opened.page.evaluate("document.documentElement.scrollWidth") == width
        assert opened.page.evaluate("typeof window.pwned") == "undefined"
        assert opened.requests == [files[name].as_uri()]
        assert opened.complaints == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["run", "sweep"])
def test_text_stands_out_from_its_ground(browser: Browser, files: dict[str, Path], name: str, scheme: str) -> None:
    with Opened(browser, files[name], color_scheme=scheme) as opened:
        opened.unfold()
        page = opened.page
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", ground))) < 150) == (scheme == "dark")
        for choice in page.locator(".heat").first.locator(".tabs label").all():
            choice.click()
            seen, weak = page.evaluate(CONTRAST)
            assert seen > 100 and weak == []


def test_every_text_is_shown_as_it_is(browser: Browser, files: dict[str, Path]) -> None:
    with Opened(browser, files["run"]) as opened:
        opened.unfold()
        read = opened.page.evaluate(
            "[...document.querySelectorAll('#answers .text')].map((text) =>"
            "  [...text.querySelectorAll('.w:not(.end)')].map((piece) => piece.textContent).join(''))"
        )
    expected = [text.translate({0x07: "␇", 0x1B: "␛", 0x00: "␀", 0x9B: "\ufffd", 0xD83D: "\ufffd"}) for text in HOSTILE]
    assert read == [text for text in expected for _ in range(3)]  # first, best and last validation


def test_right_to_left_text_keeps_to_its_place(browser: Browser, files: dict[str, Path]) -> None:
    with Opened(browser, files["run"]) as opened:
        texts = opened.page.locator("#answers .text")
        directions = [texts.nth(i).evaluate("text => getComputedStyle(text).direction") for i in (0, 9)]
        assert directions == ["ltr", "rtl"]
        sums = opened.page.locator("#answers .sums").nth(9)
        assert sums.evaluate("text => getComputedStyle(text).direction") == "ltr"


def test_a_component_colours_its_segments_and_says_their_signs(browser: Browser, files: dict[str, Path]) -> None:
    with Opened(browser, files["run"]) as opened:
        page = opened.page
        text = page.locator("#answers .text").nth(1)  # the best answer to the first prompt: +1, −1
        shown = "text => [...text.querySelectorAll('.e')].filter(e => e.offsetWidth).map(e => e.textContent)"
        ground = "text => [...new Set([...text.querySelectorAll('.w')].map(w => getComputedStyle(w).backgroundColor))]"
        assert text.evaluate(shown) == ["+1", "−1"]
        assert len(text.evaluate(ground)) == 3  # good, bad, and none at the end of the sequence
        page.locator("#answers .tabs label", has_text="completeness").click()
        assert text.evaluate(shown) == ["0"] and len(text.evaluate(ground)) == 1
        page.locator("#answers .tabs label", has_text="advantage").click()
        assert text.evaluate(shown) == [] and len(text.evaluate(ground)) > 3
        page.keyboard.press("ArrowLeft")  # the choice is a group of radio buttons
        assert page.locator("#answers input:checked").get_attribute("class") == "l2 pick"


def wait_for_text(tip: Locator, start: str) -> None:
    """Until the tip's text begins so: a busy browser handles an event some time after it was sent."""
    tip.page.wait_for_function("([tip, start]) => tip.innerText.startsWith(start)", arg=[tip.element_handle(), start])


def test_numbers_of_a_token_by_pointer_touch_and_keyboard(browser: Browser, files: dict[str, Path]) -> None:
    numbers = (
        "token 2: \u2068no characters\u2069\nadvantage −0.143, token reward 0, value +1.4, KL +0.01\n"
        "token 3: \u2068rip\u2069\nadvantage +0.286, token reward 0, value +1.3, KL +0.02\n"
        "\u2068relevance\u2069 +1, weighted +0.5"
    )
    with Opened(browser, files["run"]) as opened:
        page, tip = opened.page, opened.page.locator("#tip")
        piece = page.locator("#answers .text").nth(1).locator(".w").nth(1)
        expect(tip).to_be_hidden()
        piece.hover()
        wait_for_text(tip, numbers)
        assert "<img src=y onerror=" in tip.inner_text() and tip.evaluate("tip => tip.children.length") == 0
        page.locator("h1").hover()
        expect(tip).to_be_hidden()
        page.locator("#answers .text").nth(0).press("Tab")  # from the first text to the second
        assert page.evaluate("document.activeElement.className") == "text"
        wait_for_text(tip, "token 1: ")
        page.keyboard.press("ArrowRight")
        wait_for_text(tip, numbers)
        box = tip.bounding_box()
        assert box is not None and box["x"] >= 0 and box["y"] >= 0
        page.keyboard.press("Escape")
        expect(tip).to_be_hidden()
    with Opened(browser, files["run"], **PHONE) as opened:
        opened.page.locator("#answers .text").nth(1).locator(".w").nth(1).tap()
        tip = opened.page.locator("#tip")
        wait_for_text(tip, numbers)
        box = tip.bounding_box()
        assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= 375


def test_curves_say_their_values_at_the_pointer(browser: Browser, files: dict[str, Path]) -> None:
    with Opened(browser, files["run"]) as opened:
        page, tip = opened.page, opened.page.locator("#tip")
        chart = page.locator("#rewards svg.chart").first  # raw: 0.1 a step; validations 0.5, 1, 2, 3
        chart.scroll_into_view_if_needed()
        box = chart.bounding_box()
        assert box is not None
        place = (50 + 298 * 4 / 6) / 360 * box["width"]  # step 4 of 0 … 6, between the axis and the right edge
        chart.hover(position={"x": place, "y": box["height"] / 2})
        wait_for_text(tip, "step 4\nrelevance: 0.4")
        values = [float(line.rpartition(": ")[2]) for line in tip.inner_text().splitlines()[1:]]
        # lines of three components, the dots of their validations; read from the drawing, which rounds to 0.1 px
        assert sorted(values) == pytest.approx([0.4] * 3 + [2.0] * 3, abs=0.01)
        page.locator("h1").hover()
        expect(tip).to_be_hidden()
        assert opened.complaints == []


def test_answers_are_searched_ordered_and_filtered(browser: Browser, files: dict[str, Path]) -> None:
    with Opened(browser, files["run"]) as opened:
        page = opened.page
        for name in ("answers", "history"):
            items = page.locator(f"#{name} .list").first.locator("article:visible")
            totals = "list => list.filter(a => a.getClientRects().length).map(a => Number(a.dataset.t))"
            opened.unfold()
            assert items.evaluate_all(totals) == pytest.approx([0.025 * i for i in range(len(HOSTILE))])
            page.locator(f"#{name}-order").select_option("best weighted total first")
            assert items.evaluate_all(totals) == pytest.approx([0.025 * i for i in reversed(range(len(HOSTILE)))])
            page.locator(f"#{name}-search").fill("donaudampf")
            expect(items).to_have_count(1)
            expect(page.locator(f"#{name} .count").first).to_have_text(f"1 of {len(HOSTILE)}")
            page.locator(f"#{name}-search").fill("")
            page.locator(f"#{name}-filter").select_option("relevance below 0")
            expect(items).to_have_count(len(HOSTILE) - 1)  # the empty answer has no segment
            page.locator(f"#{name}-filter").select_option("completeness below 0")
            expect(items).to_have_count(0)
        assert opened.complaints == []


def test_it_can_be_read_without_script(browser: Browser, files: dict[str, Path]) -> None:
    with Opened(browser, files["run"], java_script_enabled=False) as opened:
        page = opened.page
        piece = page.locator("#answers .text").nth(1).locator(".w").nth(1)
        assert (piece.get_attribute("title") or "").startswith("token 2: ")  # the browser's own tooltip
        page.locator("#answers .tabs label", has_text="completeness").click()
        assert page.locator("#answers .text").nth(1).locator(".e:visible").all_inner_texts() == ["0"]
        assert page.locator(".tools:visible").count() == 0  # what needs the script is not offered
        assert page.locator("svg.chart circle > title").count() > 0  # the browser's own tooltips
        assert page.locator("h2").first.is_visible() and page.locator("svg.chart").first.is_visible()
