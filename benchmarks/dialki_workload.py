"""Dialogues, encoder and sizes of the DIALKI benchmark: random, seeded, the same for both sides.

Knows transformers' BERT and DIALKI's records; downloads nothing. Words are made of syllables and drawn by Zipf's law,
so that a subword tokenizer has its usual work; what is said means nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import BertConfig, BertModel

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.seeding import seed_everything, stable_hash
from finegrained_rlhf.dialki.inputs.examples import InputConfig
from finegrained_rlhf.dialki.model.config import DialkiConfig, LossConfig
from finegrained_rlhf.dialki.model.model import DialkiModel, new_dialki
from finegrained_rlhf.dialki.records import DialogueExample
from finegrained_rlhf.dialogue.records import Knowledge, Passage, Turn
from finegrained_rlhf.models.tiny_networks import build_tokenizer, encoder_tokenizer
from finegrained_rlhf.runtime.process_config import Precision

LOSSES = LossConfig(history=1.0, adversarial=5.0)
"""The thesis's on Doc2Dial."""
_SYLLABLES = [a + b for a, b in itertools.product("b d f g k l m n p r s t v w z".split(), "a e i o u".split())]
_WORDS = 4000


@dataclass(frozen=True)
class DialkiProfile:
    """What is measured.

    Attributes:
        name: of the profile.
        device: `cpu` or `cuda`.
        precision: `fp32`, or `bf16` for bf16 autocast over fp32 weights.
        width: of the BERT's hidden states.
        inner: width of its feed-forward layers.
        layers: of it.
        heads: of its attention.
        vocabulary: rows of its word embeddings; the tokenizer uses no more of them.
        documents: each with one dialogue.
        questions: user turns that are answered of each dialogue, hence examples a document.
        fewest_passages: of a document.
        most_passages: of a document; their numbers are spread evenly between the two.
        most_spans: of a passage, 1 or more evenly.
        most_words: of a span, 3 or more evenly.
        max_length: longest input in tokens.
        max_context: longest dialogue history in tokens.
        batch_size: examples a training step, and in one forward pass of ours at inference.
        train_passages: passages of an example in training.
        rounds: measured rounds of both sides in turn: one inference of all examples and one training step each.
        warmup: rounds that are not counted.
        threads: CPU threads; 0 leaves torch's choice.
        seed: of weights, dialogues and training.
    """

    name: str
    device: str
    precision: Precision
    width: int
    inner: int
    layers: int
    heads: int
    vocabulary: int
    documents: int
    questions: int
    fewest_passages: int
    most_passages: int
    most_spans: int
    most_words: int
    max_length: int
    max_context: int
    batch_size: int
    train_passages: int
    rounds: int
    warmup: int
    threads: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("documents", "questions", "fewest_passages", "batch_size", "train_passages", "rounds"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: expected at least 1, got {getattr(self, name)}")
        if self.most_passages < self.fewest_passages:
            raise ConfigError(f"most_passages: expected at least {self.fewest_passages}, got {self.most_passages}")
        if self.precision not in ("fp32", "bf16"):
            raise ConfigError(f"precision: expected fp32 or bf16, got {self.precision!r}")
        if self.warmup < 0 or self.threads < 0:
            raise ConfigError("warmup and threads must not be negative")


PROFILES = {
    "cpu": DialkiProfile(
        name="cpu",
        device="cpu",
        precision="fp32",
        width=256,
        inner=1024,
        layers=4,
        heads=4,
        vocabulary=8000,
        documents=25,
        questions=8,
        fewest_passages=8,
        most_passages=20,
        most_spans=12,
        most_words=24,
        max_length=512,
        max_context=126,
        batch_size=4,
        train_passages=8,
        rounds=3,
        warmup=1,
    ),
    "gpu": DialkiProfile(
        name="gpu",
        device="cuda",
        precision="bf16",
        width=768,
        inner=3072,
        layers=12,
        heads=12,
        vocabulary=30522,
        documents=32,
        questions=8,
        fewest_passages=8,
        most_passages=20,
        most_spans=12,
        most_words=24,
        max_length=512,
        max_context=126,
        batch_size=16,
        train_passages=8,
        rounds=3,
        warmup=1,
    ),
    "tiny": DialkiProfile(
        name="tiny",
        device="cpu",
        precision="fp32",
        width=32,
        inner=64,
        layers=2,
        heads=2,
        vocabulary=600,
        documents=3,
        questions=2,
        fewest_passages=2,
        most_passages=5,
        most_spans=6,
        most_words=8,
        max_length=60,
        max_context=12,
        batch_size=3,
        train_passages=3,
        rounds=2,
        warmup=0,
        threads=1,
    ),
}
SETTABLE = (
    "precision documents questions fewest_passages most_passages most_spans most_words max_length max_context "
    "batch_size train_passages rounds warmup threads seed"
).split()


class Writer:
    """Random words, sentences and passages.

    Args:
        seed: of all of them.
    """

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(stable_hash(seed, "dialki benchmark"))
        lengths = self.random.integers(1, 5, _WORDS)
        self.words = ["".join(self.random.choice(_SYLLABLES, int(length))) for length in lengths]
        ranks = 1.0 / np.arange(1, _WORDS + 1)
        self.weights = ranks / ranks.sum()

    def sentence(self, most_words: int) -> str:
        """A sentence of 3 to `most_words` words."""
        count = int(self.random.integers(3, most_words + 1))
        return " ".join(self.words[i] for i in self.random.choice(_WORDS, count, p=self.weights)) + "."

    def passage(self, number: int, profile: DialkiProfile) -> Passage:
        """A passage of 1 to `most_spans` sentences."""
        spans = (self.sentence(profile.most_words) for _ in range(int(self.random.integers(1, profile.most_spans + 1))))
        return Passage(f"p{number}", self.sentence(4), tuple(spans))

    def knowledge(self, passages: Sequence[Passage]) -> Knowledge:
        """One to three spans of a passage."""
        place = int(self.random.integers(len(passages)))
        begin = int(self.random.integers(len(passages[place].spans)))
        end = min(begin + int(self.random.integers(3)), len(passages[place].spans) - 1)
        return Knowledge(place, begin, end)


def make_examples(profile: DialkiProfile) -> list[DialogueExample]:
    """Documents with one dialogue each; every user turn of it is an example with the turns before it."""
    writer = Writer(profile.seed)
    counts = np.linspace(profile.fewest_passages, profile.most_passages, profile.documents).round().astype(int)
    examples = []
    for document, count in enumerate(counts.tolist()):
        passages = tuple(writer.passage(i, profile) for i in range(count))
        turns: list[Turn] = []
        for question in range(profile.questions):
            turns.append(Turn("user", writer.sentence(profile.most_words), writer.knowledge(passages)))
            answer = Turn("agent", writer.sentence(profile.most_words), writer.knowledge(passages))
            assert answer.knowledge is not None
            name = f"{document}-{question}"
            examples.append(DialogueExample(name, tuple(turns), passages, (answer.knowledge,), answer.text))
            turns.append(answer)
    return examples


def build_model(profile: DialkiProfile, examples: Sequence[DialogueExample], directory: Path) -> DialkiModel:
    """An untrained DIALKI on a random BERT, whose scores depend on every input: heads are drawn wide.

    Args:
        profile: its sizes.
        examples: their words make the tokenizer.
        directory: scratch, for the encoder's files.
    """
    corpus = [turn.text for example in examples for turn in example.turns]
    corpus += [text for example in examples for passage in example.passages for text in (passage.title, *passage.spans)]
    tokenizer: Any = build_tokenizer(dict.fromkeys(corpus), "bpe", profile.vocabulary - 2)  # two for the role tokens
    seed_everything(profile.seed, "weights")
    bert = BertModel(
        BertConfig(
            vocab_size=profile.vocabulary,
            hidden_size=profile.width,
            intermediate_size=profile.inner,
            num_hidden_layers=profile.layers,
            num_attention_heads=profile.heads,
            max_position_embeddings=profile.max_length,
            initializer_range=0.6 / profile.width**0.5,
        )
    )
    bert.save_pretrained(directory)
    encoder_tokenizer(tokenizer, profile.max_length).save_pretrained(directory)
    model = new_dialki(directory, DialkiConfig(inputs=InputConfig(profile.max_length, profile.max_context)))
    with torch.no_grad():
        for parameter in model.heads.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=1.0 / profile.width**0.5)
    return model


def encoder_passes(training: bool) -> int:
    """Forward passes that the encoder's work amounts to, a backward pass for one kind of gradient being one.

    Inference has one. A training step with the posterior regularization has a clean pass, one from the random start
    with its gradient for the embeddings alone, a noisy one, and clean and noisy backwards for inputs and weights: 8.
    """
    return 1 + 2 + 1 + 4 if training else 1


def encoder_flops(profile: DialkiProfile, tokens: int) -> int:
    """Floating-point operations of the matrix products of one forward pass over one input of so many tokens."""
    linear = 8 * profile.width**2 + 4 * profile.width * profile.inner
    return profile.layers * (tokens * linear + 4 * tokens**2 * profile.width)
