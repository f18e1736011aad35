"""DIALKI as identifier of INSCIT, from data to predictions: it learns, and selects as many passages as there are."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from dialki_toy import COLOURS, THINGS, job, save_bert
from inscit_toy import label, passage

from finegrained_lab.published.inscit import EvaluateInscit, IdentifyEvidence, MakeIdentifierData
from finegrained_lab.published.inscit.data import read_inscit, turns_of
from finegrained_lab.published.inscit.predictions import read_predictions
from finegrained_rlhf.core.files import read_json, write_json, write_jsonl
from finegrained_rlhf.dialki import DialkiBatchConfig, DialkiConfig, InputConfig, LossConfig, SearchConfig
from finegrained_rlhf.dialki.model.model import new_dialki
from finegrained_rlhf.inscit.identifier import EvidenceSelection, read_selection

NUMBERS = "one two three four five six seven eight nine".split()


def world(folder: Path) -> dict[str, str]:
    """Conversations of one turn, six candidates each: the evidence says "ten", others another number; one or two."""
    talks, rows, corpus = {}, [], []
    for i in range(12):
        texts = {k: f"{NUMBERS[(i + k) % 9]} tell me {COLOURS[k]} ." for k in range(6)}
        gold = [(i + 1) % 6, (i + 3) % 6][: 1 + i % 2]
        texts.update({k: f"ten tell me {COLOURS[k]} ." for k in gold})
        made = [passage(f"A {i}:{k}", text, (THINGS[(i + k) % 6],)) for k, text in texts.items()]
        answer = label("directAnswer", "it is red .", *(made[k] for k in gold))
        said = {"context": ["tell me the house"], "prevEvidence": [], "labels": [answer]}
        talks[f"t{i}"] = {"seedArticle": {"title": "A", "topic": "a"}, "turns": [said]}
        found = [{"id": one["passage_id"], "score": -k} for k, one in enumerate(made)]
        rows.append({"conv_id": f"t{i}", "turn_id": 1, "ctxs": found})
        corpus += [
            {"id": one["passage_id"], "text": one["passage_text"], "title": one["passage_titles"][0]} for one in made
        ]
    write_json(folder / "world.json", talks)
    write_json(folder / "retrieved.json", rows)
    write_jsonl(folder / "corpus.jsonl", corpus)
    return {
        "data": str(folder / "world.json"),
        "corpus": str(folder / "corpus.jsonl"),
        "retrieved": str(folder / "retrieved.json"),
        "output": str(folder / "dialogues.jsonl"),
    }


def test_it_learns_and_selects_several_passages(tmp_path: Path) -> None:
    save_bert(tmp_path / "bert", layers=1)
    data = world(tmp_path)
    MakeIdentifierData(**data, gold="all").run()
    search = SearchConfig(select_by="sigmoid", max_passages=50)
    dialki = DialkiConfig(InputConfig(64, 24), search, contextualize=False, dropout=0.0, units="whole")
    batches = DialkiBatchConfig(batch_size=4, passages=5)
    losses = LossConfig(0.0, 0.0, "each")
    run = job(
        tmp_path,
        tmp_path / "run",
        dialki=dialki,
        losses=losses,
        batches=batches,
        total_steps=30,
        validate_every=30,
        checkpoint_every=30,
    )
    torch.manual_seed(0)
    new_dialki(tmp_path / "bert", dialki).save(tmp_path / "untrained")
    result = run.run()
    metrics = read_json(tmp_path / "run/metrics.json")
    assert result.best_score == metrics["validation"]["all"]["passage_accuracy"] > 0.9
    assert metrics["threshold"]["passage_f1"] > 0.9

    keys = {"checkpoint": str(tmp_path / "run"), "data": data["data"], "input": data["output"]}
    chosen, output = str(tmp_path / "chosen.json"), str(tmp_path / "said.json")
    found = IdentifyEvidence(**keys, output=output, tune="pi_f1", results=chosen).run()
    untrained = IdentifyEvidence(
        **{**keys, "checkpoint": str(tmp_path / "untrained")}, output=str(tmp_path / "x.json"), tune="pi_f1"
    ).run()
    assert found["pi_f1"] > 90 and max(untrained["pi_f1"], found["first_candidate"]) < 60
    assert found["pi_f1"] > found["best_alone"]
    assert found["candidates"]["pi_f1_bound"] == 100 and found["empty_turns"] == 0 and 1.3 < found["passages"] < 1.7
    assert read_json(chosen) == found and EvidenceSelection(**found["selection"]) == read_selection(chosen)

    turns = turns_of(read_inscit(data["data"]).conversations)
    assert all(one.response == "" for one in read_predictions(output, turns).values())
    assert EvaluateInscit(data=data["data"], predictions=output, draws=0).run()["pi_f1"] == pytest.approx(
        found["pi_f1"]
    )
    again = IdentifyEvidence(**keys, output=output, selection=chosen, batch_size=5).run()
    assert again["pi_f1"] == found["pi_f1"] and again["selection"] == found["selection"] and again["tune"] is None
    alone = IdentifyEvidence(**keys, output=output, score="sigmoid", threshold=0.5).run()
    assert alone["pi_f1"] > alone["best_alone"] == found["best_alone"]
    nothing = IdentifyEvidence(**keys, output=output, empty=1e6).run()
    assert nothing["pi_f1"] == 0 and nothing["empty_turns"] == 12
