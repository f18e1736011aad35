"""Which parts of a response a component reads: each turn of the policy or the last, and of it what follows a mark.

A part is scored as a response of its own, to the prompt as it stood when it was begun; what is said of it is then moved
to where it stands in the whole response, so that the trace covers all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from finegrained_rlhf.core.records import Prompt, SegmentScores, Turns
from finegrained_rlhf.rewards.config import ComponentConfig


@dataclass(frozen=True)
class Part:
    """A part of a response.

    Attributes:
        row: the number of the response.
        prompt: what it answers: the conversation up to it.
        start: where it begins, in characters of the response.
        text: the part.
    """

    row: int
    prompt: Prompt
    start: int
    text: str


def parts_read(
    setting: ComponentConfig, prompts: Sequence[Prompt], responses: Sequence[str], turns: Sequence[Turns] = ()
) -> list[Part]:
    """What a component reads of R responses, in order; nothing of one whose environment failed.

    Args:
        setting: of the component.
        prompts: R prompts.
        responses: R texts.
        turns: of each response; empty: each is one turn.
    """
    parts = []
    for row, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        talk = turns[row] if turns else Turns(((0, 0),), ((0, len(response)),))
        if talk.failed:
            continue
        for number in range(len(talk.spans))[-1 if setting.turns == "last" else 0 :]:
            start, end = talk.spans[number]
            asked = _prompt_before(prompt, response, talk, number)
            start = _behind_mark(setting.after, asked.text, response, start, end)
            parts.append(Part(row, asked, start, response[start:end]))
    return parts


def _prompt_before(prompt: Prompt, response: str, talk: Turns, number: int) -> Prompt:
    """The prompt as it stood before a turn: the last of its `messages`, and its `question`, is the environment's."""
    if number == 0:
        return prompt
    messages = list(prompt.metadata.get("messages", ()))
    for (start, end), message in zip(talk.spans[:number], talk.messages, strict=False):
        messages += [{"role": "assistant", "content": response[start:end]}, dict(message)]
    known = {**prompt.metadata, "messages": tuple(messages), "question": messages[-1]["content"]}
    return replace(prompt, text=prompt.text + response[: talk.spans[number][0]], metadata=known)


def _behind_mark(mark: str | None, asked: str, response: str, start: int, end: int) -> int:
    """Where what follows the mark begins; `end` where the mark is awaited and does not come."""
    if mark is None or asked.rstrip().endswith(mark):
        return start
    place = response.find(mark, start, end)
    if place < 0:
        return end
    rest = response[place + len(mark) : end]
    return end - len(rest.lstrip())


def scores_of_responses(scores: SegmentScores, parts: Sequence[Part], responses: Sequence[str]) -> SegmentScores:
    """What a component says of R responses, from what it said of their parts.

    A response without a part, or with one that has no score, has no score.

    Args:
        scores: of the parts.
        parts: in the order of their responses.
        responses: R texts.
    """
    if [(part.row, part.text) for part in parts] == list(enumerate(responses)):
        return scores  # each was read whole
    rows = len(responses)
    spans: list[tuple[tuple[int, int], ...]] = [()] * rows
    values: list[tuple[float, ...]] = [()] * rows
    unscored = set(range(rows)) - {part.row for part in parts}
    unscored |= {parts[number].row for number in scores.unscored}
    for part, own, given in zip(parts, scores.spans, scores.values, strict=True):
        if part.row not in unscored:
            spans[part.row] += tuple((part.start + start, part.start + end) for start, end in own)
            values[part.row] += tuple(given)
    return SegmentScores(tuple(spans), tuple(values), scores.whole_response, frozenset(unscored), scores.counts)
