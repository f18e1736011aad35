"""The command for a GPU, on a CPU: everything runs, goes on where it stopped, and notices what is wrong."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from families_toy import TINY

from benchmarks.gpu import equality, steps
from benchmarks.gpu import items as gpu_items
from benchmarks.gpu.__main__ import chosen_items, main
from benchmarks.gpu.attention import SITUATIONS, chosen, masked_gradient, plans
from benchmarks.gpu.equality import compare_family, compare_rewards
from benchmarks.gpu.families import FUSED, SETTINGS
from benchmarks.gpu.items import Item, Ledger, Result, Setting, passed, run_items
from benchmarks.gpu.page import page
from benchmarks.gpu.steps import qwen3_profile, smollm2_profile, t5_profile, targets_of
from benchmarks.machine import cudnn_attention
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.models.families.causal import CAUSAL_FAMILIES
from finegrained_rlhf.models.families.seq2seq import SEQ2SEQ_FAMILIES
from finegrained_rlhf.models.policy import Policy

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
MACHINE = {"gpu": "NVIDIA H100", "cpu": "x", "torch": "2"}


def small(tmp_path: Path) -> Setting:
    return Setting(CPU, True, tmp_path, lambda line: None)


def good(check: float = 0.0) -> Result:
    return {"equal": {"x": {"value": check, "tolerance": 1.0, "ok": check <= 1.0}}}


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


# What is measured, and what was ------------------------------------------------------------------------------------


def test_items_end_with_the_budget_and_go_on_where_they_stopped(tmp_path: Path) -> None:
    clock, done = Clock(), []

    def item(name: str, result: Result) -> Item:
        def measure(setting: Setting) -> Result:
            clock.now += 5
            done.append(name)
            if "error" in result:
                raise RuntimeError(result["error"])
            return result

        return Item("part", name, measure)

    items = [item("a", good()), item("b", {"error": "broke"}), item("c", good(2.0)), item("d", {"number": 1})]
    ledger = Ledger(tmp_path, {"machine": "this"})

    def start(budget: float, which: Ledger = ledger) -> list[str]:
        left = run_items(items, which, lambda _: small(tmp_path / "scratch"), budget, lambda _: None, clock)
        return [one.name for one in left]

    assert start(9) == ["c", "d"] and done == ["a", "b"]
    assert start(1) == ["d"] and start(1) == [] and start(1) == []
    assert done == ["a", "b", "c", "d"]
    results = [ledger.read(one) for one in items]
    assert [passed(result) for result in results if result is not None] == [True, False, False, True]
    assert results[1] is not None and results[1]["error"] == "RuntimeError: broke" and results[0]["seconds"] == 5
    assert start(100, Ledger(tmp_path, {"machine": "another"})) == [] and done[4:] == ["a", "b", "c", "d"]


def test_what_is_no_number_is_kept_and_what_ended_the_process_is_not_begun_again(tmp_path: Path) -> None:
    ledger, asked = Ledger(tmp_path, {}), []

    def ends(setting: Setting) -> Result:
        asked.append(1)
        raise SystemExit(1)

    odd = {"rows": [{"number": math.nan}], "equal": {"x": {"value": math.inf, "tolerance": 1.0, "ok": False}}}
    items = [Item("p", "a", lambda setting: odd), Item("p", "b", ends), Item("p", "c", lambda setting: good())]
    with pytest.raises(SystemExit):
        run_items(items, ledger, lambda _: small(tmp_path / "scratch"), 9, lambda _: None)
    assert run_items(items, ledger, lambda _: small(tmp_path / "scratch"), 9, lambda _: None) == [] and len(asked) == 1
    kept = [ledger.read(item) or {} for item in items]
    assert kept[0]["rows"] == [{"number": "nan"}] and kept[0]["equal"]["x"]["value"] == "inf"
    assert [passed(result) for result in kept] == [False, False, True]
    assert kept[1]["error"] == "the process ended while this was measured"
    assert "| x " in page(MACHINE, list(zip(items, kept, strict=True)))


def test_nothing_runs_on_a_device_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(setting: Setting) -> Result:
        raise RuntimeError("an illegal memory access was encountered")

    def lost(device: torch.device) -> None:
        raise RuntimeError("CUDA error")

    monkeypatch.setattr(gpu_items, "wait", lost)
    items = [Item("p", "a", broken), Item("p", "b", lambda setting: good())]
    ledger, said = Ledger(tmp_path, {}), []
    assert run_items(items, ledger, lambda _: small(tmp_path / "scratch"), 9, said.append) == [items[1]]
    assert "start the command again" in said[-1]
    assert run_items(items, ledger, lambda _: small(tmp_path / "scratch"), 9, said.append) == []
    assert not passed(ledger.read(items[0]) or {}) and passed(ledger.read(items[1]) or {"error": ""})


def test_the_page_shows_what_failed_and_what_was_not_measured() -> None:
    items = [Item("equality", name, lambda setting: {}) for name in "abc"]
    results: list[tuple[Item, Result | None]] = [
        (items[0], {**good(), "seconds": 1.0, "bf16": {"mean": 0.125}}),
        (items[1], {"error": "RuntimeError: broke", "seconds": 2.0}),
        (items[2], None),
    ]
    text = page(MACHINE, results)
    assert text.startswith("# NVIDIA H100\n") and "| equality | 2 of 3   | 1 of 2 | 3" in text
    assert "Failed: RuntimeError: broke" in text and "bf16: mean 0.125" in text and "### c" not in text


# Each part ---------------------------------------------------------------------------------------------------------


def test_every_family_is_measured() -> None:
    assert set(SETTINGS) == set(CAUSAL_FAMILIES) | set(SEQ2SEQ_FAMILIES)
    names = [item.name for item in chosen_items("equality")]
    assert names == [*SETTINGS, "rewards_longformer", "rewards_llama"]


@pytest.mark.parametrize("family", sorted(SETTINGS))
def test_the_tables_size_sets_the_width_of_heads(family: str) -> None:
    """32 for fused kernels, 8 or a quarter of the width in tests."""
    widths = [head_width(SETTINGS[family](size)) for size in (FUSED, TINY)]
    assert widths[0] == 32 and widths[1] in (4, 8)


def head_width(settings: dict[str, Any]) -> int:
    names = ("head_dim", "d_kv")
    given = [settings[name] for name in names if name in settings]
    width = next(settings[name] for name in ("hidden_size", "d_model", "n_embd") if name in settings)
    heads = ("num_attention_heads", "num_heads", "n_head", "decoder_attention_heads")
    return given[0] if given else width // next(settings[name] for name in heads if name in settings)


SOME = ("t5", "gemma2")


@pytest.mark.parametrize(
    "family", [pytest.param(f, marks=[] if f in SOME else pytest.mark.slow) for f in sorted(SETTINGS)]
)
def test_a_cpu_equals_itself(family: str) -> None:
    found = compare_family(family, CPU)
    assert passed(found), found["equal"]
    assert found["equal"]["bf16_mean_logprob"]["value"] > 0 < found["equal"]["bf16_gradient"]["value"]
    assert "recorded" not in found["equal"]


def test_another_result_on_the_device_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Policy] = []
    open_policy = equality.open_policy

    def second_differs(model: Any) -> Policy:
        made.append(open_policy(model))
        if len(made) == 2:
            with torch.no_grad():
                made[1].model.decoder.block[0].layer[0].SelfAttention.q.weight[0] += 0.05
        return made[-1]

    monkeypatch.setattr(equality, "open_policy", second_differs)
    found = compare_family("t5", CPU)["equal"]
    assert not found["logprobs"]["ok"] and not found["gradient"]["ok"] and found["unshared"]["ok"]


@pytest.mark.parametrize("backbone", ["longformer", "llama"])
def test_reward_models_equal_themselves(backbone: str, tmp_path: Path) -> None:
    found = compare_rewards(backbone, CPU, tmp_path)
    kinds = {"relevance", "factuality", "completeness"}
    assert passed(found) and set(found["equal"]) == kinds | {f"bf16_{kind}" for kind in kinds}
    assert all(found["equal"][f"bf16_{kind}"]["value"] > 0 for kind in kinds)


def test_attention_on_a_cpu(tmp_path: Path) -> None:
    for situation in SITUATIONS:
        assert chosen(situation, CPU, torch.bfloat16) in ("math", "flash")
    before = torch.backends.cuda.cudnn_sdp_enabled()
    with cudnn_attention(not before):
        assert torch.backends.cuda.cudnn_sdp_enabled() != before
    assert torch.backends.cuda.cudnn_sdp_enabled() == before
    assert masked_gradient(small(tmp_path))["not_finite"] == {"cudnn_off": 0, "cudnn_on": 0}
    found = plans(small(tmp_path))
    assert all(of["shapes"] == 8 and of["seconds"] >= 0 for of in found.values())


def test_shapes_and_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    full = Setting(CPU, False, Path(), lambda line: None)
    assert t5_profile(full).policy.layers == 24 and t5_profile(full).prompts * t5_profile(full).samples == 32
    assert smollm2_profile(full).policy.layers == 30 and smollm2_profile(full).vocabulary == 49152
    assert qwen3_profile(full).policy.layers == 12 and "12 of its 28" in qwen3_profile(full).note
    monkeypatch.setattr(steps, "_memory", lambda device: 140 * 2**30)
    assert qwen3_profile(full).policy.layers == 28
    phases = {
        "total": {"plain_s": 8.0, "ours_s": 1.0},
        "rollout": {"ours_s": 0.3, "limit_s": 0.1},
        "update": {"ours_s": 0.5, "limit_s": 0.2},
    }
    found = targets_of({"machine": {"gpu": "NVIDIA H100 80GB HBM3"}, "phases": phases})
    assert set(found) == {
        "seconds on H100", "plain over ours, inverse", "rollout over its limit", "update over its limit"
    }  # fmt: skip
    assert all(check["ok"] for check in found.values())
    slow = {**phases, "total": {"plain_s": 7.9, "ours_s": 1.0}, "update": {"ours_s": 0.51, "limit_s": 0.2}}
    missed = targets_of({"machine": {"gpu": "NVIDIA H200"}, "phases": slow})
    assert [name for name, check in missed.items() if not check["ok"]] == [
        "plain over ours, inverse", "update over its limit"
    ]  # fmt: skip


# The command -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "out=… is missing"),
        (
            ["out=x", "part=nothing"],
            "part: expected some of equality, attention, memory, update, resume",
        ),
        (["out=x", "budget_s=-1"], "budget_s: expected a number of seconds above 0"),
        (["out=x", "budget_s=soon", "device=cpu"], "budget_s"),
        (["out=x", "device=tpu"], "device: expected cuda or cpu"),
        (["out=x", "device=cpu", "small=maybe"], "small: expected true or false"),
    ],
)
def test_a_wrong_word_is_one_line(words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    with pytest.raises(ConfigError, match=said.replace("…", ".")):
        main(words, lambda line: None)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("part", ["attention", "memory,update,resume,training", "steps"])
def test_all_parts_run_and_go_on(part: str, tmp_path: Path) -> None:
    def start(*more: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-m", "benchmarks.gpu", f"out={tmp_path}", "device=cpu", "small=true", f"part={part}"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.run([*words, *more], cwd=ROOT, env=environment, capture_output=True, text=True)

    first = start("budget_s=0.001")
    assert first.returncode == 3 and "items are left" in first.stderr, first.stderr
    whole = start()
    assert whole.returncode == 0, whole.stderr
    again = start()
    beginnings = tuple(f"{name}: " for name in part.split(","))
    assert again.returncode == 0 and not [line for line in again.stderr.splitlines() if line.startswith(beginnings)]
    (written,) = tmp_path.glob("gpu_*.json")
    items = json.loads(written.read_text(encoding="utf-8"))["items"]
    assert {name.partition(".")[0] for name in items} == set(part.split(","))
    assert not [name for name, result in items.items() if "error" in result]
    if "resume.t5" in items:
        assert items["resume.t5"]["bit_identical"] and items["resume.t5"]["equal"]["weights"]["ok"]
    assert written.with_suffix(".md").read_text(encoding="utf-8").startswith("# ")
