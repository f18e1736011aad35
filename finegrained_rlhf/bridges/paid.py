"""What a response is paid, as it travels to another process or through another trainer, and the advantages it gives.

Some engines pass on one number a response, or their sums by token. Advantages by component and segment need more: the
tokens at which each component pays, and how much. That is a small mapping of plain numbers, which JSON can hold.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.records import ComponentTrace, Prompt, RewardTrace, Rollout, Sample, SegmentScores
from finegrained_rlhf.training.ppo.advantages import AdvantageEstimator, Estimate, RewardedRollout, unit_rewards
from finegrained_rlhf.training.ppo.config import KLConfig, PPOConfig

if TYPE_CHECKING:
    from torch import Tensor

Paid = Mapping[str, Mapping[str, Any]]
"""By component `weight`, `tokens` at which it pays and the `values` there before the weight; `tokens` is null where the
component has no score of the response."""
PAID = "fine_grained"
"""The name under which it travels, as JSON."""
LOSS = PPOConfig(kl=KLConfig(place="loss", measure="sampled"))
"""The settings that estimators read where another trainer updates the policy: its KL penalty is none of our rewards."""


def check_algorithm(algorithm: AdvantageEstimator, samples: int) -> None:
    """Refuse an estimator that cannot be used where another trainer updates the policy.

    Raises:
        ConfigError: it learns a value model, or needs more responses a prompt.
    """
    if algorithm.critic:
        raise ConfigError(
            f"{type(algorithm).__name__} learns a value model, which only our trainer has; expected GroupAdvantages "
            "(rloo, grpo, gdpo, … of conf/algorithm)"
        )
    algorithm.check(LOSS, samples)


def paid_of(trace: RewardTrace, row: int) -> dict[str, dict[str, Any]]:
    """What the response of one row is paid by every component; gates, places and normalisation are in it."""
    paid = {}
    for name, component in trace.components.items():
        tokens = component.paid_tokens(row)
        values = unit_rewards(component)[row]
        known = row not in component.scores.unscored
        paid[name] = {
            "weight": float(component.weight),
            "tokens": tokens if known else None,
            "values": [float(values[token]) for token in tokens] if known else None,
        }
    return paid


def read_paid(text: Any) -> Paid:
    """What was paid, from JSON.

    Raises:
        DataError: it is something else.
    """
    try:
        paid = json.loads(text)
        if all(set(part) == {"weight", "tokens", "values"} for part in paid.values()):
            return paid
    except (TypeError, ValueError, AttributeError):
        pass
    raise DataError(f"expected what VerlRewardManager.run_single gives, got {text!r:.80}", field=PAID)


def estimate_of_paid(
    paid: Sequence[Paid], mask: Tensor, groups: Sequence[Hashable], algorithm: AdvantageEstimator
) -> Estimate:
    """Advantages [R, T] of responses of which is known what they were paid.

    Args:
        paid: R mappings of the same components and weights.
        mask: int or bool [R, T], a prefix of ones in each row.
        groups: R marks, one a prompt; responses of a prompt need not be neighbours.
        algorithm: an estimator without a value model.

    Raises:
        DataError: not R of each, components or weights differ between responses, or something is paid at padding.
        ConfigError: the estimator learns a value model, or needs more responses a prompt.
    """
    import torch

    rows = len(mask)
    if not len(paid) == len(groups) == rows:
        raise DataError(f"{rows} responses need as many records of pay and groups, got {len(paid)} and {len(groups)}")
    numbers = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    index = torch.tensor([numbers[group] for group in groups], dtype=torch.long)
    check_algorithm(algorithm, int(index.bincount().min()) if rows else 2)
    real = mask.detach().cpu().long()
    weights = {name: part["weight"] for name, part in paid[0].items()} if paid else {}
    for row, own in enumerate(paid):
        if {name: part["weight"] for name, part in own.items()} != weights:
            raise DataError(f"expected the components and weights of the first response, {weights}", record=row)
    trace = _trace(paid, real, weights)
    rollout = _bare(real, index)
    found = algorithm.estimate(RewardedRollout(rollout, trace, None, None, trace.scored), LOSS, lambda sums: sums)
    return found


def _trace(paid: Sequence[Paid], mask: Tensor, weights: Mapping[str, float]) -> RewardTrace:
    import torch

    components = {}
    total = torch.zeros(mask.shape)
    lengths = mask.sum(dim=1).tolist()
    for name, weight in weights.items():
        unit, tokens, values, unscored = torch.zeros(mask.shape), [], [], set()
        for row, own in enumerate(paid):
            places, numbers = own[name]["tokens"], own[name]["values"]
            if places is None:
                unscored.add(row)
                places = numbers = ()
            if len(places) != len(numbers) or not all(0 <= place < lengths[row] for place in places):
                problem = f"expected a number at each of the {lengths[row]} tokens or fewer, got tokens {places}"
                raise DataError(problem, record=row, field=name)
            unit[row, list(places)] = torch.tensor(numbers, dtype=torch.float32)
            tokens.append(tuple(places))
            values.append(tuple(numbers))
        scores = SegmentScores([((0, 0),) * len(row) for row in values], values, unscored=frozenset(unscored))
        weighted = weight * unit
        components[name] = ComponentTrace(scores, weight, unit, unit, weighted, values, tokens)
        total = total + weighted
    return RewardTrace(components, total)


def _bare(mask: Tensor, groups: Tensor) -> Rollout:
    """A rollout of which nothing is known but its lengths and groups."""
    import torch

    rows = len(mask)
    none = torch.zeros(rows, dtype=torch.long)
    prompts = [Prompt(str(number), "", ()) for number in range(int(groups.max()) + 1 if rows else 0)]
    empty = torch.zeros((len(prompts), 1), dtype=torch.long)
    logprobs = torch.zeros(mask.shape)
    return Rollout(
        prompts, empty, empty, groups, none, none, (Sample(1),), mask, mask, logprobs, [""] * rows, [()] * rows
    )
