"""What a training of a query rewriter begins with: policy, questions, labels, index and reward, made into a trainer.

The step is `training.self_critical`'s.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from pathlib import Path

from finegrained_rlhf.conqrr.data import PassageLabel, RewriteData, RewriteExample
from finegrained_rlhf.conqrr.inputs import (
    RewriteTemplate,
    imitations,
    labelled_share,
    rewrite_prompts,
    template_for_training,
)
from finegrained_rlhf.conqrr.labels import read_labels
from finegrained_rlhf.conqrr.rewards import PoolReward, RewardInputs, ShuffledReward
from finegrained_rlhf.conqrr.training import RewriteValidation, TrainConqrr
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.seeding import stable_hash
from finegrained_rlhf.models.loading import check_vocabulary
from finegrained_rlhf.models.policy import Policy
from finegrained_rlhf.retrieval.protocol import PoolScorer
from finegrained_rlhf.rollout.select import make_engine
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.training.checks import check_forward
from finegrained_rlhf.training.self_critical.rows import Imitation, useful
from finegrained_rlhf.training.self_critical.trainer import SelfCriticalTrainer

logger = logging.getLogger(__name__)


def new_trainer(job: TrainConqrr, processes: Processes, run: RunDirectory) -> SelfCriticalTrainer:
    """Load policy, questions, labels and index.

    Raises:
        ConfigError: nothing to select by, or the run began with another template.
        DataError: broken data or labels, or nothing to learn from.
    """
    policy = job.policy.load(processes.device)
    template = template_for_training(policy, job.template)
    labels, retriever = _labels(job), None
    if job.index is not None:
        retriever = job.retriever.open(Path(job.index))
    questions, held_out = _questions(job)
    reward = None
    if job.training.alpha > 0:
        examples = {question.id: question for question in (*questions, *held_out)}
        reward = job.rewrite_reward.build(RewardInputs(examples, labels, retriever))
        reward = ShuffledReward(reward, job.seed) if job.shuffled_rewards else reward
    data = _training(job, questions, () if reward is None else reward.rewarded, policy, template)
    validation = _validation(job, held_out, labels, retriever, policy, template)
    check_vocabulary(policy, [prompt.input_ids for prompt in (*(e.prompt for e in data), *validation.prompts)])
    check_forward(policy, [e.prompt for e in data], processes)
    return SelfCriticalTrainer(
        policy,
        data,
        reward,
        validation,
        job.training,
        job.optimizer,
        job.total_steps,
        make_engine(policy, job.training.engine),
        processes,
        run,
        seed=job.seed,
        samples_every=job.samples_every,
    )


def _labels(job: TrainConqrr) -> dict[str, PassageLabel]:
    labels = {} if job.labels is None else read_labels(job.labels)
    return labels if job.validation_labels is None else {**labels, **read_labels(job.validation_labels)}


def _questions(job: TrainConqrr) -> tuple[Sequence[RewriteExample], Sequence[RewriteExample]]:
    """Questions to train on, and those to select by."""
    questions = _read(job.data)
    if job.validation_data is not None:
        held_out = _read(job.validation_data)
    else:
        order = sorted(questions, key=lambda q: (stable_hash(0, "held out", q.id), q.id))
        chosen = {q.id for q in order[: round(job.validation_share * len(order))]}
        held_out = [q for q in questions if q.id in chosen]
        questions = [q for q in questions if q.id not in chosen]
    return questions, held_out[: job.validation_examples]


def _training(
    job: TrainConqrr,
    questions: Sequence[RewriteExample],
    rewarded: Collection[str],
    policy: Policy,
    template: RewriteTemplate,
) -> list[Imitation]:
    alpha = job.training.alpha
    labelled = labelled_share(questions, job.label_share, job.label_seed) if alpha < 1 else frozenset[str]()
    candidates = imitations(
        questions,
        policy,
        labelled=labelled,
        rewarded=rewarded,
        max_input_tokens=job.max_input_tokens,
        max_rewrite_tokens=job.training.max_new_tokens,
        template=template,
    )
    data = useful(candidates, alpha)
    logger.info(
        "%d questions: %d with a rewrite to imitate, %d to be rewarded, %d of no use at alpha = %s left out",
        len(candidates),
        sum(e.answer_ids is not None for e in data),
        sum(e.rewarded for e in data),
        len(candidates) - len(data),
        alpha,
    )
    if not data:
        raise DataError(
            f"no question has what alpha = {alpha} learns from (a rewrite below 1, what the reward needs above 0)",
            file=job.data if isinstance(job.data, str) else job.data.path,
        )
    return data


def _validation(
    job: TrainConqrr,
    questions: Sequence[RewriteExample],
    labels: dict[str, PassageLabel],
    scorer: PoolScorer | None,
    policy: Policy,
    template: RewriteTemplate,
) -> RewriteValidation:
    of_use = [q for q in questions if q.rewrite is not None or q.id in labels]
    if job.validates and not of_use:
        raise ConfigError("no validation question has a rewrite or a passage label")
    prompts = rewrite_prompts(of_use, policy.tokenizer, job.max_input_tokens, template)
    reward = None if scorer is None else PoolReward(scorer, labels)
    return RewriteValidation(prompts, reward, job.validation_pool, job.selects_by)


def _read(source: str | RewriteData) -> Sequence[RewriteExample]:
    data = RewriteData(source) if isinstance(source, str) else source
    return data.read().examples
