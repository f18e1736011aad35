"""BiosWorld: conversations of every scenario are what they are for; the script reads its prompt and errs as told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from finegrained_lab.protocols.coreset.conversations import AmbiguousConversation, read_conversations
from finegrained_lab.protocols.coreset.scenarios import CHANGE_AT, CHANGES_AT, STRAY_AT, TURNS
from finegrained_lab.worlds.bios import BioScript, MakeBiosWorld
from finegrained_lab.worlds.bios.lexicon import FACTS, asked_for, biography, facts_of, stated_in, user_says
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import read_jsonl
from finegrained_rlhf.personalization.prompts import filled

PEOPLE = [
    dict(zip(FACTS, values, strict=True))
    for values in (
        ("May 1, 1970", "Austin, Texas", "the University of Utah", "Law", "Tampa, Florida"),
        ("May 1, 1970", "Boise, Idaho", "the University of Iowa", "Music", "Tampa, Florida"),
        ("June 2, 1980", "Boise, Idaho", "the University of Ohio", "Physics", "Austin, Texas"),
    )
]
TEXTS = [biography("Ada Novak", one) for one in PEOPLE]


def test_what_is_said_is_read_back() -> None:
    for attribute, fact in FACTS.items():
        assert asked_for(fact.question.format(name="Ada Novak")) == (attribute, "Ada Novak")
        assert len(set(fact.values)) == len(fact.values) >= 28
        for value in fact.values:
            (found,) = stated_in(user_says("Ada Novak", attribute, value))
            assert (found.attribute, found.value) == (attribute, value)
    assert [facts_of(text) for text in TEXTS] == PEOPLE
    assert asked_for("Who is Ada Novak?") is None and stated_in("Nothing of that kind.") == ()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bios_world")
    MakeBiosWorld(str(path), seed=3, conversations=2).run()
    return path


def said(one: AmbiguousConversation) -> list[int]:
    return [number for number, turn in enumerate(one.turns, start=1) if turn.remark is not None]


def sizes(one: AmbiguousConversation) -> list[int]:
    """How many can be meant, turn by turn."""
    return [len(one.relevant(turn)) for turn in one.turns]


def test_every_scenario_is_what_it_is_for(world: Path, tmp_path: Path) -> None:
    conversations = read_conversations(world / "conversations.jsonl")
    assert {(one.scenario, len(one.documents)) for one in conversations} == {(s, n) for s in TURNS for n in (3, 10, 20)}
    for one in conversations:
        count, left = len(one.documents), sizes(one)
        assert len(one.turns) == TURNS[one.scenario] and len({tuple(d.facts.values()) for d in one.documents}) == count
        assert all(facts_of(document.text) == document.facts for document in one.documents)
        assert all(turn.one == (one.scenario == "position") for turn in one.turns)
        if one.scenario in ("ambiguity", "position"):
            assert left == [count] * 5 and said(one) == [] and {turn.attribute for turn in one.turns} == set(FACTS)
        if one.scenario == "persistence":
            assert left == [count] + [1] * 49 and said(one) == [1]
        if one.scenario == "partial":
            steps = [count - min(turn // 5, 3, count - 1) for turn in range(20)]
            assert left == steps
        if one.scenario == "change":
            assert left[1:] == [1] * 49 and said(one) == [1, CHANGE_AT]
            assert one.relevant(one.turns[CHANGE_AT - 1]) != one.relevant(one.turns[CHANGE_AT])
        if one.scenario == "changes":
            assert left[1:] == [1] * 29 and said(one) == [1, *CHANGES_AT]
        if one.scenario == "mixed":
            assert said(one) == [1, 6, 11, 16, 21, 25, 26, 31, 36, 41, 46]
            assert [len(turn.holding) for turn in one.turns][CHANGE_AT - 1 : CHANGE_AT + 1] == [5, 1]
        if one.scenario == "stray":
            assert STRAY_AT in said(one) and all(STRAY_AT - 1 not in turn.holding for turn in one.turns)
            (meant,) = one.relevant(one.turns[-1])
            remark = one.turns[STRAY_AT - 1].remark
            assert remark is not None and meant.facts[remark.attribute] != remark.value
        if one.scenario == "strays":
            false_turns = [turn for turn in said(one) if turn % 5 == 4]
            assert len(false_turns) == 4 and said(one)[-1] == 46
            assert set(one.turns[-1].holding) == {turn - 1 for turn in said(one)} - {turn - 1 for turn in false_turns}
            wanted = one.relevant(one.turns[-1])
            for turn in false_turns:
                remark = one.turns[turn - 1].remark
                assert remark is not None
                assert all(document.facts[remark.attribute] != remark.value for document in wanted)
    truth = {row["id"]: row for row in read_jsonl(world / "world.jsonl")}
    for one in conversations:
        assert [row["answers"] for row in truth[one.id]["turns"]] == [list(one.true_answers(t)) for t in one.turns]
    MakeBiosWorld(str(tmp_path), seed=3, conversations=1, documents=(3,)).run()
    again = {row["id"]: row for row in read_jsonl(tmp_path / "conversations.jsonl")}
    assert again and all(
        row == again[row["id"]] for row in read_jsonl(world / "conversations.jsonl") if row["id"] in again
    )


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"documents": []}, "documents"),
        ({"turns": []}, "turns"),
        ({"id": " "}, "id"),
        ({"turns": [{"question": "?", "attribute": "shoe size"}]}, r"turns\[0\].attribute"),
        ({"turns": [{"question": "?", "attribute": "major", "holding": [0]}]}, r"turns\[0\].holding"),
        ({"turns": [{"question": "?", "attribute": "major", "remark": {"text": "x"}}]}, "remark.attribute"),
        ({"turns": [{"question": "?", "attribute": "major", "one": "yes"}]}, "one"),
    ],
)
def test_a_conversation_that_is_not_as_it_should_be(world: Path, tmp_path: Path, change: Any, field: str) -> None:
    row = read_jsonl(world / "conversations.jsonl")[0]
    (tmp_path / "wrong.jsonl").write_text(json.dumps({**row, **change}) + "\n")
    with pytest.raises(DataError, match=field):
        read_conversations(tmp_path / "wrong.jsonl")


def test_a_remark_that_nobody_fits_cannot_hold(world: Path, tmp_path: Path) -> None:
    row = read_jsonl(world / "conversations.jsonl")[0]
    remark = {"text": "x", "attribute": "major", "value": "Alchemy"}
    ask = {"question": "?", "attribute": "major"}
    (tmp_path / "wrong.jsonl").write_text(
        json.dumps({**row, "turns": [{**ask, "remark": remark}, {**ask, "holding": [0]}]})
    )
    with pytest.raises(DataError, match="one document fits"):
        read_conversations(tmp_path / "wrong.jsonl")


def test_settings_of_a_world(tmp_path: Path) -> None:
    for wrong in (
        {"conversations": 0},
        {"documents": (1,)},
        {"documents": (29,)},
        {"overlap": 1.1},
        {"scenarios": ("other",)},
        {"turns": 0},
        {"wrong": -1},
        {"wrong": 10},
        {"wrong": 2, "turns": 6},
    ):
        with pytest.raises(ConfigError):
            MakeBiosWorld(str(tmp_path), **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wrong", "turns", "said_wrongly"), [(0, None, 0), (9, None, 9), (None, None, 4), (None, 6, 1)]
)
def test_as_many_wrong_remarks_as_are_asked_for(wrong: int | None, turns: int | None, said_wrongly: int) -> None:
    world = MakeBiosWorld("", seed=2, conversations=1, documents=(5,), scenarios=("strays",), turns=turns, wrong=wrong)
    ((one,),) = world.draw().values()
    (wanted, *others) = one.relevant(one.turns[-1])
    remarks = [turn.remark for turn in one.turns if turn.remark is not None]
    assert not others or turns == 6
    assert sum(wanted.facts[remark.attribute] != remark.value for remark in remarks) == said_wrongly


def asked(script: BioScript, template: str, question: str = "major", **data: Any) -> dict[str, Any]:
    data = {"documents": TEXTS, **data, "question": FACTS[question].question.format(name="Ada Novak")}
    reply = json.loads(script.generate(filled(template, "Answer.", data)).text)
    assert isinstance(reply, dict)
    return reply


def says(attribute: str, person: int) -> str:
    return user_says("Ada Novak", attribute, PEOPLE[person][attribute])


EXACT = BioScript(noise=0.0, forgets=0.0, resolves=1.0, misjudges=0.0, first_bias=1.0)


def test_each_step_of_the_script() -> None:
    assert asked(EXACT, "answer_remarks", remarks=[]) == {"answers": ["Law", "Music", "Physics"]}
    assert asked(EXACT, "answer_remarks", "city", remarks=[]) == {"answers": ["Tampa, Florida", "Austin, Texas"]}
    assert asked(EXACT, "answer_remarks", remarks=[says("birthday", 0)]) == {"answers": ["Law", "Music"]}
    both = [says("birthday", 0), says("hometown", 1)]
    assert asked(EXACT, "answer_remarks", remarks=both) == {"answers": ["Music"]}
    clash = [says("major", 0), says("major", 2)]
    assert asked(EXACT, "answer_remarks", remarks=clash) == {"answers": ["Physics"]}  # in favour of the newer one
    assert asked(BioScript(0.0, 0.0, 0.0), "answer_remarks", remarks=clash) == {"answers": ["Law", "Physics"]}
    history = [{"question": "?", "answers": ["Law"], "remark": clash[0]}, {"question": "?", "answers": []}]
    assert asked(EXACT, "answer_history", history=history) == {"answers": ["Law"]}
    chain = asked(EXACT, "answer_chain", history=[*history, {"question": "?", "answers": [], "remark": clash[1]}])
    assert chain["answers"] == ["Physics"] and stated_in(chain["reasoning"])[0].value == "Physics"
    assert asked(EXACT, "answer_notes", notes="Ada Novak majored in Music.") == {"answers": ["Music"]}
    assert asked(EXACT, "answer_one") == {"answer": "Law"}
    turn = {"answers": ["Law"], "remark": ""}
    assert asked(EXACT, "scratchpad", scratchpad="", **turn) == {"note": "Ada Novak majored in Law."}
    assert asked(EXACT, "scratchpad", scratchpad="Ada Novak majored in Law.", **turn) == {"note": ""}
    line = asked(EXACT, "scratchpad", scratchpad="", answers=["Law", "Music"], remark=says("city", 2))
    assert line == {"note": "Ada Novak currently lives in Austin, Texas."}
    old = "Ada Novak majored in Law.\nAda Novak is from Austin, Texas."
    assert asked(EXACT, "summarise_memory", summary=old, remark=says("major", 2)) == {
        "summary": "Ada Novak is from Austin, Texas.\nAda Novak majored in Physics."
    }
    keeps = asked(BioScript(0.0, 0.0, 0.0), "summarise_memory", summary=old, remark=says("major", 2))
    assert keeps == {"summary": f"{old}\nAda Novak majored in Physics."}


def test_the_script_judges_conflicts() -> None:
    def conflict(chosen: list[str], remark: str, documents: list[str] | None = TEXTS, wrong: float = 0.0) -> str:
        shown = {} if documents is None else {"documents": documents}
        prompt = filled("conflict", "", {**shown, "chosen": chosen, "remark": remark})
        return str(json.loads(BioScript(misjudges=wrong).generate(prompt).text)["conflict"])

    assert conflict([], says("major", 0)) == "no" and conflict([says("birthday", 0)], says("major", 1)) == "no"
    assert conflict([says("major", 0)], says("major", 1)) == "yes"
    assert conflict([says("major", 0)], says("hometown", 1)) == "yes"  # nobody has both
    assert conflict([says("major", 0)], says("hometown", 1), None) == "no"  # which the remarks alone do not say
    assert conflict([says("major", 0)], says("major", 1), None) == "yes"
    assert conflict([says("major", 0)], says("major", 1), wrong=1.0) == "no"


def test_dials_are_shares() -> None:
    """Of 300 prompts; the number in the task makes them different."""

    def share(script: BioScript, template: str, right: dict[str, Any], behind: str = "", **data: Any) -> float:
        wrong = 0
        question = FACTS["major"].question.format(name="Ada Novak")
        for number in range(300):
            shown = {"documents": TEXTS, **data, "more": behind, "question": question}
            wrong += json.loads(script.generate(filled(template, f"{number}.", shown)).text) != right
        return wrong / 300

    still = {"noise": 0.0, "forgets": 0.0}
    remarks = [says("major", 0)]
    far = share(
        BioScript(noise=0.0, forgets=0.3), "answer_remarks", {"answers": ["Law"]}, "word " * 2000, remarks=remarks
    )
    near = share(BioScript(noise=0.0, forgets=0.3), "answer_remarks", {"answers": ["Law"]}, remarks=remarks)
    assert 0.42 < far < 0.62 and near < 0.08  # 1 − 0.7², and what little stands behind it
    noisy = share(BioScript(noise=0.1, forgets=0.0), "answer_remarks", {"answers": ["Law"]}, remarks=remarks)
    assert 0.25 < noisy < 0.47  # three judgements and a listing: 1 − 0.9⁴
    clash = [*remarks, says("major", 2)]
    assert (
        0.6 < share(BioScript(**still, resolves=0.3), "answer_remarks", {"answers": ["Physics"]}, remarks=clash) < 0.8
    )
    single = share(BioScript(first_bias=0.4), "answer_one", {"answer": "Law"})
    assert 0.3 < single < 0.5  # 0.6 · ⅔
    with pytest.raises(ConfigError):
        BioScript(noise=2.0)
    with pytest.raises(DataError):
        EXACT.generate("no data")
