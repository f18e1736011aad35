"""Splitting a feedback file into folds by question, with a part to choose settings on and smaller parts for curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import atomic_directory
from finegrained_rlhf.core.markers import InputFile, OutputDirectory, Seed, above, at_least, below
from finegrained_rlhf.core.seeding import stable_hash
from finegrained_rlhf.feedback.reading import read_feedback, write_feedback
from finegrained_rlhf.feedback.records import FeedbackRecord


@dataclass(frozen=True)
class Fold:
    """One fold of a cross-validation.

    Attributes:
        test: held out: never trained on and nothing chosen by.
        train: all other records, in a seeded order.
        tune: the first records of `train`, to choose settings on.
        fit: the rest of `train`, to train on meanwhile.
    """

    test: tuple[FeedbackRecord, ...]
    train: tuple[FeedbackRecord, ...]
    tune: tuple[FeedbackRecord, ...]
    fit: tuple[FeedbackRecord, ...]


def question_key(question: str) -> str:
    """What makes two questions the same: their words, whatever case and white space."""
    return " ".join(question.lower().split())


def split_by_question(records: Sequence[FeedbackRecord], folds: int, tuning: float, seed: int) -> list[Fold]:
    """Folds of nearly equal size in which no question is on two sides, whatever the order of the records.

    Questions are put in the order of a hash of seed and words and dealt out in turn; so are the records of a fold's
    training part, of which the tuning part is a share.

    Args:
        records: to split.
        folds: how many, at least 2.
        tuning: share of a fold's training records in its tuning part, in (0, 1); at least one question.
        seed: of the order.

    Raises:
        DataError: fewer questions than folds, or than a tuning part needs.
    """
    questions = sorted(
        {question_key(record.question) for record in records}, key=lambda q: (stable_hash(seed, "folds", q), q)
    )
    if len(questions) < max(folds, 3):
        raise DataError(f"{len(questions)} questions, expected at least {max(folds, 3)} for {folds} folds")
    place = {question: i for i, question in enumerate(questions)}
    ordered = sorted(records, key=lambda record: place[question_key(record.question)])
    return [_fold(ordered, place, number, folds, tuning) for number in range(folds)]


def _fold(ordered: Sequence[FeedbackRecord], place: dict[str, int], number: int, folds: int, tuning: float) -> Fold:
    test = tuple(record for record in ordered if place[question_key(record.question)] % folds == number)
    train = tuple(record for record in ordered if place[question_key(record.question)] % folds != number)
    questions = list(dict.fromkeys(question_key(record.question) for record in train))
    chosen = set(questions[: min(len(questions) - 1, max(1, round(tuning * len(questions))))])
    tune = tuple(record for record in train if question_key(record.question) in chosen)
    return Fold(test, train, tune, tuple(record for record in train if question_key(record.question) not in chosen))


@dataclass(frozen=True)
class SplitFeedback(Settings):
    """Writes `fold_K/{train,test,tune,fit}.json`, feedback files each, and `train_N.json` for learning curves.

    `tune` and `fit` are the two parts of `train`. `train_N` is the last N records of `train`, so that a smaller one is
    part of every larger one and, as long as N is at most the size of `fit`, none of them holds a tuning record.

    Attributes:
        data: feedback file.
        output_dir: where the folds are written; what is there is replaced.
        folds: how many.
        tuning: share of a fold's training records to choose settings on.
        sizes: numbers of training records to cut learning curves at.
        seed: of the split.
    """

    data: InputFile
    output_dir: OutputDirectory
    folds: Annotated[int, at_least(2)] = 5
    tuning: Annotated[float, above(0), below(1)] = 0.125
    sizes: Sequence[Annotated[int, at_least(1)]] = ()
    seed: Seed = 0

    def run(self) -> list[Fold]:
        """Write all folds, or none.

        Raises:
            DataError: broken feedback, too few questions, or a learning curve longer than a training part.
        """
        records = read_feedback(self.data)
        try:
            split = split_by_question(records, self.folds, self.tuning, self.seed)
        except DataError as error:
            raise error.at(file=self.data) from None
        least = min(len(fold.train) for fold in split)
        if any(size > least for size in self.sizes):
            raise DataError(f"sizes: a fold has {least} training records, asked for {max(self.sizes)}", file=self.data)
        with atomic_directory(Path(self.output_dir)) as directory:
            for number, fold in enumerate(split):
                write_fold(directory / f"fold_{number}", fold, self.sizes)
        return split


def write_fold(directory: Path, fold: Fold, sizes: Sequence[int]) -> None:
    """Write the files of one fold."""
    for name in ("train", "test", "tune", "fit"):
        write_feedback(directory / f"{name}.json", getattr(fold, name))
    for size in sizes:
        write_feedback(directory / f"train_{size}.json", fold.train[len(fold.train) - size :])
