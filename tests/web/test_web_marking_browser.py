"""Marking together in real browsers: every key on the server, two devices, cut connections, and how pages look."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sqlalchemy")

from annotation_toy import item
from browser import CONTRAST, faults, launched
from marking_browser import assert_all_kept, at, finish, invited, joined, mark, own, settled, typed_at_once
from marking_toy import PASSWORD, tasks_below
from playwright.sync_api import Browser, BrowserContext, Page, expect
from served import served_app

from finegrained_rlhf.feedback.labels import Suggestion
from finegrained_rlhf.web.marking.store import FILE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
HOSTILE = "<img src=x onerror='window.pwned=1'> is wide, and it is cold."


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    yield from launched()


Office = tuple[str, Page, Path]
EXPORT = "fetch('export.json').then((answer) => answer.json())"


def items() -> list[object]:
    suggested = (Suggestion(0, 8, "Irrelevant", 0.8, "m@1"),)
    return [
        *(item(f"q{n}", role="overlap") for n in range(1, 4)),
        item("s1", suggestions=suggested),
        item("s2", answers=(HOSTILE, "Two."), question=HOSTILE),
    ]


@pytest.fixture
def office(browser: Browser, tmp_path: Path) -> Iterator[tuple[str, Page, Path]]:
    """An address, the owner's page, and the directory."""
    tasks_below(tmp_path, items())
    with served_app(tmp_path) as (url, app):
        page = browser.new_context().new_page()
        page.set_default_timeout(600_000)
        own(page, f"{url}/{app.state.marking.first_link()}", "olga")
        page.get_by_role("button", name="Open for marking").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("toy")
        yield url, page, tmp_path
        page.context.close()


def row_of(export: dict[str, Any], name: str = "q1") -> dict[str, Any]:
    """A task of an export, but for the seconds, which go on."""
    return {**next(one for one in export["tasks"] if one["item"] == name), "seconds": 0}


def working(context: BrowserContext) -> Page:
    page = context.pages[0]
    page.goto(page.url.split("/marking")[0] + "/marking")
    page.get_by_role("link", name="Mark", exact=True).click()
    page.wait_for_load_state()
    return page


def test_every_key_is_on_the_server_and_undone_on_another_device(browser: Browser, office: Office) -> None:
    url, owner, _ = office
    ann = joined(browser, invited(owner, url, "ann"))
    page = working(ann)
    at(page, "q1")
    mark(page, 0, 8, "Irrelevant")
    page.locator("#correction").fill("")
    page.locator("#correction").press_sequentially("Deep 🌊.")
    settled(page)
    second = browser.new_context(storage_state=ann.storage_state())  # another machine: no storage of its own
    second.set_default_timeout(600_000)
    second.add_init_script("if (!sessionStorage.begun) { localStorage.clear(); sessionStorage.begun = 1; }")
    other = second.new_page()
    other.goto(page.url)
    at(other, "q1")
    assert other.locator("#correction").input_value() == "Deep 🌊."
    other.click("#undo")
    assert other.locator("#correction").input_value() == "" or other.locator(".marks li").count() == 1
    other.click("#redo")
    assert row_of(other.evaluate("Store.exported()")) == row_of(page.evaluate("Store.exported()"))
    settled(other)
    assert row_of(other.evaluate(EXPORT)) == row_of(page.evaluate("Store.exported()"))
    # Both are cut off and go on; then both come back.
    for context in (ann, second):
        context.set_offline(True)
    mark(page, 12, 19, "Redundant")
    at(other, "q1")
    mark(other, 25, 34, "Wrong-Grounding")
    other.locator("#finish").click()
    other.locator("#correction").press("Control+End")
    other.locator("#correction").press_sequentially(" And cold.")
    expect(page.locator("#sent")).to_contain_text("No connection")
    expect(other.locator("#sent")).to_contain_text("No connection")
    for context, one in ((ann, page), (second, other)):
        context.set_offline(False)
        settled(one)
    expect(other.locator(".marks li")).to_have_count(3)
    page.reload()
    expect(page.locator(".marks li")).to_have_count(3)
    assert page.locator("#correction").input_value() == "Deep 🌊. And cold."
    for context in (ann, second):
        context.close()


def test_a_page_closed_without_a_connection_brings_everything_when_it_is_opened_again(
    browser: Browser, office: Office
) -> None:
    url, owner, directory = office
    ann = joined(browser, invited(owner, url, "ann"))
    page = working(ann)
    at(page, "q2")
    ann.set_offline(True)
    page.locator("#correction").fill("Typed in a tunnel.")
    address = page.url
    page.close()
    ann.set_offline(False)
    again = ann.new_page()
    again.goto(address)
    settled(again)
    at(again, "q2")
    assert again.locator("#correction").input_value() == "Typed in a tunnel."
    assert "Typed in a tunnel." in json.dumps(again.evaluate(EXPORT))
    # A session that ended meanwhile keeps everything until somebody signs in again, in another tab.
    ann.clear_cookies()
    again.locator("#correction").fill("Typed signed out.")
    expect(again.locator("#sent")).to_contain_text("signed out")
    tab = ann.new_page()
    tab.goto(f"{url}/marking/sign-in")
    tab.get_by_label("Name").fill("ann")
    tab.get_by_label("Password").fill(PASSWORD)
    tab.get_by_role("button", name="Sign in").click()
    tab.wait_for_url("**/marking")
    settled(again)
    ann.close()


def test_a_text_that_another_tab_sets_back_stays_in_the_log(browser: Browser, office: Office) -> None:
    url, owner, directory = office
    ann = joined(browser, invited(owner, url, "ann"))
    page = working(ann)
    at(page, "q1")
    ann.set_offline(True)
    page.locator("#correction").press_sequentially("abc")
    page.evaluate("""() => {
      Kept.replace(Store.current, { state: { ...Store.state, correction: "ab" }, past: [] });
      Store.refresh();
    }""")
    page.locator("#correction").press_sequentially("x")
    expect(page.locator("#correction")).to_have_value("abx")
    ann.set_offline(False)
    settled(page)
    assert_all_kept(directory, "q1", "ann", ["abc", "abx"])
    ann.close()


@pytest.mark.parametrize("connected", [True, False])
def test_what_two_tabs_type_into_one_task_at_once_is_all_in_the_log(
    browser: Browser, office: Office, connected: bool
) -> None:
    url, owner, directory = office
    ann = joined(browser, invited(owner, url, "ann"))
    page = working(ann)
    other = ann.new_page()
    other.goto(page.url)
    ann.set_offline(not connected)
    heard = typed_at_once(page, other, "q1", ("abcdefghij" * 4, "0123456789" * 4))
    assert len(heard) > 4  # they did take it from each other
    ann.set_offline(False)
    settled(next(tab for tab in (page, other) if not tab.locator("#take-over").count()))  # the other may only read
    assert_all_kept(directory, "q1", "ann", heard)
    expect(page.locator("#correction")).to_have_value(other.locator("#correction").input_value())
    ann.close()


def test_suggestions_are_taken_changed_or_refused_and_evidence_is_chosen_by_the_keyboard_alone(
    browser: Browser, office: Office
) -> None:
    url, owner, _ = office
    people = {name: joined(browser, invited(owner, url, name)) for name in ("ann", "ben")}
    has_it = "Store.payload.tasks.some((task) => task.item === 's1')"
    page = next(page for page in map(working, people.values()) if page.evaluate(has_it))
    at(page, "q1")
    assert page.get_by_text("Suggested:").count() == 0
    at(page, "s1")
    page.get_by_role("button", name="Change").press("Enter")
    page.keyboard.press("Control+Shift+ArrowRight")
    page.keyboard.press("2")
    assert page.get_by_text("Suggested:").count() == 0
    page.focus("#answer")
    page.keyboard.press("Home")
    for _ in range(8):
        page.keyboard.press("Control+ArrowRight")
    page.keyboard.press("Control+Shift+ArrowRight")
    page.keyboard.press("4")
    page.locator(".sentence").nth(1).press("Enter")
    page.keyboard.press("Escape")
    settled(page)
    export = page.evaluate(EXPORT)
    task = next(one for one in export["tasks"] if one["item"] == "s1")
    assert task["suggestions"] == {"shown": 1, "accepted": 1, "refused": 0, "edited": 1}
    assert [one["type"] for one in task["spans"]] == ["Redundant", "Wrong-Grounding"] and task["spans"][1][
        "evidence"
    ] == [[1, 1]]
    for context in people.values():
        context.close()


def test_every_page_fits_can_be_read_and_has_no_serious_fault(browser: Browser, office: Office) -> None:
    url, owner, directory = office
    links = {name: invited(owner, url, name) for name in ("ann", "ben")}
    open_invitation = invited(owner, url, "cy", "reviewer")
    people = {name: joined(browser, link) for name, link in links.items()}
    for name, context in people.items():
        page = working(context)
        for item_ in ("q1", "q2", "q3"):
            at(page, item_)
            finish(page, [(0, 8, "Irrelevant")] if name == "ann" else [(12, 19, "Incoherent")] if item_ == "q2" else [])
        settled(page)
    (directory / "encoder").mkdir()
    (directory / "encoder" / "config.json").write_text("{}")
    owner.goto(f"{url}/marking")
    owner.get_by_role("link", name="Agreement and review").click()
    project = owner.url
    states = {"owner": owner.context.storage_state(), "ann": people["ann"].storage_state(), "out": None}
    views = {
        "sign_in": ("out", f"{url}/marking/sign-in"),
        "join": ("out", open_invitation),
        "projects": ("owner", f"{url}/marking"),
        "people": ("owner", f"{url}/marking/people"),
        "project": ("owner", project),
        "review": ("owner", f"{project}/review?item=q2"),
        "work": ("ann", f"{project}/work"),
    }
    pictures = Path(os.environ.get("SCREENSHOTS", directory))
    for scheme in ("light", "dark"):
        for width in (1400, 390):
            for name, (who, address) in views.items():
                context = browser.new_context(
                    viewport={"width": width, "height": 900}, color_scheme=scheme, storage_state=states[who]
                )
                page = context.new_page()
                complaints: list[str] = []
                page.on("console", lambda message, said=complaints: said.append(message.text))
                page.on("pageerror", lambda error, said=complaints: said.append(str(error)))
                page.goto(address)
                page.wait_for_load_state()
                assert page.locator("h1").count() == 1, name
                page.screenshot(path=pictures / f"marking_{name}_{scheme}_{width}.png", full_page=True)
                assert page.evaluate("document.documentElement.scrollWidth") <= width, (name, width)
                seen, weak = page.evaluate(CONTRAST)
                assert seen > 5 and not weak, (name, scheme, weak)
                assert page.evaluate("window.pwned") is None and complaints == [], name
                assert faults(page) == [], name
                context.close()
    assert (directory / FILE).is_file()
