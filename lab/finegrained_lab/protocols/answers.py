"""A language model whose answers are kept in a file, so that a run that is killed goes on without asking again."""

from __future__ import annotations

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.generation.protocol import TextGenerator
from finegrained_rlhf.core.generation.wrappers import CachedGenerator
from finegrained_rlhf.runtime.remote.cache import AnswerCache


def check_kept_answers(llm: TextGenerator, answers: str | None) -> None:
    """Raise ConfigError where answers are to be kept of a language model that does not say which one it is."""
    if answers is not None and not hasattr(llm, "identity"):
        raise ConfigError("answers: this language model does not say its identity; answers are kept of endpoints")


def with_kept_answers(llm: TextGenerator, answers: str | None) -> TextGenerator:
    """The language model, which asks the file first.

    Args:
        llm: with an `identity`, such as an endpoint's, where answers are kept.
        answers: SQLite file; None keeps none.
    """
    check_kept_answers(llm, answers)
    return llm if answers is None else CachedGenerator(llm, AnswerCache(answers, str(getattr(llm, "identity"))))  # noqa: B009
