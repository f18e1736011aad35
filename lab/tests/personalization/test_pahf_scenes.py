"""Scenes of ours and of the form of the paper's files, personas that are read and never run, and users."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from finegrained_lab.protocols.pahf.scenes import NO_PURCHASE as NONE
from finegrained_lab.protocols.pahf.scenes import Scene, ShoppingScene, read_personas, read_scenes
from finegrained_lab.protocols.pahf.shopping import ShoppingUser, read_tastes
from finegrained_lab.protocols.pahf.users import ModelUser, ScriptedUser
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import write_json, write_jsonl
from finegrained_rlhf.core.generation.wrappers import ScriptedGenerator
from finegrained_rlhf.personalization.prompts import fenced_data

SCENE = Scene("1", "Mia", "Bring me a pen.", ("red pen", "blue pen"), "blue pen", "Writing: I want blue pen.")


def scenario(index: int, wanted: str, where: str = "pick-up", **other: Any) -> dict[str, Any]:
    objects = ["red pen", "blue pen"] if where == "pick-up" else ["letter", "desk", "tray"]
    row = {"index": index, "scene": ", ".join(objects), "task": "Bring me a pen.", "context": "Writing", "user": "Mia"}
    return {**row, "user_intent_object": wanted, "user_intent_location": where, "scene_objects": objects, **other}


def test_scenario_files_of_the_paper(tmp_path: Path) -> None:
    rows = [
        scenario(1, "blue pen"),
        scenario(2, "pencil"),
        scenario(3, "letter", "tray"),
        scenario(4, "letter", "shelf"),
        scenario(5, "card", "tray"),
        scenario(6, "blue pen", scene_objects=[]),
    ]
    write_json(tmp_path / "a.json", rows)
    read = read_scenes(tmp_path / "a.json")
    assert read.left_out == 4 and read.scenes[0] == SCENE
    placed = read.scenes[1]
    assert (placed.options, placed.intent) == (("desk", "tray"), "tray")
    assert placed.preference == "Writing: I want letter at tray."


def test_what_is_no_file_of_scenes(tmp_path: Path) -> None:
    good = {**vars(SCENE), "options": list(SCENE.options)}
    write_jsonl(tmp_path / "good.jsonl", [good])
    assert read_scenes(tmp_path / "good.jsonl").scenes == (SCENE,)
    for rows in ([], [good, good], [{**good, "options": []}], [{**good, "options": ["a", "a"]}], [{**good, "user": 3}]):
        write_jsonl(tmp_path / "bad.jsonl", rows)
        with pytest.raises(DataError, match=r"bad\.jsonl"):
            read_scenes(tmp_path / "bad.jsonl")
    for wrong in ({}, [], [scenario(1, "pencil")], [scenario(1, "blue pen", scene_objects="red")]):
        write_json(tmp_path / "bad.json", wrong)
        with pytest.raises(DataError, match=r"bad\.json"):
            read_scenes(tmp_path / "bad.json")


def test_personas_are_read_and_never_run(tmp_path: Path) -> None:
    file, ran = tmp_path / "personas.py", tmp_path / "ran"
    file.write_text(
        f'open({str(ran)!r}, "w")\nprompt_Mia = """Likes blue."""\nprompt_bo = str(3)\na = prompt_c = "y"\n'
    )
    assert read_personas(file) == {"mia": "Likes blue."} and not ran.exists()
    for text in ("x = 3", "def (", "prompt_a = 3"):
        file.write_text(text)
        with pytest.raises(DataError):
            read_personas(file)
    with pytest.raises(DataError):
        read_personas(tmp_path / "none.py")


def test_a_scripted_user() -> None:
    user = ScriptedUser(terse=0.0)
    assert user.answer(SCENE, "Which?", 1) == SCENE.preference
    assert user.correct(SCENE, "red pen", 1).endswith(SCENE.preference)
    assert SCENE.preference not in ScriptedUser(terse=1.0).correct(SCENE, "red pen", 1)
    with pytest.raises(ConfigError):
        ScriptedUser(terse=-1)


def test_a_user_that_a_language_model_plays(tmp_path: Path) -> None:
    before, after = tmp_path / "before.py", tmp_path / "after.py"
    before.write_text('prompt_mia = "Likes blue."')
    after.write_text('prompt_mia = "Likes red."')
    llm = ScriptedGenerator(lambda prompt: f" {json.dumps(fenced_data(prompt))} ")
    user = ModelUser(llm, str(before), str(after))
    said = json.loads(user.answer(SCENE, "Which?", 1))
    assert said["persona"] == "Likes blue." and said["question"] == "Which?"
    assert said.keys() == {"persona", "instruction", "options", "question"}  # not what is right
    assert json.loads(user.correct(SCENE, "red pen", 3)) == {
        "persona": "Likes red.",
        "instruction": SCENE.instruction,
        "options": list(SCENE.options),
        "action": "red pen",
    }
    assert json.loads(ModelUser(llm).answer(SCENE, "?", 4))["persona"] == SCENE.preference
    other = tmp_path / "other.py"
    other.write_text('prompt_bo = "Somebody else."')
    with pytest.raises(DataError):
        ModelUser(llm, str(other)).answer(SCENE, "?", 1)


OVEN = {
    "product": "oven",
    "Option A": ["gas", "steel"],
    "Option B": ["electric", "steel"],
    "Option C": ["gas", "glass"],
    "User": "Mia",
    "Task": "Find me an oven.",
    "gt": "A",
}
TASTES = {"heat": {"like_most": "gas", "like_second": ["electric"], "dislike": ["coal"]}}
TASTES["front"] = {"like_most": "steel", "like_second": [], "dislike": ["glass"]}


def personas(tastes: dict[str, Any]) -> dict[str, Any]:
    return {"Mia": {"persona_info": {"name": "Mia", "oven": tastes}, "sample_list": []}}


def test_shopping_files_of_the_paper(tmp_path: Path) -> None:
    write_json(tmp_path / "phase1.json", [OVEN, {**OVEN, "gt": None}])
    bought, none = read_scenes(tmp_path / "phase1.json").scenes
    assert isinstance(bought, ShoppingScene) and (bought.id, none.id) == ("0", "1")
    assert bought.options == (
        "oven with gas and steel",
        "oven with electric and steel",
        "oven with gas and glass",
        NONE,
    )
    assert bought.intent == bought.options[0] and none.intent == NONE and bought.features[1] == ("electric", "steel")
    same = {**OVEN, "Option B": OVEN["Option A"]}
    for wrong in ({**OVEN, "gt": "D"}, {**OVEN, "Option C": []}, same, {**OVEN, "Task": ""}, {"product": "oven"}):
        write_json(tmp_path / "bad.json", [OVEN, wrong])
        with pytest.raises(DataError, match=r"bad\.json.*1"):
            read_scenes(tmp_path / "bad.json")


def test_a_shopper_names_one_feature(tmp_path: Path) -> None:
    write_json(tmp_path / "personas.json", personas(TASTES))
    write_json(tmp_path / "changed.json", personas({**TASTES, "front": {**TASTES["front"], "like_most": "tin"}}))
    write_json(tmp_path / "phase1.json", [OVEN, {**OVEN, "gt": None}])
    bought, none = read_scenes(tmp_path / "phase1.json").scenes
    user = ShoppingUser(str(tmp_path / "personas.json"), str(tmp_path / "changed.json"))
    assert user.correct(bought, bought.options[1], 1) == "That would do, but I like gas more (heat)."
    assert user.correct(bought, bought.options[2], 1) == "I do not want glass (front)."
    assert user.correct(bought, NONE, 1) == "I would have bought the oven with gas and steel."
    assert user.correct(none, none.options[0], 1) == "That was not the one that I like most."
    assert user.answer(bought, "What heat?", 1) == "Heat: I like gas most; electric will do; I refuse coal."
    assert "Front: I like steel most; I refuse glass." in user.answer(bought, "What do you like?", 1)
    assert "tin" in user.answer(bought, "Which front?", 3)
    with pytest.raises(DataError, match="steel"):
        user.correct(bought, bought.options[0], 3)
    with pytest.raises(DataError, match="shopping"):
        user.answer(SCENE, "?", 1)
    with pytest.raises(DataError, match=r"personas\.json"):
        user.answer(replace(bought, user="Bo"), "?", 1)
    asked: list[str] = []
    spoken = replace(user, llm=ScriptedGenerator(lambda prompt: asked.append(prompt) or " Gas. "))
    assert spoken.answer(bought, "What heat?", 1) == "Gas." and "electric" in fenced_data(asked[0])["persona"]
    assert fenced_data(asked[0]).keys() == {"persona", "instruction", "question"} and bought.intent not in asked[0]
    assert len(asked) == 1 and spoken.correct(bought, NONE, 1).startswith("I would") and len(asked) == 1
    for wrong in (
        {},
        [],
        {"Mia": {}},
        personas({"heat": {"like_most": "gas"}}),
        personas({"heat": {**TASTES["heat"], "dislike": ["gas"]}}),
    ):
        write_json(tmp_path / "bad.json", wrong)
        with pytest.raises(DataError, match=r"bad\.json"):
            read_tastes(str(tmp_path / "bad.json"))
