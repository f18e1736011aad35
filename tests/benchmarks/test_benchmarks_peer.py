"""Another trainer beside ours: the command line, the process that answers, what is asked of it and what is reported."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks import peer_process, ppo_step
from benchmarks.peer import Peer, compare, peer_table
from benchmarks.peer_ours import WordRewards, token_rewards
from benchmarks.peer_process import PeerProcess
from benchmarks.profiles import PHASES, choose_profile
from benchmarks.workload import FIRST_WORD, build_tokenizer
from finegrained_rlhf.core.errors import ConfigError, ConsistencyError

TINY = replace(choose_profile({"family": "llama", "profile": "tiny"}), rounds=1)
FAKE = """
import json, shutil, sys
from pathlib import Path

def say(**answer):
    print(json.dumps(answer), flush=True)

directory = Path(sys.argv[1])
shutil.copy(directory / "task.json", Path(__file__).with_name("seen.json"))
task = json.loads((directory / "task.json").read_text())
say(versions={"trl": "0.1"})
for line in sys.stdin:
    if json.loads(line) == {"do": "check"}:
        shutil.copy(directory / "model/model.safetensors", task["check"]["weights"])
        say(losses=[0.5, 0.25], gradient_norms=[1.0, 2.0])
    elif json.loads(line) == {"do": "step"}:
        seconds = {"rollout": 1.0, "scoring": 2.0, "rewards": 0.5, "update": 4.5, "total": 8.0, "processor": 9.0}
        say(seconds=seconds, lengths=LENGTHS)
"""


def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str) -> Path:
    """A program that stands for the peer's."""
    script = tmp_path / "fake.py"
    script.write_text(program, encoding="utf-8")
    monkeypatch.setitem(peer_process.SCRIPTS, "trl", script)
    return script


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["family=llama", "peer=verl"], "peer: expected trl, got 'verl'"),
        (["profile=tiny", "peer=trl"], "decoder-only models alone: expected family=gpt2, llama, qwen3, got t5"),
        (["family=t5gemma", "peer=trl"], "decoder-only models alone"),
        (["family=llama", "peer_python=python3"], "peer_python .* needs peer=trl"),
        (["family=llama", "peer_head=responses"], "peer_head .* needs peer=trl"),
        (["family=llama", "peer=trl", "peer_head=all"], "peer_head: expected installed or responses, got 'all'"),
        (["family=llama", "profile=tiny", "samples=1", "peer=trl"], "samples: .* at least 2, got 1"),
        (["family=llama", "profile=tiny", "prompts=3", "micro_batch_prompts=2", "peer=trl"], "must divide prompts=3"),
    ],
)
def test_a_wrong_peer_is_one_clear_error(arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ppo_step.main(arguments)


def test_a_response_is_worth_what_its_tokens_are() -> None:
    tokenizer, values = build_tokenizer(512), token_rewards(512)
    ids = list(range(FIRST_WORD, 512, 7))
    text = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    scores = WordRewards(512).score([], [text, ""])
    assert scores.values == [tuple(values[i] for i in ids), ()]
    assert [text[a:b] for a, b in scores.spans[0]] == text.split()
    assert not any(values[:FIRST_WORD]) and len(set(values)) == 13 and max(map(abs, values)) == 1


def test_both_sides_by_turns_and_what_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(tmp_path, monkeypatch, FAKE.replace("LENGTHS", "[task['new_tokens']] * 6"))
    lines: list[str] = []
    report = compare(Peer("trl"), TINY, tmp_path / "models", lines.append)
    equal = report.pop("equal")
    assert set(report) == set(
        "name versions episodes_per_s ratio processor phases rounds loss gradient_norm settings".split()
    ) and json.loads(json.dumps(report))
    # The peer's 6 episodes took 8 seconds; ours what the only counted round took.
    assert report["versions"] == {"trl": "0.1"} and set(report["phases"]) == set(PHASES)
    ours = report["rounds"]["ours"][0]["total"]
    assert len(report["rounds"]["ours"]) == len(report["rounds"]["peer"]) == 1
    assert report["episodes_per_s"] == {"ours": pytest.approx(6 / ours), "peer": 0.75}
    assert report["ratio"] == pytest.approx(8 / ours) and report["phases"]["update"]["peer_s"] == 4.5
    assert sum(report["rounds"]["ours"][0][phase] for phase in PHASES[:4]) < ours
    assert report["processor"]["peer_s"] == 9 and 0 < report["processor"]["ours_s"]
    # It gave losses of its own, and weights that had not moved.
    assert report["loss"]["peer"] == [0.5, 0.25]
    assert equal["peer_first_loss"]["value"] == pytest.approx(abs(report["loss"]["ours"][0] - 0.5))
    assert equal["peer_second_loss"]["value"] == pytest.approx(abs(report["loss"]["ours"][1] - 0.25))
    assert equal["peer_relative_update"]["value"] == pytest.approx(1.0)
    assert [line["ok"] for line in equal.values()] == [False] * 4
    assert "| total " in peer_table(report) and "trl 0.75" in peer_table(report)
    assert "round 1" in lines[-1]
    check_what_was_asked(json.loads((tmp_path / "seen.json").read_text(encoding="utf-8")))


def check_what_was_asked(task: dict[str, Any]) -> None:
    """Of the peer: the responses of the check, and prompts in the order in which ours takes them."""
    check, timing = task["check"], task["timing"]
    assert (check["steps"], timing["steps"], check["lengths"], timing["lengths"]) == (2, 2, "spread", "fixed")
    rows = [row for step in check["responses"] for row in step]
    assert len(rows) == 2 * TINY.equal_prompts * TINY.equal_samples
    assert len({len(row["ids"]) for row in rows}) > 1 and all(1 <= len(row["ids"]) <= TINY.new_tokens for row in rows)
    asked = [prompt for prompt in check["data"] for _ in range(TINY.equal_samples)]
    assert [(row["text"], row["prompt_ids"]) for row in rows] == [(prompt["text"], prompt["ids"]) for prompt in asked]
    assert len({prompt["text"] for prompt in timing["data"]}) == 2 * TINY.prompts
    assert (timing["micro_batch"], timing["adam"]["lr"]) == (TINY.micro_batch_prompts * TINY.samples, 1e-5)
    assert len(task["rewards"]) == TINY.vocabulary


def test_the_result_file_holds_the_comparison_and_its_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    checks = {"peer_first_loss": {"value": 1.0, "tolerance": 1e-4, "ok": False}}
    monkeypatch.setattr(ppo_step, "measure_rates", lambda *a, **k: SimpleNamespace(copy=1.0, matmul=1.0))
    monkeypatch.setattr(ppo_step, "check_equality", lambda *a: {})
    monkeypatch.setattr(ppo_step, "Workload", lambda *a: None)
    monkeypatch.setattr(ppo_step, "run_rounds", lambda *a: {"lengths": "fixed"})
    monkeypatch.setattr(ppo_step, "compare", lambda *a: asked.append(a) or {"name": "trl", "equal": checks})
    document = ppo_step.benchmark(TINY, lambda line: None, peer=Peer("trl", "python", "responses"))
    assert asked[0][:2] == (Peer("trl", "python", "responses"), TINY)
    assert document["peer"] == {"name": "trl"} and document["equal"] == checks  # which the exit status follows
    assert ppo_step.benchmark(TINY, lambda line: None)["peer"] is None and len(asked) == 1


def test_a_response_of_the_peer_that_is_too_short_stops_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(tmp_path, monkeypatch, FAKE.replace("LENGTHS", "[3]"))
    with pytest.raises(ConsistencyError, match="has not 12 tokens"):
        compare(Peer("trl"), TINY, tmp_path / "models", lambda line: None)


@pytest.mark.parametrize(
    ("program", "error", "message"),
    [
        ('print(\'{"missing": "No module named trl"}\')', ConfigError, "cannot import it .No module named trl"),
        ('print(\'{"error": "ValueError: no"}\')', ConsistencyError, "peer=trl failed: ValueError: no"),
        ("import sys; print('first\\nboom', file=sys.stderr); sys.exit(3)", ConsistencyError, "status 3: boom"),
        ("", ConsistencyError, "status 0: it printed nothing"),
    ],
)
def test_a_peer_that_fails_is_one_clear_error(
    program: str, error: type[Exception], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(tmp_path, monkeypatch, program)
    with PeerProcess("trl", sys.executable, tmp_path) as peer, pytest.raises(error, match=message):
        peer.ask("check")


def test_a_python_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="peer_python=.*nowhere: cannot be started"):
        PeerProcess("trl", str(tmp_path / "nowhere"), tmp_path)


@pytest.mark.slow
@pytest.mark.scripts
@pytest.mark.skipif(
    "TRL_PYTHON" not in os.environ and importlib.util.find_spec("trl") is None,
    reason="TRL is no dependency: `make test-trl` names a Python that has it",
)
@pytest.mark.parametrize("head", ["installed", "responses"])
def test_trl_learns_what_ours_does(head: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "peer.json"
    short = ["profile=tiny", "rounds=1", "lengths=fixed", f"out={out}"]
    python = os.environ.get("TRL_PYTHON", sys.executable)
    ppo_step.main(["family=llama", *short, "peer=trl", f"peer_head={head}", f"peer_python={python}"])
    document = json.loads(out.read_text(encoding="utf-8"))
    assert len(document["equal"]) == 9 and all(found["ok"] for found in document["equal"].values())
    peer = document["peer"]
    assert abs(peer["loss"]["peer"][0]) > 1e-3 < abs(peer["loss"]["peer"][1])
    assert all(seconds > 0 for seconds in peer["rounds"]["peer"][0].values())
    assert peer["ratio"] > 0 and "GRPO, ours beside trl" in capsys.readouterr().out
