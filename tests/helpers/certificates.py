"""A certificate that nobody but its own file vouches for."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")


def self_signed(directory: Path) -> tuple[Path, Path]:
    """A certificate of `localhost` and 127.0.0.1, and its key."""
    certificate, key = directory / "certificate.pem", directory / "key.pem"
    made = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=localhost".split()
    made += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-days", "2"]
    subprocess.run([*made, "-out", str(certificate), "-keyout", str(key)], check=True, capture_output=True)
    return certificate, key
