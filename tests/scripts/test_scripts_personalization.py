"""The scripts of learning at use time: a world, a run of agents on it."""

from __future__ import annotations

from pathlib import Path

import pytest
from script_runs import run_script

from finegrained_rlhf.core.files import read_json, write_json, write_jsonl

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
