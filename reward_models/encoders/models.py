"""Reward models: an encoder with a head at each separator, or with one scalar for the whole answer.

Knows Hugging Face directories, labels and the record `reward_model.json` that is saved beside the weights. Does not
know feedback or training. Any bidirectional encoder works; a Longformer is computed without its chunking.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

from finegrained_rlhf.core.errors import ConfigError, DataError, ModelError
from finegrained_rlhf.core.files import read_json, write_json
from finegrained_rlhf.models.encoders.loading import encoder_config, input_limit
from finegrained_rlhf.models.encoders.model import EncoderModel
from finegrained_rlhf.models.loading import load_tokenizer, load_weights, model_directory
from reward_models.encoders.attention import GlobalTokens, encode_at
from reward_models.encoders.inputs import InputBatch
from reward_models.kinds import Form, Kind, KindName, kind_named
from reward_models.kinds.base import GlobalAttention

ID2LABEL = {0: "no_error", 1: "has_error"}
REWARD_MODEL_RECORD = "reward_model.json"
_NO_ERROR = {"no error", "o", "none", "ok", "correct"}
_HAS_ERROR = re.compile(r"(^|.* )(error|err)$")
_NEW_HEAD = r"^(classifier|pre_classifier|score)\.|\.pooler\."
_FORMS: Mapping[Form, tuple[Any, Mapping[str, Any]]] = {
    "segment": (
        AutoModelForTokenClassification,
        {"num_labels": len(ID2LABEL), "id2label": ID2LABEL, "label2id": {name: i for i, name in ID2LABEL.items()}},
    ),
    "sequence": (AutoModelForSequenceClassification, {"num_labels": 1}),
}
"""Of each form, transformers' class and the settings of a new head."""


@dataclass(frozen=True)
class RewardModelRecord:
    """What a reward model is, beside its weights.

    Attributes:
        kind: name of its kind (`reward_models/kinds/`).
        global_attention: which tokens of a Longformer see everything: `none`, `first` (the class token) or
            `separators` (and the class token). Other encoders take no notice.
        max_length: longest input in tokens.
        segmenter: how answers were cut in training (`rules` or a spaCy pipeline).
        mean: mean raw score of the training outputs; None for segment models and before it is measured.
        std: their standard deviation (of the population), > 0.
    """

    kind: KindName
    global_attention: GlobalAttention = "none"
    max_length: int = 2048
    segmenter: str = "rules"
    mean: float | None = None
    std: float | None = None

    def __post_init__(self) -> None:
        kind_named(self.kind)
        if self.global_attention not in get_args(GlobalAttention):
            expected = ", ".join(get_args(GlobalAttention))
            raise ConfigError(f"global_attention must be one of {expected}, got {self.global_attention!r}")
        if self.std is not None and not self.std > 0:
            raise ConfigError(f"the standard deviation of a reward model's scores must be positive, got {self.std}")

    @property
    def definition(self) -> Kind:
        """The kind itself: form, density, labels and inputs."""
        return kind_named(self.kind)

    @property
    def labels_segments(self) -> bool:
        """True for a model with a label at each separator, False for one scalar an answer."""
        return self.definition.form == "segment"

    @property
    def granularity(self) -> str:
        """What it judges: each `sub_sentence`, `sentence` or `response`."""
        return self.definition.density


def read_reward_model_record(directory: Path) -> RewardModelRecord | None:
    """The record saved beside a model; None where there is none (a model made elsewhere).

    Raises:
        ModelError: it is there and not readable.
    """
    path = directory / REWARD_MODEL_RECORD
    if not path.is_file():
        return None
    try:
        raw = read_json(path)
        return RewardModelRecord(**{field.name: raw[field.name] for field in fields(RewardModelRecord)})
    except (DataError, ConfigError, KeyError, TypeError) as error:
        raise ModelError(f"{path}: not a reward model record ({error})") from None


def error_label_ids(id2label: dict[Any, str]) -> frozenset[int]:
    """Ids of the labels that mean "this segment has an error", read from a model's `id2label`.

    Raises:
        ModelError: a label is neither an error (`has_error`, `F-ERR`, …) nor its absence (`no_error`, `O`, …), or one
            of the two is missing.
    """
    names = {int(key): re.sub(r"[-_\s]+", " ", str(name)).strip().lower() for key, name in id2label.items()}
    clean = {key for key, name in names.items() if name in _NO_ERROR}
    wrong = {key for key, name in names.items() if key not in clean and _HAS_ERROR.match(name)}
    if not clean or not wrong or len(clean) + len(wrong) != len(names):
        raise ModelError(
            f"the labels {list(id2label.values())} do not fit: expected one that means an error (such as 'has_error') "
            "and one that means none (such as 'no_error')"
        )
    return frozenset(wrong)


class RewardModel(EncoderModel):
    """An encoder with a head, its tokenizer and its record.

    Args:
        model: transformers' token or sequence classification model.
        tokenizer: its tokenizer.
        record: what it is.
    """

    def __init__(self, model: Any, tokenizer: Any, record: RewardModelRecord) -> None:
        super().__init__(tokenizer)
        self.model, self.record = model, record

    @property
    def network(self) -> Any:
        """The classification model."""
        return self.model

    @property
    def max_length(self) -> int:
        """The longest input in tokens."""
        return input_limit(self.model.config, self.tokenizer, self.record.max_length)

    def segment_logits(self, batch: InputBatch) -> Tensor:
        """Label logits at the S separators of a batch, fp32 [S, labels]."""
        if self.model.config.model_type != "longformer":
            logits: Tensor = self.model(input_ids=batch.ids, attention_mask=batch.mask).logits
            return logits[batch.rows, batch.positions].float()
        hidden = self._hidden(batch, _by_row(batch)[0], self.record.global_attention == "separators")
        return self.model.classifier(self.model.dropout(hidden[batch.rows, batch.columns])).float()

    def answer_scores(self, batch: InputBatch) -> Tensor:
        """Raw scores of the B answers of a batch, fp32 [B]; the record's mean and std are not applied."""
        if self.model.config.model_type != "longformer":
            return self.model(input_ids=batch.ids, attention_mask=batch.mask).logits.squeeze(-1).float()
        first = torch.zeros_like(batch.ids[:, :1])
        hidden = self._hidden(batch, first, self.record.global_attention != "none")
        return self.model.classifier(hidden).squeeze(-1).float()

    def _hidden(self, batch: InputBatch, positions: Tensor, are_global: bool) -> Tensor:
        """Last hidden states of a Longformer at positions [B, K], all of them global tokens or none, [B, K, D]."""
        wide = _global_tokens(batch, self.record.global_attention)
        return encode_at(self.model.longformer, batch.ids, batch.mask, wide, positions, are_global)

    def save(self, directory: Path) -> None:
        """Write weights, configuration, tokenizer and record so that `from_pretrained` opens the directory."""
        super().save(directory)
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


def _open(directory: Path, form: Form, new_head: bool) -> Any:
    """The classification model of a form, fp32, on the CPU; a new head is drawn from the global generator.

    Raises:
        ModelError: missing, damaged, without some of its weights, or no encoder.
    """
    encoder_config(directory)
    auto, head = _FORMS[form]
    if new_head:
        return load_weights(auto, directory, torch.float32, optional=_NEW_HEAD, **head)
    return load_weights(auto, directory, torch.float32)


def new_reward_model(path: str | Path, record: RewardModelRecord) -> RewardModel:
    """A reward model to train: the encoder at `path` with a new head drawn from the global generator.

    Raises:
        ModelError: there is no encoder at `path`, or it lacks weights.
    """
    directory = model_directory(path, export="model")
    model = _open(directory, record.definition.form, new_head=True)
    return RewardModel(model, load_tokenizer(directory), record).eval()


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
        raise ModelError(
            f"{directory}: no {REWARD_MODEL_RECORD}, so say in the configuration of which kind the model is"
        )
    model = _open(directory, record.definition.form, new_head=False)
    if record.labels_segments:
        try:
            error_label_ids(model.config.id2label)
        except ModelError as error:
            raise ModelError(f"{directory}: {error}") from None
    elif model.config.num_labels != 1:
        raise ModelError(f"{directory}: {model.config.num_labels} labels, expected one score an answer")
    return RewardModel(model, load_tokenizer(directory), record).eval()
