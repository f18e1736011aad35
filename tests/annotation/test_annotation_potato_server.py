"""A real Potato, where one is installed: a person logs in, marks in a browser, and what is stored is read.

It is found as `potato` on the path, or by POTATO. Its own environment is no part of ours.
"""

from __future__ import annotations

import os
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from annotation_toy import item, project
from browser import launched
from playwright.sync_api import Page
from servers import free_port, program_named, serving

from finegrained_rlhf.annotation.potato import ShownText
from finegrained_rlhf.annotation.reading import ReadAnnotations
from finegrained_rlhf.annotation.tools import tool_named

pytestmark = pytest.mark.slow

TEXT = "  The 👩‍👩‍👧 swim.\r\nIts  water <b>stays</b> warm.\n\n\tهي دافئة & so on."
PIECES = (
    ("👩‍👩‍👧 swim.\r\nIts  water", "Irrelevant"),
    ("<b>stays</b> warm", "Wrong-Grounding"),
    ("دافئة & so", "Unverifiable"),
)
SELECT = """([key, piece]) => {
  const root = document.getElementById(`text-content-${key}`);
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  const nodes = [];
  let whole = "";
  while (walker.nextNode()) { nodes.push([whole.length, walker.currentNode]); whole += walker.currentNode.data; }
  const start = whole.indexOf(piece);
  if (start < 0) return whole;
  const at = (place) => {
    const [from, node] = nodes.filter(([from]) => from <= place).pop();
    return [node, place - from];
  };
  const range = document.createRange();
  range.setStart(...at(start));
  const [node, last] = at(start + piece.length - 1);
  range.setEnd(node, last + 1);
  getSelection().removeAllRanges();
  getSelection().addRange(range);
  node.parentElement.dispatchEvent(new MouseEvent("mouseup", { bubbles: true }));
  return "";
}"""


@contextmanager
def potato(directory: Path) -> Iterator[str]:
    program, port = program_named("POTATO", "potato"), free_port()
    address = f"http://127.0.0.1:{port}/"
    start = [program, "start", "config.yaml", "-p", str(port), "--host", "127.0.0.1"]
    with serving(start, directory, lambda: urllib.request.urlopen(address, timeout=5).close(), 60):
        yield address


def mark(page: Page, schema: str, label: str, key: str, piece: str) -> None:
    box = page.locator(f'[id="{schema}_{label}"]')
    if not box.is_checked():
        box.evaluate("box => box.click()")
    shown = ShownText.of(piece).text
    left = page.evaluate(SELECT, [key, shown])
    assert left == "", f"{shown!r} is not in {left!r}"
    page.wait_for_timeout(700)


def test_what_a_person_marks_in_the_browser_is_read(tmp_path: Path) -> None:
    of = project((item("q1", answers=(TEXT, "No.")), item("q2", answers=(TEXT, "No."))))
    of.write(tmp_path / "tasks")
    tool_named("potato").write_tasks(tmp_path, of.payload("ann"))
    first = of.annotators["ann"][0]
    with potato(tmp_path) as address, contextmanager(launched)() as browser:
        page = browser.new_page(viewport={"width": 1200, "height": 1800})
        page.goto(address)
        page.locator("#login-email").fill("ben")
        page.locator("button[type=submit],input[type=submit]").first.click()
        page.wait_for_timeout(1000)
        assert page.locator("#instance_id").count() == 0  # the tasks are ann's
        page.goto(address)
        page.locator("#login-email").fill("ann")
        page.locator("button[type=submit],input[type=submit]").first.click()
        page.locator("#text-content-answer").wait_for()
        page.wait_for_timeout(1500)
        assert page.locator("#instance_id").input_value().startswith(first.item)
        for piece, kind in PIECES:
            mark(page, "errors", kind, "answer", piece)
        mark(page, "missing", "Missing-Answer", "passages", "It is three kilometres")
        page.locator("#notes textarea").fill("2: it is cold\n2 evidence: 1.2")
        page.locator("#notes textarea").blur()
        page.locator("#correction textarea").fill("The lake 👩‍👩‍👧 is cold.")
        page.locator("#correction textarea").blur()
        page.locator("#place_1 input[type=radio]").nth(0).check()
        page.locator("#place_2 input[type=radio]").nth(1).check()
        page.wait_for_timeout(1500)
        if os.environ.get("WRITE_SCREENSHOTS"):
            page.screenshot(path=str(tmp_path.parent / "potato.png"), full_page=True)
        page.get_by_text("Next", exact=False).last.click()
        page.wait_for_timeout(1500)
    export = tmp_path / "annotation_output" / "ann" / "user_state.json"
    found = ReadAnnotations(
        {"ann": str(export)}, str(tmp_path / "tasks"), str(tmp_path / "a.jsonl"), tool="potato"
    ).run()
    (one,) = found.annotations
    marked_first = first.order.index(0) == 0
    assert sorted((TEXT[e.start : e.end], e.error_type) for e in one.errors) == sorted(PIECES)
    (fact,) = (e for e in one.errors if e.error_type == "Wrong-Grounding")
    assert fact.evidence == ((1, 2),) and fact.explanation == "it is cold"
    assert [gap.sentence_ids for gap in one.missing] == [(1,)]
    assert one.correction == "The lake 👩‍👩‍👧 is cold." and one.seconds and one.seconds > 0
    assert one.preferences == ((1,) if marked_first else (2,))
