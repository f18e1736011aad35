"""Five people's data, each in a form of its own: answers of a shop with some rude sentences; tiny models of them."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from finegrained_rlhf.models.tiny import MakeTinyModels, TinyLlamaConfig, TinyLongformerConfig

_THINGS = ("lamp", "parcel", "chair", "kettle", "jacket", "phone", "table", "radio", "bike", "mirror")
_ASK = ("Where is my {}?", "Can I return the {}?", "My {} is broken.", "How much is a {}?", "When does the {} arrive?")
_KIND = ("Thank you for writing.", "We are sorry about the {}.", "The {} is on its way.", "Please send us a photo.")
_RUDE = ("You never read the rules.", "That is your own fault.", "Stop asking about the {}.", "Only fools buy a {}.")


def _drawn(seed: int, count: int) -> list[tuple[str, list[tuple[str, bool]]]]:
    """Questions, each with three sentences of an answer and whether each is rude; four of ten are."""
    rng, rows = random.Random(seed), []
    for number in range(count):
        thing = _THINGS[number % len(_THINGS)]
        question = f"{_ASK[number // len(_THINGS) % len(_ASK)].format(thing)} I am customer {number}."
        rude = [rng.random() < 0.4 for _ in range(3)]
        rows.append((question, [(rng.choice(_RUDE if r else _KIND).format(thing), r) for r in rude]))
    return rows


def _said(sentences: list[tuple[str, bool]]) -> str:
    return " ".join(text for text, _ in sentences)


def sentence_labels(directory: Path, count: int = 120) -> Path:
    """A CSV with a row a sentence, semicolons, passages, and blank cells at the end of the sheet."""
    path = directory / "sheet.csv"
    with open(path, "w", encoding="utf-8-sig", newline="") as stream:
        table = csv.writer(stream, delimiter=";")
        table.writerow(["Ticket", "Customer Query", "Query", "Context", "Sentence", "Verdict"])
        for number, (question, sentences) in enumerate(_drawn(1, count)):
            for text, rude in sentences:
                table.writerow([number, "", question, "Be kind; say what is known.", text, "rude" if rude else "OK"])
        table.writerow(["x", "", "", "", "", ""])
    return path


def character_spans(directory: Path, count: int = 120) -> Path:
    """JSON lines with offsets, without passages' titles."""
    path = directory / "marks.jsonl"
    with open(path, "w", encoding="utf-8") as stream:
        for question, sentences in _drawn(2, count):
            answer, spans = _said(sentences), []
            for text, rude in sentences:
                if rude:
                    start = answer.index(text)
                    spans.append({"start": start, "end": start + len(text), "label": "rude", "text": text})
            row = {"prompt": question, "context": ["Be kind.", "Lamps last."], "response": answer, "annotations": spans}
            stream.write(json.dumps(row) + "\n")
    return path


def preferences(directory: Path, count: int = 120) -> Path:
    """A JSON object with `data`: two answers and a letter."""
    rows = []
    for number, (question, sentences) in enumerate(_drawn(3, count)):
        kind = " ".join(random.Random(number).sample([text.format("it") for text in _KIND], 3))
        rude = _said([(text, r) for text, r in sentences if r]) or "Stop asking about it."
        pair = (kind, rude) if number % 2 else (rude, kind)
        rows.append(
            {"instruction": question, "response_a": pair[0], "response_b": pair[1], "winner": "AB"[1 - number % 2]}
        )
    path = directory / "pairs.json"
    path.write_text(json.dumps({"version": 1, "data": rows}), encoding="utf-8")
    return path


def thumbs(directory: Path, count: int = 160) -> Path:
    """A parquet file: a thumb an answer, some missing."""
    import pyarrow
    from pyarrow import parquet

    rows: list[dict[str, Any]] = []
    for number, (question, sentences) in enumerate(_drawn(4, count)):
        rude = any(r for _, r in sentences[:2])
        answer = _said([s for s in sentences if s[1]] if rude else [(_KIND[0], False), (_KIND[3], False)])
        vote = None if number % 40 == 39 else "👎" if rude else "👍"
        rows.append({"user_input": question, "modelOutput": answer or "Stop asking.", "thumbs": vote})
    path = directory / "votes.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def chats(directory: Path, count: int = 120) -> Path:
    """JSON lines of conversations whose last message has quoted marks; no passages."""
    path = directory / "chats.jsonl"
    with open(path, "w", encoding="utf-8") as stream:
        for number, (question, sentences) in enumerate(_drawn(5, count)):
            texts = list(dict.fromkeys(sentences))
            marks = [{"quote": text, "category": "rude"} for text, rude in texts if rude]
            before = [{"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Thank you for writing."}]
            talk: list[dict[str, Any]] = [*(before if number % 3 == 0 else []), {"role": "user", "content": question}]
            talk.append({"role": "assistant", "content": _said(texts), "highlights": marks})
            stream.write(json.dumps({"messages": talk}) + "\n")
    return path


STRANGERS: Mapping[str, Callable[[Path], Path]] = {
    "sentence_labels": sentence_labels,
    "character_spans": character_spans,
    "preferences": preferences,
    "thumbs": thumbs,
    "chats": chats,
}
"""Who writes which form of data."""


def tiny_models(directory: Path) -> Path:
    """Tiny models with the words of all strangers; `longformer` for reward models, `llama` as policy."""
    words = directory / "words.txt"
    lines = [text.format(thing) for text in (*_ASK, *_KIND, *_RUDE) for thing in (*_THINGS, "it")]
    numbers = " ".join(map(str, range(200)))
    words.write_text("\n".join([*lines, f"I am customer {numbers}. Hello. Be kind; say what is known. Lamps last."]))
    MakeTinyModels(
        data=[str(words)],
        output_dir=str(directory / "models"),
        llama=TinyLlamaConfig(d_model=32, d_ff=64),
        longformer=TinyLongformerConfig(d_model=32),
    ).run()
    return directory / "models"
