"""Whose words a prompt holds: kept answers are dropped with their owner, and none that comes after that is kept.

An owner is a keyed hash, never a name.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


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
