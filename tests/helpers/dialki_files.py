"""Small files of our own making in the layouts of Doc2Dial and Wizard of Wikipedia."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dialki_toy import COLOURS, THINGS

from finegrained_rlhf.core.files import write_json

DOC2DIAL_PARTS = ("train", "validation", "test")
WOW_PARTS = ("train", "valid_random_split", "valid_topic_split", "test_random_split", "test_topic_split")


def write_doc2dial_files(folder: Path, dialogues: int = 4) -> Path:
    """Documents A (seen) and B (of validation and test alone) of three sections, and dialogues about them.

    In each, the first answer rests on two spans of one section, the second on spans of two sections.
    """
    documents = {name: _document(number) for number, name in enumerate("AB")}
    write_json(folder / "doc2dial_doc.json", {"doc_data": {"house": documents}})
    for part in DOC2DIAL_PARTS:
        names = "A" if part == "train" else "AB"
        entries = {name: [_asked(f"{part}{name}{i}", i) for i in range(dialogues)] for name in names}
        write_json(folder / f"doc2dial_dial_{part}.json", {"dial_data": {"house": entries}})
    return folder


def _document(number: int) -> dict[str, Any]:
    text, spans = "", {}
    for i in range(9):
        words = f"the {THINGS[(i // 3 + number) % 6]} is {COLOURS[(i + number) % 6]} . "
        bounds = {"start_sp": len(text), "end_sp": len(text) + len(words)}
        spans[str(i)] = {"text_sp": words, "title": THINGS[(i // 3 + number) % 6], "id_sec": str(i), **bounds}
        text += words
    return {"doc_text": text, "spans": spans}


def _asked(name: str, number: int) -> dict[str, Any]:
    section = number % 2
    said = [
        ("user", f"what about {THINGS[section]} ?", []),
        ("agent", "it is .", [3 * section, 3 * section + 1]),
        ("user", "and what about it ?", []),
        ("agent", "it is red .", [3 * section + 2, 3 * section + 3]),
    ]
    turns = [
        {"turn_id": i, "role": role, "utterance": words, "references": [{"sp_id": str(span)} for span in spans]}
        for i, (role, words, spans) in enumerate(said, start=1)
    ]
    return {"dial_id": name, "turns": turns}


def write_wow_files(folder: Path, dialogues: int = 4) -> Path:
    """Dialogues of two wizard turns: the first rests on a sentence of the topic, the second on none."""
    for part in WOW_PARTS:
        write_json(folder / f"{part}.json", [_wizard(i) for i in range(dialogues)])
    return folder


def _wizard(number: int) -> dict[str, Any]:
    topic, other = THINGS[number % 6], THINGS[(number + 1) % 6]
    about = {name: [f"the {name} is {colour} ." for colour in COLOURS[:3]] for name in (topic, other)}
    none: dict[str, Any] = {"checked_passage": {}, "checked_sentence": {}}
    chosen = {
        "checked_passage": {"chosen_topic_0": topic},
        "checked_sentence": {f"chosen_{topic}_0": about[topic][number % 3]},
    }
    shown = [{other: about[other]}]
    said = [("0_Apprentice", "tell me .", {}), ("1_Wizard", "it is .", chosen)]
    said += [("0_Apprentice", "and what ?", {}), ("1_Wizard", "it is red .", none)]
    return {
        "chosen_topic": topic,
        "chosen_topic_passage": about[topic],
        "dialog": [{"speaker": who, "text": words, "retrieved_passages": shown, **more} for who, words, more in said],
    }
