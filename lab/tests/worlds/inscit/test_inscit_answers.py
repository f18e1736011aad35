"""InscitWorld's rewards: sentences, named passages and whole answers, and the same as measurements."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from finegrained_lab.published.inscit.data import InscitTurn, read_inscit, turns_of
from finegrained_lab.published.inscit.predictions import InscitPrediction, write_predictions
from finegrained_lab.worlds.inscit import (
    ArticleConfig,
    AskedFacts,
    GroundedSentences,
    InscitWorldMonitor,
    JudgePredictions,
    MakeInscitWorld,
    UsedEvidence,
)
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json, read_jsonl
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.inscit.conversation import joint_target


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("world")
    MakeInscitWorld(str(directory / "world"), 3, train=0, dev=12, test=0, articles=ArticleConfig(count=40)).run()
    return directory / "world"


@pytest.fixture(scope="module")
def turns(world: Path) -> list[InscitTurn]:
    return turns_of(read_inscit(world / "dev.json").conversations)


def prompt_of(turn: InscitTurn, *more: str) -> Prompt:
    ids = [*(one.id for one in turn.labels[0].evidence), *more]
    return Prompt(turn.name, "", (1,), {"passages": tuple(Passage.uncut(name, "text") for name in dict.fromkeys(ids))})


def with_two(world: Path, turns: list[InscitTurn]) -> InscitTurn:
    """A turn that asks for two facts and is answered with both, from two passages."""
    drawn = {row["id"]: row["turns"] for row in read_jsonl(world / "world.jsonl")}
    both = (turn for turn in turns if len(drawn[turn.conversation][turn.number - 1]["asked"]) == 2)
    return next(t for t in both if len(t.labels[0].passages) == 2 and t.labels[0].response_type == "directAnswer")


def test_what_people_said_is_grounded_and_uses_its_evidence(world: Path, turns: list[InscitTurn]) -> None:
    asked = [prompt_of(turn, "Aaa:1") for turn in turns]
    said = [joint_target(turn.labels[0].response, turn.labels[0].passages) for turn in turns]
    grounded, used = GroundedSentences(str(world)).score(asked, said), UsedEvidence(str(world)).score(asked, said)
    assert {value for row in grounded.values for value in row} <= {0.0, 1.0}
    assert {value for row in used.values for value in row} == {1.0}
    assert [len(row) for row in used.spans] == [len(turn.labels[0].passages) for turn in turns]
    for text, row in zip(said, grounded.spans, strict=True):
        assert " ".join(text[start:end] for start, end in row) == text.partition("answer: ")[2]
    complete = AskedFacts(str(world)).score(asked, said)
    assert complete.whole_response and min(value for (value,) in complete.values) >= 0
    assert sum(value for (value,) in complete.values) / len(turns) > 0.8


def test_each_error_costs_where_it_stands(world: Path, turns: list[InscitTurn]) -> None:
    turn = with_two(world, turns)
    first, second = sorted(turn.labels[0].passages)
    prompt, response = prompt_of(turn, "Aaa:1"), turn.labels[0].response
    scorers: list[Any] = [GroundedSentences(str(world)), UsedEvidence(str(world)), AskedFacts(str(world))]

    def values(text: str) -> list[tuple[float, ...]]:
        return [scorer.score([prompt], [text]).values[0] for scorer in scorers]

    assert values(joint_target(response, [first, second])) == [(1.0, 1.0), (1.0, 1.0), (1.0,)]
    one = values(joint_target(response, [first]))
    assert sorted(one[0]) == [-1.0, 1.0] and one[1:] == [(1.0,), (1.0,)]
    assert values(joint_target(response, [first, second, "Aaa:1"]))[1] == (-1.0, 1.0, 1.0)
    assert values(f"evidence: {first} | {first} | Nowhere:9 answer: {response}")[1] == (1.0, -1.0, -1.0)
    half = response.split(". ")[0] + "."
    assert values(joint_target(half, [first, second]))[2] == (0.5,)
    assert values(f"evidence: {first} answer: The moon is round.") == [(-1.0,), (-1.0,), (0.0,)]
    assert values("evidence: answer: Sorry, I did not find any useful information.") == [(0.0,), (), (0.0,)]
    assert values("no such thing") == [(), (), (0.0,)] and values("") == [(), (), (0.0,)]
    with pytest.raises(DataError, match="expected the name of a turn"):
        scorers[2].score([Prompt("x", "", (1,))], [""])


def test_measured_beside_a_reward_and_over_predictions(world: Path, turns: list[InscitTurn], tmp_path: Path) -> None:
    asked = [prompt_of(turn) for turn in turns]
    said = [joint_target(turn.labels[0].response, turn.labels[0].passages) for turn in turns]
    counts = InscitWorldMonitor(str(world)).counts(asked, said)
    for name in ("consistency", "utility", "coverage", "true"):
        total, count = counts[f"truth/{name}"]
        assert total == pytest.approx(count) and count > 0
    nothing = InscitWorldMonitor(str(world)).counts(asked, [""] * len(turns))
    assert nothing["truth/silent"] == (len(turns), len(turns)) and nothing["truth/consistency"] == (0.0, 0.0)

    predictions = {
        turn.key: InscitPrediction(turn.labels[0].response, tuple(sorted(turn.labels[0].passages))) for turn in turns
    }
    write_predictions(tmp_path / "said.json", turns, predictions)
    keys = {"world": str(world), "data": str(world / "dev.json"), "predictions": str(tmp_path / "said.json")}
    found = JudgePredictions(**keys, output=str(tmp_path / "truth.json")).run()
    assert found == read_json(tmp_path / "truth.json")
    assert found["consistency"] == found["utility"] == found["coverage"] == 1.0
    assert found["comprehensiveness"] == pytest.approx(
        counts["truth/comprehensiveness"][0] / counts["truth/comprehensiveness"][1]
    )
