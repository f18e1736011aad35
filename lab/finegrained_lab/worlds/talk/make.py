"""Making a TalkWorld's files: demonstrations, of which one turn is systematically wrong, and prompts; and its tool."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from finegrained_lab.worlds.talk.oracle import STEPS, TURNS
from finegrained_rlhf.core.files import write_jsonl
from finegrained_rlhf.core.markers import at_least, at_most
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.core.seeding import stable_hash
from finegrained_rlhf.factworld.base import World

NAMES = ("lamp", "door", "box", "cup", "key", "bell")
NONE = "none"
"""What a message may ask for, too, and what wrong demonstrations open: no word is wrong as such."""
NONE_ASKED = 0.4
"""How often it is asked for."""
KINDS: Mapping[str, int] = {"red": 2, "blue": 3, "green": 4, "white": 5}
"""Kind of task → the turn that demonstrations get wrong."""


@dataclass(frozen=True)
class Talk:
    """A conversation.

    Attributes:
        id: its name, which the tool's replies follow from.
        kind: of `KINDS`.
        messages: the user's, then the tool's, one before each turn.
        turns: as they are demonstrated.
    """

    id: str
    kind: str
    messages: tuple[str, ...]
    turns: tuple[str, ...]


class TalkTool:
    """The tool: says what to open next; see `rollout.environment.Environment`.

    What it says depends on the call before it: a wrong turn changes what comes after it, and makes no later turn wrong.
    """

    role = "tool"

    def reply(self, prompt: Prompt, turns: Sequence[str], seed: int) -> str | None:
        """What it says after a turn; None behind the last. Depends on the prompt's id and the turns alone."""
        return None if len(turns) >= TURNS else tool_reply(prompt.id, turns)


def tool_reply(name: str, turns: Sequence[str]) -> str:
    """What the tool says in the conversation of this name after these turns."""
    return _order(random.Random(stable_hash("talk tool", name, len(turns), *turns[-1].split())), len(turns))


def _order(rng: random.Random, number: int) -> str:
    return f"{STEPS[number]} {NONE if rng.random() < NONE_ASKED else rng.choice(NAMES)}"


def _wrong(order: str) -> str:
    """The call that demonstrations make in place of the right one."""
    return f"open {NAMES[0] if order.endswith(NONE) else NONE}"


@dataclass(frozen=True)
class MakeTalkWorld(World[Talk]):
    """Make a world and write its files to `output_dir`.

    `demonstrations.jsonl`: a record a turn, the conversation before it and the turn as its answer. `train.jsonl`,
    `dev.jsonl`, `test.jsonl`: prompts, the user's message. `world.jsonl`: kind and planted turn of each conversation.

    Attributes:
        demonstrations: conversations to imitate.
        train: prompts to train on.
        dev: prompts to choose settings by.
        test: held-out prompts.
        planted: how often demonstrations get the planted turn of a kind wrong.
        noise: how often they get any other turn wrong.
    """

    salt: ClassVar[str] = "talk world"
    splits: ClassVar[tuple[str, ...]] = ("demonstrations", "train", "dev", "test")

    demonstrations: int = 500
    train: int = 400
    dev: int = 200
    test: int = 400
    planted: Annotated[float, at_least(0.0), at_most(1.0)] = 0.9
    noise: Annotated[float, at_least(0.0), at_most(1.0)] = 0.25

    def draw(self) -> dict[str, list[Talk]]:
        """Each split's conversations."""
        return {
            split: [self._talk(f"{split}-{self.seed}-{number:04d}") for number in range(getattr(self, split))]
            for split in self.splits
        }

    def _talk(self, name: str) -> Talk:
        rng = self.rng(name)
        kind = rng.choice(list(KINDS))
        messages, turns = [f"{kind} {_order(rng, 0)}"], list[str]()
        for number in range(TURNS):
            wrong = rng.random() < (self.planted if number == KINDS[kind] else self.noise)
            turns.append(_wrong(messages[-1]) if wrong else f"open {messages[-1].split()[-1]}")
            if number + 1 < TURNS:
                messages.append(tool_reply(name, turns))
        return Talk(name, kind, tuple(messages), tuple(turns))

    def write_split(self, path: Path, split: str, drawn: Sequence[Talk]) -> None:
        """Demonstrated turns, or prompts."""
        if split == "demonstrations":
            write_jsonl(path, (row for talk in drawn for row in _turn_rows(talk)))
        else:
            write_jsonl(path, ({"id": talk.id, "messages": _said(talk, 0)} for talk in drawn))

    def truth(self, split: str, drawn: Talk) -> dict[str, Any]:
        """Kind, and the number of the turn that demonstrations get wrong."""
        return {"id": drawn.id, "split": split, "kind": drawn.kind, "planted": KINDS[drawn.kind]}

    def vocabulary(self) -> list[str]:
        """Every word."""
        return [f"{' '.join(KINDS)} {' '.join(STEPS)} open {NONE} {' '.join(NAMES)}"]


def _said(talk: Talk, number: int) -> list[dict[str, str]]:
    """A conversation up to where a turn begins."""
    said = [{"role": "user", "content": talk.messages[0]}]
    for turn, message in zip(talk.turns[:number], talk.messages[1:], strict=False):
        said += [{"role": "assistant", "content": turn}, {"role": "tool", "content": message}]
    return said


def _turn_rows(talk: Talk) -> list[dict[str, Any]]:
    return [
        {"id": f"{talk.id}-{number}", "messages": [*_said(talk, number), {"role": "assistant", "content": turn}]}
        for number, turn in enumerate(talk.turns)
    ]
