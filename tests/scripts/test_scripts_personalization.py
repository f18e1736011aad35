"""The scripts of learning at use time: a world, a run of agents on it."""

from __future__ import annotations

from pathlib import Path

import pytest
from script_runs import run_script

from finegrained_rlhf.core.files import read_json, write_jsonl
from finegrained_rlhf.personalization import UserMemory

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


def test_edits_as_feedback(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "edits.jsonl", [{"context": "Dogs", "draft": "The red dog.", "edited": "The blue dog."}])
    run = run_script("edits_to_feedback", f"data={tmp_path}/edits.jsonl", f"output={tmp_path}/feedback.json")
    assert run.returncode == 0 and "1 records, 1 wrong" in run.stdout, run.stderr
    (record,) = read_json(tmp_path / "feedback.json")
    assert record["feedback"]["errors"][0]["error type"] == "wrong"
