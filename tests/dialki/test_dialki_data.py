"""Readers of dialogue files: what they give, what they count, and what they refuse. Small files of our own making."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.dialki import GenerateResponses, IdentifyKnowledge
from finegrained_rlhf.dialki.data import DialogueData
from finegrained_rlhf.dialki.records import NO_PASSAGE, DialogueExample
from finegrained_rlhf.dialogue.records import Knowledge, Passage, Turn

# Records ----------------------------------------------------------------------------------------------------------

PASSAGES = (Passage("a", "Mill", ("Old. ", "It is red.")), Passage("b", "Inn", ("New.",)))
TURNS = (Turn("user", "Hi"), Turn("agent", "Yes?", Knowledge(1, 0, 0)), Turn("user", "What color?"))


def test_a_record_gives_the_words_of_its_gold() -> None:
    example = DialogueExample("x", TURNS, PASSAGES, (Knowledge(0, 0, 1), Knowledge(1, 0, 0)))
    assert example.gold_texts == ("Old. It is red.", "New.")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"turns": (Turn("agent", "Hi"),)}, "turns"),
        ({"turns": ()}, "turns"),
        ({"turns": TURNS[:2]}, r"turns\[1\]"),
        ({"turns": (Turn("bot", "Hi"),)}, r"turns\[0\].role"),  # type: ignore[arg-type]
        ({"turns": (Turn("user", " "),)}, r"turns\[0\].text"),
        ({"turns": (Turn("user", "Hi", Knowledge(2, 0, 0)),)}, r"turns\[0\].knowledge.passage"),
        ({"passages": ()}, "passages"),
        ({"passages": (Passage("a", "", ()),)}, r"passages\[0\].spans"),
        ({"passages": (Passage("a", "", ("one", "\n")),)}, r"passages\[0\].spans\[1\]"),
        ({"passages": (PASSAGES[0], PASSAGES[0])}, r"passages\[1\].id"),
        ({"passages": (Passage("a", "", ("one", "two"), (1,)),)}, r"passages\[0\].sentence_starts"),
        ({"passages": (Passage("a", "", ("one", "two"), (0, 2)),)}, r"passages\[0\].sentence_starts"),
        ({"gold": (Knowledge(0, 1, 2),)}, r"gold\[0\]"),
        ({"gold": (Knowledge(0, 1, 0),)}, r"gold\[0\]"),
        ({"gold": (Knowledge(0, 1, 1), Knowledge(0, 1, 1))}, "gold"),
        ({"gold": (Knowledge(1, 0, 0),), "no_passage": True}, "no_passage"),
    ],
)
def test_broken_records_are_refused_by_name(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(DataError, match=rf"^record x, field {field}: "):
        DialogueExample(**{"id": "x", "turns": TURNS, "passages": PASSAGES, **changes})


# The project's own JSON lines -------------------------------------------------------------------------------------

PLAIN = {"title": "Inn", "text": "The inn is red. It has two floors.  It opens at nine."}
OWN: dict[str, Any] = {
    "id": "mine",
    "turns": [
        {"role": "user", "text": "What color is the inn?", "knowledge": {"passage": 0, "begin": 0}},
        {"role": "agent", "text": "Red.", "knowledge": {"passage": "p", "begin": 0, "end": 1}},
        {"role": "user", "text": "When does it open?"},
    ],
    "passages": [PLAIN, {"id": "p", "title": "Mill", "spans": ["Old.", "Blue."]}],
    "gold": [{"passage": 0, "text": "floors. It opens"}],
    "response": "At nine.",
    "unseen": True,
}


def own(path: Path, *rows: Any) -> Any:
    (path / "d.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    return DialogueData(str(path / "d.jsonl")).read()


def test_own_format_plain_text_and_labels(tmp_path: Path) -> None:
    (example,) = own(tmp_path, OWN).examples
    assert example.passages[0].spans == ("The inn is red.", "It has two floors.", "It opens at nine.")
    assert example.gold == (Knowledge(0, 1, 2),) and example.id == "mine" and example.unseen is True
    assert [turn.knowledge for turn in example.turns] == [Knowledge(0, 0, 0), Knowledge(1, 0, 1), None]


def test_own_format_unlabelled_and_without_id(tmp_path: Path) -> None:
    row = {"turns": [{"role": "user", "text": "Hi"}], "passages": [PLAIN]}
    first, second = own(tmp_path, row, row).examples
    assert (first.id, second.id, first.gold, first.response, first.no_passage) == ("0", "1", (), None, False)


def test_own_format_no_passage(tmp_path: Path) -> None:
    row = {"turns": [{"role": "user", "text": "Hi"}], "passages": [PLAIN]}
    yes, no = own(tmp_path, {**row, "no_passage": True}, {**row, "no_passage": False}).examples
    assert yes.passages == no.passages and yes.passages[-1] == NO_PASSAGE
    assert yes.no_passage and yes.gold == (Knowledge(1, 0, 0),) and not no.no_passage and no.gold == ()


def test_own_format_whole_dialogues(tmp_path: Path) -> None:
    greeting = {"role": "agent", "text": "Welcome."}
    row = {
        "id": "w",
        "turns": [greeting, *OWN["turns"], {"role": "agent", "text": "Nine."}],
        "passages": OWN["passages"],
    }
    reading = own(tmp_path, row)
    assert [example.id for example in reading.examples] == ["w-2", "w-4"]
    assert [example.gold for example in reading.examples] == [(Knowledge(1, 0, 1),), ()]
    assert [example.response for example in reading.examples] == ["Red.", "Nine."]
    assert reading.skipped == {"agent turn without a user turn before it": 1}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"turn": []}, r"record mine, field turn: unknown field"),
        ({"turns": [{"role": "agent", "text": "Hi"}]}, r"record mine, field turns: the dialogue has no user turn"),
        (
            {"turns": [{"role": "system", "text": "Hi"}]},
            r"field turns\[0\].role: unknown role 'system', expected 'user'",
        ),
        ({"turns": [{"role": "user"}]}, r"field turns\[0\].text: missing field"),
        ({"passages": []}, r"record mine, field .*: (expected at least one passage|passage 0 does not exist)"),
        ({"passages": [PLAIN, {"id": "p", "text": " "}]}, r"field passages\[1\].text: expected some text"),
        ({"passages": [PLAIN, {"id": "p", "spans": []}]}, r"record mine, field .*passage"),
        ({"passages": [PLAIN, {"id": "p", "title": "x"}]}, r"passages\[1\]: expected either `spans` or `text`"),
        (
            {"gold": [{"passage": 0, "text": "green"}]},
            r"gold\[0\].text: the text does not exist in passage '0'",
        ),
        ({"gold": [{"passage": "q", "begin": 0}]}, r"gold\[0\].passage: no passage has the id 'q'"),
        ({"gold": {"passage": 0, "begin": 9}}, r"record mine, field gold\[0\]: spans 9 to 9 do not exist"),
        ({"gold": {"passage": 5, "begin": 0}}, r"record mine, field gold: passage 5 does not exist"),
        ({"gold": "0"}, r"record mine, field gold: expected a list, got str"),
        ({"unseen": "yes"}, r"record mine, field unseen: expected true, false or null"),
        ({"turns": [*OWN["turns"], {"role": "agent", "text": "Bye"}]}, r"field gold: belongs to a dialogue that ends"),
        ({"no_passage": True}, r"record mine, field gold: expected no gold"),
    ],
)
def test_own_format_bad_files(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        own(tmp_path, {**OWN, **changes})


def test_the_same_id_twice_and_an_empty_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"d.jsonl, record mine, field id: the id occurs twice"):
        own(tmp_path, OWN, OWN)
    with pytest.raises(DataError, match=r"holds no turn to answer \(no dialogues\)"):
        own(tmp_path)


def test_another_format_than_the_own_comes_with_a_package() -> None:
    with pytest.raises(ConfigError, match="format: expected one of jsonl"):
        DialogueData("x", "squad")
    for options in ({"documents": "x"}, {"part": "dev"}, {"unseen": True}, {"keep_unlabelled": True}):
        with pytest.raises(ConfigError, match="belongs to .*, the format is 'jsonl'"):
            DialogueData("x", **options)  # type: ignore[arg-type]
    for build in (IdentifyKnowledge, GenerateResponses):
        with pytest.raises(ConfigError, match="format: expected one of jsonl"):
            build("m", input="d", format="squad")  # type: ignore[operator]
