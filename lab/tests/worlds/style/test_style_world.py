"""StyleWorld: any style is written and read back, the reader leaves what fits, the writer errs as often as asked."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from finegrained_lab.worlds.style import MakeStyleWorld, StyleReader, StyleWriter
from finegrained_lab.worlds.style.make import SOURCES
from finegrained_lab.worlds.style.styles import (
    DIMENSIONS,
    PLAIN,
    bare_sentences,
    described,
    description,
    majority,
    rendered,
    style_of,
)
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import read_json, read_jsonl
from finegrained_rlhf.personalization.prompts import filled
from finegrained_rlhf.personalization.span_feedback import edit_cost

STYLES = [dict(zip(DIMENSIONS, values, strict=True)) for values in itertools.product(*DIMENSIONS.values())]
CONTEXT = (
    "Cooks stir soups once again. Guests taste breads every year. Voters reject laws. "
    "Bakers roast onions. Cooks taste soups."
)


def writer(**dials: float) -> StyleWriter:
    return StyleWriter(**{"slips": 0.0, "misreads": 0.0, "notices": 1.0, **dials})


def test_every_style_can_be_written_and_read_back() -> None:
    assert len(STYLES) == 96
    for style in STYLES:
        text = rendered(bare_sentences(CONTEXT), style)
        assert style_of(text) == style, text
        assert {**PLAIN, **described(description(style))} == style
        assert StyleReader().edit(CONTEXT, description(style), text) == text
    assert len({rendered(bare_sentences(CONTEXT), style) for style in STYLES}) == len(STYLES)


def test_a_text_worked_by_hand() -> None:
    style = {
        **PLAIN,
        "layout": "bullet points",
        "length": "short",
        "person": "second person",
        "ending": "closing question",
    }
    assert rendered(bare_sentences(CONTEXT), style) == (
        "- You stir soups once again.\n- You taste breads every year.\nWhat do you think?"
    )
    assert description(style) == "bullet points, short, second person, closing question" and description(PLAIN) == ""
    assert described("No emojis please; second person. It must be SHORT, shortly") == {
        "emojis": "no emojis",
        "person": "second person",
        "length": "short",
    }


@pytest.mark.parametrize(
    "text", ["", "   ", "🙂", "Hello!", "- ", "Thank you for reading.", "no sentence", "You?\n\n- You!"]
)
def test_any_text_has_a_style_and_can_be_edited(text: str) -> None:
    assert set(style_of(text)) == set(DIMENSIONS)
    for source in SOURCES.values():
        edited = StyleReader().edit(CONTEXT, description(source.style), text)
        assert style_of(edited) == source.style
        assert StyleReader().edit(CONTEXT, description(source.style), edited) == edited


def test_sources_want_different_styles() -> None:
    wanted = [description(source.style) for source in SOURCES.values()]
    assert len(set(wanted)) == len(wanted) == 5 and "" not in wanted
    words = [word for source in SOURCES.values() for word in (*source.people, *source.things, *source.verbs)]
    assert len(words) == len(set(words))


def test_the_writer_without_errors() -> None:
    style = dict(SOURCES["cooking"].style)
    plain, liked = (rendered(bare_sentences(CONTEXT), one) for one in (PLAIN, style))
    task = "Write."
    assert writer().generate(filled("write", task, {"context": CONTEXT})).text == plain
    preferred = {"context": CONTEXT, "preference": description(style)}
    made = writer().generate(filled("write_preferred", task, preferred))
    assert made.text == liked and made.tokens_out == edit_cost("", liked).distance
    pair = {"draft": plain, "edited": liked}
    said = {"preference": description(style)}
    assert json.loads(writer().generate(filled("infer", task, {"edits": [pair]})).text) == said
    shown = {"context": CONTEXT, "examples": [pair]}
    assert writer().generate(filled("in_context", task, shown)).text == liked
    assert json.loads(writer().generate(filled("chain", task, shown)).text) == {**said, "text": liked}
    several = {"preferences": ["short, emojis", "short, closing question", "bullet points, emojis"]}
    assert json.loads(writer().generate(filled("aggregate", task, several)).text)["preference"] == "short, emojis"
    same = {"draft": liked, "edited": liked}
    blind = writer(notices=0.0).generate(filled("infer", task, {"edits": [same]}))
    assert json.loads(blind.text) == {"preference": ""}  # nothing was edited, and nothing is noticed
    with pytest.raises(DataError):
        writer().generate("no data")


def test_errors_are_as_frequent_as_asked_and_belong_to_the_prompt() -> None:
    prompts = [filled("write", "Write.", {"context": f"{CONTEXT} Cooks stir {n}."}) for n in range(400)]
    texts = [writer(slips=0.1).generate(prompt).text for prompt in prompts]
    wrong = sum(style_of(text)[dimension] != plain for text in texts for dimension, plain in PLAIN.items())
    assert 0.08 < wrong / (400 * len(PLAIN)) < 0.12
    assert texts == [writer(slips=0.1).generate(prompt).text for prompt in prompts]
    assert texts != [StyleWriter(0.1, 0.0, 1.0, seed=1).generate(prompt).text for prompt in prompts]
    with pytest.raises(ConfigError):
        StyleWriter(slips=1.1)


def test_majority() -> None:
    bullets, short = {**PLAIN, "layout": "bullet points"}, {**PLAIN, "length": "short"}
    assert majority([]) == PLAIN and majority([bullets, short]) == {**bullets}  # of equals the first
    assert majority([short, bullets, bullets]) == bullets


def test_the_files(tmp_path: Path) -> None:
    MakeStyleWorld(str(tmp_path / "a"), seed=3, contexts=50).run()
    rows, truth = read_jsonl(tmp_path / "a/contexts.jsonl"), read_jsonl(tmp_path / "a/world.jsonl")
    wanted = read_json(tmp_path / "a/preferences.json")
    assert [row["source"] for row in rows].count("news") == 10 and len({row["id"] for row in rows}) == 50
    assert [row["source"] for row in rows] != sorted(row["source"] for row in rows)
    assert [(row["id"], row["source"]) for row in rows] == [(row["id"], row["source"]) for row in truth]
    assert all(row["preference"] == wanted[row["source"]] for row in truth)
    words = set((tmp_path / "a/corpus.txt").read_text().replace(".", " ").split())
    assert {word for row in rows for word in row["text"].replace(".", " ").split()} <= words
    foreign = sum(row["foreign_sentences"] for row in truth) / 300
    assert 0.2 < foreign < 0.4
    for row, true in zip(rows, truth, strict=True):
        own = set(SOURCES[row["source"]].people)
        assert sum(s.split()[0] not in own for s in bare_sentences(row["text"])) == true["foreign_sentences"]
    MakeStyleWorld(str(tmp_path / "b"), seed=3, contexts=50).run()
    assert (tmp_path / "a/contexts.jsonl").read_bytes() == (tmp_path / "b/contexts.jsonl").read_bytes()
    for wrong in ({"contexts": 12}, {"sentences": 3}, {"foreign": 1.5}):
        with pytest.raises(ConfigError):
            MakeStyleWorld(str(tmp_path), **wrong)
