"""Who plays the user: a script that says what the scene says, or a language model of its own that plays a persona.

A user's language model is never an agent's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Protocol

from finegrained_lab.protocols.pahf.scenes import Scene, read_personas
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.generation.protocol import TextGenerator
from finegrained_rlhf.core.markers import InputFile, Seed, at_least, at_most
from finegrained_rlhf.core.seeding import stable_hash
from finegrained_rlhf.personalization.prompts import ask_for_text

PLAY = "Play a user of an assistant."


class AdvisingUser(Protocol):
    """A simulated user, who knows what they want."""

    def answer(self, scene: Scene, question: str, phase: int) -> str:
        """f_pre, said to a question.

        Args:
            scene: the task.
            question: q_t.
            phase: of the protocol, from 1; in 3 and 4 preferences have changed.
        """
        ...

    def correct(self, scene: Scene, option: str, phase: int) -> str:
        """f_post, said of a wrong action.

        Args:
            scene: the task.
            option: that was chosen.
            phase: as for `answer`.
        """
        ...


@dataclass(frozen=True)
class ScriptedUser(Settings):
    """Says the scene's preference; of some wrong actions only that they were wrong.

    Attributes:
        terse: share of scenes and options of which only that is said.
        seed: of which these are.
    """

    terse: Annotated[float, at_least(0.0), at_most(1.0)] = 0.1
    seed: Seed = 0

    def answer(self, scene: Scene, question: str, phase: int) -> str:
        """The preference, whatever was asked."""
        return scene.preference

    def correct(self, scene: Scene, option: str, phase: int) -> str:
        """That it was wrong, and mostly the preference."""
        is_terse = stable_hash(self.seed, "terse", scene.id, option, phase) / 2**63 < self.terse
        return "That was not what I wanted." if is_terse else f"That was not what I wanted. {scene.preference}"


@dataclass(frozen=True)
class ModelUser(Settings):
    """A language model that plays personas. It is shown the scene and what is asked or was done, not what is right.

    Attributes:
        llm: the user's own.
        personas: Python file of personas in phases 1 and 2 (`prompt_NAME`), read as data; None gives the model the
            scene's preference as persona.
        changed_personas: of phases 3 and 4; None as `personas`.
    """

    llm: TextGenerator
    personas: InputFile | None = None
    changed_personas: InputFile | None = None

    def check(self, scenes: Mapping[int, Sequence[Scene]]) -> None:
        """That every scene's user has a persona.

        Args:
            scenes: by phase.

        Raises:
            DataError: a file is not as it should be, or a user has none.
        """
        for phase, own in scenes.items():
            for scene in own:
                self._persona(scene, phase)

    def answer(self, scene: Scene, question: str, phase: int) -> str:
        """What the model answers.

        Raises:
            ReplyError: it gives no answer.
            FineGrainedError: it is out of reach, or the user has no persona.
        """
        return self._says("persona_answer", scene, phase, question=question)

    def correct(self, scene: Scene, option: str, phase: int) -> str:
        """What the model says of a wrong action.

        Raises:
            FineGrainedError: as for `answer`.
        """
        return self._says("persona_feedback", scene, phase, action=option)

    def _says(self, template: str, scene: Scene, phase: int, **more: str) -> str:
        there = {"instruction": scene.instruction, "options": list(scene.options)}
        return ask_for_text(self.llm, template, PLAY, {"persona": self._persona(scene, phase), **there, **more})

    def _persona(self, scene: Scene, phase: int) -> str:
        changed = phase > 2 and self.changed_personas is not None
        path = self.changed_personas if changed else self.personas
        if path is None:
            return scene.preference
        personas = _personas(path)
        if scene.user.lower() not in personas:
            raise DataError(f"there is no persona of {scene.user}", file=path)
        return personas[scene.user.lower()]


@cache
def _personas(path: str) -> Mapping[str, str]:
    return read_personas(path)
