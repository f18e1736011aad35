"""Communication by count: known calls of two processes, a step of the trainer, the arithmetic by hand."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from script_runs import ROOT, run_in_two_processes, run_process

sys.path.insert(0, str(ROOT))

from benchmarks import communication, scaling
from benchmarks.communication import (
    COUNTED,
    GPUS,
    LINKS,
    MODES,
    OTHER,
    communication_page,
    extrapolate,
    link_bytes,
    paper_parameters,
)
from finegrained_rlhf.core.errors import ConfigError, ConsistencyError

TOY = f"""
import json, os, sys
sys.path.insert(0, {str(ROOT)!r})
import torch
import torch.distributed as dist
from torch.distributed import all_reduce as borrowed
from torch.distributed.tensor.debug import CommDebugMode
from benchmarks.collectives import Recorder
from finegrained_rlhf.runtime.processes import Processes

class Purposes:
    def gradients(self):
        dist.all_reduce(torch.ones(10))
        self.shards()
    def shards(self):
        dist.reduce_scatter(torch.empty(3), [torch.ones(3), torch.ones(3)])

processes, recorder, purposes = Processes(), Recorder(), Purposes()
dist.all_reduce(torch.ones(1000))  # before the block
with recorder.recording(), recorder.naming(Purposes, {{"gradients": ["gradients"], "shards": ["shards"]}}):
    with CommDebugMode() as independent:
        purposes.gradients()
        purposes.shards()
        borrowed(torch.ones(7, dtype=torch.float64))
        dist.all_reduce(torch.ones(5, dtype=torch.int32), async_op=True).wait()
        dist.broadcast(torch.ones(4), src=1)
        dist.reduce(tensor=torch.ones(2, 3), dst=0)
        dist.all_gather([torch.empty(2), torch.empty(2)], torch.ones(2))
        dist.all_gather_into_tensor(torch.empty(4, dtype=torch.bfloat16), torch.ones(2, dtype=torch.bfloat16))
        dist.barrier()
    processes.gather_objects([b"x" * 1000 * (1 + processes.rank)])
    processes.broadcast_object("word")
    processes.barrier()
dist.all_reduce(torch.ones(1000))  # behind it
found = {{f"{{purpose}} {{name}}": [calls, recorder.sizes[purpose, name]]
         for (purpose, name), calls in recorder.calls.items()}}
independently = {{str(op): count for op, count in independent.get_comm_counts().items()}}
with open(f"{{sys.argv[1]}}/{{processes.rank}}.json", "w") as file:
    json.dump({{"found": found, "independently": independently}}, file)
processes.close()
"""


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What two processes counted of known calls."""
    directory = tmp_path_factory.mktemp("toy")
    (directory / "toy.py").write_text(TOY, encoding="utf-8")
    done = run_in_two_processes(str(directory / "toy.py"), str(directory))
    assert done.returncode == 0, done.stderr
    return [json.loads((directory / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(2)]


def test_known_calls_are_counted_exactly(toy: list[dict[str, Any]]) -> None:
    for counted in toy:
        found = counted["found"]
        objects, words = found.pop("other all_gather_object"), found.pop("other broadcast_object_list")
        assert found == {
            "gradients all_reduce": [1, 40],
            "gradients reduce_scatter": [1, 24],  # called inside: what the outermost method is for
            "shards reduce_scatter": [1, 24],
            "other all_reduce": [3, 56 + 20 + 4],  # one borrowed name, one that is not waited for, one of Processes
            "other broadcast": [1, 16],
            "other reduce": [1, 24],
            "other all_gather": [1, 8],
            "other all_gather_into_tensor": [1, 4],
            "other barrier": [1, 0],
        }
        assert objects[0] == 1 and 2000 <= objects[1] < 2200  # padded to the longest: alike in both
        assert words[0] == 1 and 8 < words[1] < 100
    assert toy[0]["found"] == toy[1]["found"]


def test_torchs_own_counter_sees_as_many(toy: list[dict[str, Any]]) -> None:
    for counted in toy:
        seen = {name.rpartition(".")[2]: count for name, count in counted["independently"].items()}
        assert seen.pop("barrier", 1) == 1
        assert seen == {
            "allreduce_": 3,
            "reduce_scatter_": 2,
            "broadcast_": 1,
            "reduce_": 1,
            "allgather_": 1,
            "_allgather_base_": 1,
        }


@pytest.mark.scripts
@pytest.mark.slow
def test_a_step_of_two_processes_is_counted(tmp_path: Path) -> None:
    program = str(ROOT / "benchmarks/scaling.py")
    done = run_process(program, f"out={tmp_path}", "sizes=tiny", "part=communication", preloaded=True)
    assert done.returncode == 0, done.stderr
    document = json.loads((tmp_path / "scaling_communication.json").read_text(encoding="utf-8"))
    assert document["processes"] == 2 and set(document["modes"]) == set(communication.MODES)
    counted = document["modes"]["none"]
    lines = {(line["step"], line["for"], line["collective"]): line for line in counted["collectives"]}
    gradients = lines["later", "gradients", "all_reduce"]
    # fp32, one sum an epoch of everything trained; a tiny model fits into one bucket
    assert gradients["calls"] == [4, 4]
    assert gradients["bytes"] == [4 * 4 * counted["trained_parameters"]] * 2
    assert ("first", "other", "all_gather_object") in lines and ("later", "other", "all_gather_object") not in lines
    assert sum(line["bytes"][0] for key, line in lines.items() if key[:2] == ("later", "other")) < 2000
    page = (tmp_path / "scaling_communication.md").read_text(encoding="utf-8")
    assert page == communication_page(document) and page in done.stdout
    assert re.search(r"\| none +\| later \| gradients +\| all_reduce +\| 4 ", page)


@pytest.mark.parametrize(
    ("collective", "sizes", "expected"),
    [
        ("all_reduce", [80, 80], 2 * 7 / 8 * 80),
        ("reduce_scatter", [80, 80], 7 / 8 * 80),
        ("reduce_scatter_tensor", [80, 80], 70),
        ("all_gather", [48, 32], 70),
        ("all_gather_into_tensor", [40, 40], 70),
        ("reduce", [80, 80], 80),
        ("broadcast", [80, 80], 80),
    ],
)
def test_bytes_through_a_link_by_hand(collective: str, sizes: list[float], expected: float) -> None:
    assert link_bytes(collective, sizes, 8) == pytest.approx(expected)


def test_a_ring_moves_what_the_formula_says() -> None:
    """Pieces sent round a ring one by one: a piece goes over N − 1 links to be summed, and N − 1 more to be known."""
    for processes in GPUS:
        sent = [0.0] * processes
        for _round in range(2):
            for piece in range(processes):
                for hop in range(processes - 1):
                    sent[(piece + hop) % processes] += 640 / processes
        assert set(sent) == {sent[0]} and link_bytes("all_reduce", [640, 640], processes) == pytest.approx(sent[0])


def test_no_formula_no_number() -> None:
    with pytest.raises(ConsistencyError, match="all_to_all: no formula"):
        link_bytes("all_to_all", [1, 1], 2)


def counts(other: int = 5, gradients: int = 800) -> dict[str, Any]:
    line = {"step": "later", "collective": "all_reduce", "calls": [2, 2]}
    lines = [{**line, "for": "other", "bytes": [other] * 2}, {**line, "for": "gradients", "bytes": [gradients] * 2}]
    return {"trained_parameters": 100, "collectives": [{**lines[1], "step": "first", "bytes": [10**9] * 2}, *lines]}


def test_the_paper_run_by_arithmetic() -> None:
    """Two epochs of 4 bytes a parameter were counted; the run on paper has four."""
    found = {(one["link"], one["gpus"]): one for one in extrapolate(counts(), epochs=2, parameters=1000)}
    assert set(found) == {(link, gpus) for link in LINKS for gpus in GPUS}
    one = found["InfiniBand, 400 Gb/s a GPU", 64]
    assert one["bytes"] == pytest.approx(2 * 63 / 64 * 4 * 1000 * 4)
    assert one["seconds"] == pytest.approx(one["bytes"] / 50e9)


@pytest.mark.parametrize("wrong", [{"gradients": 0}, {"other": 81}])
def test_what_no_purpose_names_is_noticed(wrong: dict[str, int]) -> None:
    with pytest.raises(ConsistencyError, match="PURPOSES"):
        extrapolate(counts(**wrong), epochs=2, parameters=1000)


def test_the_paper_trains_t5_large_and_t5_base() -> None:
    assert paper_parameters() == 737_668_096 + 222_903_552 + (768 * 768 + 768 + 768 + 1)


def test_processes_that_differ_are_shown() -> None:
    line = {"step": "later", "for": "gradients", "collective": "reduce", "calls": [2, 2], "bytes": [1200, 800]}
    counted = {"trained_parameters": 100, "collectives": [line]}
    seconds = {"none": extrapolate(counted, 3, 100)}
    paper = {"parameters": 100, "epochs": 4, "links": LINKS, "seconds": seconds}
    document = {"base": {"epochs": 3}, "processes": 2, "backend": "gloo", "modes": {"none": counted}, "on_paper": paper}
    row = next(row for row in communication_page(document).splitlines() if "reduce" in row)
    assert [cell.strip() for cell in row.split("|")[4:-1]] == ["reduce", "2", "800 to 1,200", "4.000000"]


@pytest.mark.parametrize("wrong", ["rounds=2", "threads=1"])
def test_counting_takes_no_rounds(wrong: str) -> None:
    with pytest.raises(ConfigError, match="no threads and no rounds"):
        scaling.main(["out=x", "part=communication", wrong])
    with pytest.raises(ConfigError, match="part: expected one of time, communication"):
        scaling.main(["out=x", "part=bytes"])


def test_documented_commands_of_the_benchmark_are_read() -> None:
    texts = [(ROOT / path).read_text(encoding="utf-8") for path in ("docs/benchmarks.md", "benchmarks/scaling.py")]
    calls = [
        shlex.split(line, comments=True)[2:]
        for text in texts
        for line in re.findall(r"^ *(python benchmarks/scaling\.py .*)$", text, re.MULTILINE)
    ]
    assert {scaling.chosen(call)[2] for call in calls} == {"time", "communication"}


def test_the_committed_result_is_the_pages() -> None:
    directory = ROOT / "benchmarks/results"
    document = json.loads((directory / "scaling_communication.json").read_text(encoding="utf-8"))
    assert (directory / "scaling_communication.md").read_text(encoding="utf-8") == communication_page(document)
    assert document["base"]["name"] == "cpu" and COUNTED["cpu"].epochs == document["base"]["epochs"]
    page = (ROOT / "docs/benchmarks.md").read_text(encoding="utf-8")
    for line in document["modes"]["none"]["collectives"]:
        assert f"| {line['step']} | {line['for']} | `{line['collective']}` | {line['calls'][0]} | " in page
        assert f"| {line['bytes'][0]:,} |" in page
    assert tuple(document["modes"]) == MODES
    for mode in MODES[1:]:
        for line in document["modes"][mode]["collectives"]:
            if line["step"] == "later" and line["for"] != OTHER:
                sent = f"`{line['collective']}` | {line['calls'][0]} | {line['bytes'][0]:,} |"
                assert f"| `{mode}` | {line['for']} | {sent}" in page
    for mode, seconds in document["on_paper"]["seconds"].items():
        for link in LINKS:
            times = " | ".join(f"{one['seconds']:.2f}" for one in seconds if one["link"] == link)
            assert f"| `{mode}` | {link} | {times} |" in page
