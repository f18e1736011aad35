"""Settings of PPO. Defaults are the paper's (thesis appendix A.1; REFERENCE numbers of the original code)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.markers import harmless
from finegrained_rlhf.rl.kl import AdaptiveKL, FixedKL, KLController


@dataclass(frozen=True)
class KLConfig:
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
    beta: float = 0.3
    controller: Literal["fixed", "adaptive"] = "fixed"
    target: float = 6.0
    horizon: float = 10_000.0
    limit: float | None = 10.0
    patience: int = 5
    measure: Literal["sampled", "exact"] = "sampled"

    def __post_init__(self) -> None:
        if self.place not in ("reward", "loss"):
            raise ConfigError(f"ppo.kl.place must be reward or loss, got {self.place!r}")
        if self.estimator not in ("k1", "k2", "k3", "exact"):
            raise ConfigError(f"ppo.kl.estimator must be k1, k2, k3 or exact, got {self.estimator!r}")
        if self.measure not in ("sampled", "exact"):
            raise ConfigError(f"ppo.kl.measure must be sampled or exact, got {self.measure!r}")
        if self.controller not in ("fixed", "adaptive"):
            raise ConfigError(f"ppo.kl.controller must be fixed or adaptive, got {self.controller!r}")
        if self.patience < 1 or (self.limit is not None and self.limit <= 0):
            raise ConfigError("ppo.kl needs patience >= 1 and limit > 0 (or null)")
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
class CompatConfig:
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
class PPOConfig:
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

    epochs: int = 4
    discount: float = 1.0
    lambda_: float = 0.95
    clip: float = 0.2
    clip_upper: float | None = None
    dual_clip: float | None = None
    value_clip: float = 0.2
    value_coefficient: float = 1.0
    whiten_rewards: bool = True
    whiten_advantages: bool = True
    value_target: Literal["gae", "truncated"] = "gae"
    loss_average: Literal["token", "sequence", "constant"] = "token"
    score_sampling_distribution: bool = False
    micro_batch_prompts: Annotated[int, harmless] = 1
    micro_batch_tokens: Annotated[int | None, harmless] = None
    kl: KLConfig = KLConfig()
    compat: CompatConfig = CompatConfig()

    def __post_init__(self) -> None:
        tokens = 1 if self.micro_batch_tokens is None else self.micro_batch_tokens
        if self.epochs < 1 or self.micro_batch_prompts < 1 or tokens < 1:
            raise ConfigError("ppo.epochs, ppo.micro_batch_prompts and ppo.micro_batch_tokens must be at least 1")
        if not (0 <= self.discount <= 1 and 0 <= self.lambda_ <= 1):
            raise ConfigError(f"ppo.discount and ppo.lambda_ must lie in [0, 1], got {self.discount}, {self.lambda_}")
        if self.clip <= 0 or self.value_clip <= 0 or self.value_coefficient < 0:
            raise ConfigError("ppo needs clip > 0, value_clip > 0 and value_coefficient >= 0")
        if self.value_target not in ("gae", "truncated"):
            raise ConfigError(f"ppo.value_target must be gae or truncated, got {self.value_target!r}")
        if self.loss_average not in ("token", "sequence", "constant"):
            raise ConfigError(f"ppo.loss_average must be token, sequence or constant, got {self.loss_average!r}")
        if self.clip_upper is not None and self.clip_upper <= 0:
            raise ConfigError(f"ppo.clip_upper must be positive (or null), got {self.clip_upper}")
        if self.dual_clip is not None and self.dual_clip <= 1:
            raise ConfigError(f"ppo.dual_clip must be above 1 (or null), got {self.dual_clip}")
