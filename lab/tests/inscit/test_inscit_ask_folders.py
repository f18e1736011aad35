"""Folders and questions made anew by seed: what a small one without weights, and the whole one with them, must answer.

The whole one is what a new user would do: 200 files, 15 questions that are answered there and 5 that are not.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import numpy as np
import pytest

from finegrained_lab.experiments.asking import AnswerFolders, AskTable, FitEvidence, Folders, System
from finegrained_lab.experiments.asking.answers import weights_of
from finegrained_lab.experiments.asking.folders import INJECTED, holds
from finegrained_lab.worlds.folders.make import Asked, make_folder
from finegrained_lab.worlds.folders.places import PLACES
from finegrained_lab.worlds.folders.unseen import UNSEEN
from finegrained_rlhf.inscit import Ask
from finegrained_rlhf.inscit.asking.assistant import DocumentAssistant
from finegrained_rlhf.inscit.asking.evidence import SHIPPED
from finegrained_rlhf.inscit.asking.job import open_assistant

ROOT = Path(__file__).parents[3]
LEAST = 0.75
"""The share of facts cited, and of questions refused, at least in five new folders together.

Of each folder 12 of 15 and 4 of 5 are wanted; `docs/ask.md` says in how many that is reached."""


def model(name: str) -> Path:
    """A model that `finegrained prepare-models` makes."""
    for place in filter(None, (os.environ.get("PRETRAINED_MODELS"), ROOT / "models")):
        if (Path(place) / name / "config.json").is_file():
            return Path(place) / name
    pytest.skip(f"needs {name}: finegrained prepare-models, or PRETRAINED_MODELS=DIR")


def right(assistant: DocumentAssistant, folder: Path, questions: list[Asked]) -> tuple[int, int]:
    """Questions whose fact is cited, in its file and at its place, and those that are refused as they must be."""
    held = refused = 0
    for one in questions:
        answer = assistant.ask(one.text)
        for place in answer.citations:
            assert (folder / place.file).read_text(encoding="utf-8")[place.start : place.end] == place.text
        held += any(place.file == one.file and holds(one.fact, place.text) for place in answer.citations)
        refused += one.fact is None and answer.type == "not in these documents"
    return held, refused


def test_a_small_folder_without_weights(tmp_path: Path) -> None:
    """Words alone find what a question shares words with; what no file names is refused."""
    folder, museum = tmp_path / "docs", PLACES["museum"]
    questions = make_folder(folder, 7, "museum", museum, files=12, answerable=6, not_answerable=5)
    assert make_folder(tmp_path / "again", 7, "museum", museum, files=12, answerable=6, not_answerable=5) == questions
    made, _ = open_assistant(Ask(docs=str(folder), index=str(tmp_path / "index"), encoder="none", model="none"))
    answers = {one.kind: made.ask(one.text) for one in questions}
    assert answers["off topic"].type == answers["unknown entity"].type == "not in these documents"
    for one in (one for one in questions if one.fact is not None):
        assert made.ask(one.text).searched.passages[0].passage.file == one.file


class Letters:
    """An encoder that counts pairs of letters."""

    def encode(self, texts: list[str], kind: str) -> np.ndarray:
        rows = np.full((len(texts), 26 * 26), 1e-6, dtype=np.float32)
        for row, text in zip(rows, texts, strict=True):
            codes = [ord(letter) - 97 for letter in text.lower() if "a" <= letter <= "z"]
            for one, other in zip(codes, codes[1:], strict=False):
                row[26 * one + other] += 1
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_weights_are_fitted_and_every_part_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Folders, "encoders", lambda folders: (Letters(), Letters()))
    sizes = {"files": 16, "answerable": 6, "not_answerable": 5, "encoder": "none", "reranker": "none"}
    systems = {
        "all": System(says="whole"),
        "words": System(judges="words", says="by words"),
        "no_kinds": System(without=["expected"], says="without kinds"),
        "injected": System(injected=True, says="injected"),
    }
    weights, unseen = str(tmp_path / "weights.json"), Folders(["clubs"], [1], **sizes)
    fit = FitEvidence(
        folders=[Folders(["garden", "museum"], [1], **sizes)],
        systems=systems,
        directory=str(tmp_path / "fit"),
        output=weights,
    )
    fit.run()
    made = json.loads(Path(weights).read_text())
    assert set(made) == {"first", "all", "words", "no_kinds"}
    assert "expected" in made["all"]["weights"] and "expected" not in made["no_kinds"]["weights"]
    for row in made.values():
        assert all(
            (value < 0) == (name in ("elsewhere", "unnamed", "common")) for name, value in row["weights"].items()
        )
    once = Path(weights).read_bytes()
    fit.run()  # from what was described before
    assert Path(weights).read_bytes() == once
    directory = str(tmp_path / "unseen")
    AnswerFolders(folders=unseen, systems=systems, weights=weights, directory=directory).run()
    docs = sorted((tmp_path / "unseen").glob("clubs_1_injected/docs/*.md"))
    assert len(docs) == 16 and all(INJECTED in file.read_text() for file in docs)
    table = AskTable(str(tmp_path / "ask.json"), "run", directory, unseen, systems, weights, chosen="Nothing.")
    result = table.run()
    counts = result["by_folder"]["clubs 1"]["all"]
    assert (counts["stated"], counts["absent"]) == (6, 5)
    assert result["rows"]["all"]["held"][0] == counts["held"] / 6
    assert "| no_kinds |" in (tmp_path / "ask.md").read_text()


def test_shipped_weights_are_those_of_the_page() -> None:
    fitted = json.loads((ROOT / "docs/results/inscit/ask.json").read_text())["weights"]
    assert SHIPPED == {
        judges: weights_of(fitted[row])
        for judges, row in (("reranker", "all"), ("encoder", "encoder"), ("words", "words"))
    }


@pytest.mark.slow
def test_a_folder_of_5000_files_is_read_once(tmp_path: Path) -> None:
    """Times are those of one core, with room for a busy one; `docs/ask.md` has what was measured."""
    folder = tmp_path / "docs"
    for style, facts in UNSEEN.items():
        make_folder(folder / style, 5000, style, facts, files=1000)
    settings = Ask(docs=str(folder), index=str(tmp_path / "index"), encoder="none", model="none")
    seconds, lines = [], []
    for _ in range(3):
        start = time.process_time()
        made, (line, *_rest) = open_assistant(settings)
        seconds.append(time.process_time() - start)
        lines.append(line)
        changed = min((folder / "wards").iterdir())
        with changed.open("a", encoding="utf-8") as file:
            file.write("The porter keeps a parrot called Quill.\n" if len(lines) == 2 else "")
    print(seconds)
    assert [line.split(" of them")[0] for line in lines] == [f"5,000 files, {new}" for new in ("5,000", "0", "1")]
    assert seconds[0] < 60 and seconds[1] < 15 and seconds[2] < 30
    assert (
        "Quill" in made.ask("What is the name of the parrot that the porter keeps?").searched.passages[0].passage.text
    )


@pytest.mark.slow
def test_folders_that_nothing_was_chosen_on(tmp_path: Path) -> None:
    counts = []
    for style, facts in UNSEEN.items():
        folder = tmp_path / style
        questions = make_folder(folder, 1000, style, facts)
        start = time.monotonic()
        settings = Ask(
            docs=str(folder),
            index=str(tmp_path / f"{style}_index"),
            encoder=str(model("minilm")),
            reranker=str(model("mpnet")),
            model="none",
        )
        made, lines = open_assistant(settings)
        counts.append(right(made, folder, questions))
        held, refused = counts[-1]
        print(f"{style}: {held} of 15 held, {refused} of 5 refused, {time.monotonic() - start:.0f} s; {lines[0]}")
    held, refused = map(sum, zip(*counts, strict=True))
    assert held >= LEAST * 15 * len(UNSEEN) and refused >= LEAST * 5 * len(UNSEEN)
