"""Where a policy and its value model come from, and which adapters are trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import InputFile, ModelName, above, at_least, below, harmless
from finegrained_rlhf.models.weights.files import check_adapter, check_backbone, check_language_model

if TYPE_CHECKING:
    import torch

    from finegrained_rlhf.models.policy import Policy
    from finegrained_rlhf.models.value import ValueModel

Activation = Literal["sigmoid", "softmax"]
"""How a classifier's logits are read."""


@dataclass(frozen=True)
class LoraConfig(Settings):
    """Low-rank adapters on a policy.

    Attributes:
        rank: r, inner width of each adapter.
        alpha: the update is scaled by alpha / rank.
        dropout: on the adapter's input; 0 keeps rollout and update alike.
        target_modules: names of the linear layers that get one; None uses peft's choice for the architecture, and for
            families that peft makes none for, the projections of queries and values.
    """

    rank: Annotated[int, at_least(1)] = 16
    alpha: Annotated[int, above(0)] = 32
    dropout: Annotated[float, at_least(0), below(1)] = 0.0
    target_modules: tuple[str, ...] | None = None


@dataclass(frozen=True)
class PolicyConfig(Settings):
    """Where a policy comes from.

    Attributes:
        path: model directory, run directory, or a name on the Hugging Face Hub (`org/name`).
        lora: train low-rank adapters instead of all weights; None trains all.
        adapter: directory of a saved adapter to continue from (needs no `lora`).
        gradient_checkpointing: trade a second forward pass for activation memory.
        revision: branch, tag or commit of a Hub name; None is the main branch.
        frozen_dtype: how linear layers that are not trained (reference, LoRA's base) are stored: `float32`, or
            `bfloat16` in half the memory; with `processes.precision=bf16` they compute the same numbers.
    """

    path: ModelName
    lora: LoraConfig | None = None
    adapter: InputFile | None = None
    gradient_checkpointing: Annotated[bool, harmless] = False
    revision: str | None = None
    frozen_dtype: Literal["float32", "bfloat16"] = "float32"

    input_checks: ClassVar[Mapping[str, Any]] = {"path": check_language_model, "adapter": check_adapter}

    def __post_init__(self) -> None:
        if self.lora is not None and self.adapter is not None:
            raise ConfigError("policy.lora starts a new adapter, policy.adapter continues one: set one of them")

    def check_frozen(self, precision: str, *, reference: bool) -> None:
        """Require that `frozen_dtype` changes no number and stores something.

        Args:
            precision: of the run (`processes.precision`).
            reference: whether the run keeps a frozen reference.

        Raises:
            ConfigError: otherwise.
        """
        if self.frozen_dtype == "float32":
            return
        if precision != "bf16":
            raise ConfigError(
                f"policy.frozen_dtype=bfloat16 needs processes.precision=bf16, got {precision}: the weights would lose "
                "digits that it computes with"
            )
        if not reference and self.lora is None and self.adapter is None:
            raise ConfigError("policy.frozen_dtype=bfloat16: nothing is frozen here; it is for policy=lora or adapter")

    def load(self, device: torch.device | str = "cpu") -> Policy:
        """Read weights (fp32 master copies of what is trained) and tokenizer.

        Raises:
            ModelError: missing, damaged, or not a sequence-to-sequence or causal language model.
        """
        from finegrained_rlhf.models.loading import load_policy

        return load_policy(self, device)


@dataclass(frozen=True)
class ValueConfig(Settings):
    """Where the value model comes from.

    Attributes:
        kind: `separate` (a model of its own, as in the paper), `shared` (a head on the policy's trunk), or `none`, for
            algorithms that learn no values.
        path: model directory or Hub name of the separate backbone; None for `shared`. Not read for `none`, so that an
            experiment that names one can be run with such an algorithm.
        revision: branch, tag or commit of a Hub name; None is the main branch.
    """

    kind: Literal["separate", "shared", "none"] = "separate"
    path: ModelName | None = None
    revision: str | None = None

    input_checks: ClassVar[Mapping[str, Any]] = {"path": check_backbone}

    def __post_init__(self) -> None:
        if self.kind == "none":
            return
        if (self.kind == "separate") != (self.path is not None):
            raise ConfigError("value.path is needed for value.kind=separate and must be null for shared")

    def load(self, policy: Policy, heads: int = 1) -> ValueModel | None:
        """Build the value model for `policy`, on its device; a new head is drawn from the global generator.

        Args:
            policy: whose states it values.
            heads: values of a token.

        Returns:
            The model; None for `none`.

        Raises:
            ModelError: the backbone is missing or does not fit the policy.
        """
        from finegrained_rlhf.models.loading import load_value

        return load_value(self, policy, heads)
