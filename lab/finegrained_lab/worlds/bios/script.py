"""The language model of BiosWorld: reads documents and what was said, and errs as often as it is told.

Knows prompts of `personalization.prompts` by their data. Does not know the truth: neither who is meant nor which
remarks hold.
"""

from __future__ import annotations

import bisect
import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any

from finegrained_lab.worlds.bios.lexicon import StatedFact, asked_for, facts_of, stated_in, statement
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.generation.asking import fenced_data
from finegrained_rlhf.core.generation.protocol import Generation, words_and_marks
from finegrained_rlhf.core.generation.schema import ReplySchema
from finegrained_rlhf.core.generation.wrappers import MemoryAnswers
from finegrained_rlhf.core.markers import Seed, at_least, at_most
from finegrained_rlhf.core.seeding import stable_hash

_TOKEN = re.compile(r"\w+|[^\w\s]")


class _Read:
    """A prompt that is being read; its random numbers are a function of a number and of their purpose."""

    def __init__(self, prompt: str, number: int) -> None:
        self.prompt = prompt
        self._random = random.Random(number)
        self._drawn: dict[tuple[str, ...], float] = {}

    def number(self, *what: str) -> float:
        """From 0 to 1, and the same for the same purpose."""
        if what not in self._drawn:
            self._drawn[what] = self._random.random()
        return self._drawn[what]

    def happens(self, share: float, *what: str) -> bool:
        return self.number(*what) < share

    def tokens_behind(self, place: int) -> int:
        """Words and marks of the prompt from a place on."""
        return len(self._starts) - bisect.bisect_left(self._starts, place)

    @cached_property
    def _starts(self) -> list[int]:
        return [match.start() for match in _TOKEN.finditer(self.prompt)]


@dataclass(frozen=True)
class BioScript(Settings):
    """A scripted language model for agents of `finegrained run-coreset`. Its errors are a function of the seed and the
    prompt.

    It answers for the people who fit all that was said and that it has not forgotten. Where nobody fits all of that, it
    goes, as often as it `resolves`, from the latest statement back as far as somebody fits; else it answers for
    everybody who fits any of it. It makes no difference between what a user said, a note and earlier reasoning.

    Attributes:
        noise: share of judgements that go wrong: whether a person fits a statement, whether an answer is listed,
            whether a sentence of a summary is kept.
        forgets: share of statements that are overlooked for each 1,000 words and marks of the prompt that stand behind
            them, compounded: 1 − (1 − forgets)^(n / 1000).
        resolves: share of prompts whose contradictions it settles in favour of what is newer.
        first_bias: share of single answers that are the first document's; others are anybody's.
        misjudges: share of its answers about a conflict that are wrong.
        seed: of its errors.
    """

    noise: Annotated[float, at_least(0.0), at_most(1.0)] = 0.01
    forgets: Annotated[float, at_least(0.0), at_most(1.0)] = 0.1
    resolves: Annotated[float, at_least(0.0), at_most(1.0)] = 0.3
    first_bias: Annotated[float, at_least(0.0), at_most(1.0)] = 0.8
    misjudges: Annotated[float, at_least(0.0), at_most(1.0)] = 0.02
    seed: Seed = 0
    _kept: MemoryAnswers = field(init=False, repr=False, compare=False, default_factory=lambda: MemoryAnswers(100_000))

    def generate(self, prompt: str, schema: ReplySchema | None = None) -> Generation:
        """A JSON object, as each template of CORESET's agents asks for. Tokens are words and marks.

        Raises:
            DataError: a prompt without fenced data.
        """
        number = stable_hash(self.seed, prompt)
        key = str(number)
        if kept := self._kept.get([key]):
            return Generation(*kept[key])
        text = json.dumps(self._reply(_Read(prompt, number), fenced_data(prompt)))
        made = (text, len(words_and_marks(prompt)), len(words_and_marks(text)))
        self._kept.put(key, made)
        return Generation(*made)

    def _reply(self, read: _Read, data: Mapping[str, Any]) -> dict[str, Any]:
        if "chosen" in data:
            return {"conflict": "yes" if self._conflict(read, data) else "no"}
        if "scratchpad" in data:
            return {"note": _line(data)}
        if "summary" in data:
            return {"summary": self._summary(read, data)}
        if '{"answer"' in read.prompt:
            return {"answer": self._single(read, data)}
        return self._answers(read, data)

    def _answers(self, read: _Read, data: Mapping[str, Any]) -> dict[str, Any]:
        people = [facts_of(document) for document in data["documents"]]
        question = asked_for(data["question"])
        stated = self._remembered(read, _remarks(data))
        meant, used = self._meant(read, people, stated)
        attribute = "" if question is None else question[0]
        listed = [
            people[i][attribute] for i in meant if attribute in people[i] and not self._errs(read, "list", str(i))
        ]
        answers = list(dict.fromkeys(listed))
        if '{"reasoning"' not in read.prompt:
            return {"answers": answers}
        name = "" if question is None else question[1]
        heard = dict.fromkeys(statement(name, one.attribute, one.value) for one in used)
        return {
            "reasoning": f"What holds: {' '.join(heard)} This fits {len(meant)} of the documents.",
            "answers": answers,
        }

    def _meant(
        self, read: _Read, people: Sequence[Mapping[str, str]], stated: Sequence[StatedFact]
    ) -> tuple[list[int], Sequence[StatedFact]]:
        """The people who fit what was said, each judged as it seems to the script, and what of it they fit."""

        def fits(i: int, facts: Sequence[StatedFact]) -> bool:
            return all(
                (people[i].get(one.attribute) == one.value)
                != self._errs(read, "fits", str(i), one.attribute, one.value)
                for one in facts
            )

        everybody = range(len(people))
        fitting = [i for i in everybody if fits(i, stated)]
        if fitting or not stated:
            return fitting, stated
        if read.happens(self.resolves, "resolve"):
            for begin in range(1, len(stated)):
                if fitting := [i for i in everybody if fits(i, stated[begin:])]:
                    return fitting, stated[begin:]
        return [i for i in everybody if any(fits(i, [one]) for one in stated)] or list(everybody), stated

    def _remembered(self, read: _Read, texts: Iterator[str]) -> list[StatedFact]:
        """What texts of the prompt state, in their order, without what is overlooked."""
        kept, place = list[StatedFact](), read.prompt.find("<data>")
        for number, text in enumerate(texts):
            written = json.dumps(text, ensure_ascii=False)[1:-1]
            begin = read.prompt.find(written, place)
            place = begin + len(written) if begin >= 0 else place
            for fact in stated_in(text):
                behind = read.tokens_behind(place - len(written) + fact.end)
                share = 1.0 - (1.0 - self.forgets) ** (behind / 1000)
                if not read.happens(share, "forget", str(number), fact.attribute, fact.value):
                    kept.append(fact)
        return kept

    def _conflict(self, read: _Read, data: Mapping[str, Any]) -> bool:
        """Whether nobody fits all; without documents, whether one fact has two values."""
        stated = [fact for text in [*data["chosen"], data["remark"]] for fact in stated_in(text)]
        if "documents" in data:
            people = [facts_of(document) for document in data["documents"]]
            conflict = not any(all(one.get(fact.attribute) == fact.value for fact in stated) for one in people)
        else:
            conflict = len({(fact.attribute, fact.value) for fact in stated}) > len({fact.attribute for fact in stated})
        return conflict != read.happens(self.misjudges, "conflict")

    def _summary(self, read: _Read, data: Mapping[str, Any]) -> str:
        """The sentences of the summary and of the remark; what the remark contradicts outright goes, if it resolves."""
        new = [data["remark"][: fact.end].strip() for fact in stated_in(data["remark"])[:1]]
        settled = {fact.attribute for text in new for fact in stated_in(text)}
        resolves = read.happens(self.resolves, "resolve")
        kept = [
            line
            for line in data["summary"].split("\n")
            if line
            and not (resolves and any(fact.attribute in settled for fact in stated_in(line)))
            and not self._errs(read, "keep", line)
        ]
        return "\n".join(dict.fromkeys([*(line for line in kept if line not in new), *new]))

    def _single(self, read: _Read, data: Mapping[str, Any]) -> str:
        question = asked_for(data["question"])
        answers = [facts_of(document).get(question[0] if question else "", "") for document in data["documents"]]
        if read.happens(self.first_bias, "first"):
            return answers[0]
        return answers[int(read.number("any") * len(answers))]

    def _errs(self, read: _Read, *what: str) -> bool:
        return read.happens(self.noise, *what)


def _remarks(data: Mapping[str, Any]) -> Iterator[str]:
    """The texts of a prompt that state who is meant, in their order."""
    yield from data.get("remarks", [])
    for turn in data.get("history", []):
        yield from (turn[name] for name in ("reasoning", "remark") if turn.get(name))
    if data.get("notes"):
        yield data["notes"]


def _line(data: Mapping[str, Any]) -> str:
    """What a turn adds to a scratchpad: the user's statement; else a single answer, as a statement, if it is new."""
    if facts := stated_in(data["remark"]):
        return str(data["remark"])[: facts[-1].end].strip()
    question = asked_for(data["question"])
    if question is None or len(data["answers"]) != 1:
        return ""
    line = statement(question[1], question[0], data["answers"][0])
    return "" if line in data["scratchpad"] else line
