"""How a PPO run is put together and carried out: what the methods of `TrainPPO` do."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from finegrained_rlhf.core.records import Greedy
from finegrained_rlhf.inference.config import check_monitor
from finegrained_rlhf.inference.inputs import prompts_for
from finegrained_rlhf.metrics.stress import read_reports, weak_rewards
from finegrained_rlhf.models.families.causal import check_positions
from finegrained_rlhf.models.loading import check_vocabulary
from finegrained_rlhf.models.policy import Policy
from finegrained_rlhf.models.value import SeparateValueModel
from finegrained_rlhf.rewards.composition import RewardComposer
from finegrained_rlhf.rollout.engine import RolloutEngine
from finegrained_rlhf.rollout.fast import FastEngine
from finegrained_rlhf.rollout.select import make_engine
from finegrained_rlhf.rollout.turns import in_turns
from finegrained_rlhf.rollout.vllm.engine import VLLMEngine
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.loop.types import LoopResult
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.text.alignment import byte_tokens
from finegrained_rlhf.training.checks import check_forward
from finegrained_rlhf.training.ppo.job import TrainPPO
from finegrained_rlhf.training.ppo.metrics import KeptSamples
from finegrained_rlhf.training.ppo.parts import PPOData, PPOModels, PPOParts
from finegrained_rlhf.training.ppo.trainer import PPOTrainer

logger = logging.getLogger(__name__)


def train_ppo(job: TrainPPO, built: PPOTrainer, processes: Processes, run: RunDirectory) -> LoopResult:
    """Run the loop; the main process says where the policy is, and which constraints are not met."""
    loop = job.loop_settings(job.total_steps, epoch=1, validates=job.validation_data is not None)
    result = job.fit(built, loop, processes, run)
    if processes.is_main:
        logger.info(job.outcome(result, run))
        for sentence in built.composer.weights.unmet():
            logger.warning(sentence)
        if result.best_missed:
            logger.warning(
                "no validation met all of reward.constraints: that of step %d misses %d, which is fewest; see "
                "constraint/NAME/value in %s",
                result.best_step,
                result.best_missed,
                run.eval,
            )
    return result


def assemble_ppo(job: TrainPPO, processes: Processes, run: RunDirectory) -> PPOTrainer:
    """Load policy, value model, prompts and scorers, and check that they fit one another."""
    with processes.in_turn():
        models, engine, data = _load_models(job, processes, run)
    policy = models.policy
    composer = RewardComposer(
        job.reward, processes.sum_, policy.eos_ids, byte_tokens(policy.tokenizer), job.rollout.max_new_tokens
    )
    composer.setup(processes.device)
    composer.check_prompts([*data.train, *data.validation])
    check_monitor(job.monitor, data.validation)
    if processes.is_main and not job.allow_weak_rewards:
        warn_of_weak_rewards(job.reward.components)
    if processes.is_main and isinstance(engine, FastEngine):
        name = type(policy.model).__name__
        logger.info("our own decoder draws, which follows %s (rollout.engine=%s)", name, job.rollout.engine)
    parts = PPOParts(models, engine, composer, data, processes, run, job.monitor)
    samples = KeptSamples(every=job.samples_every)
    return PPOTrainer(
        parts,
        replace(job.ppo, kl=job.kl),
        job.rollout,
        seed=job.seed,
        samples=samples,
        algorithm=job.algorithm,
        validation=Greedy() if job.validation_decoding == "greedy" else job.rollout.decoding(),
    )


def _load_models(job: TrainPPO, processes: Processes, run: RunDirectory) -> tuple[PPOModels, RolloutEngine, PPOData]:
    """Policy, value model and reference, which are checked before they are shared out, what draws, and the prompts."""
    policy = job.policy.load(processes.loading_device)
    decoding = job.rollout.decoding()
    if job.ppo.score_sampling_distribution and not decoding.plain:
        policy.scored = decoding
    elif not decoding.plain and not job.kl.exact and processes.is_main:
        say = logger.warning if job.kl.controller == "adaptive" else logger.info
        say(
            "tokens are drawn by rollout.temperature, top_k and top_p, and scored by the plain softmax: `kl` is "
            "then log π − log π_ref of what is drawn, no estimate of the KL, and may be below 0; "
            "ppo.kl.measure=exact measures it"
        )
    if job.rollout.engine == "vllm":
        engine: RolloutEngine = VLLMEngine(policy, job.rollout.vllm, run.path / ".rollout_weights.tmp")
    else:
        engine = make_engine(policy, job.rollout.engine, draft=job.rollout.draft)
    data = job.read_data(policy)
    if job.environment is not None:
        engine = in_turns(engine, policy, job.environment, [*data.train, *data.validation])
    check_forward(policy, data.train, processes)
    value = job.value.load(policy, job.value_heads)
    models = PPOModels(policy, value, job.optimizer, job.total_steps, processes)
    if isinstance(models.value, SeparateValueModel):
        longest = max(len(prompt.input_ids) for prompt in data.train) + job.rollout.max_new_tokens
        check_positions(models.value.backbone.config, longest, "value model")
    return models, engine, data


def warn_of_weak_rewards(components: Mapping[str, Any]) -> None:
    """Say once what the stress tests beside the reward models hold against them.

    Raises:
        DataError: a `stress.json` is none.
    """
    for name, weak in weak_rewards(read_reports(components)).items():
        if weak:
            rows = "; ".join(one.words for one in weak)
            logger.warning("%s: by its stress.json %s (allow_weak_rewards=true: not said)", name, rows)


def read_ppo_data(job: TrainPPO, policy: Policy) -> PPOData:
    """Read the prompts for training and validation, as this policy reads them, and check their ids."""

    def read(path: str) -> list[Any]:
        return prompts_for(policy, path, job.max_prompt_tokens, job.prompt_too_long, job.prompt)

    train = read(job.data)
    validation: Sequence[Any] = read(job.validation_data) if job.validation_data else []
    if job.validation_prompts is not None:
        validation = validation[: job.validation_prompts]
    data = PPOData(train, validation)
    check_vocabulary(policy, [prompt.input_ids for prompt in (*data.train, *data.validation)])
    return data
