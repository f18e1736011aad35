"""The annotation page opened from the disk, and what people do with it: go to a task, select words, save a file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from annotation_toy import item, project
from browser import Opened
from playwright.sync_api import Browser, Page

from finegrained_rlhf.annotation.items import AnnotationItem
from finegrained_rlhf.annotation.tools import annotation_page
from finegrained_rlhf.feedback.labels import Suggestion
from finegrained_rlhf.feedback.taxonomy import QA_FEEDBACK, Taxonomy

KEPT = """Object.keys(localStorage).filter((key) => key.includes('"task"') || key.startsWith("annotate:"))"""
FOUR = ("One is best.", "Two is good.", "Three is as good.", "Four is bad.")
ITEMS = (
    item("q1", suggestions=(Suggestion(0, 8, "Irrelevant", 0.8, "m@1"),)),
    item("q2", answers=FOUR, passages=()),
    item("q3", answers=("Only this.",)),
)


@contextmanager
def opened(
    browser: Browser,
    directory: Path,
    items: Sequence[AnnotationItem] = ITEMS,
    taxonomy: Taxonomy = QA_FEEDBACK,
    **options: Any,
) -> Iterator[Opened]:
    file = directory / "tasks.html"
    if not file.exists():
        file.write_text(annotation_page(project(items, taxonomy=taxonomy).payload("ann")), encoding="utf-8")
    with Opened(browser, file, **options) as made:
        share(made.page)
        yield made
        assert made.requests == [file.as_uri()] * len(made.requests) and made.complaints == []


def to(page: Page, name: str) -> int:
    """Go to a task; its place."""
    place = next(i for i, task in enumerate(payload(page)["tasks"]) if task["item"] == name)
    page.evaluate(f"Actions.go({place})")
    return place


def beside(page: Page) -> Page:
    """A second tab with the same page, in which what the first one keeps can be seen."""
    second = page.context.new_page()
    visit(second, page.url, kept(page))
    return second


def reload(page: Page) -> None:
    visit(page, page.url, kept(page))


def share(page: Page) -> None:
    """Load a page until it sees what it has written.

    Under load Chromium gives one tab in a hundred of a private window a storage of its own, until it loads anew.
    """
    for _ in range(20):
        page.evaluate("localStorage.setItem('seen', '')")
        page.reload()
        if page.evaluate("localStorage.getItem('seen')") is not None:
            page.evaluate("localStorage.removeItem('seen')")
            return
    raise AssertionError("the page forgets what it keeps")


def visit(page: Page, address: str, keys: frozenset[str] = frozenset()) -> None:
    """Go to a page on the disk, which sees these keys of the storage (of `share`'s fault)."""
    for _ in range(20):
        page.goto("about:blank")
        page.goto(address)
        if keys <= kept(page):
            return
    raise AssertionError(f"the page does not see {sorted(keys - kept(page))}")


def kept(page: Page) -> frozenset[str]:
    """Keys of the tasks that pages keep, those of the earlier storage too."""
    return frozenset(page.evaluate(KEPT))


def payload(page: Page) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(page.locator("#tasks").text_content() or "")
    return found


def saved(page: Page) -> dict[str, Any]:
    with page.expect_download() as download:
        page.click("#export")
    found: dict[str, Any] = json.loads(Path(download.value.path()).read_text(encoding="utf-8"))
    return found


def of(export: dict[str, Any], name: str) -> dict[str, Any]:
    return next(task for task in export["tasks"] if task["item"] == name)


def select(page: Page, piece: str) -> None:
    """Select a piece of the answer with the mouse, by the places of its characters on the screen."""
    page.evaluate("window.scrollTo(0, 0)")
    box = page.evaluate(
        """(piece) => {
          const answer = document.getElementById("answer"), at = answer.textContent.indexOf(piece);
          const point = (offset) => {
            const walker = document.createTreeWalker(answer, NodeFilter.SHOW_TEXT);
            let node, seen = 0;
            while ((node = walker.nextNode())) {
              if (seen + node.length >= offset && node.length) {
                const range = document.createRange();
                range.setStart(node, Math.max(0, offset - seen - (offset > seen ? 1 : 0)));
                range.setEnd(node, Math.max(1, offset - seen));
                return range.getBoundingClientRect();
              }
              seen += node.length;
            }
          };
          const first = point(at + 1), last = point(at + piece.length);
          return [first.left + 1, first.top + first.height / 2, last.right - 1, last.top + last.height / 2];
        }""",
        piece,
    )
    page.mouse.move(box[0], box[1])
    page.mouse.down()
    page.mouse.move(box[2], box[3], steps=4)
    page.mouse.up()


def words(page: Page, begin: str, count: int) -> None:
    """Select so many words with the keyboard alone, from a word on."""
    page.focus("#answer")
    page.keyboard.press("Home")
    text = page.evaluate("View.textOf()")
    while not text[page.evaluate("Marks.characters(View.textOf(), View.ui.caret)") :].startswith(begin):
        page.keyboard.press("ArrowRight")
    for _ in range(count):
        page.keyboard.press("Control+Shift+ArrowRight")
