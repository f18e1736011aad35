"""GeDi (Krause et al., 2021): a policy's tokens weighed by what a class-conditional language model says of a class.

The model reads a text behind the code of a class; Bayes' rule over two codes says, for every next token, how probable
the wanted class is of the text that it would make.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.hub.names import ModelPath
from finegrained_rlhf.core.records import pad_rows
from finegrained_rlhf.models.loading import model_directory
from finegrained_rlhf.models.policy import CausalPolicy, Policy, PromptMemory
from finegrained_rlhf.rollout.mixers.class_codes import ClassCodes
from finegrained_rlhf.rollout.mixers.protocol import guide, ready
from finegrained_rlhf.rollout.steppers.base import OpenStepper, Stepper


@dataclass
class GeDi:
    """log p(x) + ω log P(c | x), and a filter of tokens of which the class is improbable.

    P(c | x₁…x_t) is the logistic function of (s / t) (log p(x₁…x_t | c) − log p(x₁…x_t | c̄)) + `class_bias`, over
    prompt and response; s is the model's own trained scale. Tokens are taken away in the order of P, the least probable
    first, as long as all that are gone have less than `filter_share` of the weighed distribution and P is below
    `keep_from`, as in the authors' code. That decodes greedily with a repetition penalty; here tokens are sampled.

    Attributes:
        model: class-conditional language model, as `finegrained train-gedi` makes it; directory, run or Hub name.
        wanted: class that the text shall be of.
        unwanted: class that it shall not be of.
        omega: ω; 0 weighs nothing.
        class_bias: added to the log-odds of the wanted class.
        filter_share: 0 takes no token away.
        keep_from: probability of the wanted class from which a token always stays. The default is the paper's .8, moved
            by the class bias as in the code's settings for detoxification.
    """

    model: ModelPath
    wanted: str
    unwanted: str
    omega: float = 30.0
    class_bias: float = 2.0
    filter_share: float = 0.8
    keep_from: float = 0.967
    _read: tuple[Policy, ClassCodes] | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not (0.0 <= self.filter_share < 1.0 and 0.0 < self.keep_from <= 1.0):
            raise ConfigError(
                f"mixer: expected 0 <= filter_share < 1 and 0 < keep_from <= 1, got {self.filter_share} and "
                f"{self.keep_from}"
            )

    def setup(self, policy: Policy) -> None:
        """See `LogitsMixer.setup`. Raises ConfigError where the model does not know the classes, or they are one."""
        if self.wanted == self.unwanted:
            raise ConfigError(f"mixer: wanted and unwanted are one class, {self.wanted!r}")
        if not isinstance(policy, CausalPolicy):
            raise ConfigError("mixer=gedi: expected a decoder-only policy, whose prompt and answer are one text")
        codes = ClassCodes.read(model_directory(self.model))
        for name in (self.wanted, self.unwanted):
            if name not in codes.codes:
                raise ConfigError(f"mixer: {self.model} knows the classes {', '.join(codes.codes)}, got {name!r}")
        self._read = guide(self.model, policy), codes

    @torch.no_grad()
    def open(self, memory: PromptMemory, samples: int, limit: int, open_stepper: OpenStepper) -> _GeDiMixing:
        """See `LogitsMixer.open`."""
        model, codes = ready(self._read, "GeDi")
        classes = [
            _Class.open(model, codes.codes[name], memory, samples, limit, open_stepper)
            for name in (self.wanted, self.unwanted)
        ]
        return _GeDiMixing(self, codes.scale, *classes)


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
