"""Where a result comes from: the command, the code, the machine and the time."""

from __future__ import annotations

import datetime
import os
import platform
import shlex
import sys
from pathlib import Path
from typing import Any

from finegrained_rlhf.runtime.process_config import available_cores

PACKAGE = "finegrained-rlhf"
_PACKAGES = (PACKAGE, "torch", "transformers", "accelerate", "tokenizers", "safetensors", "numpy", "peft")


def provenance(processes: int = 1) -> dict[str, Any]:
    """What made a result, ready for JSON.

    Args:
        processes: that work on it together.

    Returns:
        `date` (UTC, ISO 8601), `command`, `commit` (`unknown` outside a git checkout), `versions` by package, `python`,
        and `hardware`: `host`, `system`, `processor`, `cores` that this process may use, `memory_gib`, `gpus`, and
        `processes`.
    """
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": command_line(),
        "commit": commit_of(Path(__file__).parent),
        "python": platform.python_version(),
        "versions": package_versions(),
        "hardware": {**hardware(), "processes": processes},
    }


def command_line() -> str:
    """The command that started this process, as one would type it again; `python` where it was not a script.

    The command is `finegrained NAME` where `launch/commands.py` took its name from the command line. A script is named
    from the working directory; by its name alone where it lies elsewhere, so that a file that is passed on names no
    place of this machine.
    """
    script = sys.argv[0] if sys.argv else ""
    if not script or script == "-c":
        return "python"
    if script.startswith("finegrained "):
        return shlex.join([*script.split(), *sys.argv[1:]])
    path = Path(script)
    if path.is_absolute():
        script = path.relative_to(Path.cwd()).as_posix() if path.is_relative_to(Path.cwd()) else path.name
    return shlex.join([*(["python"] if script.endswith(".py") else []), script, *sys.argv[1:]])


def package_versions() -> dict[str, str]:
    """Versions of the packages that decide numbers, of those that are installed."""
    from importlib import metadata

    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def hardware() -> dict[str, Any]:
    """The machine, as far as it decides speed and rounding; memory in GiB."""
    import torch

    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {
        "host": platform.node(),
        "system": f"{platform.system()} {platform.release()}",
        "processor": _processor(),
        "cores": available_cores(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "gpus": gpus,
    }


def nameless_hardware() -> dict[str, Any]:
    """`hardware` without the machine's name, for results that are published."""
    return {name: value for name, value in hardware().items() if name != "host"}


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def commit_of(directory: Path) -> str:
    """The git commit that `directory` is at, with `-dirty` where tracked files differ; `unknown` outside git."""
    import subprocess

    try:
        run = ["git", "-C", str(directory), "describe", "--always", "--abbrev=12", "--dirty", "--exclude=*"]
        return subprocess.run(run, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
