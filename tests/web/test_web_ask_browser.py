"""The page "Ask" in a real browser: a question, its answer, the document at the place, a mark, the next question."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from ask_served import FILES, QUESTION, make_served
from browser import CONTRAST, faults, launched, listened
from playwright.sync_api import Browser, expect
from served import served

from finegrained_lab.experiments.asking.folders import holds
from finegrained_lab.worlds.folders.make import make_folder
from finegrained_lab.worlds.folders.unseen import UNSEEN
from finegrained_rlhf.feedback.reading import read_feedback
from finegrained_rlhf.inscit import Ask, AskSettings
from finegrained_rlhf.inscit.asking.job import open_assistant
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
    page, asked, complaints = listened(browser, width, scheme)
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
    page.context.close()


def test_a_conversation_that_is_over_and_a_place_that_is_gone_are_said(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is updated between two questions; what is said of the first answer does not go to the second."""
    monkeypatch.chdir(tmp_path)
    page = browser.new_page()
    page.set_default_timeout(120_000)
    with served(make_served(tmp_path)) as address:
        page.goto(f"{address}/ask")
        page.get_by_label("Question").fill(QUESTION)
        page.get_by_role("button", name="Ask", exact=True).click()
        expect(page.locator(".turn .answer")).to_contain_text("opened in 1931.", timeout=120_000)
        (tmp_path / "docs/museum.md").write_text("# Museum of Orsk\n\nAs we know, the museum opened in 1929.\n")
        open_assistant(Ask(docs="docs", index="outputs/ask/docs", encoder="none", model="none"))
        page.get_by_label("Question").fill(QUESTION)
        page.get_by_role("button", name="Ask", exact=True).click()
        expect(page.locator(".turn .answer").first).to_contain_text("opened in 1929.", timeout=120_000)
        expect(page.locator("#status")).to_contain_text("begins a new one")
        first = page.locator(".turn").last
        first.locator(".cite").first.click()
        expect(page.locator("#status")).to_contain_text("The document has changed since")
        first.locator(".up").click()
        expect(first.locator(".said")).to_contain_text("conversation is over")
    page.close()


def models() -> dict[str, str]:
    """The encoders of `finegrained prepare-models`, where they are; else words alone."""
    for place in filter(None, (os.environ.get("PRETRAINED_MODELS"), Path(__file__).parents[2] / "models")):
        found = {"encoder": str(Path(place, "minilm")), "reranker": str(Path(place, "mpnet"))}
        if all(Path(one, "config.json").is_file() for one in found.values()):
            return found
    return {"encoder": "none", "reranker": "none"}


def test_a_new_folder_of_200_files_and_20_questions(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `test_inscit_ask_folders.py` asks without a browser: the page says and cites what the assistant does."""
    monkeypatch.chdir(tmp_path)
    docs, outputs, used = tmp_path / "docs", tmp_path / "outputs", models()
    asked = make_folder(docs, 1000, "recipes", UNSEEN["recipes"])
    assert len(list(docs.glob("*.md"))) == 200 and [one.fact is None for one in asked] == [False] * 15 + [True] * 5
    made, _ = open_assistant(Ask(docs=str(docs), index=str(outputs / "docs"), model="none", **used))
    page, held, refused, opened = browser.new_page(), 0, 0, 0
    page.set_default_timeout(120_000)
    with served(outputs, answering=AskSettings(model="none", **used)) as address:
        page.goto(f"{address}/ask")
        for one in asked:
            page.get_by_label("Question").fill(one.text)
            page.get_by_role("button", name="Ask", exact=True).click()
            expect(page.locator(".turn .asked")).to_have_text(one.text, timeout=120_000)
            expected, kind = made.ask(one.text), page.locator(".turn .kind").text_content()
            items = page.locator(".citations li")
            cited = list(
                zip(items.locator("button").all_text_contents(), items.locator("q").all_text_contents(), strict=True)
            )
            assert (kind, cited) == (expected.type, [(place.file, place.text) for place in expected.citations])
            held += any(file == one.file and holds(one.fact, text) for file, text in cited)
            refused += one.fact is None and kind == "not in these documents"
            for number, (file, text) in enumerate(cited):
                items.locator("button").nth(number).click()
                expect(page.locator("#source-title")).to_have_text(file)
                expect(page.locator("#source mark")).to_have_text(text)
                start, end = map(int, re.findall(r"\d+", page.locator("#where").inner_text())[:2])
                assert (docs / file).read_text(encoding="utf-8")[start:end] == text
                page.get_by_role("button", name="Close").click()
                opened += 1
            page.get_by_role("button", name="New conversation").click()
    page.close()
    print(f"{held} of 15 held, {refused} of 5 refused, {opened} places opened, {used['encoder']}")
    assert held >= (8 if used["encoder"] == "none" else 12) and refused >= 4 and opened >= held
