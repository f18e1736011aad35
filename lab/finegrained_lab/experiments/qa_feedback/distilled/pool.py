"""A pool of samples, several of each question: what the best of n by a reward is worth, and what is taught of it.

The reward is a bottleneck's (`reward_model=bottleneck`): whole as its head of preferences weighs it, and each component
alone; or a model that learnt from preferences among whole answers alone. Beside them stand controls that anybody could
pay for, length and chance, and a bound, the gold answer's own facts.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from finegrained_lab.experiments.gate import CUT_LEAD, GOLD, SFT
from finegrained_lab.experiments.prompts import prompt_of
from finegrained_lab.experiments.qa_feedback.measures import Measured, is_finished, measured_answers
from finegrained_lab.experiments.qa_feedback.trivial import BEST_SENTENCE, GOLD_WORDS
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import InputFile, ModelName, OutputFile, Seed
from finegrained_rlhf.feedback.outputs import OutputRecord, read_outputs
from finegrained_rlhf.feedback.reading import write_examples
from finegrained_rlhf.feedback.records import QAExample
from finegrained_rlhf.text.trivial import best_sentence, cut_lead

if TYPE_CHECKING:
    from reward_models.bottleneck.model import Bottleneck

TOTAL = "bottleneck"
PARTS = ("relevance", "factuality", "completeness")
PREFERENCE, LENGTH, CHANCE, RECALL, JUDGE = "preference", "length", "chance", "gold recall", "judge"
CHOOSERS = (TOTAL, *PARTS, PREFERENCE, LENGTH, CHANCE)
MEASURES = ("facts/recalled", "facts/unsupported", "copied/share", "rouge_lsum", "finished", "words")
"""Of an answer, without a judge."""
COLUMNS = (JUDGE, TOTAL, *MEASURES)
RECALLED, UNSUPPORTED = MEASURES[:2]
JUDGED_BY = "a bottleneck on all-mpnet-base-v2, its total by the head of preferences; `sft` is the mean of the samples"
CUT_GOLD = "cut_gold"


@dataclass(frozen=True)
class Pooled:
    """The samples of a question.

    Attributes:
        record: question, passages, gold answer and samples.
        rewards: of each sample, by name of the reward.
        measures: of each sample.
    """

    record: OutputRecord
    rewards: Mapping[str, Sequence[float]]
    measures: Sequence[Measured]


def totals(model: Bottleneck, record: OutputRecord, answers: Sequence[str]) -> dict[str, list[float]]:
    """What a bottleneck gives answers to a question: as a whole, and each component by itself."""
    source = model.source(record.question, record.passages)
    parts = [model.features("preference", source, answer) for answer in answers]
    whole = [model.score("preference", source, answer) for answer in answers]
    return {TOTAL: whole, **{name: [float(row[i]) for row in parts] for i, name in enumerate(PARTS)}}


def rewards_of(
    model: Bottleneck, record: OutputRecord, answers: Sequence[str], drawn: random.Random
) -> dict[str, list[float]]:
    """What every reward that a policy may be taught by gives answers: `CHOOSERS` without the model of preferences."""
    own = {LENGTH: [float(len(answer.split())) for answer in answers], CHANCE: [drawn.random() for _ in answers]}
    return totals(model, record, answers) | own


Scores = Callable[[OutputRecord, Sequence[str]], Sequence[float]]


def preferred_by(path: str) -> Scores:
    """What a model of preferences among whole answers gives answers to a question."""
    from reward_models.scorers import SequenceScorer

    scorer = SequenceScorer(path)
    scorer.setup()

    def scores(record: OutputRecord, answers: Sequence[str]) -> list[float]:
        given = scorer.score([prompt_of(record)] * len(answers), list(answers)).values
        return [float(values[0]) for values in given]

    return scores


def pool_of(
    model: Bottleneck,
    records: Sequence[OutputRecord],
    seed: int,
    judge: Bottleneck | None = None,
    preferred: Scores | None = None,
) -> list[Pooled]:
    """Reward and measure every sample once.

    Args:
        model: of the rewards.
        records: questions with a gold answer and samples.
        seed: of the choice by chance.
        judge: gives rewards of that name, which choose nothing.
        preferred: the model of preferences, if there is one.

    Raises:
        DataError: a question has no gold answer.
    """
    drawn, pool = random.Random(seed), []
    for record in records:
        if not record.references:
            raise DataError("needs a gold answer", record=record.id, field="answer")
        measures = measured_answers(record.question, record.passages, record.references[0], record.outputs)
        rewards: dict[str, Sequence[float]] = {**rewards_of(model, record, record.outputs, drawn)}
        rewards[RECALL] = [row["facts/recalled"] or 0.0 for row in measures]
        if judge is not None:
            rewards[JUDGE] = totals(judge, record, record.outputs)[TOTAL]
        if preferred is not None:
            rewards[PREFERENCE] = preferred(record, record.outputs)
        pool.append(Pooled(record, rewards, measures))
    return pool


def best_of_n(rewards: Sequence[float], values: Sequence[float | None], n: int) -> float | None:
    """The expected value of the sample with the highest reward among n of N that are drawn without replacement.

    The sample of rank i from below (from 0) is the best of C(i, n − 1) of the C(N, n) draws; of equal rewards the one
    that was drawn later counts as higher. Samples without a value are left out, with n at most what is left.

    Args:
        rewards: of N samples.
        values: of the same; None where there is nothing to count.
        n: at most N.
    """
    known = sorted(
        (reward, i, value) for i, (reward, value) in enumerate(zip(rewards, values, strict=True)) if value is not None
    )
    if not known:
        return None
    n = min(n, len(known))
    return sum(value * math.comb(rank, n - 1) for rank, (_, _, value) in enumerate(known)) / math.comb(len(known), n)


def curves(pool: Sequence[Pooled], counts: Sequence[int]) -> list[dict[str, Any]]:
    """A row a reward and n: the means over questions of the reward itself and of each measure, of the best of n."""
    rows = []
    for name in pool[0].rewards:
        for n in counts:
            row: dict[str, Any] = {"reward": name, "n": n}
            row["itself"] = fmean(best_of_n(one.rewards[name], one.rewards[name], n) or 0.0 for one in pool)
            for measure in MEASURES:
                values = [best_of_n(one.rewards[name], [of[measure] for of in one.measures], n) for one in pool]
                known = [value for value in values if value is not None]
                row[measure] = fmean(known) if known else None
            rows.append(row)
    return rows


def trivial_of(record: OutputRecord) -> dict[str, str]:
    """The gold answer, its first words, and answers that nobody has to learn; empty where there is none."""
    gold, passages = record.references[0], [passage.text for passage in record.passages]
    return {
        GOLD: gold,
        CUT_GOLD: " ".join(gold.split()[:GOLD_WORDS]),
        CUT_LEAD: cut_lead(passages) or "",
        BEST_SENTENCE: best_sentence(record.question, passages) or "",
    }


def totals_of_known(model: Bottleneck, pool: Sequence[Pooled], name: str) -> dict[str, list[float]]:
    """What a model that gave the samples rewards of a name gives gold answers, copies, and samples (their mean)."""
    by_name: dict[str, list[float]] = {GOLD: [], SFT: [], CUT_LEAD: [], BEST_SENTENCE: [], CUT_GOLD: []}
    for one in pool:
        texts = trivial_of(one.record)
        given = totals(model, one.record, list(texts.values()))[TOTAL]
        for known, value in zip(texts, given, strict=True):
            by_name[known].append(value)
        by_name[SFT].append(fmean(one.rewards[name]))
    return by_name


@dataclass(frozen=True)
class TeachBest(Settings):
    """Writes a prompt file whose answers are the best of the samples: a round of expert iteration.

    A sample that does not end as a sentence is never taught; a question that has no other is left out.

    Attributes:
        samples: outputs file, several of each question.
        reward_model: a bottleneck, or the run that trained it.
        output: the prompt file.
        by: which reward of a pool chooses: the whole, a component of it, `preference`, or `length` or `chance` as
            controls.
        preference: the model of preferences, or the run that trained it; for `by=preference`.
        seed: of the choice by chance.
    """

    samples: InputFile
    reward_model: ModelName
    output: OutputFile
    by: str = TOTAL
    preference: ModelName | None = None
    seed: Seed = 0

    def __post_init__(self) -> None:
        if self.by not in CHOOSERS:
            raise ConfigError(f"by: expected one of {', '.join(CHOOSERS)}, got {self.by!r}")
        if self.by == PREFERENCE and self.preference is None:
            raise ConfigError("preference: by=preference needs the model of preferences")

    def _scores(self) -> Scores:
        from reward_models.bottleneck.model import load_bottleneck

        if self.by == PREFERENCE:
            return preferred_by(str(self.preference))
        model, drawn = load_bottleneck(str(self.reward_model)), random.Random(self.seed)
        return lambda record, answers: rewards_of(model, record, answers, drawn)[self.by]

    def run(self) -> dict[str, int]:
        """Choose and write.

        Returns:
            `questions`, and how many of them are `taught`.

        Raises:
            DataError: broken samples, or no finished one.
            ModelError: there is no such reward model.
        """
        scores_of, records, taught = self._scores(), read_outputs(self.samples), []
        for record in records:
            if answers := [answer for answer in record.outputs if is_finished(answer)]:
                scores = scores_of(record, answers)
                best = answers[scores.index(max(scores))]
                taught.append(QAExample(record.id, record.question, record.text, (best,), record.passages))
        if not taught:
            raise DataError("no sample ends as a sentence does", file=self.samples)
        write_examples(self.output, taught)
        print(f"{len(taught)} of {len(records)} questions have a finished sample to learn from -> {self.output}")
        return {"questions": len(records), "taught": len(taught)}
