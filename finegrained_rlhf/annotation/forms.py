"""What forms in other tools have in common: passages as one text to highlight, evidence in words, answers compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from finegrained_rlhf.core.checks import require
from finegrained_rlhf.feedback.records import FIRST, SECOND, TIE, pair_order


@dataclass(frozen=True)
class PassageLayout:
    """The text, and where its sentences lie.

    Attributes:
        text: a heading a passage, then a line a sentence.
        places: (start, end, passage, sentence) of every title (sentence 0) and sentence, in order.
    """

    text: str
    places: tuple[tuple[int, int, int, int], ...]

    @classmethod
    def of(cls, passages: Sequence[Sequence[str]]) -> PassageLayout:
        """The layout of passages, each `[title, sentence 1, …]`. The same passages give the same text."""
        text, places = "", []
        for number, parts in enumerate(passages, start=1):
            text += "\n\n" if text else ""
            text += f"[{number}] "
            for sentence, part in enumerate(parts):
                text += "" if sentence == 0 else "\n"
                places.append((len(text), len(text) + len(part), number, sentence))
                text += part
        return cls(text, tuple(places))

    def sentences(self, start: int, end: int) -> list[tuple[int, int]]:
        """(passage, sentence) of everything that a highlighted span touches with more than white space."""
        return [
            (passage, sentence)
            for first, last, passage, sentence in self.places
            if self.text[max(start, first) : min(end, last)].strip()
        ]


NO_ERROR, NOTHING_MISSING = "No error, after careful checking", "Nothing is missing"


def evidence_places(text: str, where: str) -> list[list[int]]:
    """`1.2, 1.3` as [[1, 2], [1, 3]].

    Raises:
        DataError: something else.
    """
    places = []
    for part in text.replace(";", ",").split(","):
        numbers = part.strip().split(".")
        if numbers == [""]:
            continue
        right = len(numbers) == 2 and all(number.strip().isdigit() for number in numbers)
        require(right, f"expected passage.sentence, got {part.strip()!r}", f"{where}: evidence")
        places.append([int(number) for number in numbers])
    return places


@dataclass(frozen=True)
class Highlight:
    """Something missing that people highlighted in the passages.

    Attributes:
        kind: its type.
        start: in characters of the layout's text.
        end: after the last one.
        where: what errors call it.
        also: further sentences of the same piece of information, each [passage, sentence].
    """

    kind: str
    start: int
    end: int
    where: str
    also: Sequence[Sequence[int]] = ()


def missing_rows(highlights: Iterable[Highlight], layout: PassageLayout) -> list[dict[str, Any]]:
    """What is missing: each highlight is one piece of information, in each passage that it touches.

    Raises:
        DataError: a highlight touches no sentence.
    """
    rows = []
    for one in highlights:
        places = layout.sentences(one.start, one.end)
        require(bool(places), "touches no sentence", one.where)
        places += [(passage, sentence) for passage, sentence in one.also]
        for passage in dict.fromkeys(passage for passage, _ in places):
            sentences = sorted({sentence for of, sentence in places if of == passage})
            rows.append({"type": one.kind, "passage": passage, "sentences": sentences})
    return rows


def comparison_controls(taxonomy: Mapping[str, Any], answers: int) -> dict[str, tuple[str, ...]]:
    """The controls in which people compare answers, each with its choices.

    Args:
        taxonomy: as tools are given it.
        answers: how many there are.
    """
    if not taxonomy["preferences"] or answers < 2:
        return {}
    if taxonomy["comparison"] == "pairs":
        return {f"pair_{i + 1}_{j + 1}": tuple(pair_choices(i, j)) for i, j in pair_order(answers)}
    places = tuple(str(place) for place in range(1, answers + 1))
    return {f"place_{i + 1}": places for i in range(answers)}


def pair_choices(first: int, second: int) -> dict[str, int]:
    """The choices about a pair of shown answers (from 0), and what each says."""
    return {
        f"Answer {first + 1} is better": FIRST,
        "Equally good": TIE,
        f"Answer {second + 1} is better": SECOND,
    }


def compared_answers(taxonomy: Mapping[str, Any], answers: int, chosen: Callable[[str], str | None]) -> dict[str, Any]:
    """`ranking` or `preferences` of a task, from what was chosen in each control; incomplete ones are None.

    Args:
        taxonomy: as tools are given it.
        answers: how many there are.
        chosen: what was chosen in a control, by its name; None where nothing was.

    Raises:
        DataError: a choice is none of the control's.
    """
    controls = comparison_controls(taxonomy, answers)
    choices = {name: chosen(name) for name in controls}
    for name, value in choices.items():
        known = value is None or value in controls[name]
        require(known, f"expected one of {', '.join(controls[name])}, got {value!r}", name)
    if not controls or None in choices.values():
        return {"ranking": None}
    if taxonomy["comparison"] == "pairs":
        pairs = pair_order(answers)
        values = [pair_choices(i, j)[str(choices[f"pair_{i + 1}_{j + 1}"])] for i, j in pairs]
        return {"ranking": None, "preferences": values}
    places = [int(str(value)) for value in choices.values()]
    return {"ranking": [[i for i, one in enumerate(places) if one == place] for place in sorted(set(places))]}
