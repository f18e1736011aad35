"""What the benchmarks run: model shapes and batch sizes by name, and `key=value` on the command line.

Knows numbers only: no model, no measurement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from benchmarks.families import FAMILIES, CausalShape, T5Shape
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.runtime.process_config import Precision

PHASES = ("rollout", "scoring", "rewards", "update", "total")
LENGTHS = ("fixed", "spread")

P = TypeVar("P", bound=Any)  # a frozen dataclass of settings


@dataclass(frozen=True)
class LongformerShape:
    """A Longformer.

    Attributes:
        width: hidden size.
        inner: width of the feed-forward layers.
        layers: layers.
        heads: attention heads.
        window: attention window in tokens, both sides together.
        positions: longest input in tokens.
    """

    width: int
    inner: int
    layers: int
    heads: int
    window: int
    positions: int


@dataclass(frozen=True)
class Profile:
    """One benchmark.

    Attributes:
        name: of the profile.
        device: `cpu` or `cuda`.
        precision: `fp32`, or `bf16` for bf16 autocast over fp32 weights.
        family: `t5`, or a key of `CAUSAL_FAMILIES`.
        note: what the shapes are, in words.
        policy: shape of policy and reference.
        value: shape of the value model's backbone.
        reward: shape of each of the three reward models.
        vocabulary: ids of the tokenizer, special ones included.
        prompts: prompts a step.
        samples: responses a prompt.
        prompt_tokens: longest prompt in tokens; every prompt has this length in the run with fixed lengths.
        new_tokens: longest response in tokens; every response has this length in the run with fixed lengths.
        epochs: PPO epochs, one optimizer step each.
        micro_batch_prompts: at most so many prompts (with all their samples) in one forward and backward pass.
        lengths: which runs are made, `fixed`, `spread` or both.
        rounds: measured steps of each side and run, the sides in turn.
        warmup: steps of each side that are not counted.
        threads: CPU threads; 0 leaves torch's choice.
        seed: of weights, prompts and sampling.
        equal_prompts: prompts of the equality checks.
        equal_samples: responses to each.
        micro_batch_tokens: at most so many tokens in one pass of ours; None sets no limit.
        plain_micro_batch_prompts: the plain side's `micro_batch_prompts`, where its passes, in which each response
            brings its prompt along, have room for fewer; None takes the same.
        compiled: whether our blocks are compiled, as `processes.compiled`.
    """

    name: str
    device: str
    precision: Precision
    policy: T5Shape | CausalShape
    value: T5Shape | CausalShape
    reward: LongformerShape
    vocabulary: int
    prompts: int
    samples: int
    prompt_tokens: int
    new_tokens: int
    epochs: int
    micro_batch_prompts: int
    lengths: tuple[str, ...]
    rounds: int
    warmup: int
    threads: int = 0
    seed: int = 0
    equal_prompts: int = 2
    equal_samples: int = 3
    family: str = "t5"
    note: str = ""
    micro_batch_tokens: int | None = None
    plain_micro_batch_prompts: int | None = None
    compiled: bool = False

    def __post_init__(self) -> None:
        for name in ("prompts", "samples", "epochs", "micro_batch_prompts", "rounds", "equal_prompts", "equal_samples"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: expected at least 1, got {getattr(self, name)}")
        if self.prompt_tokens < 32 or self.new_tokens < 4:
            raise ConfigError("need prompt_tokens >= 32 and new_tokens >= 4")
        if self.prompt_tokens + 2 * self.new_tokens + 8 > self.reward.positions:
            raise ConfigError(
                f"prompt_tokens + 2 · new_tokens + 8 must not exceed the {self.reward.positions} positions of the "
                "reward models (every word of a response may be followed by a separator)"
            )
        if self.precision not in ("fp32", "bf16"):
            raise ConfigError(f"precision: expected fp32 or bf16, got {self.precision!r}")
        if not self.lengths or set(self.lengths) - set(LENGTHS):
            raise ConfigError(f"lengths: expected fixed, spread or fixed,spread, got {','.join(self.lengths)!r}")
        if self.warmup < 0 or self.threads < 0:
            raise ConfigError("warmup and threads must not be negative")


SMALL, BASE, LARGE = T5Shape(512, 2048, 6, 8), T5Shape(768, 3072, 12, 12), T5Shape(1024, 4096, 24, 16)
TINY = T5Shape(32, 64, 2, 2)

PROFILES = {
    "cpu": Profile(
        name="cpu",
        device="cpu",
        precision="fp32",
        note="T5-small's shape",
        policy=SMALL,
        value=SMALL,
        reward=LongformerShape(768, 3072, 2, 12, 512, 2048),
        vocabulary=32128,
        prompts=4,
        samples=4,
        prompt_tokens=384,
        new_tokens=48,
        epochs=2,
        micro_batch_prompts=1,
        lengths=("fixed",),
        rounds=3,
        warmup=0,
    ),
    "gpu": Profile(
        name="gpu",
        device="cuda",
        precision="bf16",
        note="T5-large's shape, the value model T5-base's",
        policy=LARGE,
        value=BASE,
        reward=LongformerShape(768, 3072, 12, 12, 512, 2048),
        vocabulary=32128,
        prompts=8,
        samples=4,
        prompt_tokens=1024,
        new_tokens=200,
        epochs=4,
        micro_batch_prompts=8,  # both as in conf/experiment/qa_feedback/fine_grained.yaml
        micro_batch_tokens=16384,
        plain_micro_batch_prompts=2,
        lengths=("fixed", "spread"),
        rounds=3,
        warmup=1,
    ),
    "tiny": Profile(
        name="tiny",
        device="cpu",
        precision="fp32",
        note="2 layers of width 32",
        policy=TINY,
        value=TINY,
        reward=LongformerShape(32, 64, 2, 2, 16, 256),
        vocabulary=512,
        prompts=2,
        samples=3,
        prompt_tokens=40,
        new_tokens=12,
        epochs=2,
        micro_batch_prompts=1,
        lengths=("fixed", "spread"),
        rounds=2,
        warmup=0,
    ),
}
SETTABLE = (
    "precision prompts samples prompt_tokens new_tokens epochs micro_batch_prompts lengths rounds warmup threads seed "
    "compiled"
).split()


def choose_profile(arguments: dict[str, str]) -> Profile:
    """The profile that `profile=…` and `family=…` (T5 by default) name, with the given settings; as `chosen_of`."""
    family = arguments.get("family", "t5")
    if family != "t5" and family not in FAMILIES:
        raise ConfigError(f"family: expected one of t5, {', '.join(FAMILIES)}, got {family!r}")
    changes = FAMILIES.get(family, {})
    profiles = {name: replace(one, family=family, **changes.get(name, {})) for name, one in PROFILES.items()}
    return chosen_of(arguments, profiles, SETTABLE)


def chosen_of(arguments: Mapping[str, str], profiles: Mapping[str, P], settable: Sequence[str]) -> P:
    """The profile that `profile=…` names (`cpu` by default), with the given settings.

    Raises:
        ConfigError: no such profile, or a value that does not fit its setting.
    """
    name = arguments.get("profile", "cpu")
    if name not in profiles:
        raise ConfigError(f"profile: expected one of {', '.join(profiles)}, got {name!r}")
    profile = profiles[name]
    changes: dict[str, Any] = {}
    for key in (key for key in settable if key in arguments):
        value, kind = arguments[key], type(getattr(profile, key))
        if kind is tuple:
            changes[key] = tuple(dict.fromkeys(value.split(",")))
        elif kind is int:
            try:
                changes[key] = int(value)
            except ValueError:
                raise ConfigError(f"{key}: expected a whole number, got {value!r}") from None
        elif kind is bool:
            if value not in ("true", "false"):
                raise ConfigError(f"{key}: expected true or false, got {value!r}")
            changes[key] = value == "true"
        else:
            changes[key] = value
    return replace(profile, **changes)
