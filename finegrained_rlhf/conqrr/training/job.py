"""Training a query rewriter as a configuration: what `finegrained train-conqrr` builds and runs.

T5QR is α = 0, CONQRR (mix) 0 < α < 1, CONQRR (RL) α = 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

from finegrained_rlhf.conqrr.data import RewriteData
from finegrained_rlhf.conqrr.inputs import MAX_INPUT_TOKENS, labelled_share
from finegrained_rlhf.conqrr.rewards.base import RewriteRewardConfig
from finegrained_rlhf.conqrr.rewards.passages import PassageRank
from finegrained_rlhf.conqrr.templates import RewriteTemplate
from finegrained_rlhf.conqrr.training.validation import SelectBy
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.markers import IndexPath, InputFile, at_least, harmless
from finegrained_rlhf.models.config import PolicyConfig
from finegrained_rlhf.retrieval.protocol import RetrieverConfig
from finegrained_rlhf.retrieval.recorded import RecordedConfig
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.loop.types import LoopResult
from finegrained_rlhf.runtime.optimizer import AnyOptimizerConfig
from finegrained_rlhf.runtime.training_run import TrainingRun
from finegrained_rlhf.training.self_critical.config import SelfCriticalConfig

if TYPE_CHECKING:
    from finegrained_rlhf.runtime.processes import Processes
    from finegrained_rlhf.training.self_critical.trainer import SelfCriticalTrainer


@dataclass(frozen=True, kw_only=True)
class TrainConqrr(TrainingRun["SelfCriticalTrainer"]):
    """Train a query rewriter by cross-entropy with human rewrites, by retrieval reward, or by both.

    Fields of every training run: see `TrainingRun`.

    Attributes:
        data: questions to train on: a file in the project's format, or a `RewriteData` of another one.
        policy: starting policy; CONQRR starts from a T5QR.
        optimizer: rates and schedule.
        training: α, batch size, samples and limits.
        total_steps: training steps.
        rewrite_reward: what a rewrite earns where α > 0 (`conqrr.rewards`); any `RewriteRewardConfig`.
        labels: file of passage labels (`conqrr.labels.files`); needed where α > 0 and the reward needs them, for
            accuracy on validation else.
        index: directory of the index that scores passages; needed with `labels`.
        retriever: settings that the index must have been built with; by default those that it has.
        validation_data: questions to select by; None uses `validation_share`.
        validation_share: share of `data` that is set aside to select by; without it and `validation_data` nothing is
            validated, and the last model is exported.
        validation_labels: their passage labels; None looks in `labels`.
        validation_examples: use at most so many of the validation questions; None uses all.
        validation_pool: questions of a fixed validation batch; its pool has twice as many passages.
        select_by: `rouge1`, `accuracy`, or `auto`: in-batch accuracy where α > 0 and there are labels, ROUGE-1 else.
        label_share: share of the human rewrites that cross-entropy may use, 0 to 1; it is masked for the rest.
        label_seed: of that choice; the same in every run to be compared, and in the labelling of passages.
        shuffled_rewards: a control: the scores of each process are dealt out at random, so that they say nothing.
        template: what stands around the dialogue in the policy's input, a text with `{dialogue}`. None: what the
            starting policy was trained with; where it does not say, `{dialogue}` alone for an encoder–decoder, and for
            a decoder-only policy with a line behind it that begins with `rewrite:`. The checkpoints remember it.
        max_input_tokens: longest input in tokens, template included; older turns are cut off.
        samples_every: training steps between files of scored rewrites; None writes none.
    """

    data: InputFile | RewriteData
    policy: PolicyConfig
    optimizer: AnyOptimizerConfig
    training: SelfCriticalConfig
    total_steps: Annotated[int, at_least(1), harmless] = field()
    rewrite_reward: RewriteRewardConfig = field(default_factory=PassageRank)
    labels: InputFile | None = None
    index: IndexPath | None = None
    retriever: RetrieverConfig = field(default_factory=RecordedConfig)
    validation_data: InputFile | RewriteData | None = None
    validation_share: float = 0.0
    validation_labels: InputFile | None = None
    validation_examples: Annotated[int | None, at_least(1)] = None
    validation_pool: Annotated[int, at_least(1)] = 64
    select_by: SelectBy | Literal["auto"] = "auto"
    label_share: float = 1.0
    label_seed: int = 0
    shuffled_rewards: bool = False
    template: str | None = None
    max_input_tokens: int = MAX_INPUT_TOKENS
    validate_every: Annotated[int | None, at_least(1), harmless] = 500
    checkpoint_every: Annotated[int | None, at_least(1), harmless] = 500
    samples_every: Annotated[int | None, at_least(1), harmless] = 500

    def __post_init__(self) -> None:
        self.policy.check_frozen(self.processes.precision, reference=self.training.kl.beta > 0)
        if not 0 <= self.validation_share < 1 or (self.validation_share and self.validation_data is not None):
            raise ConfigError("validation_share: expected 0 <= share < 1, and 0 where validation_data is given")
        if self.training.alpha > 0 and self.labels is None and self.rewrite_reward.needs_labels:
            raise ConfigError(f"training.alpha = {self.training.alpha} needs labels=FILE and index=DIR")
        if (self.labels is None) != (self.index is None):
            raise ConfigError("labels and index: expected both or neither")
        if self.validation_labels is not None and self.index is None:
            raise ConfigError("validation_labels: expected an index too")
        if self.template is not None:
            RewriteTemplate(self.template)
        labelled_share([], self.label_share, self.label_seed)
        super().__post_init__()

    @property
    def validates(self) -> bool:
        """Whether there is anything to select by."""
        return self.validation_data is not None or self.validation_share > 0

    @property
    def selects_by(self) -> SelectBy:
        """What `score` is in validation."""
        if self.select_by != "auto":
            return self.select_by
        return "accuracy" if self.training.alpha > 0 and self.labels is not None else "rouge1"

    def train(self, built: SelfCriticalTrainer, processes: Processes, run: RunDirectory) -> LoopResult:
        """Run the loop; the best policy ends up in `output_dir/policy`."""
        loop = self.loop_settings(self.total_steps, epoch=1, validates=self.validates)
        result = self.fit(built, loop, processes, run)
        if processes.is_main:
            self._tell(built, run, result)
        return result

    def assemble(self, processes: Processes, run: RunDirectory) -> SelfCriticalTrainer:
        """Load policy, questions, labels and index.

        Raises:
            ConfigError: nothing to select by, or the run began with another template.
            DataError: broken data or labels, or nothing to learn from.
        """
        from finegrained_rlhf.conqrr.training.train import new_trainer

        return new_trainer(self, processes, run)

    def _tell(self, trainer: SelfCriticalTrainer, run: RunDirectory, result: LoopResult) -> None:
        """Write `metrics.json` and say where the policy is."""
        run.write_results(
            {
                "alpha": self.training.alpha,
                "best_step": result.best_step,
                "steps": result.step,
                self.selects_by: result.best_score,
                "label_share": self.label_share,
                "train_examples": len(trainer.data),
                "imitated": sum(e.answer_ids is not None for e in trainer.data),
                "rewarded": sum(e.rewarded for e in trainer.data),
                "validation_examples": len(trainer.validation.prompts),
            },
        )
        print(f"query rewriter: {self.outcome(result, run, self.selects_by)}")
