"""What a reward gives answers that nobody has to learn, beside the policy's, at every validation (`reward.watch`)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

import torch

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.files import read_jsonl
from finegrained_rlhf.core.records import Prompt, Rollout, SegmentScores, unscored_rows
from finegrained_rlhf.inference.measure import StepMetrics
from finegrained_rlhf.rewards.composition import RewardComposer
from finegrained_rlhf.rewards.config import WatchedAnswer
from finegrained_rlhf.text.trivial import best_sentence, cut_lead

if TYPE_CHECKING:
    from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
    from finegrained_rlhf.runtime.processes import Processes

logger = logging.getLogger(__name__)

_SCORED_AT_ONCE = 64
_ROUNDING = 1e-6  # sums of equal values in another order
_MEANINGS: Mapping[WatchedAnswer, str] = {
    "cut_lead": "the first words of the first passage, cut off",
    "best_sentence": "the passage sentence nearest to the question",
    "gold": "the reference answer",
}


def watched_answer(name: WatchedAnswer, prompt: Prompt) -> str | None:
    """An answer to a prompt that nobody has to learn; None where the prompt lacks what it is made of."""
    passages = [passage.text for passage in prompt.metadata.get("passages") or ()]
    if name == "gold":
        return next(iter(prompt.metadata.get("references") or ()), None)
    return cut_lead(passages) if name == "cut_lead" else best_sentence(prompt.metadata.get("question") or "", passages)


class RewardWatch:
    """Scores answers that nobody has to learn on the validation prompts, and warns when they overtake the policy's.

    Totals are those of the components under the configured weights, penalties for form left out: `watch/NAME/total` of
    an answer, `watch/NAME/policy` of the policy's to the same prompts, `watch/NAME/ahead` the share of these prompts
    in which the answer has more than the policy's (their mean, of several). Answers do not change, and validations
    standardise alike throughout a run, so each is scored once in a process.

    Args:
        composer: of the run.
        prompts: this run's validation prompts, all of them in every process.
        run: of the run; the last line of its `eval.jsonl` is the validation before.
        processes: of the run; the main process warns.

    Raises:
        ConfigError: there is no validation prompt, or none has what an answer is made of.
    """

    def __init__(
        self, composer: RewardComposer, prompts: Sequence[Prompt], run: RunDirectory, processes: Processes
    ) -> None:
        self._composer, self._run, self._processes = composer, run, processes
        self._names = composer.config.watch
        self._totals: dict[str, dict[str, float]] = {}
        for name in self._names:
            if all(watched_answer(name, prompt) is None for prompt in prompts):
                lacking = "a reference" if name == "gold" else "passages"
                raise ConfigError(
                    f"reward.watch: {name} is {_MEANINGS[name]}, and none of the {len(prompts)} validation prompts has "
                    f"{lacking}; leave it away"
                )

    def add(self, answered: Sequence[tuple[Rollout, Mapping[str, SegmentScores]]], metrics: StepMetrics) -> None:
        """Add the metrics of this process's share; moments of normalised components must be fixed before.

        Args:
            answered: batches of responses with their scores by component.
            metrics: of the validation.
        """
        if not self._names:
            return
        prompts = {prompt.id: prompt for rollout, _ in answered for prompt in rollout.prompts}
        policy: dict[str, list[float]] = {}
        for rollout, scores in answered:
            for prompt, total in zip(rollout.row_prompts(), self._known_totals(scores), strict=True):
                if total is not None:
                    policy.setdefault(prompt.id, []).append(total)
        for name in self._names:
            if name not in self._totals:
                self._totals[name] = self._score(name, list(prompts.values()))
            both = [(total, fmean(policy[id])) for id, total in self._totals[name].items() if id in policy]
            metrics.add(f"watch/{name}/total", sum(total for total, _ in both), len(both))
            metrics.add(f"watch/{name}/policy", sum(own for _, own in both), len(both))
            metrics.add(f"watch/{name}/ahead", sum(total > own + _ROUNDING for total, own in both), len(both))

    @torch.no_grad()
    def _score(self, name: WatchedAnswer, prompts: Sequence[Prompt]) -> dict[str, float]:
        """The total of the answer to each prompt that has one, by id, where every component has a score of it."""
        answers = [(prompt, text) for prompt in prompts if (text := watched_answer(name, prompt)) is not None]
        known: dict[str, float] = {}
        for start in range(0, len(answers), _SCORED_AT_ONCE):
            asked, texts = zip(*answers[start : start + _SCORED_AT_ONCE], strict=True)
            with self._processes.autocast():
                totals = self._known_totals(self._composer.score(asked, texts))
            known |= {prompt.id: total for prompt, total in zip(asked, totals, strict=True) if total is not None}
        return known

    def _known_totals(self, scores: Mapping[str, SegmentScores]) -> list[float | None]:
        without = unscored_rows(scores.values())
        return [None if row in without else total for row, total in enumerate(self._composer.totals(scores))]

    def warn(self, now: Mapping[str, float]) -> None:
        """Say which answers have overtaken the policy's since the validation before, and which have fallen back."""
        if not self._names or not self._processes.is_main:
            return
        before = [*read_jsonl(self._run.eval)][-1:] if self._run.eval.is_file() else []
        for name in self._names:
            ahead, was_ahead = (_is_ahead(name, metrics) for metrics in (now, *(before or [{}])))
            if ahead == was_ahead:
                continue
            bought = ahead and name != "gold"  # people's answers should be ahead
            logger.log(
                logging.WARNING if bought else logging.INFO,
                "watch: by the reward %s, %s, %s the policy's answers: %.3f against %.3f a response, more in %.0f%% of "
                "the prompts%s",
                name,
                _MEANINGS[name],
                "is now above" if ahead else "has fallen back behind",
                now[f"watch/{name}/total"],
                now[f"watch/{name}/policy"],
                100 * now[f"watch/{name}/ahead"],
                "; a policy can earn that by copying (finegrained stress-test attacks a reward)" if bought else "",
            )


def _is_ahead(name: str, metrics: Mapping[str, float]) -> bool:
    return metrics.get(f"watch/{name}/total", 0.0) > metrics.get(f"watch/{name}/policy", 0.0) + _ROUNDING
