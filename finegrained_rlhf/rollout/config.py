"""How responses are drawn in training: the settings of a rollout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import above, at_least, at_most, harmless
from finegrained_rlhf.core.records import ImportanceWeights, Rollout, Sample
from finegrained_rlhf.rl.importance import ImportanceMode, importance_weights
from finegrained_rlhf.rollout.vllm.config import VLLMConfig

if TYPE_CHECKING:
    from torch import Tensor

    from finegrained_rlhf.rollout.engine import RolloutEngine, RolloutSampler
    from finegrained_rlhf.runtime.processes import Processes

LogprobSource = Literal["auto", "decode", "update"]
EngineKind = Literal["auto", "own", "generate", "continuous"]
Truncated = Literal["kept", "masked", "charged"]


@dataclass(frozen=True)
class RolloutConfig(Settings):
    """How responses are drawn in training.

    Attributes:
        prompts_per_step: prompts of one training step, counted over all processes.
        samples_per_prompt: N responses to each.
        max_new_tokens: longest response in tokens, end of sequence included.
        temperature: divides the logits.
        top_k: 0 keeps all tokens.
        top_p: 1.0 keeps all tokens.
        prompts_per_batch: prompts decoded at once on one process; None decodes all of them at once.
        logprobs: where the behaviour log-probabilities come from: `decode` (the sampling steps themselves), `update` (a
            pass of the update's own function), or `auto`, which takes the decode's in fp32 where the first rollout
            shows that they are equal to 1e-5, and the update's otherwise.
        engine: what draws: `auto` (our own decoder where it knows the model, transformers' `generate` elsewhere; the
            run says which), `own` (our own decoder, or an error), `generate`, `continuous` (transformers' continuous
            batching; decoder-only models), or `vllm` (decoder-only models; needs `importance_cap`).
        vllm: where `engine=vllm` draws.
        importance_cap: C ≥ 1 of the importance weights min(π/μ, C) on the policy loss, where the engine's
            log-probabilities μ are not the update's π; None weighs nothing.
        importance_mode: of those weights: each token's ratio, that of the tokens up to it (`prefix_…`) or the whole
            response's (`sequence_…`), and beyond the cap C (`…_truncate`) or 0 (`…_mask`).
        truncated: what becomes of a response without an end of sequence, cut off at `max_new_tokens`: `kept` as any
            other; `masked`: paid the baseline, so that nothing is learnt from it while the others are still compared
            with it; `charged`: pays `reward.end_penalty`, which has to be set.
        resample: at most so many further rounds of draws in a step, each of another prompt, one that the step has not
            drawn, for every prompt whose responses have no advantage; group algorithms only.
        ahead: 1 draws the responses of a step before the update of the step before it, by weights that are one update
            old; needs `importance_cap`, whose weights correct it.
        draft: at most so many tokens of the prompt are fed ahead where a response copies it, to draw from all at once;
            the draws stay the same. 0 looks nothing ahead. For `engine=auto` alone, and of our own decoders for T5's
            family and for decoder-only models.
    """

    prompts_per_step: Annotated[int, at_least(1)]
    samples_per_prompt: Annotated[int, at_least(1)] = 4
    max_new_tokens: Annotated[int, at_least(1)] = 200
    temperature: Annotated[float, above(0)] = 0.7
    top_k: Annotated[int, at_least(0)] = 20
    top_p: Annotated[float, above(0), at_most(1)] = 1.0
    prompts_per_batch: Annotated[int | None, at_least(1), harmless] = None
    logprobs: LogprobSource = "auto"
    engine: EngineKind | Literal["vllm"] = "auto"
    vllm: VLLMConfig = VLLMConfig()
    importance_cap: Annotated[float | None, at_least(1)] = None
    importance_mode: ImportanceMode = "token_truncate"
    truncated: Truncated = "kept"
    resample: Annotated[int, at_least(0)] = 0
    ahead: Annotated[int, at_least(0), at_most(1)] = 0
    draft: Annotated[int, at_least(0), harmless] = 0

    def __post_init__(self) -> None:
        if self.ahead and self.importance_cap is None:
            raise ConfigError(
                "rollout.ahead=1 trains on responses of older weights, which rollout.importance_cap corrects; expected "
                "a cap such as 2.0, got null"
            )
        if self.importance_cap is not None and self.logprobs == "decode":
            raise ConfigError(
                "rollout.importance_cap compares the engine's log-probabilities with the update's, and "
                "rollout.logprobs=decode takes the engine's for both; take logprobs=auto or update"
            )
        if self.draft and self.engine not in ("auto", "own"):
            raise ConfigError(
                f"rollout.draft={self.draft} is of our own decoder; expected engine=auto, got {self.engine}"
            )
        if self.engine == "vllm" and self.importance_cap is None:
            raise ConfigError(
                "rollout.engine=vllm draws by other kernels than the update's, which rollout.importance_cap "
                "corrects; expected a cap such as 2.0, got null"
            )
        if self.engine != "vllm" and (self.vllm.urls or self.vllm.options):
            raise ConfigError(f"rollout.vllm is of engine=vllm, got engine={self.engine}")
        try:
            self.decoding()
        except ValueError as error:
            raise ConfigError(f"rollout: {error}") from None

    def importance(self, rollout: Rollout) -> ImportanceWeights | None:
        """How the policy loss of each token is weighed; None where no cap is set or engine and update agree."""
        if self.importance_cap is None or rollout.sampler_logprobs is None:
            return None
        return importance_weights(
            rollout.logprobs,
            rollout.sampler_logprobs,
            rollout.written,
            cap=self.importance_cap,
            mode=self.importance_mode,
        )

    def masked(self, rollout: Rollout, eos_ids: Sequence[int]) -> Tensor | None:
        """Bool [R]: which responses are paid the baseline, since they have no end of sequence; None: none may be."""
        return ~rollout.ended(eos_ids) if self.truncated == "masked" else None

    @property
    def behaviour(self) -> LogprobSource:
        """Where behaviour log-probabilities come from; of older weights or another engine always the update's pass."""
        return "update" if self.ahead or self.engine == "vllm" else self.logprobs

    def decoding(self) -> Sample:
        """The sampling that these settings ask for."""
        return Sample(self.samples_per_prompt, self.temperature, self.top_k, self.top_p)

    def sampler(self, engine: RolloutEngine, pad_id: int, processes: Processes, seed: int) -> RolloutSampler:
        """What draws the responses of a step by these settings."""
        from finegrained_rlhf.rollout.engine import RolloutSampler

        return RolloutSampler(engine, pad_id, processes, seed, self.max_new_tokens, self.prompts_per_batch)
