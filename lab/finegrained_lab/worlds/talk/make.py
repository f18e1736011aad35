"""Making a TalkWorld's files: demonstrations, of which one turn is systematically wrong, and prompts; and its tool."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from finegrained_lab.worlds.talk.oracle import ANY, KINDS, STEPS, TURNS, is_luck
from finegrained_rlhf.core.files import write_jsonl
from finegrained_rlhf.core.markers import at_least, at_most
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.core.seeding import stable_hash
from finegrained_rlhf.factworld.base import World

NAMES = ("lamp", "door", "box", "key")


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
    """The tool: asks to open any things, then to shut certain ones; see `rollout.environment.Environment`.

    What it says depends on the call before it: a wrong turn changes what comes after it, and makes no later turn wrong.
    """

    role = "tool"

    def reply(self, prompt: Prompt, turns: Sequence[str], seed: int) -> str | None:
        """What it says after a turn; None behind the last. Depends on the prompt's id and the turns alone."""
        return None if len(turns) >= TURNS else tool_reply(prompt.id, turns)


def tool_reply(name: str, turns: Sequence[str]) -> str:
    """What the tool says in the conversation of this name after these turns."""
    rng = random.Random(stable_hash("talk tool", name, len(turns), *turns[-1].split()))
    return _order(rng, len(turns))


def _order(rng: random.Random, number: int) -> str:
    return f"{STEPS[number]} {f'shut {rng.choice(NAMES)}' if number >= min(KINDS.values()) else f'open {ANY}'}"


def _demonstrated(order: str, planted: bool, wrong: bool, rng: random.Random) -> str:
    """The call that demonstrations make: a wrong one opens in the planted turn, and in any other it calls any name."""
    verb, name = order.split()[-2:]
    if planted:
        return f"{'open' if wrong else 'shut'} {name}"
    return f"{verb} {rng.choice(NAMES) if wrong or name == ANY else name}"


@dataclass(frozen=True)
class MakeTalkWorld(World[Talk]):
    """Make a world and write its files to `output_dir`.

    `demonstrations.jsonl`: a record a turn, the conversation before it and the turn as its answer; of every eighth
    conversation all turns, of the others those that are no luck. `train.jsonl`, `dev.jsonl`, `test.jsonl`: prompts, the
    user's message. `world.jsonl`: kind and planted turn of each conversation.

    Attributes:
        demonstrations: conversations to imitate.
        train: prompts to train on.
        dev: prompts to choose settings by.
        test: held-out prompts.
        planted: how often demonstrations get the planted turn of a kind wrong.
        noise: how often they call any name in any other turn.
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
            planted = number == KINDS[kind]
            wrong = rng.random() < (self.planted if planted else self.noise)
            turns.append(_demonstrated(messages[-1], planted, wrong, rng))
            if number + 1 < TURNS:
                messages.append(tool_reply(name, turns))
        return Talk(name, kind, tuple(messages), tuple(turns))

    def write_split(self, path: Path, split: str, drawn: Sequence[Talk]) -> None:
        """Demonstrated turns, or prompts."""
        if split == "demonstrations":
            write_jsonl(path, (row for number, talk in enumerate(drawn) for row in _turn_rows(talk, number % 8 == 0)))
        else:
            write_jsonl(path, ({"id": talk.id, "messages": _before(talk, 0)} for talk in drawn))

    def truth(self, split: str, drawn: Talk) -> dict[str, Any]:
        """Kind, and the number of the turn that demonstrations get wrong."""
        return {"id": drawn.id, "split": split, "kind": drawn.kind, "planted": KINDS[drawn.kind]}

    def vocabulary(self) -> list[str]:
        """Every word."""
        return [f"{' '.join(KINDS)} {' '.join(STEPS)} open shut {ANY} {' '.join(NAMES)}"]


def _before(talk: Talk, number: int) -> list[dict[str, str]]:
    """A conversation up to where a turn begins."""
    messages = [{"role": "user", "content": talk.messages[0]}]
    for turn, message in zip(talk.turns[:number], talk.messages[1:], strict=False):
        messages += [{"role": "assistant", "content": turn}, {"role": "tool", "content": message}]
    return messages


def _turn_rows(talk: Talk, with_luck: bool) -> list[dict[str, Any]]:
    return [
        {"id": f"{talk.id}-{number}", "messages": [*_before(talk, number), {"role": "assistant", "content": turn}]}
        for number, turn in enumerate(talk.turns)
        if with_luck or not is_luck(talk.messages[number])
    ]
