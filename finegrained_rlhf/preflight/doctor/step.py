"""Checks of one small training step: its responses, their rewards, KL and ratio before the update, the update itself.

Everything happens in the sample's run directory; the run's own is not touched.
"""

from __future__ import annotations

import gc
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch

from finegrained_rlhf.core.errors import AlignmentError, FineGrainedError
from finegrained_rlhf.core.records import RewardTrace, SegmentScores
from finegrained_rlhf.inference.measure import StepMetrics
from finegrained_rlhf.preflight.doctor.case import Case, Finding, explain
from finegrained_rlhf.preflight.doctor.machine import fits
from finegrained_rlhf.preflight.memory.preflight import plan_of
from finegrained_rlhf.rewards.composition import RewardComposer
from finegrained_rlhf.rewards.config import RewardConfig
from finegrained_rlhf.rollout.config import RolloutConfig
from finegrained_rlhf.rollout.vllm.servers import START, VLLMServer
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.text.alignment import AlignmentAudit
from finegrained_rlhf.training.checks import check_forward, largest_kl
from finegrained_rlhf.training.micro_batches import micro_batches
from finegrained_rlhf.training.order import items_of_step, number_occurrences
from finegrained_rlhf.training.ppo.experience import check_components_add_up
from finegrained_rlhf.training.ppo.job import TrainPPO
from finegrained_rlhf.training.ppo.metrics import audit_trace, describe_responses
from finegrained_rlhf.training.ppo.scoring import RolloutScorer
from finegrained_rlhf.training.ppo.update import token_statistics

_CUT_SHARE = 0.1
"""Share of responses cut at their length limit from which on the limit is doubted."""
_SOON_S = 5.0
"""Seconds within which a server must say which weights it has."""
_SHOWN = 60
"""Characters of a response that are shown."""
_RELATIVE, _ABSOLUTE = 1e-3, 1e-4
"""How far a metric of two processes may lie from that of one: the same sums in another order, and Adam divides by
gradients that may be small."""
_SHOWN_METRICS = ("loss/policy", "loss/value", "loss/kl", "gradient_norm")
_OF_SIGNS = ("clip_fraction/policy", "satisfied/", "suppressed/")
"""They count by the sign of an advantage. Where a prompt's responses are paid alike and compared with each other, that
is the sign of a rounding error."""
_OF_THE_UPDATE = ("loss/", "clip_fraction/", "ratio", "gradient_norm", "logprob_gap")


# Responses ----------------------------------------------------------------------------------------------------------


def responses(case: Case) -> Iterator[Finding]:
    """The policy answers the prompts of the sample: how many responses are empty, and how many were cut."""
    assert case.sample is not None
    if not fits(plan_of(case.sample, case.processes), case.processes):
        yield Finding("fail", "not even the sample's step fits into memory", "doctor.prompts=1, or the mends of memory")
        return
    problem = unreachable(case.sample.rollout)
    if problem is not None:
        yield problem
        return
    trainer = case.trainer = case.sample.build(case.processes, RunDirectory(case.sample.output_dir).create())
    sampling = trainer.rollout_config
    prompts = number_occurrences(items_of_step(trainer.data.train, 1, sampling.prompts_per_step, trainer.seed))
    rollout = case.rollout = trainer.sampler.draw(prompts, [sampling.decoding()], step=1)
    unpaid, metrics = RewardTrace({}, torch.zeros_like(rollout.logprobs)), StepMetrics()
    describe_responses(rollout, unpaid, trainer.models.policy, metrics)
    means, rows = metrics.reduce(case.processes), len(rollout.texts)
    empty, cut = sum(not text.strip() for text in rollout.texts), 1.0 - means["eos_rate"]
    example = json.dumps(max(rollout.texts, key=len)[:_SHOWN], ensure_ascii=False)
    turns = f" in {means['turns']:.1f} turns" if rollout.turns else ""
    what = (
        f"{rows} to {len(prompts)} prompts, {means['response_length']:.1f} tokens{turns} on average, {empty} empty, "
        f"{cut:.0%} cut at {sampling.max_new_tokens} tokens; for example {example}"
    )
    if empty == rows:
        yield Finding("fail", what, "policy.path: a policy that answers, for example one from finegrained train-sft")
    elif empty:
        yield Finding("warn", what, "policy.path: one of finegrained train-sft; finegrained generate shows its answers")
    elif cut > _CUT_SHARE:
        yield Finding("warn", what, "a larger rollout.max_new_tokens, or a policy.path that ends its answers")
    else:
        yield Finding("pass", what)


def unreachable(rollout: RolloutConfig) -> Finding | None:
    """The first of vLLM's servers that does not answer soon; None where all do, or none is asked."""
    for url in rollout.vllm.servers():
        try:
            VLLMServer(url, replace(rollout.vllm, timeout_s=_SOON_S, budget_s=_SOON_S)).version()
        except FineGrainedError as error:
            return Finding("fail", str(error), f"start it with: {START}; or rollout.vllm.urls, rollout.engine=auto")
    return None


# Rewards ------------------------------------------------------------------------------------------------------------


def _alone(reward: RewardConfig, name: str) -> RewardComposer:
    """A composer of one component, without penalties for form."""
    component, settings = {name: reward.components[name]}, {k: v for k, v in reward.settings.items() if k == name}
    alone = RewardConfig(component, {name: 1.0}, settings)
    return RewardComposer(alone)


@torch.no_grad()
def rewards(case: Case) -> Iterator[Finding]:
    """Each component scores the responses with finite numbers that are not all the same."""
    assert case.sample is not None and case.rollout is not None
    rollout = case.rollout
    for name in case.sample.reward.components:
        try:
            with case.processes.autocast():
                composer = _alone(case.sample.reward, name)
                case.scores |= composer.score(rollout.row_prompts(), rollout.texts, rollout.turns)
        except Exception as error:
            remedy = f"reward.components.{name}: docs/extending.md says what a scorer gives"
            yield Finding("fail", f"{name}: {explain(error)}", remedy)
            continue
        yield _values(name, case.scores[name])


def _values(name: str, scores: SegmentScores) -> Finding:
    values = [value for row in scores.values for value in row]
    unit = "responses" if scores.whole_response else "segments"
    if not values:
        return Finding("warn", f"{name}: no segment to score", f"reward.components.{name}: how it cuts responses")
    what = f"{name}: {len(values)} {unit}, mean {sum(values) / len(values):.3f}, {min(values):.3g} to {max(values):.3g}"
    if len(values) > 1 and min(values) == max(values):
        remedy = f"more doctor.prompts; if it stays so, reward.components.{name} tells the policy nothing"
        return Finding("warn", f"{what}: constant", remedy)
    return Finding("pass", what)


def alignment(case: Case) -> Iterator[Finding]:
    """Every segment ends at exactly one token, and the weighted components add up to the trained reward."""
    assert case.sample is not None and case.rollout is not None and case.trainer is not None
    audit, broken = AlignmentAudit(0, 0), False
    for name, scores in case.scores.items():
        remedy = f"reward.components.{name}: spans (start, end) inside the response, end exclusive, none of them empty"
        try:
            trace = _alone(case.sample.reward, name).compose(case.rollout, {name: scores})
        except FineGrainedError as error:
            broken = True
            where = remedy if isinstance(error, AlignmentError) else f"reward.settings.{name}: as the message says"
            yield Finding("fail", f"{name}: {error}", where)
            continue
        audited = audit_trace(case.rollout, trace, case.trainer.models.policy.tokenizer)
        audit += audited
        if audited.exact != audited.segments:
            broken = True
            yield Finding("fail", f"{name}: {audited}", remedy)
    if broken:
        return
    eos_ids = case.trainer.models.policy.eos_ids
    every_component = RewardComposer(case.sample.reward, eos_ids=eos_ids).compose(case.rollout, case.scores)
    check_components_add_up(every_component)
    yield Finding("pass", f"{audit}; the weighted components add up to the trained reward")


# The update ---------------------------------------------------------------------------------------------------------


def start(case: Case) -> Iterator[Finding]:
    """The policy is what its model's own forward computes, its reference (KL 0), and every probability ratio is 1."""
    assert case.trainer is not None and case.rollout is not None
    trainer, processes = case.trainer, case.processes
    ppo = trainer.config
    counted = trainer.models.policy.pass_tokens
    batches = micro_batches(case.rollout, ppo.micro_batch_prompts, ppo.micro_batch_tokens, counted)
    scored = RolloutScorer(trainer.models, processes, trainer.rollout_config.logprobs).score(case.rollout, batches)
    allowed = trainer.tolerance(scored.rollout)
    kl, ratio = largest_kl(scored.rollout, scored.reference), 0.0
    for batch in batches:
        with processes.autocast():  # with gradients, as in the update
            now = token_statistics(trainer.models.policy, trainer.models.value, batch).logprobs.detach()
        gap = ((now - batch.cut(scored.rollout.logprobs)) * batch.mask).abs().nan_to_num(nan=math.inf)
        ratio = max(ratio, float(gap.max()))
    what = f"largest |log π − log π_ref| {kl:.1e}, largest |log ratio| {ratio:.1e} (allowed {allowed:.0e})"
    if max(kl, ratio) > allowed:
        yield Finding("fail", what, "rollout.logprobs=update, or processes.precision=fp32")
        return
    forward = check_forward(trainer.models.policy, trainer.data.train, processes)
    yield Finding("pass", f"{what}; log-probabilities are model.forward's to {forward:.1e}")


def training_step(case: Case) -> Iterator[Finding]:
    """One training step runs, everything it measures is finite, and there is a gradient."""
    assert case.trainer is not None and case.sample is not None
    try:
        case.metrics = case.trainer.train_step(1)
    finally:
        _free(case)
    odd = [name for name, value in case.metrics.items() if not math.isfinite(value)]
    norm = case.metrics["gradient_norm"]
    what = ", ".join(f"{name} {case.metrics[name]:.3g}" for name in _SHOWN_METRICS if name in case.metrics)
    what += f", {case.metrics['time/total_s']:.1f} s for {case.metrics['episodes_per_step']:.0f} responses"
    if odd:
        yield Finding("fail", f"not finite: {', '.join(odd)}; {what}", "processes.precision=fp32; a lower optimizer.lr")
    elif norm <= 0 and not case.sample.algorithm.critic and any(case.sample.reward.all_weights.values()):
        alike = "no gradient: all responses to a prompt were paid alike, so that comparing them teaches nothing"
        yield Finding("warn", f"{alike}; {what}", "rollout.samples_per_prompt; or more prompts, doctor.prompts=null")
    elif norm <= 0:
        yield Finding("fail", f"no gradient; {what}", "reward.weights, policy: what is rewarded, and what is trained")
    else:
        yield Finding("pass", what)


def _free(case: Case) -> None:
    """Give the models' memory back."""
    case.trainer = None
    gc.collect()
    if case.processes.device.type == "cuda":
        torch.cuda.empty_cache()


def two_processes(case: Case) -> Iterator[Finding]:
    """The same step with two processes gives the same metrics."""
    if case.launch is None:
        yield Finding("skipped", "doctor.two_processes=false")
        return
    assert case.sample is not None and case.exact is not None
    if case.processes.device.type == "cuda" and torch.cuda.device_count() < 2:
        yield Finding("skipped", "one GPU: two processes need two")
        return
    shared = 1 if case.processes.device.type == "cuda" else 2
    if not fits(plan_of(case.exact, case.processes), case.processes, copies=shared):
        yield Finding("skipped", "two processes do not fit into memory; doctor.prompts=1 needs less")
        return
    one = case.metrics
    if case.exact is not case.sample:
        one = _exact_step(case.exact, case)
    keep = case.exact.ppo.compat
    left_out: tuple[str, ...] = _OF_THE_UPDATE if keep.update_dropout or keep.micro_batch_sums else ()
    left_out += () if case.exact.algorithm.critic else _OF_SIGNS
    yield compare_metrics(one, case.launch(), left_out)


def _exact_step(job: TrainPPO, case: Case) -> dict[str, float]:
    """The metrics of the step in fp32, in which the order of sums does not change what is sampled."""
    case.trainer = job.build(Processes(job.processes), RunDirectory(job.output_dir).create())
    try:
        return case.trainer.train_step(1)
    finally:
        _free(case)


def compare_metrics(one: Mapping[str, float], two: Mapping[str, float], left_out: tuple[str, ...] = ()) -> Finding:
    """Whether the metrics of a step are those of the same step with another number of processes.

    Args:
        one: with one process.
        two: with two; may hold more keys.
        left_out: beginnings of names that may differ (the original code's choices depend on the number of processes).
    """
    names = [name for name in one if not name.startswith(("time/", "processes", *left_out))]
    missing = [name for name in names if name not in two]
    if missing:
        return Finding("fail", f"two processes do not tell {', '.join(missing)}", "report this as a bug")
    excess = {name: abs(one[name] - two[name]) / (_ABSOLUTE + _RELATIVE * abs(one[name])) for name in names}
    worst = max(names, key=lambda name: excess[name])
    if not excess[worst] <= 1:
        different = ", ".join(f"{n} {one[n]:.6g} and {two[n]:.6g}" for n in names if not excess[n] <= 1)
        name = worst.split("/")[1] if worst.startswith(("reward/", "segments/")) else ""
        remedy = "processes: the number of processes changes the result; run with one and report this as a bug"
        if name and name != "total":
            remedy = f"reward.components.{name}: score each response by itself, whatever is scored beside it"
        return Finding("fail", f"with one process and with two: {different}", remedy)
    largest = f"{abs(one[worst] - two[worst]):.1e} ({worst})"
    return Finding("pass", f"{len(names)} metrics of the step are those of one process; the largest gap is {largest}")
