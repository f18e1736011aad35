"""Values, reference and behaviour log-probabilities of a rollout, before its update.

Behaviour log-probabilities come from the decode itself where they are those of the update's own function, and from a
pass of that function otherwise.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from finegrained_rlhf.core.records import Rollout
from finegrained_rlhf.models.families.fused import drop_copies
from finegrained_rlhf.models.logprobs import Anchor, token_logprobs
from finegrained_rlhf.models.value import SeparateValueModel, SharedTrunkValueModel
from finegrained_rlhf.models.weights.sharded import whole_weights
from finegrained_rlhf.rollout.config import LogprobSource
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.training.micro_batches import MicroBatch
from finegrained_rlhf.training.ppo.parts import PPOModels
from finegrained_rlhf.training.ppo.update import token_statistics

logger = logging.getLogger(__name__)

EQUAL = 1e-5


@dataclass(frozen=True)
class ScoredRollout:
    """A rollout with what is held fixed during its update.

    Attributes:
        rollout: with the behaviour log-probabilities that the update divides by; where they are the update's own, the
            engine's stand beside them.
        reference: fp32 [R, T] log-probabilities under the frozen reference.
        values: fp32 [R, T], or [R, T, K] of K value heads; None without a value model.
        kl: fp32 [R, T] from the reference over the vocabulary, nats, 0 at padding; None where it is not asked for.
        reference_states: float [R, T, D] of the reference; as `kl`.
    """

    rollout: Rollout
    reference: Tensor
    values: Tensor | None
    kl: Tensor | None = None
    reference_states: Tensor | None = None


class RolloutScorer:
    """Scores rollouts, and decides where behaviour log-probabilities come from.

    With `auto`, fp32 and no shared trunk, the first rollout is scored both ways. If the two differ by at most
    1e-5 at every token of every process, the decode's are used from then on and the policy's pass is saved. In bf16
    and with a shared trunk, whose values need that pass anyway, the update's function is used.

    Args:
        models: policy, value model and reference.
        processes: of the run.
        source: `auto`, `decode` or `update`.
        exact_kl: whether the KL over the vocabulary is measured. The policy's pass is then always made, and the
            reference's states, R·T·D numbers in the dtype of the models' states, are kept until the update is over.

    Attributes:
        from_decode: the decision; None while it is open. A checkpoint keeps it.
    """

    def __init__(self, models: PPOModels, processes: Processes, source: LogprobSource, exact_kl: bool = False) -> None:
        self._models, self._processes, self._exact = models, processes, exact_kl
        shared = isinstance(models.value, SharedTrunkValueModel)
        self._warned = False
        self.from_decode: bool | None = source == "decode"
        if source == "auto" and processes.precision == "fp32" and not shared:
            self.from_decode = None

    def score(self, rollout: Rollout, batches: list[MicroBatch]) -> ScoredRollout:
        """Run the models over all micro-batches of a rollout that will be trained on."""
        scores = self._models.policy.scored
        if scores is not None and scores.truncated and rollout.support is None and batches and not self._warned:
            self._warned = True
            logger.warning(
                "the rollout does not say which tokens top-k or top-p left at each step: ratios are over those of the "
                "weights of each optimizer step, which is wrong from the second one on"
            )
        scored = self._run(rollout, batches, self.from_decode is True)
        if self.from_decode is None:
            self._decide(rollout, scored.rollout.logprobs)
        if self.from_decode:
            return replace(scored, rollout=rollout)
        return replace(scored, rollout=replace(scored.rollout, sampler_logprobs=rollout.logprobs))

    def score_again(self, rollout: Rollout, batches: list[MicroBatch]) -> ScoredRollout:
        """The same for any rollout, with the update's log-probabilities; decides nothing."""
        return self._run(rollout, batches, from_decode=False)

    @torch.no_grad()
    def _run(self, rollout: Rollout, batches: list[MicroBatch], from_decode: bool) -> ScoredRollout:
        behaviour, values = torch.zeros_like(rollout.logprobs), None
        if self._models.value is not None:
            heads = self._models.value.head.output.out_features
            values = behaviour.new_zeros(behaviour.shape if heads == 1 else (*behaviour.shape, heads))
        models = self._models
        separate = models.value if isinstance(models.value, SeparateValueModel) else None
        reference, states = self._compare_with(rollout, batches)
        kl = None if states is None else torch.zeros_like(behaviour)
        if not from_decode or kl is not None:
            if states is not None:
                models.reference.gather_head()
            with whole_weights(models.policy.model):
                for batch in batches:
                    anchor = None if states is None else Anchor(batch.cut(states), models.reference.head_of_pass())
                    with self._processes.autocast():
                        now = token_statistics(models.policy, None if separate else models.value, batch, anchor=anchor)
                    rows, width = batch.rows, batch.ids.shape[1]
                    behaviour[rows, :width] = now.logprobs
                    if kl is not None and now.kl is not None:
                        kl[rows, :width] = now.kl
                    if values is not None and now.values is not None:
                        values[rows, :width] = now.values
        if values is not None and separate is not None:
            with whole_weights(separate.backbone):
                for batch in batches:
                    with self._processes.autocast():
                        values[batch.rows, : batch.ids.shape[1]] = models.values(batch)
        scored = rollout if from_decode else replace(rollout, logprobs=behaviour)
        return ScoredRollout(scored, reference, values, kl, states)

    def reference(self, rollout: Rollout, batches: list[MicroBatch]) -> Tensor:
        """fp32 [R, T], log-probabilities of a rollout's tokens under the frozen reference; 0 at padding."""
        return self._compare_with(rollout, batches, keep=False)[0]

    @torch.no_grad()
    def _compare_with(
        self, rollout: Rollout, batches: list[MicroBatch], keep: bool = True
    ) -> tuple[Tensor, Tensor | None]:
        """The reference's log-probabilities [R, T], and its states [R, T, D] where the exact KL needs them."""
        logprobs, models = torch.zeros_like(rollout.logprobs), self._models
        states = logprobs.new_zeros((*logprobs.shape, 0)) if self._exact and keep else None
        with whole_weights(models.reference_model):
            for batch in batches:
                rows, width = batch.rows, batch.ids.shape[1]
                with self._processes.autocast():
                    own = models.reference.states(batch.prompts, batch.index, batch.ids)
                    tokens, scored = (batch.ids, batch.mask, models.reference.head_of_pass()), models.policy.scored
                    compared = token_logprobs(
                        own, *tokens, scored=scored, entropy=False, places=batch.places, support=batch.support
                    )
                logprobs[rows, :width] = compared.logprobs
                if states is not None:
                    states = states if states.shape[2] else own.new_zeros((*logprobs.shape, own.shape[2]))
                    states[rows, :width] = own
        drop_copies(models.reference_model)
        return logprobs, states

    def _decide(self, rollout: Rollout, behaviour: Tensor) -> None:
        gap = (rollout.logprobs - behaviour).abs().nan_to_num(nan=torch.inf)
        largest = max(self._processes.gather_objects([float(gap.max()) if gap.numel() else 0.0]))
        self.from_decode = largest <= EQUAL
        if self._processes.is_main:
            logger.info(
                "log-probabilities of the decode differ from the update's function by at most %.1e: %s",
                largest,
                "they are used as they are" if self.from_decode else "each rollout is scored again",
            )
