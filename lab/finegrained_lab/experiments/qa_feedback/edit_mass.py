"""Do people's corrections teach what they mark? Edit mass learnt from corrected answers against the marks of others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from finegrained_lab.experiments.qa_feedback.measures import rank_correlation, separation
from finegrained_lab.experiments.results_table import Results
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import InputFile, OutputFile
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.feedback.reading import read_feedback, write_feedback
from finegrained_rlhf.feedback.records import C1_TYPES, C2_TYPES, Feedback, FeedbackRecord
from finegrained_rlhf.metrics.significance import bootstrap_interval
from finegrained_rlhf.text.edits import edit_mass
from finegrained_rlhf.text.segmentation import RULES, Segmenter, shared_segmenter
from finegrained_rlhf.text.tables import markdown_table

ANY, IRRELEVANT, FALSE = "any mark", "irrelevant", "false"
MARKS: Mapping[str, frozenset[str] | None] = {ANY: None, IRRELEVANT: frozenset(C1_TYPES), FALSE: frozenset(C2_TYPES)}
MASS, SHUFFLED = "mass", "mass_shuffled"
EDIT, PER_WORD, WORDS, COUNTS_EDITS, COUNTS_MARKS = (
    "own edit",
    "mass, a word",
    "words",
    "counts, edits",
    "counts, marks",
)
T = TypeVar("T")


@dataclass(frozen=True)
class CorrectionsToFeedback(Settings):
    """Writes the first answers that people corrected as edits: a feedback file for `taxonomy=edit_mass`.

    What people marked is left out, so that nothing but the two texts can be learnt from, and so are records without a
    correction.

    Attributes:
        data: feedback file with corrections.
        output: feedback file, with corrections and no mark.
    """

    data: InputFile
    output: OutputFile

    def run(self) -> int:
        """Write; returns how many records.

        Raises:
            DataError: broken feedback, or no correction.
        """
        records = [
            replace(one, feedback=Feedback((), (), edited), preferences=())
            for one in read_feedback(self.data)
            if (edited := one.feedback and one.feedback.corrected_prediction) and edited.strip()
        ]
        if not records:
            raise DataError("no record has a correction", file=self.data)
        write_feedback(self.output, records)
        return len(records)


@dataclass(frozen=True)
class Judged:
    """An answer, segment by segment.

    Attributes:
        marks: by kind of mark, whether people's touches each segment, bool [n].
        scores: by row, a number each; more: more likely wrong.
    """

    marks: Mapping[str, NDArray[np.bool_]]
    scores: Mapping[str, NDArray[np.float64]]


@dataclass(frozen=True)
class EditMassTable(Results):
    """Held-out answers of the folds that were run: where people marked, and where a model expects changed words.

    Attributes:
        feedback: feedback file with people's marks and corrections.
        directory: holds `folds/fold_K/{train,test}.json` made of `CorrectionsToFeedback`, and runs `fold_K/mass` and
            `fold_K/mass_shuffled`.
    """

    title: ClassVar[str] = "QA-FEEDBACK: do corrections teach what people mark?"
    about: ClassVar[str] = (
        "Edit mass: how many words a person changes in each sub-sentence of an answer when they correct it. A reward "
        "model on MiniLM learns it from corrected answers to other questions, and never sees a mark (`mass`). Does it "
        "say which sub-sentences people marked in answers to questions that it never saw? `auc`: the chance that a "
        "marked sub-sentence has the higher number than an unmarked one, of all answers together; `within`: of the "
        "same answer, mean over the answers that have both. `own edit`: the words that the correction of this very "
        "answer changes there: what there is to learn. `mass, a word`: mass over the sub-sentence's words. Controls: "
        "`mass_shuffled` learnt labels in random order; `words` is length alone; `counts, edits`: a regression on "
        "counted words (length, place, words shared with question and passages), fitted to whether the correction "
        "changes anything; `counts, marks`: the same fitted to people's marks of the training questions. Intervals: "
        "95%, bootstrap over questions."
    )

    feedback: InputFile
    directory: str

    def run(self) -> dict[str, Any]:
        """Score, measure, write results and page.

        Raises:
            DataError: broken feedback, or no fold.
            ModelError: a fold has no model.
        """
        marked = {record.id: record for record in read_feedback(self.feedback)}
        every = sorted(Path(self.directory, "folds").glob("fold_*"))
        folds = [
            fold for fold in every if all(Path(self.directory, fold.name, one).is_dir() for one in (MASS, SHUFFLED))
        ]
        if not folds:
            raise DataError("no fold has both models", file=self.directory)
        answers: list[Judged] = []
        for fold in folds:
            train, test = (read_feedback(fold / f"{name}.json") for name in ("train", "test"))
            models = Path(self.directory, fold.name)
            answers += judged_answers(models, [marked[one.id] for one in train], [marked[one.id] for one in test])
        names = list(answers[0].scores)
        return self.write(
            {
                **self.made_by(),
                "folds": [fold.name for fold in folds],
                "questions": len(answers),
                "sub_sentences": sum(len(one.scores[EDIT]) for one in answers),
                "marked": {mark: float(np.mean(np.concatenate([a.marks[mark] for a in answers]))) for mark in MARKS},
                "rows": [{"row": name, **measures_of_row(answers, name)} for name in names],
            }
        )

    def page(self, result: Mapping[str, Any]) -> str:
        """The rows."""
        shares = ", ".join(f"{mark} {share:.2f}" for mark, share in result["marked"].items())
        rows = [{key: of if key == "row" else _shown(of) for key, of in row.items()} for row in result["rows"]]
        return (
            f"{self.opening(result, self.title, self.about)}\n\n{result['questions']} answers "
            f"({', '.join(result['folds'])}) with {result['sub_sentences']} sub-sentences, each of a fold that nothing "
            f"of its row was trained on. Share that is marked: {shares}.\n\n{markdown_table(rows, list(rows[0]))}"
        )


def judged_answers(models: Path, train: Sequence[FeedbackRecord], test: Sequence[FeedbackRecord]) -> list[Judged]:
    """The first answers of held-out records by every row."""
    from reward_models.encoders.counts import count_names
    from reward_models.kinds import FACTUALITY
    from reward_models.scorers import EditMassScorer
    from reward_models.training.logistic import CountedItems, fit_counts

    segmenter = shared_segmenter(RULES)
    texts = [record.predictions[0] for record in test]
    prompts = [Prompt(one.id, one.question, (), {"question": one.question, "passages": one.passages}) for one in test]
    spans = [segmenter.sub_sentences(text) for text in texts]
    expected: dict[str, list[NDArray[np.float64]]] = {}
    for name in (MASS, SHUFFLED):
        scorer = EditMassScorer(str(models / name), RULES)
        scorer.setup("cpu")
        scored = scorer.score(prompts, texts)
        for record, cut, given in zip(test, spans, scored.spans, strict=True):
            if tuple(cut) != tuple(given):
                raise DataError("the model cuts this answer in another way", record=record.id)
        expected[name] = [-np.array(row) for row in scored.values]
    counts = [_counts(one, segmenter) for one in train]
    labels = {
        COUNTS_EDITS: [(_changed(one, segmenter) > 0).astype(float) for one in train],
        COUNTS_MARKS: [_touched(one, segmenter, ANY).astype(float) for one in train],
    }
    columns = range(len(count_names(FACTUALITY)))
    judges = {
        name: fit_counts([CountedItems(*one) for one in zip(counts, of, strict=True)], columns, pairs=False)
        for name, of in labels.items()
    }
    answers = []
    for i, record in enumerate(test):
        words = np.array([len(texts[i][a:b].split()) for a, b in spans[i]], float)
        rows = _counts(record, segmenter)
        scores = {EDIT: _changed(record, segmenter), MASS: expected[MASS][i], PER_WORD: expected[MASS][i] / words}
        scores |= {name: judge.logits(rows) for name, judge in judges.items()}
        scores |= {WORDS: words, SHUFFLED: expected[SHUFFLED][i]}
        answers.append(Judged({mark: _touched(record, segmenter, mark) for mark in MARKS}, scores))
    return answers


def _counts(record: FeedbackRecord, segmenter: Segmenter) -> NDArray[np.float64]:
    """Counted words of each sub-sentence of a first answer, [n, F]."""
    from reward_models.encoders.counts import word_counts
    from reward_models.kinds import FACTUALITY
    from reward_models.parts import factuality_parts

    text = record.predictions[0]
    parts = factuality_parts(record.question, record.passages, [text[a:b] for a, b in segmenter.sub_sentences(text)])
    return np.array(word_counts(FACTUALITY, parts))


def _changed(record: FeedbackRecord, segmenter: Segmenter) -> NDArray[np.float64]:
    text = record.predictions[0]
    assert record.feedback is not None and record.feedback.corrected_prediction is not None
    spans = tuple(segmenter.sub_sentences(text))
    return np.array(edit_mass(text, record.feedback.corrected_prediction, spans), float)


def _touched(record: FeedbackRecord, segmenter: Segmenter, mark: str) -> NDArray[np.bool_]:
    assert record.feedback is not None
    types = MARKS[mark]
    errors = [one for one in record.feedback.errors if types is None or one.error_type in types]
    spans = segmenter.sub_sentences(record.predictions[0])
    return np.array([any(one.start < b and a < one.end for one in errors) for a, b in spans])


def measures_of_row(answers: Sequence[Judged], name: str) -> dict[str, list[float | None]]:
    """AUC by kind of mark, over all and within an answer, and the rank correlation with the words that were changed."""
    measures: dict[str, list[float | None]] = {}
    for mark in MARKS:
        pairs = [np.stack([one.scores[name], one.marks[mark]], axis=1) for one in answers]
        measures[f"auc, {mark}"] = _interval(pairs, lambda drawn: separation(np.concatenate(drawn)))
        own = [value for of in pairs if (value := separation(of)) is not None]
        measures[f"within, {mark}"] = _interval(own, lambda values: float(np.mean(values))) if own else [None] * 3
    changed = [np.stack([one.scores[name], one.scores[EDIT]], axis=1) for one in answers]
    measures["rank correlation with words changed"] = _interval(
        changed, lambda drawn: rank_correlation(np.concatenate(drawn))
    )
    return measures


def _interval(items: Sequence[T], statistic: Callable[[Sequence[T]], float | None]) -> list[float | None]:
    interval = bootstrap_interval(items, statistic, draws=1000)
    return [interval.value, interval.low, interval.high]


def _shown(of: Sequence[float | None]) -> str:
    value, low, high = of
    return "–" if value is None or low is None or high is None else f"{value:.3f} [{low:.2f}, {high:.2f}]"
