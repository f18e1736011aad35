"""Wizard of Wikipedia: the wizard answers from one sentence of the passages he was shown, or from none.

Reads the published `train.json`, `valid_random_split.json`, `test_topic_split.json`, … The candidates of a wizard turn
are what ParlAI's teacher gives: the passage of the chosen topic, those retrieved for the apprentice's last turn and
those retrieved for the wizard's own turn before it, and `no_passages_used`. A span is a sentence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from finegrained_rlhf.core.checks import as_list, as_object, get_field, require, require_text, text_list
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json
from finegrained_rlhf.dialki.data import DialogueReading
from finegrained_rlhf.dialki.records import NO_PASSAGE, DialogueExample
from finegrained_rlhf.dialogue.records import Knowledge, Passage, Turn

DOCUMENT_EDGES = (800, 1600)
"""Tokens of a document: up to 800 short, up to 1,600 medium (thesis, figure 3.4, Wizard of Wikipedia)."""
LOST = "checked sentence is in no candidate passage"
TWICE = "wizard turn after a wizard turn"

_Titled = Mapping[str, tuple[str, ...]]
_Choice = tuple[tuple[str, ...], str]  # titles to look under, best first, and the sentence


def read_wow(path: str | Path, unseen: bool | None = None) -> DialogueReading:
    """Read a file of Wizard of Wikipedia.

    The chosen topic opens the first user turn, as in the original; where the wizard speaks first, it is a user turn of
    its own. Earlier wizard turns keep their label where their sentence is among the candidates of the current turn.

    Args:
        path: the file.
        unseen: whether its topics are absent from training; None takes it from the file's name (`topic_split` yes,
            `random_split` no) and leaves it open for any other.

    Raises:
        DataError: naming file, record (from 0) and field.
    """
    path = Path(path)
    if unseen is None:
        unseen = True if "topic_split" in path.stem else False if "random_split" in path.stem else None
    skipped: Counter[str] = Counter()
    notes: Counter[str] = Counter()
    examples: list[DialogueExample] = []
    rows = read_json(path)
    if not isinstance(rows, list):
        raise DataError(f"expected a JSON array of dialogues, got {type(rows).__name__}", file=path)
    for i, row in enumerate(rows):
        try:
            examples += _examples(as_object(row, "(record)"), i, unseen, skipped, notes)
        except DataError as error:
            raise error.at(file=path, record=i) from None
    return DialogueReading.of(examples, len(rows), skipped, notes, path)


def _examples(
    row: Mapping[str, Any], number: int, unseen: bool | None, skipped: Counter[str], notes: Counter[str]
) -> Iterator[DialogueExample]:
    topic = require_text(get_field(row, "chosen_topic"), "chosen_topic")
    shown: list[_Titled] = [{topic: _sentences(get_field(row, "chosen_topic_passage"), "chosen_topic_passage", notes)}]
    history: list[tuple[Turn, _Choice | None]] = []
    dialog = as_list(get_field(row, "dialog"), "dialog")
    require(len(dialog) > 0, "the dialogue has no turns", "dialog")
    for i, item in enumerate(dialog):
        field = f"dialog[{i}]"
        item = as_object(item, field)
        wizard = _is_wizard(item, field)
        text = require_text(get_field(item, "text", f"{field}."), f"{field}.text")
        if i == 0:
            history.append((Turn("user", topic if wizard else f"{topic} {text}"), None))
        elif not wizard:
            history.append((Turn("user", text), None))
        if wizard:
            choice = _choice(item, field)
            candidates = _merge([shown[0], *reversed(shown[1:][-2:])])
            example = _example(f"{number}_{i}", history, candidates, choice, text, unseen)
            if isinstance(example, DialogueExample):
                yield example
            else:
                skipped[example] += 1
            history.append((Turn("agent", text), choice))
        shown.append(_retrieved(item, field, notes))


def _is_wizard(item: Mapping[str, Any], field: str) -> bool:
    speaker = str(get_field(item, "speaker", f"{field}."))
    wizard, apprentice = "Wizard" in speaker, "Apprentice" in speaker
    require(wizard != apprentice, f"expected `0_Wizard` or `1_Apprentice`, got {speaker!r}", f"{field}.speaker")
    return wizard


def _sentences(value: Any, field: str, notes: Counter[str]) -> tuple[str, ...]:
    sentences = text_list(value, field)
    kept = tuple(sentence for sentence in sentences if sentence.strip())
    if len(kept) < len(sentences):
        notes["blank sentences"] += len(sentences) - len(kept)
    return kept


def _retrieved(item: Mapping[str, Any], field: str, notes: Counter[str]) -> _Titled:
    """The passages retrieved for a turn, `[{title: [sentence, …]}, …]`; of two with one title the first counts."""
    where = f"{field}.retrieved_passages"
    passages = []
    for i, entry in enumerate(as_list(get_field(item, "retrieved_passages", f"{field}."), where)):
        titled = as_object(entry, f"{where}[{i}]")
        passages.append({title: _sentences(value, f"{where}[{i}].{title}", notes) for title, value in titled.items()})
    return _merge(passages)


def _merge(groups: Sequence[_Titled]) -> _Titled:
    """All titles in order; of two passages with one title the first counts."""
    merged: dict[str, tuple[str, ...]] = {}
    for group in groups:
        for title, sentences in group.items():
            merged.setdefault(title, sentences)
    return merged


def _choice(item: Mapping[str, Any], field: str) -> _Choice:
    """What the wizard marked: `checked_sentence` is empty or `no_passages_used` where he used nothing."""
    marked = as_object(item.get("checked_sentence") or {}, f"{field}.checked_sentence")
    if not marked or next(iter(marked.values())) == NO_PASSAGE.title:
        return (NO_PASSAGE.title,), NO_PASSAGE.spans[0]
    key, sentence = next(iter(marked.items()))
    titles = as_object(item.get("checked_passage") or {}, f"{field}.checked_passage").values()
    named = [str(title) for title in list(titles)[:1]]
    # The key of a checked sentence repeats the title: `self_Vermont_Syrup_0`.
    return (*named, " ".join(key.split("_")[1:-1])), require_text(sentence, f"{field}.checked_sentence")


def _find(choice: _Choice | None, passages: Sequence[Passage]) -> Knowledge | None:
    """The sentence under one of its titles, else in the first passage that holds it; None where there is none."""
    if choice is None:
        return None
    titles, sentence = choice
    holding = [p for p, passage in enumerate(passages) if sentence in passage.spans]
    for title in titles:
        for p in holding:
            if passages[p].title == title:
                return _at(p, passages, sentence)
    return _at(holding[0], passages, sentence) if holding else None


def _at(passage: int, passages: Sequence[Passage], sentence: str) -> Knowledge:
    span = passages[passage].spans.index(sentence)
    return Knowledge(passage, span, span)


def _example(
    name: str,
    history: Sequence[tuple[Turn, _Choice | None]],
    candidates: _Titled,
    choice: _Choice,
    response: str,
    unseen: bool | None,
) -> DialogueExample | str:
    """The example of one wizard turn, or why there is none."""
    if history[-1][0].role != "user":
        return TWICE
    titled = [(title, spans) for title, spans in candidates.items() if spans]
    passages = (*(Passage(str(p), title, spans) for p, (title, spans) in enumerate(titled)), NO_PASSAGE)
    gold = _find(choice, passages)
    if gold is None:
        return LOST
    turns = tuple(Turn(turn.role, turn.text, _find(marked, passages)) for turn, marked in history)
    return DialogueExample(
        id=name,
        turns=turns,
        passages=passages,
        gold=(gold,),
        response=response,
        unseen=unseen,
        no_passage=passages[gold.passage] == NO_PASSAGE,
        source=titled[0][0] if titled else "",
    )
