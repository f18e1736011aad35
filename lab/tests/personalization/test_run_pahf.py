"""PAHF's protocol: figures by hand, tests that leave the memory as it is, what each kind of feedback is good for."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from finegrained_lab.protocols import RunPahf, ScriptedUser
from finegrained_lab.protocols.pahf.measures import (
    SceneRound,
    mean_and_error,
    phase_figures,
    setting_figures,
    success_by_user,
    without_agent,
)
from finegrained_lab.protocols.pahf.run import final_figures, phase_curves
from finegrained_lab.protocols.pahf.scenes import Scene
from finegrained_lab.worlds.pahf import ChoiceScript, MakePahfWorld
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.files import read_json, read_jsonl, write_jsonl
from finegrained_rlhf.personalization import FaissIndex, UserMemory
from finegrained_rlhf.personalization.learners.pahf import Pahf

ROUND = SceneRound("both", 1, 1, "s", "ada", "tea", True, False, False, "", "", 2, 30, 4)


def test_figures_by_hand() -> None:
    rounds = [
        ROUND,
        replace(ROUND, scene="t", correct=False, given=True),
        replace(ROUND, iteration=2),
        replace(ROUND, iteration=2, scene="t", asked=True),
        replace(ROUND, user="bob", correct=False, asked=True, given=True),
        replace(ROUND, user="bob", iteration=2, correct=False),
    ]
    found = phase_figures(rounds)
    assert found["success"] == [0.25, 0.5] and found["frequency"] == [0.75, 0.25]
    assert found["acpe"] == [0.75, 0.625]  # ada 0.5 and (0.5 + 0) / 2, bob 1 and 1
    assert found["success_se"] == pytest.approx([0.25, 0.5]) and found["acpe_se"] == pytest.approx([0.25, 0.375])
    whole = setting_figures([*rounds, replace(ROUND, phase=2)])
    assert whole["phase1"] == found and whole["phase2"]["success"] == [1.0]
    assert (whole["calls"], whole["tokens_in"], whole["tokens_out"]) == (14, 210, 28)
    assert mean_and_error([3.0]) == (3.0, 0.0)
    for wrong in ([], rounds[:5]):
        with pytest.raises(ValueError):
            phase_figures(wrong)
    with pytest.raises(ValueError):
        mean_and_error([])


def test_who_looks_at_nothing() -> None:
    scenes = [Scene("1", "a", "?", ("x", "y"), "y", "p"), Scene("2", "a", "?", ("z", "y", "x", "w"), "y", "p")]
    scenes.append(Scene("3", "b", "?", ("x", "v"), "x", "p"))
    expected = {"chance": (0.5 + 0.25 + 0.5) / 3, "constant": 2 / 3, "constant_option": 2 / 3, "oracle": 1.0}
    assert without_agent(scenes) == pytest.approx(expected)
    with pytest.raises(ValueError):
        without_agent([])


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pahf_world")
    MakePahfWorld(str(path), seed=7, users=2, scenes=18, drift=1.0).run()
    return path


def pahf_run(world: Path, output: Path, **keys: Any) -> RunPahf:
    phases = [str(world / f"phase{number}.jsonl") for number in (1, 2, 3, 4)]
    given = {
        "llm": ChoiceScript(noise=0.0, overreach=0.0),
        "user": ScriptedUser(terse=0.0),
        "plots": False,
        "progress": False,
        **keys,
    }
    return RunPahf(phases, str(output), **given)


def test_faiss_finds_what_comparing_all_notes_finds(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("faiss")
    searches: list[int] = []
    nearest = FaissIndex.nearest
    monkeypatch.setattr(FaissIndex, "nearest", lambda *given: searches.append(1) or nearest(*given))
    keys = {"feedback": ["both"], "iterations": 1}
    exact = pahf_run(world, tmp_path / "exact", **keys).run()
    assert not searches
    assert pahf_run(world, tmp_path / "faiss", index="faiss", **keys).run() == exact and searches
    with pytest.raises(ConfigError, match="index"):
        pahf_run(world, tmp_path / "none", index="near")


def test_without_noise_each_kind_of_feedback_does_what_it_is_for(world: Path, tmp_path: Path) -> None:
    found = pahf_run(world, tmp_path, iterations=2).run()
    assert found == read_json(tmp_path / "summary.json") and found["unchanged_in_tests"]
    assert found["left_out"] == {f"phase{phase}": 0 for phase in (1, 2, 3, 4)}
    rows = final_figures(found)
    settings = found["settings"]
    assert settings["both"]["phase1"]["success"] == [1.0, 1.0]  # who asks makes no error where nothing is known
    assert settings["post"]["phase1"]["success"][0] < 0.5 < 0.8 < settings["post"]["phase1"]["success"][1]
    assert rows["pre"]["success2"] == rows["both"]["success2"] == 1.0
    assert rows["pre"]["success3"] < 0.5 and settings["pre"]["phase3"]["frequency"] == [0.0, 0.0]  # confidently wrong
    assert rows["both"]["success3"] == rows["post"]["success3"] == 1.0
    assert rows["pre"]["success4"] < 0.5 < 0.8 < min(rows["both"]["success4"], rows["post"]["success4"])
    assert rows["none"]["success2"] < 0.5 and settings["none"]["phase1"]["frequency"] == [0.0, 0.0]
    rounds = read_jsonl(tmp_path / "rounds.jsonl")
    assert len(rounds) == 4 * 36 * (2 + 1 + 2 + 1)
    for one in rounds:
        assert not (one["asked"] or one["given"]) or one["phase"] in (1, 3)
        assert not one["given"] or not one["correct"]
        assert one["asked"] == bool(one["question"])
    order = [(one["phase"], one["iteration"], one["scene"]) for one in rounds if one["setting"] == "none"]
    for setting in ("pre", "post", "both"):
        assert [(one["phase"], one["iteration"], one["scene"]) for one in rounds if one["setting"] == setting] == order


def test_curves_are_drawn_from_the_rounds(world: Path, tmp_path: Path) -> None:
    found = pahf_run(world, tmp_path, feedback=["none", "both"], iterations=2, plots=True).run()["settings"]
    curves, words = phase_curves(tmp_path / "rounds.jsonl")
    assert list(words.values()) == ["1.1", "1.2", "2", "3.1", "3.2", "4"]
    for setting in ("none", "both"):
        for name in ("success", "frequency"):
            own, phases = curves[name][setting], [found[setting][f"phase{phase}"] for phase in (1, 2, 3, 4)]
            means, errors = ([value for one in phases for value in one[key]] for key in (name, f"{name}_se"))
            highest = [mean + error for mean, error in zip(means, errors, strict=True)]
            if name == "frequency":  # there is none in tests
                means = [value if place not in (2, 5) else math.nan for place, value in enumerate(means)]
            assert own["episodes"] == list(words) and own["mean"] == pytest.approx(means, nan_ok=True)
            assert name == "frequency" or own["max"] == pytest.approx(highest)
    for name in ("curves.svg", "users.svg"):
        assert (tmp_path / name).read_text().startswith("<?xml")


def test_success_by_user_has_the_mean_of_the_figures(world: Path, tmp_path: Path) -> None:
    found = pahf_run(world, tmp_path, feedback=["both"], iterations=2).run()["settings"]["both"]
    by_user = success_by_user([SceneRound(**one) for one in read_jsonl(tmp_path / "rounds.jsonl")])
    assert len(by_user) > 1
    for turn in ((1, 1), (1, 2), (2, 1), (3, 1), (3, 2), (4, 1)):
        mean = statistics.fmean(own[turn] for own in by_user.values())
        assert found[f"phase{turn[0]}"]["success"][turn[1] - 1] == pytest.approx(mean)


def test_feedback_is_counted_where_nothing_is_stored(world: Path, tmp_path: Path) -> None:
    found = pahf_run(world, tmp_path, feedback=["post"], iterations=1, user=ScriptedUser(terse=1.0)).run()
    own = found["settings"]["post"]["phase1"]
    assert own["frequency"] == [1.0 - own["success"][0]] != [0.0]
    assert {one["cues"] for one in read_jsonl(tmp_path / "rounds.jsonl")} == {""}  # nothing of it was worth a note


def test_acting_in_a_test_leaves_every_byte(world: Path, tmp_path: Path) -> None:
    memory = UserMemory(tmp_path / "users.db", durable=False)
    agent = Pahf(memory, ChoiceScript())
    learnt, tested = (read_jsonl(world / f"phase{number}.jsonl") for number in (1, 2))
    for row in learnt[:8]:
        agent.act(row["user"], row["instruction"], row["options"], lambda question, says=row["preference"]: says)
    files = ("users.db", "users.db-wal")
    before = [(tmp_path / name).read_bytes() for name in files]
    for row in tested[:8]:
        agent.act(row["user"], row["instruction"], row["options"])
        agent.act("somebody new", row["instruction"], row["options"])
    assert [(tmp_path / name).read_bytes() for name in files] == before


def test_the_agents_model_and_the_users_are_apart(world: Path, tmp_path: Path) -> None:
    class Watched(ChoiceScript):
        def generate(self, prompt: str, schema: Any = None) -> Any:
            assert "intent" not in prompt and '"persona"' not in prompt
            return super().generate(prompt, schema)

    pahf_run(world, tmp_path, llm=Watched(), iterations=1).run()


def test_scenes_that_are_left_out_are_counted(world: Path, tmp_path: Path) -> None:
    rows = read_jsonl(world / "phase1.jsonl")
    write_jsonl(tmp_path / "some.jsonl", [*rows[1:], {**rows[0], "intent": "something else"}])
    found = replace(pahf_run(world, tmp_path, feedback=["none"]), phases=[str(tmp_path / "some.jsonl")] * 4).run()
    assert found["left_out"]["phase1"] == 1 and found["scenes"]["phase1"] == 35


@pytest.mark.parametrize(
    "wrong",
    [
        {"phases": ["one"]},
        {"phases": "four"},
        {"feedback": []},
        {"feedback": ["all"]},
        {"feedback": ["pre", "pre"]},
        {"iterations": 0},
        {"k": 0},
        {"similarity": 2.0},
        {"answers": "answers.sqlite"},
    ],
)
def test_what_is_refused(wrong: dict[str, Any]) -> None:
    given: dict[str, Any] = {"phases": ["a"] * 4, "output_dir": "out", "llm": ChoiceScript(), "user": ScriptedUser()}
    with pytest.raises(ConfigError):
        RunPahf(**(given | wrong))
