"""Classifiers of texts in the Hugging Face layout: which label, by which activation, how probable."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor
from transformers import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING, AutoModelForSequenceClassification

from finegrained_rlhf.core.batching import batch_overhead, length_groups
from finegrained_rlhf.core.errors import DataError, ModelError
from finegrained_rlhf.core.markers import ModelName
from finegrained_rlhf.core.records import on_device, pad_rows
from finegrained_rlhf.models.config import Activation
from finegrained_rlhf.models.encoders.model import EncoderModel, input_limit
from finegrained_rlhf.models.loading import load_tokenizer, load_weights, model_directory, read_model_config
from finegrained_rlhf.text.plain_text import TooLong

logger = logging.getLogger(__name__)


_ACTIVATIONS: dict[str, Activation] = {
    "multi_label_classification": "sigmoid",
    "single_label_classification": "softmax",
}
_NO_PADDING = "the tokenizer has no padding token, with which texts are batched"
_HEADS = r"(^|\.)(classifier|pre_classifier|classification_head|score|pooler)\."
"""What a model that is no classifier yet need not have."""


class TextClassifier(EncoderModel):
    """A sequence classification model and one of its labels.

    Args:
        network: transformers' model.
        tokenizer: of the network, with a padding token.
        label: one of the model's labels.
        activation: how the logits become probabilities.
        max_length: longest input in tokens, special tokens included.
        too_long: whether a longer text loses its end or is refused.
    """

    def __init__(
        self, network: Any, tokenizer: Any, label: str, activation: Activation, max_length: int, too_long: TooLong
    ) -> None:
        super().__init__(tokenizer)
        self.model, self.label = network, label
        self.label_id = label_id(network.config, label)
        self.activation, self.max_length, self.too_long = activation, max_length, too_long
        self._cut = 0

    @property
    def network(self) -> Any:
        """The model with its head."""
        return self.model

    @classmethod
    def open(
        cls,
        path: ModelName | Path,
        label: str,
        activation: Activation | None = None,
        max_length: int | None = None,
        too_long: TooLong = "truncate",
    ) -> TextClassifier:
        """The classifier of a directory, a run or a Hub name, fp32, on the CPU, in evaluation mode.

        Args:
            path: where it is.
            label: as `id2label` names it.
            activation: None takes the one that the model's `problem_type` names.
            max_length: None takes the model's own limit.
            too_long: as above.

        Raises:
            ModelError: it is missing, damaged or no classifier; it has no such label; it does not say how its logits
                become probabilities; or its tokenizer cannot pad.
        """
        directory = model_directory(path, "model")
        config = read_model_config(directory)
        try:
            label_id(config, label)
            chosen = activation or _activation(config)
        except ModelError as error:
            raise ModelError(f"{directory}: {error}") from None
        tokenizer = load_tokenizer(directory)
        if tokenizer.pad_token_id is None:
            raise ModelError(f"{directory}: {_NO_PADDING}")
        network = load_weights(AutoModelForSequenceClassification, directory, torch.float32)
        limit = input_limit(config, tokenizer, max_length or tokenizer.model_max_length)
        return cls(network.eval(), tokenizer, label, chosen, limit, too_long)

    @classmethod
    def new(cls, path: ModelName | Path, labels: Sequence[str], max_length: int | None = None) -> TextClassifier:
        """A classifier to be trained: a model with a new head for these classes, which exclude each other.

        The head is drawn from torch's random numbers. Its label is the last of them.

        Args:
            path: an encoder or a decoder-only model, or a classifier, whose head is not taken.
            labels: two or more.
            max_length: None takes the model's own limit.

        Raises:
            ModelError: it is missing, damaged, or nothing that transformers can put a head on; or its tokenizer cannot
                pad.
        """
        directory = model_directory(path, "model")
        config, tokenizer = read_model_config(directory), load_tokenizer(directory)
        if type(config) not in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING or config.is_encoder_decoder:
            raise ModelError(f"{directory}: a {config.model_type} model, expected an encoder or a decoder-only model")
        if tokenizer.pad_token_id is None:
            raise ModelError(f"{directory}: {_NO_PADDING}")
        network = load_weights(
            AutoModelForSequenceClassification,
            directory,
            torch.float32,
            optional=_HEADS,
            ignore_mismatched_sizes=True,
            num_labels=len(labels),
            id2label=dict(enumerate(labels)),
            label2id={name: place for place, name in enumerate(labels)},
            problem_type="single_label_classification",
            pad_token_id=tokenizer.pad_token_id,
        )
        limit = input_limit(config, tokenizer, max_length or tokenizer.model_max_length)
        return cls(network.eval(), tokenizer, labels[-1], "softmax", limit, "truncate")

    def probabilities(self, texts: Sequence[str], batch_size: int = 64) -> list[float]:
        """The probability of the label in each text, in order.

        Args:
            texts: of any length; a text that is too long is cut (counted and logged) or refused.
            batch_size: texts in a forward pass.

        Raises:
            DataError: a text is too long and `too_long` is `refuse`.
        """
        probabilities: list[float] = self.label_probabilities(texts, batch_size)[:, self.label_id].tolist()
        return probabilities

    @torch.no_grad()
    def label_probabilities(self, texts: Sequence[str], batch_size: int = 64) -> Tensor:
        """The probability of every label in each text, [texts, labels], fp64 on the CPU. Raises what the above does."""
        rows = self.encoded(texts)
        probabilities = torch.zeros(len(rows), self.model.config.num_labels, dtype=torch.float64)
        for chosen in length_groups([len(row) for row in rows], batch_size, batch_overhead(self.device)):
            ids, mask = pad_rows([rows[i] for i in chosen], self.pad_id)
            logits = self.model(
                input_ids=on_device(ids, self.device), attention_mask=on_device(mask, self.device)
            ).logits
            logits = logits.double()
            probabilities[chosen] = (logits.sigmoid() if self.activation == "sigmoid" else logits.softmax(-1)).cpu()
        return probabilities

    def encoded(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of texts as the classifier reads them, special tokens included.

        Raises:
            DataError: a text is too long and `too_long` is `refuse`.
        """
        if not texts:
            return []
        with_all: list[list[int]] = self.tokenizer(list(texts), truncation=False, verbose=False)["input_ids"]
        cut = [i for i, row in enumerate(with_all) if len(row) > self.max_length]
        if not cut:
            return with_all
        if self.too_long == "refuse":
            raise DataError(f"a text of {len(with_all[cut[0]])} tokens; the classifier reads {self.max_length}")
        if not self._cut:
            logger.warning("texts longer than the classifier's %d tokens lose their end", self.max_length)
        self._cut += len(cut)
        return self.tokenizer(list(texts), truncation=True, max_length=self.max_length)["input_ids"]


def label_id(config: Any, label: str) -> int:
    """The place of a label among a model's logits.

    Raises:
        ModelError: the model has no such label; the message lists those it has.
    """
    labels = {int(place): str(name) for place, name in config.id2label.items()}
    ids = [place for place, name in labels.items() if name == label]
    if len(ids) != 1:
        raise ModelError(f"no label {label!r}; id2label has {', '.join(labels.values())}")
    return ids[0]


def _activation(config: Any) -> Activation:
    kind = config.problem_type
    if kind is None and config.num_labels <= 2:
        return "softmax" if config.num_labels == 2 else "sigmoid"
    if kind not in _ACTIVATIONS:
        raise ModelError(
            f"how its {config.num_labels} logits become probabilities is not known (problem_type is {kind}): set "
            f"activation to {' or '.join(get_args(Activation))}"
        )
    return _ACTIVATIONS[kind]
