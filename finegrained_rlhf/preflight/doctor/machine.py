"""Checks of what a run stands on: installed versions, device and memory."""

from __future__ import annotations

import platform
import tomllib
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from packaging.requirements import Requirement

from finegrained_rlhf.preflight.doctor.case import Case, Finding
from finegrained_rlhf.preflight.memory.plan import Plan
from finegrained_rlhf.preflight.memory.preflight import device_bytes, plan_of
from finegrained_rlhf.preflight.memory.report import USABLE, memory_verdict, peak
from finegrained_rlhf.runtime.process_config import available_cores

_PROJECT = "finegrained-rlhf"
_PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
_ALWAYS = (
    "torch",
    "transformers",
    "tokenizers",
    "accelerate",
    "safetensors",
    "numpy",
    "datasets",
    "hydra-core",
    "omegaconf",
    "pyyaml",
)


def versions(case: Case) -> Iterator[Finding]:
    """Python and the packages that this run uses lie in the project's ranges."""
    python, required = requirements()
    yield from compare_versions(
        [Requirement(f"python{python}"), *(r for r in required if r.name.lower() in _used(case))],
        lambda name: platform.python_version() if name == "python" else _installed(name),
    )


def requirements(pyproject: Path = _PYPROJECT) -> tuple[str, list[Requirement]]:
    """The range of Python and all dependencies: of the checkout, or of the installed project where there is none."""
    if pyproject.is_file():
        project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
        extras = [item for items in project["optional-dependencies"].values() for item in items]
        return project["requires-python"], [Requirement(item) for item in (*project["dependencies"], *extras)]
    installed = metadata.metadata(_PROJECT)
    return installed["Requires-Python"], [Requirement(item) for item in metadata.requires(_PROJECT) or ()]


def _used(case: Case) -> set[str]:
    """Packages that this run imports."""
    used = set(_ALWAYS)
    policy, tracking = case.parts.get("policy"), case.parts.get("tracking")
    if policy is not None and (policy.lora is not None or policy.adapter is not None):
        used.add("peft")
    if any(hasattr(scorer, "granularity") for scorer in case.scorers.values()):  # it cuts text
        used.add("spacy")
    if tracking is not None and tracking.kind == "wandb":
        used.add("wandb")
    return used


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def compare_versions(required: Sequence[Requirement], installed: Callable[[str], str | None]) -> Iterator[Finding]:
    """One finding for all that fit, and one for each that does not.

    Args:
        required: packages with their ranges.
        installed: the version of a package; None where it is absent.
    """
    right, wrong = [], []
    for requirement in required:
        version = installed(requirement.name)
        if version is not None and requirement.specifier.contains(version, prereleases=True):
            right.append(f"{requirement.name} {version}")
        else:
            wrong.append((requirement, "is not installed" if version is None else f"is {version}"))
    if right:
        yield Finding("pass", ", ".join(right))
    for requirement, installed_version in wrong:
        what = f"{requirement.name} {installed_version}, expected {requirement.specifier}"
        remedy = f"pip install '{requirement.name}{requirement.specifier}'  (make venv installs what was tested)"
        yield Finding("fail", what, "install such a Python" if requirement.name == "python" else remedy)


def device(case: Case) -> Iterator[Finding]:
    """What the run computes on, and whether it can compute in the precision that is asked for."""
    processes, here = case.processes, case.processes.device
    if here.type != "cuda":
        what = f"CPU, {available_cores()} cores, {torch.get_num_threads()} threads, {processes.computed}"
        slow = "run the doctor on the machine of the run; processes.precision=fp32 is faster on this CPU, auto takes it"
        yield Finding("warn", f"{what}: no GPU", slow) if processes.emulated else Finding("pass", what)
        return
    name, count = torch.cuda.get_device_name(here), torch.cuda.device_count()
    kernels = ", ".join(attention_kernels())
    what = f"{count} × {name}, CUDA {torch.version.cuda}, {processes.computed}, attention by {kernels}"
    if processes.precision == "bf16" and not torch.cuda.is_bf16_supported(including_emulation=False):
        yield Finding("fail", f"{what}: it has no bf16", "processes.precision=fp32")
    else:
        yield Finding("pass", what)


def attention_kernels() -> list[str]:
    """Which kernels `scaled_dot_product_attention` may choose from on CUDA."""
    here = torch.backends.cuda
    allowed = {
        "flash": here.flash_sdp_enabled(),
        "memory-efficient": here.mem_efficient_sdp_enabled(),
        "cuDNN": here.cudnn_sdp_enabled(),
        "plain products": here.math_sdp_enabled(),
    }
    return [name for name, on in allowed.items() if on]


def memory(case: Case) -> Iterator[Finding]:
    """The expected peak of a training step against the memory of the device."""
    assert case.job is not None
    case.plan = plan_of(case.job, case.processes)
    name = "This machine" if case.processes.device.type != "cuda" else torch.cuda.get_device_name()
    available = device_bytes(case.processes)
    first, *changes = memory_verdict(case.plan, available, name).split("\n")
    if peak(case.plan)[0] <= USABLE * available:
        yield Finding("pass", first)
    else:
        yield Finding("fail", first, "; ".join(change.strip() for change in changes))


def fits(plan: Plan, processes: Any, copies: int = 1) -> bool:
    """Whether `copies` processes with this plan fit into the memory that this process may use."""
    return copies * peak(plan)[0] <= USABLE * device_bytes(processes)
