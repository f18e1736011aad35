"""Types of responses: instances of turns, and a classifier held against them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from inscit_toy import conversations
from reward_model_samples import save_bert
from script_runs import run_script

from finegrained_lab.published.inscit.data import read_inscit, turns_of
from finegrained_lab.published.inscit.types import EvaluateResponseTypes, response_type_scores, type_instances
from finegrained_rlhf.core.errors import ConfigError, ModelError
from finegrained_rlhf.core.files import read_json, write_json
from finegrained_rlhf.feedback.labelled_texts import read_labelled_texts
from finegrained_rlhf.inscit.conversation import RESPONSE_TYPES
from finegrained_rlhf.models.encoders.classifier import TextClassifier


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_json(tmp_path / "dev.json", conversations())
    return tmp_path / "dev.json"


def test_a_turn_is_an_instance_for_each_evidence_that_its_labels_rest_on(file: Path) -> None:
    found = type_instances(turns_of(read_inscit(file).conversations))
    assert [(one.id, one.label) for one in found] == [
        ("food_level1_dial24_1_1", "directAnswer"),
        ("food_level1_dial24_1_2", "clarification"),
        ("food_level1_dial24_2", "directAnswer"),
        ("food_level1_dial24_3", "noAnswerNoRelevantInfo"),
        ("top3_dial12_1", "noAnswerButRelevantInfo"),
    ]
    assert found[2].text.split("\n") == [
        "user: Goat cheese.",
        "evidence: Cheese: About Goat:2.",
        "agent: Which cheese do you mean?",
        "user: What is cheese made from?",
    ]
    assert found[0].text.count("evidence:") == 1  # a passage that is listed twice is read once


def test_the_file_is_what_a_classifier_learns_from(file: Path, tmp_path: Path) -> None:
    done = run_script("make_response_types", f"data={file}", f"output={tmp_path}/types.jsonl")
    assert done.returncode == 0 and "5 instances of 4 turns" in done.stdout, done.stderr
    assert read_labelled_texts(tmp_path / "types.jsonl") == type_instances(turns_of(read_inscit(file).conversations))


def test_scores_by_hand() -> None:
    d, c = RESPONSE_TYPES[:2]
    found = response_type_scores([d, d, d, c], [d, c, d, c])
    assert (found["majority"], found["accuracy"]) == (75.0, 75.0)
    assert found["macro_f1"] == pytest.approx(100 * (4 / 5 + 2 / 3) / 2)
    assert found["confusion"][d] == {d: 2, c: 1, RESPONSE_TYPES[2]: 0, RESPONSE_TYPES[3]: 0}


def test_a_classifier_is_held_against_the_labels(file: Path, tmp_path: Path) -> None:
    torch.manual_seed(3)
    made = TextClassifier.new(save_bert(tmp_path / "bert"), RESPONSE_TYPES)
    with torch.no_grad():
        made.model.classifier.weight.mul_(50)
    made.save(tmp_path / "types")
    done = run_script(
        "evaluate_response_types", f"path={tmp_path}/types", f"data={file}", "format=json", f"output={tmp_path}/o.json"
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found == read_json(tmp_path / "o.json") and found["instances"] == 5 and found["majority"] == 40.0
    texts = type_instances(turns_of(read_inscit(file).conversations))
    with torch.no_grad():
        said = [
            RESPONSE_TYPES[int(made.model(**made.tokenizer([one.text], return_tensors="pt")).logits.argmax())]
            for one in texts
        ]
    assert found["accuracy"] == 100 * sum(a == one.label for a, one in zip(said, texts, strict=True)) / 5
    done = run_script("evaluate_response_types", f"path={tmp_path}/types", f"data={file}")
    assert done.returncode == 0 and "| said clarification |" in done.stdout.replace("  ", " ")
    other = TextClassifier.new(tmp_path / "bert", ("yes", "no"))
    other.save(tmp_path / "other")
    with pytest.raises(ModelError, match="no label 'directAnswer'; id2label has yes, no"):
        EvaluateResponseTypes(path=str(tmp_path / "other"), data=str(file)).run()
    for wrong, problem in (({"batch_size": 0}, "batch_size"), ({"format": "csv"}, "format: expected one of")):
        with pytest.raises(ConfigError, match=problem):
            EvaluateResponseTypes(path="p", data="d", **wrong)


def test_the_probabilities_of_all_labels_add_up(tmp_path: Path) -> None:
    made = TextClassifier.new(save_bert(tmp_path / "bert"), ("a", "b", "c"))
    texts = ["It is cold.", "It is wide and deep, they say.", "It was warm."]
    every = made.label_probabilities(texts, batch_size=2)
    assert every.shape == (3, 3) and torch.allclose(every.sum(dim=1), torch.ones(3, dtype=torch.float64))
    assert made.probabilities(texts) == pytest.approx(every[:, 2].tolist())
