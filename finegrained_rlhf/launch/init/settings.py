"""Rates, batches and lengths by the size of the models and of the data: rules of thumb, each with its reason."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from finegrained_rlhf.models.loading import load_tokenizer, model_directory, read_model_config

_RATES = ((10e6, 1e-3, 1e-3), (100e6, 5e-5, 3e-5), (1e9, 1e-5, 1e-5), (math.inf, 1e-5, 1e-4))
"""Up to so many parameters: the learning rate of a reward model, and of a policy (the last one, of its adapters)."""


@dataclass(frozen=True)
class Model:
    """A model that lies in a directory, by its files.

    Attributes:
        path: as the user names it.
        parameters: numbers in its files of weights.
        generates: whether it is a causal or a sequence-to-sequence language model.
        seq2seq: whether it is the latter, of which no reward model is made.
        longest: input in tokens that it was made for.
        tokenizer: of transformers.
    """

    path: str
    parameters: int
    generates: bool
    seq2seq: bool
    longest: int
    tokenizer: Any

    @classmethod
    def read(cls, path: str) -> Model:
        """Look at a model; no weight is read.

        Raises:
            ModelError: there is none, or it is damaged.
        """
        from safetensors import safe_open
        from transformers.models.auto.modeling_auto import (
            MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
            MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
        )

        directory = model_directory(path)
        config, tokenizer = read_model_config(directory), load_tokenizer(directory)
        count = 0
        for file in directory.glob("*.safetensors"):
            with safe_open(file, framework="numpy") as weights:
                count += sum(math.prod(weights.get_slice(name).get_shape()) for name in weights.keys())
        families = {*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES}
        heads = config.architectures or ["CausalLM"]
        generates = config.model_type in families and any(
            head.endswith(("CausalLM", "LMHeadModel", "ConditionalGeneration")) for head in heads
        )
        limits = [getattr(config, "max_position_embeddings", None), tokenizer.model_max_length]
        longest = min((int(limit) for limit in limits if limit and limit < 1e6), default=1024)
        return cls(path, count, generates, bool(config.is_encoder_decoder), longest, tokenizer)

    @property
    def chat(self) -> bool:
        """Whether it has a chat template."""
        return bool(getattr(self.tokenizer, "chat_template", None))

    def rate(self, policy: bool) -> float:
        """Learning rate: smaller for larger models, whose weights know more that is to be kept."""
        return next(rates[policy] for limit, *rates in _RATES if self.parameters < limit)

    def tokens(self, texts: Iterable[str], share: float) -> int:
        """So many tokens hold this share of some texts; a sample of 1,000 is looked at."""
        lengths = sorted(len(self.tokenizer(text).input_ids) for text, _ in zip(texts, range(1000), strict=False))
        return lengths[min(int(share * len(lengths)), len(lengths) - 1)] if lengths else 1

    def __str__(self) -> str:
        return f"{self.path} ({self.parameters / 1e6:,.1f} million parameters)"


@dataclass(frozen=True)
class Plan:
    """How a model is trained.

    Attributes:
        rate: highest learning rate.
        batch: examples, or prompts, a step.
        steps: training steps.
        warmup: steps of them in which the rate rises.
        reason: why so many.
    """

    rate: float
    batch: int
    steps: int
    warmup: int
    reason: str


def reward_model_plan(model: Model, examples: int) -> Plan:
    """Batches of 16, or of 8 of fewer than 100 examples; 20 passes, within 200 and 3,000 steps; a tenth is warm-up.

    Below 10 million parameters a model is a toy with random weights, which needs 400 steps to learn anything.
    """
    batch = 16 if examples >= 100 else 8
    least = 400 if model.parameters < 10e6 else 200
    steps = min(max(math.ceil(20 * examples / batch), least), 3000)
    reason = f"20 passes over {examples} examples, at least {least} and at most 3000 steps"
    return Plan(model.rate(False), batch, steps, steps // 10, reason)


def policy_plan(model: Model, prompts: int) -> Plan:
    """16 prompts a step, four answers each; 10 passes over the prompts, within 50 and 1,000 steps; a tenth is warm-up.

    As in the paper's PPO, 64 answers a step, from which the baseline of a prompt (RLOO) takes four.
    """
    batch = min(16, prompts)
    steps = min(max(math.ceil(10 * prompts / batch), 50), 1000)
    reason = f"10 passes over {prompts} prompts, at least 50 and at most 1000 steps"
    return Plan(model.rate(True), batch, steps, steps // 10, reason)


def sft_plan(model: Model, answers: int) -> Plan:
    """Batches of 8, three passes: more teach a small set by heart."""
    steps = max(math.ceil(3 * answers / 8), 1)
    return Plan(model.rate(True), 8, steps, steps // 10, f"3 passes over {answers} answers")


def is_adapted(model: Model) -> bool:
    """Whether a policy is trained by adapters (LoRA): from a billion parameters, where its optimizer fills a GPU."""
    return model.parameters >= 1e9
