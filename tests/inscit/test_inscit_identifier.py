"""Passages that the next answer rests on: thresholds by hand, and what a trained DIALKI is asked and answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from dialki_toy import COLOURS, save_bert

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import write_json
from finegrained_rlhf.dialki import DialkiConfig, InputConfig, SearchConfig
from finegrained_rlhf.dialki.data import parse_dialogue
from finegrained_rlhf.dialki.model.model import new_dialki
from finegrained_rlhf.dialki.training.systems import load_finder
from finegrained_rlhf.inscit import EvidenceIdentifier
from finegrained_rlhf.inscit.conversation import EvidencePassage
from finegrained_rlhf.inscit.identifier import EvidenceSelection, asked_row, read_selection

PASSAGES = [EvidencePassage(f"A:{k}", f"ten\ntell me {colour} .", ("A", colour)) for k, colour in enumerate(COLOURS)]
CONTEXT = ["tell me the house", "it is red .", "and now"]
GOOD = {"score": "logits", "threshold": 1.0, "empty": None, "most": 4}


def test_selection_by_hand() -> None:
    scored = {"a": 1.0, "b": 3.0, "c": 2.0, "d": 2.5, "e": 2.2}
    assert EvidenceSelection().of(scored) == ("b",)
    assert EvidenceSelection(threshold=2.0).of(scored) == ("b", "d", "e")  # above, not at
    assert EvidenceSelection(threshold=-9.0).of(scored) == ("b", "d", "e", "c")  # four at most
    assert EvidenceSelection(threshold=9.0).of(scored) == ("b",)  # the best one always
    assert EvidenceSelection(threshold=-9.0, most=2).of(scored) == ("b", "d")
    assert EvidenceSelection(threshold=2.4, empty=2.9).of(scored) == ("b", "d")
    assert EvidenceSelection(threshold=2.4, empty=3.0).of(scored) == ()
    assert EvidenceSelection(threshold=-1.0).of({"a": 0.0, "b": 0.0}) == ("a", "b")


def test_a_dialogue_holds_each_passage_as_one_span_and_what_earlier_turns_rest_on() -> None:
    row = asked_row("turn", CONTEXT, [[PASSAGES[2], PASSAGES[2], EvidencePassage("B:1", "gone")]], PASSAGES[:3])
    assert row["passages"][0] == {"id": "A:0", "title": f"A|{COLOURS[0]}", "spans": [f"ten tell me {COLOURS[0]} ."]}
    span = {"passage": 2, "begin": 0, "end": 0}
    assert [turn["knowledge"] for turn in row["turns"]] == [None, [span], None]
    assert [turn["role"] for turn in row["turns"]] == ["user", "agent", "user"]


def test_the_best_candidates_of_a_model_in_their_order(tmp_path: Path) -> None:
    save_bert(tmp_path / "bert", layers=1)
    dialki = DialkiConfig(InputConfig(64, 24), SearchConfig(max_passages=50), contextualize=False, units="whole")
    torch.manual_seed(0)
    new_dialki(tmp_path / "bert", dialki).save(tmp_path / "dialki")
    (example,) = parse_dialogue(asked_row("turn", CONTEXT, [[]], PASSAGES[:5]))
    ((answer,),) = load_finder(str(tmp_path / "dialki")).stream([example])
    scores = {PASSAGES[number].id: one for number, one in zip(answer.searched, answer.scores("logits"), strict=True)}
    order = sorted(scores, key=lambda name: -scores[name])
    assert len(set(scores.values())) == 5
    identifier = EvidenceIdentifier.open(str(tmp_path / "dialki"))
    assert identifier.select(CONTEXT, [[]], PASSAGES[:5]) == (order[0],) and identifier.select(CONTEXT, [[]], []) == ()
    write_json(tmp_path / "chosen.json", {"tune": "pi_f1", "selection": {**GOOD, "threshold": scores[order[2]]}})
    chosen = EvidenceIdentifier.open(str(tmp_path / "dialki"), str(tmp_path / "chosen.json"))
    assert chosen.select(CONTEXT, [[]], PASSAGES[:5]) == (order[0], order[1])


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"tune": None, "selection": GOOD}, "not tuned"),
        ({"tune": "pi_f1"}, "selection"),
        (
            {"tune": "pi_f1", "selection": {**GOOD, "threshold": "high"}},
            "selection.threshold: expected a number or null",
        ),
        ({"tune": "pi_f1", "selection": {**GOOD, "score": "x"}}, "selection.score: expected one of"),
        ({"tune": "pi_f1", "selection": {**GOOD, "most": 0}}, "selection.most: expected a whole number"),
    ],
)
def test_thresholds_that_cannot_be_read(tmp_path: Path, row: dict[str, Any], problem: str) -> None:
    write_json(tmp_path / "chosen.json", row)
    with pytest.raises(DataError, match=problem):
        read_selection(tmp_path / "chosen.json")
