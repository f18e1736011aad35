"""Settings of PPO. Defaults are the paper's (thesis appendix A.1; REFERENCE numbers of the original code)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import above, at_least, at_most, harmless
from finegrained_rlhf.rl.entropy import EntropyBonus
from finegrained_rlhf.rl.kl import AdaptiveKL, FixedKL, KLController
from finegrained_rlhf.rl.losses import PolicyLossKind, RatioLevel


@dataclass(frozen=True)
class KLConfig(Settings):
    """The KL penalty, inside the reward or inside the loss.

    Attributes:
        place: `reward` takes β·KL of each token from its reward; `loss` adds it to its loss, where the gradient goes
            through it, but not through the states that tokens lead to; `both` does both, which is the whole gradient of
            β times the KL where the estimator is `exact`, the only one that it takes.
        estimator: of the KL of a token: `k1` log π − log π_ref, `k2` half its square, `k3` π_ref/π − 1 − log(π_ref/π);
            `exact` is the KL over the vocabulary at the state that the token was drawn in.
        beta: coefficient β (starting value for the adaptive controller); 0.3 fine-grained, 0.2 preference.
        controller: `fixed` or `adaptive`.
        target: KL in nats an episode that the adaptive controller aims at.
        horizon: episodes over which it acts.
        limit: a step whose mean KL (nats an episode) exceeds this is counted; None counts none.
        patience: training stops after this many counted steps in all, not in a row.
        measure: what the metric `kl`, the controller and `limit` read: `sampled`, log π − log π_ref of the drawn
            tokens, a KL only where what is drawn is what is scored; `exact`, the KL over the vocabulary, as with
            `estimator=exact` in any case; `auto` is `exact` where `limit` or the adaptive controller reads it and what
            is drawn is not what is scored, else `sampled`. `TrainPPO` decides it; a trainer by itself takes `sampled`.
    """

    place: Literal["reward", "loss", "both"] = "reward"
    estimator: Literal["k1", "k2", "k3", "exact"] = "k1"
    beta: Annotated[float, at_least(0)] = 0.3
    controller: Literal["fixed", "adaptive"] = "fixed"
    target: float = 6.0
    horizon: float = 10_000.0
    limit: Annotated[float | None, above(0)] = 10.0
    patience: Annotated[int, at_least(1)] = 5
    measure: Literal["auto", "sampled", "exact"] = "auto"

    def __post_init__(self) -> None:
        if self.place == "both" and self.estimator != "exact":
            raise ConfigError(
                "ppo.kl.place=both adds the two halves of the gradient of the KL over the vocabulary; expected "
                f"ppo.kl.estimator=exact, got {self.estimator} (k1 in the reward has the whole gradient)"
            )
        self.build()

    @property
    def in_reward(self) -> bool:
        """Whether a token's reward is less its penalty."""
        return self.place != "loss"

    @property
    def in_loss(self) -> bool:
        """Whether the penalty is part of the loss."""
        return self.place != "reward"

    @property
    def exact(self) -> bool:
        """Whether the KL over the vocabulary is needed; `decided` first, where `measure` is `auto`."""
        return "exact" in (self.estimator, self.measure)

    def decided(self, drawn_is_scored: bool) -> KLConfig:
        """These settings with `measure=auto` decided.

        Args:
            drawn_is_scored: whether tokens are drawn from the distribution whose log-probabilities are taken.
        """
        if self.measure != "auto":
            return self
        read = self.limit is not None or self.controller == "adaptive"
        return replace(self, measure="exact" if read and not drawn_is_scored else "sampled")

    def build(self) -> KLController:
        """A controller at its starting β."""
        if self.controller == "adaptive":
            return AdaptiveKL(self.beta, self.target, self.horizon)
        return FixedKL(self.beta)


@dataclass(frozen=True)
class EntropyConfig(Settings):
    """A bonus for the entropy of the policy, inside the loss.

    Attributes:
        coefficient: takes so much times the mean entropy (nats a token) of a mini-batch's tokens from its loss; 0
            without a target is off.
        target: nats a token; the bonus then acts only after a step whose entropy was not above it, and the coefficient
            grows after such steps and shrinks after others. None leaves it alone.
        step: by how much it grows or shrinks after a training step.
    """

    coefficient: Annotated[float, at_least(0)] = 0.0
    target: Annotated[float | None, above(0)] = None
    step: Annotated[float, above(0)] = 0.005

    def build(self) -> EntropyBonus:
        """A bonus at its starting coefficient."""
        return EntropyBonus(self.coefficient, self.target, self.step)


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
        epochs: passes over a rollout.
        mini_batches: optimizer steps a pass, each on other prompts with all their samples, at the training step's
            learning rate; 1, as in the original code, steps after the whole rollout.
        discount: γ; other algorithms than `ppo` do not discount.
        lambda_: λ of GAE; 0.95 for dense rewards, 0.99 for one reward a response.
        ratio: of which the clip is: each `token`'s, or the whole response's, exp(mean log ratio), at each of its tokens
            (`sequence`: GSPO-token, which is GSPO with one advantage a response).
        loss: `clip` is PPO's; `cispo` clips the ratio as a weight of the gradient of log π, and loses no token's.
        clip: ε of the policy ratio; 1 sets no bound below.
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
        entropy: a bonus, off.
        compat: faults of the original code, all off.
    """

    epochs: Annotated[int, at_least(1)] = 4
    mini_batches: Annotated[int, at_least(1)] = 1
    discount: Annotated[float, at_least(0), at_most(1)] = 1.0
    lambda_: Annotated[float, at_least(0), at_most(1)] = 0.95
    ratio: RatioLevel = "token"
    loss: PolicyLossKind = "clip"
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
    entropy: EntropyConfig = EntropyConfig()
    compat: CompatConfig = CompatConfig()

    def __post_init__(self) -> None:
        if self.loss == "cispo" and self.dual_clip is not None:
            raise ConfigError("ppo.dual_clip bounds the loss of ppo.loss=clip; leave it away with loss=cispo")
