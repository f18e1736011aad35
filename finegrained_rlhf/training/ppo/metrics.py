"""What is told and kept of a training step.

Told are responses, rewards by segment, alignment, KL, values, explained variance, and components whose satisfied
segments are trained away. An advantage is what a token earns beyond a baseline, over all components. Where one
component outweighs another, or a baseline is too high, the segments that satisfy the other get advantages at or below 0
most of the time: its reward is in the sum, and yet nobody learns it. That warning is a reason to look at weights, no
proof. Kept are the responses as rows of a file: enough to colour them, and to weigh their rewards anew later.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor

from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import write_jsonl
from finegrained_rlhf.core.markers import at_least
from finegrained_rlhf.core.records import ComponentTrace, Experience, RewardTrace, Rollout
from finegrained_rlhf.inference.measure import StepMetrics, repetition
from finegrained_rlhf.models.policy import Policy
from finegrained_rlhf.rewards.penalties import PENALTIES
from finegrained_rlhf.rewards.placement import EMPTY
from finegrained_rlhf.rl.kl import log_ratio_kl
from finegrained_rlhf.rl.stats import Reduce, masked_mean, masked_var
from finegrained_rlhf.runtime.directory.samples import IMPORTANCE, SampleRecord, SampleSegment, SampleTokens
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.text.alignment import AlignmentAudit, Decoder, audit_alignment
from finegrained_rlhf.training.importance import ImportanceMetrics
from finegrained_rlhf.training.ppo.spread import describe_groups

logger = logging.getLogger(__name__)

WINDOW = 20
"""Training steps that are looked at together."""
ENOUGH = 50
"""Satisfied segments within the window from which on a share of them means something."""


def describe_suppression(experience: Experience, metrics: StepMetrics) -> None:
    """Add two numbers a component: its satisfied segments, and the share of them that is trained away.

    `satisfied/NAME` is the mean number of segments a response that earn more than 0 after their weight;
    `suppressed/NAME` the share of those whose tokens have a mean advantage, over all components, of 0 or less. The
    tokens of a segment are those after the component's segment before it. A response whose advantages are all 0, since
    no response to its prompt was better than another, teaches nothing and counts in neither.
    """
    rows = experience.rollout.response_mask.shape[0]
    advantages = experience.advantages.double()
    before = advantages.cumsum(dim=1) - advantages
    teaching = (experience.advantages != 0).any(dim=1).tolist()
    for name, component in experience.trace.components.items():
        satisfied = suppressed = 0
        for row in range(rows):
            if teaching[row]:
                for advantage in _of_satisfied(component, row, before, advantages):
                    satisfied += 1
                    suppressed += advantage <= 0
        metrics.add(f"satisfied/{name}", satisfied, rows)
        metrics.add(f"suppressed/{name}", suppressed, satisfied)


def _of_satisfied(component: ComponentTrace, row: int, before: Tensor, advantages: Tensor) -> list[float]:
    """The sum of the advantages of each satisfied segment's tokens; of its sign alone use is made."""
    tokens = component.paid_tokens(row)
    if not tokens:
        return []
    earned = component.weighted[row].tolist()
    starts, sums = before[row].tolist(), (before[row] + advantages[row]).tolist()
    firsts = [0, *(token + 1 for token in tokens[:-1])]
    return [sums[last] - starts[first] for first, last in zip(firsts, tokens, strict=True) if earned[last] > 0]


class SuppressionWatch:
    """Warns once in a run of each suppressed component, by the metrics of its latest steps.

    Args:
        processes: of the run; the main process warns.
    """

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._steps: deque[Mapping[str, float]] = deque(maxlen=WINDOW)
        self._warned: set[str] = set()

    def warn(self, metrics: Mapping[str, float]) -> None:
        """Take in the metrics of a training step, and log what its window says."""
        self._steps.append(metrics)
        for name, (share, count) in suppressed_components(list(self._steps)).items():
            if name not in self._warned and self._processes.is_main:
                self._warned.add(name)
                logger.warning(
                    "suppressed component? %s: %.0f%% of %.0f segments that earned a positive reward in the last %d "
                    "steps got an advantage of 0 or less in total; see reward.weights.%s and the heat map of its share "
                    "in the advantages",
                    name,
                    100 * share,
                    count,
                    len(self._steps),
                    name,
                )


def suppressed_components(steps: Sequence[Mapping[str, float]]) -> dict[str, tuple[float, float]]:
    """Components of whose satisfied segments more than half were trained away, by more than chance.

    More than chance is two standard errors of a share of one half, 1 / √n of n segments. Penalties for form, which are
    never satisfied, are left out.

    Args:
        steps: metrics of training steps (`describe_suppression`), with `episodes_per_step`.

    Returns:
        The share that was trained away and the number of satisfied segments, by component.
    """
    names = {key.partition("/")[2] for step in steps for key in step if key.startswith("suppressed/")}
    suppressed = {}
    for name in sorted(names - set(PENALTIES)):
        counts = [step.get(f"satisfied/{name}", 0.0) * step["episodes_per_step"] for step in steps]
        total = sum(counts)
        lost = sum(n * step.get(f"suppressed/{name}", 0.0) for n, step in zip(counts, steps, strict=True))
        if total >= ENOUGH and lost / total > 0.5 + total**-0.5:
            suppressed[name] = (lost / total, total)
    return suppressed


_DIGITS = 6


@dataclass(frozen=True)
class KeptSamples(Settings):
    """Which responses of a run are written down with their rewards.

    Attributes:
        every: training steps from one file to the next.
        rows: at most so many responses of a step.
        of_validation: so many greedy responses of every validation.
    """

    every: Annotated[int, at_least(1)] = 10
    rows: Annotated[int, at_least(0)] = 64
    of_validation: Annotated[int, at_least(0)] = 16


def write_step_samples(path: Path, experience: Experience, rows: int, processes: Processes) -> None:
    """Write at most `rows` responses of a step, equally many of each process; every process must call this."""
    share = -(-rows // processes.count)
    gathered = processes.gather_objects(sample_rows(experience)[:share])
    if processes.is_main:
        write_jsonl(path, gathered[:rows])


def sample_rows(experience: Experience) -> list[dict[str, Any]]:
    """The lines of the file, one a response; the numbers of tokens are rounded to six digits."""
    return [sample.row() for sample in kept_samples(experience)]


def kept_samples(experience: Experience) -> list[SampleRecord]:
    """The responses of a step with their segments and the numbers of their tokens."""
    rollout = experience.rollout
    kl = log_ratio_kl(rollout.logprobs, experience.reference_logprobs, rollout.written)
    tensors = {"kl": kl, "value": experience.values, "reward": experience.rewards}
    if experience.shares or experience.values is not None:
        tensors["advantage"] = experience.advantages
    if experience.importance is not None:
        tensors[IMPORTANCE] = experience.importance.weights
    numbers = {name: _rounded(tensor) for name, tensor in tensors.items() if tensor is not None}
    shares = {name: _rounded(tensor) for name, tensor in experience.shares.items()}
    indices, lengths = rollout.sample_index.tolist(), rollout.lengths().tolist()
    masked = [False] * len(lengths) if experience.masked is None else experience.masked.tolist()
    return [
        SampleRecord(
            id=prompt.id,
            prompt=prompt.text,
            sample=indices[row],
            text=rollout.texts[row],
            segments=[
                segment
                for name, component in experience.trace.components.items()
                for segment in _segments(name, component, row)
            ],
            unscored=[
                name for name, component in experience.trace.components.items() if row in component.scores.unscored
            ],
            masked=masked[row],
            corrections={
                name: component.corrections[row]
                for name, component in experience.trace.components.items()
                if component.corrections is not None
            },
            tokens=SampleTokens(
                list(rollout.token_ends[row]),
                {name: table[row][: lengths[row]] for name, table in numbers.items()},
                {name: table[row][: lengths[row]] for name, table in shares.items()},
            ),
        )
        for row, prompt in enumerate(rollout.row_prompts())
    ]


def _rounded(tensor: Tensor) -> list[list[float]]:
    return [[round(value, _DIGITS) for value in row] for row in tensor.float().tolist()]


def _segments(name: str, component: ComponentTrace, row: int) -> list[SampleSegment]:
    scores, weight = component.scores, component.weight_of(row)
    parts = (scores.spans[row], component.tokens[row], scores.values[row], component.normalised_values[row])
    return [
        SampleSegment(name, start, end, raw, weight * normalised, token, normalised)
        for (start, end), token, raw, normalised in zip(*parts, strict=True)
    ]


_AUDITED = 4


def describe_responses(rollout: Rollout, trace: RewardTrace, policy: Policy, metrics: StepMetrics) -> None:
    """Add rewards (summed over each response), lengths, share that ended, repetition and alignment to `metrics`.

    Rewards are means over the responses that have a score; `outcome/NAME/…` says of components that may have none how
    many responses of the step, over all processes, had which outcome, and how many are `unscored`. `reward/prefixes` is
    how many beginnings of a response were scored beside it, each component's by itself, where the reward reads any.

    The alignment is that of the first four responses of each process, decoded anew token by token.
    """
    mask = rollout.written
    rows = mask.shape[0]
    for name, component in trace.components.items():
        known = rows - len(component.scores.unscored)
        metrics.add(f"reward/{name}/raw", component.raw.sum(), known)
        metrics.add(f"reward/{name}/weighted", component.weighted.sum(), known)
        for counted, number in component.scores.counts.items():
            metrics.count(f"outcome/{name}/{counted}", number)
        if component.scores.counts:
            metrics.count(f"outcome/{name}/unscored", rows - known)
        if component.gate is not None:
            metrics.add(f"reward/{name}/open", sum(component.gate), rows)
        segments = sum(
            span != EMPTY or component.scores.whole_response for row in component.scores.spans for span in row
        )
        metrics.add(f"segments/{name}", segments, known)
    scored = trace.scored
    known = rows if scored is None else int(scored.sum())
    metrics.add("reward/total", trace.total.sum() if scored is None else trace.total[scored].sum(), known)
    if trace.prefixes is not None:
        metrics.add("reward/prefixes", trace.prefixes, rows)
    if rollout.turns:
        metrics.add("turns", sum(len(talk.tokens) for talk in rollout.turns), rows)
        metrics.count("outcome/environment/failed", sum(talk.failed for talk in rollout.turns))
    metrics.add("response_length", mask.sum(), rows)
    metrics.add("eos_rate", rollout.ended(policy.eos_ids).sum(), rows)
    metrics.add("repetition", repetition(rollout.response_ids, mask).sum(), rows)
    audit = audit_trace(rollout, trace, policy.tokenizer, _AUDITED)
    metrics.add("alignment", audit.exact, audit.segments)
    metrics.add("alignment_inside", audit.inside, audit.segments)


def step_metrics(
    experience: Experience,
    policy: Policy,
    metrics: StepMetrics,
    processes: Processes,
    *,
    step: int,
    beta: float,
    lr: float,
) -> dict[str, float]:
    """All metrics of a step but its seconds; every process must call this, and all get the same.

    Args:
        experience: of this process, R responses; may be empty.
        policy: whose responses they are.
        metrics: what the update measured.
        processes: of the run.
        step: the training step, from 1.
        beta: β that the step was rewarded with.
        lr: its learning rate.
    """
    rollout, mask = experience.rollout, experience.rollout.written
    episodes, tokens = mask.shape[0], mask.sum()
    log_ratio = log_ratio_kl(rollout.logprobs, experience.reference_logprobs, mask)
    metrics.add("kl", (log_ratio if experience.kl is None else experience.kl).sum(), episodes)
    if experience.kl is not None:
        metrics.add("log_ratio", log_ratio.sum(), episodes)
    if experience.values is not None and experience.returns is not None:
        learnt = experience.mask.sum()
        metrics.add("return", experience.returns.sum(), learnt)
        metrics.add("value", experience.values.sum(), learnt)
    describe_responses(rollout, experience.trace, policy, metrics)
    metrics.add("truncated", episodes - rollout.ended(policy.eos_ids).sum(), episodes)
    describe_groups(experience, metrics)
    largest = _importance(experience, metrics, processes)
    describe_suppression(experience, metrics)
    means = metrics.reduce(processes)
    if square := means.pop("ratio_square", 0.0):  # 0 where nothing was learnt
        means["effective_sample_size"] = means["ratio"] ** 2 / square
    totals = processes.sum_(torch.tensor([float(episodes), float(tokens)], dtype=torch.float64)).tolist()
    return {
        "episodes": step * totals[0],
        "episodes_per_step": totals[0],
        "processes": processes.count,
        "kl": means.pop("kl"),
        "beta": beta,
        **means,
        **{f"reward/{name}/weight": component.weight for name, component in experience.trace.components.items()},
        **experience.trace.metrics,
        **largest,
        **({} if experience.values is None else {"explained_variance": explained_variance(experience, processes.sum_)}),
        "lr": lr,
        "response_tokens": totals[1],
    }


def _importance(experience: Experience, metrics: StepMetrics, processes: Processes) -> dict[str, float]:
    """Add importance weights, where there are any, to `metrics`; what is not a mean over processes is returned."""
    rollout, weights = experience.rollout, experience.importance
    if weights is None or rollout.sampler_logprobs is None:
        return {}
    measured = ImportanceMetrics(metrics)
    measured.add(weights, rollout.logprobs, rollout.sampler_logprobs, rollout.written)
    return measured.largest(processes)


def explained_variance(experience: Experience, reduce: Reduce) -> float:
    """1 − Var(G − V) / Var(G) over the response tokens of all processes; 0 where the returns do not vary."""
    assert experience.values is not None and experience.returns is not None
    mask, returns = experience.mask, experience.returns
    error = returns - experience.values
    of_error = masked_var(error, mask, masked_mean(error, mask, reduce), reduce)
    of_returns = masked_var(returns, mask, masked_mean(returns, mask, reduce), reduce)
    return float(1.0 - of_error / of_returns) if float(of_returns) > 0 else 0.0


def audit_trace(rollout: Rollout, trace: RewardTrace, tokenizer: Decoder, rows: int | None = None) -> AlignmentAudit:
    """How many of the segments that were scored end at exactly one token; a whole response ends at its last one.

    Args:
        rollout: R responses.
        trace: their rewards.
        tokenizer: of the policy; decodes the sampled ids again.
        rows: look at the first so many responses; None looks at all.
    """
    lengths = rollout.lengths().tolist()[:rows]
    ids = [row[:length] for row, length in zip(rollout.response_ids[:rows].tolist(), lengths, strict=True)]
    audit = AlignmentAudit(0, 0)
    for component in trace.components.values():
        if component.scores.whole_response:
            placed = zip(component.tokens[:rows], rollout.turn_ends(), strict=False)
            audit += AlignmentAudit(len(lengths), sum(set(tokens) <= set(ends) for tokens, ends in placed))
        else:
            spans = [tuple(span for span in row if span != EMPTY) for row in component.scores.spans[:rows]]
            audit += audit_alignment(
                rollout.texts[:rows], rollout.token_ends[:rows], spans, tokenizer=tokenizer, ids=ids
            )
    return audit
