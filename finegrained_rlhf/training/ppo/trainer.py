"""RL on fine-grained rewards: one training step, validation, and what a checkpoint keeps."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from finegrained_rlhf.core.files import Write, read_json, write_all, write_json
from finegrained_rlhf.core.records import Decoding, Experience, Greedy, RewardTrace, Rollout, SegmentScores
from finegrained_rlhf.inference.measure import PhaseTimer, StepMetrics
from finegrained_rlhf.metrics.functions import perplexity_of
from finegrained_rlhf.models.weights.saving import policy_to_save
from finegrained_rlhf.models.weights.sharded import whole_weights
from finegrained_rlhf.rewards.credit import Prefixes
from finegrained_rlhf.rollout.config import RolloutConfig
from finegrained_rlhf.runtime.loop.trainer import check_finite
from finegrained_rlhf.runtime.optimizer import Optimizer
from finegrained_rlhf.text.alignment import AlignmentAudit
from finegrained_rlhf.training.checks import check_ratio, check_start, largest_logit, start_tolerance
from finegrained_rlhf.training.hacking import HackingWatch
from finegrained_rlhf.training.micro_batches import MicroBatch, micro_batches
from finegrained_rlhf.training.ppo.advantages import GAE, AdvantageEstimator
from finegrained_rlhf.training.ppo.config import PPOConfig
from finegrained_rlhf.training.ppo.drawing import StepDraws
from finegrained_rlhf.training.ppo.experience import make_experience, without_advantages
from finegrained_rlhf.training.ppo.metrics import (
    KeptSamples,
    SuppressionWatch,
    audit_trace,
    describe_responses,
    step_metrics,
    write_step_samples,
)
from finegrained_rlhf.training.ppo.parts import PPOParts
from finegrained_rlhf.training.ppo.resampling import Resampler
from finegrained_rlhf.training.ppo.scoring import RolloutScorer, ScoredRollout
from finegrained_rlhf.training.ppo.update import PPOUpdate
from finegrained_rlhf.training.watch import RewardWatch

logger = logging.getLogger(__name__)

_NUMBERS = ("loss/policy", "loss/value", "loss/kl", "gradient_norm", "kl")
"""Metrics that must be finite after every step that has them."""


class PPOTrainer:
    """Trains a policy on token rewards. Satisfies the training loop's `Trainable`.

    Args:
        parts: models, engine, rewards, prompts, and where the run is.
        config: PPO settings.
        rollout: sampling settings.
        seed: of the run.
        samples: which responses are written down with their rewards; the defaults of `KeptSamples` where None.
        algorithm: makes advantages of rewards; GAE where None.
        validation: how validation prompts are answered. Samples are drawn with the same random numbers every time.

    Raises:
        ConfigError: the algorithm cannot use these settings.
    """

    def __init__(
        self,
        parts: PPOParts,
        config: PPOConfig,
        rollout: RolloutConfig,
        *,
        seed: int,
        samples: KeptSamples | None = None,
        algorithm: AdvantageEstimator | None = None,
        validation: Decoding | None = None,
    ) -> None:
        self.models, self.composer, self.data = parts.models, parts.composer, parts.data
        self.processes, self.run, self.monitor = parts.processes, parts.run, parts.monitor
        self.config, self.rollout_config, self.seed = config, rollout, seed
        self.samples, self.algorithm = samples or KeptSamples(), algorithm or GAE()
        self.validation = validation or Greedy()
        self.algorithm.check(config, rollout.samples_per_prompt)
        self.sampler = rollout.sampler(parts.engine, self.models.policy.pad_id, self.processes, seed)
        policy = self.models.policy
        self.draws = StepDraws(self.data.train, self.sampler, rollout, policy, self.processes, seed)
        self._resampler = Resampler(
            self.draws, self.composer, rollout, config, self.algorithm, self.processes, policy.eos_ids
        )
        self.kl_controller = config.kl.build()
        self.kl_exceeded = 0
        self.stop_reason: str | None = None
        self.fresh = True
        self._hacking = HackingWatch(self.run, self.processes)
        self._watch = RewardWatch(self.composer, self.data.validation, self.run, self.processes)
        self._suppression = SuppressionWatch(self.processes)
        self._scorer = RolloutScorer(self.models, self.processes, rollout.behaviour, config.kl.exact)
        self._update = PPOUpdate(
            self.models.policy,
            self.models.value,
            self.optimizer,
            self.processes,
            config,
            rollout.max_new_tokens,
            self.models.reference,
            seed,
        )

    # One training step -----------------------------------------------------------------------------------------

    def train_step(self, step: int) -> dict[str, float]:
        """Roll out, score, update. Returns the metrics of this step, the same on every process."""
        timer, metrics = PhaseTimer(self.processes.device), StepMetrics()
        with timer.phase("total"):
            with timer.phase("rollout"):
                rollout = self.draws.rollout(step)
            with timer.phase("rewards"):
                drawn = self._resampler.fill(step, rollout, self._scores, self._prefixes)
                rollout = drawn.rollout
                trace = self.composer.compose(
                    rollout, drawn.scores, prefixes=self._prefixes(rollout), step=step, drawn=drawn.every
                )
            with timer.phase("scoring"):
                batches = self._micro_batches(rollout)
                scored = self._scorer.score(rollout, batches)
            beta = self.kl_controller.beta
            experience = self._experience(scored, trace)
            first, check = self.fresh and step == 1, None
            if first:
                allowed = self.tolerance(scored.rollout)
                check_start(scored.rollout, scored.reference, allowed, self.processes)
                self._report_alignment(rollout, trace)
                check = partial(self._check_ratio, allowed)
            with timer.phase("update"):
                if drawn.teaching == 0:
                    metrics.add("gradient_norm", 0.0, 1)
                else:
                    self._update.run(step, experience, batches, metrics, check, beta)
        lr = self.models.optimizer.lr(step)
        result = step_metrics(experience, self.models.policy, metrics, self.processes, step=step, beta=beta, lr=lr)
        check_finite(step, result, [name for name in _NUMBERS if name in result])
        self._suppression.warn(result)
        if "entropy" in result:  # not where no response taught anything
            self._update.entropy.update(result["entropy"])
        self._after_step(result["kl"], int(result["episodes_per_step"]))
        if step % self.samples.every == 0 or first:
            write_step_samples(self.run.samples_path(step), experience, self.samples.rows, self.processes)
        if drawn.teaching is not None:
            result["resample/further"], result["resample/skipped"] = drawn.further, float(drawn.teaching == 0)
        tokens = result.pop("response_tokens")
        for phase, seconds in timer.seconds.items():
            result[f"time/{phase}_s"] = seconds
            result[f"time/{phase}_tokens_per_s"] = tokens / max(seconds, 1e-9)
        return result

    @torch.no_grad()
    def _scores(self, rollout: Rollout) -> dict[str, SegmentScores]:
        with self.processes.autocast():
            return self.composer.score(rollout.row_prompts(), rollout.texts, rollout.turns)

    @torch.no_grad()
    def _prefixes(self, rollout: Rollout) -> Prefixes | None:
        with self.processes.autocast():
            return self.composer.score_prefixes(rollout)

    def _micro_batches(self, rollout: Rollout) -> list[MicroBatch]:
        config, policy = self.config, self.models.policy
        return micro_batches(rollout, config.micro_batch_prompts, config.micro_batch_tokens, policy.pass_tokens)

    def _experience(self, scored: ScoredRollout, trace: RewardTrace) -> Experience:
        return make_experience(
            scored.rollout,
            trace,
            scored.reference,
            scored.values,
            beta=self.kl_controller.beta,
            config=self.config,
            reduce=self.processes.sum_,
            algorithm=self.algorithm,
            importance=self.rollout_config.importance(scored.rollout),
            kl=scored.kl,
            reference_states=scored.reference_states,
            masked=self.rollout_config.masked(scored.rollout, self.models.policy.eos_ids),
        )

    # Checks ------------------------------------------------------------------------------------------------------

    def tolerance(self, rollout: Rollout) -> float:
        """How far log-probabilities of one policy may differ before the first update, in nats, for this rollout.

        Every process must call this; all get the same number.
        """
        exact = self.processes.precision == "fp32" and self.rollout_config.logprobs != "decode"
        with whole_weights(self.models.policy.model), self.processes.autocast():
            largest = 0.0 if exact else largest_logit(self.models.policy, rollout)
        return start_tolerance(exact, max(self.processes.gather_objects([largest])))

    def _check_ratio(self, allowed: float, largest: float) -> None:
        if not self.config.compat.update_dropout:
            check_ratio(largest, allowed)

    def _report_alignment(self, rollout: Rollout, trace: RewardTrace) -> None:
        audits = self.processes.gather_objects([audit_trace(rollout, trace, self.models.policy.tokenizer)])
        if self.processes.is_main:
            logger.info("alignment: %s", sum(audits, AlignmentAudit(0, 0)))

    def _after_step(self, kl: float, episodes: int) -> None:
        self.kl_controller.update(kl, episodes)
        limits = self.config.kl
        if limits.limit is not None and kl > limits.limit:
            self.kl_exceeded += 1
            if self.kl_exceeded >= limits.patience:
                self.stop_reason = f"KL exceeded {limits.limit} nats an episode in {self.kl_exceeded} steps"

    # The loop's interface ----------------------------------------------------------------------------------------

    @property
    def optimizer(self) -> Optimizer:
        """Of policy and value model together."""
        return self.models.optimizer

    def validate(self, step: int) -> dict[str, float]:
        """Responses to the validation prompts; `score` is their mean total reward, on one scale for the run.

        `reference_perplexity` is exp of the mean −log p of their tokens under the frozen reference.
        """
        prompts = self.data.validation
        if not prompts:
            return {}
        metrics = StepMetrics()
        share = [prompts[i] for i in self.processes.share(len(prompts))]
        size = self.rollout_config.prompts_per_step * self.rollout_config.samples_per_prompt
        size = max(size // self.processes.count // self.validation.samples, 1)
        batches = [share[i : i + size] for i in range(0, len(share), size)] or [[]]
        with whole_weights(self.models.policy.model):
            answered = [
                (drawn, self._scores(drawn)) for drawn in (self.draws.draw(b, self.validation, 0) for b in batches)
            ]
        self.composer.fix_moments({name: [scores[name] for _, scores in answered] for name in answered[0][1]})
        for rollout, scores in answered:
            trace = self.composer.compose(rollout, scores, train=False)
            describe_responses(rollout, trace, self.models.policy, metrics)
            # Not held to what the policy drew from: how likely the reference finds a response depends on nobody else.
            reference = self._scorer.reference(rollout, self._micro_batches(replace(rollout, support=None)))
            metrics.add("reference_perplexity", -reference.sum(), rollout.written.sum())
            measured = self.monitor.counts(rollout.row_prompts(), rollout.texts) if self.monitor else {}
            for name, (total, count) in {**measured, **self.composer.weights.sums(scores)}.items():
                metrics.add(name, total, count)
        self._watch.add(answered, metrics)
        means = metrics.reduce(self.processes)
        means["reference_perplexity"] = perplexity_of(means["reference_perplexity"])
        self._keep_validation(step)
        self._hacking.warn(means)
        self._watch.warn(means)
        missed = self.composer.weights.missed(means)
        return {"score": means["reward/total"], **missed, "examples": len(prompts), **means}

    def _keep_validation(self, step: int) -> None:
        """Write the first validation prompts' responses like a training step's."""
        prompts = self.data.validation[: self.samples.of_validation]
        rollout = self.draws.draw([prompts[i] for i in self.processes.share(len(prompts))], self.validation, 0)
        trace = self.composer.compose(rollout, self._scores(rollout), train=False)
        scored = self._scorer.score_again(rollout, self._micro_batches(rollout))
        if self.algorithm.critic:
            experience = self._experience(scored, trace)
        else:  # one response a prompt has no group
            experience = without_advantages(scored.rollout, trace, scored.reference)
        write_step_samples(
            self.run.validation_samples_path(step), experience, self.samples.of_validation, self.processes
        )

    def model_to_save(self) -> Write:
        """The policy in the Hugging Face layout."""
        return policy_to_save(self.models.policy, self.processes.is_main)

    def state_to_save(self) -> Write:
        """Everything beside the policy that a resumed run needs."""
        models, ahead = self.models.state_to_save(self.processes.is_main), self.draws.state_to_save()
        if not self.processes.is_main:
            return models
        state: dict[str, Any] = {
            "kl": self.kl_controller.state(),
            "kl_exceeded": self.kl_exceeded,
            "entropy": self._update.entropy.state(),
            "reward": self.composer.state(),
            "logprobs_from_decode": self._scorer.from_decode,
        }
        return write_all((models, ahead, lambda directory: write_json(directory / "ppo.json", state)))

    def load_state(self, checkpoint: Path) -> None:
        """Continue from `checkpoint`; the reference stays the policy that the run began with."""
        self.models.load_state(checkpoint)
        self.draws.load_state(checkpoint)
        state = read_json(checkpoint / "ppo.json")
        self.kl_controller.load_state(state["kl"])
        self.kl_exceeded = int(state["kl_exceeded"])
        self._update.entropy.load_state(state.get("entropy", {}))
        self.composer.load_state(state["reward"])
        if self._scorer.from_decode is None:
            self._scorer.from_decode = state.get("logprobs_from_decode")
        self.fresh = False
