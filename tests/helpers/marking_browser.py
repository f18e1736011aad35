"""People at browsers who mark on a server, and a server in a process of its own that can be killed."""

from __future__ import annotations

import contextlib
import json
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
from marking_toy import PASSWORD
from playwright.sync_api import Browser, BrowserContext, Page, expect

from finegrained_rlhf.web.address import listening
from finegrained_rlhf.web.marking.store import FILE


class Server:
    """`finegrained serve DIRECTORY` on a port that stays the same.

    Args:
        directory: that is served.
        log: what it says; None: beside the directory.
    """

    def __init__(self, directory: Path, log: Path | None = None) -> None:
        with listening("127.0.0.1", 0) as free:
            self.port = free.getsockname()[1]
        self.directory, self.url, self.said = directory, f"http://localhost:{self.port}", ""
        self.log = log or directory.parent / f"{directory.name}_server.txt"
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "finegrained_rlhf", "serve", str(self.directory)]
        with open(self.log, "a", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                [*command, f"port={self.port}", "open=false"], stdout=log, stderr=subprocess.STDOUT
            )
        for _ in range(1200):
            try:
                if httpx.get(f"{self.url}/healthz", timeout=20).status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(0.2)
            assert self.process.poll() is None, self.log.read_text("utf-8")
        raise AssertionError("the server does not start")

    def first_link(self) -> str:
        text = self.log.read_text("utf-8")
        return text[text.index(f"{self.url}/marking/join/") :].split()[0]

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(60)


def own(page: Page, url: str, name: str) -> None:
    """Make the first owner's account, by the link that the console shows."""
    page.goto(url)
    page.get_by_label("Your name").fill(name)
    page.get_by_label("Choose a password").fill(PASSWORD)
    page.get_by_role("button", name="Come in").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Mark answers together")


def invited(owner: Page, url: str, name: str, role: str = "annotator") -> str:
    """The link that the owner sends."""
    owner.goto(f"{url}/marking/people")
    owner.get_by_label("Name").fill(name)
    owner.get_by_label("Role").select_option(role)
    owner.get_by_role("button", name="Invite").click()
    return owner.locator("#link").inner_text()


def joined(browser: Browser, link: str, **options: Any) -> BrowserContext:
    """Somebody who opens the link and chooses a password."""
    context = browser.new_context(**options)
    context.set_default_timeout(600_000)
    page = context.new_page()
    page.goto(link)
    page.get_by_label("Choose a password").fill(PASSWORD)
    page.get_by_role("button", name="Come in").click()
    page.wait_for_url("**/marking")
    return context


def at(page: Page, item: str) -> None:
    """Go to a task."""
    page.evaluate("(item) => Actions.go(Store.payload.tasks.findIndex((task) => task.item === item))", item)


def mark(page: Page, start: int, end: int, kind: str) -> None:
    """Select words, and press the type's button."""
    page.evaluate(
        "([a, b]) => { document.getElementById('answer').focus(); Picked.set(a, b); Actions.selected(); }", [start, end]
    )
    page.locator(f'.types [data-type="{kind}"]').click()


def finish(page: Page, spans: Sequence[tuple[int, int, str]], correction: str | None = None) -> None:
    """Do the current task as a person does, and go to the next one."""
    for start, end, kind in spans:
        mark(page, start, end, kind)
        if page.locator("#finish").count():
            page.locator(".sentence").first.click()
            page.locator("#finish").click()
    if not spans and page.locator("#noError").count():
        page.locator("#noError").check()
    if page.locator("#nothingMissing").count():
        page.locator("#nothingMissing").check()
    if correction is not None:
        page.locator("#correction").fill(correction)
    for number in range(page.locator(".ranking fieldset").count()):
        page.locator(".ranking fieldset").nth(number).locator("input").first.check(force=True)
    page.locator("#done").click()


def settled(page: Page) -> None:
    """Wait until the server has everything."""
    expect(page.locator("#sent")).to_have_text("Saved", timeout=600_000)
    while page.evaluate("Sync.waiting().length"):  # a page may not evaluate text, as a function that waits there would
        page.wait_for_timeout(50)


# Types a key every few milliseconds, as somebody does who takes no notice of another tab: where this one may not work,
# it is taken over. Keeps what the box held each time before another tab took over, and at the end.
_TYPES = """([text, pause]) => new Promise((done) => {
  const left = [...text], heard = [];
  let last = null;
  const key = () => {
    if (!left.length) { if (last !== null) heard.push(last); done(heard); return; }
    const other = document.getElementById("take-over"), box = document.getElementById("correction");
    if (other) { if (last !== null) heard.push(last); last = null; other.click(); }
    else {
      box.value += left[0];
      box.dispatchEvent(new Event("input", { bubbles: true }));
      if (Store.state.correction === box.value && !Store.readOnly) { last = box.value; left.shift(); }
    }
    setTimeout(key, pause);
  };
  key();
})"""


def typed_at_once(first: Page, second: Page, item: str, texts: tuple[str, str]) -> list[str]:
    """Two tabs of one person type into one task at the same time, each taking it from the other again and again.

    Returns:
        What the box held each time when one of them was last heard: none of it may be lost.
    """
    pages = (first, second)
    for page in pages:
        if page.locator("#take-over").count():
            page.click("#take-over")
        at(page, item)
    for page, text, pause in zip(pages, texts, (7, 11), strict=True):
        page.evaluate(
            f"(given) => {{ window.heard = null; ({_TYPES})(given).then((all) => {{ window.heard = all; }}); }}",
            [text, pause],
        )
    for page in pages:
        while page.evaluate("window.heard") is None:
            page.wait_for_timeout(20)
    return [text for page in pages for text in page.evaluate("window.heard")]


def assert_all_kept(directory: Path, item: str, annotator: str, heard: Sequence[str]) -> None:
    """Require the log of events of a task to hold every text, or one that goes on from it."""
    with contextlib.closing(sqlite3.connect(f"file:{directory / FILE}?mode=ro", uri=True)) as database:
        query = 'SELECT "update", "before" FROM events WHERE item = ? AND annotator = ?'
        rows = database.execute(query, (item, annotator)).fetchall()
    kept = {json.loads(part).get("correction", "") for row in rows for part in row}
    lost = [text for text in heard if not any(one.startswith(text) for one in kept)]
    assert lost == [], f"{item} of {annotator}: {lost} are in none of the {len(rows)} events"
