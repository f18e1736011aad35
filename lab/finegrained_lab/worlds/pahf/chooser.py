"""The language model of PahfWorld: does each step of PAHF by the words of the world, and errs as often as it is told.

Knows prompts of `personalization.prompts` by their data. Does not know the truth: neither rules nor intents.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from finegrained_lab.worlds.pahf.lexicon import KINDS, has_value, matter_of, note_of
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.generation.asking import fenced_data
from finegrained_rlhf.core.generation.protocol import Generation, words_and_marks
from finegrained_rlhf.core.generation.schema import ReplySchema
from finegrained_rlhf.core.markers import Seed, at_least, at_most
from finegrained_rlhf.core.seeding import stable_hash


@dataclass(frozen=True)
class ChoiceScript(Settings):
    """A scripted language model for `Pahf`. Its errors are a function of the seed and the prompt.

    Attributes:
        noise: share of steps that go wrong: cues that are not seen, another option than the one that is known to fit, a
            preference that is taken for none or for another value, a note that is added beside the one it replaces.
        overreach: share of instructions with a situation for which what is known in general is taken to be enough.
        seed: of its errors.
    """

    noise: Annotated[float, at_least(0.0), at_most(1.0)] = 0.05
    overreach: Annotated[float, at_least(0.0), at_most(1.0)] = 0.5
    seed: Seed = 0

    def generate(self, prompt: str, schema: ReplySchema | None = None) -> Generation:
        """A JSON object, as each template of PAHF asks for. Tokens are words and marks.

        Raises:
            DataError: a prompt without fenced data.
        """
        text = json.dumps(self._reply(prompt, fenced_data(prompt)))
        return Generation(text, len(words_and_marks(prompt)), len(words_and_marks(text)))

    def _reply(self, prompt: str, data: Mapping[str, Any]) -> dict[str, str]:
        if "notes" in data:
            return {"cues": self._cues(prompt, data)}
        if "existing" in data:
            return self._filed(prompt, data)
        if "remark" in data:
            return self._salient(prompt, data) if '{"salient"' in prompt else {"note": self._note(prompt, data)}
        if '{"decision"' in prompt:
            return self._decision(prompt, data)
        return {"choice": self._choice(prompt, data)}

    def _cues(self, prompt: str, data: Mapping[str, Any]) -> str:
        """The notes of this kind and situation, or else those of this kind in general."""
        matter = matter_of(data["instruction"])
        alike = [note for note in data["notes"] if matter_of(note).kind == matter.kind]
        same = [note for note in alike if matter_of(note).situation == matter.situation]
        cues = same or [note for note in alike if not matter_of(note).situation]
        return "" if self._errs(prompt, "cues") else " ".join(cues[:1])

    def _decision(self, prompt: str, data: Mapping[str, Any]) -> dict[str, str]:
        matter, known = matter_of(data["instruction"]), matter_of(data["cues"])
        fits = known.value is not None and known.situation == matter.situation
        reaches = known.value is not None and self._happens(self.overreach, prompt, "overreach")
        if fits or reaches:
            return {"decision": "act", "question": ""}
        when = f" when you are {matter.situation}" if matter.situation else ""
        return {"decision": "ask", "question": f"What {matter.kind} do you like{when}?"}

    def _choice(self, prompt: str, data: Mapping[str, Any]) -> str:
        """The number of the first option of the wanted value; any other where none is known, or by mistake."""
        wanted = matter_of(data.get("answer") or data["cues"]).value
        options = data["options"]
        fits = [i for i, option in enumerate(options) if wanted is not None and has_value(option, wanted)]
        if fits and not self._errs(prompt, "choice"):
            return str(fits[0] + 1)
        others = [i for i in range(len(options)) if i not in fits] or fits
        return str(others[stable_hash(self.seed, "guess", prompt) % len(others)] + 1)

    def _salient(self, prompt: str, data: Mapping[str, Any]) -> dict[str, str]:
        says = matter_of(data["remark"]).value is not None and not self._errs(prompt, "salient")
        return {"salient": "yes" if says else "no"}

    def _note(self, prompt: str, data: Mapping[str, Any]) -> str:
        matter = matter_of(data["remark"])
        if matter.kind is None or matter.value is None:
            return ""
        value = matter.value
        if self._errs(prompt, "note"):
            others = sorted(KINDS[matter.kind].values - {value})
            value = others[stable_hash(self.seed, "value", prompt) % len(others)]
        return note_of(matter.kind, matter.situation, value)

    def _filed(self, prompt: str, data: Mapping[str, Any]) -> dict[str, str]:
        """A note about the same matter is replaced; one that says the same is merged with it."""
        new = matter_of(data["note"])
        for number, line in enumerate(data["existing"], start=1):
            old = matter_of(line)
            if (old.kind, old.situation) == (new.kind, new.situation) and not self._errs(prompt, "filed"):
                operation = "merge" if old.value == new.value else "replace"
                return {"operation": operation, "number": str(number), "note": data["note"]}
        return {"operation": "add", "number": "", "note": ""}

    def _errs(self, prompt: str, step: str) -> bool:
        return self._happens(self.noise, prompt, step)

    def _happens(self, share: float, *what: str) -> bool:
        return stable_hash(self.seed, "happens", *what) / 2**63 < share
