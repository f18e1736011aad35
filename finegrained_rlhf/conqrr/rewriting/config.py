"""How rewrites are decoded, and what is written of one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from finegrained_rlhf.conqrr.inputs import MAX_INPUT_TOKENS, MAX_REWRITE_TOKENS
from finegrained_rlhf.conqrr.templates import RewriteTemplate
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import at_least


@dataclass(frozen=True)
class RewritingConfig(Settings):
    """How rewrites are decoded.

    Attributes:
        beams: 1 decodes greedily, as the thesis does.
        alpha: length normalisation of a beam search (Wu et al., 2016); 0 does not normalise, more makes longer
            rewrites. The thesis's T5QR with brevity penalty has the one that matches CONQRR in length (figure 4.5).
        max_input_tokens: longest input; older turns are cut off.
        max_new_tokens: longest rewrite, end of sequence included.
        batch_size: questions decoded at once.
        template: what stands around the dialogue, a text with `{dialogue}`; None: what the policy was trained with,
            the dialogue alone where its checkpoint does not say.
    """

    beams: Annotated[int, at_least(1)] = 1
    alpha: float = 0.0
    max_input_tokens: int = MAX_INPUT_TOKENS
    max_new_tokens: Annotated[int, at_least(1)] = MAX_REWRITE_TOKENS
    batch_size: Annotated[int, at_least(1)] = 64
    template: str | None = None

    def __post_init__(self) -> None:
        if self.template is not None:
            RewriteTemplate(self.template)
        if self.alpha and self.beams == 1:
            raise ConfigError("alpha: greedy decoding has no length normalisation; set beams above 1 too")


@dataclass(frozen=True)
class WrittenRewrite:
    """A rewrite as it was decoded.

    Attributes:
        text: without special tokens.
        finished: the policy ended it; False where the limit of tokens cut it off.
    """

    text: str
    finished: bool


def words_of(text: str) -> int:
    """The length of a rewrite in words between white space."""
    return len(text.split())
