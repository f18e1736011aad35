"""What an evaluation measures: greedy answers, or answers from a file, against references, reward models and an oracle.

Every example is measured exactly once, whatever the number of processes: each process measures its share, the single
results travel, and every mean is taken over all of them. Scorers and oracles are taken by their interfaces; no file is
written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from finegrained_rlhf.core.records import Prompt, SegmentScores, unscored_rows
from finegrained_rlhf.inference.best_of import BestOf
from finegrained_rlhf.inference.config import ResponseMonitor, oracle_rates
from finegrained_rlhf.inference.generator import Answering, PolicyGenerator, Response, respond
from finegrained_rlhf.rewards.checks import error_free_from
from finegrained_rlhf.rewards.composition import RewardComposer
from finegrained_rlhf.rewards.placement import EMPTY
from finegrained_rlhf.runtime.console import ProgressBar
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.text.segmentation import DEFAULT_SEGMENTER, SpacySegmenter

_SCORED_AT_ONCE = 64


@dataclass(frozen=True)
class ComponentScores:
    """What one reward component said of one response.

    Attributes:
        spans: (start, end) character offsets, end exclusive.
        values: one a span, unweighted.
        whole_response: the value belongs to the response as a whole.
        scored: False where the component has no score of the response.
    """

    spans: tuple[tuple[int, int], ...]
    values: tuple[float, ...]
    whole_response: bool
    scored: bool = True


@dataclass(frozen=True)
class EvaluatedResponse:
    """One answer with all that was measured of it.

    Attributes:
        prompt: what was asked.
        response: the answer.
        tokens: its length, the end of sequence not counted; None where no tokenizer is known.
        finished: the policy ended it within the limit of tokens; None where that is not known.
        components: by name of the reward component.
        counts: (found, of how many) by name of the oracle's rate.
        rouge_lsum: against its references, in [0, 1]; None of a prompt without one (`with_rouge_lsum`).
    """

    prompt: Prompt
    response: str
    tokens: int | None = None
    finished: bool | None = None
    components: Mapping[str, ComponentScores] = field(default_factory=dict)
    counts: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    rouge_lsum: float | None = None


@dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation, the same in every process.

    Attributes:
        metrics: see `summarise`.
        responses: every evaluated answer, in the order of the data.
    """

    metrics: Mapping[str, float]
    responses: Sequence[EvaluatedResponse]


def evaluate_policy(
    generator: PolicyGenerator,
    prompts: Sequence[Prompt],
    processes: Processes,
    answering: Answering | None = None,
    *,
    chooser: BestOf | None = None,
    composer: RewardComposer | None = None,
    oracle: ResponseMonitor | None = None,
    segmenter: str = DEFAULT_SEGMENTER,
) -> Evaluation:
    """Answer the prompts and measure the answers. Call it in every process, with the same prompts.

    Args:
        generator: the policy.
        prompts: what to answer, in every process all of them.
        processes: share the work.
        answering: greedy by default; with sampling only one sample of each prompt is measured.
        chooser: says which one; without it the first. Already set up.
        composer: reward components whose opinion counts; already set up.
        oracle: measures what the task knows to be true, for example FactWorld's error rates.
        segmenter: spaCy pipeline that cuts answers and references into sentences for RougeLSum.
    """
    answering = answering or Answering()
    share, groups = respond(generator, prompts, processes, answering)
    chosen = _chosen(share, groups, chooser, processes, answering.progress)
    answers = [(answer.text, answer.tokens, answer.finished) for answer in chosen]
    rows = _measure(share, answers, composer, oracle, processes, answering.progress)
    return _evaluation(rows, composer, processes, segmenter)


def _chosen(
    prompts: Sequence[Prompt],
    groups: Sequence[Sequence[Response]],
    chooser: BestOf | None,
    processes: Processes,
    progress: bool,
) -> list[Response]:
    if chooser is None:
        return [group[0] for group in groups]
    chosen: list[Response] = []
    with ProgressBar("choosing", len(prompts), "prompts", progress and processes.is_main) as bar:
        for start in range(0, len(prompts), _SCORED_AT_ONCE):
            part = slice(start, start + _SCORED_AT_ONCE)
            chosen += [choice.response for choice in chooser.choose(prompts[part], groups[part])]
            bar.update(len(prompts[part]))
    return chosen


def evaluate_responses(
    prompts: Sequence[Prompt],
    responses: Sequence[str],
    processes: Processes,
    *,
    composer: RewardComposer | None = None,
    oracle: ResponseMonitor | None = None,
    tokens: Sequence[int] | None = None,
    segmenter: str = DEFAULT_SEGMENTER,
    progress: bool = True,
) -> Evaluation:
    """Measure answers that exist. Call it in every process, with the same answers.

    Args:
        prompts: what was asked, one a response; their `input_ids` are not used.
        responses: the answers.
        processes: share the work.
        composer: reward components whose opinion counts; already set up.
        oracle: measures what the task knows to be true, for example FactWorld's error rates.
        tokens: length of each response; without it there is no `mean_tokens`.
        segmenter: see `evaluate_policy`.
        progress: show progress bars.
    """
    if len(prompts) != len(responses) or (tokens is not None and len(tokens) != len(responses)):
        raise ValueError(f"need one response and one length a prompt, got {len(responses)} for {len(prompts)} prompts")
    share = processes.share(len(prompts))
    answers = [(responses[i], None if tokens is None else tokens[i], None) for i in share]
    rows = _measure([prompts[i] for i in share], answers, composer, oracle, processes, progress)
    return _evaluation(rows, composer, processes, segmenter)


@torch.no_grad()
def _measure(
    prompts: Sequence[Prompt],
    answers: Sequence[tuple[str, int | None, bool | None]],
    composer: RewardComposer | None,
    oracle: ResponseMonitor | None,
    processes: Processes,
    progress: bool,
) -> list[EvaluatedResponse]:
    """This process's rows, of answers with their tokens and whether they are finished."""
    rows: list[EvaluatedResponse] = []
    shown = progress and processes.is_main and bool(composer or oracle)
    with ProgressBar("measuring", len(prompts), "answers", shown) as bar:
        for start in range(0, len(prompts), _SCORED_AT_ONCE):
            asked, given = prompts[start : start + _SCORED_AT_ONCE], answers[start : start + _SCORED_AT_ONCE]
            scores: Mapping[str, SegmentScores] = {}
            if composer is not None:
                with processes.autocast():
                    scores = composer.score(asked, [text for text, _, _ in given])
            for i, (prompt, (text, tokens, finished)) in enumerate(zip(asked, given, strict=True)):
                components = {
                    name: ComponentScores(
                        tuple(scored.spans[i]), tuple(scored.values[i]), scored.whole_response, i not in scored.unscored
                    )
                    for name, scored in scores.items()
                }
                counts = {} if oracle is None else dict(oracle.counts([prompt], [text]))
                rows.append(EvaluatedResponse(prompt, text, tokens, finished, components, counts))
            bar.update(len(asked))
    return rows


def _evaluation(
    rows: Sequence[EvaluatedResponse], composer: RewardComposer | None, processes: Processes, segmenter: str
) -> Evaluation:
    everything = processes.gather_objects(with_rouge_lsum(rows, segmenter))
    metrics = summarise(everything, composer) if processes.is_main else {}
    return Evaluation(processes.broadcast_object(metrics), everything)


def with_rouge_lsum(rows: Sequence[EvaluatedResponse], segmenter: str = DEFAULT_SEGMENTER) -> list[EvaluatedResponse]:
    """The same answers with `rouge_lsum` where their prompt's metadata has `references`.

    Args:
        rows: the answers.
        segmenter: spaCy pipeline that cuts answers and references into sentences.
    """
    from finegrained_rlhf.metrics.functions import rouge_lsum_scores

    known = [row for row in rows if row.prompt.metadata.get("references")]
    if not known:
        return list(rows)
    references = [list(row.prompt.metadata["references"]) for row in known]
    scores = iter(rouge_lsum_scores([row.response for row in known], references, SpacySegmenter(segmenter)))
    return [replace(row, rouge_lsum=next(scores)) if row.prompt.metadata.get("references") else row for row in rows]


def summarise(rows: Sequence[EvaluatedResponse], composer: RewardComposer | None = None) -> dict[str, float]:
    """The metrics of evaluated answers.

    - `rouge_lsum`, the mean, where every answer has it;
    - `mean_words` (between white space), `mean_tokens` and `finished_share` where they are known;
    - for every reward component of segments `reward/NAME/error_free_share`, the share of segments whose value the
      component declares to be free of errors (`error_free_from`, 0 by default), each segment counting once, and
      `reward/NAME/segments`, their number; for every component of whole responses `reward/NAME/mean_score`; for both
      `reward/NAME/raw`, the mean over responses of the sum of the values; where a component has no score of some
      responses, these are in none of its means, and `reward/NAME/unscored` is their number;
    - `reward/total`, the mean weighted sum over responses that every component has a score of, where no component is
      normalised during training;
    - the oracle's rates under their own names; 0 where there is nothing to count.
    """
    from finegrained_rlhf.metrics import finite_mean

    metrics: dict[str, float] = {}
    overlaps = [row.rouge_lsum for row in rows if row.rouge_lsum is not None]
    if overlaps and len(overlaps) == len(rows):
        metrics["rouge_lsum"] = finite_mean(overlaps)
    metrics["mean_words"] = finite_mean([len(row.response.split()) for row in rows])
    tokens = [row.tokens for row in rows if row.tokens is not None]
    if tokens and len(tokens) == len(rows):
        metrics["mean_tokens"] = finite_mean(tokens)
    finished = [row.finished for row in rows if row.finished is not None]
    if finished and len(finished) == len(rows):
        metrics["finished_share"] = finite_mean(finished)
    return metrics | _reward_metrics(rows, composer) | oracle_rates([row.counts for row in rows])


def _reward_metrics(rows: Sequence[EvaluatedResponse], composer: RewardComposer | None) -> dict[str, float]:
    from finegrained_rlhf.metrics import ErrorFreeShare, finite_mean

    if not rows or composer is None:
        return {}
    metrics: dict[str, float] = {}
    everything: dict[str, SegmentScores] = {}
    for name in composer.config.weights:
        every = [row.components[name] for row in rows]
        unscored = frozenset(number for number, scores in enumerate(every) if not scores.scored)
        everything[name] = SegmentScores(
            [scores.spans for scores in every], [scores.values for scores in every], every[0].whole_response, unscored
        )
        scored = [scores for scores in every if scores.scored]
        if unscored:
            metrics[f"reward/{name}/unscored"] = len(unscored)
        if not scored:
            continue
        metrics[f"reward/{name}/raw"] = finite_mean([sum(scores.values) for scores in scored])
        if scored[0].whole_response:
            values = [value for scores in scored for value in scores.values]
            metrics[f"reward/{name}/mean_score"] = finite_mean(values)
        else:
            least = error_free_from(composer.config.components[name])
            flags = [error_free_flags(scores, least) for scores in scored]
            result = ErrorFreeShare().compute(predictions=flags)
            metrics |= {f"reward/{name}/{key}": value for key, value in result.items()}
    if all(setting.normalisation == "none" for setting in composer.config.settings.values()):
        without = unscored_rows(everything.values())
        totals = [total for row, total in enumerate(composer.totals(everything)) if row not in without]
        metrics |= {"reward/total": finite_mean(totals)} if totals else {}
    return metrics


def error_free_flags(scores: ComponentScores, least: float) -> list[int]:
    """Whether each segment of a response is free of errors: has a value of at least `least`. None of an empty one."""
    return [int(value >= least) for span, value in zip(scores.spans, scores.values, strict=True) if span != EMPTY]
