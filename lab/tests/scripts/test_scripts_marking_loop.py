"""A round of the feedback loop through the server: two browsers mark what simulated people would, and it is learnt."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sqlalchemy")

from browser import launched
from marking_browser import Server, at, invited, joined, own, settled
from playwright.sync_api import Browser, Page, expect
from script_runs import run_script

from finegrained_lab.worlds.factworld.simulate import simulated_export
from finegrained_rlhf.annotation.project import Project
from finegrained_rlhf.core.files import read_json
from finegrained_rlhf.feedback.outputs import OutputRecord, write_outputs
from finegrained_rlhf.feedback.reading import read_examples, read_feedback
from finegrained_rlhf.text.segmentation import DEFAULT_SEGMENTER, shared_segmenter

pytestmark = [pytest.mark.slow, pytest.mark.scripts, pytest.mark.timeout(3600)]

SELECT = """([start, end]) => {
  const units = (place) => Marks.units(View.textOf(), place);
  Picked.set(units(start), units(end));
  Actions.selected();
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    yield from launched()


def as_told(page: Page, row: dict[str, Any]) -> None:
    """Do a task as a simulated person would, by the page's own controls."""
    at(page, row["item"])
    for one in row["spans"]:
        page.focus("#answer")
        page.evaluate(SELECT, [one["start"], one["end"]])
        page.locator(f'.types [data-type="{one["type"]}"]').click()
        for passage, sentence in one["evidence"]:
            page.click(f'[data-place="{passage},{sentence}"]')
        if page.locator("#finish").count():
            page.click("#finish")
        if one["note"]:
            page.locator(".marks li", has_text=one["text"]).locator("input").first.fill(one["note"])
    if row["no_error"]:
        page.check("#noError")
    for gap in row["missing"]:
        page.click(f'[data-type="{gap["type"]}"]')
        for sentence in gap["sentences"]:
            page.click(f'[data-place="{gap["passage"]},{sentence}"]')
        page.click("#finish")
    if row["nothing_missing"]:
        page.check("#nothingMissing")
    page.fill("#correction", row["correction"])
    for place, group in enumerate(row["ranking"]):
        for answer in group:
            page.locator(f'label.place:has(input[name="place-{answer}"][value="{place + 1}"])').click()
    page.click("#done")


def said(row: dict[str, Any]) -> tuple[Any, ...]:
    """What a task of an export says, in one order."""
    marks = sorted([one[name] for name in ("start", "end", "type", "evidence", "note")] for one in row["spans"])
    missing = sorted((gap["type"], gap["passage"], number) for gap in row["missing"] for number in gap["sentences"])
    return (
        row["item"],
        marks,
        missing,
        *(row[name] for name in ("no_error", "nothing_missing", "correction", "ranking")),
    )


def test_a_round_through_the_server(browser: Browser, smoke: Path, tmp_path: Path) -> None:
    served = tmp_path / "served"
    served.mkdir()
    examples = read_examples(smoke / "prepared" / "world" / "sft_train.json")[:6]
    answers = [example.references[0] for example in examples]
    records = [OutputRecord.of(one, (answers[i - 1], answers[i])) for i, one in enumerate(examples)]
    write_outputs(served / "outputs.jsonl", records)
    shutil.copytree(smoke / "prepared" / "models" / "longformer", served / "encoder")
    made = run_script(
        "make_annotation_tasks",
        "outputs=outputs.jsonl",
        "annotators=[ann,ben]",
        "overlap=0.5",
        "output_dir=tasks",
        cwd=served,
    )
    assert made.returncode == 0, made.stderr
    project = Project.read(served / "tasks")
    told = {n: simulated_export(project, n, 0.55, 0, shared_segmenter(DEFAULT_SEGMENTER)) for n in project.annotators}
    server = Server(served)
    try:
        owner = browser.new_context().new_page()
        owner.set_default_timeout(180_000)
        own(owner, server.first_link(), "olga")
        owner.get_by_role("button", name="Open for marking").click()
        here = owner.url
        for name, export in told.items():
            page = joined(browser, invited(owner, server.url, name)).pages[0]
            page.goto(f"{here}/work")
            for row in export["tasks"]:
                as_told(page, row)
            settled(page)
            kept = page.evaluate("fetch('export.json').then((answer) => answer.json())")
            assert list(map(said, kept["tasks"])) == list(map(said, export["tasks"]))
        owner.goto(here)
        owner.get_by_label("union").check()
        owner.get_by_role("button", name="Use this rule").click()
        owner.get_by_label("Kind").select_option("relevance")
        owner.get_by_label("From the model").select_option("encoder")
        owner.get_by_label("Run").fill("relevance")
        owner.get_by_label("Epochs").fill("1")
        owner.get_by_role("button", name="Train", exact=True).click()
        expect(owner.get_by_text("trained", exact=True)).to_be_visible(timeout=900_000)
        owner.goto(f"{server.url}/runs")
        expect(owner.get_by_role("link", name="relevance")).to_be_visible()
    finally:
        server.end()
    feedback = read_feedback(served / "tasks_marked" / "feedback.json", project.taxonomy)
    trained = read_json(served / "relevance" / "metrics.json")
    assert len(feedback) == trained["train_examples"] == 6 and trained["reward_model"] == "relevance"
    assert trained["dev_examples"] == 0  # too few to hold any out
    checked = run_script(
        "evaluate_reward_model", "path=relevance", "data=tasks_marked/feedback.json", "output=t.json", cwd=served
    )
    assert checked.returncode == 0, checked.stderr
