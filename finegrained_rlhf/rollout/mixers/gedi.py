"""GeDi (Krause et al., 2021): a policy's tokens weighed by what a class-conditional language model says of a class.

The model reads a text behind the code of a class, which `ClassCodes` keeps beside its weights; Bayes' rule over two
codes says, for every next token, how probable the wanted class is of the text that it would make.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from finegrained_rlhf.core.errors import ConfigError, ModelError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import read_json, write_json
from finegrained_rlhf.core.markers import ModelName, above, at_least, at_most, below
from finegrained_rlhf.models.loading import model_directory
from finegrained_rlhf.rollout.mixers.protocol import Mixing, guide, ready

if TYPE_CHECKING:
    from finegrained_rlhf.models.policy import Policy, PromptMemory
    from finegrained_rlhf.rollout.steppers.base import OpenStepper


FILE = "class_codes.json"


@dataclass(frozen=True)
class ClassCodes:
    """The codes of a class-conditional language model.

    Attributes:
        codes: of each class the token ids that stand before its texts, at least one.
        scale: factor of the mean log-probability of a text in the logit of its class; trained.
    """

    codes: Mapping[str, tuple[int, ...]]
    scale: float = 1.0

    @classmethod
    def read(cls, directory: Path) -> ClassCodes:
        """Those beside a model.

        Raises:
            ModelError: there is no file of codes, or it is damaged.
        """
        path = directory / FILE
        if not path.is_file():
            raise ModelError(
                f"{directory}: no class-conditional language model (expected {FILE}, as finegrained train-gedi does)"
            )
        record = read_json(path)
        try:
            codes = {str(name): tuple(int(i) for i in ids) for name, ids in record["codes"].items()}
            scale = float(record["scale"])
        except (KeyError, TypeError, ValueError, AttributeError):
            raise ModelError(f"{path}: expected codes, token ids by class, and a scale") from None
        if len(codes) < 2 or not all(codes.values()):
            raise ModelError(f"{path}: expected two classes or more, each with a token")
        return cls(codes, scale)

    def write(self, directory: Path) -> None:
        """Write them beside a model."""
        write_json(
            directory / FILE, {"codes": {name: list(ids) for name, ids in self.codes.items()}, "scale": self.scale}
        )


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
