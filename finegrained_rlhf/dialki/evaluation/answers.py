"""What is measured of an answered dialogue: its scores against the gold, and the gates of its turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, stdev
from typing import Any

from finegrained_rlhf.dialki.finding.finder import Finder, Found, KnowledgeFinder
from finegrained_rlhf.dialki.finding.scores import KnowledgeScore, score_answer
from finegrained_rlhf.dialki.inputs.batches import DialkiBatch, passages_to_search
from finegrained_rlhf.dialki.inputs.examples import EncodedExample
from finegrained_rlhf.dialki.model.heads import Vectors, gate_similarity
from finegrained_rlhf.dialki.records import DialogueExample
from finegrained_rlhf.dialogue.records import ROLES, Role


@dataclass(frozen=True)
class Gate:
    """How near one turn is to the whole input, in one answered dialogue (thesis, figure 3.3).

    Attributes:
        turn: 1 is the latest turn, the user's.
        role: who speaks.
        answer: σ(u·z) in the passage of the answer.
        searched: its mean over all passages that were searched.
    """

    turn: int
    role: Role
    answer: float
    searched: float


@dataclass(frozen=True)
class Answered:
    """One dialogue's answer and what was measured of it.

    Attributes:
        found: the answer.
        score: against the gold.
        gates: of the latest turns, newest first; none where the model has no gates.
    """

    found: Found
    score: KnowledgeScore
    gates: tuple[Gate, ...]

    def to_json(self, example: DialogueExample) -> dict[str, Any]:
        """One JSON object: the answer, the gold and the scores."""
        gold = [{**asdict(known), "text": example.text_of(known)} for known in example.gold]
        score = self.score
        return {
            **self.found.to_json(example),
            "gold": gold,
            **({"references": list(example.references)} if example.references else {}),
            "exact_match": score.exact,
            "f1": round(score.f1, 6),
            "passage_correct": score.passage,
        }


def answered(finder: Finder[Any], items: Sequence[Any], turns: int = 4) -> list[Answered]:
    """Answer a batch of dialogues and measure the answers.

    Args:
        finder: trained. Only one DIALKI that reads whole passages has gates.
        items: dialogues with gold, as the finder's encoder made them.
        turns: latest turns whose gates are kept.
    """
    if isinstance(finder, KnowledgeFinder) and finder.has_gates:
        limit = finder.model.config.search.max_passages
        answers, vectors, batch = finder.read([passages_to_search(item, limit) for item in items])
        gates = _gates(items, answers, vectors, batch, turns)
    else:
        answers, gates = finder.answer(items), [()] * len(items)
    return [
        Answered(one, score_answer(item.record, one.knowledge.passage, one.text), its)
        for item, one, its in zip(items, answers, gates, strict=True)
    ]


def _gates(
    items: Sequence[EncodedExample], answers: Sequence[Found], vectors: Vectors, batch: DialkiBatch, turns: int
) -> list[tuple[Gate, ...]]:
    """The gates of each dialogue's latest turns."""
    values, owners = gate_similarity(vectors).cpu(), batch.owners.cpu()
    gates = []
    for n, (item, one) in enumerate(zip(items, answers, strict=True)):
        rows = values[owners == n]  # passages in the order in which they were searched
        of_answer, mean = rows[one.searched.index(one.knowledge.passage)].tolist(), rows.mean(dim=0).tolist()
        kept = range(min(turns, len(item.roles)))
        gates.append(tuple(Gate(t + 1, item.roles[t], of_answer[t], mean[t]) for t in kept))
    return gates


def gate_summary(answers: Sequence[Answered]) -> list[dict[str, Any]]:
    """Means over the dialogues for each of the latest turns and each role that speaks there.

    Returns:
        Rows `turn`, `role`, `examples`, `similarity` (in the passage of the answer), its `standard_error` (None of a
        single dialogue), `searched` (mean over all passages searched); by turn, users first.
    """
    groups: dict[tuple[int, Role], list[Gate]] = {}
    for gate in (gate for one in answers for gate in one.gates):
        groups.setdefault((gate.turn, gate.role), []).append(gate)
    rows = []
    for turn, role in sorted(groups, key=lambda key: (key[0], ROLES.index(key[1]))):
        members = groups[turn, role]
        values = [gate.answer for gate in members]
        rows.append(
            {
                "turn": turn,
                "role": role,
                "examples": len(members),
                "similarity": fmean(values),
                "standard_error": stdev(values) / len(values) ** 0.5 if len(values) > 1 else None,
                "searched": fmean(gate.searched for gate in members),
            }
        )
    return rows
