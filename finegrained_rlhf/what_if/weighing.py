"""A reward without its scorers: weights, settings and gates of its components, and how they are changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from finegrained_rlhf.core.checks import is_number
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.rewards.config import ComponentConfig
from finegrained_rlhf.rewards.moving import RewardGate


@dataclass(frozen=True)
class Weighing:
    """A reward without its scorers.

    Attributes:
        weights: by component, of all of them.
        settings: by component, of all of them.
        gates: by component, of those that have one.
        moving: components whose weight is another in every step: those with a schedule or a constraint.
    """

    weights: Mapping[str, float]
    settings: Mapping[str, ComponentConfig]
    gates: Mapping[str, RewardGate] = field(default_factory=dict)
    moving: Sequence[str] = ()

    def at(self, metrics: Mapping[str, Any], file: Path) -> Weighing:
        """This reward with the moving weights of a step (`reward/NAME/weight`).

        Args:
            metrics: the step's line of `metrics.jsonl`.
            file: where it stands.

        Raises:
            DataError: it lacks one.
        """
        now: dict[str, Any] = {name: metrics.get(f"reward/{name}/weight") for name in self.moving}
        for name, weight in now.items():
            if not is_number(weight):
                key, step = f"reward/{name}/weight", f"step {metrics.get('step')}"
                raise DataError(f"expected a number, got {weight!r}", file=file, record=step, field=key)
        return replace(self, weights={**self.weights, **now})

    def changed(self, weights: Mapping[str, float], settings: Mapping[str, Mapping[str, object]]) -> Weighing:
        """This reward with some weights and settings replaced.

        Raises:
            ConfigError: an unknown component or setting; `empty`, which the kept scores hold already; or settings of a
                component that was normalised by its running moments, which were not kept.
        """
        for place, names in (("weights", weights), ("settings", settings)):
            for name in sorted(set(names) - set(self.weights)):
                known = ", ".join(sorted(self.weights))
                raise ConfigError(f"reward.{place}.{name}: no such component; the run's reward has {known}")
        made = dict(self.settings)
        for name, changes in settings.items():
            before, after = self.settings[name], component_config(name, {**vars(self.settings[name]), **changes})
            if after.empty != before.empty:
                raise ConfigError(
                    f"reward.settings.{name}.empty: the kept scores hold what an empty response was paid; it stays"
                )
            if "running" in (before.normalisation, after.normalisation) and after != before:
                raise ConfigError(
                    f"reward.settings.{name}: running moments were not kept; only the weight of {name} can be changed"
                )
            made[name] = after
        return replace(
            self, weights={**self.weights, **{name: float(weight) for name, weight in weights.items()}}, settings=made
        )


def component_config(name: str, settings: Mapping[str, object]) -> ComponentConfig:
    """Settings of a component from a configuration.

    Raises:
        ConfigError: an unknown setting, or a wrong value.
    """
    values = {key: value for key, value in settings.items() if key != "_target_"}
    unknown = sorted(set(values) - set(ComponentConfig.__dataclass_fields__))
    if unknown:
        known = ", ".join(ComponentConfig.__dataclass_fields__)
        raise ConfigError(f"reward.settings.{name}.{unknown[0]}: no such setting; expected one of {known}")
    try:
        return ComponentConfig(**values)  # type: ignore[arg-type]
    except ConfigError as error:
        raise ConfigError(f"reward.settings.{name}: {error}") from None
