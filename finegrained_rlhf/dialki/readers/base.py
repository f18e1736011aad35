"""What every reader of dialogues gives back."""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

from finegrained_rlhf.core.sources import Reading
from finegrained_rlhf.dialki.records import DialogueExample


class DialogueReading(Reading[DialogueExample]):
    """One record for each turn to answer, `entries` being the dialogues of the file."""

    entry: ClassVar[str] = "dialogues"
    example: ClassVar[str] = "turn to answer"

    def measured(self) -> dict[str, Any]:
        """`gold`, `history_labels`, `passages` and `unseen`.

        `gold` maps the number of gold entries of an example to the number of examples; `history_labels` counts the
        turns with a label of their own over all examples.
        """
        gold = Counter(len(example.gold) for example in self.examples)
        return {
            "gold": {str(number): count for number, count in sorted(gold.items())},
            "history_labels": sum(turn.knowledge is not None for example in self.examples for turn in example.turns),
            "passages": sum(len(example.passages) for example in self.examples),
            "unseen": sum(example.unseen is True for example in self.examples),
        }
