"""Scores of INSCIT: by hand, as published, and of predictions that are not those of the turns."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from inscit_toy import conversations
from sacrebleu.metrics import BLEU
from script_runs import run_script

from finegrained_lab.published.inscit.data import InscitLabel, InscitTurn, read_inscit, turns_of
from finegrained_lab.published.inscit.evaluation import EvaluateInscit, inscit_scores
from finegrained_lab.published.inscit.predictions import (
    InscitPrediction,
    bleu_counts,
    bleu_of_counts,
    last_turn,
    most_frequent,
    passage_f1,
    read_cited,
    read_predictions,
    read_retrieved,
    response_f1,
    responses_bleu,
    retrieval_scores,
    scored_turn,
    write_predictions,
)
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import read_json, write_json
from finegrained_rlhf.inscit.conversation import NO_INFORMATION, EvidencePassage
from finegrained_rlhf.retrieval.protocol import Hit


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_json(tmp_path / "dev.json", conversations())
    return tmp_path / "dev.json"


def test_passages_are_sets_and_nothing_scores_nothing() -> None:
    assert passage_f1(["a", "a", "b"], {"b", "c", "d"}) == pytest.approx(2 / 5)
    assert (
        passage_f1([], set()) == 0.0 and passage_f1([], set(), empty=1.0) == 1.0 and passage_f1([], {"a"}, 1.0) == 0.0
    )


def test_words_of_responses_are_spacys_without_articles_and_punctuation() -> None:
    assert response_f1("The cat's   milk.", "a CAT 's milk") == 1.0
    assert response_f1("don't know", "do n't know") == 1.0  # spaCy cuts "don't"
    assert response_f1("the", "...") == 1.0 and response_f1("the", "milk") == 0.0
    assert response_f1("milk milk goat", "milk goat goat") == pytest.approx(2 * 2 / 6)


def test_the_last_turn_repeats_the_turn_before(file: Path) -> None:
    turns = turns_of(read_inscit(file).conversations)
    said = last_turn(turns)
    assert said[turns[0].key] == InscitPrediction(NO_INFORMATION)
    assert said[turns[1].key] == InscitPrediction("Which cheese do you mean?", ("Types of cheese:19", "Goat:2"))
    assert most_frequent(turns) == InscitPrediction("Sorry, I found nothing.", ())
    assert last_turn(turns, most_frequent(turns))[turns[3].key].response == "Sorry, I found nothing."


def test_scores_by_hand(file: Path) -> None:
    turns = turns_of(read_inscit(file).conversations)
    gold = {turn.key: turn.labels[0] for turn in turns}
    exact = {key: InscitPrediction(one.response, tuple(one.passages), one.response_type) for key, one in gold.items()}
    scored = [scored_turn(turn, exact[turn.key]) for turn in turns]
    found = inscit_scores(scored, draws=50)
    assert found["pi_f1"] == 75.0 and found["rg_f1"] == 100.0 and found["bleu"] == pytest.approx(100.0)
    assert found["turns"] == 4 and found["conversations"] == 2
    assert found["by_type"]["directAnswer"]["turns"] == 1 and "clarification" not in found["by_type"]
    assert found["by_place"]["first"]["turns"] == 2 and found["by_gold_passages"]["1"]["turns"] == 2
    types = found["response_types"]
    assert (types["turns"], types["accuracy"], types["macro_f1"]) == (3, 100.0, 100.0)
    assert types["confusion"]["directAnswer"]["directAnswer"] == 1
    low, high = found["intervals"]["pi_f1"]
    assert low == pytest.approx(200 / 3) and high == 100.0  # of two conversations: 2 of 3 turns, or 1 of 1
    assert inscit_scores([scored_turn(t, exact[t.key], 1.0) for t in turns], draws=0)["pi_f1"] == 100.0
    assert "intervals" not in inscit_scores(scored, draws=0)


def test_bleu_is_sacrebleus_of_two_streams_and_adds_up_over_turns(file: Path) -> None:
    turns = turns_of(read_inscit(file).conversations)
    scored = [scored_turn(turn, one) for turn, one in zip(turns, last_turn(turns).values(), strict=True)]
    plain = [" ".join(one.prediction.response.lower().split()) for one in scored]
    first = [" ".join(turn.labels[0].response.lower().split()) for turn in turns]
    second = [" ".join(turn.labels[-1].response.lower().split()) for turn in turns]
    score, signature = responses_bleu(scored)
    assert score == pytest.approx(BLEU(force=True).corpus_score(plain, [first, second]).score)
    assert signature.startswith("nrefs:2|case:mixed|eff:no|tok:13a|smooth:exp")
    assert bleu_of_counts(np.sum([bleu_counts(one) for one in scored], axis=0)) == pytest.approx(score)


def test_hits_and_recall_count_what_any_label_names(file: Path) -> None:
    turns = turns_of(read_inscit(file).conversations)
    hits = [Hit("x", 3.0), Hit("Goat:2", 2.0), Hit("Types of cheese:19", 1.0)]
    found = retrieval_scores(turns, {turn.name: hits for turn in turns}, (1, 2, 3))
    assert found["turns"] == 3  # one says that there is nothing
    assert found["hit_rate@1"] == 0.0 and found["hit_rate@2"] == pytest.approx(200 / 3) == found["hit_rate@3"]
    assert found["recall@2"] == pytest.approx(50.0) and found["recall@3"] == pytest.approx(200 / 3)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda rows: rows.pop(), "no passages were retrieved for conversation 'top3_dial12', turn 1"),
        (lambda rows: rows.append(rows[0]), "record 4, field turn_id: .* turn 1 is there twice"),
        (lambda rows: rows[0]["ctxs"][0].update(score="high"), r"field ctxs\[0\].score: expected a number, got 'high'"),
        (lambda rows: rows[0]["ctxs"][0].pop("id"), r"field ctxs\[0\].id: missing field"),
    ],
)
def test_ranked_passages_that_cannot_be(
    file: Path, tmp_path: Path, change: Callable[[list[Any]], object], problem: str
) -> None:
    turns = turns_of(read_inscit(file).conversations)
    rows = [{"conv_id": t.key[0], "turn_id": t.key[1], "ctxs": [{"id": "Goat:2", "score": 1}]} for t in turns]
    change(rows)
    write_json(tmp_path / "ranked.json", rows)
    with pytest.raises(DataError, match=problem):
        read_retrieved(tmp_path / "ranked.json", turns)


def test_predictions_come_back_and_are_scored_by_the_script(file: Path, tmp_path: Path) -> None:
    turns = turns_of(read_inscit(file).conversations)
    said = last_turn(turns)
    said[turns[1].key] = InscitPrediction("Which?", ("Goat:2",), "clarification")
    write_predictions(tmp_path / "said.json", turns, said)
    assert read_predictions(tmp_path / "said.json", turns) == said
    rows = read_json(tmp_path / "said.json")
    for row in rows:
        row["turn_id"] = str(row["turn_id"])  # as published
    write_json(tmp_path / "said.json", rows)
    ranked = [{"conv_id": t.key[0], "turn_id": t.key[1], "ctxs": [{"id": "Goat:2", "score": 1.5}]} for t in turns]
    write_json(tmp_path / "ranked.json", ranked)
    files = (f"data={file}", f"predictions={tmp_path}/said.json", f"retrieved={tmp_path}/ranked.json")
    done = run_script("evaluate_inscit", *files, "cutoffs=[1]", "draws=20", "format=json", f"output={tmp_path}/o.json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found == read_json(tmp_path / "o.json")
    scored = [scored_turn(turn, said[turn.key]) for turn in turns]
    assert found["pi_f1"] == inscit_scores(scored, draws=0)["pi_f1"]
    assert found["retrieval"]["hit_rate@1"] == pytest.approx(200 / 3)
    done = run_script("evaluate_inscit", f"data={file}", "baseline=last_turn", f"train={file}")
    assert done.returncode == 0 and "| pi_f1" in done.stdout and "by place" in done.stdout


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda rows: rows.pop(), "1 of 4 turns are not predicted, the first is conversation 'top3_dial12', turn 1"),
        (
            lambda rows: rows.append(rows[0]),
            "record 4, field turn_id: conversation 'food_level1_dial24', turn 1 is pre",
        ),
        (lambda rows: rows[0].update(turn_id=9), "has no turn 9 in the data"),
        (lambda rows: rows[0].update(turn_id="one"), "expected the number of a turn, from 1, got 'one'"),
        (lambda rows: rows[0]["context"].append("More?"), "turn 1 has another context in the data"),
        (lambda rows: rows[0]["output"].pop("evidence"), "field output.evidence: missing field"),
        (lambda rows: rows[0]["output"].update(evidence=["x"]), r"output.evidence\[0\]: expected an object"),
        (lambda rows: rows[0]["output"].update(response=None), "field output.response: expected text"),
        (lambda rows: rows[0]["output"].update(responseType="joke"), "field output.responseType: expected one of"),
        (lambda rows: rows.insert(0, 3), r"record 0, field \(prediction\): expected an object"),
    ],
)
def test_other_predictions_are_refused(
    file: Path, tmp_path: Path, change: Callable[[list[Any]], object], problem: str
) -> None:
    turns = turns_of(read_inscit(file).conversations)
    write_predictions(tmp_path / "said.json", turns, last_turn(turns))
    rows = read_json(tmp_path / "said.json")
    change(rows)
    write_json(tmp_path / "said.json", rows)
    with pytest.raises(DataError, match=problem):
        read_predictions(tmp_path / "said.json", turns)


RYE, DOGS = "The mill grinds rye.", "Dogs travel for free."


def write_cited(file: Path, path: Path) -> list[Any]:
    """Two supported sentences of three; of their four citations one is beside the point and one supports nothing."""
    turns = turns_of(read_inscit(file).conversations)
    write_predictions(path, turns, last_turn(turns))
    rows = read_json(path)
    for row in rows:
        row["output"] |= {"evidence": [], "sentences": []}
    texts = [
        {"passage_id": "a", "passage_text": RYE, "passage_titles": ["Mill"]},
        {"passage_id": "b", "passage_text": DOGS},
    ]
    said = [{"text": RYE, "citations": [0, 1]}, {"text": DOGS, "citations": [0]}]
    rows[0]["output"] |= {"evidence": texts, "sentences": said}
    rows[2]["output"] |= {"evidence": texts[1:], "sentences": [{"text": DOGS, "citations": [0]}]}
    write_json(path, rows)
    return list(rows)


def test_citations_by_hand(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_cited(file, tmp_path / "said.json")
    found = EvaluateInscit(data=str(file), predictions=str(tmp_path / "said.json"), citations=True, draws=0).run()
    assert found["citations"] == {
        "sentences": 3,
        "citations": 4,
        "recall": pytest.approx(200 / 3),
        "precision": 50.0,
        "judged_by": "a check without a model, no NLI",
    }
    assert "no NLI" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="citations: a baseline cites nothing"):
        EvaluateInscit(data=str(file), baseline="last_turn", citations=True)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda one: one.pop("sentences"), "record 0, field output.sentences: missing field"),
        (lambda one: one["evidence"][1].pop("passage_text"), r"field output.evidence\[1\].passage_text: missing field"),
        (lambda one: one["evidence"][0].update(passage_titles="x"), r"evidence\[0\].passage_titles: expected a list"),
        (lambda one: one["sentences"][1].update(text=" "), r"field output.sentences\[1\].text: "),
        (
            lambda one: one["sentences"][0].update(citations=[0, 2]),
            r"sentences\[0\].citations: expected numbers of the 2",
        ),
        (lambda one: one["sentences"][0].update(citations=["a"]), "expected a whole number of 0 or more, got 'a'"),
    ],
)
def test_citations_that_cannot_be(file: Path, tmp_path: Path, change: Callable[[Any], object], problem: str) -> None:
    rows = write_cited(file, tmp_path / "said.json")
    change(rows[0]["output"])
    write_json(tmp_path / "said.json", rows)
    with pytest.raises(DataError, match=problem):
        read_cited(tmp_path / "said.json")


def test_settings_that_cannot_be() -> None:
    for wrong, problem in (
        ({}, "expected predictions=FILE or baseline=NAME"),
        ({"predictions": "p", "baseline": "last_turn"}, "one of the two"),
        ({"baseline": "first_turn"}, "baseline: expected one of last_turn, got 'first_turn'"),
        ({"predictions": "p", "train": "t"}, "train: only a baseline reads it"),
        ({"baseline": "last_turn", "empty": 2}, "expected empty 0 or 1"),
        ({"baseline": "last_turn", "cutoffs": [0]}, "cutoffs from 1"),
        ({"baseline": "last_turn", "format": "csv"}, "format: expected one of table, json"),
    ):
        with pytest.raises(ConfigError, match=problem):
            EvaluateInscit(data="d", **wrong)


@pytest.mark.slow
def test_the_published_dev_row_of_the_last_turn(capsys: pytest.CaptureFixture[str]) -> None:
    """Table 5.6: 10.5 / 4.2 / 14.1. INSCIT names the directory of the authors' dev.json, not ours to copy."""
    directory = os.environ.get("INSCIT")
    if directory is None:
        pytest.skip("INSCIT does not name a directory with dev.json")
    found = EvaluateInscit(data=f"{directory}/dev.json", baseline="last_turn", draws=0, format="json").run()
    assert found["turns"] == 502
    assert [round(found[name], 1) for name in ("pi_f1", "bleu", "rg_f1")] == [10.5, 4.2, 14.1]
    assert json.loads(capsys.readouterr().out) == found


def test_the_most_frequent_evidence_is_a_set() -> None:
    def turn(number: int, *names: str) -> InscitTurn:
        label = InscitLabel("directAnswer", "Yes.", tuple(EvidencePassage(name, "text") for name in names))
        return InscitTurn(f"c{number}", 1, ("Why?",), (), (label,))

    turns = [turn(1, "a"), turn(2, "b", "c"), turn(3, "c", "b"), turn(4, "a"), turn(5, "c", "b", "c")]
    assert most_frequent(turns).evidence == ("b", "c")
