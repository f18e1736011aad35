"""From rows of any of the known forms to feedback records and prompts of the project, divided by prompt."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.feedback.outputs import passages_to_lists
from finegrained_rlhf.feedback.prompt_files import ASSISTANT, SYSTEM, Message, read_messages
from finegrained_rlhf.feedback.records import FIRST, SECOND, TIE, Feedback, FeedbackRecord, SpanError, derived_id
from finegrained_rlhf.launch.init.columns import (
    DOWN,
    LABEL,
    QUOTE,
    UP,
    Layout,
    Row,
    labels_of,
    part_of,
    spans_of_talk,
    word,
)
from finegrained_rlhf.text.templates import conversation_text, task_text

BAD = "Bad"
"""The type of error of an answer with a thumb down."""
LEAST_PROMPTS = 10
_START, _END = ("start", "begin", "from", "start_offset", "start_char"), ("end", "stop", "to", "end_offset", "end_char")
_TITLE, _TEXT = ("title", "wikipage", "name", "source"), ("text", "content", "passage", "body", "document")
_FIRSTS, _SECONDS = ("a", "1", "first", "left", "model a", "answer a"), ("b", "2", "second", "right", "model b")
_TIES = ("tie", "same", "equal", "both", "neither", "0.5", "draw", "tie (bothbad)")


@dataclass(frozen=True)
class Asked:
    """What is to be answered.

    Attributes:
        question: in words; of a conversation of several turns, all of them.
        passages: that the answer may rest on.
        messages: of a conversation; empty where the file has texts.
    """

    question: str
    passages: tuple[Passage, ...] = ()
    messages: tuple[Message, ...] = ()

    def row(self, chat: bool) -> dict[str, Any]:
        """A row of a prompt file: a conversation for a policy with a chat template, its text for any other."""
        text = task_text(self.question, self.passages) if self.passages else self.question
        asked = {"messages": [{"role": m.role, "content": m.content} for m in self.messages]}
        row = asked if chat and self.messages and not self.passages else {"text": text}
        known = {"question": self.question, "passages": passages_to_lists(self.passages)}
        return {"id": derived_id(self.question, self.passages), **row, **known}


@dataclass
class Understood:
    """What was read from a file.

    Attributes:
        prompts: what is asked, each once, with the answers that nobody found fault with, or that are references.
        feedback: records with what is asked in each.
        left_out: how many rows say nothing, by why.
    """

    prompts: dict[Asked, list[str]] = field(default_factory=dict)
    feedback: list[tuple[Asked, FeedbackRecord]] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)

    @property
    def types(self) -> Counter[str]:
        """How often each type of error was marked."""
        found = [record.feedback.errors for _, record in self.feedback if record.feedback is not None]
        return Counter(error.error_type for errors in found for error in errors)

    @property
    def answers(self) -> Iterator[str]:
        """Every answer of the feedback, or every reference where there is none."""
        judged = [text for _, record in self.feedback for text in record.predictions]
        yield from judged or [text for texts in self.prompts.values() for text in texts]


def understand(rows: Sequence[Row], layout: Layout, file: str | Path) -> Understood:
    """Read every row.

    Args:
        rows: records of the file.
        layout: what its columns are.
        file: for messages.

    Raises:
        DataError: a mark that does not fit its answer, with file, record and column; too few prompts; no mark at all.
    """
    found = Understood()
    for number, group in _grouped(rows, layout):
        try:
            _read(group, layout, found)
        except DataError as error:
            raise error.at(file=file, record=number) from None
    if len(found.prompts) < LEAST_PROMPTS:
        why = "".join(f"; left out: {count} {reason}" for reason, count in found.left_out.items())
        raise DataError(
            f"expected at least {LEAST_PROMPTS} different prompts, got {len(found.prompts)}{why}", file=file
        )
    marked = sum(bool(r.feedback.errors) if r.feedback else any(r.preferences) for _, r in found.feedback)
    if layout.form != "prompts" and not marked:
        raise DataError(f"no mark among {len(found.feedback)} answers: there is nothing to learn", file=file)
    return found


def _grouped(rows: Sequence[Row], layout: Layout) -> Iterator[tuple[int, list[Row]]]:
    """Rows that belong together, with the number of the first: those of one answer whose sentences have rows."""
    if "sentence" not in layout.columns:
        yield from ((number, [row]) for number, row in enumerate(rows))
        return
    keys = [layout.columns[role] for role in ("prompt", "passages", "answer") if role in layout.columns]
    groups: dict[str, tuple[int, list[Row]]] = {}
    for number, row in enumerate(rows):
        groups.setdefault(repr([row.get(key) for key in keys]), (number, []))[1].append(row)
    yield from groups.values()


def _read(group: Sequence[Row], layout: Layout, found: Understood) -> None:
    row = group[0]
    spoken = _messages(row, layout)
    talk = [*read_messages(spoken, "messages")] if spoken else []
    answers, preference = _answers(group, layout)
    if talk and talk[-1].role == ASSISTANT:
        answers, talk = answers or [talk[-1].content], talk[:-1]
    asked = _asked(row, talk, layout)
    if asked is None:
        found.left_out["without a prompt"] += 1
        return
    reference = layout.value(row, "reference")
    given = [str(text) for text in (reference if isinstance(reference, list) else [reference]) if text]
    found.prompts.setdefault(asked, []).extend([*given, *(answers if layout.form == "prompts" else ())])
    if layout.form == "prompts":
        return
    if not answers or not all(text.strip() for text in answers):
        found.left_out["without an answer"] += 1
        return
    errors = () if layout.form == "pairs" else _errors(group, answers[0], layout)
    if errors is None or (layout.form == "pairs" and preference is None):
        found.left_out["without a mark"] += 1
        return
    record = FeedbackRecord(
        id=derived_id(asked.question, asked.passages),
        question=asked.question,
        passages=asked.passages,
        predictions=tuple(answers),
        feedback=None if layout.form == "pairs" else Feedback(errors, (), None),
        preferences=(preference,) if layout.form == "pairs" else (),
    )
    found.feedback.append((asked, record))
    fine = [answers[preference - 1]] if preference else [] if preference == TIE or errors else answers
    found.prompts[asked].extend(fine)


def _messages(row: Row, layout: Layout) -> list[Any]:
    """The conversation of a row, also where each of a pair is a whole one; empty where there is none."""
    talk = layout.value(row, "messages")
    if talk is None and isinstance(chosen := layout.value(row, "chosen"), list) and not layout.value(row, "prompt"):
        talk = chosen[:-1]
    return [{"role": m.get("role"), "content": m.get("content")} for m in talk or []]


def _asked(row: Row, talk: Sequence[Message], layout: Layout) -> Asked | None:
    passages = tuple(_passages(layout.value(row, "passages")))
    spoken = [message.content for message in talk if message.role != SYSTEM]
    if spoken and spoken[-1].strip():
        question = spoken[0] if len(spoken) == 1 else conversation_text(spoken)
        return Asked(question, passages, tuple(talk))
    question = layout.value(row, "prompt")
    return Asked(str(question), passages) if question is not None else None


def _passages(value: Any) -> Iterator[Passage]:
    if value is None:
        return
    for item in value if isinstance(value, list) else [value]:
        title, text = "", item
        if isinstance(item, Mapping):
            title, text = str(part_of(item, _TITLE) or ""), part_of(item, _TEXT)
        elif isinstance(item, list) and all(isinstance(part, str) for part in item):  # the project's own form
            title, text = item[0] if item else "", " ".join(item[1:])
        if not isinstance(text, str):
            raise DataError(f"expected a text, or an object with a text, got {item!r:.80}", field="passages")
        if text.strip():
            yield Passage("", title, (text.strip(),))


def _answers(group: Sequence[Row], layout: Layout) -> tuple[list[str], int | None]:
    """The answers of a row, and which of two is better."""
    row = group[0]
    if layout.form != "pairs":
        answer = layout.value(row, "answer")
        if answer is None and layout.form == "sentences":
            answer = " ".join(sentence for sentence, _ in _labelled(group, layout))
        return ([] if answer is None else [str(answer)]), None
    roles = ("first", "second") if "first" in layout.columns else ("chosen", "rejected")
    texts = [layout.value(row, role) for role in roles]
    spoken = [text[-1].get("content") if isinstance(text, list) and text else text for text in texts]
    preference = FIRST if roles[0] == "chosen" else _winner(layout.value(row, "winner"), row, layout)
    return [str(text or "") for text in spoken], preference


def _winner(value: Any, row: Row, layout: Layout) -> int | None:
    """Which of two answers a row says is better: by letter, number, place or the column's own name."""
    if value is None:
        return None
    said, names = word(value), [word(layout.columns[role]) for role in ("first", "second")]
    counts_from_0 = names[0].endswith("0")
    firsts = {*_FIRSTS, names[0], *(["0"] if counts_from_0 else [])} - ({"1"} if counts_from_0 else set())
    seconds = {*_SECONDS, names[1], *(["1"] if counts_from_0 else [])}
    places = {**dict.fromkeys(_TIES, TIE), **dict.fromkeys(firsts, FIRST), **dict.fromkeys(seconds, SECOND)}
    if not counts_from_0:
        places["0"] = TIE
    if said not in places:
        known = f"expected {names[0]!r}, {names[1]!r}, a letter, a number or tie"
        raise DataError(f"{known}, got {value!r}", field=layout.columns["winner"])
    return places[said]


def _labelled(group: Sequence[Row], layout: Layout) -> Iterator[tuple[str, str]]:
    """The sentences of an answer with their labels."""
    if "sentence" in layout.columns:
        pairs = [(str(layout.value(row, "sentence") or ""), labels_of(row, layout)[0]) for row in group]
    else:
        sentences, labels = layout.value(group[0], "sentences") or [], labels_of(group[0], layout)
        if len(sentences) != len(labels):
            raise DataError(f"{len(sentences)} sentences and {len(labels)} labels", field=layout.columns["labels"])
        texts = [part_of(item, QUOTE) if isinstance(item, Mapping) else item for item in sentences]
        pairs = [(str(text or ""), label) for text, label in zip(texts, labels, strict=True)]
    yield from ((text.strip(), label) for text, label in pairs if text.strip())


def _errors(group: Sequence[Row], answer: str, layout: Layout) -> tuple[SpanError, ...] | None:
    """The errors of an answer; None where nobody looked."""
    row = group[0]
    if layout.form == "thumbs":
        label = labels_of(row, layout)[0]
        if not label and label not in layout.good:
            return None
        return () if label in layout.good else (SpanError(0, len(answer), BAD),)
    if layout.form == "sentences":
        labelled = [*_labelled(group, layout)]
        if not labelled or any(not label and label not in layout.good for _, label in labelled):
            return None
        return tuple(_sentence_errors(labelled, answer, layout))
    spans = layout.value(row, "spans")
    spans = spans_of_talk(row.get(layout.columns.get("messages", ""))) if spans is None else spans
    return None if spans is None else tuple(_span(item, answer, f"spans[{i}]") for i, item in enumerate(spans))


def _sentence_errors(labelled: Iterable[tuple[str, str]], answer: str, layout: Layout) -> Iterator[SpanError]:
    at = 0
    for sentence, label in labelled:
        start = answer.find(sentence, at) if sentence in answer[at:] else answer.find(sentence)
        if start < 0:
            raise DataError(f"the sentence {sentence!r:.60} does not stand in the answer", field="sentence")
        at = start + len(sentence)
        if label not in layout.good:
            yield SpanError(start, at, "Wrong" if label in {*UP, *DOWN} else label)


def _span(item: Any, answer: str, at: str) -> SpanError:
    """A mark: offsets, or words that stand in one place of the answer, and a label."""
    if isinstance(item, Mapping):
        start, end, label, quote = (part_of(item, names) for names in (_START, _END, LABEL, QUOTE))
    else:
        start, end, label, quote = (*item, None, None, None, None)[:4]
    label = label[0] if isinstance(label, list) and label else label
    if not isinstance(label, str) or not label.strip():
        raise DataError(f"expected a label, got {label!r}", field=at)
    if start is None and isinstance(quote, str):
        places = answer.count(quote) if quote.strip() else 0
        if places != 1:
            raise DataError(f"the words {quote!r:.60} stand {places} times in the answer, expected once", field=at)
        start, end = answer.index(quote), answer.index(quote) + len(quote)
    if not isinstance(start, int) or not isinstance(end, int):
        raise DataError(f"expected start and end as whole numbers, got {start!r} and {end!r}", field=at)
    if isinstance(quote, str) and answer[start:end] != quote:
        raise DataError(f"at {start}:{end} of the answer stands {answer[start:end]!r:.60}, not {quote!r:.60}", field=at)
    return SpanError(start, end, label.strip())


def divided(found: Understood, seed: int) -> tuple[set[Asked], set[Asked]]:
    """Prompts to train on and to measure on: a tenth, at least 20 where that is no more than a fifth.

    Prompts with and without a faulted answer are dealt out evenly, so that the few to measure on hold both.

    Raises:
        ConfigError: the dev part would hold no prompt.
    """
    asked = list(found.prompts)
    count = max(len(asked) // 10, min(20, len(asked) // 5))
    if not count:
        raise ConfigError("too few prompts to hold some out")
    random.Random(seed).shuffle(asked)
    faulted = {one for one, record in found.feedback if record.feedback and record.feedback.errors}
    asked.sort(key=faulted.__contains__)
    dev = {asked[(2 * i + 1) * len(asked) // (2 * count)] for i in range(count)}
    return set(asked) - dev, dev
