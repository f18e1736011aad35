"""Reward models: an encoder or a decoder-only model with a head at each separator, or with one scalar for an answer.

The record `reward_model.json` is saved beside the weights. Any bidirectional encoder works; a Longformer is computed
without its chunking. A decoder-only model is a classifier of transformers' own; its inputs are read where a segment
or an answer has ended.

A decoder-only model is of a family that is known here, and needs padding on the right with a token that its
configuration names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification
from transformers.models.auto import modeling_auto

from finegrained_rlhf.core.errors import ModelError
from finegrained_rlhf.core.files import write_json
from finegrained_rlhf.models.encoders.model import EncoderModel, input_limit, is_encoder
from finegrained_rlhf.models.families.causal import CAUSAL_FAMILIES
from finegrained_rlhf.models.loading import load_tokenizer, load_weights, model_directory, read_model_config
from finegrained_rlhf.text.plain_text import TooLong
from reward_models.encoders.attention import GlobalTokens, encode_at
from reward_models.encoders.counts import CountLayer
from reward_models.encoders.inputs import EncodedInput, InputBatch, RewardInputEncoder, batches_by_length
from reward_models.kinds import Form, GlobalAttention, SegmentKind
from reward_models.record import (
    REWARD_MODEL_RECORD,
    RewardModelRecord,
    error_label_ids,
    missing_record,
    read_reward_model_record,
)

ID2LABEL = {0: "no_error", 1: "has_error"}
_NEW_HEAD = r"^(classifier|pre_classifier|score)\.|\.pooler\."
_FORMS: Mapping[Form, Any] = {
    "segment": AutoModelForTokenClassification,
    "sequence": AutoModelForSequenceClassification,
}
"""Of each form, transformers' class."""


def _new_head(form: Form, labels: Sequence[str]) -> dict[str, Any]:
    """The settings of a new head."""
    if form == "sequence":
        return {"num_labels": 1}
    names = dict(enumerate(labels))
    return {"num_labels": len(names), "id2label": names, "label2id": {name: i for i, name in names.items()}}


_CLASSIFIERS: Mapping[Form, Mapping[str, Any]] = {
    "segment": modeling_auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
    "sequence": modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
}
"""Of each form, transformers' classifiers by `model_type`."""


def is_causal(config: Any) -> bool:
    """Whether a token of the model sees only what stands before it."""
    return config.model_type in CAUSAL_FAMILIES


def longest_input(config: Any, tokenizer: Any, wanted: int) -> int:
    """The longest input in tokens.

    Where rotary positions change with the longest row of a batch (longrope), it is the length up to which they do not:
    a score must not depend on what else is in the batch.
    """
    rotary = getattr(config, "rope_parameters", None) or {}
    kinds = [rotary] if "rope_type" in rotary else [kind for kind in rotary.values() if isinstance(kind, dict)]
    limits = [kind.get("original_max_position_embeddings") for kind in kinds if kind.get("rope_type") == "longrope"]
    return min([input_limit(config, tokenizer, wanted), *(limit for limit in limits if limit)])


def open_classifier(
    directory: Path, form: Form, new_head: bool, labels: Sequence[str] = tuple(ID2LABEL.values())
) -> tuple[Any, Any]:
    """The classification model of a form, fp32, on the CPU, and its tokenizer.

    Args:
        directory: that holds both.
        form: labels of segments, or one score for a whole answer.
        new_head: put a head on a language model, drawn from the global generator; False opens a classifier.
        labels: of segments, that a new head tells apart.

    Raises:
        ModelError: missing, damaged, without some of its weights, or of a family that is no reward model here.
    """
    config, auto = read_model_config(directory), _FORMS[form]
    head = _new_head(form, labels) if new_head else None
    if is_causal(config):
        return _open_causal(directory, config, form, head)
    if not is_encoder(config):
        raise ModelError(
            f"{directory}: a {config.model_type} model, expected an encoder such as BERT or Longformer, or a "
            f"decoder-only model ({', '.join(causal_families(form))})"
        )
    settings = {"optional": _NEW_HEAD, **head} if head is not None else {}
    return load_weights(auto, directory, torch.float32, **settings), load_tokenizer(directory)


def causal_families(form: Form) -> list[str]:
    """The `model_type` of the decoder-only families that transformers has a classifier of this form for."""
    return sorted(_CLASSIFIERS[form].keys() & CAUSAL_FAMILIES.keys())


def _open_causal(directory: Path, config: Any, form: Form, head: dict[str, Any] | None) -> tuple[Any, Any]:
    """A decoder-only classifier and its tokenizer; both pad on the right, and with the same token.

    transformers reads the score of a whole answer at the last token that is not `config.pad_token_id`, so this names
    the tokenizer's padding token, and the end token where it has none. A new head gets no dropout, so that a step of a
    backbone without any is the same however it is cut into micro-batches.
    """
    auto = _FORMS[form]
    families = causal_families(form)
    if config.model_type not in families:
        raise ModelError(
            f"{directory}: transformers has no {auto.__name__[9:]} for {config.model_type} models, "
            f"which this kind of reward model needs (families that have it: {', '.join(families)}, and encoders)"
        )
    if getattr(config, "use_bidirectional_attention", False) or not getattr(config, "is_causal", True):
        raise ModelError(f"{directory}: this {config.model_type} model attends in both directions, expected causal")
    tokenizer = load_tokenizer(directory)
    if tokenizer.eos_token_id is None:
        raise ModelError(f"{directory}: the tokenizer has no end token to separate and end a reward model's input with")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    if max(tokenizer.pad_token_id, tokenizer.eos_token_id) >= config.vocab_size:
        raise ModelError(
            f"{directory}: the model has {config.vocab_size} embeddings, and the tokenizer's padding or end token is "
            f"{max(tokenizer.pad_token_id, tokenizer.eos_token_id)}: they do not belong together"
        )
    tokenizer.padding_side = "right"
    config.pad_token_id = tokenizer.pad_token_id
    if head is not None:
        for name, value in head.items():
            setattr(config, name, value)
        config.classifier_dropout = 0.0
    model = load_weights(auto, directory, torch.float32, None if head is None else _NEW_HEAD, config=config)
    embeddings = model.get_input_embeddings()
    embeddings.padding_idx = None  # no gradient would reach a separator that pads as well
    return model, tokenizer


class RewardModel(EncoderModel):
    """An encoder or a decoder-only model with a head, its tokenizer and its record.

    Args:
        model: transformers' token or sequence classification model.
        tokenizer: its tokenizer.
        record: what it is.
    """

    def __init__(self, model: Any, tokenizer: Any, record: RewardModelRecord) -> None:
        super().__init__(tokenizer)
        self.model, self.record = model, record
        self.counts = CountLayer(record.definition, model.config.num_labels) if record.counts else None

    @property
    def network(self) -> Any:
        """The classification model."""
        return self.model

    @property
    def max_length(self) -> int:
        """The longest input in tokens."""
        return longest_input(self.model.config, self.tokenizer, self.record.max_length)

    @property
    def causal(self) -> bool:
        """Whether it is a decoder-only model: a token sees only what stands before it."""
        return is_causal(self.model.config)

    def input_encoder(self, max_length: int | None = None, too_long: TooLong = "refuse") -> RewardInputEncoder:
        """What turns words into this model's inputs.

        Args:
            max_length: longest input in tokens, if less than the model's; None takes that.
            too_long: what happens to an input that does not fit.
        """
        longest = self.max_length if max_length is None else min(max_length, self.max_length)
        record = self.record
        return RewardInputEncoder(
            self.tokenizer,
            longest,
            too_long,
            causal=self.causal,
            passages=record.passages,
            counts=record.definition if record.counts else None,
            passage_tokens=record.passage_tokens,
        )

    def segment_logits(self, batch: InputBatch) -> Tensor:
        """Label logits at the S separators of a batch, fp32 [S, labels]."""
        if self.model.config.model_type != "longformer":
            return self._counted(self._logits(batch)[batch.rows, batch.positions], batch)
        return self._counted(self.model.classifier(self.model.dropout(self._hidden(batch))), batch)

    def answer_scores(self, batch: InputBatch) -> Tensor:
        """Raw scores of the B answers of a batch, fp32 [B]; the record's mean and std are not applied."""
        if self.model.config.model_type != "longformer":
            return self._counted(self._logits(batch), batch).squeeze(-1)
        return self._counted(self.model.classifier(self._hidden(batch)), batch).squeeze(-1)

    def head_states(self, batch: InputBatch) -> Tensor:
        """The hidden states that the head reads: at the S separators of a batch [S, D], or of its B answers [B, D]."""
        segments = self.record.labels_segments
        if self.model.config.model_type == "longformer":
            return (self._hidden(batch) if segments else self._hidden(batch)[:, 0]).float()
        states: Tensor = self.model.base_model(input_ids=batch.ids, attention_mask=batch.mask).last_hidden_state
        if segments:
            return states[batch.rows, batch.positions].float()
        at = batch.mask.sum(dim=1) - 1 if self.causal else torch.zeros_like(batch.ids[:, 0])
        return states[torch.arange(len(at), device=at.device), at].float()

    def _counted(self, logits: Tensor, batch: InputBatch) -> Tensor:
        """Logits [S or B, labels] in fp32, with what the batch's counts add to them."""
        if self.counts is None:
            return logits.float()
        assert batch.counts is not None
        return logits.float() + self.counts.of(batch.counts)

    def _logits(self, batch: InputBatch) -> Tensor:
        """What transformers' forward gives: [B, L, labels], or [B, 1] for whole answers."""
        if self.causal:  # padding stands behind all that is read, so causal attention needs no mask
            logits: Tensor = self.model(input_ids=batch.ids, use_cache=False).logits
        else:
            logits = self.model(input_ids=batch.ids, attention_mask=batch.mask).logits
        return logits

    def _hidden(self, batch: InputBatch) -> Tensor:
        """Last hidden states of a Longformer at the S separators [S, D], or at the first token of B answers [B, 1, D].

        All of them are global tokens, or none.
        """
        attention, segments = self.record.global_attention, self.record.labels_segments
        are_global = attention == "separators" or (attention == "first" and not segments)
        positions = _by_row(batch)[0] if segments else torch.zeros_like(batch.ids[:, :1])
        wide = _global_tokens(batch, attention)
        hidden = encode_at(self.model.longformer, batch.ids, batch.mask, wide, positions, are_global)
        return hidden[batch.rows, batch.columns] if segments else hidden

    def save(self, directory: Path) -> None:
        """Write weights, configuration, tokenizer and record so that `from_pretrained` opens the directory."""
        super().save(directory)
        if self.counts is not None:
            self.counts.save(directory)
        write_json(directory / REWARD_MODEL_RECORD, asdict(self.record))


def _by_row(batch: InputBatch) -> tuple[Tensor, Tensor]:
    """The separators row by row: positions int64 [B, K] (0 where a row has fewer) and bool [B, K], True at real ones.

    K is known to the batch, so that nothing waits for the device.
    """
    positions = batch.ids.new_zeros(len(batch.ids), batch.width)
    positions[batch.rows, batch.columns] = batch.positions
    return positions, positions > 0  # the start token stands before every separator


def _global_tokens(batch: InputBatch, kind: GlobalAttention) -> GlobalTokens | None:
    """The global tokens of a Longformer's batch; None for none."""
    if kind == "none":
        return None
    first = torch.zeros_like(batch.ids[:, :1])
    always = torch.ones_like(first, dtype=torch.bool)
    if kind == "first":
        return GlobalTokens(first, always)
    positions, real = _by_row(batch)
    return GlobalTokens(torch.cat([first, positions], dim=1), torch.cat([always, real], dim=1))


def new_reward_model(path: str | Path, record: RewardModelRecord) -> RewardModel:
    """A reward model to train: the encoder or language model at `path` with a new head from the global generator.

    Raises:
        ModelError: there is none of a known family at `path`, or it lacks weights.
    """
    directory = model_directory(path, export="model")
    kind = record.definition
    labels = {"labels": kind.label_names} if isinstance(kind, SegmentKind) else {}
    return RewardModel(*open_classifier(directory, kind.form, new_head=True, **labels), record).eval()


def load_reward_model(path: str | Path, default: RewardModelRecord | None = None) -> RewardModel:
    """A trained reward model from its directory or its run directory, in evaluation mode.

    Args:
        path: directory.
        default: the record of a model that has none (one made elsewhere).

    Raises:
        ModelError: missing, damaged, without a record, or its labels do not fit its kind.
    """
    directory = model_directory(path, export="model")
    record = read_reward_model_record(directory) or default
    if record is None:
        raise missing_record(directory)
    model, tokenizer = open_classifier(directory, record.definition.form, new_head=False)
    if record.labels_segments:
        try:
            error_label_ids(model.config.id2label)
        except ModelError as error:
            raise ModelError(f"{directory}: {error}") from None
    elif model.config.num_labels != 1:
        raise ModelError(f"{directory}: {model.config.num_labels} labels, expected one score an answer")
    reward_model = RewardModel(model, tokenizer, record)
    if reward_model.counts is not None:
        reward_model.counts.load(directory)
    return reward_model.eval()


@torch.no_grad()
def start_raw_scores(model: RewardModel, inputs: Sequence[EncodedInput], batch_size: int) -> Callable[[], torch.Tensor]:
    """Launch the scoring of n whole answers in batches by length.

    Returns:
        A function that waits for it and gives the raw scores, fp32 [n] on the CPU, in the order of `inputs`.
    """
    order: list[int] = []
    parts = []
    for rows, batch in batches_by_length(inputs, batch_size, model.pad_id, model.device):
        order += rows
        parts.append(model.answer_scores(batch))

    def collect() -> torch.Tensor:
        scores = torch.zeros(len(inputs))
        if parts:
            scores[order] = torch.cat(parts).cpu()
        return scores

    return collect


def raw_scores(model: RewardModel, inputs: Sequence[EncodedInput], batch_size: int) -> torch.Tensor:
    """Raw scores of whole answers, fp32 [n] on the CPU, in the order of `inputs`; computed in batches by length."""
    return start_raw_scores(model, inputs, batch_size)()
