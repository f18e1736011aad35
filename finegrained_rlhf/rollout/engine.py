"""Rollout engines: encode prompts, then decode the encoding in one or several ways.

Knows the interface, what engines over a policy of ours share, and how a training step draws its responses.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import torch
from torch import Tensor

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.records import Decoding, ImportanceWeights, Prompt, Rollout, Sample
from finegrained_rlhf.models.policy import Policy, PromptMemory
from finegrained_rlhf.rl.importance import ImportanceMode, importance_weights
from finegrained_rlhf.rollout.assembly import assemble, empty_rollout, join_rollouts, mask_after_eos, row_order
from finegrained_rlhf.runtime.processes import Processes

LogprobSource = Literal["auto", "decode", "update"]
EngineKind = Literal["auto", "generate", "continuous"]


def check_engine_settings(engine: str, importance_cap: float | None, importance_mode: str, prefix: str = "") -> None:
    """Check the settings that PPO and self-critical training share, whose keys begin with `prefix`.

    Raises:
        ConfigError: an engine or a mode that is none, or a cap below 1.
    """
    if engine not in get_args(EngineKind):
        raise ConfigError(f"{prefix}engine must be auto, generate or continuous, got {engine!r}")
    if importance_mode not in get_args(ImportanceMode):
        modes = ", ".join(get_args(ImportanceMode))
        raise ConfigError(f"{prefix}importance_mode must be one of {modes}, got {importance_mode!r}")
    if importance_cap is not None and not importance_cap >= 1:
        raise ConfigError(f"{prefix}importance_cap must be at least 1 (or null), got {importance_cap}")


@dataclass(frozen=True)
class RolloutConfig:
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
        engine: what draws: `auto` (our own decoder where it knows the model, transformers' `generate` elsewhere),
            `generate`, or `continuous` (transformers' continuous batching; decoder-only models).
        importance_cap: C ≥ 1 of the importance weights min(π/μ, C) on the policy loss, where the engine's
            log-probabilities μ are not the update's π; None weighs nothing.
        importance_mode: of those weights: each token's ratio or the whole response's (`sequence_…`), and beyond the cap
            C (`…_truncate`) or 0 (`…_mask`).
    """

    prompts_per_step: int
    samples_per_prompt: int = 4
    max_new_tokens: int = 200
    temperature: float = 0.7
    top_k: int = 20
    top_p: float = 1.0
    prompts_per_batch: int | None = None
    logprobs: LogprobSource = "auto"
    engine: EngineKind = "auto"
    importance_cap: float | None = None
    importance_mode: ImportanceMode = "token_truncate"

    def __post_init__(self) -> None:
        batch = 1 if self.prompts_per_batch is None else self.prompts_per_batch
        if self.prompts_per_step < 1 or self.max_new_tokens < 1 or batch < 1:
            raise ConfigError("rollout.prompts_per_step, max_new_tokens and prompts_per_batch must be at least 1")
        if self.logprobs not in get_args(LogprobSource):
            raise ConfigError(f"rollout.logprobs must be auto, decode or update, got {self.logprobs!r}")
        check_engine_settings(self.engine, self.importance_cap, self.importance_mode, "rollout.")
        if self.importance_cap is not None and self.logprobs == "decode":
            raise ConfigError(
                "rollout.importance_cap compares the engine's log-probabilities with the update's, and "
                "rollout.logprobs=decode takes the engine's for both; take logprobs=auto or update"
            )
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
            rollout.response_mask,
            cap=self.importance_cap,
            mode=self.importance_mode,
        )

    def decoding(self) -> Sample:
        """The sampling that these settings ask for."""
        return Sample(self.samples_per_prompt, self.temperature, self.top_k, self.top_p)

    def sampler(self, engine: RolloutEngine, pad_id: int, processes: Processes, seed: int) -> RolloutSampler:
        """What draws the responses of a step by these settings."""
        return RolloutSampler(engine, pad_id, processes, seed, self.max_new_tokens, self.prompts_per_batch)


class RolloutEngine(Protocol):
    """Draws responses from a policy."""

    def encode(self, prompts: Sequence[Prompt]) -> PromptMemory:
        """Encode each prompt once; several decodings may share the result."""

    def decode(
        self, memory: PromptMemory, decodings: Sequence[Decoding], *, max_new_tokens: int, seed: int = 0, step: int = 0
    ) -> Rollout:
        """Draw responses. Rows of one prompt are contiguous, in the order of `decodings`.

        Args:
            memory: encoded prompts.
            decodings: for example `[Greedy(), Sample(5, top_k=20)]`.
            max_new_tokens: longest response, end of sequence included.
            seed: of the run.
            step: tells draws of one prompt apart. Noise is a function of (seed, step, `Prompt.draw`, sample, position).
        """


class PolicyEngine(ABC):
    """What the engines over a policy of ours do alike; see `RolloutEngine` for the contract.

    Args:
        policy: draws, encodes, and decodes ids to text.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    @torch.no_grad()
    def encode(self, prompts: Sequence[Prompt]) -> PromptMemory:
        """Encode each prompt once."""
        return self.policy.encode(prompts)

    @torch.no_grad()
    def decode(
        self, memory: PromptMemory, decodings: Sequence[Decoding], *, max_new_tokens: int, seed: int = 0, step: int = 0
    ) -> Rollout:
        """See `RolloutEngine.decode`."""
        if not decodings:
            raise ValueError("need at least one decoding")
        ids, logprobs = self._draw(memory, decodings, max_new_tokens, seed, step)
        mask = mask_after_eos(ids, self.policy.eos_ids)
        width = max(int(mask.sum(dim=1).max()), 1) if mask.numel() else 1
        ids, mask = torch.where(mask.bool(), ids, self.policy.pad_id)[:, :width], mask[:, :width]
        if logprobs is None:
            prompt_index, _, _ = row_order(len(memory.prompts), decodings, ids.device)
            logprobs = self.policy.logprobs(memory, prompt_index, ids, mask).logprobs
        return assemble(memory, decodings, ids, mask, logprobs[:, :width] * mask, self.policy.tokenizer)

    @abstractmethod
    def _draw(
        self, memory: PromptMemory, decodings: Sequence[Decoding], limit: int, seed: int, step: int
    ) -> tuple[Tensor, Tensor | None]:
        """int64 ids [R, limit] in `row_order`, whatever follows the end of sequence included; fp32 log-probabilities.

        The log-probabilities [R, limit] are None where the steps that drew the ids give none; the policy's own function
        is asked then.
        """


def rollout_in_batches(
    engine: RolloutEngine,
    prompts: Sequence[Prompt],
    decodings: Sequence[Decoding],
    *,
    max_new_tokens: int,
    prompts_per_batch: int | None = None,
    seed: int = 0,
    step: int = 0,
) -> list[Rollout]:
    """Encode and decode `prompts` in batches of at most `prompts_per_batch`; one Rollout a batch, in order."""
    size = prompts_per_batch or max(len(prompts), 1)
    rollouts = []
    for start in range(0, len(prompts), size):
        memory = engine.encode(prompts[start : start + size])
        rollouts.append(engine.decode(memory, decodings, max_new_tokens=max_new_tokens, seed=seed, step=step))
    return rollouts


@dataclass(frozen=True)
class RolloutSampler:
    """Draws the responses of training steps: PPO, self-critical training and the doctor all sample by this.

    Attributes:
        engine: draws responses from the policy.
        pad_id: fills ids where batches of other lengths are joined.
        processes: of the run; gives precision and device.
        seed: of the run.
        max_new_tokens: longest response in tokens, end of sequence included.
        prompts_per_batch: prompts decoded at once on one process; None decodes all of them at once.
    """

    engine: RolloutEngine
    pad_id: int
    processes: Processes
    seed: int
    max_new_tokens: int
    prompts_per_batch: int | None = None

    def draw(self, prompts: Sequence[Prompt], decodings: Sequence[Decoding], step: int) -> Rollout:
        """The responses of one step.

        Args:
            prompts: this process's P prompts; may be none.
            decodings: as in `RolloutEngine.decode`; together N responses a prompt.
            step: tells draws of one prompt apart.

        Returns:
            One rollout of R = P·N responses [R, T], whatever the batches they were decoded in.
        """
        if not prompts:
            return empty_rollout(decodings, self.processes.device)
        with self.processes.autocast():
            batches = rollout_in_batches(
                self.engine,
                prompts,
                decodings,
                max_new_tokens=self.max_new_tokens,
                prompts_per_batch=self.prompts_per_batch,
                seed=self.seed,
                step=step,
            )
        return join_rollouts(batches, self.pad_id)
