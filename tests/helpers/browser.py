"""A real browser for tests of pages: offline, with everything that a page asked for or complained about.

Needs Chromium (on the path, or named by CHROMIUM). Without one the tests are skipped, unless REQUIRE_BROWSER=1.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Dialog, Page, sync_playwright

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
"""The first that is there is taken; the headless shell draws no windows around pages and takes a third of the time."""
QUIET = (
    "--no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-component-update "
    "--disable-sync --disable-quic"
)
AXE = Path(os.environ.get("AXE", Path(__file__).parents[2] / ".axe" / "package" / "axe.min.js"))
"""What `make axe` fetches."""
PHONE = {"viewport": {"width": 375, "height": 812}, "has_touch": True, "is_mobile": True}

# Contrast (WCAG 2) of every text node with what lies behind it; returns the texts with less than 4.5.
CONTRAST = """() => {
  const channels = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = (rgb) => rgb.slice(0, 3).map((c) => c / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const colour = channels(getComputedStyle(e).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
      if (colour[3] !== 0) throw new Error("a ground that shines through: " + e.className);
    }
    return channels(getComputedStyle(document.documentElement).backgroundColor);
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const weak = new Set();
  let seen = 0;
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || element.tagName === "SCRIPT" || !element.getClientRects().length) continue;
    const style = getComputedStyle(element);
    const text = light(channels(element instanceof SVGElement ? style.fill : style.color));
    const ground = light(behind(element));
    seen += 1;
    const ratio = (Math.max(text, ground) + 0.05) / (Math.min(text, ground) + 0.05);
    if (ratio < 4.5) weak.add(element.tagName + "." + element.className + " " + ratio.toFixed(2));
  }
  return [seen, [...weak]];
}"""


def browser_path() -> str | None:
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


def launched() -> Iterator[Browser]:
    """What a fixture yields from: one browser, closed at the end."""
    path = browser_path()
    if path is None:
        message = f"no browser: none of {', '.join(NAMES)} is on the path and CHROMIUM is not set"
        if os.environ.get("REQUIRE_BROWSER") == "1":
            pytest.fail(message)
        pytest.skip(message)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=QUIET.split(), timeout=240_000)
        yield browser
        browser.close()


def listened(browser: Browser, width: int, scheme: str) -> tuple[Page, list[str], list[str]]:
    """A page of its own context, the addresses that it asks for, and what it complains about."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
    page, asked, complaints = context.new_page(), list[str](), list[str]()
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    return page, asked, complaints


def faults(page: Page) -> list[str]:
    """What axe-core finds serious or critical; nothing where it was not fetched, unless REQUIRE_BROWSER=1."""
    if not AXE.is_file():
        if os.environ.get("REQUIRE_BROWSER") == "1":
            pytest.fail(f"no {AXE}: `make axe` fetches it")
        return []
    page.evaluate(AXE.read_text("utf-8"))
    found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")["violations"]
    return [
        f"{one['id']}: {node['html'][:120]}"
        for one in found
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]


class Opened:
    """A page from disk without a network, with everything that it asked for or complained about."""

    def __init__(self, browser: Browser, file: Path, **options: Any) -> None:
        self.context = browser.new_context(offline=True, **options)
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(120_000)
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", self.dismiss)
        self.page.goto(file.as_uri())

    def dismiss(self, dialog: Dialog) -> None:
        self.complaints.append("dialog")
        dialog.dismiss()

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *exception: object) -> None:
        self.context.close()

    def unfold(self) -> None:
        self.page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
