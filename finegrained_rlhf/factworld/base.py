"""What every generated world does alike: splits of given sizes from a seed, written as files that a manifest seals."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.exports import public_path
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import read_json, sha256_of, write_json, write_jsonl, write_text
from finegrained_rlhf.core.markers import OutputDirectory, Seed
from finegrained_rlhf.core.seeding import stable_hash

Drawn = TypeVar("Drawn")
"""What a world draws for each record of a split: everything that its files say, and what its oracle knows."""
TRUTH, VOCABULARY, MANIFEST = "world.jsonl", "corpus.txt", "manifest.json"


@dataclass(frozen=True)
class World(Settings, ABC, Generic[Drawn]):
    """A generator whose every record is known: it draws its splits from a seed and writes them to `output_dir`.

    Besides a file a split: `world.jsonl`, what is true of every record; `corpus.txt`, every word of the world in every
    form, to build a tokenizer from, whatever the seed; `manifest.json`, the configuration and the SHA-256 of every
    file. The manifest is removed first and written last: a directory that has one is whole.

    Attributes:
        output_dir: where the files go.
        seed: of the world; another seed is another draw of everything.
    """

    salt: ClassVar[str]
    """Keeps the random numbers of two worlds of one seed apart."""
    splits: ClassVar[tuple[str, ...]]
    """Each a field of the configuration: how many records to draw; 0 writes no file."""
    suffix: ClassVar[str] = ".jsonl"
    """Of a split's file."""

    output_dir: OutputDirectory
    seed: Seed = 0

    def __post_init__(self) -> None:
        for split in self.splits:
            if getattr(self, split) < 0:
                raise ConfigError(f"{split} must be 0 or more, got {getattr(self, split)}")

    @abstractmethod
    def draw(self) -> dict[str, list[Drawn]]:
        """The records of each split, from the configuration and the seed alone."""

    @abstractmethod
    def write_split(self, path: Path, split: str, drawn: Sequence[Drawn]) -> None:
        """Write one split, whole."""

    @abstractmethod
    def truth(self, split: str, drawn: Drawn) -> dict[str, Any]:
        """The record's line of `world.jsonl`."""

    @abstractmethod
    def vocabulary(self) -> list[str]:
        """Texts with every word of the world in every form that its files use, whatever its size and seed."""

    def write_shared(self, directory: Path) -> list[str]:
        """Write what all splits share; the names of its files."""
        return []

    def in_words(self, splits: Mapping[str, Sequence[Drawn]]) -> str:
        """How much was drawn, without splits of nothing: `60 train, 20 dev`."""
        return ", ".join(f"{len(drawn)} {split}" for split, drawn in splits.items() if drawn)

    def rng(self, *purpose: str) -> random.Random:
        """Random numbers for one purpose, independent of those for any other."""
        return random.Random(stable_hash(self.seed, self.salt, *purpose))

    def run(self) -> None:
        """Draw the world and write every file whole; prints one line.

        Files of an earlier world that its manifest names and this one does not have are removed.
        """
        directory, splits = Path(self.output_dir), self.draw()
        before = _listed(directory / MANIFEST)
        (directory / MANIFEST).unlink(missing_ok=True)
        names = self.write_shared(directory)
        for split, drawn in splits.items():
            if drawn:
                self.write_split(directory / f"{split}{self.suffix}", split, drawn)
                names.append(f"{split}{self.suffix}")
        write_jsonl(directory / TRUTH, (self.truth(split, one) for split, drawn in splits.items() for one in drawn))
        write_text(directory / VOCABULARY, "\n".join(self.vocabulary()) + "\n")
        names += [TRUTH, VOCABULARY]
        for name in before - set(names):
            (directory / name).unlink(missing_ok=True)
        write_json(directory / MANIFEST, self._manifest(directory, names))
        print(f"{self.in_words(splits)} -> {self.output_dir}")

    def _manifest(self, directory: Path, names: Sequence[str]) -> dict[str, Any]:
        configuration = {name: value for name, value in asdict(self).items() if name != "output_dir"}
        return {
            "world": public_path(type(self)),
            "configuration": configuration,
            "files": {name: sha256_of(directory / name) for name in sorted(names)},
        }


def _listed(manifest: Path) -> set[str]:
    """The files beside it that an earlier world's manifest names; none where there is no manifest.

    Raises:
        DataError: it is not JSON.
    """
    listed = read_json(manifest) if manifest.is_file() else {}
    files = listed.get("files") if isinstance(listed, dict) else None
    return {name for name in files if Path(name).name == name} if isinstance(files, dict) else set()
