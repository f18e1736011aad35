"""The loop of marks: what simulated people say of answers on the page "Ask" trains a reward model that knows new ones.

They ask about generated folders, whose facts are known: up where every sentence holds the fact, down where none does, a
mark of the sentence that does not where some do, and in place of every third of these the fact itself, as an edit.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from script_runs import run_script
from served import client_of

from finegrained_lab.experiments.asking.folders import holds
from finegrained_lab.worlds.folders.make import make_folder
from finegrained_lab.worlds.folders.places import PLACES
from finegrained_rlhf.core.files import read_json
from finegrained_rlhf.feedback.reading import read_feedback
from finegrained_rlhf.inscit import Ask, AskSettings
from finegrained_rlhf.inscit.asking.job import open_assistant
from finegrained_rlhf.web.ask.routes import FEEDBACK

pytestmark = [pytest.mark.scripts]
STYLE = "travel"


def said_of(directory: Path, seed: int, files: int) -> Counter[str]:
    """Make a folder of documents, ask about every file of it on the page, and say what is true of the answers."""
    docs, served = directory / f"docs_{seed}", directory / f"served_{seed}"
    questions = make_folder(docs, seed, STYLE, PLACES[STYLE], files, answerable=files, not_answerable=0)
    open_assistant(Ask(docs=str(docs), index=str(served / "docs"), encoder="none", model="none"))
    client = client_of(served, answering=AskSettings(encoder="none", threshold=0.1))
    counts = Counter[str]()
    for asked in questions:
        given = client.post("/ask/answers", json={"index": "docs", "question": asked.text}).json()
        if given["type"] != "answer":
            continue
        right = [holds(asked.fact, one["text"]) for one in given["sentences"]]
        verdict = "up" if all(right) else "mark" if any(right) else "down"
        say = {"session": given["session"], "turn": given["turn"], "verdict": verdict}
        if verdict != "up" and counts[verdict] % 3 == 2:
            say |= {"verdict": "edit", "text": asked.fact}
            counts["edit"] += 1
        elif verdict == "mark":
            place = sum(len(one["text"]) + 1 for one in given["sentences"][: right.index(False)])
            say |= {"start": place, "end": place + len(given["sentences"][right.index(False)]["text"])}
        kept = client.post("/ask/feedback", json=say)
        assert kept.status_code == 200 and (kept.json()["marks"] > 0) == (not all(right))
        counts[verdict] += 1
    return counts


def test_marks_of_answers_train_a_reward_model(tmp_path: Path) -> None:
    counts = {seed: said_of(tmp_path, seed, files) for seed, files in ((1, 200), (2, 100))}
    records = read_feedback(tmp_path / "served_1" / FEEDBACK)
    assert counts[1]["edit"] and sum(bool(one.feedback.corrected_prediction) for one in records) == counts[1]["edit"]

    def run(script: str, *arguments: str) -> None:
        done = run_script(script, *arguments, cwd=tmp_path)
        assert done.returncode == 0, done.stderr

    train, new = (f"served_{seed}/{FEEDBACK}" for seed in (1, 2))
    run("make_tiny_models", f"data=[{train},{new}]", "output_dir=models")
    run(
        "train_reward_model",
        "reward_model=relevance",
        f"data={train}",
        "model=models/longformer",
        "output_dir=relevance",
        "reward_model.epochs=null",
        "reward_model.steps=300",
        "reward_model.optimizer.lr=2e-3",
        "reward_model.batches.batch_size=16",
        "reward_model.max_length=64",
        "held_out=0.2",
        "validate_every=50",
        "processes.precision=fp32",
    )
    run("evaluate_reward_model", "path=relevance", f"data={new}", "output=new.json")
    measured = read_json(tmp_path / "new.json")
    wrong = measured["confusion"]["found"] + measured["confusion"]["missed"]
    majority = max(wrong, measured["items"] - wrong) / measured["items"]
    print(
        f"{measured['items']} sentences of new answers: {measured['accuracy']:.2f}, the majority class {majority:.2f}"
    )
    assert measured["items"] >= 80 and majority < 0.7
    assert measured["accuracy"] >= majority + 0.1
