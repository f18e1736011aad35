"""Readers of published dialogues: what they give, what they count, and what they refuse, in small files of our own."""

from __future__ import annotations

import copy
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from finegrained_lab.published.dialogues.doc2dial import read_doc2dial
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.dialki.data import DialogueData
from finegrained_rlhf.dialki.records import NO_PASSAGE
from finegrained_rlhf.dialki.scores import score_answer
from finegrained_rlhf.dialogue.records import Knowledge, Passage, Turn

# Doc2Dial ---------------------------------------------------------------------------------------------------------


def document(*spans: tuple[str, str, list[str]]) -> dict[str, Any]:
    """A document of the published form from (section title, text, parent titles)."""
    text, rows = "", {}
    for number, (title, words, parents) in enumerate(spans, start=1):
        rows[str(number)] = {
            "id_sp": str(number),
            "tag": "u",
            "start_sp": len(text),
            "end_sp": len(text) + len(words),
            "text_sp": words,
            "title": title,
            "parent_titles": [{"id_sp": "0", "text": parent, "level": "h2"} for parent in parents],
            "id_sec": str(number if number < 3 else 3),
        }
        text += words
    return {"doc_id": "D", "title": "D", "domain": "dmv", "doc_text": text, "spans": rows}


def turn(number: int, role: str, words: str, *spans: str) -> dict[str, Any]:
    references = [{"sp_id": span, "label": "solution"} for span in spans]
    return {"turn_id": number, "role": role, "da": "x", "references": references, "utterance": words}


FEES = ("Fees", "\n\nFees \n", [])
DOCUMENT = document(
    FEES,
    ("Fees", "Pay ten dollars. ", ["Licences"]),
    ("Tests", "Read a chart. ", ["Licences"]),
    ("Tests", "Then drive. ", ["Licences"]),
    ("Fees", "Cards are fine. ", []),
)
DIALOGUE = {
    "dial_id": "d1",
    "turns": [
        turn(1, "user", "How much?", "2"),
        turn(2, "agent", "Ten dollars by card.", "5", "2"),
        turn(3, "agent", "Anything else?"),
        turn(4, "user", "What must I do", "3"),
        turn(5, "user", "to pass?"),
        turn(6, "agent", "Read, drive and pay.", "2", "4", "3"),
        turn(7, "user", "And my cat?"),
        turn(8, "agent", "I do not know."),
        turn(9, "user", "Thanks."),
    ],
}


def doc2dial(
    path: Path, dialogue: Any = DIALOGUE, document: Any = DOCUMENT, train: str | None = None, **options: Any
) -> Any:
    files = {
        "doc2dial_doc.json": {"doc_data": {"dmv": {"D": document}}},
        "doc2dial_dial_validation.json": {"dial_data": {"dmv": {"D": [dialogue]}}},
        "doc2dial_dial_train.json": {"dial_data": {"dmv": {train: []}}},
    }
    for name, content in files.items():
        (path / name).write_text(json.dumps(content))
    if train:
        options["seen_in"] = str(path / "doc2dial_dial_train.json")
    return DialogueData(str(path / "doc2dial_dial_validation.json"), "doc2dial", **options).read()


def test_doc2dial_sections_references_and_skipped_turns(tmp_path: Path) -> None:
    reading = doc2dial(tmp_path, train="D")
    first, second = reading.examples
    assert first.passages == (
        Passage("0", "D <parent_title> Licences <text> Fees", ("Fees", "Pay ten dollars.", "Cards are fine.")),
        Passage("1", "D <parent_title> Licences <text> Tests", ("Read a chart.", "Then drive."), (0,)),
    )
    assert (first.id, first.gold, first.response) == ("d1_1", (Knowledge(0, 1, 2),), "Ten dollars by card.")
    assert first.turns == (Turn("user", "How much?", Knowledge(0, 1, 1)),) and first.unseen is False
    # Two sections: the one referred to most often comes first, and no index of one is used in the other.
    assert (second.id, second.gold) == ("d1_5", (Knowledge(1, 0, 1), Knowledge(0, 1, 1)))
    assert [entry.role for entry in second.turns] == ["user", "agent", "agent", "user", "user"]
    assert [entry.knowledge for entry in second.turns][1:] == [Knowledge(0, 1, 2), None, Knowledge(1, 0, 0), None]
    # The shared task compares with the text from the first span referred to to the last, whatever lies between.
    assert first.references == ("Pay ten dollars. Read a chart. Then drive. Cards are fine. ",)
    assert second.references == ("Pay ten dollars. Read a chart. Then drive. ",)
    assert reading.skipped == {"no agent turn follows": 2, "agent turn without references": 1}
    assert reading.report()["gold"] == {"1": 1, "2": 1} and reading.notes == {"gold in several sections": 1}


def test_doc2dial_unseen_documents_and_blind_turns(tmp_path: Path) -> None:
    reading = doc2dial(tmp_path, train="another", keep_unlabelled=True)
    assert [example.id for example in reading.examples] == ["d1_1", "d1_4", "d1_5", "d1_7", "d1_9"]
    assert all(example.unseen for example in reading.examples) and not reading.skipped
    assert [len(example.gold) for example in reading.examples] == [1, 0, 2, 0, 0]
    assert reading.examples[-1].response is None
    assert doc2dial(tmp_path).examples[0].unseen is None


def test_doc2dial_blank_and_moved_spans_are_counted(tmp_path: Path) -> None:
    changed = copy.deepcopy(DOCUMENT)
    changed["spans"]["6"] = {**changed["spans"]["5"], "text_sp": " \n", "id_sp": "6"}
    changed["spans"]["4"]["start_sp"] += 3
    dialogue = {"dial_id": "d", "turns": [turn(1, "user", "a"), turn(2, "agent", "b", "6")] + DIALOGUE["turns"][2:6]}
    reading = doc2dial(tmp_path, dialogue, changed)
    assert reading.skipped == {"references to blank spans only": 1, "no agent turn follows": 1}
    assert reading.notes["blank spans"] == 1 and reading.notes["references to blank spans"] == 1
    assert reading.notes["spans at another offset than start_sp"] == 1


@pytest.mark.parametrize(
    ("where", "value", "message"),
    [
        (("document", "spans", "2", "text_sp"), "Pay nothing.", r"doc.json, record D, field spans.2.text_sp: .*exist"),
        (("document", "spans"), {}, r"doc.json, record D, field spans: .*no spans"),
        (("document", "spans", "2", "start_sp"), "0", r"record D, field spans.2.start_sp: expected a whole number"),
        (("document", "doc_text"), " ", r"record D, field doc_text: expected some text"),
        (("dialogue", "turns"), [turn(1, "agent", "Hi")], r"validation.json, record d1, field turns: .*no user turn"),
        (("dialogue", "turns", 1, "references", 0, "sp_id"), "99", r"turns\[1\].references\[0\].sp_id: span '99' does"),
        (("dialogue", "turns", 1, "role"), "bot", r"record d1, field turns\[1\].role: unknown role 'bot'"),
        (("dialogue", "turns", 1, "utterance"), "", r"record d1, field turns\[1\].utterance: expected some text"),
        (("dialogue", "turns", 1), {"role": "agent"}, r"field turns\[1\].utterance: missing field"),
    ],
)
def test_doc2dial_bad_files(tmp_path: Path, where: tuple[Any, ...], value: Any, message: str) -> None:
    data: Any = copy.deepcopy({"document": DOCUMENT, "dialogue": DIALOGUE})
    target = data
    for key in where[:-1]:
        target = target[key]
    target[where[-1]] = value
    with pytest.raises(DataError, match=message):
        doc2dial(tmp_path, data["dialogue"], data["document"])


def test_doc2dial_missing_document(tmp_path: Path) -> None:
    doc2dial(tmp_path)
    (tmp_path / "doc2dial_doc.json").write_text('{"doc_data": {"dmv": {}}}')
    with pytest.raises(DataError, match=r"record D, field dial_data.dmv: the document is not in"):
        DialogueData(str(tmp_path / "doc2dial_dial_validation.json"), "doc2dial").read()


# Wizard of Wikipedia ----------------------------------------------------------------------------------------------


def said(speaker: str, text: str, retrieved: Any = (), checked: Any = None) -> dict[str, Any]:
    marked = {} if checked is None else {"checked_sentence": checked[0], "checked_passage": checked[1]}
    return {"speaker": speaker, "text": text, "retrieved_passages": list(retrieved), **marked}


WOW = {
    "chosen_topic": "Cheese",
    "chosen_topic_passage": ["Cheese is milk.", "It is old."],
    "persona": "I eat.",
    "dialog": [
        said("0_Wizard", "Milk!", [{"Goat": ["A goat."]}], ({"self_Cheese_0": "Cheese is milk."}, {"self": "Cheese"})),
        said("1_Apprentice", "And goats?", [{"Milk": ["White.", "It is old."]}, {"Cheese": ["Another."]}]),
        said("0_Wizard", "White.", [], ({"apprentice_0_Milk_0": "It is old."}, {"apprentice_0": "Milk"})),
        said("1_Apprentice", "Fine.", []),
        said("0_Wizard", "Bye.", [], ({"no_passages_used": "no_passages_used"}, {})),
        said("1_Apprentice", "Bye.", [{"Bye": ["A word."]}]),
        said("0_Wizard", "So long.", [], ({"self_Milk_0": "Green."}, {"self": "Milk"})),
    ],
}


def wow(path: Path, rows: Any, name: str = "valid_topic_split.json") -> Any:
    (path / name).write_text(json.dumps(rows))
    return DialogueData(str(path / name), "wow").read()


def test_wow_candidates_labels_and_no_passages_used(tmp_path: Path) -> None:
    reading = wow(tmp_path, [WOW])
    first, second, third = reading.examples
    assert first.turns == (Turn("user", "Cheese"),) and first.gold == (Knowledge(0, 0, 0),) and first.unseen
    assert [passage.title for passage in first.passages] == ["Cheese", "no_passages_used"]
    # The chosen topic, what the apprentice's turn retrieved, what the wizard's turn before it retrieved; a title once.
    assert [passage.title for passage in second.passages] == ["Cheese", "Milk", "Goat", "no_passages_used"]
    assert second.passages[0].spans == ("Cheese is milk.", "It is old.")
    assert second.gold == (Knowledge(1, 1, 1),) and second.turns[1] == Turn("agent", "Milk!", Knowledge(0, 0, 0))
    # Neither retrieves anything: of the earlier labels, the sentence in `Milk` is only found under another title.
    assert [passage.title for passage in third.passages] == ["Cheese", "no_passages_used"]
    assert third.no_passage and third.gold == (Knowledge(1, 0, 0),) and third.passages[1] == NO_PASSAGE
    assert [entry.knowledge for entry in third.turns] == [None, Knowledge(0, 0, 0), None, Knowledge(0, 1, 1), None]
    assert reading.skipped == {"checked sentence is in no candidate passage": 1}


def test_wow_topic_opens_the_first_user_turn(tmp_path: Path) -> None:
    row = {**WOW, "dialog": [said("0_Apprentice", "I like it."), said("1_Wizard", "Me too.", [], ({}, {}))]}
    (example,) = wow(tmp_path, [row], "test_random_split.json").examples
    assert example.turns == (Turn("user", "Cheese I like it."),) and example.no_passage and example.unseen is False
    assert wow(tmp_path, [row], "train.json").examples[0].unseen is None


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({**WOW, "dialog": []}, r"record 1, field dialog: the dialogue has no turns"),
        ({**WOW, "dialog": [said("Bot", "Hi")]}, r"record 1, field dialog\[0\].speaker: expected `0_Wizard`"),
        ({**WOW, "dialog": [said("0_Wizard", "")]}, r"record 1, field dialog\[0\].text: expected some text"),
        ({**WOW, "chosen_topic_passage": "x"}, r"record 1, field chosen_topic_passage: expected a list"),
        ({"chosen_topic": "x"}, r"record 1, field chosen_topic_passage: missing field"),
        ([], r"record 1, field \(record\): expected an object"),
    ],
)
def test_wow_bad_files(tmp_path: Path, row: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        wow(tmp_path, [WOW, row])


# DSTC11 track 5 ---------------------------------------------------------------------------------------------------


def test_dstc11_counts_equal_those_of_the_files(shared_data: Path) -> None:
    path = shared_data / "dstc11_track5"
    logs, labels, knowledge = (
        json.loads((path / f"{name}.json").read_text()) for name in ("logs", "labels", "knowledge")
    )
    reading = DialogueData(str(path), "dstc11").read()
    seeking = [(log, label) for log, label in zip(logs, labels, strict=True) if label["target"]]
    assert reading.entries == len(logs) == 3300 and len(reading.examples) == len(seeking) == 1692
    assert reading.skipped == {"turn seeks no knowledge": 1608}
    per_turn = Counter(len(label["knowledge"]) for _, label in seeking)
    assert reading.report()["gold"] == {str(number): count for number, count in sorted(per_turn.items())}
    for example, (log, label) in zip(reading.examples, seeking, strict=True):
        assert [turn.text for turn in example.turns] == [item["text"] for item in log]
        wanted = []
        for item in label["knowledge"]:
            entity = knowledge[item["domain"]][str(item["entity_id"])]
            if item["doc_type"] == "review":
                wanted.append(entity["reviews"][str(item["doc_id"])]["sentences"][str(item["sent_id"])])
            else:
                faq = entity["faqs"][str(item["doc_id"])]
                wanted.append(f"{faq['question']} {faq['answer']}")
        assert example.gold_texts == tuple(words.strip() for words in wanted)
        entities = {(item["domain"], str(item["entity_id"])) for item in label["knowledge"]}
        documents = sum(len(knowledge[a][b]["reviews"]) + len(knowledge[a][b]["faqs"]) for a, b in entities)
        assert len(example.passages) == documents


def test_dstc11_parts_are_disjoint_and_cover_everything(shared_data: Path) -> None:
    path = str(shared_data / "dstc11_track5")
    parts = {part: DialogueData(path, "dstc11", part=part).read() for part in ("train", "dev", "test")}  # type: ignore[arg-type]
    ids = [example.id for reading in parts.values() for example in reading.examples]
    assert len(ids) == len(set(ids)) == 1692 and all(len(reading.examples) > 80 for reading in parts.values())
    openings = {part: {example.turns[0].text for example in reading.examples} for part, reading in parts.items()}
    assert not openings["train"] & openings["dev"] and not openings["train"] & openings["test"]


def dstc11(path: Path, **changes: Any) -> Any:
    entity = {
        "name": "INN",
        "reviews": {"0": {"sentences": {"0": "Quiet.", "1": "Clean."}}},
        "faqs": {"3": {"question": "Pets?", "answer": "No."}},
    }
    snippet = {"domain": "hotel", "entity_id": 7, "doc_type": "review", "doc_id": 0, "sent_id": 1}
    content: dict[str, Any] = {
        "logs": [[{"speaker": "U", "text": "Pets? Clean?"}], [{"speaker": "U", "text": "Hi"}]],
        "labels": [
            {"target": True, "response": "No.", "knowledge": [snippet, {**snippet, "doc_type": "faq", "doc_id": 3}]},
            {"target": False},
        ],
        "knowledge": {"hotel": {"7": entity}},
        **changes,
    }
    for name, value in content.items():
        (path / f"{name}.json").write_text(json.dumps(value))
    return DialogueData(str(path), "dstc11").read()


def test_dstc11_by_hand(tmp_path: Path) -> None:
    (example,) = dstc11(tmp_path).examples
    assert example.passages == (
        Passage("hotel-7-review-0", "INN", ("Quiet.", "Clean.")),
        Passage("hotel-7-faq-3", "INN", ("Pets? No.",)),
    )
    assert example.gold == (Knowledge(0, 1, 1), Knowledge(1, 0, 0)) and example.response == "No."


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": [{"target": False}]}, r"labels.json: 1 labels for 2 dialogues"),
        ({"logs": [[{"speaker": "S", "text": "Hi"}], []]}, r"logs.json, record 0, field \(record\): .*no user turn"),
        ({"knowledge": {"hotel": {}}}, r"labels.json, record 0, field knowledge: entity 7 of 'hotel' is not in"),
        (
            {"knowledge": {"hotel": {"7": {"name": "INN", "reviews": {"0": {"sentences": {}}}}}}},
            r"knowledge.json, record hotel 7, field reviews.0.sentences: the review is empty",
        ),
        (
            {"knowledge": {"hotel": {"7": {"name": "INN", "reviews": {"0": {"sentences": {"0": "Quiet."}}}}}}},
            r"labels.json, record 0, field knowledge\[0\]: review 0 1 of hotel 7 does not exist",
        ),
    ],
)
def test_dstc11_bad_files(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        dstc11(tmp_path, **changes)


def test_options_of_another_format_are_refused() -> None:
    for options in ({"documents": "x"}, {"part": "dev"}, {"unseen": True}, {"keep_unlabelled": True}):
        with pytest.raises(ConfigError, match="belongs to format"):
            DialogueData("x", **options)
    with pytest.raises(ConfigError, match="format: expected one of jsonl, doc2dial, wow, dstc11, got 'squad'"):
        DialogueData("x", "squad")
    with pytest.raises(ConfigError, match="part: expected one of all"):
        DialogueData("x", "dstc11", part="half").read()  # type: ignore[arg-type]


def test_doc2dials_reference_over_two_sections_is_one_text(tmp_path: Path) -> None:
    """What the shared task's script says of each answer, worked by hand from its reference `doc_text[first : last]`."""
    spans = [("Fees", "Pay ten dollars. "), ("Fees", "Cards work. "), ("Tests", "Read charts. "), ("Tests", "Drive.")]
    rows, text = {}, ""
    for number, (title, span) in enumerate(spans, start=1):
        bounds = {"start_sp": len(text), "end_sp": len(text) + len(span)}
        rows[str(number)] = {"text_sp": span, "title": title, **bounds}
        text += span
    references = [{"sp_id": number} for number in ("3", "2")]
    turns = [{"turn_id": 1, "role": "user", "utterance": "How?"}, {"turn_id": 2, "role": "agent", "utterance": "So."}]
    turns[1]["references"] = references
    (tmp_path / "doc2dial_doc.json").write_text(
        json.dumps({"doc_data": {"d": {"D": {"doc_text": text, "spans": rows}}}})
    )
    dialogues = {"dial_data": {"d": {"D": [{"dial_id": "x", "turns": turns}]}}}
    (tmp_path / "dial.json").write_text(json.dumps(dialogues))
    (labelled,) = read_doc2dial(tmp_path / "dial.json").examples
    assert labelled.reference_texts == ("Cards work. Read charts. ",)
    for answer, exact, f1 in [
        ("Cards work.", 0.0, 2 / 3),  # 2 of 4 words: P 1, R 1/2. The best of the two parts would be 1 and 1.
        ("Read charts.", 0.0, 2 / 3),
        ("Pay ten dollars. Cards work.", 0.0, 2 * (2 / 5) * (2 / 4) / (2 / 5 + 2 / 4)),
        ("the cards work! read charts", 1.0, 1.0),
        ("Drive.", 0.0, 0.0),
    ]:
        score = score_answer(labelled, labelled.gold[0].passage, answer)
        assert (score.exact, score.f1) == (exact, pytest.approx(f1))
