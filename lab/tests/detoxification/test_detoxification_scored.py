"""Texts for classifiers from published scores, texts label by label, and the words that give a label away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from finegrained_lab.experiments.detox import SplitByLabel, WriteLabelWords, WriteScoredTexts
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import read_jsonl, write_jsonl


def row(number: int, prompt: float | None, continuation: float | None) -> dict[str, Any]:
    return {
        "prompt": {"text": f"begin {number}", "toxicity": prompt},
        "continuation": {"text": f" and on {number}.", "toxicity": continuation},
        "challenging": False,
    }


def test_parts_share_no_row_and_texts_without_a_score_are_left_out(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "rows.jsonl", [row(0, 0.1, 0.9), row(1, None, 0.5), row(2, 0.3, None), row(3, 0.2, 0.7)])
    WriteScoredTexts(str(tmp_path / "rows.jsonl"), str(tmp_path / "out"), {"one": 0.5, "two": 0.5}).run()
    one, two = (read_jsonl(tmp_path / f"out/{name}.jsonl") for name in ("one", "two"))
    assert [(text["text"], text["label"], text["score"]) for text in one] == [
        ("begin 0", "mild", 0.1),
        ("and on 0.", "toxic", 0.9),
        ("and on 1.", "toxic", 0.5),
    ]
    assert [text["text"] for text in two] == ["begin 2", "begin 3", "and on 3."]
    assert len({text["id"] for text in (*one, *two)}) == 6


def test_texts_label_by_label(tmp_path: Path) -> None:
    texts = [{"id": f"t{i}", "text": f"x {i}", "label": "toxic" if i % 3 else "mild"} for i in range(7)]
    write_jsonl(tmp_path / "texts.jsonl", texts)
    SplitByLabel(str(tmp_path / "texts.jsonl"), str(tmp_path / "out")).run()
    assert [text["id"] for text in read_jsonl(tmp_path / "out/mild.jsonl")] == ["t0", "t3", "t6"]
    assert read_jsonl(tmp_path / "out/toxic.jsonl")[0] == {"id": "t1", "text": "x 1"}


def labelled(directory: Path, texts: dict[str, list[str]]) -> Path:
    rows = [{"text": text, "label": label} for label, found in texts.items() for text in found]
    write_jsonl(directory / "labelled.jsonl", rows)
    return directory / "labelled.jsonl"


def test_words_of_a_label_are_those_it_has_more_often(tmp_path: Path) -> None:
    toxic = ["the fizzler is a blomp"] * 30 + ["the blomp"] * 20
    mild = ["the table is here"] * 80 + ["the cat is a blomp"]
    file = labelled(tmp_path, {"toxic": toxic, "mild": mild})
    WriteLabelWords(str(file), "toxic", str(tmp_path / "words.txt")).run()
    found = (tmp_path / "words.txt").read_text().split()
    assert found[:2] == ["blomp", "fizzler"] and not {"the", "is", "table", "cat"} & set(found)
    WriteLabelWords(str(file), "toxic", str(tmp_path / "words.txt"), words=1).run()
    assert (tmp_path / "words.txt").read_text() == "blomp\n"


def test_no_word_gives_shuffled_labels_away(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    texts = [" ".join(f"w{word}" for word in rng.integers(0, 400, 8)) for _ in range(600)]
    file = labelled(tmp_path, {"toxic": texts[:300], "mild": texts[300:]})
    with pytest.raises(DataError, match="no word is surely more frequent"):
        WriteLabelWords(str(file), "toxic", str(tmp_path / "words.txt"), words=400).run()
    assert not (tmp_path / "words.txt").exists()


@pytest.mark.parametrize(("label", "which"), [("toxic", "all"), ("rude", "none")])
def test_words_of_a_label_that_all_texts_or_none_have_are_refused(tmp_path: Path, label: str, which: str) -> None:
    file = labelled(tmp_path, {"toxic": ["a b", "c"]})
    with pytest.raises(DataError, match=f"labelled.jsonl.*{which} have it"):
        WriteLabelWords(str(file), label, str(tmp_path / "words.txt")).run()


def test_bad_input_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="parts"):
        WriteScoredTexts("rows.jsonl", "out", {"a": 0.7, "b": 0.7})
    write_jsonl(tmp_path / "rows.jsonl", [row(0, None, None), row(1, 0.5, 0.5)])
    with pytest.raises(DataError, match=r"rows\.jsonl.*no text with a score"):
        WriteScoredTexts(str(tmp_path / "rows.jsonl"), str(tmp_path / "out"), {"one": 0.5}).run()
    write_jsonl(tmp_path / "texts.jsonl", [{"text": "x", "label": "../up"}])
    with pytest.raises(DataError, match="record 0.*a label that can name a file"):
        SplitByLabel(str(tmp_path / "texts.jsonl"), str(tmp_path / "out")).run()
