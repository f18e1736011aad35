"""What measures without a judge are worth: how far each agrees with what people said of the same answers.

Nothing is fitted: every measure is what the library computes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from finegrained_lab.experiments.intervals import share_interval
from finegrained_lab.experiments.qa_feedback.trivial import trivial_answers
from finegrained_lab.experiments.results_table import Results
from finegrained_rlhf.core.markers import InputFile, Seed
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.feedback.reading import read_feedback
from finegrained_rlhf.feedback.records import C1_TYPES, C2_TYPES, FIRST, SECOND, FeedbackRecord, pair_order
from finegrained_rlhf.metrics.functions import rouge_lsum_scores
from finegrained_rlhf.metrics.grounding import measures_of
from finegrained_rlhf.metrics.significance import bootstrap_interval
from finegrained_rlhf.text.segmentation import RULES, shared_segmenter
from finegrained_rlhf.text.tables import markdown_table

Measured = dict[str, float | None]
"""The measures of one answer; None where there is nothing to count."""
Statistic = Callable[[NDArray[np.float64]], float | None]
SHUFFLED, WORDS, ROUGE = "shuffled", "words", "rouge_lsum"
LIKE_LENGTH = 1.1
"""Two answers are of like length where neither has more than so many times the other's words."""
MARKS = ("irrelevant", "false", "missing")


@dataclass(frozen=True)
class Judged:
    """A record with the measures of its answers and what people said.

    Attributes:
        answers: of each prediction.
        pairs: (better, worse) predictions, from 0, where people had a preference.
        marks: shares of the first answer's characters that are marked irrelevant (with redundant and incoherent) and
            false (wrong or unverifiable), and how many items are missing from it; None where it was not marked.
    """

    answers: tuple[Measured, ...]
    pairs: tuple[tuple[int, int], ...]
    marks: Mapping[str, float] | None


def measured(record: FeedbackRecord, answers: Sequence[str]) -> list[Measured]:
    """The measures of answers to a record's question, the shuffled control left out."""
    return measured_answers(record.question, record.passages, record.gold, answers)


def measured_answers(
    question: str, read: Sequence[Passage], gold: str | None, answers: Sequence[str]
) -> list[Measured]:
    """The measures of answers to a question, by its passages and the human answer."""
    passages = [f"{passage.title}\n{passage.text}" for passage in read]
    references = [gold] if gold else []
    overlaps = rouge_lsum_scores(answers, [references] * len(answers), shared_segmenter(RULES)) if references else []
    rows: list[Measured] = []
    for place, answer in enumerate(answers):
        counts = measures_of(answer, question, passages, references)
        row: Measured = {name: total / count if count else None for name, (total, count) in counts.items()}
        row[ROUGE] = overlaps[place] if overlaps else None
        row["finished"] = float(is_finished(answer))
        row[WORDS] = float(len(answer.split()))
        rows.append(row)
    return rows


def is_finished(answer: str) -> bool:
    """Whether an answer ends as a sentence does."""
    return answer.rstrip(" \"'”’)").endswith((".", "!", "?"))


def judged_records(records: Sequence[FeedbackRecord], seed: int) -> list[Judged]:
    """Records with measures; `shuffled` deals the RougeLSum of all answers out anew."""
    rows = [measured(record, record.predictions) for record in records]
    dealt = [row[ROUGE] for answers in rows for row in answers]
    random.Random(seed).shuffle(dealt)
    values = iter(dealt)
    return [
        Judged(tuple({**row, SHUFFLED: next(values)} for row in answers), _pairs(record), _marks(record))
        for record, answers in zip(records, rows, strict=True)
    ]


def _pairs(record: FeedbackRecord) -> tuple[tuple[int, int], ...]:
    pairs = zip(pair_order(len(record.predictions)), record.preferences, strict=False)
    return tuple((i, j) if value == FIRST else (j, i) for (i, j), value in pairs if value in (FIRST, SECOND))


def _marks(record: FeedbackRecord) -> Mapping[str, float] | None:
    feedback, text = record.feedback, record.predictions[0]
    if feedback is None:
        return None
    shares = {}
    for name, types in (("irrelevant", C1_TYPES), ("false", C2_TYPES)):
        marked = {i for error in feedback.errors if error.error_type in types for i in range(error.start, error.end)}
        shares[name] = len(marked) / len(text)
    return {**shares, "missing": float(sum(len(item.sentence_ids) for item in feedback.missing_info))}


def preferred(records: Sequence[Judged], name: str, like_length: bool = False) -> list[float]:
    """The share of pairs in which the better answer has more of a measure, a tie being half, and its 95% borders."""
    wins = []
    for record in records:
        of = []
        for better, worse in ((record.answers[i], record.answers[j]) for i, j in record.pairs):
            more, less, lengths = better[name], worse[name], sorted((better[WORDS] or 0.0, worse[WORDS] or 0.0))
            if more is not None and less is not None and (not like_length or lengths[1] <= LIKE_LENGTH * lengths[0]):
                of.append((more > less) + (more == less) / 2)
        wins.append(of)
    parts, counts = [sum(of) for of in wins], [float(len(of)) for of in wins]
    return [sum(parts) / sum(counts), *share_interval(parts, counts)]


def agreement(records: Sequence[Judged], name: str, mark: str, statistic: Statistic) -> list[float | None]:
    """A statistic of a measure and a mark of the answers that were marked, and its 95% borders."""
    known = [
        (value, record.marks[mark])
        for record in records
        if record.marks is not None and (value := record.answers[0][name]) is not None
    ]
    found = bootstrap_interval(known, lambda pairs: statistic(np.asarray(pairs)), draws=1000)
    return [found.value, found.low, found.high]


def rank_correlation(pairs: NDArray[np.float64]) -> float | None:
    """Spearman's ρ of pairs of numbers, [N, 2]; None where one does not vary."""
    from scipy.stats import rankdata

    ranks = rankdata(pairs, axis=0)
    deviations = ranks - ranks.mean(axis=0)
    size = float(np.sqrt((deviations**2).sum(axis=0).prod()))
    return float(deviations.prod(axis=1).sum()) / size if size else None


def separation(pairs: NDArray[np.float64]) -> float | None:
    """AUC: the chance that the first number of a pair whose second is above 0 is the higher one; None of one kind."""
    has = pairs[:, 1] > 0
    positive, negative = int(has.sum()), int((~has).sum())
    if not positive or not negative:
        return None
    from scipy.stats import rankdata

    return float(rankdata(pairs[:, 0])[has].sum() - positive * (positive + 1) / 2) / (positive * negative)


STATISTICS: Mapping[str, Statistic] = {"rho": rank_correlation, "auc": separation}


@dataclass(frozen=True)
class MeasuresTable(Results):
    """The table of measures without a judge.

    Attributes:
        data: feedback file with gold answers, marks and preferences.
        seed: of the shuffled control and of the answers to other questions.
    """

    about: ClassVar[str] = (
        "Measures that need no judge on the 400 records that people judged; nothing is fitted. `facts/recalled`: share "
        "of the gold answer's names, numbers and dates, those of the question left out, that an answer has; "
        "`facts/unsupported`: share of an answer's own that no passage has; `copied/share`: share of its words in runs "
        "of six or more that a passage has; `copied/longest`: words of the longest run; `repeats`: share of repeated "
        "pairs of neighbouring words; `finished`: ends with a full stop; `words` is length alone; `shuffled` is the "
        "control: RougeLSum dealt out anew among all answers. Intervals: 95%, bootstrap over questions. Every measure "
        "is shown as it is: a share of preferences under .5, or a negative correlation, says that people like less of "
        "it."
    )

    data: InputFile
    seed: Seed = 0

    def run(self) -> dict[str, Any]:
        """Measure, write results and page, print the page.

        Raises:
            DataError: broken feedback.
        """
        records = read_feedback(self.data)
        judged = judged_records(records, self.seed)
        names = list(judged[0].answers[0])
        return self.write(
            {
                **self.made_by(),
                "questions": len(records),
                "pairs": sum(len(record.pairs) for record in judged),
                "preferences": {
                    name: {"all": preferred(judged, name), "like_length": preferred(judged, name, like_length=True)}
                    for name in names
                },
                "marks": {
                    name: {
                        f"{label}_{mark}": agreement(judged, name, mark, statistic)
                        for label, statistic in STATISTICS.items()
                        for mark in MARKS
                    }
                    for name in names
                },
                "means": self._means(records),
            }
        )

    def _means(self, records: Sequence[FeedbackRecord]) -> list[dict[str, Any]]:
        """The mean measures of what people wrote, of what models wrote, and of answers that nobody has to learn."""
        rows: dict[str, list[Measured]] = {}
        for record, answers in zip(records, trivial_answers(records, self.seed), strict=True):
            known = {"gold": record.gold, **{f"prediction {i}": p for i, p in enumerate(record.predictions, start=1)}}
            texts = {name: text for name, text in {**known, **answers}.items() if text}
            for name, row in zip(texts, measured(record, list(texts.values())), strict=True):
                rows.setdefault(name, []).append(row)
        return [
            {"answer": name, "questions": len(of)}
            | {key: fmean([row[key] for row in of if row[key] is not None]) for key in of[0]}  # type: ignore[misc]
            for name, of in rows.items()
        ]

    def page(self, result: Mapping[str, Any]) -> str:
        """Preferences, marks, and what each kind of answer gets."""
        preferences = [
            {"measure": name, "all pairs": _shown(by["all"]), "pairs of like length": _shown(by["like_length"])}
            for name, by in result["preferences"].items()
        ]
        marks = {
            label: [
                {"measure": name, **{mark: _shown(by[f"{label}_{mark}"]) for mark in MARKS}}
                for name, by in result["marks"].items()
            ]
            for label in STATISTICS
        }
        columns = ["measure", *MARKS]
        return "\n\n".join(
            (
                self.opening(result, "Measures without a judge, and what people said", self.about),
                f"## Preferences\n\nShare of the {result['pairs']} pairs of answers to {result['questions']} "
                "questions in which the preferred answer has more of it; .5 says nothing. Like length: neither answer "
                f"is more than {LIKE_LENGTH - 1:.0%} longer.",
                markdown_table(preferences, list(preferences[0])).strip(),
                "## Marks\n\nSpearman's ρ with what people marked in the first answer: the shares of its characters "
                "that are irrelevant, redundant or incoherent, and that are wrong or unverifiable, and the number of "
                f"passage sentences that it misses.\n\n{markdown_table(marks['rho'], columns).strip()}",
                "AUC: the chance that an answer with such a mark has more of a measure than one without.\n\n"
                f"{markdown_table(marks['auc'], columns).strip()}",
                "## What answers get\n\nMeans over questions: the human answer, the four of the published policy, and "
                "answers that nobody has to learn. No measure alone ranks them: a copy states nothing without a "
                "source, and the answer to another question copies nothing.\n\n"
                f"{markdown_table(result['means'], list(result['means'][0])).strip()}\n",
            )
        )


def _shown(interval: Sequence[float | None]) -> str:
    value, low, high = interval
    return "–" if value is None or low is None or high is None else f"{value:.3f} [{low:.2f}, {high:.2f}]"
