"""The records that systems share: passages cut and uncut, dialogues, titles with levels, readings of data sets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from finegrained_rlhf.core.checks import as_flag, as_index, as_list, as_object
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.sources import Reading
from finegrained_rlhf.dialki.data import DialogueData
from finegrained_rlhf.dialogue.records import Dialogue, Knowledge, Passage, Turn, check_turns
from finegrained_rlhf.dialogue.tokens import MARKER_TOKENS, full_title, plain_title
from finegrained_rlhf.feedback import records as feedback


def test_a_passage_reads_as_the_three_that_it_stands_for() -> None:
    sentences = ("Old. ", "It is red.")
    cut = Passage("a", "Mill", sentences)
    of_feedback = feedback.QAExample("q", "Which mill?", "…", ("Mill",), (Passage("", "Mill", sentences),)).passages[0]
    assert (cut.text, cut.sentences) == (of_feedback.text, of_feedback.sentences) == ("Old.  It is red.", sentences)
    split = [(0, 4), (6, 16)]
    assert cut.resplit(lambda text: split).sentences == of_feedback.resplit(lambda text: split).sentences
    for title in ("", "Mill"):
        uncut = Passage.uncut("a", "It is red.", title)
        assert (uncut.text, uncut.contents) == ("It is red.", f"{title} It is red.".strip())
    assert cut.run(0, 1) == "Old. It is red." and cut.run(1, 1) == "It is red."


def test_sentences_are_runs_of_spans() -> None:
    passage = Passage("a", "", ("If you are 16,", "you may drive.", "Bring glasses."), (0, 2))
    assert passage.sentence_bounds == ((0, 2), (2, 3))
    assert passage.sentences == ("If you are 16, you may drive.", "Bring glasses.")
    assert Passage("a", "", ()).sentences == ()


def test_a_dialogue_gives_the_words_of_a_place_and_its_turns_newest_first() -> None:
    turns = (Turn("user", "Hi"), Turn("agent", "Yes?", Knowledge(0, 0, 0)), Turn("user", "Red?"))
    dialogue = Dialogue("d", turns, (Passage("a", "", ("Old. ", "It is red.")),))
    assert dialogue.text_of(Knowledge(0, 0, 1)) == "Old. It is red."
    assert [turn.text for turn in dialogue.newest_first] == ["Red?", "Yes?", "Hi"]
    assert Dialogue("d", turns).passages == ()


def test_an_unknown_answer_is_allowed_only_where_a_system_says_so() -> None:
    turns = (Turn("user", "Who?"), Turn("agent", " "), Turn("user", "When?"))
    check_turns(turns, blank=True)
    with pytest.raises(DataError, match=r"turns\[1\].text"):
        check_turns(turns)
    with pytest.raises(DataError, match=r"turns\[0\].text"):
        check_turns((Turn("user", ""),), blank=True)


def test_titles_have_levels() -> None:
    title = full_title("Licences", ["Drivers", "", "Drivers", "New"], " Fees ")
    assert title == "Licences <parent_title> Drivers <parent_title> New <text> Fees"
    assert plain_title(title) == "Licences / Drivers / New / Fees"
    assert full_title("Licences", [], "") == "Licences <text>" and plain_title("Licences <text>") == "Licences"
    assert sorted(MARKER_TOKENS) == ["<agent>", "<parent_title>", "<text>", "<user>"]


@dataclass(frozen=True)
class Row:
    id: str


class Rows(Reading[Row]):
    entry = "dialogues"
    example = "question"

    def measured(self) -> dict[str, int]:
        return {"longest_id": max(len(row.id) for row in self.examples)}


def test_a_reading_counts_what_was_read_and_refuses_nothing_and_twice(tmp_path: Path) -> None:
    reading = Rows.of([Row("a"), Row("bc")], 3, {"z": 1, "without gold": 2}, {"moved": 1}, "f")
    assert list(reading.report().items()) == [
        ("dialogues", 3),
        ("examples", 2),
        ("skipped", {"without gold": 2, "z": 1}),
        ("notes", {"moved": 1}),
        ("longest_id", 2),
    ]
    with pytest.raises(DataError, match=r"^file f: holds no question \(2 without gold\)$"):
        Rows.of([], 3, {"without gold": 2}, {}, "f")
    with pytest.raises(DataError, match=r"^file f: holds no question \(no dialogues\)$"):
        Rows.of([], 0, {}, {}, "f")
    with pytest.raises(DataError, match="file f, record a, field id: the id occurs twice"):
        Rows.of([Row("a"), Row("b"), Row("a")], 1, {}, {}, "f")


def test_dialogue_data_names_its_files() -> None:
    source = DialogueData("x.jsonl")
    assert source.files == {"path": Path("x.jsonl")}


@pytest.mark.parametrize(
    ("check", "value"),
    [(as_object, []), (as_list, {}), (as_index, -1), (as_index, True), (as_index, "1"), (as_flag, 0), (as_flag, "yes")],
)
def test_values_of_another_kind_are_refused_by_the_name_of_their_field(check: object, value: object) -> None:
    with pytest.raises(DataError, match=r"^field turns\[2\]: expected "):
        check(value, "turns[2]")  # type: ignore[operator]
