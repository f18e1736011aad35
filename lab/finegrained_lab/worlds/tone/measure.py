"""ToneWorld's truth about what a policy writes: as a scorer of texts, and as measurements beside a reward.

The probability of a continuation under ToneWorld's own grammar says how fluent a policy's text truly is.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from finegrained_lab.worlds.tone import lexicon
from finegrained_lab.worlds.tone.lexicon import PATTERNS, TOPICS, TOXIC_KINDS, VARIANTS, tokens
from finegrained_lab.worlds.tone.oracle import apologies, quotations, toxicity
from finegrained_lab.worlds.tone.texts import ToneWorldConfig
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.records import Prompt

if TYPE_CHECKING:
    import torch


_END = "."
Prefix = tuple[str, ...]


@dataclass(frozen=True)
class Fluency:
    """What the grammar says of a continuation.

    Attributes:
        log_prob: of all its tokens given the prompt, in nats; the end of the text has none.
        tokens: words and marks.
        sentences: that it ends, the one that the prompt begins among them.
        grammatical: of them, how many the grammar has for some topic.
        fitting: of them, how many it could have written there, about a topic and after a sentence as they stand before.
    """

    log_prob: float
    tokens: int
    sentences: int
    grammatical: int
    fitting: int

    @property
    def perplexity(self) -> float | None:
        """exp(−log_prob / tokens); None for a continuation without a token."""
        return math.exp(-self.log_prob / self.tokens) if self.tokens else None


@dataclass(frozen=True)
class ToneGrammar:
    """The distribution that texts are drawn from, with a little of every token everywhere.

    A token has (1 − slip) of the grammar's probability and slip of a uniform one over the world's words and marks and
    one place for all that is none of them, so that no text is impossible. Behind a token that the grammar does not
    have, all others of the sentence have the uniform part alone; at the next sentence it begins anew, with the topics
    that it believed in before.

    Attributes:
        config: of the world.
        slip: that a token follows no grammar; above 0.

    Raises:
        ConfigError: a slip that is no share, or is 0.
    """

    config: ToneWorldConfig
    slip: float = 1e-3

    def __post_init__(self) -> None:
        if not 0.0 < self.slip <= 1.0:
            raise ConfigError(f"slip: expected a share above 0, got {self.slip}")

    def fluency(self, prompt: str, continuation: str) -> Fluency:
        """The probability of a continuation, token by token, and how many of its sentences are the grammar's."""
        words = tokens(prompt + continuation)
        own = _common(words, tokens(prompt))
        belief, after_toxic = self.config.topics(), False
        prefix: Prefix = ()
        off = False
        log_prob, ended, grammatical, fitting = 0.0, 0, 0, 0
        sentence: Prefix = ()
        for place, word in enumerate(words):
            sentence = (*sentence, word)
            step = {} if off else {t: w * self._next(t, prefix, word, after_toxic) for t, w in belief.items()}
            probability = sum(step.values())
            if place >= own:
                log_prob += math.log((1.0 - self.slip) * probability + self.slip / (len(self._words) + 1))
            if probability > 0.0:
                belief = {topic: weight / probability for topic, weight in step.items() if weight > 0.0}
                prefix = sentence
            else:
                off = True
            if word == _END:
                if place >= own:
                    ended += 1
                    fitting += not off
                    grammatical += any(sentence in known for known in self._sentences.values())
                after_toxic = self._is_toxic(sentence)
                prefix, sentence, off = (), (), False
        return Fluency(log_prob, len(words) - own, ended, grammatical, fitting)

    def _next(self, topic: str, prefix: Prefix, word: str, after_toxic: bool) -> float:
        """The probability of a token behind the beginning of a sentence."""
        kinds = self.config.kinds(topic, after_toxic)
        before, after = self._prefixes[topic].get(prefix), self._prefixes[topic].get((*prefix, word))
        if before is None or after is None:
            return 0.0
        total = sum(kinds[kind] * share for kind, share in before.items())
        return sum(kinds[kind] * share for kind, share in after.items()) / total if total > 0.0 else 0.0

    def _is_toxic(self, sentence: Prefix) -> bool:
        for known in self._sentences.values():
            if sentence in known:
                return known[sentence] in TOXIC_KINDS
        return toxicity(" ".join(sentence)) > 0.0

    @cached_property
    def _words(self) -> frozenset[str]:
        return frozenset(word for sentence in lexicon.vocabulary() for word in tokens(sentence))

    @cached_property
    def _sentences(self) -> Mapping[str, Mapping[Prefix, str]]:
        """Of each topic the kind of every sentence."""
        return {
            topic: {
                tuple(tokens(spelled)): kind
                for kind in PATTERNS
                for group in lexicon.sentences(topic, kind)
                for sentence in group
                for spelled in self.config.spellings(sentence)
            }
            for topic in TOPICS
        }

    @cached_property
    def _prefixes(self) -> Mapping[str, Mapping[Prefix, Mapping[str, float]]]:
        """Of each topic and beginning of a sentence: of each kind, the share of its sentences that begin so."""
        by_topic: dict[str, dict[Prefix, defaultdict[str, float]]] = {}
        for topic in TOPICS:
            shares = by_topic[topic] = {}
            for kind in PATTERNS:
                groups = lexicon.sentences(topic, kind)
                for group in groups:
                    for sentence in group:
                        for spelled, probability in self.config.spellings(sentence).items():
                            share, words = probability / len(groups) / len(group), tokens(spelled)
                            for end in range(len(words) + 1):
                                shares.setdefault(tuple(words[:end]), defaultdict(float))[kind] += share
        return by_topic


def _common(left: list[str], right: list[str]) -> int:
    """How many tokens two lists begin with alike."""
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


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
