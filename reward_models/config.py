"""The settings of a reward model's training: its kind, inputs, labels, rates and length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import at_least, harmless
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
class RewardBatchConfig(Settings):
    """How many examples are taken at a time.

    Attributes:
        batch_size: records with labels (segment models) or pairs (pair models) a training step, over all processes.
        micro_batch_size: the same, in one forward and backward pass on one process; None takes the whole share.
        eval_batch_size: the same, in one forward pass of a validation.
    """

    batch_size: Annotated[int, at_least(1)] = 24
    micro_batch_size: Annotated[int | None, at_least(1), harmless] = None
    eval_batch_size: Annotated[int, at_least(1), harmless] = 32


@dataclass(frozen=True)
class RewardModelConfig(Settings):
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
    epochs: Annotated[int | None, at_least(1), harmless] = None
    steps: Annotated[int | None, at_least(1), harmless] = None
    max_length: Annotated[int, at_least(8)] = 2048
    global_attention: GlobalAttention = "none"
    min_span_words: Annotated[int | None, at_least(0)] = None
    passages: PassageChoice = "first"
    passage_tokens: Annotated[int | None, at_least(0)] = None
    counts: bool = False
    label_weights: Literal["none", "balanced"] = "none"
    annotator_weights: AnnotatorWeights = "none"
    layers: LayerConfig = LayerConfig()
    shuffle_labels: bool = False
    selected_by: Selection | None = None

    def __post_init__(self) -> None:
        if (self.epochs is None) == (self.steps is None):
            raise ConfigError("reward_model: set either epochs or steps, and the other to null")
        check_input_settings(self.global_attention, self.passages)
