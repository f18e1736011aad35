"""What did not fit when dialogues became inputs: counts that add up over batches, files and processes."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields

_COUNTS = "unlabelled dropped gold_lost gold_cut contexts_cut turns_lost passages_cut spans_lost".split()


@dataclass(frozen=True)
class InputReport:
    """What did not fit, over many examples. Reports of parts add up.

    Attributes:
        examples: read.
        unlabelled: training examples dropped because they name no gold.
        gold_lost: gold entries that are no candidates: the end of a span was cut off.
        gold_cut: gold entries whose passage has lost its end, and which are candidates all the same (`units` whole).
        dropped: training examples that have lost every gold entry.
        contexts_cut: dialogues that have lost words of their history.
        turns_lost: turns of which nothing is left.
        passages: inputs, one a passage and example.
        passages_cut: inputs that have lost their end.
        spans_lost: spans that are no candidates.
        passages_lost: passages without any candidate; they are left out.
        history_labels: knowledge labels of the turns that are left.
        history_labels_lost: those of them that are no candidates.
    """

    examples: int = 0
    unlabelled: int = 0
    gold_lost: int = 0
    gold_cut: int = 0
    dropped: int = 0
    contexts_cut: int = 0
    turns_lost: int = 0
    passages: int = 0
    passages_cut: int = 0
    spans_lost: int = 0
    passages_lost: int = 0
    history_labels: int = 0
    history_labels_lost: int = 0

    def __add__(self, other: InputReport) -> InputReport:
        return InputReport(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))

    def to_json(self) -> dict[str, int]:
        """The counts by name."""
        return asdict(self)

    def __str__(self) -> str:
        parts = [f"{self.examples} dialogues, {self.passages} passages"]
        for name in _COUNTS:
            if getattr(self, name):
                parts.append(f"{getattr(self, name)} {name.replace('_', ' ')}")
        return ", ".join(parts)
