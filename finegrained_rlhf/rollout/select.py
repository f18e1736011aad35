"""Which engine serves a policy."""

from __future__ import annotations

import logging

from finegrained_rlhf.models.policy import Policy
from finegrained_rlhf.rollout.engine import RolloutEngine
from finegrained_rlhf.rollout.fast import FastEngine
from finegrained_rlhf.rollout.generate import GenerateEngine
from finegrained_rlhf.rollout.steppers.base import OpenStepper
from finegrained_rlhf.rollout.steppers.causal import open_causal, supports_causal
from finegrained_rlhf.rollout.steppers.seq2seq import Seq2SeqStepper, supports_seq2seq
from finegrained_rlhf.rollout.steppers.t5 import T5Stepper, supports_t5

logger = logging.getLogger(__name__)


def stepper_of(policy: Policy) -> OpenStepper | None:
    """What opens the stepper that computes this policy's function; None where there is none."""
    if supports_t5(policy):
        return T5Stepper
    if supports_seq2seq(policy):
        return Seq2SeqStepper
    return open_causal if supports_causal(policy) else None


def make_engine(policy: Policy) -> RolloutEngine:
    """The fastest engine that computes this policy's function; says so where that is transformers' generate."""
    open_stepper = stepper_of(policy)
    if open_stepper is not None:
        return FastEngine(policy, open_stepper)
    logger.warning(
        "%s has no fast decoder here; responses are drawn by transformers' generate", type(policy.model).__name__
    )
    return GenerateEngine(policy)
