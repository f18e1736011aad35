"""The settings of a reward model's training: of a network in steps, and of a bottleneck that is fitted."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import above, at_least, at_most, harmless
from finegrained_rlhf.runtime.optimizer import OptimizerConfig
from finegrained_rlhf.training.supervised.job import BatchConfig
from reward_models.kinds import GlobalAttention
from reward_models.parts import PassageChoice
from reward_models.record import check_input_settings

if TYPE_CHECKING:
    from torch import nn

AnnotatorWeights = Literal["none", "agreement"]
Selection = Literal["accuracy", "loss"]
"""What of the held-out records chooses a checkpoint. On noisy labels the loss, which also weighs how sure a model is,
varies less by chance than the accuracy."""


_LAYER = re.compile(r"\.(?:layer|layers|h)\.(\d+)\.")
_HEAD = re.compile(r"^(?:model\.)?(classifier|pre_classifier|score)\.|\bpooler\.")
_LAST = re.compile(r"\.(norm|ln_f|final_norm)\.(weight|bias)$")


@dataclass(frozen=True)
class LayerConfig(Settings):
    """What is trained of a pretrained model with a new head, and at what rates.

    The learning rate of layer l of L is lr · decay^(L − l), l from 1; embeddings count as layer 0, and norms behind
    the last layer as layer L (Howard and Ruder 2018, section 3.2, discriminative fine-tuning).

    Attributes:
        frozen: the embeddings and so many layers from the bottom are not trained; 0 trains everything.
        decay: of the rate from one layer to the one below, in (0, 1].
        head: rate of the head as a multiple of lr, above 0.
    """

    frozen: Annotated[int, at_least(0)] = 0
    decay: Annotated[float, above(0), at_most(1)] = 1.0
    head: Annotated[float, above(0)] = 1.0

    def prepare(self, model: nn.Module) -> dict[str, float]:
        """Freeze what is frozen, and return the rate of every parameter that was not, as a multiple of lr.

        Raises:
            ConfigError: the model has fewer layers than are to be frozen, or rates are asked for and its layers are
                not known by their names.
        """
        names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        count = max((int(match[1]) + 1 for name in names if (match := _LAYER.search(name))), default=0)
        if self.frozen > count or (self.decay < 1 and not count):
            raise ConfigError(f"layers: the model has {count} layers, asked for {self}")
        depths = _depths(names, count)
        if self.frozen:
            for name, parameter in model.named_parameters():
                if (depth := depths.get(name)) is not None and depth <= self.frozen:
                    parameter.requires_grad_(False)
        return {n: self.head if depth is None else self.decay ** (count - depth) for n, depth in depths.items()}


def _depths(names: list[str], count: int) -> dict[str, int | None]:
    """The layer of each parameter, from 1; 0 for embeddings, `count` behind the last layer, None for the head."""
    depths: dict[str, int | None] = {}
    for name in names:
        match = _LAYER.search(name)
        if _HEAD.search(name):
            depths[name] = None
        elif match:
            depths[name] = int(match[1]) + 1
        else:
            depths[name] = count if _LAST.search(name) else 0
    return depths


@dataclass(frozen=True)
class InputConfig(Settings):
    """In what a reward model reads the segments that it learns from.

    Attributes:
        prefixes: each segment in the answer as it stood when its end was decided (`text/segmentation.py`), not in the
            whole answer, so that the model can be scored with `reward.settings.NAME.reading=prefix`. Labels stay where
            people gave them; a model of whole answers has no segments and is refused.
    """

    prefixes: bool = False


@dataclass(frozen=True)
class RewardModelConfig(Settings):
    """A kind of reward model with its hyper-parameters.

    Attributes:
        kind: of the taxonomy: a category, `completeness` or `preference`.
        batches: batch sizes; what counts is records with labels (segment models) or pairs (pair models).
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
        counts: `true` adds counted words to what the head says (`encoders/counts.py`), in training and scoring;
            `debias` adds them in the loss of training alone, so that the encoder learns what they do not say, and saves
            and scores nothing of them; `false` counts none.
        annotator_weights: `agreement` lets a segment count as many times as annotators agree with its label, 1 on
            average; `none` each the same. Feedback that names nobody counts the same either way.
        label_weights: `balanced` lets segments with and without an error count the same in all; `none` each the same.
        inputs: in what segments are read, the whole answer or its prefixes.
        layers: which layers are trained, and how fast.
        selected_by: `accuracy` (highest) or `loss` (lowest) of the held-out records chooses the exported checkpoint;
            None takes what the kind names.
        shuffle_labels: a control: train and select on labels in random order, which must teach nothing.
    """

    kind: str
    optimizer: OptimizerConfig
    batches: BatchConfig = BatchConfig(24)
    epochs: Annotated[int | None, at_least(1), harmless] = None
    steps: Annotated[int | None, at_least(1), harmless] = None
    max_length: Annotated[int, at_least(8)] = 2048
    global_attention: GlobalAttention = "none"
    min_span_words: Annotated[int | None, at_least(0)] = None
    passages: PassageChoice = "first"
    passage_tokens: Annotated[int | None, at_least(0)] = None
    counts: bool | Literal["debias"] = False
    label_weights: Literal["none", "balanced"] = "none"
    annotator_weights: AnnotatorWeights = "none"
    inputs: InputConfig = InputConfig()
    layers: LayerConfig = LayerConfig()
    shuffle_labels: bool = False
    selected_by: Selection | None = None

    def __post_init__(self) -> None:
        if (self.epochs is None) == (self.steps is None):
            raise ConfigError("reward_model: set either epochs or steps, and the other to null")
        check_input_settings(self.global_attention, self.passages)


@dataclass(frozen=True)
class BottleneckConfig(Settings):
    """A reward model whose answers earn what the question needs of its passages (`reward_models/bottleneck`).

    One model has all components: relevance, factuality, completeness and preference. The encoder stays as it is.

    Attributes:
        needed: a passage sentence counts as needed where a gold answer says at least this share of it.
        place: whether it may be read where a sentence stands, and how many others repeat it, to tell whether it is
            needed; inner folds decide whether it is.
        gold: whether preference learns that a gold answer is better than the answers to its question; nobody said so.
        planted: families of changes (`rewards/stress`) that are planted in the training answers, so that whole answers
            are learnt from more than people's comparisons; none by default.
        changes: unmarked answers of each question that changes are planted in beside the gold one.
    """

    needed: Annotated[float, above(0), at_most(1)] = 0.4
    place: bool = True
    gold: bool = False
    planted: Sequence[str] = ()
    changes: Annotated[int, at_least(0)] = 1
