"""Operations of the update and of a decoding step, a layer: never more than these, on any machine."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks import launches
from benchmarks.launches import NAMES, Counts, Launches, count_launches, kernels_of, kind_of
from finegrained_rlhf.core.errors import ConfigError

ROOT = Path(__file__).parents[2]
MOST = {
    "t5": {"update_per_micro_batch": 490, "scoring_per_micro_batch": 323, "decode_per_token": 50},
    "llama": {"update_per_micro_batch": 423, "scoring_per_micro_batch": 297, "decode_per_token": 74},
}
"""With models of one layer: an operation more in a layer shows."""


def test_operations_are_counted_by_what_they_do() -> None:
    count = Launches()
    layer, states = nn.Linear(4, 4), torch.randn(3, 4, requires_grad=True)
    with count:
        attend = count.kernel("attention", lambda x: (x @ x.t()).softmax(dim=-1) @ x)
        seen = attend(F.relu(layer(states)).view(3, 2, 2).flatten(1))  # two views
        seen.sum().backward()
    forward = {"addmm": 1, "relu": 1, "attention": 1, "sum": 1}
    assert {name: count.names[name] for name in forward} == {**forward, "sum": 2}  # the bias's gradient is a sum
    assert count.names["attention backward"] == count.names["threshold_backward"] == 1
    assert count.names["mm"] == 2 and count.names["view"] == count.names["_softmax"] == 0
    assert states.grad is not None
    assert [kind_of(name) for name in ("mm", "norm backward", "relu")] == ["matrix products", "norms", "others"]


@pytest.mark.parametrize("name", MOST)
def test_one_layer_takes_no_more_operations(name: str) -> None:
    counted = count_launches(name, layers=1, new_tokens=4).record()
    assert {part: number for part, number in counted.items() if number > MOST[name].get(part, 1)} == {}


def test_another_layer_of_llama_takes_no_more_than_the_goal() -> None:
    assert (
        count_launches("llama", layers=2, new_tokens=4).record()["decode_per_token"]
        <= 25 + MOST["llama"]["decode_per_token"]
    )


def test_a_compiled_graph_counts_what_its_code_starts() -> None:
    code = """
cpp_fused_add_0 = async_compile.cpp_pybinding([], 'cpp_fused_add_0(')
def call(args):
    buf0 = empty_strided_cpu((s0, 32), (32, 1), torch.float32)
    cpp_fused_add_0(primals_1, buf0)
    extern_kernels.mm(buf0, reinterpret_tensor(primals_2, (32, 32), (1, 32), 0), out=buf1)
    buf2 = torch.ops.launches.product.default(buf0, buf1)
    buf3 = torch.ops.aten._unsafe_view.default(buf2)
    return (buf2, )
def other():
    cpp_fused_add_0(x)
"""
    assert kernels_of(code) == {"fused": 1, "mm": 1, "product": 1}
    assert kind_of("fused") == "fused kernels"


COMPILED = {
    "t5": {"update_per_micro_batch": 175, "scoring_per_micro_batch": 78},
    "llama": {"update_per_micro_batch": 99, "scoring_per_micro_batch": 48},
}
"""Of another layer."""


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPILED)
def test_another_compiled_layer_takes_no_more_kernels(name: str) -> None:
    one, two = (count_launches(name, layers=depth, new_tokens=8, compiled=True).record() for depth in (1, 2))
    assert all(two[part] - one[part] <= most for part, most in COMPILED[name].items())
    eager = [count_launches(name, layers=depth, new_tokens=8).record() for depth in (1, 2)]
    assert all(COMPILED[name][part] < eager[1][part] - eager[0][part] for part in COMPILED[name])


@pytest.mark.parametrize("name", ["launches.json", "launches_compiled.json"])
def test_the_committed_numbers_meet_the_goals(name: str) -> None:
    counts = json.loads((ROOT / "benchmarks/results" / name).read_text())
    assert list(counts) == list(NAMES)
    parts = {"update_per_micro_batch", "scoring_per_micro_batch", "decode_per_token", "layers"}
    assert all(set(row) == parts and all(isinstance(n, int) for n in row.values()) for row in counts.values())
    assert counts["t5"]["layers"] == 24 and counts["t5"]["update_per_micro_batch"] <= 5_000
    assert counts["t5"]["decode_per_token"] <= 450


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_committed_numbers_are_counted_again(name: str) -> None:
    counts = json.loads((ROOT / "benchmarks/results/launches.json").read_text())
    assert count_launches(name).record() == pytest.approx(counts[name], rel=0.01)


def test_the_micro_batch_is_half_of_the_shipped_experiment_s() -> None:
    shipped = (ROOT / "conf/experiment/qa_feedback/fine_grained.yaml").read_text().split()
    value = {key: int(shipped[shipped.index(f"{key}:") + 1]) for key in ("samples_per_prompt", "max_new_tokens")}
    tokens = int(shipped[shipped.index("micro_batch_tokens:") + 1])
    prompt = int(shipped[shipped.index("max_prompt_tokens:") + 1])
    profile = launches.small_profile("t5", None)
    assert 2 * profile.micro_batch_prompts == tokens // (prompt + value["samples_per_prompt"] * value["max_new_tokens"])
    assert (profile.samples, profile.new_tokens) == (value["samples_per_prompt"], value["max_new_tokens"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["family=bert"], "family: expected one of t5"),
        (["layers=0"], "layers: expected a whole"),
        (["fused=no"], "fused: expected true or false"),
        (["compiled=1"], "compiled: expected true or false"),
    ],
)
def test_wrong_words(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        launches.main(words)


def test_the_command_writes_totals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Counts(Counter(mm=3), Counter(add=2), Counter({"norm": 1}), 7)
    monkeypatch.setattr(launches, "count_launches", lambda name, layers: found)
    launches.main([f"out={tmp_path / 'launches.json'}", "family=t5,llama"])
    row = {"update_per_micro_batch": 3, "scoring_per_micro_batch": 2, "decode_per_token": 1, "layers": 7}
    assert json.loads((tmp_path / "launches.json").read_text()) == {"t5": row, "llama": row}
