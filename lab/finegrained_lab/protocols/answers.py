"""Language models whose answers are kept in a file, so that a run that is killed goes on without asking again."""

from __future__ import annotations

from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.generation.protocol import TextGenerator
from finegrained_rlhf.core.generation.wrappers import CachedGenerator, MeteredGenerator
from finegrained_rlhf.runtime.remote.cache import AnswerCache

User = TypeVar("User")


def check_kept_answers(llm: TextGenerator, answers: str | None) -> None:
    """Raise ConfigError where answers are to be kept of a language model that does not say which one it is."""
    if answers is not None and not hasattr(llm, "identity"):
        raise ConfigError("answers: this language model does not say its identity; answers are kept of endpoints")


class KeptModel:
    """A language model that is asked only what a file does not answer.

    Attributes:
        asked: what agents and users ask, and how often they did.
        paid: the language model itself, and how often it was asked.
        kept: its answers that the file had when it was opened; None without a file.

    Args:
        llm: with an `identity`, such as an endpoint's, where answers are kept.
        answers: SQLite file; None keeps none.

    Raises:
        ConfigError: answers are to be kept of a language model without an identity.
        DataError: it is no such file.
    """

    def __init__(self, llm: TextGenerator, answers: str | None) -> None:
        check_kept_answers(llm, answers)
        self.paid = self.asked = MeteredGenerator(llm)
        self.kept: int | None = None
        if answers is not None:
            file = AnswerCache(answers, str(getattr(llm, "identity")))  # noqa: B009
            self.kept = file.counts().get(file.identity, 0)
            self.asked = MeteredGenerator(CachedGenerator(self.paid, file))


def user_with_kept_answers(user: User, answers: str | None) -> tuple[User, KeptModel | None]:
    """A simulated user who asks a file of their own first, and their language model; None for one who has none.

    The file of `answers.sqlite` is `answers.user.sqlite`; of a language model without an identity nothing is kept.

    Args:
        user: a dataclass, with an `llm` where a language model plays the user.
        answers: SQLite file of the agent's answers; None keeps none.
    """
    llm = getattr(user, "llm", None)
    if llm is None or not is_dataclass(user):
        return user, None
    beside = None if answers is None or not hasattr(llm, "identity") else Path(answers)
    kept = KeptModel(llm, None if beside is None else str(beside.with_name(f"{beside.stem}.user{beside.suffix}")))
    return cast(User, replace(cast(Any, user), llm=kept.asked)), kept
