"""The annotation page in a real browser: from the disk, offline, by mouse and by keyboard alone, in two tabs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from annotation_page import FOUR, ITEMS, beside, of, opened, payload, reload, saved, select, to, words
from annotation_toy import ANSWER, item, project
from browser import CONTRAST, PHONE, launched
from playwright.sync_api import Browser, expect
from report_toy import HOSTILE

from finegrained_rlhf.annotation.items import AnnotationItem
from finegrained_rlhf.annotation.reading import Imported, import_export
from finegrained_rlhf.annotation.tools import annotation_page
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.feedback.taxonomy import Taxonomy

TEXT = [text for text in HOSTILE if "\ud83d" not in text and text.strip()]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    yield from launched()


def test_a_task_from_the_first_mark_to_the_export_by_mouse(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, tmp_path) as made:
        page = made.page
        to(page, "q1")
        page.click("#done")
        expect(page.locator("#said")).to_contain_text("Mark an error, or tick that there is none.")
        select(page, "stays warm")
        page.click('[data-type="Wrong-Grounding"]')
        expect(page.locator("#said")).to_contain_text("choose the sentences that show it")
        page.click('[data-place="1,2"]')
        page.click("#noError")
        expect(page.locator("#said")).to_contain_text("remove them first")
        page.click('[data-type="Missing-Answer"]')
        page.click('[data-place="1,1"]')
        page.click('[data-place="1,3"]')
        page.fill("#correction", "The lake is cold.")
        page.click('label.place:has(input[name="place-0"][value="1"])')
        page.click('label.place:has(input[name="place-1"][value="1"])')
        page.get_by_role("button", name="Refuse").click()
        page.click("#done")
        expect(page.locator("#progress")).to_have_text("1 of 3 done")
        task = of(saved(page), "q1")
    (mark,) = task["spans"]
    assert mark == {**mark, "text": "stays warm", "type": "Wrong-Grounding", "evidence": [[1, 2]], "note": ""}
    assert ANSWER[mark["start"] : mark["end"]] == "stays warm"
    assert task["missing"] == [{"type": "Missing-Answer", "passage": 1, "sentences": [1, 3]}]
    assert (task["status"], task["correction"], task["ranking"]) == ("done", "The lake is cold.", [[0, 1]])
    assert task["suggestions"] == {"shown": 1, "accepted": 0, "refused": 1}


def test_a_task_by_keyboard_alone_is_read_back_by_our_rules(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, tmp_path) as made:
        page = made.page
        to(page, "q1")
        words(page, "👩", 2)
        page.keyboard.press("1")
        words(page, "هي", 2)
        page.keyboard.press("5")
        page.focus("#nothingMissing")
        page.keyboard.press("Space")
        for answer, place in ((0, 2), (1, 1)):
            page.focus(f'input[name="place-{answer}"][value="{place}"]')
            page.keyboard.press("Space")
        page.keyboard.press("Control+Enter")
        expect(page.locator("#progress")).to_have_text("1 of 3 done")
        export = saved(page)
    found = Imported()
    import_export({**export, "tasks": [of(export, "q1")]}, project(ITEMS), "page", True, found)
    texts = {(ANSWER[e.start : e.end], e.error_type) for e in found.annotations[0].errors}
    assert texts == {("👩‍👩‍👧 swim", "Irrelevant"), ("هي دافئة", "Unverifiable")}
    assert not +found.repairs


def test_categories_have_precedence_while_marking(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, tmp_path) as made:
        page = made.page
        to(page, "q1")
        select(page, "water stays warm")
        page.keyboard.press("5")
        select(page, "stays")
        page.keyboard.press("1")
        expect(page.locator("#said")).to_contain_text("this one comes first")
        select(page, "water stays warm")
        page.keyboard.press("4")
        expect(page.locator("#said")).to_contain_text("are marked as “Unverifiable fact” already")
        select(page, "stays")
        page.keyboard.press("2")
        expect(page.locator("#said")).to_contain_text("are marked as “Irrelevant” already")
        select(page, "stays warm")
        page.keyboard.press("1")
        spans = of(saved(page), "q1")["spans"]
    assert [(s["text"], s["type"]) for s in spans] == [("water", "Unverifiable"), ("stays warm", "Irrelevant")]


def test_undo_autosave_reload_and_a_file(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, tmp_path) as made:
        page = made.page
        to(page, "q1")
        select(page, "stays warm")
        page.keyboard.press("3")
        page.locator(".marks input").fill("what?")
        page.locator(".marks input").blur()
        page.keyboard.press("Control+z")
        assert of(saved(page), "q1")["spans"][0]["note"] == ""
        page.keyboard.press("Control+Shift+z")
        before = saved(page)
        reload(page)
        assert of(saved(page), "q1")["spans"] == of(before, "q1")["spans"]
        file = tmp_path / "kept.json"
        file.write_text(json.dumps(before), encoding="utf-8")
        page.get_by_role("button", name="Remove").click()
        page.set_input_files("#import", file)
        page.click("#replace-no")
        assert of(saved(page), "q1")["spans"] == []
        page.set_input_files("#import", file)
        page.click("#replace-yes")
        assert of(saved(page), "q1")["spans"] == of(before, "q1")["spans"]
        for change, words_of_it in (({"annotator": "ben"}, "annotator is"), ({"format": "x"}, "format is")):
            file.write_text(json.dumps({**before, **change}), encoding="utf-8")
            page.set_input_files("#import", file)
            expect(page.locator("#said")).to_contain_text(words_of_it)
        file.write_text(json.dumps(before).replace(of(before, "q1")["hash"], "0"), encoding="utf-8")
        page.set_input_files("#import", file)
        expect(page.locator("#said")).to_contain_text("has another text here")


def test_a_second_tab_reads_and_cannot_overwrite(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, tmp_path) as made:
        page = made.page
        to(page, "q1")
        select(page, "stays warm")
        page.keyboard.press("3")
        second = beside(page)
        expect(second.locator("#locked")).to_be_visible()
        assert second.locator("#done").is_disabled()
        second.evaluate("Store.change({ spans: [] })")
        assert len(of(saved(page), "q1")["spans"]) == 1
        second.click("#take-over")
        assert second.locator("#locked").count() == 0 and len(of(saved(second), "q1")["spans"]) == 1
        expect(page.locator("#locked")).to_be_visible()
        page.evaluate("Store.change({ spans: [] })")
        late = "(key) => localStorage.setItem(key, JSON.stringify({ id: 'late', time: Date.now(), term: 1 }))"
        page.evaluate(late, page.evaluate("Kept.places.owner"))  # as if its last claim had come after the other's first
        second.wait_for_timeout(100)
        assert not second.evaluate("Store.readOnly")
        reload(second)
        assert len(of(saved(second), "q1")["spans"]) == 1


def test_ranking_on_a_phone_and_no_width_beyond_it(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, tmp_path, **PHONE) as made:
        page = made.page
        to(page, "q2")
        for answer, place in enumerate((1, 2, 2, 3)):
            page.locator(f'label.place:has(input[name="place-{answer}"][value="{place}"])').tap()
        assert page.evaluate("document.documentElement.scrollWidth") == 375
        assert of(saved(page), "q2")["ranking"] == [[0], [1, 2], [3]]


def test_pairs_on_a_phone_are_judged_one_by_one_and_read_back(browser: Browser, tmp_path: Path) -> None:
    taxonomy = Taxonomy("pairs", {}, correction=False, comparison="pairs")
    items = (item("p", answers=FOUR[:3], marked=None),)
    of_project = project(items, taxonomy=taxonomy)
    with opened(browser, tmp_path, items, taxonomy, **PHONE) as made:
        page = made.page
        page.locator("#done").tap()
        expect(page.locator("#said")).to_contain_text("Judge every pair of answers.")
        for pair, value in enumerate((1, 2, 1)):  # a cycle, which no ranking says
            page.locator(f'label.place:has(input[name="pair-{pair}"][value="{value}"])').tap()
        assert page.evaluate("document.documentElement.scrollWidth") == 375
        page.locator("#done").tap()
        export = saved(page)
        reload(page)
        assert of(saved(page), "p")["preferences"] == of(export, "p")["preferences"] == [1, 2, 1]
        page.evaluate("Actions.pair(0, 0)")
        file = tmp_path / "kept.json"
        file.write_text(json.dumps(export), encoding="utf-8")
        page.set_input_files("#import", file)
        page.click("#replace-yes")
        assert of(saved(page), "p") == of(export, "p")
        if os.environ.get("WRITE_SCREENSHOTS"):
            page.screenshot(path=str(tmp_path.parent / "pairs.png"), full_page=True)
    found = Imported()
    import_export(export, of_project, "page", True, found)
    order = of_project.annotators["ann"][0].order
    wins = {(order[0], order[1]): 1, (order[0], order[2]): 2, (order[1], order[2]): 1}
    expected = []
    for pair in ((0, 1), (0, 2), (1, 2)):
        expected.append(wins[pair] if pair in wins else 3 - wins[pair[::-1]])
    assert list(found.annotations[0].preferences) == expected


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_hostile_text_is_text_and_stands_out(browser: Browser, tmp_path: Path, scheme: str) -> None:
    rows = [
        AnnotationItem(f"h{i}", text, (Passage("", text, (text, "b")),), (text, text + " x"), reference=text)
        for i, text in enumerate(TEXT)
    ]
    with opened(browser, tmp_path, rows, color_scheme=scheme) as made:
        page = made.page
        for i in range(len(rows)):
            place = to(page, f"h{i}")
            page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
            shown = payload(page)["tasks"][place]
            assert page.locator("h1").text_content() == shown["question"]
            assert page.locator("#answer").text_content() == shown["answers"][shown["marked"]]
            assert page.evaluate("typeof window.pwned") == "undefined"
        seen, weak = page.evaluate(CONTRAST)
        assert seen > 30 and weak == []


def test_two_hundred_tasks(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, tmp_path, [item(f"n{i}") for i in range(200)]) as made:
        page = made.page
        expect(page.locator("#where")).to_have_text("Task 1 of 200: new")
        for _ in range(60):
            page.keyboard.press("Alt+ArrowRight")
        expect(page.locator("#where")).to_contain_text("Task 61 of 200")
        page.click("#undone")
        expect(page.locator("#where")).to_contain_text("Task 1 of 200")


def test_tasks_that_are_no_json_are_refused() -> None:
    with pytest.raises(DataError, match="no JSON"):
        annotation_page({**project().payload("ann"), "project": float("nan")})
    page = annotation_page({**project().payload("ann"), "project": "</script><script>x</script>"})
    assert page.count("<script") == 2 and "</script><script>x" not in page


def test_the_first_page_says_what_is_asked_and_how_to_mark(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, tmp_path) as made:
        page = made.page
        assert page.title() == "Mark errors, say what is missing, correct, compare answers – toy (qa_feedback) – ann"
        expect(page.locator(".how li").first).to_be_visible()
        expect(page.locator(".how")).to_contain_text("Select the words that are wrong")
        page.click(".how summary")
        reload(page)
        expect(page.locator(".how li").first).to_be_hidden()


def test_answers_are_numbered_in_the_order_in_which_they_stand(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, tmp_path) as made:
        page = made.page
        place = to(page, "q2")
        task = payload(page)["tasks"][place]
        expect(page.locator("h2").first).to_have_text("Mark the errors of this answer")
        expect(page.locator(".which")).to_contain_text(f"it is answer {task['marked'] + 1}.")
        expect(page.locator(".which")).to_contain_text("the first that was sampled")
        legends = page.locator(".ranking legend").all_text_contents()
        assert [text.split(",")[0] for text in legends] == [f"Answer {i + 1}" for i in range(4)]
        assert [i for i, text in enumerate(legends) if "marked above" in text] == [task["marked"]]
        assert page.locator(".ranking .text").all_text_contents() == task["answers"]
        to(page, "q3")
        assert page.locator(".which").count() == 0


LONG = item(
    "long", (ANSWER * 6, "Other."), passages=tuple(Passage("", f"Lake {i}", ("It is wide.",) * 9) for i in range(5))
)
WHERE = "(name) => (({ top, bottom }) => [top, bottom])(document.querySelector(name).getBoundingClientRect())"


@pytest.mark.parametrize("size", [{"viewport": {"width": 1400, "height": 800}}, PHONE], ids=["desk", "phone"])
def test_evidence_is_chosen_with_the_answer_in_sight(browser: Browser, tmp_path: Path, size: dict[str, Any]) -> None:
    with opened(browser, tmp_path, (LONG,), **size) as made:
        page = made.page
        height = page.evaluate("window.innerHeight")
        end = page.evaluate("View.textOf().length")
        page.evaluate(f"Picked.set({end - 8}, {end}); Actions.selected(); Actions.mark('Wrong-Grounding')")
        last = page.locator('[data-place="5,9"]')
        last.scroll_into_view_if_needed()
        last.click()
        for name in ('[data-place="5,9"]', "#answer .marked", ".choice"):
            top, bottom = page.evaluate(WHERE, name)
            assert 0 <= top < bottom <= height, name
        inner, box = page.evaluate(WHERE, "#answer .marked"), page.evaluate(WHERE, "#answer")
        assert box[0] <= inner[0] < inner[1] <= box[1]
        assert page.evaluate("Store.state.spans[0].evidence") == [[5, 9]]
        scrolled = page.evaluate("[window.scrollY, document.querySelector('.passages').scrollTop]")
        assert max(scrolled) > 0
        page.locator('[data-place="5,8"]').click()
        assert page.evaluate("[window.scrollY, document.querySelector('.passages').scrollTop]") == scrolled
        page.keyboard.press("Escape")
        assert page.locator(".choosing").count() == 0
        answer, passages, ranking = (page.evaluate(WHERE, name)[0] for name in ("#answer", ".passages", ".ranking"))
        assert answer < passages < ranking if size is PHONE else passages < ranking
        assert page.evaluate("document.documentElement.scrollWidth") == size["viewport"]["width"]
