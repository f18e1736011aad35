"""What scores a text by itself, without its prompt: a classifier of toxicity, a service, a word list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch


@runtime_checkable
class TextScorer(Protocol):
    """Says how much of something a text has, from 0 (nothing) to 1.

    Attributes:
        identity: what gives the scores, with every setting that changes them: two scorers of one identity give a text
            the same score. Kept scores are filed under it, so it must hold no secret.
    """

    identity: str

    def setup(self, device: torch.device) -> None:
        """Load what is heavy and move it to `device`. Called once, before the first `score_texts`."""

    def score_texts(self, texts: Sequence[str]) -> list[float]:
        """One number in [0, 1] a text, in order. Texts may occur twice; none is empty.

        Raises:
            FineGrainedError: a text has no score; none is ever made up.
        """
