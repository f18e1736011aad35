"""What the reward of a run is: components, weights, settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from finegrained_rlhf.core.checks import is_number
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import above, at_least, harmless
from finegrained_rlhf.rewards.aggregation import Aggregation, ResponseValue
from finegrained_rlhf.rewards.checks import check_threshold
from finegrained_rlhf.rewards.credit import Credit, Reading, Revisions
from finegrained_rlhf.rewards.moving import RewardConstraint, RewardGate, WeightSchedule
from finegrained_rlhf.rewards.penalties import FormPenalties, OverlongPenalty
from finegrained_rlhf.rewards.protocol import Scorer

Normalisation = Literal["none", "running"]
Density = Literal["segment", "response"]
WatchedAnswer = Literal["cut_lead", "best_sentence", "gold"]
"""An answer that nobody has to learn: the first words of the first passage, the passage sentence nearest to the
question, the reference."""


@dataclass(frozen=True)
class ComponentConfig(Settings):
    """How one component enters the sum.

    Attributes:
        normalisation: `none` uses the scorer's values (the paper's choice); `running` subtracts the mean and divides by
            the standard deviation of all values this component gave in training so far, over all processes. Validation
            takes mean and standard deviation of the run's first validation instead, so that equal responses have equal
            scores throughout and the best checkpoint can be chosen.
        aggregation: `sum` lets every segment count in full (the paper); `mean` divides by the number of segments;
            `budget` rescales the values of a response until their absolute values add up to `budget`. With the last
            two a longer response does not earn more by its length alone.
        budget: in the component's unit, a response; used by `aggregation=budget` only.
        density: `segment` pays each segment as `reward.credit` says; `response` pays their sum at the last token, which
            makes a holistic reward of a fine-grained one.
        empty: value, in the component's unit, of a response without a word, for components that score segments. Such a
            response has none; with 0 (the paper) it earns more than one with a single wrong segment. It goes on the
            response's last token, as the segment 0:0.
        reading: `whole` takes each segment's value from the whole response; `prefix` from the response as far as it
            went when the segment's end was decided, so that nothing behind changes it. That is another objective, and
            every segment is one more text to be scored (a request, where a judge or a service scores).
        after: what the component reads begins behind the first of this mark (`</think>`); None reads all. A response
            without the mark reads as an empty one, since it has not come to its answer, unless the prompt ends with the
            mark itself: chat templates write it there where thinking is switched off.
        turns: of a response in several turns, `each` reads every turn as a response of its own, and what a scorer of
            whole responses gives is paid where the turn ends; `last` reads the last one alone.
    """

    normalisation: Normalisation = "none"
    aggregation: Aggregation = "sum"
    budget: Annotated[float, above(0)] = 1.0
    density: Density = "segment"
    empty: float = 0.0
    reading: Reading = "whole"
    after: str | None = None
    turns: Literal["each", "last"] = "each"

    def __post_init__(self) -> None:
        if self.after is not None and not self.after.strip():
            raise ConfigError(f"after: expected a mark such as </think>, got {self.after!r}")


@dataclass(frozen=True)
class RewardConfig(Settings):
    """The reward of a run.

    Attributes:
        components: scorers by name.
        weights: weight of each component by name; every component has one and no name is unknown. Validations,
            evaluation and best of n weigh with these throughout, so that scores stay on one scale; training does so
            where neither schedule nor constraint says otherwise.
        settings: further settings by component name.
        end_penalty: reward taken from a response without an end of sequence, on its last token, as the component
            `unfinished`; 0 (the paper) takes none.
        overlong: what tokens behind a limit cost, as the component `overlong`; nothing by default (the paper).
        schedule: weights of training by step, by component name.
        gates: when a component counts in a response, by component name; wherever the reward is computed.
        constraints: what a component must reach in training, by component name.
        credit: when training pays. `end` (the paper): each segment where it ends, though later text may move its end or
            change its value. `outcome`: all at the last token. `decided`: each segment at the token that decides it;
            at the last one where only the whole response does: a scorer that reads on (and is read whole), one that
            scores whole responses or declares no look-ahead, a component with a gate. `revised`: prefixes are scored as
            they come and every change of a component's value is paid when it shows, the rest at the last token: the
            rewards of a response add up to those of `outcome`, whatever a scorer reads.
        revisions: which prefixes `revised` scores: `segments`, wherever a segment may have ended; a number of places
            evenly spaced over `rollout.max_new_tokens`; `last`, none. Each is one more text for every component but
            those of `density=response`: where a judge or a service scores, one more request.
        watch: answers that every validation scores beside the policy's (`training.watch`); a run warns where one that
            is copied overtakes them. Prompts need passages for them, and references for `gold`.
    """

    components: Mapping[str, Scorer]
    weights: Mapping[str, float]
    settings: Mapping[str, ComponentConfig] = field(default_factory=dict)
    end_penalty: float = 0.0
    overlong: OverlongPenalty = OverlongPenalty()
    schedule: Mapping[str, WeightSchedule] = field(default_factory=dict)
    gates: Mapping[str, RewardGate] = field(default_factory=dict)
    constraints: Mapping[str, RewardConstraint] = field(default_factory=dict)
    credit: Credit = "end"
    revisions: Revisions | Annotated[int, at_least(1)] = "segments"
    watch: Annotated[Sequence[WatchedAnswer], harmless] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.overlong, OverlongPenalty):
            raise ConfigError(f"reward.overlong: expected an OverlongPenalty, got {self.overlong!r}")
        if not self.components:
            raise ConfigError("reward.components is empty: name at least one scorer")
        for place in ("weights", "settings", "schedule", "gates", "constraints"):
            names = getattr(self, place)
            unknown = sorted(set(names) - set(self.components))
            if unknown:
                known = ", ".join(sorted(self.components))
                raise ConfigError(f"reward.{place}.{unknown[0]}: no such component; the reward has {known}")
        for name, scorer in self.components.items():
            if not isinstance(scorer, Scorer):
                raise ConfigError(f"reward.components.{name}: {type(scorer).__name__} has no setup() and score()")
            weight = self.weights.get(name)
            if not is_number(weight):
                raise ConfigError(f"reward.weights.{name}: expected a finite number, got {weight!r}")
        for name in sorted(set(self.penalties.weights) & set(self.components)):
            raise ConfigError(f"reward.components.{name}: this name is the penalty's; give the component another")
        if isinstance(self.watch, str):
            raise ConfigError(f"watch: expected a list, [{self.watch}], got {self.watch!r}")
        self._check_moving()
        self._check_credit()

    def _check_credit(self) -> None:
        """Raise ConfigError for what cannot be paid as `credit` says."""
        if not isinstance(self.revisions, str | int) or isinstance(self.revisions, bool):
            raise ConfigError(f"reward.revisions: expected segments, last or a whole number, got {self.revisions!r}")
        for name, setting in self.settings.items():
            if self.credit == "decided" and setting.aggregation != "sum" and setting.density == "segment":
                raise ConfigError(
                    f"reward.settings.{name}.aggregation={setting.aggregation} shares out what only the whole response "
                    "decides; with reward.credit=decided it needs density=response, or use reward.credit=revised"
                )
            if self.credit == "revised" and setting.reading == "prefix":
                raise ConfigError(
                    f"reward.settings.{name}.reading=prefix: no later text changes such a value, so that nothing is to "
                    "be revised; expected reward.credit=decided, or reading=whole"
                )

    def _check_moving(self) -> None:
        """Raise ConfigError for parts of another class, and for thresholds that no response can reach, or all do."""
        for place, kind in (("schedule", WeightSchedule), ("gates", RewardGate), ("constraints", RewardConstraint)):
            for name, part in getattr(self, place).items():
                if not isinstance(part, kind):
                    raise ConfigError(f"reward.{place}.{name}: expected a {kind.__name__}, got {part!r}")
        for name, gate in self.gates.items():
            if gate.by is None or gate.at_least is None:
                continue
            if gate.by not in self.components or gate.by == name:
                known = ", ".join(sorted(set(self.components) - {name})) or "none"
                raise ConfigError(f"reward.gates.{name}.by: expected another component ({known}), got {gate.by!r}")
            self._check_threshold(f"gates.{name}", gate.by, gate.at_least, gate.of)
        for name, constraint in self.constraints.items():
            if constraint.at_least is not None:
                self._check_threshold(f"constraints.{name}", name, constraint.at_least, constraint.of)

    def _check_threshold(self, place: str, judged: str, at_least: float, of: ResponseValue) -> None:
        empty = self.settings.get(judged, ComponentConfig()).empty
        check_threshold(f"reward.{place}.at_least", judged, self.components[judged], at_least, of, empty)

    @property
    def penalties(self) -> FormPenalties:
        """The penalties for form."""
        return FormPenalties(self.end_penalty, self.overlong)

    @property
    def all_weights(self) -> dict[str, float]:
        """The weights of the components, and of the penalties for form that are on, by name."""
        return {**self.weights, **self.penalties.weights}
