"""Who sees which questions when a policy is trained on QA-FEEDBACK's questions with reward models of its feedback.

Lengths are counted in words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from finegrained_lab.experiments.qa_feedback.split import question_key, split_by_question
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import atomic_directory, write_json
from finegrained_rlhf.core.markers import InputFile, OutputDirectory, Seed, at_least
from finegrained_rlhf.feedback.reading import read_examples, read_feedback, write_examples, write_feedback
from finegrained_rlhf.feedback.records import QAExample
from finegrained_rlhf.text.segmentation import SpacySegmenter
from finegrained_rlhf.text.templates import context_text, squeeze
from reward_models.parts import choose, content_words, sentences_of

TUNING = 0.1
"""Share of the training questions that validations use."""
CUE = " answer:"
"""What a prompt ends with: a decoder-only policy has no other sign that the passages are over."""


@dataclass(frozen=True)
class SplitQuestions(Settings):
    """Writes the files of a run in which no reward model judges what it was optimised for.

    One fold of the questions is held out. The feedback on the others is halved by folds: `optimised.json` trains the
    reward models that the policy learns from, `judge.json` those that evaluate it. `train.json` and `dev.json` are the
    prompts of the questions that are not held out, `test.json` those of the held-out ones. Prompts keep the sentences
    that share most words with the question, and end with `CUE`; the passages of a record, which reward models read,
    stay whole. `split.json` says how many there are of each.

    Attributes:
        data: prompt file.
        feedback: feedback file on (mostly) the same questions.
        output_dir: where the files are written; what is there is replaced.
        folds: that the questions with feedback are dealt into, as `SplitFeedback` deals them.
        held_out: which of them is held out.
        context_words: of the passages in a prompt, at most; null keeps all.
        answer_words: of an answer in `train.json` and `dev.json`, at most: its leading sentences, of which the first is
            kept whatever its length; null keeps all. Answers in `test.json` stay whole.
        seed: of the split.
    """

    data: InputFile
    feedback: InputFile
    output_dir: OutputDirectory
    folds: int = 5
    held_out: int = 4
    context_words: Annotated[int | None, at_least(1)] = None
    answer_words: Annotated[int | None, at_least(1)] = None
    seed: Seed = 0

    def __post_init__(self) -> None:
        if self.folds < 3 or not 0 <= self.held_out < self.folds:
            raise ConfigError("need folds >= 3 and 0 <= held_out < folds")

    def run(self) -> dict[str, int]:
        """Write all files, or none.

        Returns:
            The number of records of each file.

        Raises:
            DataError: a broken file, too few questions, or no prompt of a held-out question.
        """
        records, prompts = read_feedback(self.feedback), read_examples(self.data)
        try:
            split = split_by_question(records, self.folds, TUNING, self.seed)
        except DataError as error:
            raise error.at(file=self.feedback) from None
        rest = [fold.test for number, fold in enumerate(split) if number != self.held_out]
        halves = {
            "optimised": [record for part in rest[: len(rest) // 2] for record in part],
            "judge": [record for part in rest[len(rest) // 2 :] for record in part],
        }
        held_out = {question_key(record.question) for record in split[self.held_out].test}
        tuning = {question_key(record.question) for record in split[self.held_out].tune}
        files: dict[str, list[QAExample]] = {"train": [], "dev": [], "test": []}
        for prompt in prompts:
            key = question_key(prompt.question)
            files["test" if key in held_out else "dev" if key in tuning else "train"].append(prompt)
        for name, questions in files.items():
            if not questions:
                raise DataError(f"no prompt for {name}.json: none of its questions is here", file=self.data)
        counts = {name: len(questions) for name, questions in files.items()} | {
            name: len(h) for name, h in halves.items()
        }
        with atomic_directory(Path(self.output_dir)) as directory:
            for name, questions in files.items():
                write_examples(
                    directory / f"{name}.json", [self._shortened(item, name != "test") for item in questions]
                )
            for name, half in halves.items():
                write_feedback(directory / f"{name}.json", half)
            write_json(directory / "split.json", counts)
        return counts

    def _shortened(self, item: QAExample, answers: bool) -> QAExample:
        text = item.text
        if self.context_words is not None:
            context = shortened_context(item, self.context_words)
            text = f"question: {squeeze(item.question)} context: {context}"
        item = replace(item, text=f"{text.rstrip()}{CUE}")
        if answers and self.answer_words is not None:
            words = self.answer_words
            item = replace(item, references=tuple(leading_sentences(text, words) for text in item.references))
        return item


def shortened_context(item: QAExample, words: int) -> str:
    """The sentences of a record's passages that share most words with its question, in their order.

    Args:
        item: the record.
        words: that are kept, at most, but at least the first sentence that fits.
    """
    sentences = sentences_of(squeeze(context_text(item.passages)))
    sizes = [len(sentence.split()) for sentence in sentences]
    kept = choose(sentences, sizes, content_words(item.question), words)
    return " ".join(sentences[i] for i in kept)


def leading_sentences(text: str, words: int, segmenter: SpacySegmenter | None = None) -> str:
    """The leading sentences of a text that have at most so many words together; at least the first one."""
    spans: Sequence[tuple[int, int]] = (segmenter or SpacySegmenter()).sentences(text)
    end = spans[0][1]
    for _, later in spans[1:]:
        if len(text[:later].split()) > words:
            break
        end = later
    return text[:end].strip()
