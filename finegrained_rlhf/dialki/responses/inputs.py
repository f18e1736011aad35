"""What a response generator reads and learns: the dialogue and the knowledge of the next answer in one text.

Source: thesis, 3.3.5; the layout is that of the baseline which the thesis builds on (DialDoc 2021 shared task,
`seq2seq_utils.py`: the newest turn first, then title and document), with words in place of its tags, which a T5
tokenizer does not know.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.dialki.records import NO_PASSAGE, DialogueExample
from finegrained_rlhf.dialogue.records import Knowledge, Passage
from finegrained_rlhf.dialogue.tokens import plain_title
from finegrained_rlhf.feedback import records as feedback
from finegrained_rlhf.text.templates import squeeze

KnowledgeInput = Literal["none", "document", "span", "passage", "span_and_passage"]
KNOWLEDGE_INPUTS: tuple[KnowledgeInput, ...] = get_args(KnowledgeInput)


@dataclass(frozen=True)
class ResponseInput:
    """How a dialogue and its knowledge become the generator's input.

    `user: u_n agent: a_n-1 user: u_n-1 … | knowledge: SPANS | passage: TITLE: TEXT`. The newest turn comes first. A
    token limit cuts the end off: of a passage, or of a document, before anything else.

    Attributes:
        knowledge: what follows the dialogue: `none`; the whole `document`; the `span` (the run of spans); its
            `passage`; or both (`span_and_passage`).
        max_turns: the newest turns that are kept; None keeps all.
    """

    knowledge: KnowledgeInput
    max_turns: int | None = None

    def __post_init__(self) -> None:
        if self.knowledge not in KNOWLEDGE_INPUTS:
            raise ConfigError(f"knowledge: expected one of {', '.join(KNOWLEDGE_INPUTS)}, got {self.knowledge!r}")
        if self.max_turns is not None and self.max_turns < 1:
            raise ConfigError(f"max_turns: expected null or at least 1, got {self.max_turns}")

    @property
    def needs_places(self) -> bool:
        """Whether the input depends on where the knowledge is: not without any, and not with all of it."""
        return self.knowledge not in ("none", "document")

    def text(self, example: DialogueExample, places: Sequence[Knowledge] = ()) -> str:
        """The generator's input.

        Args:
            example: the dialogue with its passages.
            places: where the knowledge is, found or gold; not used where `needs_places` is False.

        Raises:
            DataError: the input needs a place, and there is none.
        """
        self._check(example, places)
        parts = [dialogue_text(example, self.max_turns)]
        if self.knowledge in ("span", "span_and_passage"):
            parts.append(f"knowledge: {squeeze(' '.join(map(example.text_of, places)))}")
        if self.knowledge in ("passage", "span_and_passage"):
            parts += [f"passage: {passage_text(passage)}" for passage in _passages_of(example, places)]
        elif self.knowledge == "document":
            parts += [f"passage: {passage_text(passage)}" for passage in example.passages if passage != NO_PASSAGE]
        return " | ".join(parts)

    def record(self, example: DialogueExample, places: Sequence[Knowledge] = ()) -> feedback.QAExample:
        """The prompt with the response as its reference, as SFT, PPO and evaluation read it.

        The question is the last user turn, the passages are what the input shows of them.

        Raises:
            DataError: the input needs a place and there is none, or the response is not known or blank.
        """
        if not has_response(example):
            raise DataError("expected the next agent turn in words, got none", record=example.id, field="response")
        assert example.response is not None
        return feedback.QAExample(
            id=example.id,
            question=example.turns[-1].text,
            text=self.text(example, places),
            references=(squeeze(example.response),),
            passages=self.shown(example, places),
        )

    def shown(self, example: DialogueExample, places: Sequence[Knowledge] = ()) -> tuple[Passage, ...]:
        """What the input shows of each passage, in the order of the input; empty without knowledge."""
        self._check(example, places)
        if self.knowledge == "none":
            return ()
        if self.knowledge == "span":
            return tuple(
                Passage(
                    "",
                    plain_title(passage.title),
                    tuple(example.text_of(place) for place in places if _at(example, place) is passage),
                )
                for passage in _passages_of(example, places)
            )
        passages = example.passages if self.knowledge == "document" else _passages_of(example, places)
        return tuple(
            Passage("", plain_title(passage.title), passage.spans) for passage in passages if passage != NO_PASSAGE
        )

    def _check(self, example: DialogueExample, places: Sequence[Knowledge]) -> None:
        if self.needs_places and not places:
            raise DataError(
                f"is not labelled; knowledge={self.knowledge} needs gold, or a DIALKI that finds it (dialki=RUN)",
                record=example.id,
                field="gold",
            )


def has_response(example: DialogueExample) -> bool:
    """Whether the next agent turn is known in words."""
    return bool(example.response and example.response.strip())


def dialogue_text(example: DialogueExample, max_turns: int | None = None) -> str:
    """`user: … agent: … user: …`: the newest turn first, at most `max_turns` of them."""
    turns = example.turns[::-1][:max_turns]
    return " ".join(f"{turn.role}: {squeeze(turn.text)}" for turn in turns)


def passage_text(passage: Passage) -> str:
    """`TITLE: TEXT`, without a title the text alone."""
    title, text = plain_title(passage.title), squeeze(" ".join(passage.spans))
    return f"{title}: {text}" if title else text


def _at(example: DialogueExample, place: Knowledge) -> Passage:
    return example.passages[place.passage]


def _passages_of(example: DialogueExample, places: Sequence[Knowledge]) -> list[Passage]:
    """The passages of places, each once, in the order of the places."""
    return [example.passages[i] for i in dict.fromkeys(place.passage for place in places)]
