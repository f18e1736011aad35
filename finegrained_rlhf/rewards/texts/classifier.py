"""Any Hugging Face classifier of texts as a scorer of texts.

How it is loaded and run is `models/encoders/classifier.py`'s work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, get_args

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.markers import ModelName, harmless
from finegrained_rlhf.models.encoders.reading import Activation
from finegrained_rlhf.text.plain_text import TooLong

if TYPE_CHECKING:
    from finegrained_rlhf.models.encoders.classifier import TextClassifier

if TYPE_CHECKING:
    import torch


class ClassifierScorer:
    """The probability that a classifier gives to one of its labels.

    Args:
        path: directory of a sequence classification model with safetensors and its tokenizer, or a Hub name.
        label: the label whose probability is the score, as the model's `id2label` names it.
        activation: `sigmoid` where every label is a question of its own, `softmax` where the labels exclude each other;
            None takes what the model's `problem_type` says, and softmax for two labels where it says nothing.
        batch_size: texts in one forward pass; batches are made of texts of similar length.
        max_length: longest input in tokens; None takes the model's.
        too_long: a longer text loses its end, counted and logged (`truncate`), or ends the run (`refuse`).
    """

    def __init__(
        self,
        path: ModelName,
        label: str,
        activation: Activation | None = None,
        batch_size: Annotated[int, harmless] = 64,
        max_length: int | None = None,
        too_long: TooLong = "truncate",
    ) -> None:
        for name, value, known in (("activation", activation, Activation), ("too_long", too_long, TooLong)):
            if value is not None and value not in get_args(known):
                raise ConfigError(f"{name} must be {' or '.join(get_args(known))}, got {value!r}")
        if batch_size < 1 or (max_length is not None and max_length < 4):
            raise ConfigError(f"need batch_size >= 1 and max_length >= 4, got {batch_size} and {max_length}")
        self.path, self.label, self.activation = path, label, activation
        self.batch_size, self.max_length, self.too_long = batch_size, max_length, too_long
        self.identity = f"classifier {path} label={label} activation={activation} max_length={max_length}"
        self._classifier: TextClassifier | None = None

    def setup(self, device: torch.device | str = "cpu") -> None:
        """Read the model onto `device`.

        Raises:
            ModelError: it is missing or damaged, does not know the label, or needs an `activation`.
        """
        from finegrained_rlhf.models.encoders.classifier import TextClassifier

        self._classifier = TextClassifier.open(self.path, self.label, self.activation, self.max_length, self.too_long)
        self._classifier.network.to(device)

    def score_texts(self, texts: Sequence[str]) -> list[float]:
        """The label's probability in each text.

        Raises:
            DataError: a text is longer than the model reads and `too_long` is `refuse`.
        """
        if self._classifier is None:
            self.setup()
        assert self._classifier is not None
        return self._classifier.probabilities(texts, self.batch_size)
