"""Self-critical training's settings, and what it asks of a reward and of a validation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Protocol

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import at_least, at_most, below, harmless
from finegrained_rlhf.core.records import Decoding, Greedy, Prompt, Sample
from finegrained_rlhf.rl.importance import ImportanceMode
from finegrained_rlhf.rl.kl import KLEstimator
from finegrained_rlhf.rollout.config import EngineKind

if TYPE_CHECKING:
    from finegrained_rlhf.runtime.processes import Processes


class ResponseReward(Protocol):
    """What responses are worth."""

    def score(self, step_prompts: Sequence[Prompt], prompts: Sequence[Prompt], texts: Sequence[str]) -> Sequence[float]:
        """Score responses; called once a step on each process.

        Args:
            step_prompts: all rewarded prompts of the step, over all processes: what a score may compare with.
            prompts: R prompts, one a response, all of them among `step_prompts`.
            texts: R responses.

        Returns:
            R scores, higher is better; that of a response may depend on `step_prompts`, not on other responses.
        """


class ResponseValidation(Protocol):
    """How greedy responses to validation prompts are measured.

    Attributes:
        prompts: answered at every validation; may be none.
    """

    prompts: Sequence[Prompt]

    def measure(self, texts: Sequence[str], processes: Processes) -> Mapping[str, float]:
        """Metrics with "score" (higher is better) of one response a prompt; the same on every process."""


@dataclass(frozen=True)
class SelfCriticalKL(Settings):
    """How far samples may leave the policy that the run began with.

    Attributes:
        beta: coefficient β ≥ 0 of the KL of a sample, in nats, summed over its tokens; 0 keeps no reference.
        estimator: of the KL of a token, inside the loss: `k2` has its gradient, `k3` is GRPO's (`rl.kl.kl_estimates`;
            `k1` has no gradient on average and is refused).
    """

    beta: Annotated[float, at_least(0)] = 0.0
    estimator: KLEstimator = "k2"

    def __post_init__(self) -> None:
        if self.estimator == "k1":
            raise ConfigError(f"kl.estimator: expected k2 or k3, got {self.estimator!r}")


@dataclass(frozen=True)
class SelfCriticalConfig(Settings):
    """The numbers of self-critical training.

    Attributes:
        alpha: share α of the self-critical loss, 0 to 1; the rest is cross-entropy. 0 is supervised training.
        batch_size: examples a training step, over all processes.
        samples: m samples an example.
        max_new_tokens: longest response in tokens, end of sequence included.
        temperature: divides the logits when sampling.
        top_k: 0 keeps all tokens.
        top_p: 1.0 keeps all tokens.
        prompts_per_batch: prompts decoded at once on one process; None decodes all of them at once.
        micro_batch_prompts: most prompts in one forward and backward pass; does not change the result.
        micro_batch_tokens: most tokens in one (prompts and responses, padded; not used with α = 0); None sets no limit.
        engine: what draws: `auto`, `generate` or `continuous`, as in `RolloutConfig`.
        importance_cap: C ≥ 1 of the importance weights min(π/μ, C) on the loss of samples, μ the engine's policy and π
            the trained one; None weighs nothing.
        importance_mode: of those weights, as in `RolloutConfig`.
        dropout: rate everywhere in the model in updates; None keeps the model's own. Rollouts have none.
        validation_batch_size: prompts answered at once in a process.
        kl: of samples and the policy that the run began with.
    """

    alpha: Annotated[float, at_least(0), at_most(1)] = 0.99
    batch_size: Annotated[int, at_least(1)] = 64
    samples: int = 5
    max_new_tokens: Annotated[int, at_least(2)] = 64
    temperature: float = 1.0
    top_k: int = 20
    top_p: float = 1.0
    prompts_per_batch: Annotated[int | None, at_least(1), harmless] = None
    micro_batch_prompts: Annotated[int, at_least(1), harmless] = 16
    micro_batch_tokens: Annotated[int | None, at_least(1), harmless] = None
    engine: EngineKind = "auto"
    importance_cap: Annotated[float | None, at_least(1)] = None
    importance_mode: ImportanceMode = "token_truncate"
    dropout: Annotated[float | None, at_least(0), below(1)] = 0.0
    validation_batch_size: Annotated[int, at_least(1), harmless] = 64
    kl: SelfCriticalKL = SelfCriticalKL()

    def __post_init__(self) -> None:
        if self.alpha == 0 and self.kl.beta:
            raise ConfigError(f"kl.beta: expected 0 where alpha is 0: there are no samples then, got {self.kl.beta}")
        if self.importance_cap is not None and self.dropout != 0:
            raise ConfigError(
                "importance_cap compares the engine's policy with the trained one, which dropout would make another in "
                f"every pass: give dropout=0, got {self.dropout}"
            )
        if self.kl.beta and self.dropout != 0:
            raise ConfigError(f"kl.beta compares the policy with what it was: give dropout=0, got {self.dropout}")
        try:
            self.decodings()
        except ValueError as error:
            raise ConfigError(f"sampling: {error}") from None

    def decodings(self) -> tuple[Decoding, ...]:
        """The greedy baseline, then the samples."""
        return Greedy(), Sample(self.samples, self.temperature, self.top_k, self.top_p)
