"""The shortest run of the pretrained rewriter on CANARD, with tiny models in the places of SmolLM2 and MiniLM."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from script_runs import rows, run_script

from finegrained_lab.published.questions.canard import canard_part
from finegrained_rlhf.core.files import read_json

NAMES = ("Ada", "Bob", "Cleo", "Dan")


def dialogues(count: int) -> list[dict[str, object]]:
    """Records in CANARD's form: three questions a dialogue, the later ones with a pronoun."""
    records: list[dict[str, object]] = []
    for number in range(count):
        name = NAMES[number % len(NAMES)]
        asked = ["What happened?", "Where did she live?", "When did she leave?"]
        rewritten = [f"What happened to {name} {number}?", f"Where did {name} live?", f"When did {name} leave?"]
        answers = [f"{name} built mill {number}.", f"In house {number}.", "Later."]
        history = [f"{name} {number}", "Life"]
        for turn, question in enumerate(asked):
            records.append(
                {
                    "History": list(history),
                    "QuAC_dialog_id": f"C_{number}",
                    "Question": question,
                    "Question_no": turn + 1,
                    "Rewrite": rewritten[turn],
                }
            )
            history += [question, answers[turn]]
    return records


@pytest.mark.scripts
def test_every_step_with_tiny_models(tmp_path: Path) -> None:
    """All rows come out, RL is rewarded by ranks in a search and held by KL, and the page shows rewrites."""
    (tmp_path / "canard.json").write_text(json.dumps(dialogues(40)))
    assert {canard_part(f"C_{number}") for number in range(40)} == {"train", "dev", "test"}
    made = run_script(
        "make_tiny_models", f"data={tmp_path}/canard.json", f"output_dir={tmp_path}/tiny", "vocab_size=300",
        "llama.max_length=512",
    )  # fmt: skip
    assert made.returncode == 0, made.stderr[-3000:]
    (tmp_path / "models").mkdir()
    for theirs, name in (("llama", "smollm2"), ("bert", "minilm")):
        (tmp_path / "tiny" / theirs).rename(tmp_path / "models" / name)
    small = {"dev": 4, "tune_steps": 2, "tune_batch": 4, "rl_steps": 2, "rl_batch": 4, "samples": 2, "every": 1}
    done = run_script(
        "run_experiment", "pipeline=canard/smollm2", "budget=cpu", f"output_dir={tmp_path}/run",
        f"settings.data={tmp_path}/canard.json", f"settings.models={tmp_path}/models", "settings.best_of=2",
        "settings.max_new_tokens=8", f"collect.output={tmp_path}/results.json", "collect.samples.count=2",
        *(f"settings.budgets.cpu.{key}={value}" for key, value in small.items()),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    result = read_json(tmp_path / "results.json")
    for evaluation in result["evaluations"].values():
        names = ["asked", "question", "context", "published", "rewrite", "tuned", "mix", "rl", "best_of"]
        assert list(evaluation["systems"]) == names
    kinds = [evaluation["retriever"]["kind"] for evaluation in result["evaluations"].values()]
    assert kinds == ["bm25", "dense"] and len(result["samples"]) == 2
    steps = {run: rows(tmp_path / "run" / run / "metrics.jsonl") for run in ("tuned", "rl", "mix")}
    assert "kl" not in steps["tuned"][0] and {"kl", "loss/kl"} <= steps["rl"][0].keys()
    assert "loss/ce" in steps["mix"][0] and "loss/ce" not in steps["rl"][0]
    assert "SmolLM2, fine-tuned" in (tmp_path / "results.md").read_text()
