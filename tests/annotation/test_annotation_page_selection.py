"""What is marked on the annotation page is what is seen selected, in whole words: by mouse, keys and touch."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from annotation_page import opened
from annotation_toy import item
from browser import PHONE, launched
from playwright.sync_api import Browser, Page, expect

from finegrained_rlhf.feedback.labels import Suggestion

TEXT = (
    "The patient shouldn't drink 3.5 litres,  or so (at once)! Naïve cafés 🌊 sell well-known pills.\r\n"
    "Call 10,000 clinics: هي دافئة جدا اليوم, when the fever lasts. Зимой холодно, не так ли? "
    "It may be taken with food; nobody knows why, and the dose is low. Rest, then call again on Monday."
)
ITEM = item(
    "f", (TEXT,), suggestions=(Suggestion(30, 42, "Irrelevant", 0.5, "m"), Suggestion(70, 90, "Repetitive", 0.5, "m"))
)
# Words, as Unicode divides them, for the words of this text; a sign is a piece of its own.
WORD = re.compile(r"\w+(?:['.,]\w+)*|\S")
# What the browser shows as selected: of its own selection the part in the answer, and what the page paints; with the
# characters before it, so that both are places in the text.
VISIBLE = """() => {
  const box = document.getElementById("answer"), chosen = window.getSelection();
  const count = (text) => Array.from(text).length;
  const native = { text: "", start: 0 };
  if (chosen.rangeCount && chosen.getRangeAt(0).intersectsNode(box)) {
    const range = chosen.getRangeAt(0).cloneRange(), all = document.createRange();
    all.selectNodeContents(box);
    if (range.compareBoundaryPoints(Range.START_TO_START, all) < 0) range.setStart(box, 0);
    if (range.compareBoundaryPoints(Range.END_TO_END, all) > 0) range.setEnd(box, box.childNodes.length);
    all.setEnd(range.startContainer, range.startOffset);
    Object.assign(native, { text: range.toString(), start: count(all.toString()) });
  }
  const painted = [...(CSS.highlights.get("picked") || [])].map((range) => range.toString());
  return { ...native, painted: painted.join("|") };
}"""
MARKED = """() => Store.state.spans.map((span) => ({ text: View.textOf().slice(span.start, span.end),
  start: Marks.characters(View.textOf(), span.start), type: span.type }))"""
POINT = """(offset) => {
  const walker = document.createTreeWalker(document.getElementById("answer"), NodeFilter.SHOW_TEXT);
  let node, seen = 0;
  while ((node = walker.nextNode())) {
    for (; offset < seen + node.length; offset += 1) {  // a line's end has no place on the screen: the next one has
      const range = document.createRange();
      range.setStart(node, offset - seen); range.setEnd(node, offset - seen);
      const box = range.getClientRects()[0];
      if (box) return [box.left, box.top + box.height / 2];
    }
    seen += node.length;
  }
}"""
# As the handles of a selection do: it changes without a touch in the box; ends may lie in other elements.
HANDLES = """([from, to, beyond]) => {
  const nodes = [], walker = document.createTreeWalker(document.getElementById("answer"), NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) nodes.push(walker.currentNode);
  const point = (offset) => {
    for (const node of nodes) {
      const half = /^[\\uDC00-\\uDFFF]/.test(node.data.slice(offset));  // a handle never stands inside a letter
      if (offset <= node.length) return [node, offset + half];
      offset -= node.length;
    }
  };
  const outside = { above: document.querySelector("h1"), below: document.querySelector("#done") }[beyond];
  window.getSelection().setBaseAndExtent(...point(from), ...(outside ? [outside.firstChild, 1] : point(to)));
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    yield from launched()


def whole_words(start: int, text: str) -> tuple[int, str] | None:
    """The words that a piece of TEXT touches: the first one's place, and all with what stands between."""
    end = start + len(text)
    touched = [one.span() for one in WORD.finditer(TEXT) if one.start() < end and one.end() > start]
    return (touched[0][0], TEXT[touched[0][0] : touched[-1][1]]) if touched and text else None


def drag(page: Page, draw: random.Random) -> str:
    box = page.locator("#answer").bounding_box()
    assert box
    start = page.evaluate(POINT, draw.randrange(len(TEXT) - 1))
    inside = page.evaluate(POINT, draw.randrange(len(TEXT) - 1))
    outside = (draw.uniform(5, 1270), draw.uniform(box["y"] - 60, box["y"] + box["height"] + 80))
    end = inside if draw.random() < 0.6 else outside
    page.mouse.move(*start)
    page.mouse.down()
    page.mouse.move(*end, steps=3)
    page.mouse.up()
    if draw.random() < 0.2:
        page.keyboard.down("Shift")
        page.mouse.click(*page.evaluate(POINT, draw.randrange(len(TEXT) - 1)))
        page.keyboard.up("Shift")
    return f"drag {start} {end}"


def clicks(page: Page, draw: random.Random) -> str:
    place, count = page.evaluate(POINT, draw.randrange(len(TEXT) - 1)), draw.choice([1, 2, 3])
    page.mouse.click(*place, click_count=count)
    return f"click {place} {count}"


def keys(page: Page, draw: random.Random) -> str:
    page.focus("#answer")
    pressed = [draw.choice(["Home", "End", "ArrowRight"]), *(["Control+ArrowRight"] * draw.randrange(12))]
    moves = ["ArrowRight", "ArrowLeft", "Control+Shift+ArrowRight", "Shift+ArrowRight", "Shift+ArrowLeft", "Shift+End"]
    pressed += draw.choices([*moves, "Shift+Home", "Control+a"], [2, 2, 6, 6, 4, 1, 1, 1], k=draw.randrange(1, 8))
    for key in pressed:
        page.keyboard.press(key)
    return f"keys {pressed}"


def handles(page: Page, draw: random.Random) -> str:
    moves = []
    for _ in range(draw.randrange(1, 4)):
        beyond = draw.choice(["above", "below", "", "", "", ""])
        moves.append([draw.randrange(len(TEXT)), draw.randrange(len(TEXT)), beyond])
        page.evaluate(HANDLES, moves[-1])
    return f"handles {moves}"


def compare(page: Page, draw: random.Random, touch: bool) -> None:
    """One selection, and one mark of it by key, click or tap."""
    done = handles(page, draw) if touch else draw.choice([drag, drag, keys, clicks])(page, draw)
    page.evaluate("new Promise((go) => requestAnimationFrame(() => setTimeout(go, 0)))")
    visible = page.evaluate(VISIBLE)
    expected = whole_words(visible["start"], visible["text"])
    assert visible["painted"] == (expected[1] if expected else ""), done
    kind = draw.choice(["Irrelevant", "Incoherent", "Unverifiable"])
    if touch:
        page.tap(f'[data-type="{kind}"]')
    elif draw.random() < 0.5:
        page.keyboard.press({"Irrelevant": "1", "Incoherent": "3", "Unverifiable": "5"}[kind])
    else:
        page.click(f'[data-type="{kind}"]')
    marked = page.evaluate(MARKED)
    if expected is None:
        assert marked == [], done
        expect(page.locator("#said")).to_contain_text("Select some words first.")
    else:
        assert [(one["start"], one["text"], one["type"]) for one in marked] == [(*expected, kind)], done
        page.evaluate("Store.undo()")


def fuzz(browser: Browser, directory: Path, rounds: int, seed: int) -> None:
    for touch in (False, True):
        draw = random.Random(seed + touch)
        options = PHONE if touch else {"viewport": {"width": 1280, "height": 900}}
        with opened(browser, directory, (ITEM,), **options) as made:
            for _ in range(rounds // 4 if touch else rounds - rounds // 4):
                compare(made.page, draw, touch)


def test_twelve_random_selections(browser: Browser, tmp_path: Path) -> None:
    fuzz(browser, tmp_path, 12, seed=0)


@pytest.mark.slow
def test_five_hundred_random_selections(browser: Browser, tmp_path: Path) -> None:
    fuzz(browser, tmp_path, 500, seed=1)


PARTS = {
    "tie": "patient",
    "0,0": "10,000",
    "ould": "shouldn't",
    "دافئ": "دافئة",
    "ло": "холодно",
    "🌊 s": "🌊 sell",
    " ": "",
}


def test_a_part_of_a_word_is_the_word(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, tmp_path, (ITEM,)) as made:
        for piece, word in {**PARTS, " ": ""}.items():
            found = made.page.evaluate(
                """(piece) => {
                  const text = View.textOf(), from = text.indexOf(piece);
                  return text.slice(...(Marks.wholeWords(text, from, from + piece.length) || [0, 0]));
                }""",
                piece,
            )
            assert found == word
