"""What is told of a training step: responses, rewards by segment, alignment, KL, values and explained variance."""

from __future__ import annotations

import torch

from finegrained_rlhf.core.records import Experience, RewardTrace, Rollout
from finegrained_rlhf.inference.measure import StepMetrics, repetition
from finegrained_rlhf.models.policy import Policy
from finegrained_rlhf.rewards.placement import EMPTY
from finegrained_rlhf.rl.kl import log_ratio_kl
from finegrained_rlhf.rl.stats import Reduce, masked_mean, masked_var
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.text.alignment import AlignmentAudit, Decoder, audit_alignment
from finegrained_rlhf.training.importance import ImportanceMetrics
from finegrained_rlhf.training.suppression import describe_suppression

_AUDITED = 4


def describe_responses(rollout: Rollout, trace: RewardTrace, policy: Policy, metrics: StepMetrics) -> None:
    """Add rewards (summed over each response), lengths, share that ended, repetition and alignment to `metrics`.

    Rewards are means over the responses that have a score; `outcome/NAME/…` says of components that may have none how
    many responses of the step, over all processes, had which outcome, and how many are `unscored`.

    The alignment is that of the first four responses of each process, decoded anew token by token.
    """
    mask = rollout.response_mask
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
    rollout, mask = experience.rollout, experience.rollout.response_mask
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
    largest = _importance(experience, metrics, processes)
    describe_suppression(experience, metrics)
    means = metrics.reduce(processes)
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
    measured.add(weights, rollout.logprobs, rollout.sampler_logprobs, rollout.response_mask)
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
            placed = zip(component.tokens[:rows], lengths, strict=True)
            audit += AlignmentAudit(len(lengths), sum(set(tokens) <= {length - 1} for tokens, length in placed))
        else:
            spans = [tuple(span for span in row if span != EMPTY) for row in component.scores.spans[:rows]]
            audit += audit_alignment(
                rollout.texts[:rows], rollout.token_ends[:rows], spans, tokenizer=tokenizer, ids=ids
            )
    return audit
