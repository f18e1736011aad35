"""DIALKI: an encoder that reads each passage with the dialogue, and heads that point at knowledge.

The record `dialki.json` lies beside the weights. Any encoder that `AutoModel` opens and that takes `inputs_embeds`
works.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from finegrained_rlhf.core.errors import ConfigError, DataError, ModelError
from finegrained_rlhf.core.files import read_json, write_json
from finegrained_rlhf.dialki.inputs.batches import DialkiBatch
from finegrained_rlhf.dialki.model.config import DialkiConfig
from finegrained_rlhf.dialki.model.heads import DialkiHeads, HistoryScores, NextScores, Vectors
from finegrained_rlhf.dialogue.tokens import MARKER_TOKENS
from finegrained_rlhf.models.encoders.model import (
    EncoderModel,
    add_markers,
    input_limit,
    open_encoder,
    repeat_positions,
)
from finegrained_rlhf.models.loading import load_tokenizer, model_directory

RECORD = "dialki.json"
HEADS = "heads.safetensors"


class KnowledgeModel(EncoderModel):
    """An encoder with heads on it, its tokenizer and its record.

    Args:
        encoder: transformers' encoder, without a pooler.
        tokenizer: its tokenizer, with the marker tokens.
        config: what it is.
        heads: what stands on the encoder's hidden states.
    """

    def __init__(self, encoder: Any, tokenizer: Any, config: DialkiConfig, heads: nn.Module) -> None:
        super().__init__(tokenizer)
        self.encoder, self.config = encoder, config
        self.heads = heads

    @property
    def network(self) -> Any:
        """The encoder; the heads are saved beside it."""
        return self.encoder

    def save(self, directory: Path) -> None:
        """Write encoder and tokenizer in the Hugging Face layout, the heads beside them, and the record."""
        super().save(directory)
        state = {name: tensor.detach().cpu().contiguous() for name, tensor in self.heads.state_dict().items()}
        save_file(state, directory / HEADS)
        write_json(directory / RECORD, asdict(self.config))


M = TypeVar("M", bound=KnowledgeModel)
C = TypeVar("C", bound=DialkiConfig)


class DialkiModel(KnowledgeModel):
    """An encoder with DIALKI's heads.

    Args:
        encoder: transformers' encoder, without a pooler.
        tokenizer: its tokenizer, with the marker tokens.
        config: what it is.
    """

    heads: DialkiHeads

    def __init__(self, encoder: Any, tokenizer: Any, config: DialkiConfig) -> None:
        width = int(encoder.config.hidden_size)
        spans = config.units != "whole"
        heads = DialkiHeads(width, config.contextualize, config.user_turns, config.dropout, spans)
        super().__init__(encoder, tokenizer, config, heads)

    def encode(self, batch: DialkiBatch, noise: Sequence[Tensor] | None = None) -> Vectors:
        """Run the encoder over a batch's inputs, group by group, and gather z, u and s.

        Args:
            batch: P inputs.
            noise: for each group [G, L, E], added to the word embeddings (before positions and norm); None is no noise.
        """
        turn_starts = batch.turn_starts[batch.owners]
        parts: list[tuple[Tensor, Tensor, Tensor]] = []
        for i, group in enumerate(batch.groups):
            embeddings = self.encoder.get_input_embeddings()(group.ids)
            if noise is not None:
                embeddings = embeddings + noise[i]
            hidden = self.encoder(inputs_embeds=embeddings, attention_mask=group.mask).last_hidden_state.float()
            parts.append(
                (
                    hidden[:, 0],
                    _gather(hidden, turn_starts[group.rows]),
                    _gather(hidden, batch.span_starts[group.rows]),
                )
            )
        back = torch.cat([group.rows for group in batch.groups]).argsort()
        return Vectors(*(torch.cat(tensors)[back] for tensors in zip(*parts, strict=True)))

    def next_scores(self, vectors: Vectors, batch: DialkiBatch) -> NextScores:
        """Logits of what the next agent turn rests on."""
        return self.heads.next_scores(vectors, batch, masked=not self.config.parity)

    def history_scores(self, vectors: Vectors, batch: DialkiBatch) -> HistoryScores:
        """Logits of what each turn of the dialogue rests on."""
        return self.heads.history_scores(vectors, batch, masked=not self.config.parity)


def _gather(hidden: Tensor, positions: Tensor) -> Tensor:
    """Hidden states [G, L, D] at positions [G, K], as [G, K, D]."""
    return hidden.gather(1, positions[:, :, None].expand(-1, -1, hidden.shape[-1]))


def new_dialki(path: str | Path, config: DialkiConfig) -> DialkiModel:
    """A DIALKI to train; as `new_model`."""
    return new_model(path, config, DialkiModel)


def new_model(path: str | Path, config: DialkiConfig, kind: Callable[[Any, Any, DialkiConfig], M]) -> M:
    """A model to train: the encoder at `path` with new heads and, where it lacks them, marker tokens.

    New weights are drawn from the global generator. The input limit is lowered to what the encoder can read; with
    `units` document a BERT's positions are repeated up to it instead.

    Args:
        path: directory of the encoder.
        config: what the model is.
        kind: its class.

    Raises:
        ModelError: there is no encoder at `path`.
        ConfigError: the encoder reads fewer tokens than the history takes, or its positions cannot be repeated.
    """
    directory = model_directory(path, export="model")
    encoder, tokenizer = open_encoder(directory), load_tokenizer(directory)
    add_markers(tokenizer, MARKER_TOKENS, encoder)
    if config.units == "document":
        encoder = repeat_positions(encoder, tokenizer, config.inputs.max_length)
    limit = input_limit(encoder.config, tokenizer, config.inputs.max_length)
    config = replace(config, inputs=replace(config.inputs, max_length=limit))
    return kind(encoder, tokenizer, config).eval()


def raw_record(directory: Path) -> dict[str, Any]:
    """The record saved beside a model as it stands in the file.

    Raises:
        ModelError: it is missing or not readable.
    """
    path = directory / RECORD
    if not path.is_file():
        raise ModelError(f"{directory}: no {RECORD}; expected a model trained by finegrained train-dialki")
    try:
        return dict(read_json(path))
    except (DataError, TypeError, ValueError) as error:
        raise ModelError(f"{path}: not a DIALKI record ({error})") from None


def read_record(directory: Path, kind: type[C]) -> C:
    """The record saved beside a model.

    Fields that this kind of model does not have are left out where they say nothing: older records have the null of
    another system's field.

    Args:
        directory: of the model.
        kind: what the record is.

    Raises:
        ModelError: it is missing, not readable, or of another kind.
    """
    path, known = directory / RECORD, {entry.name for entry in fields(kind)}
    raw = raw_record(directory)
    foreign = sorted(name for name, value in raw.items() if name not in known and value is not None)
    if foreign:
        raise ModelError(
            f"{directory}: its record has `{foreign[0]}`, which no {kind.__name__} has (`load_finder` of "
            "`dialki.training.systems` opens all systems)"
        )
    try:
        values = {name: value for name, value in raw.items() if name in known}
        return kind(**{**values, **{name: part(**values[name]) for name, part in kind.parts().items()}})
    except (ConfigError, KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{path}: not a DIALKI record ({error})") from None


def load_dialki(path: str | Path) -> DialkiModel:
    """A trained DIALKI from its directory or its run directory, in evaluation mode.

    Raises:
        ModelError: missing, damaged, without a record, its heads are not those of its record, or another system's.
    """
    directory = model_directory(path, export="model")
    return load_model(directory, read_record(directory, DialkiConfig), DialkiModel)


def load_model(directory: Path, config: DialkiConfig, kind: Callable[[Any, Any, DialkiConfig], M]) -> M:
    """A trained model of some kind from its directory, in evaluation mode.

    Raises:
        ModelError: missing, damaged, or its heads are not those of its record.
    """
    model = kind(open_encoder(directory), load_tokenizer(directory), config)
    try:
        model.heads.load_state_dict(load_file(directory / HEADS))
    except (OSError, SafetensorError, RuntimeError) as error:
        raise ModelError(f"{directory / HEADS}: not the heads of this model ({str(error).splitlines()[0]})") from None
    return model.eval()
