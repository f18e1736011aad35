"""CORESET's protocol: figures by hand, what each agent reaches without noise, AmbigDocs' file into conversations."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from finegrained_lab.protocols import MakeDisambigDocs, RunCoreset
from finegrained_lab.protocols.coreset.ambigdocs import read_ambigdocs, with_another_question
from finegrained_lab.protocols.coreset.conversations import read_conversations
from finegrained_lab.protocols.coreset.run import (
    AnsweredTurn,
    conversation_figures,
    set_precision_recall,
    turn_errors,
    without_model,
)
from finegrained_lab.worlds.bios import BioScript, MakeBiosWorld
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import read_json, read_jsonl, write_json, write_jsonl
from finegrained_rlhf.core.generation.wrappers import ScriptedGenerator
from finegrained_rlhf.personalization.learners.coreset import CORESETS
from finegrained_rlhf.personalization.prompts import fenced_data


def test_precision_and_recall_by_hand() -> None:
    assert set_precision_recall(["Rome", "Oslo", "the Hague."], ["Hague", "rome", "Bonn", "Paris"]) == (2 / 3, 0.5)
    assert set_precision_recall(["Rome", "rome"], ["Rome"]) == (1.0, 1.0)
    assert set_precision_recall([], ["Rome"]) == (0.0, 0.0)
    with pytest.raises(ValueError):
        set_precision_recall(["Rome"], [])


def test_figures_by_hand() -> None:
    one = AnsweredTurn("icl", "a", "mixed", 3, 1, ("x",), ("x",), 1.0, 0.5, 0, calls=2, tokens_in=10, tokens_out=4)
    turns = [
        one,
        replace(one, turn=2, precision=0.5, remarks=1, satisfiable=False, place=3),
        replace(one, conversation="b", precision=0.0, recall=0.0, place=1),
        replace(one, conversation="b", turn=2, remarks=1, place=3),
    ]
    found = conversation_figures(turns)
    assert (found["precision"], found["recall"]) == (0.625, 0.375)
    assert found["by_turn"] == {"precision": [0.5, 0.75], "recall": [0.25, 0.5]}
    assert found["by_remarks"]["1"] == {"precision": 0.75, "recall": 0.5}
    assert (found["calls"], found["tokens_in"], found["tokens_out"], found["unsatisfiable"]) == (4.0, 20.0, 8.0, 0.25)
    assert found["places"] == pytest.approx([1 / 3, 0.0, 2 / 3])
    assert found["errors"] == {"missed": 0.0, "believed": 0.0, "other": 0.25}  # single answers are no errors
    for wrong in ([], turns[:3]):
        with pytest.raises(ValueError):
            conversation_figures(wrong)


def test_what_wrong_answers_come_from() -> None:
    one = AnsweredTurn("icl", "a", "mixed", 3, 1, ("x",), ("y",), 0.0, 0.0, 2, (1, 6), (1, 6))
    assert turn_errors(one) == {"other"}  # shown what holds, and wrong all the same
    assert turn_errors(replace(one, rests_on=(6,))) == {"missed"}
    assert turn_errors(replace(one, rests_on=(1, 4, 6))) == {"believed"}
    assert turn_errors(replace(one, rests_on=(4,))) == {"missed", "believed"}
    assert turn_errors(replace(one, rests_on=(4,), precision=1.0, recall=1.0)) == set()
    assert turn_errors(replace(one, rests_on=(4,), precision=1.0, recall=0.5)) == {"missed", "believed"}
    assert turn_errors(replace(one, rests_on=(), unanswered="agent refused")) == {"other"}
    assert turn_errors(replace(one, rests_on=(), agent="scratchpad")) == {"other"}
    turns = [one, replace(one, conversation="b", rests_on=(4,)), replace(one, turn=2, recall=1.0, precision=1.0)]
    found = conversation_figures([*turns, replace(turns[1], turn=2)])
    assert found["errors"] == {"missed": 0.5, "believed": 0.5, "other": 0.25}
    assert found["errors_by_turn"] == {"missed": [0.5, 0.5], "believed": [0.5, 0.5], "other": [0.5, 0.0]}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bios_world")
    scenarios = ("change", "mixed", "stray", "position")
    MakeBiosWorld(str(path), seed=7, conversations=1, documents=(4,), scenarios=scenarios).run()
    return path / "conversations.jsonl"


def run(world: Path, output: Path, **keys: Any) -> dict[str, Any]:
    given = {"llm": BioScript(noise=0.0, misjudges=0.0, forgets=0.0), "progress": False, **keys}
    return RunCoreset(str(world), str(output), **given).run()["figures"]  # type: ignore[no-any-return]


def test_without_noise_each_selection_does_what_it_is_for(world: Path, tmp_path: Path) -> None:
    chosen = tuple(name for name in CORESETS if "exact" in name)
    agents = ("no_feedback", "full_memory", *chosen, "coreset_recency_model", "random_window", "holding_remarks")
    found = run(world, tmp_path, agents=agents)
    assert found == read_json(tmp_path / "summary.json")["figures"]
    precision = {s: {agent: figures["precision"] for agent, figures in by["4"].items()} for s, by in found.items()}
    for scenario in ("change", "mixed", "stray"):
        own = found[scenario]["4"]
        for name in ("holding_remarks", "oracle"):  # what holds is all that is needed
            assert own[name]["precision"] == own[name]["recall"] == 1.0
        assert own["everything"]["recall"] == own["no_feedback"]["recall"] == 1.0
        assert precision[scenario]["no_feedback"] == precision[scenario]["everything"] < 0.8
        assert own["coreset_recency_model"]["precision"] == own["coreset_recency_exact"]["precision"]
    assert precision["change"]["coreset_recency_exact"] == 1.0 > precision["change"]["full_memory"]
    assert precision["change"]["random_window"] < 1.0
    turns = [row for row in read_jsonl(tmp_path / "turns.jsonl") if row["scenario"] == "stray"]
    last = {row["agent"]: row["rests_on"] for row in turns if row["turn"] == 50}
    assert 28 not in last["coreset_greedy_exact"] and 28 in last["full_memory"]
    for agent, figures in found["stray"]["4"].items():
        errors, exact = figures["errors"], agent in ("holding_remarks", "oracle")
        assert exact == (sum(errors.values()) == 0.0)
    assert found["stray"]["4"]["full_memory"]["errors"]["missed"] == 0.0
    assert found["stray"]["4"]["full_memory"]["errors"]["believed"] > 0.0
    assert found["stray"]["4"]["no_feedback"]["errors"]["believed"] == 0.0
    assert set(last["coreset_recency_exact"]) <= set(last["coreset_greedy_exact"]) <= {*range(29, 51), *range(1, 28)}
    places = found["position"]["4"]["no_feedback"]["places"]
    assert len(places) == 4 and sum(places) == pytest.approx(1.0)
    assert {row["agent"] for row in turns} == {*agents, "everything", "most_frequent", "first_document", "oracle"}


def test_who_hears_nothing(world: Path) -> None:
    conversation = read_conversations(world)[0]
    turn = conversation.turns[0]
    values = [one.facts[turn.attribute] for one in conversation.documents]
    found = without_model(conversation, turn)
    assert found["everything"] == tuple(dict.fromkeys(values)) and found["first_document"] == (values[0],)
    assert values.count(found["most_frequent"][0]) == max(map(values.count, values))


def test_no_agent_is_told_the_truth(world: Path, tmp_path: Path) -> None:
    truth = {"facts", "holding", "attribute", "value", "relevant"}

    class Watched(BioScript):
        def generate(self, prompt: str, schema: Any = None) -> Any:
            def keys(value: Any) -> set[str]:
                parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
                own = set(value) if isinstance(value, dict) else set()
                return own.union(*(keys(part) for part in parts))

            assert not keys(fenced_data(prompt)) & truth
            return super().generate(prompt, schema)

    run(world, tmp_path, llm=Watched(), scenarios=["change"])


@pytest.mark.parametrize(
    "wrong",
    [
        {"agents": []},
        {"agents": ["icl", "icl"]},
        {"agents": ["coreset"]},
        {"agents": ["coreset_oldest_exact"]},
        {"k": 0},
        {"threshold": 2.0},
        {"answers": "answers.sqlite"},
    ],
)
def test_what_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        RunCoreset(**({"conversations": "a", "output_dir": "out", "llm": BioScript()} | wrong))


def test_a_file_that_does_not_fit(world: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="partial"):
        run(world, tmp_path / "run", scenarios=["partial"])
    row = read_jsonl(world)[0]
    write_jsonl(tmp_path / "uneven.jsonl", [row, {**row, "id": "other", "turns": row["turns"][:3]}])
    with pytest.raises(DataError, match="other, field turns"):
        run(tmp_path / "uneven.jsonl", tmp_path / "run")
    assert not (tmp_path / "run").exists()


AMBIGDOCS = [
    {
        "qid": number,
        "ambiguous_entity": "Springfield",
        "question": "In which state is Springfield?",
        "documents": [
            {
                "title": f"Springfield, {state}",
                "text": f"It lies in {state} on the {river}.",
                "pid": "1",
                "answer": state,
            }
            for state, river in (("Ohio", "Mad River"), ("Oregon", "Willamette"), ("Illinois", "Sangamon"))
        ],
    }
    for number in (1, 2)
]


def test_ambigdocs_gets_more_questions(tmp_path: Path) -> None:
    write_json(tmp_path / "dev.json", AMBIGDOCS)
    instance = read_ambigdocs(tmp_path / "dev.json")[0]
    assert instance.documents[1].facts == {"In which state is Springfield?": "Oregon"}
    assert instance.documents[0].text.startswith("Springfield, Ohio: It lies")
    right = {"question": "On which river?", "answers": ["Mad River", "the Willamette", "Sangamon"]}
    more = with_another_question(instance, ScriptedGenerator([json.dumps(right)]))
    assert more is not None and more.questions == (*instance.questions, "On which river?")
    assert more.documents[0].facts["On which river?"] == "Mad River"
    for wrong in (
        {"question": "In which state is Springfield?"},
        {"answers": right["answers"][:2]},
        {"answers": ["Mad River", "Thames", "Sangamon"]},
        {"answers": ["It lies"] * 3},
        {"question": " "},
        {"answers": "none"},
    ):
        assert with_another_question(instance, ScriptedGenerator([json.dumps({**right, **wrong})])) is None


def test_ambigdocs_as_conversations(tmp_path: Path) -> None:
    write_json(tmp_path / "dev.json", AMBIGDOCS)
    right = {"question": "On which river?", "answers": ["Mad River", "Willamette", "Sangamon"]}
    replies = ScriptedGenerator(["no", json.dumps(right), "no", "no"])
    output = tmp_path / "conversations.jsonl"
    job = MakeDisambigDocs(str(tmp_path / "dev.json"), str(output), replies, 2, tries=2, turns=30, progress=False)
    assert job.run() == {"conversations": 1, "too_few_questions": 1, "not_allowed": 0}
    (conversation,) = read_conversations(output)
    assert len(conversation.turns) == 30 and {turn.attribute for turn in conversation.turns} == {
        "In which state is Springfield?",
        "On which river?",
    }
    agents = ("coreset_recency_exact", "full_memory")
    llm = ScriptedGenerator(lambda prompt: json.dumps({"answers": fenced_data(prompt)["remarks"][-1:]}))
    run(output, tmp_path / "run", llm=llm, agents=agents)  # the runner takes the file as it is
    with pytest.raises(DataError, match="no instance"):
        replace(job, llm=ScriptedGenerator(["no"] * 4)).run()
    for change in ({"qid": ""}, {"documents": AMBIGDOCS[0]["documents"][:1]}, {"question": None}):  # type: ignore[index]
        write_json(tmp_path / "wrong.json", [{**AMBIGDOCS[0], **change}])
        with pytest.raises(DataError, match="record 0"):
            read_ambigdocs(tmp_path / "wrong.json")
    for wrong in ({"questions": 0}, {"tries": 0}, {"scenario": "other"}):
        with pytest.raises(ConfigError):
            replace(job, **wrong)
