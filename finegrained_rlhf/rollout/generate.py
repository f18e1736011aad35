"""A rollout engine over transformers' `generate`: plain, and right for every model that `generate` serves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList
from transformers.modeling_outputs import BaseModelOutput

from finegrained_rlhf.core.records import Decoding, Greedy, Sample
from finegrained_rlhf.models.distribution import sample_tokens, warp_logits
from finegrained_rlhf.models.families.causal import check_positions
from finegrained_rlhf.models.families.packed import left_pad
from finegrained_rlhf.models.families.seq2seq import check_response_length
from finegrained_rlhf.models.logprobs import drawn_logprobs
from finegrained_rlhf.models.policy import Policy, PromptMemory, Seq2SeqPolicy
from finegrained_rlhf.rollout.engine import PolicyEngine
from finegrained_rlhf.rollout.mixers.protocol import LogitsMixer, Mixing
from finegrained_rlhf.rollout.mixers.steppers import WholeTextStepper
from finegrained_rlhf.rollout.noise import uniform_noise


class _Mixed(LogitsProcessor):
    """Lets a mixer change the logits."""

    def __init__(self, mixing: Mixing, start: int) -> None:
        self.mixing, self.start = mixing, start

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Called by `generate` with ids [R, t] and logits [R, V] of position t."""
        position = input_ids.shape[1] - self.start
        return self.mixing.mix(scores, input_ids[:, -1], input_ids.new_tensor([position]), position + 1)


class _NamedNoise(LogitsProcessor):
    """Samples with given uniform numbers, leaves only the chosen token finite, keeps the supports of what is scored."""

    def __init__(self, decoding: Sample, noise: Tensor, start: int, scored: Sample | None) -> None:
        self.decoding, self.noise, self.start, self.scored = decoding, noise, start, scored
        self.supports: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Called by `generate` with ids [R, t] and logits [R, V] of position t."""
        tokens = sample_tokens(warp_logits(scores, self.decoding), self.noise[:, input_ids.shape[1] - self.start])
        support = drawn_logprobs(scores, tokens, self.scored)[1]
        self.supports += [] if support is None else [support]
        return torch.full_like(scores, -torch.inf).scatter_(1, tokens.unsqueeze(1), 0.0)


@contextmanager
def _no_other_settings(model: Any) -> Iterator[None]:
    """Hide the model's saved generation settings: `generate` would mix them in (repetition penalty, forced tokens)."""
    saved = model.generation_config
    model.generation_config = GenerationConfig()
    try:
        yield
    finally:
        model.generation_config = saved


class GenerateEngine(PolicyEngine):
    """Draws responses with transformers' `generate`; see `RolloutEngine` for the contract.

    Args:
        policy: its model generates, its tokenizer decodes, its log-probability function scores what was drawn: the log-
            probabilities are the policy's own, also where a mixer has changed what tokens are drawn from.
        mixer: changes the logits that tokens are drawn from; already set up. None changes nothing.
    """

    def __init__(self, policy: Policy, mixer: LogitsMixer | None = None) -> None:
        super().__init__(policy)
        self.mixer = mixer

    def _draw(
        self, memory: PromptMemory, decodings: Sequence[Decoding], limit: int, seed: int, step: int
    ) -> tuple[Tensor, None, Tensor | None]:
        blocks, drawn = [], 0
        supports: list[Tensor] = []
        for decoding in decodings:
            ids, kept = self._generate(memory, decoding, limit, seed, step, first_sample=drawn)
            drawn += 0 if isinstance(decoding, Greedy) else decoding.samples
            ids = torch.nn.functional.pad(ids, (0, limit - ids.shape[1]), value=self.policy.eos_ids[0])
            blocks.append(ids.view(len(memory.prompts), decoding.samples, limit))
            if kept:
                whole = torch.nn.functional.pad(torch.stack(kept, dim=1), (0, 0, 0, limit - len(kept)))
                supports.append(whole.unflatten(0, (len(memory.prompts), decoding.samples)))
        every = torch.cat(supports, dim=1).flatten(0, 1) if len(supports) == len(blocks) else None
        return torch.cat(blocks, dim=1).flatten(0, 1), None, every

    def _generate(
        self, memory: PromptMemory, decoding: Decoding, max_new_tokens: int, seed: int, step: int, first_sample: int
    ) -> tuple[Tensor, list[Tensor]]:
        """Raw response ids [P·N, ≤ max_new_tokens], whatever follows the end of sequence included; and supports."""
        policy, n = self.policy, decoding.samples
        settings = GenerationConfig(
            max_new_tokens=max_new_tokens,
            do_sample=False,
            num_beams=1,
            eos_token_id=list(policy.eos_ids),
            pad_token_id=policy.pad_id,
        )
        if memory.states is not None:
            assert isinstance(policy, Seq2SeqPolicy)
            check_response_length(policy.model, max_new_tokens, policy.start_ids)
            settings.decoder_start_token_id = policy.start_ids[0]
            states = memory.states.repeat_interleave(n, dim=0)
            inputs = {
                "encoder_outputs": BaseModelOutput(last_hidden_state=states),
                "attention_mask": memory.prompt_mask.repeat_interleave(n, dim=0),
                "decoder_input_ids": memory.prompt_ids.new_tensor(policy.start_ids).expand(states.shape[0], -1),
            }
            start = len(policy.start_ids)
        else:
            check_positions(policy.model.config, memory.longest + max_new_tokens)
            ids, mask = left_pad(memory.prompt_ids, memory.prompt_mask, policy.pad_id)
            inputs = {"input_ids": ids.repeat_interleave(n, dim=0), "attention_mask": mask.repeat_interleave(n, dim=0)}
            start = ids.shape[1]
        processors = LogitsProcessorList()
        supports: list[Tensor] = []
        if self.mixer is not None:
            processors.append(_Mixed(self.mixer.open(memory, n, max_new_tokens, WholeTextStepper), start))
        if isinstance(decoding, Sample):
            names = [prompt.draw for prompt in memory.prompts for _ in range(n)]
            numbers = [first_sample + sample for _ in memory.prompts for sample in range(n)]
            noise = torch.from_numpy(uniform_noise(seed, step, names, numbers, max_new_tokens))
            processors.append(_NamedNoise(decoding, noise.to(policy.device), start, policy.scored))
            supports = processors[-1].supports
        with _no_other_settings(policy.model):
            output = policy.model.generate(
                **inputs, generation_config=settings, logits_processor=processors, synced_gpus=False
            )
        return output[:, start:], supports
