"""Texts of ToneWorld: which sentences follow which, with what probability, and texts drawn so."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from finegrained_lab.worlds.tone import lexicon
from finegrained_lab.worlds.tone.lexicon import CALM, HOT, TOXIC_KINDS
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings


@dataclass(frozen=True)
class ToneWorldConfig(Settings):
    """How texts come about.

    Attributes:
        hot_share: of the texts that are about a topic of quarrels.
        toxic_calm: share of toxic sentences in texts about calm topics, after a sentence that is not toxic.
        toxic_hot: the same in texts about hot topics.
        toxic_after_toxic: share of toxic sentences after a toxic one, whatever the topic.
        apology_after_toxic: share of apologies after a toxic sentence.
        quoted: share of sentences that quote an insult.
        dual_thing: share of sentences in which a word that may be an insult is none.
        variant: share of insulting sentences in which insults have the spelling that is seldom seen.
        sentences: fewest and most of a text.
    """

    hot_share: float = 0.25
    toxic_calm: float = 0.06
    toxic_hot: float = 0.3
    toxic_after_toxic: float = 0.6
    apology_after_toxic: float = 0.1
    quoted: float = 0.04
    dual_thing: float = 0.06
    variant: float = 0.03
    sentences: tuple[int, int] = (4, 6)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sentences", tuple(self.sentences))
        for name, value in vars(self).items():
            if name != "sentences" and not 0.0 <= value <= 1.0:
                raise ConfigError(f"world.{name}: expected a share from 0 to 1, got {value}")
        for topic in lexicon.TOPICS:
            for after_toxic in (False, True):
                kinds = self.kinds(topic, after_toxic)
                if (others := sum(kinds.values()) - kinds["plain"]) > 1.0 + 1e-9:
                    raise ConfigError(f"world: shares of sentences add up to {others:g}, more than 1")
        if len(self.sentences) != 2 or not 2 <= self.sentences[0] <= self.sentences[1]:
            raise ConfigError(f"world.sentences: expected [FEWEST, MOST] from 2 on, got {list(self.sentences)}")

    def topics(self) -> dict[str, float]:
        """The probability of each topic."""
        calm = {topic: (1.0 - self.hot_share) / len(CALM) for topic in CALM}
        return calm | {topic: self.hot_share / len(HOT) for topic in HOT}

    def kinds(self, topic: str, after_toxic: bool) -> dict[str, float]:
        """The probability of each kind of sentence.

        Args:
            topic: of the text.
            after_toxic: whether the sentence before is toxic.
        """
        toxic = self.toxic_after_toxic if after_toxic else self.toxic_hot if topic in HOT else self.toxic_calm
        shares = {
            "dual_thing": self.dual_thing,
            "quoted": self.quoted,
            "apology": self.apology_after_toxic if after_toxic else 0.0,
            "mild": 0.4 * toxic,
            "strong": 0.4 * toxic,
            "dual_insult": 0.2 * toxic,
        }
        return {"plain": max(0.0, 1.0 - sum(shares.values())), **shares}

    def spellings(self, sentence: str) -> Mapping[str, float]:
        """How a sentence may be spelled, with probabilities."""
        varied = lexicon.with_variants(sentence)
        return {sentence: 1.0} if varied == sentence else {sentence: 1.0 - self.variant, varied: self.variant}


@dataclass(frozen=True)
class ToneText:
    """A text.

    Attributes:
        id: unique in the world.
        topic: that it is about.
        kinds: of its sentences.
        sentences: as they are spelled.
    """

    id: str
    topic: str
    kinds: tuple[str, ...]
    sentences: tuple[str, ...]

    @property
    def text(self) -> str:
        """The sentences, with a blank between them."""
        return " ".join(self.sentences)

    def halves(self) -> tuple[str, str]:
        """The first sentence and half of the second, as a prompt, and all that follows, from the white space on.

        The prompt has half of the second sentence's words, at least one.
        """
        words = self.sentences[1].split(" ")
        prompt = " ".join([self.sentences[0], *words[: len(words) // 2]])
        return prompt, self.text[len(prompt) :]


def draw_text(name: str, rng: random.Random, config: ToneWorldConfig) -> ToneText:
    """A text, sentence by sentence: its topic stays, and a toxic sentence makes the next one toxic more often."""
    topics = config.topics()
    topic = rng.choices(list(topics), list(topics.values()))[0]
    kinds: list[str] = []
    sentences: list[str] = []
    for _ in range(rng.randint(*config.sentences)):
        shares = config.kinds(topic, bool(kinds) and kinds[-1] in TOXIC_KINDS)
        kind = rng.choices(list(shares), list(shares.values()))[0]
        spellings = config.spellings(_drawn(rng, topic, kind))
        kinds.append(kind)
        sentences.append(rng.choices(list(spellings), list(spellings.values()))[0])
    return ToneText(name, topic, tuple(kinds), tuple(sentences))


def _drawn(rng: random.Random, topic: str, kind: str) -> str:
    """A sentence of a kind: every pattern as often as any other, and in it every filling."""
    return rng.choice(rng.choice(lexicon.sentences(topic, kind)))
