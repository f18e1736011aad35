"""The preflight as a whole, its report, and the checks of machine and configuration."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from doctor_toy import CHEAP, case_maker, diagnose, failed, make_smoke, warned
from packaging.requirements import Requirement

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.preflight.doctor import machine as doctor_machine
from finegrained_rlhf.preflight.doctor.case import Case, Finding
from finegrained_rlhf.preflight.doctor.config import DoctorConfig
from finegrained_rlhf.preflight.doctor.run import CHECKS, Check, as_json, examine, failures, line, verdict
from finegrained_rlhf.runtime import processes

CaseMaker = Callable[..., Case]


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_smoke(tmp_path_factory.mktemp("doctor"))


@pytest.fixture
def case(smoke: Path, tmp_path: Path) -> CaseMaker:
    return case_maker(smoke, tmp_path / "scratch")


# All of it -------------------------------------------------------------------------------------------------------


def test_a_sound_run_passes_every_check(case: CaseMaker, tmp_path: Path) -> None:
    findings = diagnose(case("rollout.max_new_tokens=40"))
    assert [finding.check for finding in findings if finding.status == "fail"] == []
    assert {finding.check for finding in findings} == {check.name for check in CHECKS}
    by_name = {finding.check: finding for finding in findings}
    assert "(100.00%)" in by_name["alignment"].measured
    assert by_name["two processes"].status == "skipped"
    assert verdict(findings).startswith("ready")
    assert not list(tmp_path.glob("scratch/**/step_1"))  # the sample writes no checkpoint


def test_one_failure_does_not_hide_the_others(case: CaseMaker, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    broken = case(
        "reward.weights.relevance=nan",
        "value.path=nowhere",
        "data=absent.json",
        f"output_dir={tmp_path}/file/run",
        f"policy.path={case().keys['policy']['path']}",
        "reward.components.factuality.granularity=word",
    )
    findings = diagnose(broken)
    assert set(failures(findings)) == {"configuration", "output_dir", "data", "models"}
    assert {f.check for f in findings if f.status == "skipped"} >= {"prompts", "memory", "responses", "two processes"}
    measured = [f.measured for f in diagnose(broken, "configuration") if f.status == "fail"]
    assert any("granularity" in text for text in measured) and any("relevance" in text for text in measured)
    assert verdict(findings) == "4 checks failed"


def test_a_check_that_breaks_down_fails_and_the_rest_goes_on() -> None:
    def breaks(case: Case) -> Iterator[Finding]:
        yield Finding("pass", "so far")
        raise ZeroDivisionError("by nothing")

    def fine(case: Case) -> Iterator[Finding]:
        yield Finding("pass", "fine")

    checks = [
        Check("first", breaks, mend="key=1"),
        Check("second", fine, needs=("first",)),
        Check("third", fine, needs=("second",)),
        Check("fourth", fine),
    ]
    told: list[str] = []
    findings = list(examine(Case({}), checks, told.append))
    assert [(f.check, f.status) for f in findings] == [
        ("first", "pass"),
        ("first", "fail"),
        ("second", "skipped"),
        ("third", "skipped"),
        ("fourth", "pass"),
    ]
    assert "ZeroDivisionError: by nothing (test_training_doctor.py" in findings[1].measured
    assert (findings[1].mend, findings[2].measured) == ("key=1", "needs first")
    assert told == ["first", "second", "third", "fourth"]


def test_report() -> None:
    findings = [Finding("pass", "good", "", "a"), Finding("fail", "bad", "key=2", "b"), Finding("warn", "so", "x", "c")]
    assert line(findings[0]) == "pass    a              good"
    assert line(findings[1]).split("\n")[1].strip() == "→ key=2"
    assert verdict(findings) == "1 check failed"
    assert verdict([findings[0]]) == "ready" and verdict([findings[2]]) == "ready (1 warning)"
    report = json.loads(json.dumps(as_json(findings)))
    assert (report["ready"], report["failed"], report["warnings"]) == (False, ["b"], 1)
    assert report["findings"][1] == {"check": "b", "status": "fail", "measured": "bad", "mend": "key=2"}


@pytest.mark.parametrize("wrong", [{"prompts": 0}, {"timeout": 0}])
def test_options_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        DoctorConfig(**wrong)


# Machine ---------------------------------------------------------------------------------------------------------


def test_versions() -> None:
    required = [Requirement("torch>=2.11"), Requirement("peft>=0.17"), Requirement("spacy>=3.8,<4")]
    installed = {"torch": "2.13.0+cpu", "spacy": "4.0.1"}
    good, absent, new = doctor_machine.compare_versions(required, installed.get)
    assert (good.status, good.measured) == ("pass", "torch 2.13.0+cpu")
    assert absent.status == new.status == "fail"
    assert "peft is not installed, expected >=0.17" in absent.measured and "pip install 'peft>=0.17'" in absent.mend
    assert "spacy is 4.0.1" in new.measured


def test_requirements_are_those_of_the_project(tmp_path: Path) -> None:
    python, checkout = doctor_machine.requirements()
    _, installed = doctor_machine.requirements(tmp_path / "absent.toml")  # from the installed project
    assert "3.11" in python
    names = {requirement.name for requirement in checkout}
    assert {"torch", "transformers", "peft", "wandb"} <= names
    assert {"torch", "transformers", "peft", "wandb"} <= {requirement.name for requirement in installed}


@pytest.mark.parametrize(
    ("overrides", "package"), [([], None), (["policy=lora"], "peft"), (["tracking=wandb"], "wandb")]
)
def test_only_what_the_run_uses_is_asked_for(
    case: CaseMaker, monkeypatch: pytest.MonkeyPatch, overrides: list[str], package: str | None
) -> None:
    monkeypatch.setattr(doctor_machine, "_installed", lambda name: None if name in ("peft", "wandb") else "3.9")
    wrong = [f.measured for f in diagnose(case(*overrides), "versions") if f.status == "fail"]
    absent = [measured.split()[0] for measured in wrong if "not installed" in measured]
    assert absent == ([package] if package else [])


def test_bf16_without_a_gpu(case: CaseMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "processor_flags", frozenset)
    assert "processes.precision=fp32" in warned(diagnose(case("processes.precision=bf16"), "device")).mend
    assert [f.status for f in diagnose(case(), "device")] == ["pass"]
    monkeypatch.setattr(processes, "processor_flags", lambda: frozenset({"avx2", "amx_bf16"}))
    assert [f.status for f in diagnose(case("processes.precision=bf16"), "device")] == ["pass"]


def test_the_precision_that_auto_takes_is_said(case: CaseMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "processor_flags", lambda: frozenset({"avx512_bf16"}))
    (found,) = diagnose(case("processes.precision=auto"), "device")
    assert found.status == "pass" and found.measured.endswith("bf16 (auto: the processor has avx512_bf16)")


def test_memory_that_is_too_small(case: CaseMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_machine, "device_bytes", lambda processes: 1 << 20)
    findings = diagnose(case(), *CHEAP, "responses")
    memory = next(f for f in findings if f.check == "memory")
    assert memory.status == "fail" and "ppo.micro_batch_prompts=1" in memory.mend
    sample = next(f for f in findings if f.check == "responses")  # nothing is loaded that cannot fit
    assert sample.status == "fail" and "doctor.prompts=1" in sample.mend


# Configuration ---------------------------------------------------------------------------------------------------


def test_all_that_does_not_bind_is_listed(case: CaseMaker) -> None:
    findings = diagnose(case("ppo.clip=-1", "+reward.weights.style=1", "rollout.top_p=7"), "configuration")
    said = [f.measured for f in findings]
    assert len(said) == 3 and all(f.status == "fail" for f in findings)
    wrong = ("ppo.clip: expected above 0", "reward.weights.style: no such component", "rollout.top_p: expected above 0")
    assert all(any(words in text for text in said) for words in wrong)
    assert any(f.mend.startswith("reward.weights.style:") for f in findings)


def test_keys_without_a_value_are_named_together(smoke: Path, tmp_path: Path) -> None:
    case = case_maker(smoke, tmp_path, experiment="factworld/fine_grained")()
    found = failed(diagnose(case, "configuration"))
    for name in ("relevance", "factuality", "completeness"):
        assert f"reward.components.{name}.path=…" in found.mend
    assert case.job is None and "policy" in case.parts  # the rest can be examined


def test_parts_that_do_not_fit_each_other(case: CaseMaker) -> None:
    found = failed(diagnose(case("validation_prompts=0"), "configuration"))
    assert "validation_prompts" in found.measured


def test_weights(case: CaseMaker) -> None:
    nothing = [f"reward.weights.{name}=0" for name in ("relevance", "factuality", "completeness")]
    assert "reward.weights" in failed(diagnose(case(*nothing), "configuration")).mend
    assert "reward.weights.factuality" in warned(diagnose(case("reward.weights.factuality=-1"), "configuration")).mend
