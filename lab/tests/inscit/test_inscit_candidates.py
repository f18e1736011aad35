"""DIALKI as identifier: candidates and gold, selection and its thresholds by hand, a run that learns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from inscit_toy import GOAT, MILK, conversations

from finegrained_lab.published.inscit import IdentifyEvidence, MakeIdentifierData
from finegrained_lab.published.inscit.candidates import candidate_recall, tuned_selection
from finegrained_lab.published.inscit.data import read_inscit, turns_of
from finegrained_lab.published.inscit.identification import read_identifier_data
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import read_json, read_jsonl, write_json, write_jsonl
from finegrained_rlhf.dialki.data import read_dialogue_jsonl
from finegrained_rlhf.dialogue.records import Knowledge
from finegrained_rlhf.inscit.identifier import EvidenceSelection

MILK_ID, GOAT_ID = MILK["passage_id"], GOAT["passage_id"]
OTHER, SHEEP = "Sheep (animal):4", "Sheep (animal):5"
FIRST, SECOND, THIRD, ALONE = "food_level1_dial24_1", "food_level1_dial24_2", "food_level1_dial24_3", "top3_dial12_1"


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """Data, two or three retrieved passages a turn, and the corpus of those that the data does not hold."""
    write_json(tmp_path / "dev.json", conversations())
    retrieved = {
        ("food_level1_dial24", 1): [OTHER, GOAT_ID],
        ("food_level1_dial24", 2): [OTHER, GOAT_ID, SHEEP],
        ("food_level1_dial24", 3): [SHEEP, MILK_ID, OTHER],
        ("top3_dial12", 1): [OTHER, SHEEP],
    }
    rows = [
        {"conv_id": name, "turn_id": turn, "ctxs": [{"id": one, "score": -place} for place, one in enumerate(ids)]}
        for (name, turn), ids in retrieved.items()
    ]
    write_json(tmp_path / "retrieved.json", rows)
    sheep = [{"id": one, "text": "Sheep give\nmilk.", "title": "Sheep [SEP] Milk"} for one in (OTHER, SHEEP)]
    write_jsonl(tmp_path / "corpus.jsonl", sheep)
    named = {"data": "dev.json", "retrieved": "retrieved.json", "corpus": "corpus.jsonl", "output": "made.jsonl"}
    return {key: str(tmp_path / name) for key, name in named.items()}


def made(files: dict[str, str], **keys: Any) -> dict[str, dict[str, Any]]:
    MakeIdentifierData(**{**files, **keys}).run()
    return {row["id"]: row for row in read_jsonl(files["output"])}


def ids(row: dict[str, Any]) -> list[str]:
    return [one["id"] for one in row["passages"]]


def right(row: dict[str, Any]) -> tuple[list[str], list[str]]:
    """What is gold, and what is right as well."""
    return [ids(row)[one["passage"]] for one in row["gold"]], [ids(row)[one] for one in row["also_right"]]


# Candidates ------------------------------------------------------------------------------------------------------


def test_candidates_history_and_gold(files: dict[str, str]) -> None:
    rows = made(files)
    assert {name: ids(row) for name, row in rows.items()} == {
        FIRST: [OTHER, GOAT_ID],
        SECOND: [MILK_ID, GOAT_ID, OTHER, SHEEP],
        THIRD: [MILK_ID, GOAT_ID, SHEEP, OTHER],  # the oldest turn's evidence first, each passage once
        ALONE: [OTHER, SHEEP],
    }
    assert rows[FIRST]["passages"][0] == {"id": OTHER, "title": "Sheep|Milk", "spans": ["Sheep give milk."]}
    assert [turn["role"] for turn in rows[THIRD]["turns"]] == ["user", "agent"] * 2 + ["user"]
    labels = [turn["knowledge"] for turn in rows[THIRD]["turns"]]
    span = [{"passage": number, "begin": 0, "end": 0} for number in range(2)]
    assert labels == [None, span, None, span[1:], None]
    # the first turn's gold was not found; what another label rests on is right as well
    assert {name: right(row) for name, row in rows.items()} == {
        FIRST: ([], [GOAT_ID]),
        SECOND: ([GOAT_ID], []),
        THIRD: ([], []),
        ALONE: ([], []),
    }
    examples = {one.id: one for one in read_dialogue_jsonl(files["output"]).examples}
    assert examples[SECOND].gold == (Knowledge(1, 0, 0),) and examples[FIRST].also_right == (1,)
    assert [turn.knowledge for turn in examples[THIRD].turns][1] == Knowledge(0, 0, 0)  # the first of several
    assert len(examples) == 4  # turns without gold are kept, for inference


def test_gold_is_added_for_training_and_chosen_by_a_switch(files: dict[str, str]) -> None:
    rows = made(files, add_gold=True, passages=2)
    assert ids(rows[FIRST]) == [OTHER, MILK_ID] and right(rows[FIRST]) == ([MILK_ID], [])
    assert ids(rows[SECOND]) == [MILK_ID, GOAT_ID]
    every = made(files, add_gold=True, gold="all")[FIRST]
    assert ids(every) == [OTHER, GOAT_ID, MILK_ID] and right(every) == ([MILK_ID, GOAT_ID], [])
    label_alone = made(files, add_gold=True, gold="label")[FIRST]
    assert right(label_alone) == ([MILK_ID], [GOAT_ID])
    assert ids(made(files, earlier=False)[SECOND]) == [OTHER, GOAT_ID, SHEEP]


def test_recall_of_the_candidates_by_hand(files: dict[str, str], tmp_path: Path) -> None:
    found = MakeIdentifierData(**files, results=str(tmp_path / "recall.json")).run()
    assert read_json(tmp_path / "recall.json") == found
    both, alone = found["earlier_and_retrieved"], found["retrieved"]
    # gold of any label: milk and goat; goat; none; the outline. Found: goat; goat; –; nothing.
    assert both["turns"] == 4 and both["turns_with_gold"] == 3 and both["passages"] == 12 / 4
    assert both["hit_rate"] == pytest.approx(200 / 3) and both["recall"] == pytest.approx(100 * (0.5 + 1 + 0) / 3)
    # the first turn: goat alone of the label with two is 2 · 1 / (1 + 2); an empty label counts 0
    assert both["pi_f1_bound"] == pytest.approx(100 * (2 / 3 + 1 + 0 + 0) / 4)
    assert (alone["hit_rate"], alone["passages"]) == (both["hit_rate"], 10 / 4)
    turns = turns_of(read_inscit(files["data"]).conversations)
    least = candidate_recall(turns, {turn.name: [MILK_ID, GOAT_ID] for turn in turns}, selected=1)
    assert least["pi_f1_bound"] == pytest.approx(100 * (1 + 1) / 4) and least["recall"] == pytest.approx(200 / 3)


@pytest.mark.parametrize(
    ("keys", "error", "problem"),
    [
        ({"gold": "none"}, ConfigError, "gold: expected one of first, label, all, got 'none'"),
        ({"passages": 0}, ConfigError, "passages: expected at least 1, got 0"),
        ({"corpus": None}, DataError, f"{FIRST}.*passage 'Sheep .animal.:4' is not in the data"),
        ({"corpus": None, "store": "x"}, ConfigError, "store: expected the corpus"),
    ],
)
def test_bad_settings(files: dict[str, str], keys: dict[str, Any], error: type[Exception], problem: str) -> None:
    with pytest.raises(error, match=problem):
        MakeIdentifierData(**{**files, **keys}).run()


def test_a_turn_for_which_nothing_was_retrieved(files: dict[str, str]) -> None:
    rows = read_json(files["retrieved"])
    rows[3]["ctxs"] = []
    write_json(files["retrieved"], rows)
    with pytest.raises(DataError, match=f"{ALONE}: has no candidate: nothing was retrieved"):
        MakeIdentifierData(**files).run()
    assert not Path(files["output"]).exists()


def test_dialogues_must_be_those_of_the_turns(files: dict[str, str]) -> None:
    rows, turns = list(made(files).values()), turns_of(read_inscit(files["data"]).conversations)
    assert [one.id for one in read_identifier_data(files["output"], turns)] == [FIRST, SECOND, THIRD, ALONE]
    other = {**rows[3], "turns": [{"role": "user", "text": "How old?"}]}
    for changed, problem in (
        (rows[:3], f"no dialogue for turn '{ALONE}'"),
        ([*rows, {**rows[3], "id": "x_1"}], "x_1.*no turn of the data has this name"),
        ([*rows[:3], other], f"{ALONE}.*another context"),
        ([*rows, rows[0]], f"{FIRST}.*twice"),
    ):
        write_jsonl(files["output"], changed)
        with pytest.raises(DataError, match=problem):
            read_identifier_data(files["output"], turns)


# Selection -------------------------------------------------------------------------------------------------------


def test_the_repositorys_gamma_by_hand() -> None:
    """Numbers selected: γ < 0.5: 3 and 1; below 1.25: 2 and 1, a mean of 1.5, first on the grid at 0.5."""
    scored = [{"a": 4.0, "b": 1.25, "c": 0.5}, {"a": -1.0, "b": -2.0}]
    labels = [[{"a"}], [{"a"}]]
    assert tuned_selection(scored, labels, "repository") == EvidenceSelection(threshold=0.5)
    # means 3 and 1 are as far from 1.5 as they are: 1 is nearer; at γ = 4.9 and from 2.0 on
    assert tuned_selection([{"a": 2.0, "b": 1.0, "c": 1.0}], labels[:1], "repository").threshold == 1.0
    # of γ as near as each other (means 1 and 2) the first
    assert tuned_selection([{"a": 9.0, "b": 0.75}], labels[:1], "repository").threshold == 0.0


def test_gamma_by_pi_f1_is_the_best_of_all_by_hand() -> None:
    scored = [{"a": 4.0, "b": 3.0, "c": 1.0}, {"a": 2.5, "b": 2.0}, {"a": 5.0, "b": 3.5, "c": 3.4}]
    labels = [[{"a", "b"}], [{"a"}], [{"c"}, {"a", "b"}]]
    # 1. a, b for γ < 3. 2. a alone for γ ≥ 2. 3. a, b for 3.4 ≤ γ < 3.5, else a, b, c: 4 / 5. Best: γ in [2.5, 3)
    chosen = tuned_selection(scored, labels, "pi_f1")
    assert chosen.threshold == 2.5
    told = [
        max(2 * len({*chosen.of(row)} & g) / (len(chosen.of(row)) + len(g)) for g in own)
        for row, own in zip(scored, labels, strict=True)
    ]
    assert told == pytest.approx([1, 1, 0.8])
    alone = tuned_selection(scored, [[{"a"}]] * 3, "pi_f1")
    assert [alone.of(row) for row in scored] == [("a",)] * 3


def test_a_second_threshold_for_turns_without_information() -> None:
    scored = [{"a": 4.0, "b": 3.0}, {"a": 0.5, "b": 0.2}, {"a": 0.1, "b": 0.0}, {"a": 0.8}]
    labels: list[list[set[str]]] = [[{"a"}], [set()], [set(), {"b"}], [{"a"}]]
    chosen = tuned_selection(scored, labels, "pi_f1", allow_empty=True)
    assert chosen.empty == 0.5 and [chosen.of(row) for row in scored] == [("a",), (), (), ("a",)]
    assert tuned_selection(scored, labels, "pi_f1").empty is None
    by_mean = tuned_selection(scored, labels, "repository", allow_empty=True)
    assert (by_mean.threshold, by_mean.empty) == (tuned_selection(scored, labels, "repository").threshold, 0.5)
    # nothing gained: no turn is emptied
    assert tuned_selection(scored[:1], labels[:1], "pi_f1", allow_empty=True).empty is None
    # equal scores stand or fall together
    equal = tuned_selection([{"a": 1.0}, {"a": 1.0}], [[set()], [{"a"}]], "pi_f1", allow_empty=True)
    assert equal.empty is None


# The job ---------------------------------------------------------------------------------------------------------


def test_settings_that_do_not_go_together() -> None:
    def given(**keys: Any) -> IdentifyEvidence:
        return IdentifyEvidence(checkpoint="c", data="d", input="i", output="o", **keys)

    for keys, problem in (
        ({"tune": "pi_f1", "threshold": 1.0}, "tune, selection, threshold: expected one of them"),
        ({"tune": "mean"}, "tune: expected one of repository, pi_f1, got 'mean'"),
        ({"tune": "repository", "score": "sigmoid"}, "the repository's grid is one of logits"),
        ({"score": "loud"}, "score: expected one of probabilities, logits, sigmoid"),
        ({"allow_empty": True}, "allow_empty: the second threshold is chosen with tune"),
        ({"most": 0}, "most: expected at least 1, got 0"),
        ({"batch_size": 0}, "batch_size: expected at least 1, got 0"),
    ):
        with pytest.raises(ConfigError, match=problem):
            given(**keys)
