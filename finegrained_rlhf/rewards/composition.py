"""Weighted composition of reward components, with the share of each kept apart.

Training standardises a component by moments of what it gave so far; a validation score made that way would change
although the responses did not, so validations are standardised by the moments of the first of them. Weights of a step
are schedule plus dual variable; gates act on responses.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.records import Prompt, RewardTrace, Rollout, SegmentScores, Turns
from finegrained_rlhf.rewards.aggregation import aggregated
from finegrained_rlhf.rewards.checks import check_scores, look_ahead_of_scorer, naming
from finegrained_rlhf.rewards.config import ComponentConfig, RewardConfig
from finegrained_rlhf.rewards.credit import (
    Prefixes,
    deciding,
    due_prefixes,
    last_tokens,
    read_on_prefixes,
    segments_decided,
)
from finegrained_rlhf.rewards.moving import DualVariable, Normaliser
from finegrained_rlhf.rewards.parts import parts_read, scores_of_responses
from finegrained_rlhf.rewards.placement import component_trace, total_reward
from finegrained_rlhf.rewards.protocol import BegunScorer, PromptCheckingScorer, StartableScorer, VersionedScorer
from finegrained_rlhf.rl.credit import corrections
from finegrained_rlhf.rl.stats import Reduce

if TYPE_CHECKING:
    import torch


class TrainedWeights:
    """w_k(step) = s_k(step) + λ_k: the schedule, or the configured weight without one, and the constraint's λ, or 0.

    Args:
        config: weights, schedules and constraints.
        reduce: sums a small tensor over all processes.
    """

    def __init__(self, config: RewardConfig, reduce: Reduce) -> None:
        self._config = config
        self._duals = {
            name: DualVariable(constraint, reduce)
            for name, constraint in config.constraints.items()
            if constraint.active
        }

    def at(self, step: int) -> dict[str, float]:
        """The weights of a training step, from 1, by name; penalties for form included."""
        weights = {name: float(weight) for name, weight in self._config.all_weights.items()}
        weights |= {name: s.weight_at(step) for name, s in self._config.schedule.items() if s.active}
        return {**weights, **{name: weights[name] + dual.multiplier for name, dual in self._duals.items()}}

    def update(self, scores: Mapping[str, SegmentScores]) -> dict[str, float]:
        """Move the dual variables by the raw scores of a step; every process must call this.

        Returns:
            Of every constraint `constraint/NAME/value`, the step's mean, and `constraint/NAME/multiplier`, the λ that
            the step was rewarded with.
        """
        metrics = {}
        for name, dual in self._duals.items():
            metrics[f"constraint/{name}/multiplier"] = dual.multiplier
            metrics[f"constraint/{name}/value"] = dual.update(scores[name].known())
        return metrics

    def sums(self, scores: Mapping[str, SegmentScores]) -> dict[str, tuple[float, float]]:
        """Of every constraint `constraint/NAME/value`: its sum over these responses, their number. Moves nothing."""
        return {f"constraint/{name}/value": dual.sums(scores[name].known()) for name, dual in self._duals.items()}

    def missed(self, means: Mapping[str, float]) -> dict[str, int]:
        """`constraints_missed`: how many constraints these means (`constraint/NAME/value`) lie below; {} without."""
        missed = [dual.missed_by(means[f"constraint/{name}/value"]) for name, dual in self._duals.items()]
        return {"constraints_missed": sum(missed)} if missed else {}

    def unmet(self) -> list[str]:
        """A sentence a constraint that training missed in its last steps: by how much, and for how long."""
        shortfalls = {name: dual.shortfall() for name, dual in self._duals.items()}
        return [f"reward.constraints.{name}.{sentence}" for name, sentence in shortfalls.items() if sentence]

    def state(self) -> dict[str, Any]:
        """What a checkpoint must keep: the dual variables. Schedules are functions of the step."""
        return {name: dual.state() for name, dual in self._duals.items()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take back what `state` gave; constraints that it does not have begin anew."""
        for name, kept in state.items():
            if name in self._duals:
                self._duals[name].load_state(kept)


class RewardComposer:
    """Scores rollouts with every component and adds the weighted results up.

    Args:
        config: scorers and weights.
        reduce: sums a small tensor over all processes (for `running` normalisation).
        eos_ids: the policy's ends of sequence, needed where `end_penalty` is on and rollouts are composed.
        byte_ids: the policy's tokens that are bytes (`text.alignment.byte_tokens`); what they give is not yet decided.
        longest: the most tokens of a response, needed where `revisions` is a number.

    Attributes:
        weights: of a training step, and what is known of the constraints that move them.
    """

    def __init__(
        self,
        config: RewardConfig,
        reduce: Reduce = lambda tensor: tensor,
        eos_ids: Sequence[int] = (),
        byte_ids: Collection[int] = (),
        longest: int | None = None,
    ) -> None:
        self.config, self._eos_ids = config, tuple(eos_ids)
        self._byte_ids, self._longest = byte_ids, longest
        self._normalisers = {
            name: Normaliser(reduce) for name in config.components if self.settings(name).normalisation == "running"
        }
        self.weights = TrainedWeights(config, reduce)

    def setup(self, device: torch.device) -> None:
        """Load every scorer.

        Raises:
            ConfigError: a component is to be read on prefixes, and does not say what decides its segments.
        """
        for name, scorer in self.config.components.items():
            scorer.setup(device)
            look_ahead = look_ahead_of_scorer(name, scorer)
            if self.settings(name).reading == "prefix" and look_ahead is None:
                raise ConfigError(
                    f"reward.settings.{name}.reading=prefix: its scorer declares no look_ahead, so that only the end "
                    "of a response decides where its segments end; expected reading=whole"
                )

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        """Let every component that can refuse prompts to which it could not score any response; after `setup`.

        Raises:
            DataError: there is such a prompt.
        """
        for scorer in self.config.components.values():
            if isinstance(scorer, PromptCheckingScorer):
                scorer.check_prompts(prompts)

    def score(
        self, prompts: Sequence[Prompt], responses: Sequence[str], turns: Sequence[Turns] = ()
    ) -> dict[str, SegmentScores]:
        """Raw scores of every component, in the order of the configuration; empty responses as `empty` says.

        Every scorer with a `start` is started before any other scores and before any result is waited for: while the
        device scores for one component, the CPU prepares the next.

        Args:
            prompts: R prompts.
            responses: R texts.
            turns: of each response (`Rollout.turns`); empty: each is one turn.

        Raises:
            ConfigError: a component broke, or gave something else than finite values of segments inside each response;
                the error names it, the prompt and the response.
        """
        scores = self._raw(self.config.components, prompts, responses, turns)
        for name, scorer in self.config.components.items():
            if self.settings(name).reading == "prefix":
                look_ahead = look_ahead_of_scorer(name, scorer)
                alone = partial(self._raw_of, name)
                scores[name] = read_on_prefixes(scores[name], prompts, responses, look_ahead, alone)
        return {name: self._with_empty(name, result, prompts, responses, turns) for name, result in scores.items()}

    def score_prefixes(self, rollout: Rollout) -> Prefixes | None:
        """The prefixes of a rollout's responses with their raw scores, all of them in one batch.

        Those of components whose value is paid at the last token alone (`density=response`) are left out, unless a gate
        asks for them.

        Returns:
            None where `credit` is not `revised`.

        Raises:
            ConfigError: as `score`, and `due_prefixes`.
        """
        if self.config.credit != "revised":
            return None
        due = due_prefixes(rollout, self.config.revisions, self._longest, self._byte_ids)
        dense = {name for name in self.config.components if self.settings(name).density == "segment"}
        asked = dense | {gate.by for name, gate in self.config.gates.items() if name in dense}
        prompts = rollout.row_prompts()
        names = [name for name in self.config.components if name in asked]
        return replace(due, scores=self._raw(names, [prompts[row] for row in due.rows], due.texts, begun=True))

    def _raw_of(self, name: str, prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
        return self._raw([name], prompts, responses)[name]

    def _raw(
        self,
        names: Collection[str],
        prompts: Sequence[Prompt],
        responses: Sequence[str],
        turns: Sequence[Turns] = (),
        begun: bool = False,
    ) -> dict[str, SegmentScores]:
        """What the scorers of these components give of the parts that they read, checked."""
        scorers = {name: self.config.components[name] for name in names}
        scored: dict[str, SegmentScores] = {
            name: SegmentScores((), (), counts=dict.fromkeys(getattr(scorer, "counted", ()), 0.0))
            for name, scorer in scorers.items()
        }
        parts = {name: parts_read(self.settings(name), prompts, responses, turns) for name in names}
        arguments = {
            name: (name, scorer, [part.prompt for part in parts[name]], [part.text for part in parts[name]])
            for name, scorer in scorers.items()
            if parts[name]
        }
        started: dict[str, Callable[[], SegmentScores]] = {}
        for name, scorer, asked, texts in arguments.values():
            if isinstance(scorer, StartableScorer) and not (begun and isinstance(scorer, BegunScorer)):
                with naming(*arguments[name]):
                    started[name] = scorer.start(asked, texts)
        for name, scorer, asked, texts in arguments.values():
            if name not in started:
                with naming(*arguments[name]):
                    own = scorer.score_begun if begun and isinstance(scorer, BegunScorer) else scorer.score
                    scored[name] = own(asked, texts)
        for name, collect in started.items():
            with naming(*arguments[name]):
                scored[name] = collect()
        checked = {
            name: check_scores(name, result, *arguments[name][2:]) if name in arguments else result
            for name, result in scored.items()
        }
        return {name: scores_of_responses(result, parts[name], responses) for name, result in checked.items()}

    def _with_empty(
        self,
        name: str,
        scores: SegmentScores,
        prompts: Sequence[Prompt],
        responses: Sequence[str],
        turns: Sequence[Turns],
    ) -> SegmentScores:
        """The scores, with the segment 0:0 in place of none where a response has no word and its emptiness is paid."""
        value = self.settings(name).empty
        if value == 0.0 or scores.whole_response:
            return scores
        parts = parts_read(self.settings(name), prompts, responses, turns)
        worded = {part.row for part in parts if part.text.strip()} | scores.unscored
        fill = [not spans and row not in worded for row, spans in enumerate(scores.spans)]
        spans = tuple(((0, 0),) if empty else tuple(row) for empty, row in zip(fill, scores.spans, strict=True))
        values = tuple((value,) if empty else tuple(row) for empty, row in zip(fill, scores.values, strict=True))
        return replace(scores, spans=spans, values=values)

    def compose(
        self,
        rollout: Rollout,
        scores: Mapping[str, SegmentScores],
        *,
        prefixes: Prefixes | None = None,
        train: bool = True,
        step: int = 1,
        drawn: Mapping[str, SegmentScores] | None = None,
    ) -> RewardTrace:
        """Normalise, aggregate, place on tokens, weigh, add up.

        In training the weights are those of the step (schedules, dual variables of constraints), and the dual variables
        take the scores in afterwards: every process must call this. Elsewhere they are the configured ones.

        Args:
            rollout: R responses.
            scores: of the same responses, by component name.
            prefixes: of the same responses, with their scores; without them `credit=revised` pays at the last token.
            train: True standardises `running` components by the running moments, which take the values in first; False
                by the fixed moments of the first validation (`fix_moments`).
            step: the training step, from 1.
            drawn: scores of all responses that the step drew, where these are a part of them; what moments and dual
                variables take in.

        Returns:
            The trace, penalties for form after the components; `total` is exactly the sum of the `weighted` tensors in
            this order. A component is 0 throughout a response in which its gate is closed; with `credit=revised` its
            rewards add up to 0 there.

        Raises:
            ConfigError: see `used_values`; or `end_penalty` is on and the ends of sequence are not known.
        """
        scores = {**scores, **self.config.penalties.count_in(rollout, self._eos_ids)}
        weights = self.weights.at(step) if train else self.config.all_weights
        drawn = scores if drawn is None else drawn
        used = self.used_values(scores, train=train, drawn=drawn)
        components = {
            name: component_trace(
                result,
                rollout,
                used[name],
                weight=float(weights[name]),
                tokens=self._carrying(name, result, rollout),
                gate=self.gate(name, scores),
                corrections=None
                if prefixes is None or name not in prefixes.scores or self.settings(name).density == "response"
                else self._corrections(name, rollout, self._worth(name, scores, used[name]), prefixes, train),
            )
            for name, result in scores.items()
        }
        metrics = self.weights.update(drawn) if train else {}
        return RewardTrace(
            components, total_reward(components, rollout), metrics, self._read(scores, rollout, prefixes)
        )

    def _carrying(self, name: str, scores: SegmentScores, rollout: Rollout) -> Sequence[tuple[int, ...]] | None:
        """The token that carries each segment; None: the one that ends it."""
        credit, setting = self.config.credit, self.settings(name)
        if setting.density == "response" or credit in ("outcome", "revised"):
            return last_tokens(scores, rollout)
        if credit == "end" or scores.whole_response:
            return None
        return segments_decided(scores, rollout, self._look_ahead_paid(name), self._byte_ids)

    def _look_ahead_paid(self, name: str) -> int | None:
        """The further words that decide a segment and what it is worth; None where the whole response does."""
        scorer, gate = self.config.components[name], self.config.gates.get(name)
        reads_on = self.settings(name).reading == "whole" and bool(getattr(scorer, "reads_on", True))
        return None if reads_on or (gate is not None and gate.active) else look_ahead_of_scorer(name, scorer)

    def _corrections(
        self, name: str, rollout: Rollout, whole: Sequence[float], prefixes: Prefixes, train: bool
    ) -> list[tuple[tuple[int, float], ...]]:
        """Of each response the tokens at which the component's value changed, with the changes, before its weight."""
        scores, normaliser = prefixes.scores[name], self._normalisers.get(name)
        values = scores.values
        if normaliser is not None:
            values = normaliser.again(values) if train else normaliser.validate(values)
        worth = self._worth(name, prefixes.scores, self._aggregated(name, scores, values))
        read: list[list[tuple[int, float]]] = [[] for _ in whole]
        for number in prefixes.known():
            read[prefixes.rows[number]].append((prefixes.tokens[number], worth[number]))
        made = []
        for row, value, length in zip(read, whole, rollout.lengths().tolist(), strict=True):
            tokens = (*(token for token, _ in row), length - 1)
            made.append(tuple(zip(tokens, corrections([one for _, one in row], value), strict=True)))
        return made

    def _worth(self, name: str, scores: Mapping[str, SegmentScores], used: Sequence[tuple[float, ...]]) -> list[float]:
        """What a component gives each text before its weight: the sum of its segments, 0 where its gate is closed."""
        gate = self.gate(name, scores) or [True] * len(used)
        return [sum(row) if on else 0.0 for row, on in zip(used, gate, strict=True)]

    def _read(self, scores: Mapping[str, SegmentScores], rollout: Rollout, prefixes: Prefixes | None) -> int | None:
        """How many prefixes the components have scored beside these responses; None where the reward reads none."""
        read = [name for name in self.config.components if self.settings(name).reading == "prefix"]
        if prefixes is not None:
            return len(prefixes.rows) * len(prefixes.scores)
        if not read:
            return None
        places = [
            deciding(scores[name], rollout.texts, look_ahead_of_scorer(name, self.config.components[name]))
            for name in read
        ]
        return sum(place is not None for rows in places for row in rows for place in row)

    def gate(self, name: str, raw: Mapping[str, SegmentScores]) -> tuple[bool, ...] | None:
        """In which responses a component counts; None where it has no gate."""
        gate = self.config.gates.get(name)
        return None if gate is None else gate.opens(raw)

    def settings(self, name: str) -> ComponentConfig:
        """The settings of a component; the defaults where the configuration has none."""
        return self.config.settings.get(name, ComponentConfig())

    def used_values(
        self,
        scores: Mapping[str, SegmentScores],
        *,
        train: bool = False,
        drawn: Mapping[str, SegmentScores] | None = None,
    ) -> dict[str, Sequence[tuple[float, ...]]]:
        """What the weights multiply: the values of each segment after normalisation and aggregation, by component.

        Args:
            scores: by component name.
            train: as in `compose`.
            drawn: as in `compose`.

        Raises:
            ConfigError: a budget is set for a component that gives one value a response, of which only the sign would
                be left.
        """
        used = {}
        for name, result in scores.items():
            values = self._normalise(name, result, train, (drawn or scores).get(name, result))
            used[name] = self._aggregated(name, result, values)
        return used

    def _aggregated(
        self, name: str, scores: SegmentScores, values: Sequence[tuple[float, ...]]
    ) -> Sequence[tuple[float, ...]]:
        setting = self.settings(name)
        return aggregated(name, scores, values, setting.aggregation, setting.budget)

    def totals(self, scores: Mapping[str, SegmentScores]) -> list[float]:
        """The sum of all components that are given by the configured weights and gates, one number a response.

        Of a response that a component has no score of (`unscored_rows`), it is the sum of the others.

        Raises:
            ConfigError: a component is normalised by what a training run has seen, which is not known here.
        """
        for name in scores:
            if self.settings(name).normalisation != "none" and not self._normalisers[name].seen:
                raise ConfigError(f"reward.settings.{name}.normalisation: running moments exist in a training run only")
        used = self.used_values(scores)
        weights, parts = self.config.all_weights, []
        for name, rows in used.items():
            parts.append([float(weights[name]) * worth for worth in self._worth(name, scores, rows)])
        return [sum(column) for column in zip(*parts, strict=True)]

    def weights_of(self, row: int, scores: Mapping[str, SegmentScores]) -> dict[str, float]:
        """The configured weights in one response, 0 where a gate is closed, of the components that are given."""
        weights, gates = self.config.all_weights, {name: self.gate(name, scores) for name in scores}
        return {name: 0.0 if gate and not gate[row] else float(weights[name]) for name, gate in gates.items()}

    def fix_moments(self, scores: Mapping[str, Sequence[SegmentScores]]) -> None:
        """Fix the moments by which validations standardise; only the first call of a run does anything.

        Every process must call this.

        Args:
            scores: all batches of a validation (this process's share), by component name.
        """
        for name, normaliser in self._normalisers.items():
            normaliser.fix([row for batch in scores.get(name, ()) for row in batch.values])

    def _normalise(
        self, name: str, scores: SegmentScores, train: bool, drawn: SegmentScores
    ) -> Sequence[tuple[float, ...]]:
        normaliser = self._normalisers.get(name)
        if normaliser is None:
            return scores.values
        return normaliser.train(scores.values, drawn.values) if train else normaliser.validate(scores.values)

    def state(self) -> dict[str, Any]:
        """What a checkpoint must keep: moments of normalised components, dual variables, versions of served ones."""
        moments = {name: normaliser.state() for name, normaliser in self._normalisers.items()}
        served = {
            name: one.served_version for name, one in self.config.components.items() if isinstance(one, VersionedScorer)
        }
        return {"moments": moments, "constraints": self.weights.state()} | ({"versions": served} if served else {})

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take back what `state` gave; also the moments alone, as older checkpoints hold them.

        Raises:
            ConfigError: a component is served in another version than the run has been rewarded by.
        """
        if state.keys() - {"versions"} != {"moments", "constraints"}:
            state = {"moments": state, "constraints": {}}
        for name, version in state.get("versions", {}).items():
            scorer = self.config.components.get(name)
            if isinstance(scorer, VersionedScorer):
                scorer.resume(version)
        for name, kept in state["moments"].items():
            if name in self._normalisers:
                self._normalisers[name].load_state(kept)
        self.weights.load_state(state["constraints"])
