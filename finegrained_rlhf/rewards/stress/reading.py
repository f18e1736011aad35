"""Questions for a stress test from any file of feedback or prompts that has gold answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.feedback.outputs import read_outputs
from finegrained_rlhf.feedback.prompt_files import PromptInput, read_prompt_file
from finegrained_rlhf.feedback.reading import read_feedback
from finegrained_rlhf.feedback.records import FeedbackRecord
from finegrained_rlhf.rewards.stress.changes import StressRecord
from finegrained_rlhf.rewards.stress.draft import sentences
from finegrained_rlhf.text.facts import plain
from finegrained_rlhf.text.templates import task_text


@dataclass(frozen=True)
class StressItem:
    """A question as changes are made to it, and as policies and scorers read it.

    Attributes:
        record: for changes.
        input: for policies and scorers.
    """

    record: StressRecord
    input: PromptInput

    @property
    def prompt(self) -> Prompt:
        """What scorers are given."""
        return Prompt(self.record.id, self.input.text, (), self.input.metadata)


def read_items(path: str | Path) -> list[StressItem]:
    """The questions of a file that have a gold answer; unmarked predictions of feedback are answers of models.

    Raises:
        DataError: the file cannot be read, or no question of it has a gold answer.
    """
    if Path(path).is_file() and _is_feedback(path):
        items = [item_of(record) for record in read_feedback(path, None) if record.gold is not None]
    else:
        items = [
            _item(one, ()) for one in read_prompt_file(path) if any(map(str.strip, one.metadata.get("references", ())))
        ]
    if not items:
        raise DataError("no question has a gold answer, expected `gold` or `answer`", file=path)
    return items


def _is_feedback(path: str | Path) -> bool:
    with open(path, encoding="utf-8", errors="replace") as stream:
        array = stream.read(64).lstrip().startswith("[")
    rows = read_json(path) if array else ()
    return any(isinstance(row, Mapping) and "prediction 1" in row for row in rows)


def item_of(record: FeedbackRecord) -> StressItem:
    """The question of a feedback record with a gold answer."""
    known = {"question": record.question, "passages": record.passages, "references": (record.gold,)}
    answers = tuple(text for i, text in enumerate(record.predictions) if i not in record.marked)
    return _item(PromptInput(record.id, task_text(record.question, record.passages), known), answers)


def _item(one: PromptInput, answers: tuple[str, ...]) -> StressItem:
    known = one.metadata
    gold = next(text for text in known["references"] if text.strip())
    passages = tuple((passage.title, *_sentences(passage)) for passage in known.get("passages", ()))
    return StressItem(StressRecord(one.id, known.get("question") or one.text, passages, gold, answers), one)


def _sentences(passage: Passage) -> Sequence[str]:
    if len(passage.sentences) > 1:
        return passage.sentences
    return [passage.text[start:end] for start, end in sentences(passage.text)]


def read_samples(path: str | Path, items: Sequence[StressItem]) -> dict[str, tuple[str, ...]]:
    """Sampled answers by the id of their question, from a file of outputs; questions are told by id, else by words.

    Raises:
        DataError: the file cannot be read, or has no answer to any of these questions.
    """
    outputs = read_outputs(path, need_passages=False)
    by_id = {one.id: one.outputs for one in outputs}
    by_question = {plain(one.question): one.outputs for one in outputs}
    samples = {}
    for item in items:
        answers = by_id.get(item.record.id) or by_question.get(plain(item.record.question))
        if answers:
            samples[item.record.id] = answers
    if not samples:
        raise DataError("has no answer to any question of the data", file=path)
    return samples
