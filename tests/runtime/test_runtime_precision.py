"""`processes.precision=auto` takes bf16 where the hardware multiplies it, says why, and goes on as a run began."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from training_run_toy import ToyRun

from finegrained_rlhf.core.files import read_json
from finegrained_rlhf.runtime import processes
from finegrained_rlhf.runtime.precision import best_precision, processor_flags
from finegrained_rlhf.runtime.process_config import ProcessConfig
from finegrained_rlhf.runtime.processes import Processes

CPU, AUTO = torch.device("cpu"), ProcessConfig(precision="auto")


def has(monkeypatch: pytest.MonkeyPatch, *flags: str) -> None:
    monkeypatch.setattr(processes, "processor_flags", lambda: frozenset(flags))


def test_the_flags_are_those_of_the_first_processor(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nflags\t\t: fpu avx2 amx_bf16\n\nprocessor\t: 1\nflags\t: fpu\n")
    assert processor_flags(str(tmp_path / "cpuinfo")) == {"fpu", "avx2", "amx_bf16"}
    (tmp_path / "arm").write_text("Features\t: fp asimd bf16\n")
    assert processor_flags(str(tmp_path / "arm")) == processor_flags(str(tmp_path / "none")) == set()


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("fpu avx2 avx512f avx512_vnni", ("fp32", "no amx_bf16 or avx512_bf16 here")),
        ("avx2 avx512_bf16", ("bf16", "the processor has avx512_bf16")),
        ("avx512_bf16 amx_tile amx_bf16", ("bf16", "the processor has amx_bf16 and avx512_bf16")),
        ("amx_tile amx_int8", ("fp32", "no amx_bf16 or avx512_bf16 here")),
    ],
)
def test_a_processor_with_bf16_instructions_takes_bf16(flags: str, expected: tuple[str, str]) -> None:
    assert best_precision(CPU, flags.split()) == expected


@pytest.mark.parametrize(("capability", "expected"), [((7, 5), "fp32"), ((8, 0), "bf16"), ((9, 0), "bf16")])
def test_a_gpu_takes_it_from_8_0_on(
    capability: tuple[int, int], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    precision, why = best_precision(torch.device("cuda", 0), ["amx_bf16"])
    assert precision == expected
    assert why == f"compute capability {capability[0]}.{capability[1]}, bf16 from 8.0 on"


def test_what_is_taken_is_computed_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, row = torch.nn.Linear(2, 2), torch.ones(1, 2)
    for flags, precision, dtype in ((("amx_bf16",), "bf16", torch.bfloat16), ((), "fp32", torch.float32)):
        has(monkeypatch, *flags)
        here = Processes(AUTO)
        assert here.precision == precision and f"{precision} (auto: " in here.description
        with here.autocast():
            assert layer(row).dtype == dtype
    asked = ProcessConfig(precision="bf16")
    assert ", bf16 (slow: this CPU has none; processes.precision=auto takes fp32)," in Processes(asked).description
    has(monkeypatch, "amx_bf16")
    assert ", bf16, sharding" in Processes(asked).description


def test_all_processes_take_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(Processes, "any", lambda self, flag: asked.append(flag) or True)
    for flags, why in ((("amx_bf16",), "another process has no bf16"), ((), "no amx_bf16 or avx512_bf16 here")):
        has(monkeypatch, *flags)
        here = Processes(AUTO)
        assert (here.precision, here.chosen) == ("fp32", why)
    assert asked == [False, True]


def test_a_run_goes_on_in_the_precision_that_it_began_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    has(monkeypatch, "avx512_bf16")
    said: list[str] = []
    assemble = ToyRun.assemble

    def spied(self: ToyRun, here: Processes, *rest: object) -> object:
        said.append(here.precision)
        return assemble(self, here, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(ToyRun, "assemble", spied)
    ToyRun(output_dir=str(tmp_path), processes=AUTO, total_steps=4).run()
    has(monkeypatch)
    for steps in (8, 12):
        ToyRun(output_dir=str(tmp_path), processes=AUTO, total_steps=steps).run()
    ToyRun(output_dir=str(tmp_path), processes=AUTO, total_steps=4, resume="never").run()
    ToyRun(output_dir=str(tmp_path / "other"), total_steps=4).run()
    assert said == ["bf16", "bf16", "bf16", "fp32", "fp32"]
    (start,) = read_json(tmp_path / "provenance.json")["starts"]
    assert start["precision"] == "fp32"
    assert "precision" not in read_json(tmp_path / "other/provenance.json")["starts"][0]
