"""What makes a language model class-conditional: the code of each class, which stands before a text (GeDi)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from finegrained_rlhf.core.errors import ModelError
from finegrained_rlhf.core.files import read_json, write_json

FILE = "class_codes.json"


@dataclass(frozen=True)
class ClassCodes:
    """The codes of a class-conditional language model.

    Attributes:
        codes: of each class the token ids that stand before its texts, at least one.
        scale: factor of the mean log-probability of a text in the logit of its class; trained.
    """

    codes: Mapping[str, tuple[int, ...]]
    scale: float = 1.0

    @classmethod
    def read(cls, directory: Path) -> ClassCodes:
        """Those beside a model.

        Raises:
            ModelError: there is no file of codes, or it is damaged.
        """
        path = directory / FILE
        if not path.is_file():
            raise ModelError(
                f"{directory}: no class-conditional language model (expected {FILE}, as finegrained train-gedi does)"
            )
        record = read_json(path)
        try:
            codes = {str(name): tuple(int(i) for i in ids) for name, ids in record["codes"].items()}
            scale = float(record["scale"])
        except (KeyError, TypeError, ValueError, AttributeError):
            raise ModelError(f"{path}: expected codes, token ids by class, and a scale") from None
        if len(codes) < 2 or not all(codes.values()):
            raise ModelError(f"{path}: expected two classes or more, each with a token")
        return cls(codes, scale)

    def write(self, directory: Path) -> None:
        """Write them beside a model."""
        write_json(
            directory / FILE, {"codes": {name: list(ids) for name, ids in self.codes.items()}, "scale": self.scale}
        )
