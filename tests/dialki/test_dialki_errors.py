"""A sample of wrong answers: the class of each by hand, the draw, the file and the page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from dialki_files import write_doc2dial_files
from dialki_toy import dialogue, passage, save_bert, tiny_dialki
from script_runs import rows

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.dialki.evaluation import Answered, knowledge_error, write_errors
from finegrained_rlhf.dialki.finder import Found
from finegrained_rlhf.dialki.jobs import EvaluateDialki
from finegrained_rlhf.dialki.records import DialogueExample
from finegrained_rlhf.dialki.scores import Searched, score_answer
from finegrained_rlhf.dialogue.records import Knowledge
from finegrained_rlhf.runtime.process_config import ProcessConfig


def answer(example: DialogueExample, *place: int) -> Answered:
    known = Knowledge(*place)
    text = example.text_of(known)
    found = Found(
        example.id,
        known,
        text,
        0.5,
        0.25,
        0.75,
        1.0,
        (known.passage,),
        (0, 1, 2, 3),
        (0.5,) * 4,
        Searched(4, 4, 12, 12),
    )
    return Answered(found, score_answer(example, known.passage, text), ())


def example(name: str = "d") -> DialogueExample:
    """Gold: spans 1 and 2 of passage 1, and span 0 of passage 3."""
    return dialogue(name, [passage(i, 5) for i in range(4)], (Knowledge(1, 1, 2), Knowledge(3, 0, 0)))


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ((1, 1, 2), None),
        ((3, 0, 0), None),
        ((0, 1, 2), "wrong_passage"),
        ((1, 0, 0), "wrong_span"),
        ((1, 3, 4), "wrong_span"),
        ((3, 1, 2), "wrong_span"),  # the spans of the other gold place
        ((1, 0, 1), "overlapping"),
        ((1, 2, 2), "overlapping"),
        ((1, 0, 4), "overlapping"),
    ],
)
def test_classes_by_hand(place: tuple[int, int, int], kind: str | None) -> None:
    assert knowledge_error(example(), answer(example(), *place)) == kind


def test_a_sample_is_drawn_by_its_seed_from_wrong_answers_alone(tmp_path: Path) -> None:
    places = [(1, 1, 2), (0, 0, 0), (1, 0, 0), (1, 0, 1)] * 5
    examples = [example(f"d{i}") for i in range(20)]
    answers = [answer(one, *place) for one, place in zip(examples, places, strict=True)]
    drawn = {}
    for seed in (0, 1):
        result = write_errors(tmp_path / f"{seed}.jsonl", examples, answers, 6, seed)
        classes = {"wrong_passage": 5, "wrong_span": 5, "overlapping": 5}
        assert result == {"answers": 20, "wrong": 15, "sampled": 6, "classes": classes}
        drawn[seed] = [int(row["id"][1:]) for row in rows(tmp_path / f"{seed}.jsonl")]
        assert drawn[seed] == sorted(set(drawn[seed])) and len(drawn[seed]) == 6
        assert all(number % 4 for number in drawn[seed])
    assert drawn[0] != drawn[1]
    write_errors(tmp_path / "again.jsonl", examples, answers, 6, 0)
    assert (tmp_path / "again.md").read_text() == (tmp_path / "0.md").read_text()
    assert write_errors(tmp_path / "all.jsonl", examples, answers, 99, 0)["sampled"] == 15
    right = write_errors(tmp_path / "none.jsonl", examples[:1], answers[:1], 5, 0)
    assert right["wrong"] == 0 and (tmp_path / "none.jsonl").read_text() == ""


def test_the_page_shows_what_a_reader_needs(tmp_path: Path) -> None:
    one = example("a_b")
    write_errors(tmp_path / "e.jsonl", [one], [answer(one, 1, 0, 1)], 5, 0)
    (row,) = rows(tmp_path / "e.jsonl")
    assert (row["error"], row["id"], row["exact_match"]) == ("overlapping", "a_b", 0.0)
    assert [turn["role"] for turn in row["turns"]] == ["user", "agent", "user"] and len(row["gold"]) == 2
    page = (tmp_path / "e.md").read_text()
    for words in (
        "1 of 1 wrong answers, drawn with seed 0",
        r"## a\_b: overlapping",
        "- user: tell me door roof of a\\_b",
        f"**found** in passage 1 (roof), spans 0–1: {one.text_of(Knowledge(1, 0, 1))}",
        f"**gold** in passage 1 (roof), spans 1–2: {one.text_of(Knowledge(1, 1, 2))}",
        f"**gold** in passage 3 (lamp), span 0: {one.text_of(Knowledge(3, 0, 0))}",
        "probability of the passage 0.500, of the first span 0.250, of the last 0.750; score 1.000",
    ):
        assert words in page


@pytest.mark.needs("finegrained_lab")
def test_an_evaluation_writes_the_sample(tmp_path: Path) -> None:
    write_doc2dial_files(tmp_path)
    save_bert(tmp_path / "bert", layers=1)
    tiny_dialki(tmp_path / "bert").save(tmp_path / "model")
    EvaluateDialki(
        str(tmp_path / "model"), str(tmp_path / "doc2dial_dial_validation.json"), str(tmp_path / "out"), "doc2dial",
        plots=False, errors=str(tmp_path / "errors.jsonl"), error_sample=3, processes=ProcessConfig("fp32", 1),
    ).run()  # fmt: skip
    said, answers = json.loads((tmp_path / "out/evaluation.json").read_text()), rows(tmp_path / "out/answers.jsonl")
    wrong = {row["id"]: row for row in answers if not row["exact_match"]}
    assert said["errors"]["wrong"] == len(wrong) == sum(said["errors"]["classes"].values())
    drawn = rows(tmp_path / "errors.jsonl")
    assert len(drawn) == said["errors"]["sampled"] == 3
    for row in drawn:
        assert row["text"] == wrong[row["id"]]["text"] and row["references"] == wrong[row["id"]]["references"]
        assert (row["error"] == "wrong_passage") == (not row["passage_correct"])
    assert "**compared with**: " in (tmp_path / "errors.md").read_text()


def test_mistakes_are_one_clear_error() -> None:
    with pytest.raises(ConfigError, match=r"errors: expected a file NAME\.jsonl.* got x\.md"):
        EvaluateDialki("m", "d", "o", errors="x.md")
    with pytest.raises(ConfigError, match="error_sample: expected at least 1, got 0"):
        EvaluateDialki("m", "d", "o", error_sample=0)
