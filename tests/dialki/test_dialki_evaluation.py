"""Measuring a trained DIALKI: gates against single passages, scores against plain means, plots, and the script."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from dialki_toy import dialogue, encoded, passage, save_bert, tiny_dialki, toy_examples
from script_runs import rows, run_in_two_processes

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.dialki.data import DialogueData, dialogue_row, write_dialogues
from finegrained_rlhf.dialki.evaluation import Answered, Gate, answered, draw_gates, draw_lengths, gate_summary
from finegrained_rlhf.dialki.finder import KnowledgeFinder
from finegrained_rlhf.dialki.jobs import EvaluateDialki
from finegrained_rlhf.dialki.model.model import DialkiModel
from finegrained_rlhf.dialki.scores import KnowledgeScore, score_answer
from finegrained_rlhf.dialogue.records import Knowledge, Turn
from finegrained_rlhf.runtime.process_config import ProcessConfig


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, and dialogues of which the last one has no gold."""
    path = tmp_path_factory.mktemp("evaluation")
    save_bert(path / "bert", layers=1)
    tiny_dialki(path / "bert").save(path / "model")
    lines = []
    for example in toy_examples():
        reply = Turn("agent", "it is .", example.gold[0])
        lines.append(dialogue_row(example.id, (*example.turns, reply), example.passages, example.unseen))
    blind = dialogue("blind")
    lines.append(dialogue_row("blind", blind.turns, blind.passages))
    write_dialogues(path / "dialogues.jsonl", lines)
    return path


@pytest.fixture(scope="module")
def model(folder: Path) -> DialkiModel:
    return tiny_dialki(folder / "bert")


def job(folder: Path, output: Path, **changes: Any) -> EvaluateDialki:
    settings = {"processes": ProcessConfig("fp32", 1), "document_edges": (20, 60), **changes}
    return EvaluateDialki(str(folder / "model"), str(folder / "dialogues.jsonl"), str(output), **settings)


# Gates ----------------------------------------------------------------------------------------------------------


def test_gates_are_those_of_the_passage_alone(model: DialkiModel) -> None:
    """Every passage through the encoder by itself, its vectors taken by hand; dialogues of different length."""
    short = dialogue("s", [passage(3, 2), passage(1, 4)], [Knowledge(0, 0, 0)], (None,))
    items = encoded(model, [dialogue(), short, dialogue("e", history=(None,) * 5)])
    answers = answered(KnowledgeFinder(model), items, turns=3)
    assert [len(one.gates) for one in answers] == [3, 1, 3]
    for item, one in zip(items, answers, strict=True):
        alone = []
        for p in range(len(item.passages)):
            with torch.no_grad():
                hidden = model.encoder(torch.tensor(item.input_ids(p))[None]).last_hidden_state[0]
            alone.append([float(torch.sigmoid(hidden[0] @ hidden[start])) for start in item.turn_starts])
        of_answer = alone[one.found.knowledge.passage]
        for t, gate in enumerate(one.gates):
            assert (gate.turn, gate.role) == (t + 1, ("user", "agent")[t % 2])
            assert gate.answer == pytest.approx(of_answer[t], abs=1e-5)
            assert gate.searched == pytest.approx(fmean(row[t] for row in alone), abs=1e-5)


def with_gates(*gates: Gate) -> Answered:
    return Answered(None, KnowledgeScore(0, 0, 0), gates)  # type: ignore[arg-type]


def test_gates_are_averaged_by_turn_and_role() -> None:
    found = gate_summary(
        [
            with_gates(Gate(1, "user", 0.2, 0.1), Gate(2, "agent", 0.5, 0.5)),
            with_gates(Gate(1, "user", 0.4, 0.3), Gate(2, "user", 0.9, 0.8)),
            with_gates(Gate(1, "user", 0.9, 0.2)),
        ]
    )
    assert [(row["turn"], row["role"], row["examples"]) for row in found] == [
        (1, "user", 3),
        (2, "user", 1),
        (2, "agent", 1),
    ]
    first = found[0]
    assert (first["similarity"], first["searched"]) == pytest.approx((0.5, 0.2))
    assert first["standard_error"] == pytest.approx(0.13**0.5 / 3**0.5)  # deviations −0.3, −0.1, 0.4
    assert found[1]["standard_error"] is None and found[1]["similarity"] == 0.9


# A run ----------------------------------------------------------------------------------------------------------


def test_what_a_run_writes(folder: Path, model: DialkiModel, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    job(folder, tmp_path / "out").run()
    assert "| unseen " in capsys.readouterr().out
    result = json.loads((tmp_path / "out/evaluation.json").read_text())
    lines = rows(tmp_path / "out/answers.jsonl")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "evaluation.json", "answers.jsonl", "gates.svg", "gates.png", "lengths.svg", "lengths.png",
    }  # fmt: skip
    groups = result["groups"]
    labelled = 2 * len(toy_examples()) - 1  # two agent turns each, one of them without a label
    assert groups["all"]["examples"] == len(lines) == labelled and result["data"]["without_gold"] == 2
    assert groups["seen"]["examples"] + groups["unseen"]["examples"] == labelled
    examples = {example.id: example for example in toy_examples()}
    for line in lines:
        last = line["id"].endswith("-3")
        assert line["gold"][0]["text"] in examples[line["id"].split("-")[0]].gold_texts or not last
        right = any(gold["passage"] == line["passage"] for gold in line["gold"])
        assert line["passage_correct"] == float(right)
    for name, key in (("exact_match", "exact_match"), ("f1", "f1"), ("passage_accuracy", "passage_correct")):
        assert groups["all"][name] == pytest.approx(fmean(line[key] for line in lines), abs=1e-6)
    assert {row["turn"] for row in result["gate_similarity"]} == {1, 2, 3} and result["system"] == "DIALKI"
    assert result["edges"] == {"context": [2, 5], "document": [20, 60]}


def test_scores_are_those_of_the_finders_answers(folder: Path, model: DialkiModel, tmp_path: Path) -> None:
    """Neither batch size nor the measuring changes an answer; `limit` takes the first ones."""
    job(folder, tmp_path / "one", batch_size=1, limit=5, plots=False).run()
    job(folder, tmp_path / "all", batch_size=16, limit=5, plots=False).run()
    one, together = (rows(tmp_path / name / "answers.jsonl") for name in ("one", "all"))
    source = [item for item in DialogueData(str(folder / "dialogues.jsonl")).read().examples if item.gold][:5]
    found = KnowledgeFinder.load(folder / "model").identify(source)
    for line, other, answer, example in zip(one, together, found, source, strict=True):
        assert line["text"] == other["text"] == answer.text and line["id"] == example.id
        assert line["probability"] == pytest.approx(other["probability"], abs=1e-5)
        assert line["f1"] == pytest.approx(score_answer(example, answer.knowledge.passage, answer.text).f1)
    assert not list((tmp_path / "one").glob("*.svg"))


def test_passage_and_spans_can_be_chosen_together(folder: Path, tmp_path: Path) -> None:
    """`score_by` asks a trained model otherwise; the score is then the sum of three log-probabilities."""
    job(folder, tmp_path / "one", plots=False).run()
    job(folder, tmp_path / "joint", plots=False, score_by="joint").run()
    one, joint = (rows(tmp_path / name / "answers.jsonl") for name in ("one", "joint"))
    for line, other in zip(one, joint, strict=True):
        parts = (other["probability"], other["begin_probability"], other["end_probability"])
        assert other["score"] == pytest.approx(sum(map(math.log, parts)), abs=1e-3)
        assert other["probability"] <= line["probability"] + 1e-6
    assert [line["text"] for line in one] != [line["text"] for line in joint]
    with pytest.raises(ConfigError, match=r"score_by: expected one of probabilities, logits, joint"):
        job(folder, tmp_path / "luck", plots=False, score_by="luck").run()


def test_a_baseline_is_measured_alike_but_has_no_gates(folder: Path, tmp_path: Path) -> None:
    """Multi-Sentence answers with spans of the record, not of the divided one."""
    tiny_dialki(folder / "bert", units="sentences").save(tmp_path / "sentences")
    replace(job(folder, tmp_path / "out"), checkpoint=str(tmp_path / "sentences")).run()
    result, lines = json.loads((tmp_path / "out/evaluation.json").read_text()), rows(tmp_path / "out/answers.jsonl")
    assert result["system"] == "Multi-Sentence" and result["gate_similarity"] == []
    assert {path.stem for path in (tmp_path / "out").iterdir()} == {"evaluation", "answers", "lengths"}
    examples = {example.id: example for example in DialogueData(str(folder / "dialogues.jsonl")).read().examples}
    for line in lines:
        passage = examples[line["id"]].passages[line["passage"]]
        assert line["text"] == passage.spans[line["begin"]] and line["begin"] == line["end"]
    assert result["groups"]["all"]["exact_match"] == pytest.approx(fmean(line["exact_match"] for line in lines))


def test_mistakes_are_one_clear_error(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for change in ({"batch_size": 0}, {"turns": 0}, {"limit": 0}, {"context_edges": (5, 2)}, {"document_edges": (1,)}):
        with pytest.raises(ConfigError, match=next(iter(change))):
            job(folder, tmp_path, **change)
    with pytest.raises(ConfigError, match="unseen belongs to format 'wow'"):
        job(folder, tmp_path, unseen=True)
    blind = dialogue("blind")
    write_dialogues(tmp_path / "blind.jsonl", [dialogue_row("blind", blind.turns, blind.passages)])
    with pytest.raises(DataError, match=r"blind\.jsonl.*no dialogue names its gold"):
        replace(job(folder, tmp_path / "out"), data=str(tmp_path / "blind.jsonl")).run()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"plots=true needs matplotlib: pip install -e '\.\[plots\]' in a checkout"):
        job(folder, tmp_path / "out").run()
    assert not (tmp_path / "out").exists()


@pytest.mark.needs("finegrained_lab")
def test_edges_follow_the_format(tmp_path: Path) -> None:
    edges = {
        name: EvaluateDialki("m", "d", "o", format=name).edges["document"]
        for name in ("jsonl", "doc2dial", "wow", "dstc11")
    }
    assert edges == {"jsonl": (500, 1000), "doc2dial": (500, 1000), "wow": (800, 1600), "dstc11": (500, 1000)}
    assert EvaluateDialki("m", "d", "o", format="wow", document_edges=[1, 2]).edges["document"] == (1, 2)


# Plots ----------------------------------------------------------------------------------------------------------


def drawn(path: Path) -> str:
    """The file, in which matplotlib writes each text as a comment before its shapes."""
    text = path.read_text(encoding="utf-8")
    assert ElementTree.fromstring(text).tag.endswith("svg")
    return text


def test_plots_name_their_numbers(tmp_path: Path) -> None:
    gate = {"similarity": 0.41, "standard_error": None, "searched": 0.3}
    gates = [{"turn": 1, "role": "user", "examples": 1234, **gate}, {"turn": 2, "role": "user", "examples": 7, **gate}]
    gates.append({"turn": 2, "role": "agent", "examples": 9, **gate, "similarity": 0.87})
    group = {"examples": 1500, "exact_match": 0.62, "f1": 0.73}
    edges = {"context": (2, 5), "document": (500, 1000)}
    for name in ("a", "b"):
        draw_gates(gates, [tmp_path / f"gates_{name}.svg", tmp_path / f"gates_{name}.png"])
        draw_lengths({"context/short": group, "document/long": group}, edges, [tmp_path / f"lengths_{name}.svg"])
    words = drawn(tmp_path / "gates_a.svg")
    for expected in ("n = 1,234", "n = 7", "n = 9", "0.41", "0.87", "user", "agent", "turns, the latest first"):
        assert f"<!-- {expected} -->" in words
    words = drawn(tmp_path / "lengths_a.svg")
    for expected in ("0.62", "0.73", "exact match", "F1", "tokens of the document"):
        assert f"<!-- {expected} -->" in words
    assert all(text in words for text in ("0–2", "over 1,000", "n = 1,500", "n = 0"))
    for name in ("gates", "lengths"):  # the same numbers give the same bytes
        assert drawn(tmp_path / f"{name}_a.svg") == drawn(tmp_path / f"{name}_b.svg")
    assert (tmp_path / "gates_a.png").read_bytes().startswith(b"\x89PNG")


# The script -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.scripts
def test_the_script_in_two_processes_measures_what_one_does(folder: Path, tmp_path: Path) -> None:
    """The 11 dialogues do not divide by 2."""
    words = [f"checkpoint={folder}/model", f"data={folder}/dialogues.jsonl", "document_edges=[20,60]", "batch_size=2"]
    done = run_in_two_processes("evaluate_dialki", *words, f"output_dir={tmp_path}/two")
    assert done.returncode == 0, done.stderr
    assert "| document/medium " in done.stdout
    job(folder, tmp_path / "one").run()
    two, one = (json.loads((tmp_path / name / "evaluation.json").read_text()) for name in ("two", "one"))
    assert two["groups"] == one["groups"] and two["data"] == one["data"]
    for ours, theirs in zip(two["gate_similarity"], one["gate_similarity"], strict=True):
        assert ours == pytest.approx(theirs, abs=1e-5)
    assert (tmp_path / "two/lengths.svg").read_bytes() == (tmp_path / "one/lengths.svg").read_bytes()
