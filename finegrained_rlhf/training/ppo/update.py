"""The update: epochs over one rollout, an optimizer step a mini-batch, gradients summed over processes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from finegrained_rlhf.core.records import Experience, learnt_tokens
from finegrained_rlhf.inference.measure import StepMetrics
from finegrained_rlhf.models.families.fused import drop_copies
from finegrained_rlhf.models.logprobs import Anchor, token_logprobs
from finegrained_rlhf.models.policy import Policy
from finegrained_rlhf.models.value import SharedTrunkValueModel, ValueModel
from finegrained_rlhf.models.weights.reference import ReferencePolicy
from finegrained_rlhf.rl.kl import kl_estimates
from finegrained_rlhf.rl.losses import PolicyLoss, ValueLoss, clipped_policy_loss, clipped_value_loss
from finegrained_rlhf.runtime.loop.forecast import first_measured
from finegrained_rlhf.runtime.optimizer import Optimizer
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.training.micro_batches import MicroBatch, stand_in
from finegrained_rlhf.training.ppo.config import PPOConfig
from finegrained_rlhf.training.ppo.mini_batches import GlobalCounts, MiniBatch, MiniBatches
from finegrained_rlhf.training.ppo.parts import masked_values

# Collected in this order on every process, also on one that has no prompt in a step.
_METRICS = (
    "loss/policy",
    "loss/value",
    "clip_fraction/policy",
    "clip_fraction/policy_low",
    "clip_fraction/policy_high",
    "clip_fraction/value",
    "ratio",
    "ratio_square",
    "gradient_norm",
    "entropy",
    "logprob_gap",
)
_OF_VALUES = ("loss/value", "clip_fraction/value")


@dataclass(frozen=True)
class TokenStatistics:
    """What the policy and value model say about the tokens of a rollout.

    Attributes:
        logprobs: fp32 [R, T].
        entropy: fp32 [R, T], nats; 0 where nobody asked for it.
        values: fp32 [R, T], or [R, T, K] of K value heads; None without a value model.
        kl: fp32 [R, T] from an anchor over the vocabulary, nats; None without one.
    """

    logprobs: Tensor
    entropy: Tensor
    values: Tensor | None
    kl: Tensor | None = None


def token_statistics(
    policy: Policy,
    value_model: ValueModel | None,
    batch: MicroBatch,
    *,
    entropy: bool = False,
    entropy_gradient: bool = False,
    anchor: Anchor | None = None,
) -> TokenStatistics:
    """Run policy and value model, if any, over a micro-batch, encoding each prompt once. Tensors [r, t].

    Args:
        policy: its log-probabilities are asked for.
        value_model: separate, on the policy's trunk, or None.
        batch: prompts with their responses.
        entropy: compute the entropy too; else it is 0.
        entropy_gradient: gradients flow through it.
        anchor: compute the KL from it too.
    """
    memory = policy.encode(batch.prompts)
    hidden = policy.hidden(memory, batch.index, batch.ids)
    head = policy.head_of_pass()
    scored = token_logprobs(
        hidden,
        batch.ids,
        batch.mask,
        head,
        scored=policy.scored,
        entropy=entropy,
        entropy_gradient=entropy_gradient,
        places=batch.places,
        anchor=anchor,
        support=batch.support,
    )
    if value_model is None:
        return TokenStatistics(scored.logprobs, scored.entropy, None, scored.kl)
    if isinstance(value_model, SharedTrunkValueModel):
        values = value_model.from_hidden(hidden)
    else:
        values = value_model(memory, batch.index, batch.ids)
    return TokenStatistics(scored.logprobs, scored.entropy, masked_values(values, batch.mask), scored.kl)


class PPOUpdate:
    """Trains policy and value model on one Experience.

    The losses are sums over tokens divided by global counts, and gradients are summed over processes, so neither the
    size of the micro-batches nor the number of processes changes the step.

    Args:
        policy: trained.
        value_model: trained; may be None.
        optimizer: of both together.
        processes: of the run.
        config: PPO settings.
        longest: tokens of the longest response that can be; read by `loss_average=constant`.
        reference: read by `kl.estimator=exact` inside the loss.
        seed: of the run; with the step and the epoch it decides what is in which mini-batch.
    """

    def __init__(
        self,
        policy: Policy,
        value_model: ValueModel | None,
        optimizer: Optimizer,
        processes: Processes,
        config: PPOConfig,
        longest: int = 1,
        reference: ReferencePolicy | None = None,
        seed: int = 0,
    ) -> None:
        self.policy, self.value_model = policy, value_model
        self._optimizer, self._processes, self._config = optimizer, processes, config
        self._longest = longest
        self._kl_loss, self.entropy = config.kl.in_loss, config.entropy.build()
        self._mini_batches = MiniBatches(policy, processes, config, seed)
        self._reference = reference if self._kl_loss and config.kl.estimator == "exact" else None

    def run(
        self,
        step: int,
        experience: Experience,
        batches: Sequence[MicroBatch],
        metrics: StepMetrics,
        check_ratio: Callable[[float], None] | None = None,
        beta: float = 0.0,
    ) -> None:
        """All epochs.

        Args:
            step: the training step, for the learning rate.
            experience: of this process; may be empty.
            batches: its rollout in micro-batches.
            metrics: losses, clip fractions, gradient norm and ratio are added; of the first epoch the policy's entropy,
                and before the first optimizer step `logprob_gap`, the mean |log ratio|, which is the error of the
                behaviour log-probabilities.
            check_ratio: called on every process, before the first optimizer step, with the largest |log ratio| of all
                that it is made from.
            beta: β of the step, for a KL penalty inside the loss.
        """
        left_out = () if self.value_model is not None else _OF_VALUES
        for name in (*_METRICS, *(("loss/kl",) if self._kl_loss else ())):
            if name not in left_out:
                metrics.add(name, 0.0, 0.0)
        if self.entropy.on:
            metrics.add("entropy_coefficient", self.entropy.weight, 1)
        steps = self._mini_batches.of_step(step, experience, batches)
        self._train_mode(self._config.compat.update_dropout)
        for number, part in enumerate(steps):
            if self._reference is not None:
                self._reference.gather_head()
            gaps = [
                self._backward(experience, batch, part, metrics, beta, number)
                for batch in first_measured(part.batches, len(steps))
            ]
            for _ in range(part.rounds - len(part.batches)):
                self._backward_of_nothing()
            self._optimizer.sum_gradients()
            if number == 0 and check_ratio is not None:
                largest = float(torch.stack(gaps).max()) if gaps else 0.0
                largest = largest if math.isfinite(largest) else math.inf
                check_ratio(max(self._processes.gather_objects([largest])))
            metrics.add("gradient_norm", self._optimizer.step(step), 1)
        self._train_mode(False)
        drop_copies(self.policy, self.value_model)

    def _train_mode(self, dropout: bool) -> None:
        self.policy.train(dropout)
        if self.value_model is not None:
            self.value_model.train(dropout)

    def _backward(
        self,
        experience: Experience,
        batch: MicroBatch,
        part: MiniBatch,
        metrics: StepMetrics,
        beta: float,
        number: int,
    ) -> Tensor:
        """Accumulate the gradient of one micro-batch of optimizer step `number`, without waiting for the device.

        Returns:
            fp32 [], the largest |log ratio|.
        """
        config, cut, counts = self._config, batch.cut, part.counts
        first, bonus = number < config.mini_batches, self.entropy.weight
        mask = learnt_tokens(batch.mask, None if experience.learnt is None else experience.learnt[batch.rows])
        with self._processes.autocast():
            anchor = self._anchor(experience, batch)
            now = token_statistics(
                self.policy,
                self.value_model,
                batch,
                entropy=first or bonus > 0,
                entropy_gradient=bonus > 0,
                anchor=anchor,
            )
        if config.compat.micro_batch_sums:
            counts = counts.times(len(mask) * self._processes.count / counts.responses)
        weights, scale = self._averaged(now.logprobs, batch.mask, counts)
        policy_loss = clipped_policy_loss(
            now.logprobs,
            cut(experience.rollout.logprobs),
            cut(experience.advantages),
            mask,
            clip=config.clip,
            clip_upper=config.clip_upper,
            dual_clip=config.dual_clip,
            weights=_weighed(weights, experience, batch),
            level=config.ratio,
            kind=config.loss,
        )
        tokens, every = mask.sum(), batch.mask.sum()
        items, all_items = (tokens, every) if weights is None else (_learnt_rows(experience, batch), len(batch.rows))
        metrics.add("loss/policy", policy_loss.loss.detach(), items)
        loss = policy_loss.loss
        if now.values is not None:
            value_loss = self._value_loss(now.values, experience, batch, mask, weights)
            loss = loss + config.value_coefficient * value_loss.loss
            metrics.add("loss/value", value_loss.loss.detach(), items)
            metrics.add("clip_fraction/value", value_loss.clipped, tokens)
        if self._kl_loss:
            penalty = self._kl_penalty(now, experience, batch, weights)
            over_all = part.learnt_share(config.loss_average == "token")  # also those that no reward is known of
            loss = loss + beta * over_all * penalty
            metrics.add("loss/kl", penalty.detach(), all_items)
        loss = loss * scale
        if bonus:
            loss = loss - bonus * (now.entropy * mask).sum() / counts.tokens
        loss.backward()
        if first:
            metrics.add("entropy", now.entropy.sum(), every)
        gaps = _measure_ratios(policy_loss, mask, tokens, metrics)
        if number == 0:
            metrics.add("logprob_gap", (gaps * mask).sum(), tokens)
        return gaps.max()

    def _kl_penalty(
        self, now: TokenStatistics, experience: Experience, batch: MicroBatch, weights: Tensor | None
    ) -> Tensor:
        """The KL inside the loss, weighed and summed over a micro-batch's tokens, [] before β."""
        kl, estimator = now.kl, self._config.kl.estimator
        if estimator != "exact":
            kl = kl_estimates(now.logprobs, batch.cut(experience.reference_logprobs), batch.mask, estimator)
        assert kl is not None
        return (kl if weights is None else kl * weights).sum()

    def _averaged(self, logprobs: Tensor, mask: Tensor, counts: GlobalCounts) -> tuple[Tensor | None, float]:
        """Weights of a micro-batch's tokens [r, t] in the sum of losses (None: all alike), and what scales the sum."""
        if self._config.loss_average == "sequence":
            return (1.0 / mask.sum(dim=1, keepdim=True).clamp(min=1)).expand_as(logprobs), 1.0 / counts.responses
        if self._config.loss_average == "constant":
            return torch.full_like(logprobs, 1.0 / self._longest), 1.0 / counts.responses
        return None, 1.0 / counts.tokens

    def _anchor(self, experience: Experience, batch: MicroBatch) -> Anchor | None:
        """What the KL over the vocabulary inside the loss is taken from."""
        if self._reference is None:
            return None
        assert experience.reference_states is not None
        return Anchor(batch.cut(experience.reference_states), self._reference.head_of_pass())

    def _backward_of_nothing(self) -> None:
        """Take part in a micro-batch of other processes, which need this one's shards; the gradient is zero."""
        batch = stand_in(self.policy.pad_id, self.policy.device)
        with self._processes.autocast():
            now = token_statistics(self.policy, self.value_model, batch)
        nothing = now.logprobs.sum() if now.values is None else now.logprobs.sum() + now.values.sum()
        (nothing * 0.0).backward()

    def _value_loss(
        self, values: Tensor, experience: Experience, batch: MicroBatch, mask: Tensor, weights: Tensor | None
    ) -> ValueLoss:
        """Of one head, or the mean over several."""
        config, heads = self._config, experience.heads
        if heads is None:
            assert experience.values is not None and experience.returns is not None
            old, targets = batch.cut(experience.values), batch.cut(experience.returns)
            return clipped_value_loss(values, old, targets, mask, clip=config.value_clip, weights=weights)
        old, targets, count = batch.cut(heads.values), batch.cut(heads.returns), values.shape[2]
        losses = [
            clipped_value_loss(
                values[:, :, k],
                old[:, :, k],
                targets[:, :, k],
                mask,
                clip=config.value_clip,
                weights=weights,
            )
            for k in range(count)
        ]
        clipped = torch.stack([one.clipped for one in losses]).sum() / count
        return ValueLoss(torch.stack([one.loss for one in losses]).sum() / count, clipped)


def _measure_ratios(policy_loss: PolicyLoss, mask: Tensor, tokens: Tensor, metrics: StepMetrics) -> Tensor:
    """Add clip fractions, ratio and its square over learnt tokens [r, t], `tokens` in all; |log ratio|, fp32 [r, t]."""
    for side, clipped in (("", policy_loss.clipped), ("_low", policy_loss.low), ("_high", policy_loss.high)):
        metrics.add(f"clip_fraction/policy{side}", clipped, tokens)
    metrics.add("ratio", (policy_loss.used * mask).sum(), tokens)
    metrics.add("ratio_square", (policy_loss.used**2 * mask).sum(), tokens)
    return policy_loss.ratio.detach().log().abs()


def _learnt_rows(experience: Experience, batch: MicroBatch) -> Tensor | int:
    """How many responses of a micro-batch are learnt from."""
    return len(batch.rows) if experience.learnt is None else experience.learnt[batch.rows].sum()


def _weighed(weights: Tensor | None, experience: Experience, batch: MicroBatch) -> Tensor | None:
    """The weights [r, t] of the policy loss: those of the average, times importance weights where there are any."""
    if experience.importance is None:
        return weights
    importance = batch.cut(experience.importance.weights)
    return importance if weights is None else weights * importance
