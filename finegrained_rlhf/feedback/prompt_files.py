"""Prompts from files and from data sets of the Hub: QA-FEEDBACK's records, plain texts, and conversations.

A file is a JSON array, JSON lines or parquet. `datasets` and `pyarrow` are imported where a data set or a parquet file
is read. A conversation says who said what, in the format that trainers of chat models share: a message is `{role,
content}`; a row holds one conversation as `messages` (its last assistant's turn is the answer), or as `prompt` with or
without a `completion`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from finegrained_rlhf.core.checks import as_list, as_object, get_field, records_by_id, require, require_text, text_list
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json, read_jsonl
from finegrained_rlhf.core.hub import HubName, data_set_name, snapshot
from finegrained_rlhf.core.markers import DataName
from finegrained_rlhf.core.sources import Reading
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.feedback.outputs import passages_of_lists
from finegrained_rlhf.feedback.reading import read_examples
from finegrained_rlhf.feedback.records import QAExample, derived_id
from finegrained_rlhf.text.templates import conversation_task_text, conversation_text, task_text

SYSTEM, USER, ASSISTANT = "system", "user", "assistant"


@dataclass(frozen=True)
class Message:
    """One turn of a conversation.

    Attributes:
        role: `system`, `user`, `assistant`, or what else the model's chat template knows.
        content: what was said.
    """

    role: str
    content: str

    def __post_init__(self) -> None:
        require_text(self.role, "role")
        require_text(self.content, "content", empty=True)


@dataclass(frozen=True)
class Conversation:
    """What a policy is to answer, and how it was answered.

    Attributes:
        messages: at least one; the last is not the assistant's.
        answers: of the assistant; empty where there is none.
    """

    messages: tuple[Message, ...]
    answers: tuple[str, ...] = ()

    @property
    def question(self) -> str:
        """What was asked last."""
        return self.messages[-1].content

    @property
    def text(self) -> str:
        """All that was said, without roles."""
        return "\n".join(message.content for message in self.messages)


def read_messages(value: Any, field: str) -> tuple[Message, ...]:
    """Messages from `[{role, content}, …]`; a content may be text or a list of `{type: text, text}` parts.

    Raises:
        DataError: naming the field.
    """
    messages = []
    for number, item in enumerate(as_list(value, field)):
        place = f"{field}[{number}]"
        row = as_object(item, place)
        role = require_text(get_field(row, "role", f"{place}."), f"{place}.role")
        messages.append(Message(role, _content(get_field(row, "content", f"{place}."), f"{place}.content")))
    require(bool(messages), "expected at least one message, got none", field)
    return tuple(messages)


def _content(value: Any, field: str) -> str:
    if not isinstance(value, list):
        return require_text(value, field, empty=True)
    texts = []
    for number, item in enumerate(value):
        part, place = as_object(item, f"{field}[{number}]"), f"{field}[{number}]"
        require(part.get("type") == "text", f"expected a part of type text, got {part.get('type')!r}", f"{place}.type")
        texts.append(require_text(get_field(part, "text", f"{place}."), f"{place}.text", empty=True))
    return "".join(texts)


def conversation_of(row: Mapping[str, Any]) -> Conversation | None:
    """The conversation of a row; None where it holds none.

    Raises:
        DataError: naming the field.
    """
    if row.get("messages") is not None:
        return _split(read_messages(row["messages"], "messages"))
    if not isinstance(row.get("prompt"), list):
        return None
    messages = read_messages(row["prompt"], "prompt")
    require(messages[-1].role != ASSISTANT, "ends with the assistant's turn, expected what it answers", "prompt")
    return Conversation(messages, answers_of_completion(row))


def answers_of_completion(row: Mapping[str, Any]) -> tuple[str, ...]:
    """The answer that a row holds as `completion`, a text or one assistant's message; empty where there is none."""
    value = row.get("completion")
    if value is None:
        return ()
    if isinstance(value, str):
        return (require_text(value, "completion"),)
    messages = read_messages(value, "completion")
    alone = len(messages) == 1 and messages[0].role == ASSISTANT
    require(alone, "expected a text or one message of the assistant", "completion")
    return (require_text(messages[0].content, "completion[0].content"),)


def _split(messages: Sequence[Message]) -> Conversation:
    """A whole conversation: what stands before the assistant's last turn is asked."""
    answered = messages[-1].role == ASSISTANT
    prompt = tuple(messages[:-1] if answered else messages)
    require(bool(prompt), "expected a message before the assistant's answer", "messages")
    require(prompt[-1].role != ASSISTANT, "two turns of the assistant follow each other", "messages")
    if not answered:
        return Conversation(prompt)
    return Conversation(prompt, (require_text(messages[-1].content, f"messages[{len(prompt)}].content"),))


@dataclass(frozen=True)
class PromptInput:
    """A prompt as it was given.

    Attributes:
        id: unique within the source.
        text: exactly as the policy shall read it; of a conversation all that was said, without roles.
        metadata: `question`, `passages` and `references`, as far as the source has them: what reward models read;
            `turns`, what was said in a conversation that passages are to answer.
        messages: of a conversation, without the answer; empty for a text.
    """

    id: str
    text: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
    messages: tuple[Message, ...] = ()


@dataclass(frozen=True)
class PromptReading(Reading[PromptInput]):
    """What was read from a prompt file."""

    example: ClassVar[str] = "prompt"


@dataclass(frozen=True)
class PromptSource:
    """Where prompts are.

    Attributes:
        path: JSON array, JSON lines or parquet file, or `org/name:split` on the Hub.
    """

    path: DataName | Path

    @property
    def files(self) -> Mapping[str, Path]:
        """The file; none for a data set of the Hub."""
        return {} if self._on_hub() else {"path": Path(self.path)}

    def _on_hub(self) -> HubName | None:
        return None if Path(self.path).exists() else data_set_name(self.path)

    def read(self) -> PromptReading:
        """Read every prompt, in order.

        Raises:
            DataError: the source is missing, damaged or empty, a record has no prompt, or an id occurs twice.
        """
        name = self._on_hub()
        if name is not None:
            return self._of_rows(_hub_rows(name))
        if str(self.path).endswith(".parquet"):
            return self._of_rows(parquet_rows(self.path))
        beginning = _beginning(self.path)
        if beginning.startswith("["):
            return self._of_array()
        if beginning and not beginning.startswith(("{", "\ufeff")):  # of the mark its reader speaks
            raise DataError(
                "expected a JSON array of prompt records or one JSON object a line; for raw text use input=- < FILE",
                file=self.path,
            )
        return self._of_rows(read_jsonl(self.path))

    def _of_array(self) -> PromptReading:
        """A JSON array: of QA-FEEDBACK's records, which must be whole, or of texts and conversations."""
        rows = read_json(self.path)
        if rows and all(isinstance(row, dict) for row in rows) and any(_is_no_example(row) for row in rows):
            return self._of_rows(rows)
        return self._reading([_of_example(example) for example in read_examples(self.path)])

    def _of_rows(self, rows: Sequence[Mapping[str, Any]]) -> PromptReading:
        if not rows:
            raise DataError("holds no records, expected at least one", file=self.path)
        derived: dict[str, int] = {}

        def parse(row: Mapping[str, Any], number: int) -> PromptInput:
            name = f"record-{number}"
            prompt = prompt_of_row(row, name)
            if row.get("id") is not None or prompt.id == name:
                return prompt
            count = derived[prompt.id] = derived.get(prompt.id, 0) + 1
            return prompt if count == 1 else replace(prompt, id=f"{prompt.id}-{count}")

        return self._reading(list(records_by_id(rows, parse, self.path).values()))

    def _reading(self, items: Sequence[PromptInput]) -> PromptReading:
        return PromptReading.of(items, len(items), {}, {}, self.path)


def read_prompt_file(path: DataName | Path) -> list[PromptInput]:
    """The prompts of a file or of a data set of the Hub, in order (see `PromptSource`)."""
    return list(PromptSource(path).read().examples)


def _is_no_example(row: Mapping[str, Any]) -> bool:
    """Whether a row is no record of QA-FEEDBACK: a conversation, a text without a question, or the reverse."""
    if {"messages", "prompt", "turns"} & row.keys():
        return True
    if "text" in row:
        return not {"question", "passages"} & row.keys()
    return {"question", "passages"} <= row.keys()


def _beginning(path: str | Path) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read(4096).lstrip()
    except (FileNotFoundError, IsADirectoryError):
        raise DataError("no such file", file=path) from None


def parquet_rows(path: str | Path) -> list[dict[str, Any]]:
    """The rows of a parquet file.

    Raises:
        DataError: there is none, or it cannot be read.
    """
    import pyarrow
    from pyarrow import parquet

    try:
        rows: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
    except FileNotFoundError:
        raise DataError("no such file", file=path) from None
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"not a readable parquet file ({str(error).splitlines()[0]})", file=path) from None
    return rows


def _hub_rows(name: HubName) -> list[dict[str, Any]]:
    """The rows of a split, from the files of the data set in the cache."""
    import datasets

    directory = snapshot(name, "dataset")
    progress = datasets.is_progress_bar_enabled()
    datasets.disable_progress_bars()
    try:
        data_set = datasets.load_dataset(str(directory), name.config, split=name.split)
    except (OSError, ValueError, TypeError, KeyError, datasets.exceptions.DatasetsError) as raised:
        error: BaseException = raised
        while error.__cause__ is not None and str(error.__cause__):
            error = error.__cause__  # the outermost says only that something failed
        reason = " ".join(str(error).split())[:300]
        raise DataError(f"split {name.split} cannot be read ({reason})", file=name.name) from None
    finally:
        if progress:
            datasets.enable_progress_bars()
    return [dict(row) for row in data_set]


def _of_example(example: QAExample) -> PromptInput:
    known = {"question": example.question, "passages": example.passages, "references": example.references}
    return PromptInput(example.id, example.text, known)


def prompt_of_row(row: Mapping[str, Any], name: str = "record-0") -> PromptInput:
    """The prompt of a JSON object: a text, question and passages, a conversation, or turns with passages.

    Args:
        row: as it stands in a file; keys that are null count as absent.
        name: its id where it has none and question and passages give none.

    Raises:
        DataError: naming the field.
    """
    row = {key: value for key, value in row.items() if value is not None}
    talk = conversation_of(row)
    known: dict[str, Any] = {}
    key = next((key for key in ("text", "prompt") if row.get(key, "") != ""), None)
    if "question" in row and ("passages" in row or not (key or talk)):
        known["question"] = require_text(row["question"], "question")
        known["passages"] = _passages(get_field(row, "passages"))
    if "turns" in row:
        prompt = conversation_prompt(name, *_conversation(row))
        text, known = prompt.text, dict(prompt.metadata)
    elif talk is not None:
        text = talk.text
        passages = {"passages": _passages(row["passages"])} if "passages" in row else {}
        known = {"question": talk.question, **passages, **known}
    elif key is not None:
        text = _text_of(row[key], key)
    else:
        present = ", ".join(row) or "none"
        problem = f"expected text, or question and passages, or messages, or prompt (fields present: {present})"
        require(bool(known), problem, "text")
        text, name = task_text(**known), derived_id(**known)
    given_answers = talk.answers if talk is not None else answers_of_completion(row)
    if answers := (*given_answers, *text_list(row.get("answer", []), "answer")):
        known["references"] = answers
    if "replies" in row:
        known["replies"] = tuple(text_list(row["replies"], "replies"))
    name = name if row.get("id") is None else require_text(row["id"], "id")
    return PromptInput(name, text, known, () if talk is None else talk.messages)


def conversation_prompt(name: str, turns: Sequence[str], passages: Sequence[Passage]) -> PromptInput:
    """A conversation whose last turn passages are to answer.

    Args:
        name: id of the prompt.
        turns: what was said, the user first and last.
        passages: that an answer may name.
    """
    known = {"turns": tuple(turns), "question": conversation_text(turns), "passages": tuple(passages)}
    return PromptInput(name, conversation_task_text(turns, passages), known)


def _conversation(row: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[Passage, ...]]:
    """Turns and passages of a record."""
    turns = tuple(text_list(row["turns"], "turns"))
    odd = f"expected an odd number of utterances, the user's first and last, got {len(turns)}"
    require(len(turns) % 2 == 1, odd, "turns")
    for i, turn in enumerate(turns):
        require_text(turn, f"turns[{i}]")
    return turns, _passages(row.get("passages", []))


def _text_of(value: Any, key: str) -> str:
    """A text as it stands, or the `text` of an object, as RealToxicityPrompts has its prompts."""
    if isinstance(value, Mapping):
        return require_text(get_field(value, "text", f"{key}."), f"{key}.text")
    return require_text(value, key)


def _passages(value: Any) -> tuple[Passage, ...]:
    """Passages as `[title, sentence 1, …]`, `{"wikipage": title, "content": text}`, or `{"id", "title", "text"}`."""
    if isinstance(value, list) and value and all(isinstance(item, Mapping) and "text" in item for item in value):
        return tuple(_named(item, f"passages[{i}]") for i, item in enumerate(value))
    if isinstance(value, list):
        value = [
            [get_field(item, key, f"passages[{i}].") for key in ("wikipage", "content")]
            if isinstance(item, Mapping)
            else item
            for i, item in enumerate(value)
        ]
    return passages_of_lists(value)


def _named(item: Mapping[str, Any], field: str) -> Passage:
    """A passage with a name, which answers may give as their evidence."""
    name = require_text(get_field(item, "id", f"{field}."), f"{field}.id")
    text = require_text(item["text"], f"{field}.text", empty=True)
    title = item.get("title", "")
    require(isinstance(title, str), f"expected a text, got {type(title).__name__}", f"{field}.title")
    return Passage.uncut(name, text, title)
