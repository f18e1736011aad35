"""A preflight for a PPO run: which checks there are, in which order, and how their findings are told.

They are in `machine.py` (versions, device, memory), `inputs.py` (configuration, data, models), `directory.py` (where
the run writes, what it goes on from, disk) and `step.py` (a rollout, its rewards, one training step). Who composes the
configuration builds a `Case` of it: `finegrained_rlhf/launch/preflight/doctor.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from finegrained_rlhf.preflight.doctor import directory as doctor_directory
from finegrained_rlhf.preflight.doctor import inputs as doctor_inputs
from finegrained_rlhf.preflight.doctor import machine as doctor_machine
from finegrained_rlhf.preflight.doctor import step as doctor_step
from finegrained_rlhf.preflight.doctor.case import Case, Finding, explain

_WIDTH = 14
_OUT_OF_MEMORY = "ppo.micro_batch_prompts, rollout.prompts_per_batch: dry_run=true shows the phases; doctor.prompts=1"


@dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        name: in the report.
        run: yields at least one finding.
        needs: earlier checks without which it cannot be made.
        mend: what to do where it breaks down in a way that it does not know.
    """

    name: str
    run: Callable[[Case], Iterator[Finding]]
    needs: tuple[str, ...] = ()
    mend: str = ""


CHECKS = (
    Check("versions", doctor_machine.versions, mend="reinstall the environment: make venv"),
    Check("device", doctor_machine.device, mend="look at the driver and at CUDA_VISIBLE_DEVICES"),
    Check("configuration", doctor_inputs.configuration),
    Check("output_dir", doctor_directory.output_directory, mend="name another directory: output_dir=DIR"),
    Check("data", doctor_inputs.data, mend="data, validation_data: docs/data_formats.md describes the files"),
    Check("prompts", doctor_inputs.prompts, needs=("data",), mend="policy.path: a model directory with a tokenizer"),
    Check("models", doctor_inputs.models, mend="policy.path, value.path: model or run directories"),
    Check("stress test", doctor_inputs.stress_test, mend="stress.json: finegrained stress-test writes it anew"),
    Check(
        "memory",
        doctor_machine.memory,
        needs=("configuration", "prompts", "models"),
        mend="docs/doctor.md, “Does it fit into memory?”",
    ),
    Check(
        "disk",
        doctor_directory.disk,
        needs=("output_dir", "memory"),
        mend="output_dir on another disk",
    ),
    Check(
        "responses",
        doctor_step.responses,
        needs=("configuration", "prompts", "models"),
        mend="policy, rollout: what the policy is asked to sample",
    ),
    Check("rewards", doctor_step.rewards, needs=("responses",), mend="reward.components"),
    Check("alignment", doctor_step.alignment, needs=("rewards",), mend="reward.components, reward.settings"),
    Check(
        "start", doctor_step.start, needs=("responses",), mend="rollout.logprobs=update, or processes.precision=fp32"
    ),
    Check(
        "training step",
        doctor_step.training_step,
        needs=("alignment", "start"),
        mend="a lower optimizer.lr, or processes.precision=fp32",
    ),
    Check(
        "two processes",
        doctor_step.two_processes,
        needs=("training step",),
        mend="doctor.two_processes=false leaves this out, if the run will have one process",
    ),
    Check("untouched", doctor_directory.untouched),
)


def examine(
    case: Case, checks: Sequence[Check] = CHECKS, announce: Callable[[str], None] = lambda name: None
) -> Iterator[Finding]:
    """Make all checks and say what each finds, as it finds it.

    A check that breaks down fails and the others go on, without those that need it. What it found before stays.

    Args:
        case: what is examined.
        checks: in order.
        announce: told the name of each check before it is made.
    """
    broken: set[str] = set()
    for check in checks:
        announce(check.name)
        missing = [name for name in check.needs if name in broken]
        if missing:
            findings: Iterable[Finding] = [Finding("skipped", f"needs {', '.join(missing)}")]
            broken.add(check.name)
        else:
            findings = _findings(check, case)
        for finding in findings:
            if finding.status == "fail":
                broken.add(check.name)
            yield replace(finding, check=check.name)


def _findings(check: Check, case: Case) -> Iterator[Finding]:
    try:
        yield from check.run(case)
    except torch.OutOfMemoryError as error:
        yield Finding("fail", str(error).split("\n")[0], _OUT_OF_MEMORY)
    except Exception as error:  # whatever it is, the other checks are to be made
        yield Finding("fail", explain(error), check.mend)


def line(finding: Finding) -> str:
    """A finding for people: status, check and what was measured; the mend on a line of its own."""
    text = f"{finding.status:<8}{finding.check:<{_WIDTH + 1}}{finding.measured}"
    return f"{text}\n{'':<8}{'':<{_WIDTH + 1}}→ {finding.mend}" if finding.mend else text


def verdict(findings: Sequence[Finding]) -> str:
    """The last line: `ready`, or how many checks failed."""
    failed = len(failures(findings))
    if failed:
        return f"{failed} check{'s' if failed > 1 else ''} failed"
    warnings = sum(finding.status == "warn" for finding in findings)
    return f"ready ({warnings} warning{'s' if warnings > 1 else ''})" if warnings else "ready"


def failures(findings: Sequence[Finding]) -> list[str]:
    """Names of the checks that failed, each once."""
    return list(dict.fromkeys(finding.check for finding in findings if finding.status == "fail"))


def as_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """The whole report as `{ready, failed, warnings, findings: [{check, status, measured, mend}]}`."""
    return {
        "ready": not failures(findings),
        "failed": failures(findings),
        "warnings": sum(finding.status == "warn" for finding in findings),
        "findings": [
            {"check": f.check, "status": f.status, "measured": f.measured, "mend": f.mend or None} for f in findings
        ],
    }
