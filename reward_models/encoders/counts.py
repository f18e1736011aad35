"""What counting words says of a segment or an answer: numbers that a linear layer adds to a reward model's head.

A small encoder that has seen a few hundred examples does not count well: how long a segment is, what share of its words
was asked for, said before or stands in the passages. Here that is counted, in training and scoring alike.

What a policy gains by copying or by writing short, a model with counts sees directly; whether that is wanted is the
user's choice (`counts` of the model's record). In training alone the same layer can be the bias model whose part the
encoder is not to learn (`training/objectives.py`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from finegrained_rlhf.core.errors import ModelError
from reward_models.kinds import Kind
from reward_models.parts import InputParts, content_words, sentences_of

_WORD = re.compile(r"\w+")
_OF_SEGMENT = ("place", "last", "segments", "length", "words", "asked", "said")
_OF_ANSWER = ("length", "words", "variety", "answered")
_OF_PASSAGES = ("sentence", "passages", "bigrams", "numbers")


def count_names(kind: Kind) -> tuple[str, ...]:
    """What is counted for a kind, in the order of its columns."""
    own = _OF_SEGMENT if kind.form == "segment" else _OF_ANSWER
    return own + _OF_PASSAGES if kind.reads_passages else own


def word_counts(kind: Kind, item: InputParts) -> tuple[tuple[float, ...], ...]:
    """A row of numbers for each segment, or one row for a whole answer, in the order of `count_names`.

    Of a segment: its place (from 0, in tens), whether it is the last, how many there are (in tens), ln(1 + words) and
    words (in tens), the share of its content words in the question and in the segments before it. Of an answer:
    ln(1 + words), words (in hundreds), distinct words / words, the share of the question's content words in it. Of
    both, where the kind reads passages: the greatest share of content words in one sentence of the passages, the share
    in all of them, the share of pairs of neighbouring words, the share of numbers. Shares lie in [−1, 1]: 2·share − 1,
    and a share of nothing is 1, of what there are no passages for −1.
    """
    source = _Source.of(item.context) if kind.reads_passages else None
    question_words = content_words(item.before)
    if kind.form == "segment":
        return tuple(_of_segments(item.segments, question_words, source))
    answer = item.after.removeprefix("answer:") if item.context else item.before.rpartition(" answer:")[2]
    words = _WORD.findall(answer.lower())
    shares = [_share(set(words), words), _share(question_words & content_words(answer), question_words)]
    return ((math.log1p(len(words)), len(words) / 100, *shares, *(source.counts(answer) if source else ())),)


class CountLayer(nn.Linear):
    """What counts add to the logits of a kind of model; its weights lie in a file beside the model's.

    It begins with 0, so that it adds nothing; what it then adds is fitted before the encoder learns the rest, and stays
    (`training/logistic.py`).

    Args:
        kind: whose counts it reads.
        labels: logits an item.
    """

    FILE = "counts.safetensors"

    def __init__(self, kind: Kind, labels: int) -> None:
        super().__init__(len(count_names(kind)), labels)
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)
        self.requires_grad_(False)

    @torch.no_grad()
    def set(self, weights: Sequence[float], bias: float, has_error: int) -> None:
        """Let it add log odds: of a label id among two, half to it and half less to the other; or to the one score.

        Args:
            weights: of the counts [F].
            bias: of the log odds.
            has_error: id of the label that they are the odds of; 0 where there is one score.
        """
        values = torch.tensor([*weights, bias], device=self.weight.device)
        signs = torch.full((self.out_features, 1), -0.5 if self.out_features == 2 else 1.0, device=values.device)
        signs[has_error] = 0.5 if self.out_features == 2 else 1.0
        added = signs * values
        self.weight.copy_(added[:, :-1])
        self.bias.copy_(added[:, -1])

    def of(self, counts: Tensor) -> Tensor:
        """From counts [·, F] to what is added to logits [·, labels], both fp32, under autocast too."""
        with torch.autocast(counts.device.type, enabled=False):
            added: Tensor = self(counts)
        return added

    def save(self, directory: Path) -> None:
        """Write the weights into a model's directory."""
        save_file({k: v.cpu().contiguous() for k, v in self.state_dict().items()}, directory / self.FILE)

    def load(self, directory: Path) -> None:
        """Read the weights from a model's directory.

        Raises:
            ModelError: they are missing, damaged or of another kind.
        """
        try:
            self.load_state_dict(load_file(directory / self.FILE))
        except (OSError, SafetensorError, RuntimeError) as error:
            raise ModelError(f"{directory / self.FILE}: not the weights of this model's counts ({error})") from None


def _share(part: Collection[object], whole: Collection[object]) -> float:
    return 2 * len(part) / len(whole) - 1 if whole else 1.0


def _of_segments(segments: Sequence[str], question_words: set[str], source: _Source | None) -> list[tuple[float, ...]]:
    earlier_words: set[str] = set()
    rows = []
    for place, text in enumerate(segments):
        words, length = content_words(text), len(text.split())
        own = (place / 10, float(place == len(segments) - 1), len(segments) / 10, math.log1p(length), length / 10)
        shares = (_share(words & question_words, words), _share(words & earlier_words, words))
        rows.append((*own, *shares, *(source.counts(text) if source else ())))
        earlier_words |= words
    return rows


@dataclass(frozen=True)
class _Source:
    """The passages as counts need them.

    Attributes:
        sentences: content words of each sentence.
        words: of all of them.
        bigrams: pairs of neighbouring words.
        numbers: that occur.
    """

    sentences: tuple[frozenset[str], ...]
    words: frozenset[str]
    bigrams: frozenset[tuple[str, str]]
    numbers: frozenset[str]

    @staticmethod
    def of(context: str) -> _Source:
        """The counts of passages as a template puts them."""
        sentences = tuple(frozenset(content_words(text)) for text in sentences_of(context))
        running = _WORD.findall(context.lower())
        numbers = frozenset(word for word in running if word.isdigit())
        return _Source(sentences, frozenset().union(*sentences), frozenset(_pairs(running)), numbers)

    def counts(self, text: str) -> tuple[float, ...]:
        """The last columns of `word_counts`."""
        words, running = content_words(text), _WORD.findall(text.lower())
        best = max((_share(words & sentence, words) for sentence in self.sentences), default=-1.0)
        bigrams, numbers = _pairs(running), {word for word in running if word.isdigit()}
        return (
            best,
            _share(words & self.words, words),
            _share(bigrams & self.bigrams, bigrams),
            _share(numbers & self.numbers, numbers),
        )


def _pairs(words: Sequence[str]) -> set[tuple[str, str]]:
    return set(zip(words, words[1:], strict=False))
