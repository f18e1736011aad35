"""Whole jobs in processes of their own: conversations on two, a class named on the command line, a kill -9."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from chat_toy import save_chat_model, talk
from ppo_job_toy import job
from rl_toy import policy
from safetensors.torch import load_file
from script_runs import lines_in, rows, run_again_after_a_kill, run_in_two_processes, run_script

from finegrained_rlhf.core.files import read_jsonl, write_jsonl
from finegrained_rlhf.models.config import PolicyConfig
from finegrained_rlhf.models.weights.saving import save_policy

TOY = str(Path(__file__).parents[2] / "helpers/ppo_job_toy.py")


@pytest.fixture
def conversations(tmp_path: Path) -> dict[str, str]:
    """A chat model whose turns end, and prompts with replies; the fourth has none."""
    model = save_chat_model(tmp_path / "model")
    opened = PolicyConfig(str(model)).load("cpu")
    with torch.no_grad():
        weight = opened.model.get_input_embeddings().weight
        end = opened.tokenizer.convert_tokens_to_ids("<|im_end|>")
        weight[end] = weight.mean(dim=0) + 0.6 * opened.model.transformer.ln_f.weight.sign() * weight.std() * 4
    opened.model.save_pretrained(model)
    asked = [
        f"{word} " + "one dog ran far away who saw it red blue green" * 2 for word in ("who", "cat", "red", "blue")
    ]
    replies = [["red blue", "the dog ran"]] * 3 + [[]]
    write_jsonl(
        tmp_path / "data.jsonl",
        [{"id": text, "messages": talk(text), "replies": texts} for text, texts in zip(asked, replies, strict=True)],
    )
    return {"model": str(model), "data": str(tmp_path / "data.jsonl")}


def test_two_processes_hold_the_conversations_of_one(conversations: dict[str, str], tmp_path: Path) -> None:
    """Three prompts of a step on two processes: one has more turns to draw than the other."""
    alone = job(**conversations, output=str(tmp_path / "one"), steps=2, turns=True)
    alone.run()
    words = json.dumps({**conversations, "output": str(tmp_path / "two"), "steps": 2, "turns": True})
    done = run_in_two_processes(TOY, words)
    assert done.returncode == 0, done.stderr
    one, two = (rows(tmp_path / name / "metrics.jsonl") for name in ("one", "two"))
    assert [row["turns"] for row in one] == pytest.approx([row["turns"] for row in two])
    assert max(row["turns"] for row in one) > 1.5
    for own, other in zip(one, two, strict=True):
        assert other == pytest.approx({**own, "processes": 2}, abs=2e-4, rel=1e-4)
    for name in ("step_1", "step_2"):
        drawn = [
            {row["id"]: row for row in read_jsonl(tmp_path / run / f"samples/{name}.jsonl")} for run in ("one", "two")
        ]
        assert drawn[0].keys() == drawn[1].keys()
        assert all(drawn[0][key]["response"] == drawn[1][key]["response"] for key in drawn[0])
    ours, other = (load_file(tmp_path / name / "policy/model.safetensors") for name in ("one", "two"))
    for name, weight in ours.items():
        torch.testing.assert_close(weight, other[name], atol=5e-5, rtol=0)


@pytest.mark.slow
def test_who_replies_is_named_on_the_command_line(conversations: dict[str, str], tmp_path: Path) -> None:
    """A class of one's own; the doctor scores every turn of the conversations that it holds."""
    (tmp_path / "conf/reward").mkdir(parents=True)
    (tmp_path / "conf/reward/words.yaml").write_text(
        "_target_: finegrained_rlhf.rewards.RewardConfig\n"
        "components: {words: {_target_: ppo_job_toy.Words}}\nweights: {words: 1.0}\n"
    )
    keys = (
        "--config-dir", str(tmp_path / "conf"), "reward=words", "algorithm=rloo", "algorithm.credit=returns",
        "value=none", f"policy.path={conversations['model']}", f"data={conversations['data']}", "validation_data=null",
        "+environment={_target_: ppo_job_toy.Echo}", "rollout.prompts_per_step=3", "rollout.samples_per_prompt=4",
        "rollout.max_new_tokens=40", "max_prompt_tokens=64", "total_steps=1", "optimizer.warmup_steps=0",
        "processes.precision=fp32", f"output_dir={tmp_path / 'run'}",
    )  # fmt: skip
    own = Path(TOY).parent  # whose modules a command finds
    doctor = run_script("doctor", *keys, "doctor.two_processes=false", cwd=own)
    assert doctor.returncode == 0, doctor.stdout + doctor.stderr
    scored = re.search(r"words: (\d+) responses", doctor.stdout)
    turns = re.search(r"in (\d\.\d) turns", doctor.stdout)
    assert scored is not None and turns is not None, doctor.stdout
    assert int(scored.group(1)) == pytest.approx(12 * float(turns.group(1)), abs=0.7) and int(scored.group(1)) > 12
    done = run_script("train_ppo", *keys, cwd=own)
    assert done.returncode == 0, done.stderr
    assert rows(tmp_path / "run/metrics.jsonl")[0]["turns"] > 1
    assert "ppo_job_toy.Echo" in (tmp_path / "run/config.yaml").read_text()
    gone = run_script(
        "train_ppo", *keys, "environment._target_=ppo_job_toy.Gone", f"output_dir={tmp_path / 'no'}", cwd=own
    )
    assert gone.returncode != 0 and len(gone.stderr.strip().splitlines()) == 1 and "ppo_job_toy.Gone" in gone.stderr
    assert not (tmp_path / "no").exists()


@pytest.mark.slow
def test_a_run_ahead_that_is_killed_goes_on_as_if_it_had_not_been(tmp_path: Path) -> None:
    """Killed between two checkpoints; what waits was drawn by older weights, from tokens that top-k left of theirs."""
    save_policy(policy("t5"), tmp_path / "model")
    write_jsonl(tmp_path / "data.jsonl", [{"id": str(n), "text": "red blue green"[: 3 + n]} for n in range(5)])
    keys = {"model": str(tmp_path / "model"), "data": str(tmp_path / "data.jsonl"), "steps": 8}
    keys |= {"ahead": 1, "importance_cap": 5.0, "top_k": 4}
    job(**keys, output=str(tmp_path / "whole")).run()
    words = json.dumps({**keys, "output": str(tmp_path / "killed")})
    run_again_after_a_kill(TOY, words, when=lambda: lines_in(tmp_path / "killed/metrics.jsonl") > 2)
    assert rows(tmp_path / "killed/metrics.jsonl") == rows(tmp_path / "whole/metrics.jsonl")
    whole, killed = (load_file(tmp_path / name / "policy/model.safetensors") for name in ("whole", "killed"))
    assert all(torch.equal(whole[name], killed[name]) for name in whole)
