"""What changes a policy's next-token logits while it decodes: DExperts, GeDi, a word list.

`rollout/mixers/steppers.py` puts a mixer behind a stepper, so that every engine of ours can use it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from finegrained_rlhf.core.errors import ConfigError, ModelError
from finegrained_rlhf.core.markers import ModelName
from finegrained_rlhf.models.config import PolicyConfig

if TYPE_CHECKING:
    from torch import Tensor

    from finegrained_rlhf.models.policy import Policy, PromptMemory
    from finegrained_rlhf.rollout.steppers.base import OpenStepper


class Mixing(Protocol):
    """A mixer at work on the rows of one `decode`: P prompts with N rows each; row r answers prompt r // N."""

    def mix(self, logits: Tensor, tokens: Tensor, position: Tensor, window: int) -> Tensor:
        """The logits that the next token is drawn from.

        Called once a step, in order. The arguments but the first are those of `Stepper.logits`.

        Args:
            logits: float [r, V], the policy's own.
            tokens: int64 [r], fed at `position`.
            position: int64 [1], from 0.
            window: cache positions to attend over.

        Returns:
            fp32 [r, V]; −inf where a token may not be drawn.
        """

    def keep(self, prompts: Tensor, rows: Tensor) -> None:
        """Go on with fewer rows, as `Stepper.keep`."""


@runtime_checkable
class LogitsMixer(Protocol):
    """Changes next-token logits. A configuration: models are read by `setup`."""

    def setup(self, policy: Policy) -> None:
        """Read what is needed, onto the policy's device.

        Raises:
            ModelError: a model cannot be read, or its vocabulary is not the policy's.
        """

    def open(self, memory: PromptMemory, samples: int, limit: int, open_stepper: OpenStepper) -> Mixing:
        """Begin a `decode`.

        Args:
            memory: P prompts, as the policy has encoded them.
            samples: N rows a prompt.
            limit: longest response in tokens.
            open_stepper: decodes other policies beside this one.
        """


def check_mixer(mixer: Any) -> None:
    """Require a whole mixer or none.

    Raises:
        ConfigError: settings without the name of a mixer.
    """
    if mixer is not None and not isinstance(mixer, LogitsMixer):
        raise ConfigError("mixer: settings change a mixer; name one first (mixer=dexperts, gedi or word_list)")


def guide(path: ModelName, policy: Policy) -> Policy:
    """A language model that is asked about a policy's text beside it.

    Raises:
        ModelError: it cannot be read, or has other tokens than the policy.
    """
    model = PolicyConfig(path).load(policy.device).eval()
    vocabulary, expected = model.tokenizer.get_vocab(), policy.tokenizer.get_vocab()
    if vocabulary != expected or _width(model) != _width(policy):
        raise ModelError(
            f"{path}: expected the policy's vocabulary ({len(expected)} tokens, {_width(policy)} logits), this one has "
            f"{len(vocabulary)} tokens and {_width(model)} logits, or names them otherwise"
        )
    return model


def _width(policy: Policy) -> int:
    return int(policy.model.config.vocab_size)


def ready(models: Any, name: str) -> Any:
    """What `setup` read.

    Raises:
        ConfigError: it was not called.
    """
    if models is None:
        raise ConfigError(f"{name}: setup(policy) reads its models; call it first")
    return models
