"""PPO with fine-grained rewards: one training step, validation, and what a checkpoint keeps.

Knows rollouts and rewards through their interfaces; which reward models stand behind them is the configuration's.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.files import read_json, read_jsonl, write_json, write_jsonl
from finegrained_rlhf.core.records import Experience, Greedy, Prompt, RewardTrace, Rollout, SegmentScores
from finegrained_rlhf.inference.measure import PhaseTimer, ResponseMonitor, StepMetrics
from finegrained_rlhf.models.loading import save_policy
from finegrained_rlhf.rewards.composition import RewardComposer
from finegrained_rlhf.rl.kl import log_ratio_kl
from finegrained_rlhf.rollout.engine import RolloutConfig, RolloutEngine, RolloutSampler
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.loop.trainer import check_finite
from finegrained_rlhf.runtime.optimizer import Optimizer
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.text.alignment import AlignmentAudit
from finegrained_rlhf.training.checks import (
    check_ratio,
    check_start,
    largest_logit,
    start_tolerance,
)
from finegrained_rlhf.training.hacking import hacking_warnings
from finegrained_rlhf.training.micro_batches import MicroBatch, micro_batches
from finegrained_rlhf.training.order import items_of_step, number_occurrences
from finegrained_rlhf.training.ppo.config import PPOConfig
from finegrained_rlhf.training.ppo.experience import make_experience
from finegrained_rlhf.training.ppo.metrics import audit_trace, describe_responses, explained_variance
from finegrained_rlhf.training.ppo.models import PPOModels
from finegrained_rlhf.training.ppo.scoring import RolloutScorer, ScoredRollout
from finegrained_rlhf.training.ppo.update import PPOUpdate
from finegrained_rlhf.training.samples import sample_rows

logger = logging.getLogger(__name__)

_NUMBERS = ("loss/policy", "loss/value", "gradient_norm", "kl")
"""Metrics that must be finite after every step."""


@dataclass(frozen=True)
class PPOData:
    """Prompts of a run.

    Attributes:
        train: drawn from in a seeded order, epoch after epoch.
        validation: answered greedily at every validation; may be empty.
    """

    train: Sequence[Prompt]
    validation: Sequence[Prompt]

    def __post_init__(self) -> None:
        if not self.train:
            raise ConfigError("data: there are no training prompts")


class PPOTrainer:
    """Trains a policy on token rewards. Satisfies the training loop's `Trainable`.

    Args:
        models: policy, value model, reference and optimizer.
        engine: draws responses from the policy.
        composer: turns responses into token rewards.
        data: prompts.
        config: PPO settings.
        rollout: sampling settings.
        processes: of the run.
        run: where samples are written.
        seed: of the run.
        samples_every: write the responses of every n-th step with their rewards.
        samples_rows: at most so many of them.
        validation_samples: write so many of the greedy responses of every validation in the same way.
        monitor: measures the validation responses as well.
    """

    def __init__(
        self,
        models: PPOModels,
        engine: RolloutEngine,
        composer: RewardComposer,
        data: PPOData,
        config: PPOConfig,
        rollout: RolloutConfig,
        processes: Processes,
        run: RunDirectory,
        *,
        seed: int,
        samples_every: int = 10,
        samples_rows: int = 64,
        validation_samples: int = 16,
        monitor: ResponseMonitor | None = None,
    ) -> None:
        self.models, self.engine, self.composer, self.data = models, engine, composer, data
        self.config, self.rollout_config, self.processes, self.run = config, rollout, processes, run
        self.seed, self.samples_every, self.samples_rows = seed, samples_every, samples_rows
        self.validation_samples, self.monitor = validation_samples, monitor
        self.sampler = RolloutSampler(
            engine, models.policy.pad_id, processes, seed, rollout.max_new_tokens, rollout.prompts_per_batch
        )
        self.kl_controller = config.kl.build()
        self.kl_exceeded = 0
        self.stop_reason: str | None = None
        self.fresh = True
        self._warned: set[tuple[str, str]] = set()
        self._scorer = RolloutScorer(models, processes, rollout.logprobs)
        self._update = PPOUpdate(models.policy, models.value, self._optimizer_step, processes, config)

    # One training step -----------------------------------------------------------------------------------------

    def train_step(self, step: int) -> dict[str, float]:
        """Roll out, score, update. Returns the metrics of this step, the same on every process."""
        timer, metrics = PhaseTimer(self.processes.device), StepMetrics()
        count = self.rollout_config.prompts_per_step
        prompts = number_occurrences(items_of_step(self.data.train, step, count, self.seed))
        mine = [prompts[i] for i in self.processes.share(count)]
        with timer.phase("total"):
            with timer.phase("rollout"):
                rollout = self.sampler.draw(mine, [self.rollout_config.decoding()], step)
            with timer.phase("rewards"):
                trace = self.composer.compose(rollout, self._scores(rollout))
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
                self._update.run(step, experience, batches, metrics, check)
        result = self._describe(experience, beta, metrics, step)
        check_finite(step, result, _NUMBERS)
        self._after_step(result["kl"], int(result["episodes_per_step"]))
        if step % self.samples_every == 0 or first:
            self._write_samples(self.run.samples_path(step), experience, self.samples_rows)
        tokens = result.pop("response_tokens")
        for phase, seconds in timer.seconds.items():
            result[f"time/{phase}_s"] = seconds
            result[f"time/{phase}_tokens_per_s"] = tokens / max(seconds, 1e-9)
        return result

    @torch.no_grad()
    def _scores(self, rollout: Rollout) -> dict[str, SegmentScores]:
        with self.processes.autocast():
            return self.composer.score(rollout.row_prompts(), rollout.texts)

    def _micro_batches(self, rollout: Rollout) -> list[MicroBatch]:
        return micro_batches(rollout, self.config.micro_batch_prompts, self.config.micro_batch_tokens)

    def _experience(self, scored: ScoredRollout, trace: RewardTrace) -> Experience:
        return make_experience(
            scored.rollout,
            trace,
            scored.reference,
            scored.values,
            beta=self.kl_controller.beta,
            config=self.config,
            reduce=self.processes.sum_,
        )

    def _optimizer_step(self, step: int) -> float:
        self.processes.all_reduce_gradients(self.models.trained)
        return self.models.optimizer.step(step)

    # Checks ------------------------------------------------------------------------------------------------------

    def tolerance(self, rollout: Rollout) -> float:
        """How far log-probabilities of one policy may differ before the first update, in nats, for this rollout.

        Every process must call this; all get the same number.
        """
        exact = self.processes.precision == "fp32" and self.rollout_config.logprobs != "decode"
        with self.processes.autocast():
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

    # Metrics -----------------------------------------------------------------------------------------------------

    def _describe(self, experience: Experience, beta: float, metrics: StepMetrics, step: int) -> dict[str, float]:
        rollout, mask = experience.rollout, experience.rollout.response_mask
        episodes, tokens = mask.shape[0], mask.sum()
        kl = log_ratio_kl(rollout.logprobs, experience.reference_logprobs, mask)
        metrics.add("kl", kl.sum(), episodes)
        metrics.add("return", experience.returns.sum(), tokens)
        metrics.add("value", experience.values.sum(), tokens)
        describe_responses(rollout, experience.trace, self.models.policy, metrics)
        means = metrics.reduce(self.processes)
        totals = self.processes.sum_(torch.tensor([float(episodes), float(tokens)], dtype=torch.float64)).tolist()
        return {
            "episodes": step * totals[0],
            "episodes_per_step": totals[0],
            "processes": self.processes.count,
            "kl": means.pop("kl"),
            "beta": beta,
            **means,
            "explained_variance": explained_variance(experience, self.processes.sum_),
            "lr": self.models.optimizer.lr(step),
            "response_tokens": totals[1],
        }

    def _write_samples(self, path: Path, experience: Experience, rows: int) -> None:
        share = -(-rows // self.processes.count)
        gathered = self.processes.gather_objects(sample_rows(experience)[:share])
        if self.processes.is_main:
            write_jsonl(path, gathered[:rows])

    # The loop's interface ----------------------------------------------------------------------------------------

    @property
    def optimizer(self) -> Optimizer:
        """Of policy and value model together."""
        return self.models.optimizer

    def validate(self, step: int) -> dict[str, float]:
        """Greedy responses to the validation prompts; `score` is their mean total reward, on one scale for the run."""
        prompts = self.data.validation
        if not prompts:
            return {}
        metrics = StepMetrics()
        mine = [prompts[i] for i in self.processes.share(len(prompts))]
        size = max(
            self.rollout_config.prompts_per_step * self.rollout_config.samples_per_prompt // self.processes.count, 1
        )
        batches = [mine[i : i + size] for i in range(0, len(mine), size)] or [[]]
        answered = [
            (rollout, self._scores(rollout)) for rollout in (self.sampler.draw(b, [Greedy()], step) for b in batches)
        ]
        self.composer.fix_moments({name: [scores[name] for _, scores in answered] for name in answered[0][1]})
        for rollout, scores in answered:
            trace = self.composer.compose(rollout, scores, train=False)
            describe_responses(rollout, trace, self.models.policy, metrics)
            measured = self.monitor.counts(rollout.row_prompts(), rollout.texts) if self.monitor else {}
            for name, (total, count) in measured.items():
                metrics.add(name, total, count)
        means = metrics.reduce(self.processes)
        self._keep_validation(step)
        self._warn(means)
        return {"score": means["reward/total"], "examples": len(prompts), **means}

    def _keep_validation(self, step: int) -> None:
        """Write the first validation prompts' greedy responses like a training step's."""
        prompts = self.data.validation[: self.validation_samples]
        rollout = self.sampler.draw([prompts[i] for i in self.processes.share(len(prompts))], [Greedy()], step)
        trace = self.composer.compose(rollout, self._scores(rollout), train=False)
        scored = self._scorer.score_again(rollout, self._micro_batches(rollout))
        experience = self._experience(scored, trace)
        self._write_samples(self.run.validation_samples_path(step), experience, self.validation_samples)

    def _warn(self, means: Mapping[str, float]) -> None:
        """Say once what looks like reward hacking, compared with the run's first validation."""
        first = next(iter(read_jsonl(self.run.eval)), means) if self.run.eval.is_file() else means
        for warning in hacking_warnings(first, means):
            if self.processes.is_main and (warning.component, warning.kind) not in self._warned:
                self._warned.add((warning.component, warning.kind))
                logger.warning("%s hacking? %s; read the samples in %s", warning.kind, warning.message, self.run.path)

    def save_model(self, directory: Path) -> None:
        """The policy in the Hugging Face layout."""
        save_policy(self.models.policy, directory)

    def save_state(self, directory: Path) -> None:
        """Everything beside the policy that a resumed run needs."""
        self.models.save_state(directory)
        state: dict[str, Any] = {
            "kl": self.kl_controller.state(),
            "kl_exceeded": self.kl_exceeded,
            "reward": self.composer.state(),
            "logprobs_from_decode": self._scorer.from_decode,
        }
        write_json(directory / "ppo.json", state)

    def load_state(self, checkpoint: Path) -> None:
        """Continue from `checkpoint`; the reference stays the policy that the run began with."""
        self.models.load_state(checkpoint)
        state = read_json(checkpoint / "ppo.json")
        self.kl_controller.load_state(state["kl"])
        self.kl_exceeded = int(state["kl_exceeded"])
        self.composer.load_state(state["reward"])
        if self._scorer.from_decode is None:
            self._scorer.from_decode = state.get("logprobs_from_decode")
        self.fresh = False
