"""StyleWorld's texts and edits as files: every style is drawn, edits cost what they cost, content is looked at too."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from finegrained_lab.worlds.style import (
    EditDrafts,
    HoldDrafts,
    MakeStyleWorld,
    StyleReader,
    StyleWorldMonitor,
    WriteMajorityStyle,
    WriteStyleTexts,
)
from finegrained_lab.worlds.style.drafts import read_wanted
from finegrained_lab.worlds.style.styles import DIMENSIONS, PLAIN, rendered, style_of, taken_from
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json, read_jsonl, write_json, write_jsonl
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.feedback.prompt_files import read_prompt_file
from finegrained_rlhf.models.tiny_networks import build_tokenizer

CONTEXT = "Cooks stir soups once again. Guests taste breads every year. Bakers roast onions in silence."
SENTENCES = ["Cooks stir soups once again.", "Guests taste breads every year.", "Bakers roast onions in silence."]


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    write_jsonl(
        tmp_path / "contexts.jsonl",
        ({"id": f"c{n}", "source": source, "text": CONTEXT} for n, source in enumerate(["news", "travel"])),
    )
    write_json(tmp_path / "preferences.json", {"news": "short", "travel": "second person, emojis"})
    return {name: str(tmp_path / f"{name}.{kind}") for name, kind in (("contexts", "jsonl"), ("preferences", "json"))}


def edit(files: dict[str, str], folder: Path, drafts: dict[str, str]) -> dict[str, float]:
    write_jsonl(folder / "drafts.jsonl", ({"id": name, "response": text} for name, text in drafts.items()))
    outputs = {name: str(folder / name) for name in ("output", "results", "texts")}
    EditDrafts(**files, drafts=str(folder / "drafts.jsonl"), **outputs).run()
    return read_json(folder / "results")


def test_edits_and_their_costs_by_hand(files: dict[str, str], tmp_path: Path) -> None:
    short = "Cooks stir soups once again. Guests taste breads every year."
    found = edit(files, tmp_path, {"c0": short, "c1": short})
    edits = list(read_jsonl(tmp_path / "output"))
    assert edits[0] == {"context": CONTEXT, "draft": short, "edited": short}
    assert edits[1]["edited"] == (
        "You stir soups once again. 🙂 You taste breads every year. 🙂 You roast onions in silence. 🙂"
    )
    # of the second: two first words replaced, two emojis put in, and a sentence of six words and marks with its emoji
    assert found["cost"] == (2 + 2 + 7) / 2 and found["normalised"] == pytest.approx(11 / 21 / 2)
    assert found["untouched"] == 0.5 and found["taken"] == 1.0 and found["words"] == 10.0
    assert found["style"] == pytest.approx((6 + 3) / 12) and found["length"] == 0.5 and found["layout"] == 1.0
    prompts = read_prompt_file(tmp_path / "texts")
    assert [one.metadata["references"] for one in prompts] == [(edit["edited"],) for edit in edits]
    assert prompts[0].metadata["question"] == CONTEXT and prompts[0].id == "c0"


def test_a_draft_in_the_right_style_that_the_context_does_not_say_is_edited(
    files: dict[str, str], tmp_path: Path
) -> None:
    made_up = "Cooks stir laws. Cooks stir soups once again."
    assert style_of(made_up) == {**PLAIN, "length": "short"} and taken_from(CONTEXT, made_up) == 0.5
    assert StyleReader().edit(CONTEXT, "short", made_up) == made_up
    found = edit(files, tmp_path, {"c0": made_up, "c1": ""})
    assert found["untouched"] == 0.0 and found["taken"] == 0.25
    assert taken_from(CONTEXT, "You stir soups once again. 🙂") == 1.0


def test_a_file_that_does_not_fit_is_refused_before_anything_is_written(files: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"drafts\.jsonl: no response to c1"):
        edit(files, tmp_path, {"c0": "Cooks."})
    write_json(tmp_path / "preferences.json", {"news": "short"})
    with pytest.raises(DataError, match="no preference of the source travel"):
        edit(files, tmp_path, {"c0": "Cooks.", "c1": "Cooks."})
    assert not (tmp_path / "output").exists() and not (tmp_path / "results").exists()


def test_the_monitor_says_what_the_edits_cost(files: dict[str, str], tmp_path: Path) -> None:
    monitor = StyleWorldMonitor(**files)
    drafts = {"c0": "Cooks stir soups once again.", "c1": "Hello!"}
    counts = monitor.counts([Prompt(name, "", (1,)) for name in drafts], list(drafts.values()))
    found = edit(files, tmp_path, drafts)
    assert counts == {"truth/cost": (2 * found["cost"], 2.0), "truth/untouched": (1.0, 2.0)}
    assert monitor.counts([], []) == {"truth/cost": (0.0, 0.0), "truth/untouched": (0.0, 0.0)}
    with pytest.raises(DataError, match="expected the id of a context, got 'c9'"):
        monitor.counts([Prompt("c9", "", (1,))], ["Cooks."])


def test_texts_are_in_every_style_and_a_tokenizer_of_them_keeps_their_lines(tmp_path: Path) -> None:
    MakeStyleWorld(str(tmp_path / "world"), seed=3, contexts=1000).run()
    for seed in (0, 1):
        WriteStyleTexts(
            contexts=str(tmp_path / "world/contexts.jsonl"), output=str(tmp_path / f"{seed}"), seed=seed
        ).run()
    texts, other = ([one.metadata["references"][0] for one in read_prompt_file(tmp_path / name)] for name in "01")
    assert texts != other
    counts = Counter(tuple(style_of(text).values()) for text in texts)
    assert set(counts) == set(itertools.product(*DIMENSIONS.values())) and max(counts.values()) < 30
    tokenizer = build_tokenizer([*texts, *(tmp_path / "world/corpus.txt").read_text().splitlines()])
    assert all(tokenizer.decode(tokenizer(text).input_ids, skip_special_tokens=True) == text for text in texts)


def test_the_majority_of_edits_is_written_for_everybody(files: dict[str, str], tmp_path: Path) -> None:
    wanted = {**PLAIN, "emojis": "emojis", "opening": "greeting first"}
    edited = [rendered(SENTENCES, style) for style in (wanted, wanted, PLAIN)]
    write_jsonl(tmp_path / "edits", ({"context": CONTEXT, "draft": "", "edited": text} for text in edited))
    job = WriteMajorityStyle(
        edits=str(tmp_path / "edits"), contexts=files["contexts"], output=str(tmp_path / "drafts.jsonl")
    )
    assert job.run() == wanted
    assert [row["response"] for row in read_jsonl(tmp_path / "drafts.jsonl")] == [edited[0], edited[0]]


def test_more_drafts_are_held_against_the_first_edit(files: dict[str, str], tmp_path: Path) -> None:
    drafts = {"c0": "Cooks stir soups once again.", "c1": "Hello!"}
    edit(files, tmp_path, drafts)
    others = tmp_path / "others.jsonl"
    write_jsonl(others, ({"id": name, "response": f"{text} Thank you for reading."} for name, text in drafts.items()))
    keys: dict[str, Any] = {"edits": str(tmp_path / "output"), "contexts": files["contexts"]}
    HoldDrafts(**keys, drafts=[str(others)], output=str(tmp_path / "held.jsonl")).run()
    given, held = (list(read_jsonl(tmp_path / name)) for name in ("output", "held.jsonl"))
    assert held[: len(given)] == given and len(held) == 2 * len(given)
    for row, more in zip(given, held[len(given) :], strict=True):
        assert {**more, "draft": row["draft"]} == row and more["draft"] == f"{row['draft']} Thank you for reading."
    write_jsonl(others, [{"id": "c0", "response": "Soup."}])
    with pytest.raises(DataError, match="no response to c1"):
        HoldDrafts(**keys, drafts=[str(others)], output=str(tmp_path / "none.jsonl")).run()
    assert not (tmp_path / "none.jsonl").exists()


def test_what_a_reader_wants_is_shown_to_rewards_alone(files: dict[str, str], tmp_path: Path) -> None:
    keys: dict[str, Any] = {"contexts": files["contexts"], "seed": 4}
    WriteStyleTexts(**keys, output=str(tmp_path / "plain")).run()
    WriteStyleTexts(**keys, output=str(tmp_path / "noted"), preferences=files["preferences"]).run()
    plain, noted = (read_prompt_file(tmp_path / name) for name in ("plain", "noted"))
    true = [preference for _, preference in read_wanted(files["contexts"], files["preferences"])]
    assert [one.text for one in noted] == [one.text for one in plain] and not plain[0].metadata["passages"]
    assert [one.metadata["passages"][0].text for one in noted] == true
    assert [one.metadata["references"] for one in noted] == [one.metadata["references"] for one in plain]
