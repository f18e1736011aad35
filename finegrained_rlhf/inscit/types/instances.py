"""Turns as texts with the type of their response, for `finegrained train-classifier`.

A text is the newest utterance, the evidence, then what was said before it, newest first: what a classifier has no room
for is the oldest. Labels of a turn that rest on the same passages are one instance. Source: thesis, section 5.5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import write_jsonl
from finegrained_rlhf.core.markers import InputFile, OutputFile
from finegrained_rlhf.feedback.labelled_texts import LabelledText
from finegrained_rlhf.inscit.data.passages import read_known_inscit
from finegrained_rlhf.inscit.data.reading import INSCIT_DATA
from finegrained_rlhf.inscit.data.records import EvidencePassage, InscitLabel, InscitTurn, turns_of


def type_instances(turns: Sequence[InscitTurn]) -> list[LabelledText]:
    """An instance for each set of passages that labels of a turn rest on, with the type of the first such label."""
    instances = []
    for turn in turns:
        first: dict[frozenset[str], InscitLabel] = {}
        for label in turn.labels:
            first.setdefault(label.passages, label)
        for number, label in enumerate(first.values(), start=1):
            name = f"{turn.name}_{number}" if len(first) > 1 else turn.name
            instances.append(LabelledText(name, type_text(turn, label), label.response_type))
    return instances


def type_text(turn: InscitTurn, label: InscitLabel) -> str:
    """What a classifier reads of a turn and the evidence of a label."""
    return evidence_text_of(turn.context, label.evidence)


def evidence_text_of(context: Sequence[str], evidence: Sequence[EvidencePassage]) -> str:
    """What a classifier reads of a conversation, the user first and last, and of passages that an answer rests on."""
    passages = {one.id: one for one in evidence}
    lines = [f"user: {context[-1]}"]
    lines += [f"evidence: {' | '.join(one.titles)}: {one.text}" for one in passages.values()]
    for place in range(len(context) - 2, -1, -1):
        lines.append(f"{'agent' if place % 2 else 'user'}: {context[place]}")
    return "\n".join(lines)


@dataclass(frozen=True)
class MakeResponseTypes(Settings):
    """Write a file of labelled texts; the job of `finegrained make-response-types`.

    Attributes:
        data: file of conversations.
        output: JSON-lines file with `id`, `text` and `label`.
        known_passages: corpus, or directory of its `PassageStore`, that must have all evidence of the data; None checks
            nothing.
    """

    data: InputFile
    output: OutputFile
    known_passages: InputFile | None = None

    input_checks: ClassVar[Mapping[str, Any]] = INSCIT_DATA

    def run(self) -> list[LabelledText]:
        """Read, write, print one line. Raises DataError where the file is damaged."""
        turns = turns_of(read_known_inscit(self.data, self.known_passages).conversations)
        instances = type_instances(turns)
        write_jsonl(self.output, [{"id": one.id, "text": one.text, "label": one.label} for one in instances])
        print(f"{len(instances)} instances of {len(turns)} turns -> {self.output}")
        return instances
