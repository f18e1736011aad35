"""Reward models: an encoder or a decoder-only model with a head at each separator, or with one scalar for an answer.

The record `reward_model.json` is saved beside the weights. Any bidirectional encoder works; a Longformer is computed
without its chunking. A decoder-only model is a classifier of transformers' own; its inputs are read where a segment or
an answer has ended.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from finegrained_rlhf.core.errors import ModelError
from finegrained_rlhf.core.files import write_json
from finegrained_rlhf.models.encoders.model import EncoderModel
from finegrained_rlhf.models.loading import model_directory
from finegrained_rlhf.text.plain_text import TooLong
from reward_models.encoders.attention import GlobalTokens, encode_at
from reward_models.encoders.backbones import is_causal, longest_input, open_classifier
from reward_models.encoders.counts import CountLayer
from reward_models.encoders.inputs import InputBatch, RewardInputEncoder
from reward_models.kinds.base import GlobalAttention
from reward_models.record import (
    REWARD_MODEL_RECORD,
    RewardModelRecord,
    error_label_ids,
    missing_record,
    read_reward_model_record,
)


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
        hidden = self._hidden(batch, _by_row(batch)[0], self.record.global_attention == "separators")
        return self._counted(self.model.classifier(self.model.dropout(hidden[batch.rows, batch.columns])), batch)

    def answer_scores(self, batch: InputBatch) -> Tensor:
        """Raw scores of the B answers of a batch, fp32 [B]; the record's mean and std are not applied."""
        if self.model.config.model_type != "longformer":
            return self._counted(self._logits(batch), batch).squeeze(-1)
        first = torch.zeros_like(batch.ids[:, :1])
        hidden = self._hidden(batch, first, self.record.global_attention != "none")
        return self._counted(self.model.classifier(hidden), batch).squeeze(-1)

    def head_states(self, batch: InputBatch) -> Tensor:
        """The hidden states that the head reads: at the S separators of a batch [S, D], or of its B answers [B, D]."""
        segments = self.record.labels_segments
        if self.model.config.model_type == "longformer":
            everything = self.record.global_attention
            if segments:
                hidden = self._hidden(batch, _by_row(batch)[0], everything == "separators")
                return hidden[batch.rows, batch.columns].float()
            return self._hidden(batch, torch.zeros_like(batch.ids[:, :1]), everything != "none")[:, 0].float()
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

    def _hidden(self, batch: InputBatch, positions: Tensor, are_global: bool) -> Tensor:
        """Last hidden states of a Longformer at positions [B, K], all of them global tokens or none, [B, K, D]."""
        wide = _global_tokens(batch, self.record.global_attention)
        return encode_at(self.model.longformer, batch.ids, batch.mask, wide, positions, are_global)

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
    return RewardModel(*open_classifier(directory, record.definition.form, new_head=True), record).eval()


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
