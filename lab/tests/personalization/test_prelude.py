"""PRELUDE's protocol: the same rounds for every agent, figures by hand, learning where there is something to learn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from finegrained_lab.protocols import RunPrelude
from finegrained_lab.protocols.prelude.curves import cost_curves, draw_cost_curves
from finegrained_lab.protocols.prelude.measures import Round, agent_figures, closest_source, word_overlap
from finegrained_lab.worlds.style import MakeStyleWorld, StyleReader, StyleWriter
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import read_json, read_jsonl, write_json, write_jsonl
from finegrained_rlhf.core.generation.protocol import Generation

ROUND = Round("a", 0, "c", "news", "short", "news", "d", "e", 2, 0.5, ("news", "travel"), 1, 10, 4)


def test_figures_by_hand() -> None:
    rounds = [
        ROUND,
        replace(ROUND, distance=0, normalised=0.0, closest="travel", retrieved=("news",), calls=3),
        replace(ROUND, source="travel", closest=None, preference="", retrieved=()),
    ]
    assert agent_figures(rounds) == {
        "rounds": 3,
        "cost": 4,
        "normalised": pytest.approx(1 / 3),
        "untouched": pytest.approx(1 / 3),
        "untouched_by_20": [pytest.approx(1 / 3)],
        "preference_accuracy": pytest.approx(1 / 3),
        "retrieval_accuracy": pytest.approx(2 / 3),
        "calls": 5,
        "tokens_in": 30,
        "tokens_out": 12,
    }
    silent = agent_figures([replace(ROUND, preference="", closest=None, retrieved=())] * 25)
    assert silent["preference_accuracy"] is None is silent["retrieval_accuracy"]
    assert silent["untouched_by_20"] == [0.0, 0.0]
    with pytest.raises(ValueError):
        agent_figures([])


def test_the_closest_preference() -> None:
    true = {"news": "bullet points, short", "travel": "second person, emojis", "lab": "short, emojis"}
    assert word_overlap("Short, bullet", "bullet points, short") == pytest.approx(2 * 2 / 5)
    assert word_overlap("", "") == word_overlap("a", "b") == 0.0
    assert closest_source("Bullet points", true) == "news" and closest_source("", true) is None
    assert closest_source("short", true) == "lab"  # one word of two
    assert closest_source("emojis or points", {**true, "lab": "points"}) == "lab"
    assert closest_source("unheard of", true) is None  # all are equally far
    assert closest_source("x", true, lambda a, b: float(b == true["travel"])) == "travel"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("style_world")
    MakeStyleWorld(str(path), seed=7, contexts=40, foreign=0.0).run()
    return path


def prelude(world: Path, output: Path, **keys: object) -> RunPrelude:
    files = {"contexts": str(world / "contexts.jsonl"), "preferences": str(world / "preferences.json")}
    llm = StyleWriter(slips=0.0, misreads=0.0, notices=1.0)
    return RunPrelude(
        **{
            **files,
            "output_dir": str(output),
            "llm": llm,
            "user": StyleReader(),
            "plots": False,
            "progress": False,
            **keys,
        }
    )


def test_what_can_be_learnt_is_learnt(world: Path, tmp_path: Path) -> None:
    """Without noise: the oracle is never edited, CIPHER-1 about once a source; one preference for all is not enough."""
    found = prelude(world, tmp_path).run()
    assert found == read_json(tmp_path / "summary.json")["agents"]
    assert found["oracle"]["cost"] == 0 and found["oracle"]["preference_accuracy"] == 1.0
    assert found["no_learning"]["untouched"] == 0.0 and found["no_learning"]["calls"] == 40
    by_agent: dict[str, list[dict]] = {}
    for one in read_jsonl(tmp_path / "rounds.jsonl"):
        by_agent.setdefault(one["agent"], []).append(one)
    order = [one["context"] for one in by_agent["oracle"]]
    assert len(by_agent) == 8 and all([one["context"] for one in rounds] == order for rounds in by_agent.values())
    edited = [one["source"] for one in by_agent["cipher_1"] if one["distance"]]
    assert len(edited) <= 10 and set(edited) == {one["source"] for one in by_agent["oracle"]}
    for agent in ("icl_edit_5", "cot_edit_5", "cipher_1", "cipher_5"):
        assert found[agent]["cost"] < 0.5 * found["no_learning"]["cost"] and found[agent]["untouched_by_20"][-1] > 0.8
    for agent in ("explore_then_exploit", "continual"):
        assert found[agent]["untouched"] < 0.5


@pytest.mark.slow
def test_curves_are_drawn_from_the_rounds(world: Path, tmp_path: Path) -> None:
    found = prelude(world, tmp_path, agents=["oracle", "no_learning"], plots=True).run()
    summed, untouched = cost_curves(tmp_path / "rounds.jsonl")
    for agent, figures in found.items():
        assert len(summed[agent]) == 40 and summed[agent][40] == figures["cost"]
        assert list(untouched[agent].values()) == figures["untouched_by_20"] and list(untouched[agent]) == [20, 40]
    drawn = (tmp_path / "curves.svg").read_text()
    draw_cost_curves(tmp_path / "rounds.jsonl", tmp_path / "again.svg")
    assert drawn.startswith("<?xml") and (tmp_path / "again.svg").read_text() == drawn


def test_the_logged_preference_is_the_one_that_was_used(world: Path, tmp_path: Path) -> None:
    prelude(world, tmp_path, agents=["cipher_1"], rounds=12).run()
    rounds = read_jsonl(tmp_path / "rounds.jsonl")
    assert len(rounds) == 12 and rounds[0]["preference"] == "" and rounds[0]["retrieved"] == []
    assert all(len(one["retrieved"]) == 1 for one in rounds[1:])


def test_a_killed_run_goes_on_without_asking_again(world: Path, tmp_path: Path) -> None:
    class Served(StyleWriter):
        identity = "served"
        asked = 0

        def generate(self, prompt: str, schema: Any = None) -> Generation:
            Served.asked += 1
            if Served.asked == 30:
                raise KeyboardInterrupt
            return super().generate(prompt, schema)

    keys = {"agents": ["cipher_1"], "answers": str(tmp_path / "answers.sqlite"), "llm": Served()}
    with pytest.raises(KeyboardInterrupt):
        prelude(world, tmp_path / "a", **keys).run()
    assert len(read_jsonl(tmp_path / "a/rounds.jsonl")) == 15 and not (tmp_path / "a/summary.json").exists()
    found = prelude(world, tmp_path / "a", **keys).run()
    whole = prelude(world, tmp_path / "b", **{**keys, "answers": None}).run()
    assert found == whole
    asked = Served.asked
    prelude(world, tmp_path / "c", **keys).run()
    assert Served.asked == asked


@pytest.mark.parametrize(
    "keys",
    [
        {"agents": []},
        {"agents": ["cipher_1", "cipher_1"]},
        {"agents": ["cipher_0"]},
        {"agents": ["cipher"]},
        {"agents": ["oracle_5"]},
        {"agents": [None]},
        {"rounds": 0},
        {"explore_rounds": 0},
        {"last": 0},
        {"delta": -0.5},
        {"answers": "file"},
    ],
)
def test_mistakes_are_said_before_anything_runs(world: Path, tmp_path: Path, keys: dict) -> None:
    with pytest.raises(ConfigError):
        prelude(world, tmp_path, **keys)


def test_files_that_are_not_as_they_should_be(world: Path, tmp_path: Path) -> None:
    good = {"id": "1", "source": "news", "text": "x"}
    for rows in (
        [],
        [{**good, "text": ""}],
        [good, good],
        [{"id": "1"}],
        [{**good, "source": "unknown"}],
        [good, {**good, "id": "2"}],
    ):
        write_jsonl(tmp_path / "contexts.jsonl", rows)
        with pytest.raises(DataError, match="contexts.jsonl"):
            prelude(world, tmp_path / "o", contexts=str(tmp_path / "contexts.jsonl")).run()
    for wrong in ([], {"news": 3}, {"news": ""}):
        write_json(tmp_path / "preferences.json", wrong)
        with pytest.raises(DataError, match="preferences.json"):
            prelude(world, tmp_path / "o", preferences=str(tmp_path / "preferences.json")).run()
