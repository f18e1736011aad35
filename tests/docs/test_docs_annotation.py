"""The page on annotation, followed to the letter: files, commands, marks in a real browser, agreement, records.

With WRITE_SCREENSHOTS=1 the picture of the page is taken anew.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Opened, launched
from playwright.sync_api import Browser, Page
from script_runs import ROOT, run_script

from finegrained_rlhf.core.files import read_json
from finegrained_rlhf.feedback.reading import read_feedback
from finegrained_rlhf.feedback.taxonomy import Taxonomy

PAGE = (ROOT / "docs/annotation.md").read_text(encoding="utf-8")
IMAGE = ROOT / "docs/images/annotation_page.png"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    yield from launched()


def written(directory: Path) -> None:
    """The files that the page tells a user to save."""
    yaml = next(body for body in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL) if "support_mails" in body)
    (directory / "my_conf/taxonomy").mkdir(parents=True)
    (directory / "my_conf/taxonomy/support_mails.yaml").write_text(yaml, encoding="utf-8")
    (mails,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    (directory / "mails.jsonl").write_text(mails, encoding="utf-8")


def commands() -> list[list[str]]:
    """Those of the afternoon, up to the training, as words."""
    afternoon = PAGE[: PAGE.index("## The same afternoon, together on a server")]
    lines = [line for body in re.findall(r"```bash\n(.*?)```", afternoon, re.DOTALL) for line in joined(body)]
    return [shlex.split(line) for line in lines]


def joined(body: str) -> list[str]:
    return body.replace("\\\n", " ").strip().splitlines()


def run(directory: Path, words: list[str]) -> str:
    assert words[0] == "finegrained"
    done = run_script(*words[1:], cwd=directory)
    assert done.returncode == 0, done.stderr
    return done.stdout


def choose(page: Page, words: int, back: int = 0) -> None:
    """Select so many words of the answer, from its beginning or behind others, with the keyboard."""
    page.focus("#answer")
    page.keyboard.press("Home")
    for _ in range(back):
        page.keyboard.press("Control+ArrowRight")
    for _ in range(words):
        page.keyboard.press("Control+Shift+ArrowRight")


def annotate(page: Page, misses: bool) -> None:
    """Mark both mails; one of the two people overlooks something."""
    for _ in range(2):
        rude = "rules" in page.evaluate("View.textOf()")
        if rude:
            choose(page, 7)
            page.keyboard.press("1")
            if not misses:
                choose(page, 4, back=7)
                page.keyboard.press("4")
                page.click('[data-place="1,1"]')
        elif "never" in page.evaluate("View.textOf()"):
            choose(page, 6)
            page.keyboard.press("4")
            page.click('[data-place="1,1"]')
        else:
            page.click("#noError")
        page.click("#nothingMissing")
        answers = len(page.evaluate("Store.task.answers"))
        for answer in range(answers):
            page.click(f'label.place:has(input[name="place-{answer}"][value="{answer + 1}"])')
        if rude and not misses and os.environ.get("WRITE_SCREENSHOTS") == "1":
            page.evaluate("window.scrollTo(0, 0)")
            page.screenshot(path=IMAGE, full_page=True)
        page.click("#done")


@pytest.mark.scripts
def test_an_afternoon_with_two_annotators(browser: Browser, tmp_path: Path) -> None:
    written(tmp_path)
    make, *after = commands()
    run(tmp_path, make)
    for number, name in ((1, "ann"), (2, "ben")):
        file = tmp_path / f"outputs/mails/annotator_{number}/annotate_{name}.html"
        with Opened(browser, file, viewport={"width": 1180, "height": 900}) as opened:
            page = opened.page
            annotate(page, misses=name == "ben")
            with page.expect_download() as download:
                page.click("#export")
            assert download.value.suggested_filename == f"mails-{name}.json"
            download.value.save_as(tmp_path / download.value.suggested_filename)
            assert opened.complaints == []
    read, measure, settle, inspect, train = after
    assert "4 annotations of 2 annotators, 0 skipped" in run(tmp_path, read)
    assert "2 of 2 items were annotated by several people" in run(tmp_path, measure)
    figures = read_json(tmp_path / "outputs/mails_agreement.json")
    assert figures["labels"]["tone"]["percent"]["value"] == 1.0 > figures["labels"]["claims"]["percent"]["value"]
    run(tmp_path, settle)
    assert "Rude" in run(tmp_path, inspect)
    taxonomy = Taxonomy(**{k: v for k, v in _taxonomy(tmp_path).items() if k != "_target_"})
    records = read_feedback(tmp_path / "outputs/mails_feedback.json", taxonomy)
    marks = {record.id: [e.error_type for e in record.marked[0].errors] for record in records}
    assert marks["m1"] == ["Rude"] and [e.error_type for e in records[0].marked[0].dropped] == ["Contradicted"]
    assert train[1] == "train-reward-model" and IMAGE.is_file()


def steps_on_a_server() -> list[str]:
    """Its numbered steps, each with what is pressed in bold."""
    part = PAGE[PAGE.index("## The same afternoon, together on a server") : PAGE.index("## Who sees what")]
    return re.split(r"\n\n(?=\*\*\d\. )", part)[1:]


@pytest.mark.slow
@pytest.mark.scripts
@pytest.mark.timeout(3600)
def test_an_afternoon_on_a_server(browser: Browser, tmp_path: Path) -> None:
    pytest.importorskip("sqlalchemy")
    from marking_browser import Server, invited, joined, own, settled
    from playwright.sync_api import expect
    from reward_model_samples import save_longformer

    serve, people, mark, decide, train = steps_on_a_server()
    written(tmp_path)
    run(tmp_path, commands()[0])
    save_longformer(tmp_path / "outputs" / "encoder")
    assert "finegrained serve outputs" in serve
    server = Server(tmp_path / "outputs")
    try:
        owner = browser.new_context().new_page()
        owner.set_default_timeout(240_000)
        own(owner, server.first_link(), "olga")
        press(owner, serve, "Open for marking")
        here = owner.url
        owner.goto(f"{server.url}/marking")
        press(owner, people, "People")
        links = {name: invited(owner, server.url, name) for name in ("ann", "ben")}
        rita = joined(browser, invited(owner, server.url, "rita", "reviewer")).pages[0]
        for name, link in links.items():
            page = joined(browser, link, viewport={"width": 1180, "height": 900}).pages[0]
            press(page, mark, "Mark")
            annotate(page, misses=name == "ben")
            settled(page)
            page.context.close()
        press(rita, decide, "Agreement and review")
        expect(rita.get_by_role("row", name=re.compile("^tone"))).to_contain_text("1.00")
        rita.get_by_role("link", name="My parcel is late").click()
        rita.get_by_role("group", name=re.compile("Contradicted")).get_by_label("goes").check()
        rita.get_by_role("group", name=re.compile("Contradicted")).get_by_label("Reason").fill("After a week, it says.")
        rita.get_by_role("button", name="Keep and go on").click()
        owner.goto(here)
        owner.get_by_label("union").check()
        press(owner, decide, "Use this rule")
        owner.get_by_label("Kind").select_option("tone")
        owner.get_by_label("From the model").select_option("encoder")
        owner.get_by_label("Run", exact=True).fill("tone")
        owner.get_by_label("Epochs").fill("1")
        press(owner, train, "Train")
        expect(owner.locator("#trained .finished, #trained .damaged")).to_be_visible(timeout=1_200_000)
        assert owner.locator("#trained .damaged").count() == 0, owner.locator("#trained").inner_text()
        owner.goto(f"{server.url}/runs")
        expect(owner.get_by_role("link", name="tone", exact=True)).to_be_visible()
    finally:
        server.end()
    assert (tmp_path / "outputs/tone/model/model.safetensors").is_file()
    taxonomy = Taxonomy(**{k: v for k, v in _taxonomy(tmp_path).items() if k != "_target_"})
    records = {r.id: r for r in read_feedback(tmp_path / "outputs/mails_marked/feedback.json", taxonomy)}
    assert [e.error_type for e in records["m1"].marked[0].errors] == ["Rude"]
    (dropped,) = records["m1"].marked[0].dropped
    assert dropped.explanation == "After a week, it says." and dropped.annotators == ("ann", "rita")


def press(page: Page, step: str, words: str) -> None:
    """Press what a step of the page names in bold."""
    assert f"**{words}**" in step.replace("\n", " ")
    found = page.get_by_role("button", name=words, exact=True).or_(page.get_by_role("link", name=words, exact=True))
    found.first.click()
    page.wait_for_load_state()


def _taxonomy(directory: Path) -> dict:
    import yaml

    found: dict = yaml.safe_load((directory / "my_conf/taxonomy/support_mails.yaml").read_text(encoding="utf-8"))
    return json.loads(json.dumps(found))
