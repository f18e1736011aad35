"""What a DIALKI is beside its weights, and what is minimised to train it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import above, at_least, at_most, below
from finegrained_rlhf.dialki.inputs.examples import InputConfig
from finegrained_rlhf.dialki.inputs.units import Units
from finegrained_rlhf.dialki.model.search import SearchConfig
from finegrained_rlhf.dialki.records import GoldEntries


@dataclass(frozen=True)
class DialkiConfig(Settings):
    """What a DIALKI is, beside its weights.

    Attributes:
        inputs: limits and layout of its inputs.
        search: how it chooses an answer.
        contextualize: span vectors see the turns (know-ctx of table 3.3); with `units` whole they enter the passage's
            score.
        user_turns: how many of the most recent user turns they see.
        dropout: on s, z and u before the contextualization.
        parity: give the logits of padding as the original code does, instead of masking them.
        threshold: γ above which a passage is part of an answer from several, in what `search.select_by` says; None
            where it was not tuned.
        units: what becomes an input: `passages` with their spans, or their `sentences` one by one (Multi-Sentence);
            `whole` passages are found without spans in them; of a `document` all spans are one input (BERTQA-Span),
            for which a BERT's positions are repeated up to `inputs.max_length`.
    """

    next_loss_only: ClassVar[bool] = False
    """Whether it is trained without history loss and posterior regularization."""

    inputs: InputConfig = field(default_factory=InputConfig)
    search: SearchConfig = field(default_factory=SearchConfig)
    contextualize: bool = True
    user_turns: Annotated[int, at_least(1)] = 2
    dropout: Annotated[float, at_least(0), below(1)] = 0.1
    parity: bool = False
    threshold: float | None = None
    units: Units = "passages"

    def __post_init__(self) -> None:
        if self.threshold is not None and self.search.select_by != "logits" and not 0 <= self.threshold <= 1:
            raise ConfigError(f"dialki.threshold: expected null or a probability, got {self.threshold}")

    @property
    def system(self) -> str:
        """What people call it."""
        return {"sentences": "Multi-Sentence", "document": "BERTQA-Span"}.get(self.units, "DIALKI")

    @classmethod
    def parts(cls) -> dict[str, Callable[..., Any]]:
        """The fields that are records of their own in the saved JSON, and their classes."""
        return {"inputs": InputConfig, "search": SearchConfig}


@dataclass(frozen=True)
class NoiseConfig(Settings):
    """How the word embeddings are disturbed.

    Attributes:
        radius: a, the largest L2 norm of the noise of one passage's input (all tokens together).
        start: norm of the random start, as a share of the radius: at 0 the divergence has no direction.
        step: norm of the ascent step, as a share of the radius.
    """

    radius: Annotated[float, above(0)] = 1.0
    start: Annotated[float, above(0), at_most(1)] = 0.1
    step: Annotated[float, above(0)] = 1.0


@dataclass(frozen=True)
class LossConfig(Settings):
    """What is minimised. A weight of 0 switches a loss off, and nothing of it is computed.

    Attributes:
        history: α, of the history loss (1 on Doc2Dial, 0.5 on Wizard of Wikipedia).
        adversarial: β, of the posterior regularization.
        gold: of a dialogue with several gold entries, the next loss is that of `one`, drawn anew at every step, or the
            marginal likelihood of `all` among the passages of the step; `each` asks of every passage of the step by
            itself whether it is gold (`binary_loss`; with `dialki.units=whole`).
        noise: how it disturbs the word embeddings.
    """

    history: Annotated[float, at_least(0)] = 1.0
    adversarial: Annotated[float, at_least(0)] = 5.0
    gold: GoldEntries = "one"
    noise: NoiseConfig = field(default_factory=NoiseConfig)
