"""What `finegrained train-reward-model` and `finegrained make-tiny-reward-models` build and run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.markers import InputFile, ModelName, at_least, below, harmless
from finegrained_rlhf.feedback.taxonomy import QA_FEEDBACK, Taxonomy
from finegrained_rlhf.text.segmentation import DEFAULT_SEGMENTER
from finegrained_rlhf.training.supervised.job import BatchConfig, SupervisedRun
from reward_models.config import BottleneckConfig, RewardModelConfig
from reward_models.kinds import Kind, kind_named, kinds_of
from reward_models.pairs import CompletenessConfig
from reward_models.record import NAMED_SEGMENTERS, may_name

if TYPE_CHECKING:
    from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
    from finegrained_rlhf.runtime.loop.types import LoopConfig, LoopResult
    from finegrained_rlhf.runtime.processes import Processes
from collections.abc import Sequence
from pathlib import Path

from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import atomic_directory
from finegrained_rlhf.core.markers import OutputDirectory, Seed
from finegrained_rlhf.core.seeding import seed_everything
from reward_models.kinds import KINDS
from reward_models.record import RewardModelRecord


@dataclass(frozen=True, kw_only=True)
class TrainRewardModel(SupervisedRun):
    """Train a reward model on human (or oracle) feedback; then measure the exported one, and its trust.

    Fields of every training run: see `TrainingRun`; without `total_steps`, `reward_model` says how long.

    Attributes:
        data: feedback file.
        model: directory or Hub name of the encoder or decoder-only model to start from.
        reward_model: which model, and its hyper-parameters.
        taxonomy: what was marked.
        validation_data: feedback file to select by; None holds out a seeded part of `data`.
        held_out: that part, a share of the records in [0, 1); 0 holds nothing out: the last model is kept, and nothing
            is measured.
        completeness: how completeness labels are made.
        segmenter: `rules` or the name of an installed spaCy pipeline.
    """

    assembly: ClassVar[str] = "reward_models.train.assemble_reward_model"
    export: ClassVar[str] = "model"
    shards_weights: ClassVar[bool] = True

    data: InputFile
    model: ModelName
    reward_model: RewardModelConfig | BottleneckConfig
    taxonomy: Taxonomy = QA_FEEDBACK
    validation_data: InputFile | None = None
    held_out: Annotated[float, at_least(0), below(1)] = 0.1
    completeness: CompletenessConfig = field(default_factory=CompletenessConfig)
    segmenter: str = DEFAULT_SEGMENTER
    checkpoint_every: Annotated[int | None, at_least(1), harmless] = 200

    def __post_init__(self) -> None:
        if isinstance(self.reward_model, RewardModelConfig):
            kind = self.kind  # raises
            if self.reward_model.inputs.prefixes and kind.form != "segment":
                raise ConfigError(f"reward_model.inputs.prefixes: a {kind.name} model scores whole answers")
        elif not may_name(self.segmenter):
            raise ConfigError(
                f"segmenter={self.segmenter}: a bottleneck keeps its name, which may be {NAMED_SEGMENTERS}"
            )
        super().__post_init__()

    def assemble(self, processes: Processes, run: RunDirectory) -> Any:
        """Load model and data; of a bottleneck, which is fitted in one go, the records alone."""
        if isinstance(self.reward_model, RewardModelConfig):
            return super().assemble(processes, run)
        from reward_models.train import read_records

        return read_records(self)

    def train(self, built: Any, processes: Processes, run: RunDirectory) -> LoopResult:
        """Run the loop and measure the exported model; or fit a bottleneck."""
        if isinstance(self.reward_model, RewardModelConfig):
            return super().train(built, processes, run)
        from reward_models.train import train_bottleneck

        return train_bottleneck(self, built, processes, run)

    @property
    def network(self) -> RewardModelConfig:
        """The hyper-parameters of a network that is trained in steps; a bottleneck is none."""
        assert isinstance(self.reward_model, RewardModelConfig)
        return self.reward_model

    @property
    def kind(self) -> Kind:
        """The kind of reward model. Raises ConfigError where the taxonomy has none of the name."""
        return kind_named(self.network.kind, kinds_of(self.taxonomy))

    @property
    def sizes(self) -> BatchConfig:
        """How many records with labels, or pairs, are taken at a time."""
        return self.network.batches

    def loop(self, built: Any) -> LoopConfig:
        """The settings of the training loop; an epoch has as many steps as the batches of these examples."""
        return self.loop_settings(built.steps, epoch=built.plan.steps(1), validates=bool(built.validation))


@dataclass(frozen=True)
class MakeTinyRewardModels(Settings):
    """Put random heads on an encoder or a decoder-only model, one model a kind.

    Attributes:
        encoder: directory of a (tiny) Longformer, or of a decoder-only model.
        output_dir: a directory a kind is written here.
        kinds: which ones.
        seed: of the heads.
    """

    encoder: ModelName
    output_dir: OutputDirectory
    kinds: Sequence[str] = tuple(KINDS)
    seed: Seed = 0

    def __post_init__(self) -> None:
        for name in self.kinds:
            kind_named(name)

    def run(self) -> None:
        """Write the models; the scalar ones get mean 0 and standard deviation 1."""
        from reward_models.encoders.models import new_reward_model

        for kind in self.kinds:
            seed_everything(self.seed, "tiny reward model", kind)
            mean, std = (0.0, 1.0) if kind_named(kind).form == "sequence" else (None, None)
            model = new_reward_model(self.encoder, RewardModelRecord(kind, mean=mean, std=std))
            with atomic_directory(Path(self.output_dir) / kind) as directory:
                model.save(directory)
