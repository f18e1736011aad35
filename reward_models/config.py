"""The settings of a reward model's training: its kind, inputs, labels, rates and length. Knows no files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, get_args

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.markers import harmless
from finegrained_rlhf.runtime.optimizer import OptimizerConfig
from reward_models.encoders.evidence import PassageChoice
from reward_models.kinds.base import GlobalAttention
from reward_models.record import check_input_settings
from reward_models.training.layers import LayerConfig

AnnotatorWeights = Literal["none", "agreement"]
Selection = Literal["accuracy", "loss"]
"""What of the held-out records chooses a checkpoint. On noisy labels the loss, which also weighs how sure a model is,
varies less by chance than the accuracy."""


@dataclass(frozen=True)
class RewardBatchConfig:
    """How many examples are taken at a time.

    Attributes:
        batch_size: records with labels (segment models) or pairs (pair models) a training step, over all processes.
        micro_batch_size: the same, in one forward and backward pass on one process; None takes the whole share.
        eval_batch_size: the same, in one forward pass of a validation.
    """

    batch_size: int = 24
    micro_batch_size: Annotated[int | None, harmless] = None
    eval_batch_size: Annotated[int, harmless] = 32

    def __post_init__(self) -> None:
        if min(self.batch_size, self.eval_batch_size, self.micro_batch_size or 1) < 1:
            raise ConfigError(f"batch sizes must be at least 1, got {self}")


@dataclass(frozen=True)
class RewardModelConfig:
    """A kind of reward model with its hyper-parameters.

    Attributes:
        kind: of the taxonomy: a category, `completeness` or `preference`.
        batches: batch sizes.
        optimizer: rates and schedule; `warmup_ratio` is a share of all steps.
        epochs: passes over the examples; None where `steps` says how long to train.
        steps: training steps; None where `epochs` does.
        max_length: longest input in tokens; a longer one loses the end of its passages.
        global_attention: `none`, `first` or `separators`: which tokens of a Longformer see everything.
        min_span_words: spans with fewer words are dropped, of categories that drop short ones; None takes the
            taxonomy's number (5 for relevance).
        passages: what an input that is too long keeps of its passages: their beginning (`first`), or the sentences
            that share most words with the `question`, or with question and `answer`.
        passage_tokens: the most tokens of passages that are read; None for as many as fit into max_length.
        counts: add counted words to what the head says (`encoders/counts.py`).
        annotator_weights: `agreement` lets a segment count as many times as annotators agree with its label, 1 on
            average; `none` each the same. Feedback that names nobody counts the same either way.
        label_weights: `balanced` lets segments with and without an error count the same in all; `none` each the same.
        layers: which layers are trained, and how fast.
        selected_by: `accuracy` (highest) or `loss` (lowest) of the held-out records chooses the exported checkpoint;
            None takes what the kind names.
        shuffle_labels: a control: train and select on labels in random order, which must teach nothing.
    """

    kind: str
    optimizer: OptimizerConfig
    batches: RewardBatchConfig = RewardBatchConfig()
    epochs: Annotated[int | None, harmless] = None
    steps: Annotated[int | None, harmless] = None
    max_length: int = 2048
    global_attention: GlobalAttention = "none"
    min_span_words: int | None = None
    passages: PassageChoice = "first"
    passage_tokens: int | None = None
    counts: bool = False
    label_weights: Literal["none", "balanced"] = "none"
    annotator_weights: AnnotatorWeights = "none"
    layers: LayerConfig = LayerConfig()
    shuffle_labels: bool = False
    selected_by: Selection | None = None

    def __post_init__(self) -> None:
        if (self.epochs is None) == (self.steps is None) or (self.epochs or self.steps or 0) < 1:
            raise ConfigError("reward_model: set either epochs or steps, at least 1, and the other to null")
        if self.max_length < 8 or (self.min_span_words or 0) < 0:
            raise ConfigError("reward_model: need max_length >= 8 and min_span_words >= 0")
        if self.passage_tokens is not None and self.passage_tokens < 0:
            raise ConfigError(f"reward_model.passage_tokens: expected null or at least 0, got {self.passage_tokens}")
        if self.label_weights not in ("none", "balanced"):
            raise ConfigError(f"reward_model.label_weights: expected none or balanced, got {self.label_weights!r}")
        if self.selected_by not in (None, *get_args(Selection)):
            raise ConfigError(f"reward_model.selected_by: expected accuracy, loss or null, got {self.selected_by!r}")
        if self.annotator_weights not in get_args(AnnotatorWeights):
            expected = " or ".join(get_args(AnnotatorWeights))
            raise ConfigError(f"reward_model.annotator_weights: expected {expected}, got {self.annotator_weights!r}")
        check_input_settings(self.global_attention, self.passages)
