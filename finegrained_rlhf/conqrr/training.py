"""Training a query rewriter as a configuration: what `finegrained train-conqrr` builds and runs.

T5QR is α = 0, CONQRR (mix) 0 < α < 1, CONQRR (RL) α = 1. A rewriter is chosen by ROUGE-1 with human rewrites, or by how
often the right passage ranks first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

from finegrained_rlhf.conqrr.data import RewriteData
from finegrained_rlhf.conqrr.inputs import MAX_INPUT_TOKENS, RewriteTemplate, labelled_share
from finegrained_rlhf.conqrr.rewards import PassageRank, PoolReward, RewriteRewardConfig
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.markers import IndexPath, InputFile, at_least, harmless
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.core.seeding import stable_hash
from finegrained_rlhf.metrics.functions import rouge1_scores
from finegrained_rlhf.models.config import PolicyConfig
from finegrained_rlhf.retrieval.protocol import RetrieverConfig
from finegrained_rlhf.retrieval.record import RecordedConfig
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.loop.types import LoopResult
from finegrained_rlhf.runtime.optimizer import AnyOptimizerConfig
from finegrained_rlhf.runtime.training_run import TrainingRun
from finegrained_rlhf.training.self_critical.config import SelfCriticalConfig

if TYPE_CHECKING:
    from finegrained_rlhf.runtime.processes import Processes
    from finegrained_rlhf.training.self_critical.trainer import SelfCriticalTrainer

SelectBy = Literal["rouge1", "accuracy"]


def fixed_batches(prompts: Sequence[Prompt], size: int) -> list[list[int]]:
    """Places of prompts in batches that are the same in every run: ordered by a hash of the id, then cut.

    Args:
        prompts: any; turns of one dialogue must not end up together because they stand together.
        size: most prompts of a batch; sizes differ by at most one, so that no pool is much smaller than the others.
    """
    order = sorted(range(len(prompts)), key=lambda i: (stable_hash(0, "validation", prompts[i].id), i))
    count = -(-len(order) // size)
    return [order[len(order) * k // count : len(order) * (k + 1) // count] for k in range(count)]


class RewriteValidation:
    """Measures greedy rewrites of validation questions. Satisfies `ResponseValidation`.

    `rouge1` is the mean ROUGE-1 F1 with the human rewrites over the questions that have one; `accuracy` the share of
    labelled questions whose positive ranks first in the pool of its fixed batch (thesis, section 4.3). `score` is the
    one that `select_by` names.

    Args:
        prompts: validation questions; `references` in their metadata holds the human rewrite.
        reward: scores rewrites of questions with labels; None measures no accuracy.
        batch_size: questions of a fixed batch.
        select_by: what `score` is.

    Raises:
        ConfigError: no question can be measured in the way that `select_by` asks for.
    """

    def __init__(
        self, prompts: Sequence[Prompt], reward: PoolReward | None, batch_size: int, select_by: SelectBy
    ) -> None:
        self.prompts, self.reward, self.select_by = prompts, reward, select_by
        self._referenced = [i for i, prompt in enumerate(prompts) if prompt.metadata["references"]]
        labels = {} if reward is None else reward.labels
        labelled = [i for i, prompt in enumerate(prompts) if prompt.id in labels]
        batches = fixed_batches([prompts[i] for i in labelled], batch_size)
        self._batches = [[labelled[place] for place in batch] for batch in batches]
        needed = {"rouge1": ("a rewrite", self._referenced), "accuracy": ("a passage label", labelled)}
        if select_by not in needed:
            raise ConfigError(f"select_by: expected rouge1 or accuracy, got {select_by!r}")
        what, measurable = needed[select_by]
        if prompts and not measurable:
            raise ConfigError(f"select_by={select_by}: no validation question has {what}")

    def measure(self, texts: Sequence[str], processes: Processes) -> dict[str, float]:
        """See `ResponseValidation.measure`; `rouge1` and `accuracy` as far as there is something to measure."""
        import torch

        share = [self._referenced[i] for i in processes.share(len(self._referenced))]
        references = [self.prompts[i].metadata["references"][0] for i in share]
        rouge = sum(rouge1_scores([texts[i] for i in share], references))
        right = 0.0
        for batch in (self._batches[i] for i in processes.share(len(self._batches))):
            assert self.reward is not None
            prompts = [self.prompts[i] for i in batch]
            right += sum(self.reward.score(prompts, prompts, [texts[i] for i in batch]))
        rouge, right = processes.sum_(torch.tensor([rouge, right], dtype=torch.float64)).tolist()
        scores = {}
        if self._referenced:
            scores["rouge1"] = rouge / len(self._referenced)
        if self._batches:
            scores["accuracy"] = right / sum(map(len, self._batches))
        return {"score": scores[self.select_by], **scores}


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
        labels: file of passage labels (`conqrr.labels`); needed where α > 0 and the reward needs them, for
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
        from finegrained_rlhf.conqrr.train import new_trainer

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
