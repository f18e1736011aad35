"""Settings of PPO. Defaults are the paper's (thesis appendix A.1; REFERENCE numbers of the original code)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import above, at_least, at_most, harmless
from finegrained_rlhf.rl.kl import AdaptiveKL, FixedKL, KLController


@dataclass(frozen=True)
class KLConfig(Settings):
    """The KL penalty, inside the reward or inside the loss.

    Attributes:
        place: `reward` takes β·KL of each token from its reward; `loss` adds it to its loss, where the gradient goes
            through it.
        estimator: of the KL of a token: `k1` log π − log π_ref, `k2` half its square, `k3` π_ref/π − 1 − log(π_ref/π);
            `exact` is the KL over the vocabulary at the state that the token was drawn in.
        beta: coefficient β (starting value for the adaptive controller); 0.3 fine-grained, 0.2 preference.
        controller: `fixed` or `adaptive`.
        target: KL in nats an episode that the adaptive controller aims at.
        horizon: episodes over which it acts.
        limit: a step whose mean KL (nats an episode) exceeds this is counted; None counts none.
        patience: training stops after this many counted steps in all, not in a row.
        measure: what the metric `kl`, the controller and `limit` read: `sampled`, log π − log π_ref of the drawn
            tokens, a KL only where what is drawn is what is scored; or `exact`, as with `estimator=exact` in any case.
    """

    place: Literal["reward", "loss"] = "reward"
    estimator: Literal["k1", "k2", "k3", "exact"] = "k1"
    beta: Annotated[float, at_least(0)] = 0.3
    controller: Literal["fixed", "adaptive"] = "fixed"
    target: float = 6.0
    horizon: float = 10_000.0
    limit: Annotated[float | None, above(0)] = 10.0
    patience: Annotated[int, at_least(1)] = 5
    measure: Literal["sampled", "exact"] = "sampled"

    def __post_init__(self) -> None:
        self.build()

    @property
    def exact(self) -> bool:
        """Whether the KL over the vocabulary is needed."""
        return "exact" in (self.estimator, self.measure)

    def build(self) -> KLController:
        """A controller at its starting β."""
        if self.controller == "adaptive":
            return AdaptiveKL(self.beta, self.target, self.horizon)
        return FixedKL(self.beta)


@dataclass(frozen=True)
class CompatConfig(Settings):
    """What the original code does and we think wrong; on only to reproduce published numbers (DEVIATIONS.md).

    Attributes:
        whiten_by_root_std: divide rewards and advantages by the root of their standard deviation, not by the standard
            deviation.
        update_dropout: dropout is on in the update, though it was off in the rollout; the ratio is then not 1 before
            the first update, and that is not checked.
        micro_batch_sums: micro-batches are averaged each (weighted by mean length) and added up, then averaged over
            processes: with n micro-batches of equally many responses the gradient is n times the mean's.
    """

    whiten_by_root_std: bool = False
    update_dropout: bool = False
    micro_batch_sums: bool = False


@dataclass(frozen=True)
class PPOConfig(Settings):
    """The update on token advantages, and GAE. What GAE, whitening and values need is read with `algorithm=ppo` alone.

    Attributes:
        epochs: passes over a rollout; each ends in one optimizer step, as in the original code.
        discount: γ; other algorithms than `ppo` do not discount.
        lambda_: λ of GAE; 0.95 for dense rewards, 0.99 for one reward a response.
        clip: ε of the policy ratio.
        clip_upper: ε of the ratio above 1 ("clip-higher"); None takes `clip`.
        dual_clip: with c > 1 the loss of a token whose advantage A is negative is at most −c·A; None sets no bound.
        value_clip: ε of the value, in units of the value.
        value_coefficient: weight of the value loss.
        whiten_rewards: scale token rewards (KL penalty included) to unit variance without shifting the mean.
        whiten_advantages: scale advantages to mean 0 and variance 1 over all processes.
        value_target: `gae` is A + V_old (the original code), `truncated` the thesis's formula.
        loss_average: in both losses `token` weighs every response token alike, `sequence` every response (1/|y|, as
            algorithm 1 of the thesis does); `constant` divides the sum over tokens by responses times
            `rollout.max_new_tokens`, so that no length enters.
        score_sampling_distribution: False scores the plain softmax (the paper); True the tempered, truncated one.
        micro_batch_prompts: at most so many prompts (with all their samples) in one forward and backward pass on one
            process.
        micro_batch_tokens: at most so many tokens in one pass, prompts and responses with their padding; None sets no
            limit. Prompts of similar lengths go together.
        kl: the penalty.
        compat: faults of the original code, all off.
    """

    epochs: Annotated[int, at_least(1)] = 4
    discount: Annotated[float, at_least(0), at_most(1)] = 1.0
    lambda_: Annotated[float, at_least(0), at_most(1)] = 0.95
    clip: Annotated[float, above(0)] = 0.2
    clip_upper: Annotated[float | None, above(0)] = None
    dual_clip: Annotated[float | None, above(1)] = None
    value_clip: Annotated[float, above(0)] = 0.2
    value_coefficient: Annotated[float, at_least(0)] = 1.0
    whiten_rewards: bool = True
    whiten_advantages: bool = True
    value_target: Literal["gae", "truncated"] = "gae"
    loss_average: Literal["token", "sequence", "constant"] = "token"
    score_sampling_distribution: bool = False
    micro_batch_prompts: Annotated[int, at_least(1), harmless] = 1
    micro_batch_tokens: Annotated[int | None, at_least(1), harmless] = None
    kl: KLConfig = KLConfig()
    compat: CompatConfig = CompatConfig()
