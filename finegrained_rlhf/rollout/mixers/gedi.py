"""GeDi (Krause et al., 2021): a policy's tokens weighed by what a class-conditional language model says of a class.

The model reads a text behind the code of a class; Bayes' rule over two codes says, for every next token, how probable
the wanted class is of the text that it would make.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import ModelName, above, at_least, at_most, below
from finegrained_rlhf.models.loading import model_directory
from finegrained_rlhf.rollout.mixers.class_codes import ClassCodes
from finegrained_rlhf.rollout.mixers.protocol import Mixing, guide, ready

if TYPE_CHECKING:
    from finegrained_rlhf.models.policy import Policy, PromptMemory
    from finegrained_rlhf.rollout.steppers.base import OpenStepper


@dataclass
class GeDi(Settings):
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

    model: ModelName
    wanted: str
    unwanted: str
    omega: float = 30.0
    class_bias: float = 2.0
    filter_share: Annotated[float, at_least(0.0), below(1.0)] = 0.8
    keep_from: Annotated[float, above(0.0), at_most(1.0)] = 0.967
    _read: Any = field(default=None, init=False, repr=False, compare=False)

    def setup(self, policy: Policy) -> None:
        """See `LogitsMixer.setup`. Raises ConfigError where the model does not know the classes, or they are one."""
        from finegrained_rlhf.models.policy import CausalPolicy

        if self.wanted == self.unwanted:
            raise ConfigError(f"mixer: wanted and unwanted are one class, {self.wanted!r}")
        if not isinstance(policy, CausalPolicy):
            raise ConfigError("mixer=gedi: expected a decoder-only policy, whose prompt and answer are one text")
        codes = ClassCodes.read(model_directory(self.model))
        for name in (self.wanted, self.unwanted):
            if name not in codes.codes:
                raise ConfigError(f"mixer: {self.model} knows the classes {', '.join(codes.codes)}, got {name!r}")
        self._read = guide(self.model, policy), codes

    def open(self, memory: PromptMemory, samples: int, limit: int, open_stepper: OpenStepper) -> Mixing:
        """See `LogitsMixer.open`."""
        from finegrained_rlhf.rollout.mixers.class_weights import open_gedi

        model, codes = ready(self._read, "GeDi")
        return open_gedi(self, model, codes, memory, samples, limit, open_stepper)
