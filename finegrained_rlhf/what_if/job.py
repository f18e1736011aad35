"""Reweighing as a configuration: what `finegrained reweigh` builds and runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import InputFile, OutputFile


@dataclass(frozen=True)
class RewardChange(Settings):
    """What is to be different.

    Attributes:
        weights: new weights by component; the others stay.
        settings: new settings by component: `aggregation`, `budget`, `density`; the others stay.
    """

    weights: Mapping[str, float] = field(default_factory=dict)
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, settings in self.settings.items():
            if not isinstance(settings, Mapping):
                raise ConfigError(f"reward.settings.{name}: expected settings such as aggregation, got {settings!r}")


class Reweigh:
    """Say how a PPO run's kept rollouts would rank, and be learnt from, under another reward. Loads no model.

    Args:
        run: directory of a PPO run.
        reward: what is to be different.
        steps: which of the kept steps; None takes all.
        examples: so many prompts are shown whose best sample changes, those that gain most first.
        output: JSON file for everything; None writes none.

    Raises:
        ConfigError: a weight that is no number, or settings that are none.
    """

    def __init__(
        self,
        run: InputFile,
        reward: RewardChange | None = None,
        steps: Sequence[int] | None = None,
        examples: int = 3,
        output: OutputFile | None = None,
    ) -> None:
        if examples < 0:
            raise ConfigError(f"examples must be at least 0, got {examples}")
        self.directory, self.reward, self.steps = run, reward or RewardChange(), steps
        self.examples, self.output = examples, output

    def run(self) -> None:
        """Print what changes, and write it where `output` says; nothing is written where `measured` raises."""
        from finegrained_rlhf.what_if.reweigh import reweigh

        reweigh(self)

    def measured(self) -> dict[str, Any]:
        """What changes: the reward `before` and `now`, the `steps`, their `mean`, and all prompts with a `new_best`.

        Every step is weighed as it was trained. Where the weights `moved` from step to step, `before` and `now` have
        their means; a weight that is given replaces those of all steps.

        Raises:
            ConfigError: an unknown component, setting or step.
            DataError: the run kept no rollouts, or they are damaged.
            ConsistencyError: the run's own reward does not give the advantages that were kept.
        """
        from finegrained_rlhf.what_if.reweigh import measured

        return measured(self)
