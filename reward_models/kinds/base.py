"""What a kind of reward model is: what it judges, how its labels are made, what it reads.

The forms are all there is: a segment kind (`segment.py`) is data alone, so that one is built from a category of a
taxonomy; pair kinds compare answers (`pairwise.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.feedback.taxonomy import Density

Form = Literal["segment", "sequence"]
"""Whether a model labels each segment of an answer, or gives the whole answer one score."""
GlobalAttention = Literal["none", "first", "separators"]
"""Which tokens of a Longformer see everything: none, the class token, or it and the separators."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of reward model; what there is, is a `SegmentKind` or a `PairKind`.

    Attributes:
        name: in files, configurations and directories.
        density: what gets a value of its own.
        reads_passages: whether the input shows the passages.
        selected_by: the validation metric that the best checkpoint has most of.
    """

    form: ClassVar[Form]
    headline: ClassVar[tuple[str, ...]]
    """The validation metrics that are printed at the end of a training."""

    name: str
    density: Density
    reads_passages: bool
    selected_by: str = "accuracy"

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise ConfigError(f"a reward model kind needs a name of letters, digits and _, got {self.name!r}")
        known = self.density in get_args(Density)
        if not known or (self.form == "sequence" and self.density != "response"):
            raise ConfigError(f"reward model kind {self.name}: a {self.form} model cannot judge each {self.density!r}")
