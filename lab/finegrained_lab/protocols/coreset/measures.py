"""What is measured of CORESET's conversations: precision and recall of the predicted set, expense, curves over turns.

Source: Sun et al., section 4 and appendix B.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from finegrained_lab.protocols.coreset.conversations import AmbiguousConversation, ScriptedTurn
from finegrained_rlhf.text.scores import normalise


@dataclass(frozen=True)
class AnsweredTurn:
    """One turn, answered by one agent.

    Attributes:
        agent: its name.
        conversation: its id.
        scenario: of the conversation.
        documents: how many there are, N.
        turn: from 1.
        answers: z, that were given.
        truth: z*, the answers of the documents that can be meant.
        precision: share of the answers that are true.
        recall: share of the true ones that were given.
        remarks: that hold when the turn is answered.
        rests_on: turns, from 1, whose remarks the language model was shown.
        satisfiable: False where the newest remark contradicted all documents.
        place: of the document that a single answer is from, from 1, the first that has it; 0 for none, or for a set.
        calls: of the agent's language model, for this turn.
        tokens_in: of their prompts.
        tokens_out: of their replies.
        odd: of their replies, those that could not be used, asked for again or not.
        unanswered: that the agent gave no reply that can be used at all, and why; empty where it did. Then there is no
            answer.
    """

    agent: str
    conversation: str
    scenario: str
    documents: int
    turn: int
    answers: tuple[str, ...]
    truth: tuple[str, ...]
    precision: float
    recall: float
    remarks: int
    rests_on: tuple[int, ...] = ()
    satisfiable: bool = True
    place: int = 0
    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    odd: int = 0
    unanswered: str = ""


def set_precision_recall(answers: Sequence[str], truth: Sequence[str]) -> tuple[float, float]:
    """|z ∩ z*| / |z| and |z ∩ z*| / |z*|, of answers without regard to case, articles and marks.

    Args:
        answers: z; none gives a precision of 0.
        truth: z*.

    Raises:
        ValueError: there is no true answer.
    """
    answered, true = {normalise(one) for one in answers}, {normalise(one) for one in truth}
    if not true:
        raise ValueError("expected at least one true answer")
    common = len(answered & true)
    return common / len(answered) if answered else 0.0, common / len(true)


def conversation_figures(turns: Sequence[AnsweredTurn]) -> dict[str, Any]:
    """The figures of one agent in one scenario with N documents.

    Returns:
        `precision`, `recall`: means over all turns; `by_turn`: the same at every turn, lists over t; `by_remarks`: the
        same by the number of remarks that hold; `tokens_in`, `tokens_out`, `calls`: of a conversation, mean;
        `unsatisfiable`: share of turns whose newest remark contradicted all documents; `places`: share of single
        answers by the document that they are from, in order, empty where none was asked for.

    Raises:
        ValueError: there is no turn, or conversations differ in length.
    """
    by_turn = _grouped(turns, lambda one: one.turn)
    conversations = len({one.conversation for one in turns})
    if not turns or any(len(own) != conversations for own in by_turn.values()):
        raise ValueError("expected conversations of one length")
    curves = [_means(by_turn[t]) for t in sorted(by_turn)]
    by_remarks = _grouped(turns, lambda one: one.remarks)
    picked = [one.place for one in turns if one.place]
    places = Counter(picked)
    return {
        **_means(turns),
        "by_turn": {name: [curve[name] for curve in curves] for name in ("precision", "recall")},
        "by_remarks": {str(count): _means(by_remarks[count]) for count in sorted(by_remarks)},
        **{
            name: sum(getattr(one, name) for one in turns) / conversations
            for name in ("tokens_in", "tokens_out", "calls")
        },
        "unsatisfiable": statistics.fmean(not one.satisfiable for one in turns),
        "places": [places[i] / len(picked) for i in range(1, turns[0].documents + 1)] if picked else [],
    }


def without_model(conversation: AmbiguousConversation, turn: ScriptedTurn) -> dict[str, tuple[str, ...]]:
    """The answers of those who hear nothing and ask no language model.

    Returns:
        `everything`: the answer of every document; `most_frequent`: the one that most documents have, of several the
        first; `first_document`: that of the first; `oracle`: those that are true.
    """
    all_answers = [one.facts[turn.attribute] for one in conversation.documents]
    return {
        "everything": tuple(dict.fromkeys(all_answers)),
        "most_frequent": (Counter(all_answers).most_common(1)[0][0],),
        "first_document": (all_answers[0],),
        "oracle": conversation.true_answers(turn),
    }


def _grouped(turns: Sequence[AnsweredTurn], key: Callable[[AnsweredTurn], int]) -> dict[int, list[AnsweredTurn]]:
    groups: dict[int, list[AnsweredTurn]] = defaultdict(list)
    for one in turns:
        groups[key(one)].append(one)
    return groups


def _means(turns: Sequence[AnsweredTurn]) -> dict[str, float]:
    return {name: statistics.fmean(getattr(one, name) for one in turns) for name in ("precision", "recall")}
