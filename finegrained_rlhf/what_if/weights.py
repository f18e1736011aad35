"""What would change under another reward: ranking, best samples and advantages of rollouts that a run kept.

A reward is here without its scorers: weights, settings and gates of its components. Everything follows from the scores
that were kept, by the functions that training uses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from finegrained_rlhf.core.checks import is_number
from finegrained_rlhf.core.errors import ConfigError, ConsistencyError, DataError
from finegrained_rlhf.core.records import Experience, RewardTrace, unscored_rows
from finegrained_rlhf.inference.best_of import TIE, best_sample
from finegrained_rlhf.metrics.functions import correlation, covariance, kendall_tau_b
from finegrained_rlhf.rewards.aggregation import aggregated
from finegrained_rlhf.rewards.config import ComponentConfig
from finegrained_rlhf.rewards.credit import Credit, last_tokens
from finegrained_rlhf.rewards.moving import RewardGate
from finegrained_rlhf.rewards.placement import component_trace, total_reward
from finegrained_rlhf.training.ppo.advantages import AdvantageEstimator
from finegrained_rlhf.training.ppo.config import PPOConfig
from finegrained_rlhf.training.ppo.experience import make_experience
from finegrained_rlhf.what_if.kept_rollouts import KeptStep

TOLERANCE = 1e-4
"""Kept numbers have six digits; advantages that are made of them differ by less than this."""


@dataclass(frozen=True)
class Weighing:
    """A reward without its scorers.

    Attributes:
        weights: by component, of all of them.
        settings: by component, of all of them.
        gates: by component, of those that have one.
        moving: components whose weight is another in every step: those with a schedule or a constraint.
        credit: when it is paid (`RewardConfig`).
    """

    weights: Mapping[str, float]
    settings: Mapping[str, ComponentConfig]
    gates: Mapping[str, RewardGate] = field(default_factory=dict)
    moving: Sequence[str] = ()
    credit: Credit = "end"

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
            ConfigError: an unknown component or setting; `empty` or `reading`, which the kept scores hold already;
                settings of a component that was normalised by its running moments, which were not kept; or, where later
                text decides what is paid, settings but `density=response`: the scores of prefixes were not kept.
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
            if after.reading != before.reading:
                raise ConfigError(f"reward.settings.{name}.reading: the kept scores are of reading={before.reading}")
            if self.credit in ("decided", "revised") and after != before and after.density == "segment":
                raise ConfigError(
                    f"reward.settings.{name}: with reward.credit={self.credit} the run kept what was paid, not what it "
                    "was made of; expected another weight, or density=response"
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


def experience_under(
    kept: KeptStep, reward: Weighing, config: PPOConfig, algorithm: AdvantageEstimator | None = None
) -> Experience:
    """The experience of a kept step as training would have made it with `reward`.

    Whitening takes its statistics from the kept responses.

    Raises:
        ConfigError: a budget is asked for of a component that scores whole responses.
    """
    components = {}
    for name, setting in reward.settings.items():
        running = setting.normalisation == "running"  # its moments were not kept, but what came of them was
        scores = (kept.normalised if running else kept.raw)[name]
        how = "sum" if running else setting.aggregation
        components[name] = component_trace(
            scores,
            kept.rollout,
            aggregated(name, scores, scores.values, how, setting.budget),
            weight=reward.weights[name],
            tokens=_carrying(kept, name, reward.credit, setting),
            gate=reward.gates[name].opens(kept.raw) if name in reward.gates else None,
            corrections=kept.corrections.get(name) if setting.density == "segment" else None,
        )
    trace = RewardTrace(components, total_reward(components, kept.rollout))
    reference = torch.zeros_like(kept.rollout.logprobs)
    return make_experience(
        kept.rollout,
        trace,
        reference,
        kept.values,
        beta=kept.beta,
        config=config,
        reduce=lambda tensor: tensor,
        algorithm=algorithm,
    )


def _carrying(kept: KeptStep, name: str, credit: Credit, setting: ComponentConfig) -> Sequence[tuple[int, ...]] | None:
    """The token that carries each segment, as in `RewardComposer`; None: the one that ends it."""
    if setting.density == "response" or credit in ("outcome", "revised"):
        return last_tokens(kept.raw[name], kept.rollout)
    return kept.tokens[name] if credit == "decided" else None


def check_recomputed(kept: KeptStep, made: Experience, config: PPOConfig) -> None:
    """Require that the run's own reward gives the rewards and advantages that were kept.

    Where only some responses of a step were kept, whitening had other statistics: the rewards must then be the kept
    ones but for a factor and a shift, and advantages are not compared.

    Raises:
        ConsistencyError: they differ by more than `TOLERANCE`.
    """
    mask = kept.rollout.response_mask.bool()
    pairs = {"reward": (made.rewards, kept.rewards), "advantage": (made.advantages, kept.advantages)}
    for name, (now, before) in pairs.items():
        x, y = now[mask].double(), before[mask].double()
        if not kept.complete:
            if name == "advantage" and (config.whiten_rewards or config.whiten_advantages):
                continue
            if name == "reward" and config.whiten_rewards:
                x = _fitted(x, y)
        size = max(1.0, float(y.abs().max()))
        difference = float((x - y).abs().max())
        if not difference <= TOLERANCE * size:
            raise ConsistencyError(
                f"step {kept.step}: with the run's own reward the {name}s of the kept responses come out different, by "
                f"{difference:.3g}; were samples, metrics.jsonl or config.yaml changed, or trained by another version?"
            )


def _fitted(x: Tensor, y: Tensor) -> Tensor:
    """The factor > 0 and the shift that bring `x` nearest to `y`, applied to it."""
    centred = x - x.mean()
    square = float((centred**2).sum())
    factor = max(0.0, float((centred * (y - y.mean())).sum()) / square) if square > 0 else 0.0
    return centred * factor + y.mean()


@dataclass(frozen=True)
class StepChange:
    """What would change in one step.

    Attributes:
        step: its number.
        responses: how many were kept.
        complete: False where the step had more; whitening then uses the statistics of those that were kept.
        prompts: those with two samples or more; what follows on ranking is over them.
        total_before: mean total reward of a response, KL aside.
        total_now: the same under the new reward.
        tau: mean over prompts of Kendall's τ_b between the two rankings of a prompt's samples; over those prompts where
            both reward tell some samples apart; None where there is none.
        best_changes: share of prompts whose best sample is not the best any more.
        advantage_correlation: Pearson's r of the token advantages; None where one of them does not vary.
        advantage_flips: share of tokens whose advantage changes sign.
        shares_before: by component Cov(its weighted reward, total) / Var(total) over responses; they add up to 1, and
            one below 0 works against the others. Empty where totals do not vary.
        shares_now: the same under the new reward.
    """

    step: int
    responses: int
    complete: bool
    prompts: int
    total_before: float
    total_now: float
    tau: float | None
    best_changes: float | None
    advantage_correlation: float | None
    advantage_flips: float
    shares_before: Mapping[str, float]
    shares_now: Mapping[str, float]


@dataclass(frozen=True)
class NewBest:
    """A prompt whose best sample changes.

    Attributes:
        step: the step.
        id: the prompt's id.
        prompt: its text.
        gain: how much more the new best earns under the new reward than the old one does.
        before: the old best: `sample`, `response`, `total_before`, `total_now`.
        now: the new best.
    """

    step: int
    id: str
    prompt: str
    gain: float
    before: Mapping[str, object]
    now: Mapping[str, object]


def compare(kept: KeptStep, before: Experience, now: Experience) -> tuple[StepChange, list[NewBest]]:
    """What changes from one reward to another, and the prompts whose best sample does, in the order of the step."""
    totals_before, totals_now = _totals(before), _totals(now)
    taus: list[float] = []
    changed: list[NewBest] = []
    known = _known(kept)
    groups = [rows for rows in _rows_by_prompt(kept, known).values() if len(rows) > 1]
    for rows in groups:
        old, new = [totals_before[row] for row in rows], [totals_now[row] for row in rows]
        tau = kendall_tau_b(old, new, TIE)
        if tau is not None:
            taus.append(tau)
        first, then = rows[best_sample(old)], rows[best_sample(new)]
        if totals_now[then] - totals_now[first] > TIE:
            changed.append(_new_best(kept, first, then, totals_before, totals_now))
    mask = kept.rollout.response_mask.bool()
    a, b = before.advantages[mask], now.advantages[mask]
    change = StepChange(
        step=kept.step,
        responses=len(totals_now),
        complete=kept.complete,
        prompts=len(groups),
        total_before=fmean([totals_before[row] for row in known] or [0.0]),
        total_now=fmean([totals_now[row] for row in known] or [0.0]),
        tau=fmean(taus) if taus else None,
        best_changes=len(changed) / len(groups) if groups else None,
        advantage_correlation=correlation(a.tolist(), b.tolist()),
        advantage_flips=float((a * b < 0).double().mean()),
        shares_before=variance_shares(before),
        shares_now=variance_shares(now),
    )
    return change, changed


def variance_shares(experience: Experience) -> dict[str, float]:
    """By component Cov(its weighted reward of a response, the total) / Var(total); empty where totals do not vary."""
    scored = experience.trace.scored
    rows = slice(None) if scored is None else scored
    parts = {
        name: part.weighted[rows].double().sum(dim=1).tolist() for name, part in experience.trace.components.items()
    }
    totals = [sum(column) for column in zip(*parts.values(), strict=True)]
    variance = covariance(totals, totals)
    if variance <= TIE**2:
        return {}
    return {name: covariance(values, totals) / variance for name, values in parts.items()}


def _totals(experience: Experience) -> list[float]:
    totals: list[float] = experience.trace.total.double().sum(dim=1).tolist()
    return totals


def _known(kept: KeptStep) -> list[int]:
    """The responses that every component has a score of."""
    unscored = unscored_rows(kept.raw.values())
    return [row for row in range(len(kept.rollout.texts)) if row not in unscored]


def _rows_by_prompt(kept: KeptStep, known: Sequence[int]) -> dict[str, list[int]]:
    prompts = kept.rollout.row_prompts()
    rows: dict[str, list[int]] = {}
    for row in known:
        rows.setdefault(prompts[row].id, []).append(row)
    return rows


def _new_best(
    kept: KeptStep, first: int, then: int, totals_before: Sequence[float], totals_now: Sequence[float]
) -> NewBest:
    def scored_sample(row: int) -> dict[str, object]:
        return {
            "sample": int(kept.rollout.sample_index[row]),
            "response": kept.rollout.texts[row],
            "total_before": totals_before[row],
            "total_now": totals_now[row],
        }

    prompt = kept.rollout.row_prompts()[first]
    return NewBest(
        kept.step,
        prompt.id,
        prompt.text,
        totals_now[then] - totals_now[first],
        scored_sample(first),
        scored_sample(then),
    )
