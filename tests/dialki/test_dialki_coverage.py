"""Text that no answer could come from is counted: in each prediction, in the metrics, and in a warning."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest
from dialki_toy import dialogue, job, passage, save_bert, tiny_dialki

from finegrained_rlhf.dialki.data import dialogue_row, write_dialogues
from finegrained_rlhf.dialki.finder import KnowledgeFinder
from finegrained_rlhf.dialki.inputs.examples import InputConfig
from finegrained_rlhf.dialki.jobs import EvaluateDialki, IdentifyKnowledge
from finegrained_rlhf.dialki.model.model import DialkiModel
from finegrained_rlhf.dialki.model.search import SearchConfig
from finegrained_rlhf.dialki.scores import Coverage, Searched, length_edges
from finegrained_rlhf.dialogue.records import Knowledge, Turn

FIRST_TWO = SearchConfig(max_passages=2)


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_bert(tmp_path_factory.mktemp("bert"), layers=1)


def searched(model: DialkiModel, *dialogues: object) -> list[Searched]:
    return [found.coverage for found in KnowledgeFinder(model).identify(dialogues)]  # type: ignore[arg-type]


def test_passages_beyond_the_limit_are_counted(bert: Path) -> None:
    three = dialogue("d", [passage(0, 3), passage(1, 2), passage(2, 5), passage(3, 1)])
    (found,) = KnowledgeFinder(tiny_dialki(bert, search=FIRST_TWO)).identify([three])
    assert found.coverage == Searched(passages=2, total_passages=4, spans=5, total_spans=11)
    assert found.searched == (0, 1) and sum(found.probabilities) == pytest.approx(1)
    row = found.to_json(three)
    assert (row["searched_passages"], row["total_passages"], row["dropped_spans"]) == (2, 4, 6)
    assert searched(tiny_dialki(bert), three) == [Searched(4, 4, 11, 11)]


def test_spans_cut_by_the_length_are_counted(bert: Path) -> None:
    long = dialogue("d", [passage(0, 30), passage(1, 2)], [Knowledge(1, 0, 0)], (None,))
    (cut,) = searched(tiny_dialki(bert, inputs=InputConfig(100, 40)), long)
    assert (cut.passages, cut.total_passages, cut.total_spans) == (2, 2, 32)
    fitting = cut.spans - 2  # of the first passage
    words = len("the door is red .".split())
    assert 0 < fitting < 30 and (fitting + 1) * (words + 1) > 100 - 40 - 10  # as many as there is room for
    assert cut.dropped_spans == 30 - fitting


def test_sentences_count_as_spans_of_their_passages(bert: Path) -> None:
    example = dialogue(
        "d", [replace(passage(0, 4), sentence_starts=(0, 2, 3)), passage(1, 2)], [Knowledge(0, 0, 0)], (None,)
    )
    model = tiny_dialki(bert, units="sentences", contextualize=False, search=SearchConfig(max_passages=1))
    assert searched(model, example) == [Searched(1, 2, 4, 6)]


def test_sums_by_hand(caplog: pytest.LogCaptureFixture) -> None:
    coverage = Coverage.of([Searched(2, 4, 5, 11), Searched(3, 3, 7, 7), Searched(1, 1, 2, 9)])
    assert coverage == Coverage(
        dialogues=3, partly_searched=2, searched_passages=6, total_passages=8, dropped_spans=13, total_spans=27
    )
    coverage.warn()
    assert "2 of 3 dialogues were searched in part: 6 of 8 passages, 13 of 27 spans left out" in caplog.text
    caplog.clear()
    Coverage.of([Searched(3, 3, 7, 7)]).warn()
    Coverage().warn()
    assert not caplog.text


def test_files_say_what_was_searched(bert: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tiny_dialki(bert, search=FIRST_TWO).save(tmp_path / "model")
    turn = Turn("agent", "it is .", Knowledge(0, 0, 0))
    rows = [dialogue_row(name, (Turn("user", "tell me"), turn), dialogue().passages) for name in "ab"]
    write_dialogues(tmp_path / "dialogues.jsonl", rows)
    where = {"checkpoint": str(tmp_path / "model"), "batch_size": 1}
    expected = {"searched_passages": 2, "total_passages": 4, "dropped_spans": 6}
    with caplog.at_level(logging.WARNING):
        IdentifyKnowledge(input=str(tmp_path / "dialogues.jsonl"), output=str(tmp_path / "found.jsonl"), **where).run()
    assert caplog.text.count("2 of 2 dialogues were searched in part: 4 of 8 passages, 12 of 24 spans left out") == 1
    caplog.clear()
    EvaluateDialki(
        data=str(tmp_path / "dialogues.jsonl"), output_dir=str(tmp_path / "test"), plots=False, **where
    ).run()
    assert caplog.text.count("12 of 24 spans left out") == 1
    for name in ("found.jsonl", "test/answers.jsonl"):
        for line in (tmp_path / name).read_text().splitlines():
            assert {key: json.loads(line)[key] for key in expected} == expected
    result = json.loads((tmp_path / "test/evaluation.json").read_text())
    assert result["searched"] == {
        **{"dialogues": 2, "partly_searched": 2, "searched_passages": 4, "total_passages": 8},
        **{"dropped_spans": 12, "total_spans": 24},
    }


def wizard_file(path: Path) -> None:
    """Two dialogues of Wizard of Wikipedia with passages of 600 words: short by its borders, medium by Doc2Dial's."""
    sentences = [f"{'the door is red . ' * 20}{number}" for number in ("one", "two", "three", "four", "five", "six")]
    dialog = [
        {"speaker": "1_Apprentice", "text": "tell me", "retrieved_passages": []},
        {
            **{"speaker": "0_Wizard", "text": "it is red", "retrieved_passages": []},
            **{"checked_sentence": {"self_door_0": sentences[0]}, "checked_passage": {"p": "door"}},
        },
    ]
    row = {"chosen_topic": "door", "chosen_topic_passage": sentences, "dialog": dialog}
    path.write_text(json.dumps([row, row]))


@pytest.mark.needs("finegrained_lab")
def test_metrics_of_a_run_take_the_borders_of_its_data_set(bert: Path, tmp_path: Path) -> None:
    assert length_edges("wow") == {"context": (2, 5), "document": (800, 1600)}
    assert length_edges("doc2dial")["document"] == length_edges("jsonl")["document"] == (500, 1000)
    wizard_file(tmp_path / "wow.json")
    (tmp_path / "bert").symlink_to(bert)
    write_dialogues(tmp_path / "dialogues.jsonl", [])
    run = job(tmp_path, tmp_path / "run", total_steps=1, validate_every=1, checkpoint_every=1)
    data = str(tmp_path / "wow.json")
    replace(run, data=data, validation_data=data, format="wow").run()
    metrics = json.loads((tmp_path / "run/metrics.json").read_text())
    assert metrics["edges"] == {"context": [2, 5], "document": [800, 1600]}
    assert "document/short" in metrics["validation"] and "document/medium" not in metrics["validation"]
    assert metrics["searched"]["dialogues"] == 2 and metrics["searched"]["total_passages"] == 4
