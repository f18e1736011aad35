"""KL between the policy and its reference: the per-token estimate, and controllers of its coefficient β."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.rl.stats import check_token_tensors

if TYPE_CHECKING:
    from torch import Tensor


def log_ratio_kl(logprobs: Tensor, reference_logprobs: Tensor, mask: Tensor) -> Tensor:
    """Log π(a_t|s_t) − log π_ref(a_t|s_t), which eq. 6.1 of the thesis takes for KL(π‖π_ref).

    Its mean is that KL where the tokens were drawn from π, the distribution that is scored. Drawn from another one (as
    the paper's PPO does: temperature 0.7 and top-k 20, scored by the plain softmax) it is no KL, and its mean may be
    below 0.
    It is a penalty inside the reward and carries no gradient.

    Args:
        logprobs: fp32 [R, T] of the behaviour policy.
        reference_logprobs: fp32 [R, T].
        mask: int [R, T].

    Returns:
        fp32 [R, T], 0 at padding, detached.
    """
    import torch

    check_token_tensors(mask, logprobs=logprobs, reference_logprobs=reference_logprobs)
    return torch.where(mask.bool(), logprobs - reference_logprobs, 0.0).detach()


KLEstimator = Literal["k1", "k2", "k3"]


def kl_estimates(logprobs: Tensor, reference_logprobs: Tensor, mask: Tensor, estimator: KLEstimator) -> Tensor:
    """One-sample estimates of KL(π‖π_ref) at each token, differentiable in `logprobs`.

    With d = log π − log π_ref: k1 = d,   k2 = d² / 2,   k3 = exp(−d) − 1 + d.

    Under samples of π, as it is scored, the means of k1 and k3 are the KL (under other samples they are not); k3 is
    never negative and varies less. k2 is biased, but the
    mean of its *gradient* is that of the KL, while that of k1's gradient is 0: inside a loss k1 does nothing on
    average. Source: Schulman (2020), "Approximating KL divergence"; k3 in a loss is GRPO's (Shao et al., 2024, eq. 4).

    Args:
        logprobs: fp32 [R, T] of the policy.
        reference_logprobs: fp32 [R, T].
        mask: int [R, T].
        estimator: `k1`, `k2` or `k3`.

    Returns:
        fp32 [R, T], nats, 0 at padding.
    """
    import torch

    check_token_tensors(mask, logprobs=logprobs, reference_logprobs=reference_logprobs)
    difference = torch.where(mask.bool(), logprobs - reference_logprobs, 0.0)
    if estimator == "k1":
        return difference
    if estimator == "k2":
        return 0.5 * difference**2
    if estimator == "k3":
        return torch.expm1(-difference) + difference
    raise ValueError(f"estimator must be k1, k2 or k3, got {estimator!r}")


def kl_over_vocabulary(log_p: Tensor, log_q: Tensor) -> Tensor:
    """KL(p‖q) = Σ_v p_v (log p_v − log q_v) of each row, differentiable in both; what p excludes adds 0.

    Args:
        log_p: fp32 [n, V], normalised; −inf where p cannot draw.
        log_q: fp32 [n, V], normalised; finite where p is.

    Returns:
        fp32 [n], nats.

    Raises:
        ValueError: shapes that differ.
    """
    import torch

    if log_p.dim() != 2 or log_p.shape != log_q.shape:
        raise ValueError(f"need log-probabilities [n, V] twice, got {tuple(log_p.shape)} and {tuple(log_q.shape)}")
    drawn = log_p > -torch.inf
    difference = torch.where(drawn, log_p, 0.0) - torch.where(drawn, log_q, 0.0)
    return (log_p.exp() * difference).sum(dim=1)


class KLController(Protocol):
    """Holds β and may move it after each step."""

    beta: float

    def update(self, kl: float, episodes: int) -> None:
        """Take in the mean KL of a step (nats an episode, summed over tokens) and its number of episodes."""

    def state(self) -> dict[str, float]:
        """What a checkpoint must keep."""

    def load_state(self, state: dict[str, float]) -> None:
        """Take back what `state` gave."""


@dataclass
class FixedKL:
    """β never changes.

    Attributes:
        beta: coefficient of the KL penalty, ≥ 0.
    """

    beta: float

    def __post_init__(self) -> None:
        if self.beta < 0:
            raise ConfigError(f"kl.beta must be >= 0, got {self.beta}")

    def update(self, kl: float, episodes: int) -> None:
        """Nothing to do."""

    def state(self) -> dict[str, float]:
        """β, so that a resumed run can be compared."""
        return {"beta": self.beta}

    def load_state(self, state: dict[str, float]) -> None:
        """Keeps the configured β: a fixed coefficient is the user's to change."""


@dataclass
class AdaptiveKL:
    """Proportional controller: β ← β · (1 + clamp(kl / target − 1, −0.2, 0.2) · episodes / horizon).

    Source: Ziegler et al. (2019), section 2.2.

    Attributes:
        beta: starting coefficient, > 0.
        target: wanted KL in nats an episode.
        horizon: episodes over which the controller acts.
    """

    beta: float
    target: float
    horizon: float

    def __post_init__(self) -> None:
        if self.beta <= 0 or self.target <= 0 or self.horizon <= 0:
            raise ConfigError(f"adaptive KL needs beta, target and horizon > 0, got {self}")

    def update(self, kl: float, episodes: int) -> None:
        """Move β toward the target."""
        error = min(max(kl / self.target - 1.0, -0.2), 0.2)
        self.beta *= 1.0 + error * episodes / self.horizon

    def state(self) -> dict[str, float]:
        """The current β."""
        return {"beta": self.beta}

    def load_state(self, state: dict[str, float]) -> None:
        """Continue from the saved β."""
        self.beta = state["beta"]
