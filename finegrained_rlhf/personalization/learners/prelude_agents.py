"""The agents of PRELUDE by name: `cipher_5` is CIPHER with k = 5."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.generation.protocol import TextGenerator, words_and_marks
from finegrained_rlhf.personalization.edits import Tokenise
from finegrained_rlhf.personalization.learners.base import TASK, Learner
from finegrained_rlhf.personalization.learners.cipher import Cipher
from finegrained_rlhf.personalization.learners.in_context import CotEdit, IclEdit
from finegrained_rlhf.personalization.learners.without_context import (
    Continual,
    ExploreThenExploit,
    NoLearning,
    Oracle,
)
from finegrained_rlhf.personalization.retrieval.encoders import ContextEncoder
from finegrained_rlhf.personalization.store.protocol import MemoryStore

AGENTS = (
    "oracle",
    "no_learning",
    "explore_then_exploit",
    "continual",
    "icl_edit_5",
    "cot_edit_5",
    "cipher_1",
    "cipher_5",
)
"""The agents of the paper; `icl_edit_K`, `cot_edit_K` and `cipher_K` take any K."""
_NAME = re.compile(r"oracle|no_learning|explore_then_exploit|continual|(icl_edit|cot_edit|cipher)_([1-9]\d*)")


@dataclass(frozen=True)
class AgentSettings:
    """What agents are made with.

    Attributes:
        explore_rounds: T_e of explore-then-exploit.
        last: edits that `continual` infers from.
        delta: δ of CIPHER.
        encoder: φ; None is words.
        task: what is to be written, in a sentence for the language model.
        tokenise: tokens in which edits are counted.
    """

    explore_rounds: int = 5
    last: int = 5
    delta: float = 0.0
    encoder: ContextEncoder | None = None
    task: str = TASK
    tokenise: Tokenise = words_and_marks


def check_agent(name: str, *others: str, key: str = "agents") -> None:
    """Refuse a name that no agent has.

    Args:
        name: that was given.
        others: that may be given, too.
        key: that it was given by.

    Raises:
        ConfigError: it is one.
    """
    if not isinstance(name, str) or (_NAME.fullmatch(name) is None and name not in others):
        raise ConfigError(f"{key}: expected names like {', '.join((*AGENTS, *others))}, got {name!r}")


def make_agent(
    name: str, memory: MemoryStore, llm: TextGenerator, truth: Callable[[str], str], settings: AgentSettings
) -> Learner:
    """The agent of a name.

    Args:
        name: one that `check_agent` takes.
        memory: that it alone uses.
        llm: a language model.
        truth: the true preference for a context, which the oracle alone is given.
        settings: of all agents.

    Raises:
        ConfigError: no such agent, or a setting outside its range.
    """
    check_agent(name)
    kind, _, k = name.rpartition("_")
    encoder = settings.encoder
    own: dict[str, Any] = {"task": settings.task, "tokenise": settings.tokenise}
    if name == "oracle":
        return Oracle(memory, llm, truth, **own)
    if name == "no_learning":
        return NoLearning(memory, llm, **own)
    if name == "explore_then_exploit":
        return ExploreThenExploit(memory, llm, settings.explore_rounds, **own)
    if name == "continual":
        return Continual(memory, llm, settings.last, **own)
    if kind == "icl_edit":
        return IclEdit(memory, llm, int(k), encoder, **own)
    if kind == "cot_edit":
        return CotEdit(memory, llm, int(k), encoder, **own)
    return Cipher(memory, llm, int(k), settings.delta, encoder, **own)
