"""The scripts of learning at use time: a world, a run of agents on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from remote_toy import FakeService
from script_runs import run_script

from finegrained_lab.experiments.personalization import (
    EditTeachersContextsTable,
    EditTeachersLongerTable,
    EditTeachersTable,
    StyleTrainingTable,
)
from finegrained_lab.worlds.pahf import ChoiceScript
from finegrained_rlhf.core.files import read_json, read_jsonl, write_json, write_jsonl, write_text
from finegrained_rlhf.personalization import UserMemory
from finegrained_rlhf.personalization.prompts import fenced_data

pytestmark = pytest.mark.scripts


def test_a_world_and_a_run(tmp_path: Path) -> None:
    made = run_script("make_style_world", f"output_dir={tmp_path}/world", "contexts=20")
    assert made.returncode == 0, made.stderr
    files = [f"contexts={tmp_path}/world/contexts.jsonl", f"preferences={tmp_path}/world/preferences.json"]
    keys = [f"output_dir={tmp_path}/run", "agents=[oracle,no_learning,cipher_1]", "progress=false"]
    run = run_script("run_prelude", *files, *keys)
    assert run.returncode == 0 and "| cipher_1 " in run.stdout, run.stderr
    found = read_json(tmp_path / "run/summary.json")["agents"]
    assert found["oracle"]["cost"] < found["no_learning"]["cost"]
    words = run_script(
        "run_prelude",
        *files,
        *keys,
        "context_encoder@encoder=words",
        "encoder.dimension=7",
        f"output_dir={tmp_path}/words",
    )
    assert words.returncode == 0, words.stderr
    few = read_json(tmp_path / "words/summary.json")["agents"]  # in seven places most contexts are alike
    assert few["oracle"] == found["oracle"] and few["cipher_1"] != found["cipher_1"]


def test_a_mistake_is_one_line(tmp_path: Path) -> None:
    wrong = run_script("run_prelude", "contexts=none.jsonl", "preferences=none.json", f"output_dir={tmp_path}/run")
    assert wrong.returncode == 2 and wrong.stderr.startswith("error: ") and wrong.stderr.count("\n") == 1


def test_four_phases(tmp_path: Path) -> None:
    made = run_script("make_pahf_world", f"output_dir={tmp_path}/world", "users=1", "scenes=6")
    assert made.returncode == 0, made.stderr
    phases = ",".join(f"{tmp_path}/world/phase{number}.jsonl" for number in (1, 2, 3, 4))
    keys = [f"phases=[{phases}]", "iterations=1", "progress=false", "feedback=[both]"]
    own = [f"output_dir={tmp_path}/run", "user.terse=0.0"]
    run = run_script("run_pahf", *keys, *own, "context_encoder@encoder=words", "llm.noise=0.0")
    assert run.returncode == 0 and "| oracle " in run.stdout, run.stderr
    found = read_json(tmp_path / "run/summary.json")
    assert found["unchanged_in_tests"] and found["settings"]["both"]["phase1"]["frequency"][0] > 0
    needed = [
        "user.llm.remote.url=http://127.0.0.1:9/v1/chat/completions",
        "user.llm.model=m",
        "user.llm.remote.budget_s=1.0",
    ]
    played = run_script("run_pahf", *keys[:4], "advising_user@user=model", *needed, f"output_dir={tmp_path}/played")
    # the user's model, at whose address nobody answers
    assert played.returncode == 2 and "127.0.0.1:9" in played.stderr, played.stderr


def test_a_page_of_a_user(tmp_path: Path) -> None:
    memory = UserMemory(tmp_path / "users.db", durable=False)
    memory.user("7").record("k", "edit", {"context": "Dogs", "draft": "The red dog.", "edited": "The blue dog."})
    memory.close()
    keys = [f"memory={tmp_path}/users.db", f"output={tmp_path}/page.html"]
    page = run_script("show_user_memory", *keys, "user='7'")
    assert page.returncode == 0 and "page.html" in page.stdout, page.stderr
    assert "The blue dog." in (tmp_path / "page.html").read_text()
    wrong = run_script("show_user_memory", *keys, "user=eve")
    assert wrong.returncode == 2 and wrong.stderr.startswith("error: ") and wrong.stderr.count("\n") == 1


def test_events_that_were_not_learnt_from(tmp_path: Path) -> None:
    memory = UserMemory(tmp_path / "users.db", durable=False)
    memory.user("7").record(
        "k", "edit", {"context": "Dogs", "draft": "It is red.", "edited": "It is.", "preference": ""}
    )
    memory.close()
    keys = [f"memory={tmp_path}/users.db", "user='7'"]
    listed = run_script("catch_up", *keys)
    assert listed.returncode == 0 and "1 wait, 0 are set aside" in listed.stdout and "| edit" in listed.stdout
    learnt = run_script("catch_up", *keys, "agent=icl_edit_5", "text_generator@llm=style_writer")
    assert learnt.returncode == 0 and "learnt from 1 events; 0 wait" in learnt.stdout, learnt.stderr
    wrong = run_script("catch_up", *keys, "text_generator@llm=style_writer")
    assert wrong.returncode == 2 and wrong.stderr.startswith("error: agent: ") and wrong.stderr.count("\n") == 1


def test_conversations(tmp_path: Path) -> None:
    keys = ["conversations=1", "documents=[3]", "scenarios=[mixed]", "turns=8"]
    made = run_script("make_bios_world", f"output_dir={tmp_path}/world", *keys)
    assert made.returncode == 0, made.stderr
    words = [
        f"conversations={tmp_path}/world/conversations.jsonl",
        f"output_dir={tmp_path}/run",
        "agents=[full_memory,coreset_recency_exact]",
        "context_encoder@encoder=words",
        "llm.noise=0.0",
        "progress=false",
    ]
    run = run_script("run_coreset", *words)
    assert run.returncode == 0 and "| coreset_recency_exact " in run.stdout, run.stderr
    found = (tmp_path / "run/summary.json").read_bytes()
    again = run_script("run_coreset", *words)
    assert again.returncode == 0 and (tmp_path / "run/summary.json").read_bytes() == found
    other = run_script("run_coreset", *words, "llm.noise=0.5")
    assert other.returncode == 2 and "overwrite=true" in other.stderr
    url = "llm.remote.url=http://127.0.0.1:9/v1/chat/completions"
    endpoint = ["text_generator@llm=endpoint", url, "llm.model=m", "llm.remote.budget_s=1.0"]
    asked = run_script("run_coreset", *words[:1], *words[2:4], *endpoint, f"output_dir={tmp_path}/asked")
    assert asked.returncode == 2 and "127.0.0.1:9" in asked.stderr  # where nobody answers


def test_ambigdocs(tmp_path: Path) -> None:
    documents = [{"title": one, "text": f"{one} is a town.", "pid": "0", "answer": one} for one in ("Ash", "Elm")]
    row = {"qid": 0, "ambiguous_entity": "Town", "question": "Which town?", "documents": documents}
    write_json(tmp_path / "dev.json", [row])
    words = [f"data={tmp_path}/dev.json", f"output={tmp_path}/conversations.jsonl", "questions=1", "scenario=change"]
    made = run_script("make_disambig_docs", *words, "llm.remote.url=http://127.0.0.1:9/", "llm.model=m")
    assert made.returncode == 0 and "1 conversations" in made.stdout, made.stderr


def test_edits_as_feedback(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "edits.jsonl", [{"context": "Dogs", "draft": "The red dog.", "edited": "The blue dog."}])
    run = run_script("edits_to_feedback", f"data={tmp_path}/edits.jsonl", f"output={tmp_path}/feedback.json")
    assert run.returncode == 0 and "1 records, 1 wrong" in run.stdout, run.stderr
    (record,) = read_json(tmp_path / "feedback.json")
    assert record["feedback"]["errors"][0]["error type"] == "wrong"


def chosen(body: dict[str, Any]) -> dict[str, Any]:
    """A scripted agent behind an endpoint, and a user who says what they want."""
    prompt = body["messages"][0]["content"]
    if body["model"] == "user":
        data = fenced_data(prompt)
        said = data["persona"][:20]
    else:
        said = ChoiceScript(noise=0.0, overreach=0.0).generate(prompt).text
    return {"choices": [{"message": {"content": said}, "finish_reason": "stop"}]}


@pytest.mark.slow
def test_the_papers_scenarios_with_models_behind_endpoints(tmp_path: Path) -> None:
    """Files in the form of the paper's, both domains, every phase: agent and user are asked over HTTP."""
    scenarios, people, shop = (tmp_path / name for name in ("embodied/scenarios", "embodied/personas", "shopping"))
    for name in ("original_scenarios_A", "original_scenarios_B", "evolved_scenarios_A", "evolved_scenarios_B"):
        wanted = "iced drink" if name.startswith("original") else "hot drink"
        row = {"index": 1, "task": "Bring me a drink.", "context": "drink", "user": "Mia", "scene": ""}
        row |= {"user_intent_object": wanted, "user_intent_location": "pick-up"}
        row["scene_objects"] = ["hot drink", "iced drink", "mild drink"]
        write_json(scenarios / f"{name}.json", [row, {**row, "index": 2, "user_intent_object": "soup"}])
    for name in ("original", "evolved"):
        wanted = "iced drink" if name == "original" else "hot drink"
        write_text(people / f"{name}_persona.py", f'prompt_Mia = "I want {wanted}."\n')
    oven = {"product": "oven", "User": "Mia", "Task": "Find me a drink.", "gt": None}
    oven |= {"Option A": ["coal"], "Option B": ["wood"], "Option C": ["oil"]}
    for number in (1, 2, 3, 4):
        write_json(shop / f"phase{number}.json", [oven])
    taste = {"heat": {"like_most": "gas", "like_second": [], "dislike": ["coal", "wood", "oil"]}}
    for name in ("persona_info", "updated_persona_info"):
        write_json(shop / f"{name}.json", {"Mia": {"persona_info": {"name": "Mia", "oven": taste}}})
    with FakeService(chosen) as service:
        keys = [
            f"settings.data={tmp_path}",
            "settings.model=agent",
            "settings.user_model=user",
            "settings.iterations=1",
            "settings.budget_s=5.0",
        ]
        keys += [f"settings.url={service.url}", f"settings.user_url={service.url}", f"output_dir={tmp_path}/none_run"]
        for domain in ("embodied", "shopping"):
            own = [f"settings.domain={domain}", f"output_dir={tmp_path}/{domain}"]
            run = run_script("run_experiment", "pipeline=personalization/pahf_scenarios", *keys, *own)
            assert run.returncode == 0, run.stderr
        asked = [fenced_data(body["messages"][0]["content"]) for body in service.requests if body["model"] == "user"]
    assert {data["persona"] for data in asked} >= {"I want iced drink.", "I want hot drink."} and any(
        "coal" in d["persona"] for d in asked
    )
    found = read_json(tmp_path / "embodied/run/summary.json")
    assert found["left_out"]["phase4"] == 1 and found["unchanged_in_tests"]
    assert found["settings"]["both"]["phase1"]["success"] == [1.0] == found["settings"]["both"]["phase2"]["success"]
    assert found["settings"]["pre"]["phase4"]["success"] == [0.0] and found["settings"]["both"]["phase4"][
        "success"
    ] == [1.0]
    bought = read_json(tmp_path / "shopping/run/summary.json")
    assert bought["baselines"]["phase1"] == {"chance": 0.25, "constant": 1.0, "constant_option": 1.0, "oracle": 1.0}
    missing = run_script(
        "run_experiment", "pipeline=personalization/pahf_scenarios", f"settings.data={tmp_path}/none", *keys[1:]
    )
    assert missing.returncode == 2 and missing.stderr.count("\n") == 1 and "none" in missing.stderr, missing.stderr


@pytest.mark.slow
def test_edits_become_rewards_and_rewards_a_policy(tmp_path: Path) -> None:
    """Every step of the experiment, and its table."""
    pytest.importorskip("matplotlib")
    settings = {"writing": 100, "used": 20, "dev": 10, "new": 10}
    settings |= {"writer_steps": 6, "reward_model_steps": 4, "sft_steps": 2, "rl_steps": 2}
    run = run_script(
        "run_experiment",
        "pipeline=personalization/style_training",
        "seeds=[5]",
        "collect=null",
        f"output_dir={tmp_path}/run",
        *(f"settings.{name}={value}" for name, value in settings.items()),
    )
    assert run.returncode == 0, run.stderr
    table = StyleTrainingTable(str(tmp_path / "t.json"), "a command", f"{tmp_path}/run", [5], chosen="Nothing.")
    table.run()
    found, page = read_json(tmp_path / "t.json"), (tmp_path / "t.md").read_text()
    assert [row["system"] for row in found["rows"]] == list(StyleTrainingTable.systems)
    majority = next(row for row in found["rows"] if row["system"] == "majority")
    assert majority["taken"] == 1.0 and 0.5 < majority["style"] < 1.0
    assert len(found["reward_models"]) == 6 and all(0 <= row["f1"] <= 1 for row in found["reward_models"])
    assert {len(curves[0]) for curves in found["curves"].values()} == {2}  # before the first step and after the last
    assert "drafts of 20 contexts" in page and (tmp_path / "t.svg").is_file()


@pytest.mark.slow
@pytest.mark.scripts
def test_edits_teach_as_words_changed_and_as_pairs(tmp_path: Path) -> None:
    """Every step of the experiment and of the writer that it begins with, and its table."""
    pytest.importorskip("matplotlib")
    base = f"{tmp_path}/base"
    small = {"settings.writing": 100, "settings.writer_steps": 6, "output_dir": base}
    settings = {
        "used": 20,
        "dev": 10,
        "new": 10,
        "reward_model_steps": 4,
        "sft_steps": 2,
        "pair_steps": 2,
        "rl_steps": 2,
    }
    keys = {**{f"settings.{name}": value for name, value in settings.items()}, "settings.base": base}
    kept = {
        key: value for key, value in keys.items() if key.rpartition(".")[2] not in ("reward_model_steps", "pair_steps")
    }
    for pipeline, own in (
        ("edit_teachers_writer", small),
        ("edit_teachers", {**keys, "seeds": "[5]", "collect": "null", "output_dir": f"{tmp_path}/run"}),
        ("edit_teachers_longer", {**kept, "seeds": "[5]", "collect": "null", "output_dir": f"{tmp_path}/longer"}),
    ):
        own_keys = [f"{key}={value}" for key, value in own.items()]
        run = run_script("run_experiment", f"pipeline=personalization/{pipeline}", *own_keys)
        assert run.returncode == 0, run.stderr
    table = EditTeachersTable(str(tmp_path / "t.json"), "a command", f"{tmp_path}/run", [5], chosen="Nothing.")
    table.run()
    found = read_json(tmp_path / "t.json")
    assert [row["system"] for row in found["rows"]] == list(EditTeachersTable.systems)
    ranked = {row["reward"]: row for row in found["ranked"]}
    assert ranked["exact"]["over"] == pytest.approx(1.0) and ranked["exact"]["best_of"] <= ranked["mass"]["best_of"]
    assert all(row["logprob/chosen"] < 0 for row in found["pairs"]) and len(found["pairs"]) == 5

    longer = EditTeachersLongerTable(
        str(tmp_path / "l.json"), "a command", f"{tmp_path}/longer", [5], chosen="Nothing."
    )
    found = longer.run()
    assert [row["system"] for row in found["rows"]] == list(EditTeachersLongerTable.systems)
    contexts = EditTeachersContextsTable(
        str(tmp_path / "c.json"), "a command", f"{tmp_path}/longer", [5], chosen="Nothing."
    ).run()
    assert contexts["rows"] == [row for row in found["rows"] if row["system"] in EditTeachersContextsTable.systems]
    rewards = [row["reward/total"] for row in read_jsonl(tmp_path / "longer/seed_5/sft_rloo/metrics.jsonl")]
    assert found["training_cost"][0]["5"] == pytest.approx(-sum(rewards) / 2)
    starts = [
        yaml.safe_load((tmp_path / f"longer/seed_5/rloo_true_{n}/config.yaml").read_text())["policy"]["path"]
        for n in (2, 6)
    ]
    assert [Path(start).name for start in starts] == ["rloo_true", "rloo_true_5"]
