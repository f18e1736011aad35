"""The query rewriter's benchmark: its questions, its declared rewards, and a tiny run."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks import conqrr
from benchmarks.conqrr import ALPHAS, PHASES, PROFILES, make_questions
from finegrained_rlhf.core.errors import ConfigError

TINY = replace(PROFILES["tiny"], rounds=1)


def test_every_question_has_its_own_pair_of_passages() -> None:
    questions, labels, passages = make_questions(TINY)
    assert len(questions) == len(labels) == TINY.questions and len(passages) == 2 * TINY.questions
    assert {p for label in labels for p in (label.positive, label.negative)} == {p["id"] for p in passages}


def test_a_tiny_run_times_every_phase(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    conqrr.main(["profile=tiny", "rounds=1", f"out={tmp_path}/found.json", "rewarded=100"])
    found = json.loads((tmp_path / "found.json").read_text())
    assert set(found["runs"]) == set(ALPHAS)
    for name, run in found["runs"].items():
        timed = set(PHASES) if name != "T5QR" else {"update", "total"}
        for clock in ("seconds", "processor_seconds"):
            times = run[clock]
            assert set(times) == timed and min(times.values()) > 0
            assert sum(times[phase] for phase in timed - {"total"}) <= times["total"] * 1.001
        assert run["rewarded_samples"] == (1.0 if name != "T5QR" else 0.0)
        assert run["input_tokens"] == TINY.prompt_tokens
    assert "| CONQRR (RL)" in capsys.readouterr().out


def test_bad_arguments_are_refused() -> None:
    for bad, what in (("rewarded=101", "rewarded"), ("questions=0", "questions"), ("policy=big", "policy")):
        with pytest.raises(ConfigError, match=what):
            conqrr.main(["profile=tiny", bad])
