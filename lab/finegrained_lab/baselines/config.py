"""What a BERTQA is: DIALKI's record, and how it cuts a document and chooses an answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import at_least
from finegrained_rlhf.dialki.inputs.examples import InputConfig
from finegrained_rlhf.dialki.model.config import DialkiConfig


@dataclass(frozen=True)
class WindowConfig(Settings):
    """How a document is cut, and how an answer is chosen from its windows.

    Attributes:
        stride: document tokens from the beginning of one window to that of the next.
        max_answer: longest answer in tokens.
        n_best: answers that a window offers, and that are kept of a dialogue.
        no_answer: by how much the score of `[CLS]` must exceed that of the best answer for none to be given; only where
            a dialogue's knowledge may be none (`no_passages_used` is among its passages).
    """

    stride: Annotated[int, at_least(1)] = 128
    max_answer: Annotated[int, at_least(1)] = 50
    n_best: Annotated[int, at_least(1)] = 20
    no_answer: float = 0.0

    def check(self, inputs: InputConfig) -> None:
        """Raise ConfigError where the longest history leaves windows that are shorter than the stride."""
        room = inputs.max_length - inputs.max_context - 3
        if self.stride > room:
            raise ConfigError(
                f"windows.stride: after {inputs.max_context} tokens of dialogue a window has {room} of "
                f"{inputs.max_length}, so a stride of {self.stride} would skip some"
            )


@dataclass(frozen=True)
class BertQaConfig(DialkiConfig):
    """What a BERTQA is, beside its weights: a document in windows, an answer by its first and last token.

    Attributes:
        contextualize: must be false: there are no span vectors.
        windows: how a document is cut, and how an answer is chosen from its windows.
    """

    next_loss_only: ClassVar[bool] = True

    contextualize: bool = False
    windows: WindowConfig = field(default_factory=WindowConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.windows.check(self.inputs)
        if self.contextualize or self.units != "passages":
            raise ConfigError("dialki: BERTQA needs dialki.contextualize=false and dialki.units=passages")
        if self.search.select_by != "probabilities":
            raise ConfigError("dialki.search.select_by: BERTQA has no logits of passages, expected probabilities")
        if self.search.score_by == "joint":
            raise ConfigError(
                "dialki.search.score_by: BERTQA compares the answers of all windows by logits or probabilities; joint "
                "needs the passages' probabilities that DIALKI has"
            )

    @property
    def system(self) -> str:
        """What people call it."""
        return "BERTQA"

    @classmethod
    def parts(cls) -> dict[str, Callable[..., Any]]:
        """The fields that are records of their own in the saved JSON, and their classes."""
        return {**super().parts(), "windows": WindowConfig}
