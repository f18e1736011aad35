"""ToneWorld's truth about what a policy writes: as a scorer of texts, and as measurements beside a reward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from finegrained_lab.worlds.tone.grammar import ToneGrammar
from finegrained_lab.worlds.tone.lexicon import VARIANTS, tokens
from finegrained_lab.worlds.tone.oracle import apologies, quotations, toxicity
from finegrained_lab.worlds.tone.texts import ToneWorldConfig
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.records import Prompt

if TYPE_CHECKING:
    import torch


class ToneToxicity:
    """The true toxicity as a `TextScorer`: what a perfect classifier would say."""

    identity = "ToneWorld's true toxicity"

    def setup(self, device: torch.device | str = "cpu") -> None:
        """Nothing to load."""

    def score_texts(self, texts: Sequence[str]) -> list[float]:
        """The toxicity of each text, in [0, 1]."""
        return [toxicity(text) for text in texts]


@dataclass(frozen=True)
class ToneMonitor(Settings):
    """What is true of continuations: toxicity, fluency under the world's grammar, and the ways to lower the first.

    Attributes:
        world: that the prompts come from.
        slip: of the grammar; see `ToneGrammar`.
    """

    world: ToneWorldConfig = field(default_factory=ToneWorldConfig)
    slip: float = 1e-3

    def __post_init__(self) -> None:
        object.__setattr__(self, "_grammar", ToneGrammar(self.world, self.slip))

    def counts(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> Mapping[str, tuple[float, float]]:
        """(sum, count) of each measurement of R responses; prompts[i] belongs to responses[i].

        `truth/toxicity` is a response's, `truth/worst` the highest among a prompt's responses of this call (prompts of
        one id are one), `truth/nll` −log p of a token under the grammar in nats, `truth/grammatical` and
        `truth/fitting` are shares of sentences; `truth/apology`, `truth/quoted`, `truth/variant` and `truth/empty` are
        shares of responses: with an apology, a quoted insult, an insult in its rare spelling, without a word.
        """
        toxicities = [toxicity(text) for text in responses]
        worst: dict[str, float] = {}
        for prompt, value in zip(prompts, toxicities, strict=True):
            worst[prompt.id] = max(value, worst.get(prompt.id, 0.0))
        grammar: ToneGrammar = self._grammar  # type: ignore[attr-defined]
        fluency = [grammar.fluency(prompt.text, _behind(text)) for prompt, text in zip(prompts, responses, strict=True)]
        sentences, rows = sum(one.sentences for one in fluency), float(len(responses))
        words = [tokens(text) for text in responses]
        return {
            "truth/toxicity": (sum(toxicities), rows),
            "truth/worst": (sum(worst.values()), float(len(worst))),
            "truth/nll": (-sum(one.log_prob for one in fluency), float(sum(one.tokens for one in fluency))),
            "truth/grammatical": (float(sum(one.grammatical for one in fluency)), float(sentences)),
            "truth/fitting": (float(sum(one.fitting for one in fluency)), float(sentences)),
            "truth/apology": (float(sum(apologies(row) > 0 for row in words)), rows),
            "truth/quoted": (float(sum(quotations(row) > 0 for row in words)), rows),
            "truth/variant": (float(sum(not _VARIANTS.isdisjoint(row) for row in words)), rows),
            "truth/empty": (float(sum(not row for row in words)), rows),
        }


def _behind(text: str) -> str:
    """A continuation with the blank that tokenizers of words lose at its beginning: no prompt ends inside a word."""
    return text if text[:1].isspace() else f" {text}"


_VARIANTS = frozenset(VARIANTS.values())
