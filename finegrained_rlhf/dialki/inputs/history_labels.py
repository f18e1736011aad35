"""Whose knowledge labels the history loss may use: of all turns, of fewer (thesis, 3.3.5), or of controls.

The target of an example, its `gold`, is never touched.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal, get_args

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.seeding import stable_hash
from finegrained_rlhf.dialki.records import DialogueExample
from finegrained_rlhf.dialogue.records import Knowledge, Turn

HistoryLabels = Literal["all", "agent", "half", "none", "current", "earlier", "random"]
"""All turns' labels, the agent's, a random half of the agent's, nobody's (3.3.5); the controls: the last user turn's
alone, all but that one, and for every label a random span in its place."""


def check_history_labels(which: str) -> None:
    """Raise ConfigError unless `which` is one of `HistoryLabels`."""
    if which not in get_args(HistoryLabels):
        raise ConfigError(f"history_labels: expected one of {', '.join(get_args(HistoryLabels))}, got {which!r}")


def keep_history_labels(example: DialogueExample, which: HistoryLabels, seed: int) -> DialogueExample:
    """The example with only those knowledge labels of its turns that `which` names.

    `half` and `random` follow from the seed, the opening turn, and the turn and its place, so that a turn keeps its
    label in all examples of its dialogue or in none, and has one random span in all of them (of dialogues about one
    document). A random span is drawn from all spans of the passages alike, the right one included.

    Raises:
        ConfigError: `which` is unknown.
    """
    check_history_labels(which)
    if which == "all":
        return example
    opening, last = example.turns[0].text, len(example.turns) - 1

    def drawn(place: int, turn: Turn) -> int:
        return stable_hash(seed, which, opening, place, turn.text)

    labels: dict[str, Callable[[int, Turn], Knowledge | None]] = {
        "none": lambda place, turn: None,
        "agent": lambda place, turn: turn.knowledge if turn.role == "agent" else None,
        "half": lambda place, turn: turn.knowledge if turn.role == "agent" and drawn(place, turn) % 2 == 0 else None,
        "current": lambda place, turn: turn.knowledge if place == last else None,
        "earlier": lambda place, turn: turn.knowledge if place < last else None,
        "random": lambda place, turn: turn.knowledge and _any_span(example, drawn(place, turn)),
    }
    label = labels[which]
    return replace(
        example, turns=tuple(replace(turn, knowledge=label(i, turn)) for i, turn in enumerate(example.turns))
    )


def _any_span(example: DialogueExample, number: int) -> Knowledge:
    spans = [Knowledge(p, s, s) for p, passage in enumerate(example.passages) for s in range(len(passage.spans))]
    return spans[number % len(spans)]
