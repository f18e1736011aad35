"""A control that must fail: labels whose evidence is that of other turns.

The evidence of earlier turns stays as it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from finegrained_lab.published.inscit.data import INSCIT_DATA, InscitTurn, read_inscit, write_inscit
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import InputFile, OutputFile, Seed
from finegrained_rlhf.core.seeding import stable_hash
from finegrained_rlhf.inscit.conversation import EvidencePassage


@dataclass(frozen=True, kw_only=True)
class ShuffleEvidence(Settings):
    """Write a file whose labels have each other's evidence; a step of `pipeline=inscit/world`.

    Labels without evidence keep none; the others exchange theirs over the whole file.

    Attributes:
        data: file of conversations.
        output: JSON-lines file of the same conversations.
        seed: of the permutation.
    """

    data: InputFile
    output: OutputFile
    seed: Seed = 0

    input_checks: ClassVar[Mapping[str, Any]] = INSCIT_DATA

    def run(self) -> int:
        """Read, permute, write, print one line; returns how many labels exchanged their evidence."""
        talks = read_inscit(self.data).conversations
        pieces = [label.evidence for talk in talks for turn in talk.turns for label in turn.labels if label.evidence]
        order = np.random.default_rng(stable_hash(self.seed, "shuffled evidence")).permutation(len(pieces))
        others = iter([pieces[i] for i in order])
        shuffled = [replace(talk, turns=tuple(_turn(turn, others) for turn in talk.turns)) for talk in talks]
        write_inscit(self.output, shuffled)
        print(f"{len(pieces)} labels have each other's evidence -> {self.output}")
        return len(pieces)


def _turn(turn: InscitTurn, others: Iterator[tuple[EvidencePassage, ...]]) -> InscitTurn:
    labels = [replace(label, evidence=next(others)) if label.evidence else label for label in turn.labels]
    return replace(turn, labels=tuple(labels))
