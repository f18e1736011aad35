"""Spans that a judge suggests: quotes of the taxonomy's types, kept from those who must not see them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from annotation_toy import LAKE, item
from remote_toy import FakeService, chat

from finegrained_rlhf.annotation.items import AnnotationItem, SuggestByJudge
from finegrained_rlhf.annotation.project import MakeAnnotationTasks
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.feedback.labels import Suggestion
from finegrained_rlhf.feedback.outputs import OutputRecord, write_outputs
from finegrained_rlhf.feedback.taxonomy import QA_FEEDBACK, Taxonomy
from finegrained_rlhf.runtime.remote.client import RemoteConfig

TEXT = "The lake is wide. The lake is wide. It is warm."
QUOTES = [
    {"quote": "The lake is wide.", "kind": "Irrelevant"},
    {"quote": "The lake is wide.", "kind": "Redundant"},
    {"quote": "It is  warm", "kind": "Wrong-Grounding"},
    {"quote": "is warm", "kind": "Incoherent"},  # lies in the one before
    {"quote": "It is cold", "kind": "Unverifiable"},  # is not there
]


def judge(service: FakeService, cache: Path) -> SuggestByJudge:
    return SuggestByJudge(remote=RemoteConfig(service.url, budget_s=5.0), model="m", cache_file=str(cache))


def test_quotes_become_suggestions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[str] = []

    def quotes(message: str) -> Any:
        asked.append(message)
        return {"errors": QUOTES if TEXT in message else []}

    items = [item("q1", answers=("No.", TEXT), marked=1), item("q2", answers=("It is wide.",))]
    with FakeService(chat(quotes)) as service:
        found = judge(service, tmp_path / "kept.sqlite").suggest(items, QA_FEEDBACK)
        judge(service, tmp_path / "kept.sqlite").suggest(items, QA_FEEDBACK)
        system = service.requests[0]["messages"][0]["content"]
    assert [(TEXT[one.start : one.end], one.error_type, one.score) for one in found[0]] == [
        ("The lake is wide.", "Irrelevant", None),
        ("The lake is wide.", "Redundant", None),
        ("It is warm", "Wrong-Grounding", None),
    ]
    assert found[0][0].start == 0 and found[0][1].start == 18 and found[1] == ()
    assert "the judge suggests 3 spans; 2 quotes are not in the answer, or overlap" in capsys.readouterr().out
    assert len(asked) == 2 and all("Its water" in message for message in asked)
    assert all(kind.name in system for one in QA_FEEDBACK.categories.values() for kind in one.types.values())


def test_nothing_is_suggested_where_it_would_bias_what_is_measured(tmp_path: Path) -> None:
    outputs = [OutputRecord(f"q{i}", "Why?", (LAKE,), (), "", (TEXT, "No.")) for i in range(12)]
    write_outputs(tmp_path / "outputs.jsonl", outputs)
    with FakeService(chat(lambda message: {"errors": QUOTES})) as service:
        made = MakeAnnotationTasks(
            outputs=str(tmp_path / "outputs.jsonl"),
            output_dir=str(tmp_path / "tasks"),
            annotators=["ann", "ben"],
            overlap=1 / 3,
            preannotate=judge(service, tmp_path / "kept.sqlite"),
        ).run()
    shown = [one for one in made.items.values() if one.suggestions]
    assert len(shown) == 4 and all(one.role == "single" for one in shown)
    assert all(len(one.suggestions) == 3 for one in shown)


def test_a_taxonomy_without_types_has_nothing_to_quote(tmp_path: Path) -> None:
    with FakeService() as service, pytest.raises(ConfigError, match="has no types that a judge could quote"):
        judge(service, tmp_path / "kept.sqlite").suggest([item()], Taxonomy("ranks", {}, preferences=True))


def test_what_suggests_nothing_is_refused(tmp_path: Path) -> None:
    values: dict[str, Any] = {"outputs": "o.jsonl", "output_dir": "d", "annotators": ["ann"]}
    with pytest.raises(ConfigError, match="preannotate: int suggests no spans"):
        MakeAnnotationTasks(**values, preannotate=3)  # type: ignore[arg-type]
    for wrong in ((3, 3, 0.5), (-1, 3, 0.5), (0, 3, 1.5)):
        with pytest.raises(DataError, match="expected"):
            Suggestion(wrong[0], wrong[1], "Irrelevant", wrong[2], "m")
    assert isinstance(item(), AnnotationItem)
