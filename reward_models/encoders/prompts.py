"""What reward models read of a prompt, and whether it leaves room for an answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.text.templates import PassageText
from reward_models.kinds import Kind
from reward_models.kinds.parts import InputParts

if TYPE_CHECKING:
    from reward_models.encoders.inputs import RewardInputEncoder


def question_of(prompt: Prompt) -> str:
    """The question behind a prompt.

    Raises:
        DataError: the prompt carries none.
    """
    question = prompt.metadata.get("question")
    if not isinstance(question, str):
        raise DataError("reward models need the question of each prompt", record=prompt.id, field="question")
    return question


def passages_of(prompt: Prompt) -> Sequence[PassageText]:
    """The passages behind a prompt.

    Raises:
        DataError: the prompt carries none, not even an empty list.
    """
    passages = prompt.metadata.get("passages")
    if passages is None:
        raise DataError(
            "this reward model reads the passages of each prompt", record=prompt.id, field="metadata.passages"
        )
    return list(passages)


def passages_for(kind: Kind, prompt: Prompt) -> Sequence[PassageText]:
    """The passages that a kind of model is shown; none are needed where it reads none.

    Raises:
        DataError: it reads them and the prompt carries none.
    """
    return passages_of(prompt) if kind.reads_passages else ()


def check_room(prompt: Prompt, encoder: RewardInputEncoder, shortest: InputParts, needed: int, model: str) -> None:
    """Require that a model's input has room for an answer behind the question.

    Args:
        prompt: to be answered.
        encoder: of the model.
        shortest: the input with the shortest answer.
        needed: tokens that this answer needs.
        model: what the error calls the model.

    Raises:
        DataError: it has not.
    """
    room = encoder.room(shortest)
    if room < needed:
        limit = encoder.max_length
        raise DataError(
            f"{model} reads at most {limit} tokens and needs {limit - room + needed} for the question and the shortest "
            "answer, so that no answer to this prompt can be judged",
            record=prompt.id,
            field="question",
        )
