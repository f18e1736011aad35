"""Self-critical training: samples are rewarded above the greedy response, mixed with cross-entropy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from finegrained_rlhf.core.errors import ConfigError, ConsistencyError, DataError
from finegrained_rlhf.core.files import write_jsonl
from finegrained_rlhf.core.records import Greedy, Prompt, Rollout
from finegrained_rlhf.inference.generator import PolicyGenerator
from finegrained_rlhf.inference.measure import PhaseTimer, StepMetrics
from finegrained_rlhf.models.dropout import set_dropout
from finegrained_rlhf.models.policy import Policy
from finegrained_rlhf.models.weights.reference import ReferencePolicy
from finegrained_rlhf.rl.importance import importance_weights
from finegrained_rlhf.rl.kl import log_ratio_kl
from finegrained_rlhf.rl.self_critical import weighted_kl_loss, weighted_likelihood_loss
from finegrained_rlhf.rollout.engine import RolloutEngine, RolloutSampler
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.loop.forecast import first_measured
from finegrained_rlhf.runtime.loop.trainer import check_finite
from finegrained_rlhf.runtime.optimizer import AnyOptimizerConfig
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.training.importance import ImportanceMetrics
from finegrained_rlhf.training.micro_batches import MicroBatch, micro_batches
from finegrained_rlhf.training.order import items_of_step, number_occurrences
from finegrained_rlhf.training.policy_state import PolicyTrainer
from finegrained_rlhf.training.self_critical.config import ResponseReward, ResponseValidation, SelfCriticalConfig
from finegrained_rlhf.training.self_critical.rows import (
    ComparedRollout,
    Imitation,
    TrainedRows,
    WeightedRow,
    compared_rows,
    describe,
    sampled_rows,
    trained_rows,
    useful,
)
from finegrained_rlhf.training.sft.trainer import Demonstration, answer_loss
from finegrained_rlhf.training.supervised.trainer import accumulate

_LOSSES = ("rl", "ce", "kl", "log_ratio")


class SelfCriticalTrainer(PolicyTrainer):
    """Trains a policy by L = α (L_RL + β L_KL) + (1 − α) L_CE. Satisfies the training loop's `Trainable`.

    L_RL is −(1/m) Σ_i (score(q_i) − score(greedy)) log Pr(q_i), L_KL is (1/m) Σ_i of the estimated KL of q_i, in nats,
    from the policy as the run began with it, both averaged over the rewarded prompts of the step; L_CE is −log Pr of
    the references, averaged over their tokens. The counts are those of the whole step, so neither micro-batches nor
    processes change it (dropout draws apart). With α = 0 a step is that of `SFTTrainer`. With β = 0 samples that score
    what the greedy response scores have no gradient and are left out of the update, and no reference is kept.

    Args:
        policy: trained.
        data: examples, drawn in a seeded order, epoch after epoch; each is of use under α.
        reward: scores responses; None where α is 0.
        validation: measures greedy responses.
        config: the numbers.
        optimizer: rates and schedule.
        total_steps: training steps that the schedule spans.
        engine: draws responses from the policy.
        processes: of the run.
        run: where samples are written.
        seed: of the run.
        samples_every: write the responses of every n-th step with their scores; None writes none.

    Raises:
        DataError: there is nothing to learn from.
    """

    def __init__(
        self,
        policy: Policy,
        data: Sequence[Imitation],
        reward: ResponseReward | None,
        validation: ResponseValidation,
        config: SelfCriticalConfig,
        optimizer: AnyOptimizerConfig,
        total_steps: int,
        engine: RolloutEngine,
        processes: Processes,
        run: RunDirectory,
        *,
        seed: int,
        samples_every: int | None = None,
    ) -> None:
        if len(useful(data, config.alpha)) < max(len(data), 1):
            raise DataError(f"need examples, each rewarded or with a reference as alpha = {config.alpha} asks for")
        if config.alpha > 0 and reward is None:
            raise ConfigError(f"alpha = {config.alpha} needs a reward")
        self.policy, self.data, self.reward, self.validation = policy.eval(), data, reward, validation
        self.config, self.engine, self.processes, self.run = config, engine, processes, run
        self.seed, self.samples_every = seed, samples_every
        self._largest_ratio: dict[str, float] = {}
        self._reference = ReferencePolicy(self.policy) if config.kl.beta else None
        self._sampler = RolloutSampler(
            engine, policy.pad_id, processes, seed, config.max_new_tokens, config.prompts_per_batch
        )
        if config.dropout is not None:
            set_dropout(policy.model, config.dropout)
        self.optimizer = optimizer.build(policy.model.named_parameters(), total_steps, processes)

    # One training step -----------------------------------------------------------------------------------------

    def train_step(self, step: int) -> dict[str, float]:
        """Roll out, score, update. Returns the metrics of this step, the same on every process."""
        timer, metrics = PhaseTimer(self.processes.device), StepMetrics()
        drawn = items_of_step(self.data, step, self.config.batch_size, self.seed)
        names = number_occurrences([e.prompt for e in drawn])
        batch = [replace(e, prompt=prompt) for e, prompt in zip(drawn, names, strict=True)]
        share = [batch[i] for i in self.processes.share(len(batch))]
        with timer.phase("total"):
            scored = None
            if self.config.alpha > 0:
                with timer.phase("rollout"):
                    prompts = [e.prompt for e in share if e.rewarded]
                    rollout = self._sampler.draw(prompts, self.config.decodings(), step)
                with timer.phase("rewards"):
                    scored = self._score([e.prompt for e in batch if e.rewarded], rollout)
            with timer.phase("update"):
                self._update(batch, share, scored, metrics)
                norm = self.optimizer_step(step)
        if scored is not None:
            describe(scored, metrics)
            self._write_samples(scored, step)
        result = {
            "examples": step * len(batch),
            "epoch": step * len(batch) / len(self.data),
            **metrics.reduce(self.processes),
            **self._largest_ratio,
            "lr": self.optimizer.lr(step),
            "gradient_norm": norm,
            **{f"time/{phase}_s": seconds for phase, seconds in timer.seconds.items()},
        }
        alpha, beta = self.config.alpha, self.config.kl.beta
        sampled = result.get("loss/rl", 0.0) + beta * result.get("loss/kl", 0.0)
        result["loss"] = alpha * sampled + (1 - alpha) * result.get("loss/ce", 0.0)
        check_finite(step, result, ("loss", "gradient_norm"))
        return result

    @torch.no_grad()
    def _score(self, step_prompts: Sequence[Prompt], rollout: Rollout) -> ComparedRollout:
        assert self.reward is not None
        scores = self.reward.score(step_prompts, rollout.row_prompts(), rollout.texts) if rollout.texts else []
        if len(scores) != len(rollout.texts):
            raise ConsistencyError(f"the reward gave {len(scores)} scores for {len(rollout.texts)} responses")
        table = torch.tensor(scores, dtype=torch.float32).view(len(rollout.prompts), 1 + self.config.samples)
        return ComparedRollout(rollout, table)

    def _update(
        self,
        batch: Sequence[Imitation],
        share: Sequence[Imitation],
        scored: ComparedRollout | None,
        metrics: StepMetrics,
    ) -> None:
        """Accumulate the gradient of this process's examples; the losses are added to `metrics`."""
        tokens = sum(len(e.answer_ids) for e in batch if e.answer_ids is not None)
        # Without dropout the two modes are one function, and that of evaluation has the faster passes.
        self.policy.train(self.config.dropout != 0)
        if scored is None:
            items = [Demonstration(e.prompt, e.answer_ids) for e in share if e.answer_ids is not None]
            items.sort(key=lambda item: item.length, reverse=True)
            size = self.config.micro_batch_prompts
            groups = [items[start : start + size] for start in range(0, len(items), size)]
            loss = accumulate(groups, lambda part: self._imitation(part, tokens), self.processes).sum() * tokens
            metrics.add("loss/ce", loss, sum(len(item.answer_ids) for item in items))
        else:
            self._mixed(share, scored, sum(e.rewarded for e in batch), tokens, metrics)
        self.policy.eval()

    def _imitation(self, items: Sequence[Demonstration], tokens: int) -> tuple[Tensor, Tensor]:
        loss = answer_loss(self.policy, items) / tokens
        return loss, loss.detach()[None]

    def _mixed(
        self, share: Sequence[Imitation], scored: ComparedRollout, rewarded: int, tokens: int, metrics: StepMetrics
    ) -> None:
        """Samples and references of a prompt in one pass, its encoding shared."""
        alpha, beta = self.config.alpha, self.config.kl.beta
        rows: dict[int, list[WeightedRow]] = {number: [] for number in range(len(share))}
        places = [number for number, e in enumerate(share) if e.rewarded]
        for number, samples in zip(places, sampled_rows(scored, alpha / max(rewarded, 1), beta), strict=True):
            rows[number] += samples
        for number, example in enumerate(share):
            if alpha < 1 and example.answer_ids is not None:
                rows[number].append(WeightedRow(example.answer_ids, (1 - alpha) / tokens, reference=True))
        measured = None if self.config.importance_cap is None else ImportanceMetrics(metrics)
        sums = dict.fromkeys(_LOSSES, torch.zeros((), dtype=torch.float64, device=self.policy.device))
        prompts = {number: e.prompt for number, e in enumerate(share)}
        limits = self.config.micro_batch_prompts, self.config.micro_batch_tokens
        batches = [
            (group, batch)
            for group in trained_rows(rows, prompts, self.policy.pad_id, self.policy.device)
            for batch in micro_batches(group, *limits, self.policy.pass_tokens)
        ]
        for group, batch in first_measured(batches):
            losses = self._backward(group, batch, measured)
            sums = {name: sums[name] + losses.get(name, 0.0) for name in _LOSSES}
        self.optimizer.sum_gradients()
        self._largest_ratio = {} if measured is None else measured.largest(self.processes)
        metrics.add("loss/rl", sums["rl"] * rewarded / alpha, len(places))
        if self._reference is not None:
            metrics.add("loss/kl", sums["kl"] * rewarded / (alpha * beta), len(places))
            metrics.add("kl", sums["log_ratio"], len(places) * self.config.samples)
        if alpha < 1:
            share_tokens = sum(len(e.answer_ids) for e in share if e.answer_ids is not None)
            metrics.add("loss/ce", sums["ce"] * tokens / (1 - alpha), share_tokens)

    def _backward(self, group: TrainedRows, batch: MicroBatch, measured: ImportanceMetrics | None) -> dict[str, Tensor]:
        """Accumulate the gradient of a micro-batch; what it adds to the sums of `_LOSSES`."""
        config, weights, references = self.config, group.weights[batch.rows], group.references[batch.rows]
        samples, sums = batch.mask * (~references[:, None]), {}
        with self.processes.autocast():
            memory = self.policy.encode(batch.prompts)
            logprobs = self.policy.logprobs(memory, batch.index, batch.ids, batch.mask, places=batch.places).logprobs
        now, importance = logprobs.detach(), None
        if measured is not None and config.importance_cap is not None:
            drawn = batch.cut(group.sampler_logprobs)
            ratios = importance_weights(now, drawn, samples, cap=config.importance_cap, mode=config.importance_mode)
            measured.add(ratios, now, drawn, samples)
            importance = ratios.weights
        loss = weighted_likelihood_loss(logprobs, weights, batch.mask, importance)
        if self._reference is not None:
            with self.processes.autocast():
                anchor = self._reference.logprobs(batch.prompts, batch.index, batch.ids, batch.mask, batch.places)
            kl_weights = group.kl_weights[batch.rows]
            penalty = weighted_kl_loss(logprobs, anchor, kl_weights, samples, config.kl.estimator, importance)
            loss = loss + penalty
            sums = {"kl": penalty.detach().double(), "log_ratio": log_ratio_kl(now, anchor, samples).sum().double()}
        loss.backward()
        values = -(weights * (now if importance is None else now * importance).sum(dim=1)).double()
        by_kind = {"rl": torch.where(references, 0.0, values), "ce": torch.where(references, values, 0.0)}
        return {**{name: kind.sum() for name, kind in by_kind.items()}, **sums}

    def _write_samples(self, scored: ComparedRollout, step: int) -> None:
        if self.samples_every is None or step % self.samples_every:
            return
        rows = self.processes.gather_objects(compared_rows(scored))
        if self.processes.is_main:
            write_jsonl(self.run.scored_samples_path(step), rows)

    # The loop's interface ----------------------------------------------------------------------------------------

    def validate(self, step: int) -> dict[str, float]:
        """Greedy responses to the validation prompts as the validation measures them, and their mean length."""
        prompts = self.validation.prompts
        if not prompts:
            return {}
        share = [prompts[i] for i in self.processes.share(len(prompts))]
        batches = PolicyGenerator(self.policy, self.engine, self.processes).stream(
            share,
            Greedy(),
            max_new_tokens=self.config.max_new_tokens,
            batch_size=self.config.validation_batch_size,
        )
        responses = self.processes.gather_objects([group[0] for batch in batches for group in batch])
        measured = self.validation.measure([response.text for response in responses], self.processes)
        return {
            **measured,
            "examples": len(prompts),
            "response_length": sum(response.tokens for response in responses) / len(responses),
            "unfinished": sum(not response.finished for response in responses) / len(responses),
        }
