"""GeDi at work: two classes followed through the responses of one decode, and a policy's logits weighed by them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from finegrained_rlhf.core.records import pad_rows
from finegrained_rlhf.models.policy import Policy, PromptMemory
from finegrained_rlhf.rollout.mixers.gedi import ClassCodes, GeDi
from finegrained_rlhf.rollout.steppers.base import OpenStepper, Stepper


@torch.no_grad()
def open_gedi(
    config: GeDi,
    model: Policy,
    codes: ClassCodes,
    memory: PromptMemory,
    samples: int,
    limit: int,
    open_stepper: OpenStepper,
) -> _GeDiMixing:
    """Follow the wanted and the unwanted class through the responses of one decode."""
    classes = [
        _Class.open(model, codes.codes[name], memory, samples, limit, open_stepper)
        for name in (config.wanted, config.unwanted)
    ]
    return _GeDiMixing(config, codes.scale, *classes)


@dataclass
class _Class:
    """The model behind the code of one class.

    Attributes:
        stepper: decodes the response behind code and prompt.
        prompt: fp32 [P·N], the log-probability of the prompt behind the code.
        lengths: int64 [P·N], tokens of the prompt.
    """

    stepper: Stepper
    prompt: Tensor
    lengths: Tensor

    @classmethod
    def open(
        cls,
        model: Policy,
        code: Sequence[int],
        memory: PromptMemory,
        samples: int,
        limit: int,
        open_stepper: OpenStepper,
    ) -> _Class:
        bare = [replace(prompt, input_ids=tuple(code), pieces=()) for prompt in memory.prompts]
        begun = [replace(prompt, input_ids=(*code, *prompt.input_ids), pieces=()) for prompt in memory.prompts]
        ids, mask = pad_rows([prompt.input_ids for prompt in memory.prompts], model.pad_id, model.device)
        index = torch.arange(len(bare), device=model.device)
        scores = model.logprobs(model.encode(bare), index, ids, mask).logprobs.sum(dim=1)
        stepper = open_stepper(model, model.encode(begun), samples, limit)
        return cls(stepper, scores.repeat_interleave(samples), mask.sum(dim=1).repeat_interleave(samples))


class _GeDiMixing:
    def __init__(self, config: GeDi, scale: float, wanted: _Class, unwanted: _Class) -> None:
        self.config, self.scale = config, scale
        self.steppers = wanted.stepper, unwanted.stepper
        self.lengths = wanted.lengths
        self.so_far = wanted.prompt - unwanted.prompt  # log-odds of the text until now, without the scale
        self.next: Tensor | None = None  # what each next token adds to it

    def mix(self, logits: Tensor, tokens: Tensor, position: Tensor, window: int) -> Tensor:
        """See `Mixing.mix`."""
        if self.next is not None:
            self.so_far = self.so_far + self.next.gather(1, tokens[:, None]).squeeze(1)
        wanted, unwanted = (stepper.logits(tokens, position, window) for stepper in self.steppers)
        self.next = wanted.float().log_softmax(dim=-1) - unwanted.float().log_softmax(dim=-1)
        length = (self.lengths + position + 1).unsqueeze(1)
        odds = self.scale / length * (self.so_far.unsqueeze(1) + self.next) + self.config.class_bias
        return weigh(logits.float(), F.logsigmoid(odds), self.config)

    def keep(self, prompts: Tensor, rows: Tensor) -> None:
        """See `Mixing.keep`."""
        for stepper in self.steppers:
            stepper.keep(prompts, rows)
        self.lengths, self.so_far = self.lengths[rows], self.so_far[rows]
        self.next = None if self.next is None else self.next[rows]


def weigh(logits: Tensor, log_class: Tensor, config: GeDi) -> Tensor:
    """Logits weighed by the log-probability of the wanted class, −inf where the filter takes a token away.

    Args:
        logits: fp32 [r, V].
        log_class: fp32 [r, V], log P(c | text with this token).
        config: ω and the filter.

    Returns:
        fp32 [r, V].
    """
    weighed = logits + config.omega * log_class
    if config.filter_share == 0.0:
        return weighed
    ascending, order = torch.sort(log_class, dim=-1, stable=True)
    gone = weighed.softmax(dim=-1, dtype=torch.float64).gather(-1, order).cumsum(dim=-1) < config.filter_share
    gone &= ascending < torch.tensor(config.keep_from, dtype=torch.float64).log()
    return weighed.masked_fill(torch.zeros_like(gone).scatter(-1, order, gone), -torch.inf)
