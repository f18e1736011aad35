"""Text generators around others: a script, a meter of calls and tokens, kept answers.

Kept answers are dropped with the owner of the words in their prompts (a keyed hash, never a name), and none that comes
after that is kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from threading import Lock
from typing import Any, Protocol

from finegrained_rlhf.core.checks import require_text
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.generation.outcomes import Outcome, ReplyError
from finegrained_rlhf.core.generation.protocol import (
    LONGEST_TEXT,
    Generation,
    TextGenerator,
    generated,
    words_and_marks,
)
from finegrained_rlhf.core.generation.schema import ReplySchema


@dataclass(frozen=True)
class AnswerOwner:
    """A user as those who keep answers know them.

    Attributes:
        name: a keyed hash of the user's name.
        place: where the user's epoch is counted; few other users share it.
        epoch: a number that is higher after each time the user was forgotten. Answers to prompts that were begun in an
            earlier epoch are not kept.
    """

    name: str
    place: str
    epoch: int


_owner: ContextVar[AnswerOwner | None] = ContextVar("answer_owner", default=None)


@contextmanager
def asked_for(owner: AnswerOwner) -> Iterator[None]:
    """All that is asked within, in this thread or task, holds the words of an owner, as they were when it began."""
    token = _owner.set(owner)
    try:
        yield
    finally:
        _owner.reset(token)


def answer_owner() -> AnswerOwner | None:
    """Whose words a prompt holds that is asked now; None: nobody has said so."""
    return _owner.get()


class ScriptedGenerator:
    """Answers from a script, for tests and generated worlds. Tokens are words and marks.

    Attributes:
        prompts: that it was given, in order.

    Args:
        answers: a function of the prompt, or texts that are given one after the other.
    """

    def __init__(self, answers: Callable[[str], str] | Sequence[str]) -> None:
        self._answers = answers
        self.prompts: list[str] = []

    def generate(self, prompt: str, schema: ReplySchema | None = None) -> Generation:
        """The script's text.

        Raises:
            ConfigError: a script of texts has come to its end.
        """
        self.prompts.append(prompt)
        if callable(self._answers):
            text = self._answers(prompt)
        elif len(self.prompts) > len(self._answers):
            raise ConfigError(f"the script has {len(self._answers)} texts, and was asked for one more")
        else:
            text = self._answers[len(self.prompts) - 1]
        return Generation(text, len(words_and_marks(prompt)), len(words_and_marks(text)))


@dataclass(frozen=True)
class Expense:
    """What was asked of a language model.

    Attributes:
        calls: how often.
        tokens_in: of all prompts.
        tokens_out: of all texts.
        odd: replies that could not be used: refused, failed, empty, longer than `LONGEST_TEXT`, or not as the schema
            asks.
    """

    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    odd: int = 0


class MeteredGenerator:
    """Counts the calls, tokens and odd replies of another generator.

    A call that fails is one where its service says what it cost (`ReplyError.paid`), else it is none and has no tokens.

    Threads may share it.

    Outside a `CachedGenerator` it counts what was asked, inside it what was paid for.

    Attributes:
        expense: until now.
        unreadable: of its calls, those whose reply could not be read: what is asked for again.
    """

    def __init__(self, generator: TextGenerator) -> None:
        self._generator = generator
        self.expense, self.unreadable = Expense(), 0
        self._lock = Lock()

    def generate(self, prompt: str, schema: ReplySchema | None = None) -> Generation:
        """The other generator's text."""
        try:
            made = generated(self._generator, prompt, schema)
        except ReplyError as error:
            paid = Expense(odd=1) if error.paid is None else Expense(1, *error.paid, odd=1)
            self._count(paid, paid.calls if error.outcome is Outcome.UNREADABLE else 0)
            raise
        odd = int(not _usable(made.text, schema))
        self._count(Expense(1, made.tokens_in, made.tokens_out, odd), odd)
        return made

    def _count(self, more: Expense, unreadable: int) -> None:
        with self._lock:
            self.unreadable += unreadable
            so_far = vars(self.expense)
            self.expense = Expense(**{name: so_far[name] + number for name, number in vars(more).items()})

    def clear(self, owner: AnswerOwner | None = None) -> None:
        """Let the other generator drop the answers that it keeps, or an owner's; what was counted stays."""
        drop_kept_answers(self._generator, owner)


class KeptAnswers(Protocol):
    """Where answers are kept, such as `runtime.remote.cache.AnswerCache`."""

    def get(self, questions: Iterable[str]) -> dict[str, Any]:
        """The answers that are kept, by question."""
        ...

    def put(self, question: str, answer: Any, owner: AnswerOwner | None = None) -> None:
        """Keep an answer, a JSON value, unless its owner's answers were dropped after the owner's epoch."""
        ...

    def drop(self, question: str) -> None:
        """Drop the answer to a question, if one is kept."""
        ...

    def clear(self, owner: AnswerOwner | None = None) -> None:
        """Drop every answer; or those of an owner from before the owner's epoch, and those without an owner.

        Nothing of an earlier epoch of this owner is kept from then on.
        """
        ...


class MemoryAnswers:
    """Answers kept in memory, the latest `limit` of them. Threads may share them.

    Raises:
        ConfigError: a limit below 1.
    """

    def __init__(self, limit: int = 10_000) -> None:
        if limit < 1:
            raise ConfigError(f"limit: expected at least 1, got {limit}")
        self._limit = limit
        self._kept: OrderedDict[str, tuple[Any, AnswerOwner | None]] = OrderedDict()
        self._epochs: dict[str, int] = {}
        self._lock = Lock()

    def get(self, questions: Iterable[str]) -> dict[str, Any]:
        """The answers that are kept, by question."""
        with self._lock:
            return {question: self._kept[question][0] for question in questions if question in self._kept}

    def put(self, question: str, answer: Any, owner: AnswerOwner | None = None) -> None:
        """Keep an answer, as `KeptAnswers.put` says; the oldest is dropped where there are too many."""
        with self._lock:
            if owner is not None and owner.epoch < self._epochs.get(owner.place, 0):
                return
            self._kept[question] = answer, owner
            while len(self._kept) > self._limit:
                self._kept.popitem(last=False)

    def drop(self, question: str) -> None:
        """Drop the answer to a question, if one is kept."""
        with self._lock:
            self._kept.pop(question, None)

    def clear(self, owner: AnswerOwner | None = None) -> None:
        """Drop answers, as `KeptAnswers.clear` says."""
        with self._lock:
            if owner is None:
                self._kept.clear()
                return
            self._epochs[owner.place] = max(owner.epoch, self._epochs.get(owner.place, 0))
            for question, (_, of) in list(self._kept.items()):
                if of is None or (of.name == owner.name and of.epoch < owner.epoch):
                    del self._kept[question]


class CachedGenerator:
    """Asks another generator only what it was not asked before. For generators that decode greedily.

    Answers hold what users wrote. Each is kept with its owner (`asked_for`), and a learner that forgets a user drops
    the user's (`clear`), with all those whose owner nobody has said.

    Args:
        generator: that is asked.
        answers: where they are kept; in memory by default. A file must belong to this generator alone (its identity
            names the model and every setting).
    """

    def __init__(self, generator: TextGenerator, answers: KeptAnswers | None = None) -> None:
        self._generator = generator
        self._answers = MemoryAnswers() if answers is None else answers

    def generate(self, prompt: str, schema: ReplySchema | None = None) -> Generation:
        """The kept text of this prompt, or a new one. Texts that are empty, longer than `LONGEST_TEXT` or not as
        the schema asks are not kept.
        """
        kept = self._answers.get([prompt])
        if prompt in kept:
            made = Generation(**kept[prompt])
            if _usable(made.text, schema):
                return made
            self._answers.drop(prompt)
        made = generated(self._generator, prompt, schema)
        if _usable(made.text, schema):
            answer = {"text": made.text, "tokens_in": made.tokens_in, "tokens_out": made.tokens_out}
            self._answers.put(prompt, answer, answer_owner())
        return made

    def clear(self, owner: AnswerOwner | None = None) -> None:
        """Drop every kept answer, or an owner's, as `KeptAnswers.clear` says."""
        self._answers.clear(owner)
        drop_kept_answers(self._generator, owner)


def _usable(text: str, schema: ReplySchema | None) -> bool:
    if schema is not None:
        return schema.reads(text)
    try:
        require_text(text, "reply")
    except DataError:  # it is blank, or no text
        return False
    return len(text.strip()) <= LONGEST_TEXT


def drop_kept_answers(generator: object, owner: AnswerOwner | None = None) -> None:
    """Let a generator drop the answers that it keeps, if it keeps any (it then has `clear`).

    Args:
        generator: a text generator, or what asks one.
        owner: whose answers; None: all.
    """
    clear = getattr(generator, "clear", None)
    if callable(clear):
        clear(owner)
