"""The agents of CORESET's conversations by name: `coreset_recency_exact` is algorithm 1 with exact conflicts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.generation.protocol import TextGenerator
from finegrained_rlhf.personalization.learners.conversation import (
    QUESTION_TASK,
    ChainOfThought,
    ConversationAgent,
    FullMemory,
    HoldingRemarks,
    InContext,
    Scratchpad,
    SummarisedMemory,
    WithoutMemory,
)
from finegrained_rlhf.personalization.learners.coreset import SELECTIONS, Coreset, RandomWindow
from finegrained_rlhf.personalization.retrieval.encoders import ContextEncoder, HashedWords
from finegrained_rlhf.personalization.selection import (
    ConflictCheck,
    EmbeddedConflicts,
    ExactConflicts,
    ModelConflicts,
)
from finegrained_rlhf.personalization.store.protocol import MemoryStore

CONFLICT_CHECKS = ("model", "embedding", "exact")
"""Who looks for conflicts: the language model, vectors, the documents' facts."""
_PLAIN: Mapping[str, type[ConversationAgent]] = {
    "no_feedback": WithoutMemory,
    "icl": InContext,
    "cot": ChainOfThought,
    "full_memory": FullMemory,
    "scratchpad": Scratchpad,
    "summarised_memory": SummarisedMemory,
}
CORESETS = tuple(f"coreset_{selection}_{check}" for selection in SELECTIONS for check in CONFLICT_CHECKS)
"""Every selection with every check."""
DEFAULT_AGENTS = (
    *_PLAIN,
    *("coreset_recency_model", "coreset_recency_embedding", "coreset_recency_exact"),
    *("coreset_greedy_model", "coreset_greedy_exact", "coreset_largest_exact"),
    *("random_window", "holding_remarks"),
)
"""The paper's agents; `no_feedback` and `random_window` are controls, `holding_remarks` is a ceiling of selection."""
CONVERSATION_AGENTS = (*_PLAIN, *CORESETS, "random_window", "holding_remarks")
"""All names."""


@dataclass(frozen=True)
class ConversationSettings:
    """What agents are made with.

    Attributes:
        k: remarks that CORESET retrieves; None retrieves all.
        threshold: the lowest cosine of remarks that do not contradict each other, for `embedding`.
        with_documents: whether the language model is shown the documents when it looks for a conflict.
        encoder: of questions and remarks; None is words.
        task: of the agent, in a sentence for the language model.
    """

    k: int | None = None
    threshold: float = 0.5
    with_documents: bool = True
    encoder: ContextEncoder | None = None
    task: str = QUESTION_TASK


def check_conversation_agent(name: str) -> None:
    """Refuse a name that no agent has.

    Raises:
        ConfigError: it is one.
    """
    if name not in CONVERSATION_AGENTS:
        raise ConfigError(f"agents: expected some of {', '.join(CONVERSATION_AGENTS)}, got {name!r}")


def make_conversation_agent(
    name: str,
    memory: MemoryStore,
    llm: TextGenerator,
    holding: Callable[[str], Sequence[str]],
    settings: ConversationSettings,
) -> ConversationAgent:
    """The agent of a name.

    Args:
        name: one that `check_conversation_agent` takes.
        memory: that it alone uses.
        llm: a language model.
        holding: the keys of the turns whose remarks hold, by a turn's key, which `holding_remarks` alone is given.
        settings: of all agents.

    Raises:
        ConfigError: no such agent, or a setting outside its range.
    """
    check_conversation_agent(name)
    if name in _PLAIN:
        return _PLAIN[name](memory, llm, task=settings.task)
    if name == "holding_remarks":
        return HoldingRemarks(memory, llm, holding, task=settings.task)
    kind = RandomWindow if name == "random_window" else Coreset
    selection, check = ("recency", "exact") if name == "random_window" else name.split("_")[1:]
    conflicts = _conflicts(check, llm, settings)
    return kind(memory, llm, conflicts, selection, settings.k, encoder=settings.encoder, task=settings.task)


def _conflicts(check: str, llm: TextGenerator, settings: ConversationSettings) -> ConflictCheck:
    if check == "exact":
        return ExactConflicts()
    if check == "embedding":
        return EmbeddedConflicts(settings.encoder or HashedWords(), settings.threshold)
    return ModelConflicts(llm, settings.with_documents)
