"""What a file of INSCIT holds: tables 5.1 and 5.2 of the thesis and its analysis of initiative, of any file.

Tokens are spaCy's, by English rules; the table's passages a label are counted as listed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from finegrained_lab.published.inscit.data import (
    InscitConversation,
    InscitLabel,
    InscitReading,
    InscitTurn,
    read_known_inscit,
    turns_of,
)
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import InputFile
from finegrained_rlhf.inscit.conversation import CLARIFICATION, RESPONSE_TYPES
from finegrained_rlhf.text.segmentation import english_tokens
from finegrained_rlhf.text.tables import PrintFormat, cell, markdown_table

LONG_PASSAGE = 384
"""Tokens above which a gold passage counts as long: what one input of the readers holds."""


def inscit_counts(reading: InscitReading) -> dict[str, Any]:
    """Counts and means of a file, as JSON values: counts are whole numbers, means and shares are not rounded."""
    conversations = reading.conversations
    turns = turns_of(conversations)
    labels = [label for turn in turns for label in turn.labels]
    gold = {passage.id: passage for label in labels for passage in label.evidence}
    return {
        "conversations": len(conversations),
        "turns": len(turns),
        "labels": len(labels),
        "turns_with_two_labels": sum(len(turn.labels) == 2 for turn in turns),
        "turns_without_gold": sum(not any(label.evidence for label in turn.labels) for turn in turns),
        "turns_per_conversation": len(turns) / len(conversations),
        "labels_per_turn": len(labels) / len(turns),
        "user_tokens": fmean(_length(turn.context[-1]) for turn in turns),
        "agent_tokens": fmean(_length(label.response) for label in labels),
        "passages_per_label": fmean(len(label.evidence) for label in labels),
        "distinct_passages_per_label": fmean(len(label.passages) for label in labels),
        "distinct_passages": len(gold),
        "repeated_passages": sum(len(label.evidence) - len(label.passages) for label in labels),
        "long_passages": sum(_length(passage.text) > LONG_PASSAGE for passage in gold.values()),
        "outlines": sum(_is_outline(passage.id) for label in labels for passage in label.evidence),
        "ids_with_blanks": sum(any(map(str.isspace, name)) for name in gold),
        "evidence_sizes": _sorted(Counter(len(label.passages) for label in labels)),
        "types": {kind: _of_type(kind, labels) for kind in RESPONSE_TYPES},
        "two_labels": _disagreement([turn for turn in turns if len(turn.labels) == 2]),
        "clarifications": _clarifications(conversations),
        "continued": _continued(conversations),
        "earlier": _earlier(turns),
        "unknown_keys": dict(sorted(reading.unknown_keys.items())),
    }


def _length(text: str) -> int:
    return len(english_tokens(text))


def _is_outline(passage: str) -> bool:
    return passage.rpartition(":")[2] == "0"


def _sorted(counts: Counter[int]) -> dict[str, int]:
    return {str(size): counts[size] for size in sorted(counts)}


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return fmean(known) if known else None


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _of_type(kind: str, labels: Sequence[InscitLabel]) -> dict[str, Any]:
    own = [label for label in labels if label.response_type == kind]
    return {
        "labels": len(own),
        "share": _share(len(own), len(labels)),
        "tokens": _mean(_length(label.response) for label in own),
        "passages": _mean(len(label.evidence) for label in own),
    }


def _disagreement(turns: Sequence[InscitTurn]) -> dict[str, Any]:
    types = [turn for turn in turns if turn.agreed_type is None]
    other = [turn for turn in turns if turn.labels[0].passages != turn.labels[1].passages]
    both = sum(turn.labels[0].passages != turn.labels[1].passages for turn in types)
    return {
        "turns": len(turns),
        "type_differs": len(types),
        "type_differs_share": _share(len(types), len(turns)),
        "evidence_differs": len(other),
        "evidence_differs_share": _share(len(other), len(turns)),
        "evidence_differs_where_type_does": both,
        "evidence_differs_where_type_does_share": _share(both, len(types)),
    }


def _clarifications(conversations: Sequence[InscitConversation]) -> dict[str, Any]:
    """How often labels clarify: in first and later turns, and after a clarification or another answer."""
    first, later = Counter[bool](), Counter[bool]()
    after: dict[bool, Counter[bool]] = {True: Counter(), False: Counter()}
    for conversation in conversations:
        for place, turn in enumerate(conversation.turns):
            kinds = [label.response_type == CLARIFICATION for label in turn.labels]
            (later if place else first).update(kinds)
            continued = conversation.continued_by(place - 1) if place else ()
            if continued:
                before = conversation.turns[place - 1].labels[continued[0]].response_type == CLARIFICATION
                after[before].update(kinds)
    return {
        f"{name}{suffix}": value
        for name, counts in (
            ("first_turns", first),
            ("later_turns", later),
            ("after_clarification", after[True]),
            ("after_another_answer", after[False]),
        )
        for suffix, value in (("", counts[True]), ("_share", _share(counts[True], counts.total())))
    }


def _continued(conversations: Sequence[InscitConversation]) -> dict[str, int]:
    """With which label conversations went on."""
    counts = Counter[str]()
    for conversation in conversations:
        for place in range(len(conversation.turns) - 1):
            labels = conversation.continued_by(place)
            counts["both" if len(labels) > 1 else f"label_{labels[0]}" if labels else "none"] += 1
    return dict(sorted(counts.items()))


def _earlier(turns: Sequence[InscitTurn]) -> dict[str, Any]:
    """How many earlier passages a turn has, and how many turns rest on one of them again."""
    having = [turn for turn in turns if turn.earlier]
    seen = {turn.key: {passage.id for part in turn.earlier for passage in part} for turn in having}
    reused = sum(any(label.passages & seen[turn.key] for label in turn.labels) for turn in having)
    return {
        "passages_per_turn": _mean(len(seen[turn.key]) for turn in having),
        "turns": len(having),
        "turns_that_reuse": reused,
        "turns_that_reuse_share": _share(reused, len(having)),
    }


@dataclass(frozen=True)
class InspectInscit(Settings):
    """The job of `finegrained inspect-inscit`.

    Attributes:
        data: a file of conversations, or several, whose tables stand side by side.
        format: `table`, or `json` for one JSON document, the file's name as key where there are several.
        known_passages: corpus, or directory of its `PassageStore`, that must have all evidence of the data; None checks
            nothing.
    """

    data: InputFile | Sequence[InputFile]
    format: PrintFormat = "table"
    known_passages: InputFile | None = None

    def __post_init__(self) -> None:
        if not self.data:
            raise ConfigError("data: expected a file")

    def run(self) -> dict[str, Any]:
        """Read, count, print.

        Raises:
            DataError: a file is missing or damaged.
        """
        names = [self.data] if isinstance(self.data, str) else list(self.data)
        counts = {name: inscit_counts(read_known_inscit(name, self.known_passages)) for name in names}
        if self.format == "json":
            value = counts[names[0]] if len(names) == 1 else counts
            print(json.dumps(value, indent=2, ensure_ascii=False))
        else:
            print(inscit_tables(counts))
        return counts


def inscit_tables(files: Mapping[str, Mapping[str, Any]]) -> str:
    """The counts of files as tables 5.1 and 5.2 of the thesis, and the rest below."""
    sizes = (
        *("conversations", "turns", "turns_per_conversation", "labels_per_turn", "user_tokens", "agent_tokens"),
        "passages_per_label",
    )
    first = [
        {"": name.replace("_", " "), **{file: cell(counts[name]) for file, counts in files.items()}} for name in sizes
    ]
    parts = [f"Table 5.1\n\n{markdown_table(first, list(first[0]))}"]
    for file, counts in files.items():
        second = [{"type": kind, **{k: cell(v) for k, v in row.items()}} for kind, row in counts["types"].items()]
        parts.append(f"Table 5.2, {file}\n\n{markdown_table(second, list(second[0]))}")
        parts.append("\n".join(_lines(counts, {*sizes, "types"})))
    return "\n\n".join(parts)


def _lines(counts: Mapping[str, Any], left_out: set[str]) -> list[str]:
    lines = []
    for name, value in counts.items():
        if name in left_out:
            continue
        if isinstance(value, Mapping):
            parts = ", ".join(f"{key.replace('_', ' ')} {cell(part)}" for key, part in value.items())
            lines.append(f"{name.replace('_', ' ')}: {parts or 'none'}")
        else:
            lines.append(f"{name.replace('_', ' ')}: {cell(value)}")
    return lines
