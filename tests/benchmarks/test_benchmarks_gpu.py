"""The command for a GPU, on a CPU: everything runs, goes on where it stopped, and notices what is wrong."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from families_toy import TINY
from other_processes import alive, wait_until
from seldom import seldom

from benchmarks.gpu import __main__ as gpu_command
from benchmarks.gpu import equality, steps
from benchmarks.gpu.__main__ import all_items, chosen_items, main
from benchmarks.gpu.attention import SITUATIONS, chosen, masked_gradient, plans
from benchmarks.gpu.equality import (
    LENGTHS,
    VOCABULARY,
    compare_family,
    compare_rewards,
    draw,
    engine_gaps,
    open_policy,
    recorded_and_called,
)
from benchmarks.gpu.families import FUSED, SETTINGS, family_model
from benchmarks.gpu.items import Item, Ledger, Result, Setting, passed, run_items
from benchmarks.gpu.page import page
from benchmarks.gpu.profiling import LISTED, measure, profile_step
from benchmarks.gpu.steps import SHAPES, qwen3_profile, smollm2_profile, t5_profile, targets_of
from benchmarks.machine import cudnn_attention
from benchmarks.workload import EOS, PAD, make_prompts
from finegrained_rlhf.core.errors import ConfigError, ConsistencyError
from finegrained_rlhf.models.families.causal import CAUSAL_FAMILIES
from finegrained_rlhf.models.families.seq2seq import SEQ2SEQ_FAMILIES
from finegrained_rlhf.models.policy import Policy
from finegrained_rlhf.rollout.fast import FastEngine, GraphedStep

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
MACHINE = {"gpu": "NVIDIA H100", "cpu": "x", "torch": "2"}


def small(tmp_path: Path) -> Setting:
    return Setting(CPU, True, tmp_path, lambda line: None)


def good(check: float = 0.0) -> Result:
    return {"equal": {"x": {"value": check, "tolerance": 1.0, "ok": check <= 1.0}}}


# What is measured, and what was ------------------------------------------------------------------------------------


def measured(items: list[Item], path: Path, budget: float = 60.0, again: bool = False) -> tuple[list[str], Ledger]:
    """The names of the items that are left, and the ledger."""
    ledger = Ledger(path / "gpu.json", {"machine": "this"}, again)
    (path / "scratch").mkdir(exist_ok=True)
    return [item.name for item in run_items(items, ledger, small(path / "scratch"), budget)], ledger


def noted(path: Path, name: str, result: Result, seconds: float = 0.0) -> Item:
    """An item that notes in a file that it was begun."""

    def measure(setting: Setting) -> Result:
        with (path / "begun.txt").open("a") as stream:
            stream.write(name)
        time.sleep(seconds)
        if "error" in result:
            raise RuntimeError(result["error"])
        return result

    return Item("part", name, measure)


def test_items_go_on_where_they_stopped_and_one_that_failed_is_tried_again_when_asked(tmp_path: Path) -> None:
    items = [noted(tmp_path, "a", good()), noted(tmp_path, "b", {"error": "broke"}), noted(tmp_path, "c", good(2.0))]
    for _ in range(2):
        left, ledger = measured(items, tmp_path)
        assert left == [] and (tmp_path / "begun.txt").read_text() == "abc"
    results = [ledger.read(item) or {} for item in items]
    assert [passed(result) for result in results] == [True, False, False]
    assert results[1]["error"] == "RuntimeError: broke" and results[0]["seconds"] >= 0
    assert measured(items, tmp_path, again=True)[0] == [] and (tmp_path / "begun.txt").read_text() == "abcbc"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["begun.txt", "gpu.json", "scratch"]
    assert not list((tmp_path / "scratch").iterdir())
    with pytest.raises(ConfigError, match="measured with machine this, this is another: name another out"):
        Ledger(tmp_path / "gpu.json", {"machine": "another"})


def test_the_budget_stops_the_running_item_which_is_left_and_keeps_the_others(tmp_path: Path) -> None:
    items = [noted(tmp_path, "a", good()), noted(tmp_path, "b", good(), seconds=60), noted(tmp_path, "c", good())]
    left, ledger = measured(items, tmp_path, budget=1.0)
    assert left == ["b", "c"] and ledger.read(items[0]) is not None and ledger.read(items[1]) is None
    assert measured(items, tmp_path, budget=-1.0)[0] == ["b", "c"]


def handing_over(*parts: Result, then: Result | None = None) -> Item:
    """An item that hands over some results, and gives the last one, or goes on for a minute where there is none."""

    def measure(setting: Setting) -> Result:
        for part in parts:
            setting.keep(part)
        if then is None:
            time.sleep(60)
        elif "error" in then:
            raise RuntimeError(then["error"])
        return then or {}

    return Item("part", "long", measure)


@pytest.mark.slow
def test_what_an_item_handed_over_outlives_a_cut_and_the_item_is_measured_again(tmp_path: Path) -> None:
    first, second = {"rows": [{"seconds": 1.25}]}, {"rows": [{"seconds": 1.25}, {"seconds": 1.5}]}
    long = handing_over(first, second)
    left, ledger = measured([long], tmp_path, budget=3.0)
    kept = json.loads((tmp_path / "gpu.json").read_text(encoding="utf-8"))["items"]["part.long"]
    assert left == ["long"] and ledger.read(long) == kept and kept["rows"] == second["rows"] and kept["cut_off"] == 2
    assert not passed(kept) and ledger.measured == {}
    text = page(MACHINE, [(long, kept)])
    assert "Cut off after 0 s: not measured whole, this is what there was." in text and "| 1.5     |" in text
    assert "| part | 0 of 1   | 0 of 0 | 1       | 0       |" in text

    _, ledger = measured([handing_over(first)], tmp_path, budget=1.0)  # cut off sooner than the last time
    assert (ledger.read(long) or {})["rows"] == second["rows"]
    _, ledger = measured([handing_over(first, then={"error": "broke"})], tmp_path)
    broken = ledger.read(long) or {}
    assert broken["rows"] == second["rows"] and broken["error"] == "RuntimeError: broke" and "cut_off" not in broken
    assert "Failed: RuntimeError: broke" in page(MACHINE, [(long, broken)])
    left, ledger = measured([handing_over(first)], tmp_path, budget=3.0, again=True)
    assert left == ["long"] and (ledger.read(long) or {})["cut_off"] == 1
    left, ledger = measured([handing_over(first, then=good())], tmp_path)
    assert left == [] and passed(ledger.read(long) or {}) and "rows" not in (ledger.read(long) or {})


def test_what_missed_a_target_is_kept_until_it_is_measured_again(tmp_path: Path) -> None:
    missed = handing_over(then=good(2.0))
    measured([missed], tmp_path)
    left, ledger = measured([handing_over({"rows": []})], tmp_path, budget=1.0, again=True)
    assert left == ["long"] and (ledger.read(missed) or {})["equal"]["x"]["value"] == 2.0
    left, ledger = measured([handing_over(then=good())], tmp_path, again=True)
    assert left == [] and passed(ledger.read(missed) or {})


def test_an_item_sees_what_was_measured_before_it(tmp_path: Path) -> None:
    seen = [Item("p", name, lambda setting: {"seen": sorted(setting.measured)}) for name in "ab"]
    _, ledger = measured([noted(tmp_path, "broken", {"error": "broke"}), *seen], tmp_path)
    assert [(ledger.read(item) or {})["seen"] for item in seen] == [["part.broken"], ["p.a", "part.broken"]]


def test_an_item_that_takes_too_long_or_ends_its_process_is_kept_with_its_error(tmp_path: Path) -> None:
    def killed(setting: Setting) -> Result:
        os.kill(os.getpid(), signal.SIGKILL)
        return {}

    odd = {"rows": [{"number": math.nan}], "equal": {"x": {"value": math.inf, "tolerance": 1.0, "ok": False}}}
    slow = replace(noted(tmp_path, "b", good(), seconds=60), limit_s=0.5)
    items = [Item("p", "a", lambda _: odd), slow, Item("p", "c", killed), Item("p", "d", lambda _: good())]
    left, ledger = measured(items, tmp_path)
    kept = [ledger.read(item) or {} for item in items]
    assert left == [] and [passed(result) for result in kept] == [False, False, False, True]
    assert kept[0]["rows"] == [{"number": "nan"}] and kept[0]["equal"]["x"]["value"] == "inf"
    assert kept[1]["error"] == "stopped after 0 s, its limit"
    assert kept[2]["error"] == "the process ended (SIGKILL) while this was measured"
    assert "| x " in page(MACHINE, list(zip(items, kept, strict=True)))


def test_the_page_shows_what_failed_and_what_was_not_measured() -> None:
    items = [Item("equality", name, lambda setting: {}) for name in "abc"]
    results: list[tuple[Item, Result | None]] = [
        (items[0], {**good(), "seconds": 1.0, "bf16": {"mean": 0.125}}),
        (items[1], {"error": "RuntimeError: broke", "seconds": 2.0}),
        (items[2], None),
    ]
    text = page(MACHINE, results)
    assert text.startswith("# NVIDIA H100\n") and "| equality | 2 of 3   | 1 of 2 | 0       | 3" in text
    assert "Failed: RuntimeError: broke" in text and "bf16: mean 0.125" in text and "### c" not in text


# Each part ---------------------------------------------------------------------------------------------------------


def test_every_family_is_measured() -> None:
    assert set(SETTINGS) == set(CAUSAL_FAMILIES) | set(SEQ2SEQ_FAMILIES)
    names = [item.name for item in chosen_items("equality")]
    steps_of_shapes = [f"step_{name}" for name in SHAPES]
    assert names == [*steps_of_shapes, *SETTINGS, "rewards_longformer", "rewards_llama"]


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


ENGINES = ("bart", "gemma2", "gpt2", "llama", "t5", "t5gemma")
"""One of each way to hold keys and values."""
NOT_RECORDED = ("bart", "gpt_neo", "longt5", "mbart", "pegasus", "qwen3_moe", "t5gemma", "t5gemma2")


@pytest.mark.parametrize("family", seldom(sorted(SETTINGS), ENGINES))
def test_engine_and_update_compute_one_function_and_recorded_steps_are_compared(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recorded as on CUDA, where a recorded step is here the step itself."""
    monkeypatch.setattr(FastEngine, "_records", lambda self: True)
    monkeypatch.setattr(GraphedStep, "__call__", lambda self, window: self._step(window))
    monkeypatch.setattr(equality, "TOKENS", 6)
    policy = open_policy(family_model(family, VOCABULARY, PAD, EOS))
    asked = make_prompts(policy.tokenizer, VOCABULARY, LENGTHS, 0)
    found = recorded_and_called(policy, asked, "recorded")
    assert found == ({} if family in NOT_RECORDED else {"recorded": {"value": 0.0, "tolerance": 0, "ok": True}})
    assert float(engine_gaps(policy, draw(policy, asked)).max()) <= 1e-5


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
    phases = {"total": {"ours_s": 1.2}, "rollout": {"times_limit": 3.0}, "update": {"times_limit": 2.5}}
    found = targets_of(phases, "NVIDIA H100 80GB HBM3")
    assert list(found) == ["seconds on H100", "rollout over its limit", "update over its limit"]
    assert all(check["ok"] for check in found.values())
    missed = targets_of({**phases, "update": {"times_limit": 2.6}}, "NVIDIA H200")
    assert [name for name, check in missed.items() if not check["ok"]] == ["seconds on H200", "update over its limit"]


def test_ours_is_measured_against_limits_and_the_plain_side_against_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "_has_targets", lambda name, setting: name == "t5")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100")
    kept: list[Result] = []
    setting = replace(small(tmp_path / "a"), keep=kept.append)
    ours = steps.ours("t5", setting)
    assert kept == [ours] and set(ours["targets"]) > {"seconds on H100"}  # a round, and what was kept after it
    for phase in ours["phases"].values():
        assert phase["times_limit"] == phase["ours_s"] / phase["limit_s"] and phase["limit_s"] > 0
    fixed = {phase: {"ours_s": 1e-4} for phase in ours["phases"]}
    setting = replace(small(tmp_path / "b"), measured={"steps.t5": {"phases": fixed}}, keep=kept.append)
    plain = steps.plain("t5", setting)
    total = plain["phases"]["total"]
    assert kept[1:] == [plain] and total["ratio"] == pytest.approx(total["plain_s"] / 1e-4)
    assert plain["targets"]["plain over ours, inverse"]["ok"] and plain["rounds"][0]["total"] == total["plain_s"]
    with pytest.raises(ConsistencyError, match=r"nothing to compare with: part=steps\.t5 comes first"):
        steps.plain("t5", small(tmp_path))


# Where the time goes -----------------------------------------------------------------------------------------------


def test_operations_of_a_stretch_are_counted_and_sorted_by_their_time() -> None:
    many, few = torch.ones(600, 600), torch.ones(4, 4)
    calls: list[int] = []

    def work() -> int:
        calls.append(0)
        _ = [many @ many for _ in range(3)], [few + few for _ in range(5)]
        return len(calls)

    given, stretch = measure(work, CPU)
    assert given == len(calls) and stretch.kernels == [] and stretch.totals["launches"] == 0
    by_name = {row["operation"]: row["calls"] for row in stretch.operations}
    assert (by_name["aten::mm"], by_name["aten::add"]) == (3, 5) and stretch.totals["operations"] >= 8
    assert stretch.operations[0]["operation"] == "aten::mm" and stretch.totals["seconds"] > 0


def test_a_step_is_profiled_by_phase(tmp_path: Path) -> None:
    kept: list[int] = []
    found = profile_step("t5", replace(small(tmp_path), keep=lambda result: kept.append(len(result["phases"]))))
    names = ["rollout of 12 tokens", "rewards", "scoring", "one micro-batch of the update"]
    assert list(found["phases"]) == names and kept == [1, 2, 3, 4]
    assert all(totals["operations"] > 500 for totals in found["phases"].values())
    assert {(row["phase"], LISTED) for row in found["operations"]} == {(name, LISTED) for name in names}
    assert len(found["operations"]) == LISTED * len(names)
    text = page(MACHINE, [(Item("profile", "t5", lambda setting: {}), {**found, "seconds": 1.0})])
    assert "| one micro-batch of the update | " in text and "operations:" in text


# The command -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "out=… is missing"),
        (
            ["out=x", "part=nothing"],
            "part: expected some of steps, profile, plain, memory, equality, attention, training, update, resume",
        ),
        (["out=x", "budget_s=-1"], "budget_s: expected a number of seconds above 0"),
        (["out=x", "budget_s=soon", "device=cpu"], "budget_s"),
        (["out=x", "device=tpu"], "device: expected cuda or cpu"),
        (["out=x", "device=cpu", "small=maybe"], "small: expected true or false"),
        (["out=x"], "device=cuda: torch sees no GPU here"),
    ],
)
def test_a_wrong_word_is_one_line(words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    with pytest.raises(ConfigError, match=said.replace("…", ".")):
        main(words, lambda line: None)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_command_says_what_was_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    items = [handing_over({"rows": [{"seconds": 1.5}]}), noted(tmp_path, "b", good())]
    monkeypatch.setattr(gpu_command, "all_items", lambda: items)
    said: list[str] = []
    words = [f"out={tmp_path}/out", "device=cpu", "small=true", "budget_s=6"]
    assert main(words, said.append) == gpu_command.LEFT
    assert said[-1] == "2 of 2 items are left, 1 of them cut off: start the same command again"
    text = (tmp_path / "out" / "gpu_cpu.md").read_text(encoding="utf-8")
    assert "| part | 0 of 2   | 0 of 0 | 1       | 0       |" in text and "Cut off after" in text


def test_the_summary_is_written_after_every_item(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two files, whatever ends the command: what a short lease brings back. Where it is started, nothing changes."""
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "kept.txt").touch()
    monkeypatch.chdir(tmp_path / "here")
    parts = [item.part for item in all_items()]
    assert list(dict.fromkeys(parts))[:3] == ["steps", "profile", "plain"] and len(parts) > 35
    seen: list[list[str]] = []

    def watched(setting: Setting) -> Result:
        seen.append(sorted(path.name for path in (tmp_path / "out").iterdir()))
        return {"files": seen[-1]}

    items = [Item("steps", "a", lambda setting: good()), Item("equality", "b", watched)]
    items += [noted(tmp_path, "c", {"error": "broke"})]
    monkeypatch.setattr(gpu_command, "all_items", lambda: items)
    words = [f"out={tmp_path}/out", "device=cpu", "small=true"]
    said: list[str] = []
    assert main([*words, "budget_s=0.000001"], said.append) == gpu_command.LEFT and "3 of 3 items are left" in said[-1]
    assert main(words, said.append) == gpu_command.FAILED
    kept = json.loads((tmp_path / "out" / "gpu_cpu.json").read_text(encoding="utf-8"))
    assert list(kept["items"]) == ["steps.a", "equality.b", "part.c"] and kept["machine"]["gpu"] is None
    assert kept["items"]["equality.b"]["files"] == ["gpu_cpu.json", "gpu_cpu.md"]
    assert "Failed: RuntimeError: broke" in (tmp_path / "out" / "gpu_cpu.md").read_text(encoding="utf-8")
    assert main([*words, "part=steps,equality"], said.append) == 0
    with pytest.raises(ConfigError, match="measured with small True, this is False"):
        main([f"out={tmp_path}/out", "device=cpu"], said.append)
    assert [path.name for path in (tmp_path / "here").iterdir()] == ["kept.txt"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_what_measures_ends_with_the_command(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all that it started. A command that may still do so removes what was written meanwhile, too."""

    def endless(setting: Setting) -> Result:
        (setting.scratch / "much.txt").touch()
        with subprocess.Popen(["sleep", "120"]) as started:
            (tmp_path / "begun.txt").write_text(f"{os.getpid()} {started.pid}\n")
        return {}

    monkeypatch.setattr(gpu_command, "all_items", lambda: [Item("steps", "a", endless)])
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    words = [f"out={tmp_path}/out", "device=cpu", "small=true"]
    command = multiprocessing.get_context("fork").Process(target=lambda: gpu_command.main(words, print))
    command.start()
    begun = tmp_path / "begun.txt"
    wait_until(lambda: begun.is_file() and begun.read_text().endswith("\n"), "nothing is measured")
    processes = [int(word) for word in begun.read_text().split()]
    assert command.pid is not None and all(map(alive, processes))
    os.kill(command.pid, number)
    command.join(20)
    assert command.exitcode == (1 if number == signal.SIGTERM else -number)
    wait_until(lambda: not any(map(alive, processes)), "what measures lives on", 20)
    left = list((tmp_path / "scratch").rglob("much.txt"))
    assert len(left) == (number == signal.SIGKILL) and not list((tmp_path / "out").glob("*"))


def test_help_says_where_to_put_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"], lambda line: None) == 0
    said = capsys.readouterr().out
    assert all(f"{key} " in said or f"[{key}=" in said for key in gpu_command.KEYS)
    assert "inside the checkout" in said


@pytest.mark.slow
@pytest.mark.parametrize("part", ["attention", "memory,update,resume,training", "steps,profile,plain"])
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
