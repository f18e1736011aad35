"""What people did on the annotation page is kept: every key, other projects' work, that of an earlier page."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from annotation_page import ITEMS, beside, kept, of, opened, reload, saved, select, to, visit
from annotation_toy import item, project
from browser import launched
from playwright.sync_api import Browser, Page, expect

from finegrained_rlhf.annotation.tools import annotation_page

STORED = "Object.fromEntries(Object.keys(localStorage).map((key) => [key, localStorage.getItem(key)]))"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    yield from launched()


def tasks(stored: dict[str, str]) -> dict[str, str]:
    """The records of tasks alone: not who works, and where."""
    return {key: text for key, text in stored.items() if not key.endswith(('"owner"]', '"page"]'))}


def kept_correction(page: Page) -> str:
    found: str = page.evaluate("Store.states.find((state, i) => Store.payload.tasks[i].item === 'q1').correction")
    return found


WAYS = ("next", "Alt+ArrowRight", "Control+Enter", "reload", "closed", "crashed", "second tab")


def test_every_key_is_kept_however_a_task_is_left(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, tmp_path) as made:
        page, url = made.page, made.page.url
        for way in WAYS:
            to(page, "q1")
            page.click("#correction")
            page.keyboard.press("Control+a")
            page.keyboard.type(f"By {way} 🌊.")
            expect(page.locator("#correction")).to_be_focused()
            if way == "next":
                page.click("#next")
            elif way in ("Alt+ArrowRight", "Control+Enter"):
                page.keyboard.press(way)
            elif way == "reload":
                reload(page)
            else:
                other, keys = made.context.new_page(), kept(page)
                if way != "second tab":
                    page.close(run_before_unload=way == "closed")
                visit(other, url, keys)
                if other.locator("#locked").count():
                    other.click("#take-over")
                page = other
            assert kept_correction(page) == f"By {way} 🌊."


def test_a_run_of_keys_is_one_step_back_also_after_a_reload(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, tmp_path) as made:
        page = made.page
        to(page, "q1")
        select(page, "stays warm")
        page.keyboard.press("3")
        page.locator("#note-0").fill("")
        page.locator("#note-0").press_sequentially("what?")
        page.click("#noError")  # refused, and no step
        page.click('[data-type="Missing-Answer"]')
        page.click('[data-place="1,1"]')
        reload(page)
        assert page.locator("#note-0").input_value() == "what?"
        for marks, notes, missing in ((1, ["what?"], 0), (1, [""], 0), (0, [], 0)):
            page.click("#undo")
            state = page.evaluate("Store.state")
            assert (len(state["spans"]), [one["note"] for one in state["spans"]]) == (marks, notes)
            assert len(state["missing"]) == missing
        reload(page)
        for _ in range(3):
            page.click("#redo")
        assert of(saved(page), "q1")["missing"] == [{"type": "Missing-Answer", "passage": 1, "sentences": [1]}]


def test_other_projects_and_unknown_keys_stay_as_they_are(browser: Browser, tmp_path: Path) -> None:
    """Two projects of one name, by one person under one taxonomy, in the storage that pages from the disk share."""
    first, second = tmp_path / "round1", tmp_path / "round2"
    first.mkdir()
    second.mkdir()
    with opened(browser, first) as made:
        page = made.page
        page.evaluate("localStorage.setItem('annotate:other', 'x'); localStorage.setItem('[1]', '{')")
        to(page, "q1")
        select(page, "stays warm")
        page.keyboard.press("1")
        page.click("#next")
        before = tasks(page.evaluate(STORED))
        file = second / "tasks.html"
        items = (*ITEMS[:1], item("q9"))
        file.write_text(annotation_page(project(items).payload("ann")), encoding="utf-8")
        visit(page, file.as_uri(), kept(page))
        assert page.evaluate("Store.states.every((state) => !state.spans.length)")
        select(page, "stays warm")
        page.keyboard.press("2")
        page.click("#next")
        after = tasks(page.evaluate(STORED))
        assert before.items() <= after.items() and len(after) > len(before)
        visit(page, (first / "tasks.html").as_uri(), kept(page))
        assert [one["type"] for one in of(saved(page), "q1")["spans"]] == ["Irrelevant"]
        made.requests.clear()


def test_a_task_made_anew_with_another_text_hides_no_work(browser: Browser, tmp_path: Path) -> None:
    given = project(ITEMS).payload("ann")
    changed = {**given, "tasks": [{**one, "hash": "0"} for one in given["tasks"]]}
    file, again = tmp_path / "tasks.html", tmp_path / "again.html"
    file.write_text(annotation_page(given), encoding="utf-8")
    again.write_text(annotation_page(changed), encoding="utf-8")
    with opened(browser, tmp_path) as made:
        page = made.page
        to(page, "q1")
        select(page, "stays warm")
        page.keyboard.press("1")
        visit(page, again.as_uri(), kept(page))
        to(page, "q1")
        assert page.evaluate("Store.state.spans") == []
        select(page, "stays")
        page.keyboard.press("2")
        visit(page, file.as_uri(), kept(page))
        assert [one["text"] for one in of(saved(page), "q1")["spans"]] == ["stays warm"]
        made.requests.clear()


def test_work_of_the_earlier_page_is_taken_over_and_left_there(browser: Browser, tmp_path: Path) -> None:
    """Until version 2 of the storage all tasks stood under one key, which the project's name made."""
    with opened(browser, tmp_path) as made:
        page = made.page
        given: dict[str, Any] = page.evaluate("Store.payload")
        state = {
            "spans": [{"start": 0, "end": 3, "type": "Irrelevant", "evidence": [], "note": "old"}],
            "status": "done",
        }
        old = {
            "tasks": {one["item"]: {**{k: one[k] for k in ("hash", "order")}, "state": state} for one in given["tasks"]}
        }
        old["tasks"]["q2"]["hash"] = "of another text"
        key = f"annotate:{given['project']}:ann:{given['guideline_version']}"
        page.evaluate(
            "([key, text]) => { localStorage.clear(); localStorage.setItem(key, text); }", [key, json.dumps(old)]
        )
        visit(page, (tmp_path / "tasks.html").as_uri(), kept(page))
        notes = {task["item"]: [one["note"] for one in task["spans"]] for task in saved(page)["tasks"]}
        assert notes["q1"] == notes["q3"] == ["old"] and not notes.get("q2")
        to(page, "q1")
        page.get_by_role("button", name="Remove").first.click()
        reload(page)
        assert of(saved(page), "q1")["spans"] == []
        assert json.loads(page.evaluate(STORED)[key]) == old
        made.requests.clear()


def test_no_room_is_told_and_leaving_is_held_up(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, tmp_path) as made:
        page = made.page
        to(page, "q1")
        page.click("#correction")
        page.keyboard.type("a")
        page.evaluate(
            "{ Storage.prototype.setItem = () => { throw new DOMException('full', 'QuotaExceededError'); }; 0 }"
        )
        page.keyboard.type("b")
        expect(page.locator("#unkept")).to_contain_text("save to a file before you close the page")
        page.keyboard.type("c")
        assert "abc" in kept_correction(page)
        asked: list[str] = []
        page.remove_listener("dialog", made.dismiss)
        page.on("dialog", lambda dialog: (asked.append(dialog.type), dialog.dismiss()))
        page.close(run_before_unload=True)
        page.wait_for_timeout(300)
        assert asked == ["beforeunload"] and not page.is_closed()
        saved(page)
        with page.expect_event("close"):
            page.close(run_before_unload=True)
        assert asked == ["beforeunload"]


def test_where_a_record_has_no_room_its_history_goes_first(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, tmp_path) as made:
        page = made.page
        to(page, "q1")
        page.evaluate(
            """() => {
              const put = Storage.prototype.setItem;
              Storage.prototype.setItem = function (key, value) {
                if (value.includes('"past"')) throw new DOMException("full", "QuotaExceededError");
                put.call(this, key, value);
              };
            }"""
        )
        select(page, "stays warm")
        page.keyboard.press("1")
        assert page.locator("#unkept").count() == 0
        page.click("#undo")
        page.click("#redo")
        reload(page)
        assert len(of(saved(page), "q1")["spans"]) == 1


@pytest.mark.parametrize("crashed", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_tab_that_is_gone_frees_the_other(browser: Browser, tmp_path: Path, crashed: bool) -> None:
    with opened(browser, tmp_path) as made:
        first = made.page
        to(first, "q1")
        second = beside(first)
        second.click("#take-over")
        expect(first.locator("#locked")).to_be_visible()
        select(second, "stays warm")
        second.keyboard.press("1")
        if crashed:  # nothing is said on the way out
            second.evaluate("{ Kept.release = () => {}; 0 }")
        second.close(run_before_unload=True)
        expect(first.locator("#locked")).to_have_count(0, timeout=9000 if crashed else 3000)
        assert [one["text"] for one in of(saved(first), "q1")["spans"]] == ["stays warm"]
        first.click("#undo")
        assert first.evaluate("Store.state.spans") == []


def test_a_record_that_another_tab_wrote_is_one_step_back(browser: Browser, tmp_path: Path) -> None:
    """As where a tab slept through another one's work: what is done here does not bury it."""
    with opened(browser, tmp_path) as made:
        page = made.page
        to(page, "q1")
        select(page, "stays warm")
        page.keyboard.press("1")
        page.evaluate(
            """() => {
              const key = Object.keys(localStorage).find((one) => one.includes('"task","q1"'));
              const record = JSON.parse(localStorage.getItem(key));
              record.state.correction = "theirs";
              localStorage.setItem(key, JSON.stringify(record));
            }"""
        )
        page.click("#noError")
        page.evaluate("Actions.tick('nothingMissing', true)")
        assert of(saved(page), "q1")["correction"] != "theirs"
        page.click("#undo")
        assert of(saved(page), "q1")["correction"] == "theirs"


def test_emptied_storage_is_filled_again(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, tmp_path) as made:
        page = made.page
        to(page, "q1")
        select(page, "stays warm")
        page.keyboard.press("1")
        other = beside(page)
        other.evaluate("localStorage.clear()")
        page.wait_for_timeout(300)
        reload(page)
        assert len(of(saved(page), "q1")["spans"]) == 1
