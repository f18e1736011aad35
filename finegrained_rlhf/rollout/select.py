"""Which engine serves a policy."""

from __future__ import annotations

import logging

import transformers
from packaging.version import Version

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.models.policy import Policy, PromptMemory
from finegrained_rlhf.rollout.config import EngineKind
from finegrained_rlhf.rollout.engine import RolloutEngine
from finegrained_rlhf.rollout.fast import FastEngine
from finegrained_rlhf.rollout.generate import GenerateEngine
from finegrained_rlhf.rollout.mixers.protocol import LogitsMixer
from finegrained_rlhf.rollout.mixers.steppers import WholeTextStepper, mixed
from finegrained_rlhf.rollout.steppers.base import OpenStepper, Stepper
from finegrained_rlhf.rollout.steppers.causal import open_causal, supports_causal
from finegrained_rlhf.rollout.steppers.seq2seq import Seq2SeqStepper, supports_seq2seq
from finegrained_rlhf.rollout.steppers.t5 import T5Stepper, supports_t5

logger = logging.getLogger(__name__)

CONTINUOUS_SINCE = "5.19"
"""The first version of transformers whose continuous batching serves `engine=continuous`."""


_LOOK_AHEAD = (T5Stepper, open_causal)


def stepper_of(policy: Policy) -> OpenStepper | None:
    """What opens the stepper that computes this policy's function; None where there is none."""
    if supports_t5(policy):
        return T5Stepper
    if supports_seq2seq(policy):
        return Seq2SeqStepper
    return open_causal if supports_causal(policy) else None


def open_any(policy: Policy, memory: PromptMemory, samples: int, max_new_tokens: int) -> Stepper:
    """The policy's stepper, or one that reads everything anew at every step; an `OpenStepper`."""
    return (stepper_of(policy) or WholeTextStepper)(policy, memory, samples, max_new_tokens)


def make_engine(
    policy: Policy, kind: EngineKind = "auto", mixer: LogitsMixer | None = None, draft: int = 0
) -> RolloutEngine:
    """The engine that was asked for.

    Args:
        policy: draws.
        kind: `auto` takes the fastest engine that computes this policy's function, and says so where that is
            transformers' generate; `own` our own decoder.
        mixer: changes the logits that tokens are drawn from; it is set up here. The engine's log-probabilities are
            those of the changed distribution with `auto` and a stepper of ours, else the policy's own.
        draft: tokens looked ahead at most (`RolloutConfig.draft`).

    Raises:
        ConfigError: `own`, and no decoder of ours serves this policy; `continuous`, and continuous batching does not,
            or this version of transformers has none, or with a mixer; or a draft where no stepper takes one.
        ModelError: a model of the mixer cannot be read or has another vocabulary.
    """
    if kind == "continuous":
        if mixer is not None:
            raise ConfigError("engine=continuous cannot change logits; take engine=auto with a mixer")
        return _continuous(policy)
    if mixer is not None:
        mixer.setup(policy)
    open_stepper, name = stepper_of(policy) if kind in ("auto", "own") else None, type(policy.model).__name__
    if kind == "own" and open_stepper is None:
        raise ConfigError(f"rollout.engine=own: no decoder of ours follows {name}; take engine=auto")
    if draft:
        if mixer is not None or open_stepper not in _LOOK_AHEAD:
            who = "a mixer" if mixer is not None else name
            raise ConfigError(f"rollout.draft={draft}: decoding by {who} does not look ahead; expected 0")
        return FastEngine(policy, open_stepper, draft)
    if open_stepper is not None:
        return FastEngine(policy, open_stepper if mixer is None else mixed(open_stepper, mixer, open_any))
    if kind == "auto":
        logger.warning("%s has no fast decoder here; responses are drawn by transformers' generate", name)
    return GenerateEngine(policy, mixer)


def has_continuous() -> bool:
    """Whether the installed transformers has the continuous batching that `engine=continuous` takes."""
    return Version(transformers.__version__) >= Version(CONTINUOUS_SINCE)


def _continuous(policy: Policy) -> RolloutEngine:
    if not has_continuous():
        raise ConfigError(
            f"rollout.engine=continuous needs transformers {CONTINUOUS_SINCE} or newer, this is "
            f"{transformers.__version__}; take engine=auto"
        )
    from finegrained_rlhf.rollout.continuous import ContinuousEngine  # here: it stands on young interfaces

    return ContinuousEngine(policy)
