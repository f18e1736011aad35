"""Response generation: what the generator reads, which dialogues become prompts, and how answers are scored."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from dialki_toy import CORPUS, dialogue, passage, save_bert, tiny_dialki

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import read_json, read_jsonl
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.dialki.data import write_dialogues
from finegrained_rlhf.dialki.generation import response_metrics
from finegrained_rlhf.dialki.jobs import GenerateResponses
from finegrained_rlhf.dialki.records import NO_PASSAGE, DialogueExample
from finegrained_rlhf.dialki.responses import KNOWLEDGE_INPUTS, MakeResponseData, ResponseInput
from finegrained_rlhf.dialogue.records import Knowledge, Passage, Turn
from finegrained_rlhf.feedback.reading import read_examples
from finegrained_rlhf.inference.config import DecodingConfig
from finegrained_rlhf.inference.evaluation import EvaluatedResponse
from finegrained_rlhf.models.tiny import TinyT5Config
from finegrained_rlhf.models.tiny_networks import make_tiny_models
from finegrained_rlhf.runtime.process_config import ProcessConfig

PASSAGES = (
    Passage("h", "Opening  hours", ("Open from nine.", "Closed on Sunday.")),
    Passage("c", "doc <parent_title> Library <text> Cards", ("A card is free.", "Others pay.", "Ten euros.")),
    Passage("n", "", ("Nothing else.",)),
)
EXAMPLE = DialogueExample(
    "d",
    (Turn("user", "When are you\n open?"), Turn("agent", "From nine."), Turn("user", "What is a card?")),
    PASSAGES,
    (Knowledge(1, 1, 2),),
    " Others pay\n ten euros. ",
)
TURNS = "user: What is a card? agent: From nine. user: When are you open?"
CARDS = "passage: doc / Library / Cards: A card is free. Others pay. Ten euros."


@pytest.mark.parametrize(
    ("knowledge", "expected"),
    [
        ("none", TURNS),
        ("span", f"{TURNS} | knowledge: Others pay. Ten euros."),
        ("passage", f"{TURNS} | {CARDS}"),
        ("span_and_passage", f"{TURNS} | knowledge: Others pay. Ten euros. | {CARDS}"),
        (
            "document",
            f"{TURNS} | passage: Opening hours: Open from nine. Closed on Sunday. | {CARDS} | passage: Nothing else.",
        ),
    ],
)
def test_the_input_of_the_generator(knowledge: str, expected: str) -> None:
    assert ResponseInput(knowledge).text(EXAMPLE, EXAMPLE.gold) == expected


def test_the_newest_turns_are_kept() -> None:
    text = ResponseInput("span", max_turns=2).text(EXAMPLE, EXAMPLE.gold)
    assert text == "user: What is a card? agent: From nine. | knowledge: Others pay. Ten euros."


def test_places_decide_not_gold_and_a_passage_comes_once() -> None:
    places = (Knowledge(2, 0, 0), Knowledge(0, 1, 1), Knowledge(2, 0, 0))
    text = ResponseInput("span_and_passage", 1).text(EXAMPLE, places[:2])
    assert text == (
        "user: What is a card? | knowledge: Nothing else. Closed on Sunday. | passage: Nothing else. "
        "| passage: Opening hours: Open from nine. Closed on Sunday."
    )
    assert ResponseInput("passage", 1).text(EXAMPLE, places).count("Nothing else.") == 1


def test_the_prompt_shows_what_its_text_shows() -> None:
    record = ResponseInput("span").record(EXAMPLE, (Knowledge(1, 0, 0), Knowledge(1, 2, 2), Knowledge(0, 0, 0)))
    assert (record.id, record.question, record.references) == ("d", "What is a card?", ("Others pay ten euros.",))
    assert [(p.title, p.sentences) for p in record.passages] == [
        ("doc / Library / Cards", ("A card is free.", "Ten euros.")),
        ("Opening hours", ("Open from nine.",)),
    ]
    assert ResponseInput("none").record(EXAMPLE).passages == ()
    assert len(ResponseInput("document").record(EXAMPLE).passages) == 3


def test_an_answer_without_knowledge_and_the_candidate_for_it() -> None:
    """Wizard of Wikipedia's candidate is knowledge like any other, but no part of a document."""
    example = replace(EXAMPLE, passages=(*PASSAGES, NO_PASSAGE), gold=(Knowledge(3, 0, 0),), no_passage=True)
    assert ResponseInput("span").text(example, example.gold).endswith("| knowledge: no_passages_used")
    assert NO_PASSAGE.title not in ResponseInput("document").text(example)


def test_what_is_missing_is_named() -> None:
    with pytest.raises(ConfigError, match="knowledge: expected one of none"):
        ResponseInput("spans")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="max_turns"):
        ResponseInput("span", 0)
    with pytest.raises(DataError, match=r"record d, field gold: .*dialki=RUN"):
        ResponseInput("passage").text(EXAMPLE)
    for response in (None, "  "):
        with pytest.raises(DataError, match="record d, field response"):
            ResponseInput("none").record(replace(EXAMPLE, response=response))


# Files ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four dialogues (labelled; without gold; without response; with a blank one), a random DIALKI and T5."""
    path = tmp_path_factory.mktemp("responses")
    changes = ({}, {"gold": ()}, {"response": None}, {"response": " "})
    rows = []
    for i, changed in enumerate(changes):
        example = replace(dialogue(f"d{i}", [passage(k) for k in range(3)]), **changed)
        gold = [{"passage": g.passage, "begin": g.begin, "end": g.end} for g in example.gold]
        rows.append(
            {
                "id": example.id,
                "turns": [{"role": turn.role, "text": turn.text} for turn in example.turns],
                "passages": [{"id": p.id, "title": p.title, "spans": list(p.spans)} for p in example.passages],
                "gold": gold or None,
                "response": example.response,
            }
        )
    write_dialogues(path / "all.jsonl", rows)
    write_dialogues(path / "labelled.jsonl", [rows[0], rows[2]])
    write_dialogues(path / "mute.jsonl", rows[2:])
    save_bert(path / "bert", layers=1)
    (path / "dialki").mkdir()
    tiny_dialki(path / "bert").save(path / "dialki")
    make_tiny_models([*CORPUS, "user: agent: knowledge: passage: |"], path, 0, t5=TinyT5Config(32, 32, 1))
    return path


def make(folder: Path, output: Path, **changes: Any) -> dict:
    settings = {"data": str(folder / "all.jsonl"), "knowledge": "span", "processes": ProcessConfig("fp32", 1)}
    return MakeResponseData(**{**settings, "output_dir": str(output), **changes}).run()


def test_prompts_of_a_file_and_what_was_skipped(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    report = make(folder, tmp_path, validation_data=str(folder / "labelled.jsonl"))
    assert report["train"] == {"prompts": 1, "without_response": 2, "without_gold": 1}
    assert report["dev"] == {"prompts": 1, "without_response": 1}
    (record,) = read_examples(tmp_path / "train.json")
    expected = dialogue("d0", [passage(k) for k in range(3)])
    assert record.text == ResponseInput("span").text(expected, expected.gold) and record.references == ("it is red .",)
    assert read_json(tmp_path / "response_data.json") == report
    assert "prompts 1, without gold 1, without response 2 -> " in capsys.readouterr().out


@pytest.mark.parametrize("knowledge", ["none", "document"])
def test_inputs_without_a_place_need_no_gold(folder: Path, tmp_path: Path, knowledge: str) -> None:
    report = make(folder, tmp_path, knowledge=knowledge, dialki="/nowhere")
    assert report["train"] == {"prompts": 2, "without_response": 2}


def test_found_knowledge_needs_no_gold_and_is_scored_where_there_is(folder: Path, tmp_path: Path) -> None:
    from finegrained_rlhf.dialki.data import DialogueData
    from finegrained_rlhf.dialki.finder import KnowledgeFinder

    report = make(folder, tmp_path, dialki=str(folder / "dialki"), batch_size=1)
    assert report["train"]["prompts"] == 2 and report["train"]["knowledge_passage_accuracy"] in (0, 1)
    examples = DialogueData(str(folder / "all.jsonl")).read().examples[:2]
    found = KnowledgeFinder.load(folder / "dialki").identify(examples)
    texts = [record.text for record in read_examples(tmp_path / "train.json")]
    assert [text.rpartition("knowledge: ")[2] for text in texts] == [answer.text for answer in found]


def test_a_file_without_responses_writes_nothing(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"mute.jsonl: no dialogue gives a prompt \(2 without response\)"):
        make(folder, tmp_path / "out", validation_data=str(folder / "mute.jsonl"))
    assert not (tmp_path / "out").exists()


def answer(folder: Path, output: Path, **changes: Any) -> dict:
    settings = {"checkpoint": str(folder / "t5"), "knowledge": "span", "input": str(folder / "all.jsonl")}
    settings |= {"dialki": str(folder / "dialki"), "max_new_tokens": 4, "processes": ProcessConfig("fp32", 1)}
    return GenerateResponses(**{**settings, "output": str(output), **changes}).run()


def test_answers_and_their_scores(folder: Path, tmp_path: Path) -> None:
    metrics = answer(folder, tmp_path / "answers.jsonl")
    rows = read_jsonl(tmp_path / "answers.jsonl")
    assert [row["id"] for row in rows] == ["d0", "d1", "d2", "d3"]
    assert ["reference" in row for row in rows] == [True, True, False, False]
    (place,) = rows[0]["knowledge"]
    assert {"passage", "passage_id", "begin", "end", "text", "probability"} <= place.keys()
    assert (metrics["dialogues"], metrics["scored"]) == (4, 2)
    assert {"bleu", "bleu_signature", "token_f1", "exact_match", "rouge_lsum", "knowledge_f1"} <= metrics.keys()
    assert read_json(tmp_path / "answers.metrics.json") == metrics
    again = answer(folder, tmp_path / "again.jsonl", batch_size=1)
    assert again == metrics
    for other, row in zip(read_jsonl(tmp_path / "again.jsonl"), rows, strict=True):
        scores = [one["knowledge"][0].pop("score") for one in (other, row)]  # batches round its last digit apart
        assert other == row and scores[0] == pytest.approx(scores[1], abs=2e-6)


def test_answers_from_gold_from_nothing_and_without_references(folder: Path, tmp_path: Path) -> None:
    metrics = answer(folder, tmp_path / "gold.jsonl", input=str(folder / "labelled.jsonl"), dialki=None)
    (place,) = read_jsonl(tmp_path / "gold.jsonl")[0]["knowledge"]
    assert place["text"] == "the roof is blue . the roof is green ." and "knowledge_f1" not in metrics
    with pytest.raises(DataError, match=r"all.jsonl, record d1, field gold: is not labelled"):
        answer(folder, tmp_path / "x.jsonl", dialki=None)
    assert answer(folder, tmp_path / "mute.jsonl", input=str(folder / "mute.jsonl"), knowledge="none") == {}
    assert [row["knowledge"] for row in read_jsonl(tmp_path / "mute.jsonl")] == [[], []]
    assert not (tmp_path / "mute.metrics.json").exists() and not (tmp_path / "x.jsonl").exists()


def test_one_dialogue_about_a_page(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "page.md").write_text("# door\nthe door is red .\n\n# roof\nthe roof is white .\n")
    answer(folder, Path("-"), input=None, turns=["tell me roof"], document=str(tmp_path / "page.md"))
    (row,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert row["id"] == "dialogue" and row["knowledge"][0]["title"] in ("door", "roof")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"input": None}, "give input=FILE, or turns"),
        ({"turns": ["hello"]}, "either input, or turns and document"),
        ({"batch_size": 0}, "batch_size"),
        ({"decoding": DecodingConfig(n=2, temperature=1.0)}, "leave decoding.n at 1"),
        ({"keep_unlabelled": True}, "keep_unlabelled belongs to .*, the format is 'jsonl'"),
    ],
)
def test_wrong_settings_are_named(folder: Path, tmp_path: Path, changes: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        answer(folder, tmp_path / "x.jsonl", **changes)
    assert set(KNOWLEDGE_INPUTS) == {"none", "document", "span", "passage", "span_and_passage"}


def test_scores_of_responses_by_hand() -> None:
    def row(response: str, *references: str) -> EvaluatedResponse:
        return EvaluatedResponse(Prompt("p", "", (), {"references": references}), response)

    rows = [row("the cat sat on the mat", "the cat is on the mat"), row("", "it is red"), row("unknown")]
    found = response_metrics(rows)
    # F1 of "cat sat on mat" and "cat is on mat": 3 of 4 words; an empty response has none
    assert (found["scored"], found["token_f1"], found["exact_match"]) == (2, pytest.approx(0.375), 0)
    # n-grams 5 of 6, 3 of 5, 1 of 4, (half) 0 of 3; 6 tokens for 9
    assert found["bleu"] == pytest.approx(100 * 2.718281828 ** (1 - 9 / 6) * (5 / 6 * 3 / 5 * 1 / 4 * 1 / 6) ** 0.25)
    assert response_metrics([row("x", "The X.")])["exact_match"] == 1
    assert response_metrics([row("alone")]) == {}
