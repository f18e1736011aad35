"""The prompt of a few-shot rewriter, which demonstrations stand in it, and what of an answer is the rewrite."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from finegrained_rlhf.conqrr.records import RewriteExample
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import Seed, at_least
from finegrained_rlhf.core.seeding import stable_hash

INSTRUCTION = (
    "Rewrite the last question of each conversation so that it can be understood without the conversation. "
    "Keep its meaning, add only what the conversation says, and write nothing but the question, on one line."
)
"""The default; the wording is this project's own, of no paper."""
_THOUGHT = re.compile(r"<think>.*?(</think>|\Z)", re.DOTALL)
_LABEL = re.compile(r"^(rewrite|rewritten question|question|q)\s*:\s*", re.IGNORECASE)
_QUOTES = {'"': '"', "'": "'", "“": "”", "«": "»", "`": "`"}


@dataclass(frozen=True)
class FewShotConfig(Settings):
    """What stands in the prompt.

    Attributes:
        shots: demonstrations; 0 gives the instruction alone.
        seed: of the choice of demonstrations.
        instruction: what is asked.
        max_words: longest conversation in words, the last question not counted: whole turns are dropped, oldest first.
    """

    shots: Annotated[int, at_least(0)] = 4
    seed: Seed = 0
    instruction: str = INSTRUCTION
    max_words: Annotated[int, at_least(0)] = 300

    def __post_init__(self) -> None:
        if not self.instruction.strip():
            raise ConfigError("few_shot.instruction: expected some text")


def ranked_demonstrations(examples: Sequence[RewriteExample], seed: int) -> list[RewriteExample]:
    """The questions that can be demonstrations, one a dialogue, in a random order that the seed and their ids fix.

    A demonstration is a later question with a human rewrite that is another text than the question.
    """
    useful = [e for e in examples if e.history and e.rewrite is not None and e.rewrite.strip() != e.question.strip()]
    useful.sort(key=lambda example: (stable_hash(seed, "demonstration", example.id), example.id))
    first: dict[str, RewriteExample] = {}
    for example in useful:
        first.setdefault(example.dialogue, example)
    return list(first.values())


def few_shot_prompt(example: RewriteExample, ranked: Sequence[RewriteExample], config: FewShotConfig) -> str:
    """The prompt for a question: instruction, demonstrations, the conversation and a cue.

    Args:
        example: the question.
        ranked: demonstrations, as `ranked_demonstrations` orders them. The first `config.shots` of other dialogues are
            taken, so that all questions have the same ones, unless one is of their own dialogue.
        config: what stands in the prompt.

    Raises:
        DataError: there are too few demonstrations.
    """
    chosen = [one for one in ranked if one.dialogue != example.dialogue][: config.shots]
    if len(chosen) < config.shots:
        problem = f"expected {config.shots} dialogues with a demonstration beside its own, got {len(chosen)}"
        raise DataError(problem, record=example.id)
    shown = [f"{_conversation(one, config.max_words)}\nRewrite: {_line(one.rewrite or '')}" for one in chosen]
    return "\n\n".join([config.instruction.strip(), *shown, f"{_conversation(example, config.max_words)}\nRewrite:"])


def rewrite_in(answer: str) -> str:
    """The rewrite in what a model said: its first line with text, without a label or quotation marks; may be empty.

    What a model thought before it (`<think>…</think>`) is no answer.
    """
    lines = (line.strip() for line in _THOUGHT.sub("", answer).splitlines())
    line = next((line for line in lines if line), "")
    line = _LABEL.sub("", line).strip()
    if len(line) > 1 and _QUOTES.get(line[0]) == line[-1]:
        line = line[1:-1].strip()
    return line


def line_is_whole(answer: str, finished: bool) -> bool:
    """Whether the first line of an answer ended before the limit of tokens did: the model stopped, or went on below."""
    return finished or "\n" in _THOUGHT.sub("", answer).strip(" \t").lstrip()


def _conversation(example: RewriteExample, max_words: int) -> str:
    kept: list[str] = []
    left = max_words
    for place in reversed(range(len(example.history))):
        text = _line(example.history[place])
        left -= len(text.split())
        if left < 0:
            break
        if text:
            kept.append(f"{'QA'[place % 2]}: {text}")
    return "\n".join(["Conversation:", *reversed(kept), f"Q: {_line(example.question)}"])


def _line(text: str) -> str:
    return " ".join(text.split())
