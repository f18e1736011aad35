"""What raters say of the systems' answers to a turn, what it counts, who wins, and how far raters agree.

Evidence utility and factual consistency have five steps from 2 to −2, and −10 where there is no evidence, or no fact to
check; coherence has four, without 0. Source: eval/human_eval of the authors' repository.

Each turn counts the mean of its raters, and all turns alike; intervals draw whole conversations again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

from finegrained_lab.published.inscit.predictions import turn_number
from finegrained_rlhf.core.checks import as_object, get_field, require, require_text, text_list
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import read_jsonl, write_json, write_jsonl
from finegrained_rlhf.core.markers import InputFile, OutputFile, Seed, at_least
from finegrained_rlhf.metrics.agreement import bootstrap_interval, krippendorff_alpha
from finegrained_rlhf.text.tables import PrintFormat, cell, markdown_table

NOTHING_TO_RATE = -10
SCALES: Mapping[str, tuple[int, ...]] = {
    "evidence_utility": (2, 1, 0, -1, -2, NOTHING_TO_RATE),
    "factual_consistency": (2, 1, 0, -1, -2, NOTHING_TO_RATE),
    "coherence": (2, 1, -1, -2),
}
"""The values of each scale, the best first."""
MEASURES = (*SCALES, "comprehensiveness")
_COHERENCE = {2: 5.0, 1: 1 + 8 / 3, -1: 1 + 4 / 3, -2: 1.0}


def points(scale: str, value: int) -> float:
    """A value in points from 1 to 5; nothing to rate counts as the best, as in the original."""
    if scale == "coherence":
        return _COHERENCE[value]
    return float((2 if value == NOTHING_TO_RATE else value) + 3)


@dataclass(frozen=True)
class TurnRating:
    """What one rater says of a turn.

    Attributes:
        conversation: id of the conversation.
        turn: from 1.
        rater: who says it.
        values: by system and scale.
        most: the most comprehensive systems, one or more.
        least: the least comprehensive ones; none where all others are in between.
    """

    conversation: str
    turn: int
    rater: str
    values: Mapping[str, Mapping[str, int]]
    most: frozenset[str]
    least: frozenset[str]

    def __post_init__(self) -> None:
        require(len(self.values) > 0, "expected the values of at least one system", "values")
        for system, values in self.values.items():
            for scale, known in SCALES.items():
                value = values.get(scale)
                expected = ", ".join(map(str, known))
                require(value in known, f"expected one of {expected}, got {value!r}", f"values.{system}.{scale}")
        require(len(self.most) > 0, "expected at least one most comprehensive system", "most")
        both = sorted(self.most & self.least)
        require(not both, f"{', '.join(both)} cannot be most and least comprehensive", "least")
        unknown = sorted((self.most | self.least) - set(self.values))
        require(not unknown, f"names {', '.join(unknown)}, which are not rated", "most")

    @property
    def key(self) -> tuple[str, int]:
        """Of the turn."""
        return self.conversation, self.turn

    def rank(self, system: str) -> int:
        """Of a system by comprehensiveness: 1 the most; the least 3, or 2 where nothing lies in between; others 2."""
        if system in self.most:
            return 1
        between = len(self.values) > len(self.most) + len(self.least)
        return 3 if system in self.least and between else 2


def write_ratings(path: str | Path, ratings: Iterable[TurnRating]) -> None:
    """Write ratings as JSON lines."""
    rows = []
    for one in ratings:
        values = {system: dict(values) for system, values in one.values.items()}
        row = {"conv_id": one.conversation, "turn_id": one.turn, "rater": one.rater, "values": values}
        rows.append({**row, "most": sorted(one.most), "least": sorted(one.least)})
    write_jsonl(path, rows)


def read_ratings(path: str | Path) -> list[TurnRating]:
    """Read what `write_ratings` wrote, or anybody's in that form.

    Raises:
        DataError: a row is not as it should be, or a rater has rated a turn twice, or systems differ between rows.
    """
    ratings: list[TurnRating] = []
    seen: set[tuple[str, int, str]] = set()
    for number, row in enumerate(read_jsonl(path)):
        try:
            one = _rating(row)
            key = (*one.key, one.rater)
            require(key not in seen, f"{one.rater} has rated {one.conversation!r}, turn {one.turn} twice", "rater")
            same = not ratings or set(ratings[0].values) == set(one.values)
            require(same, f"rates {', '.join(one.values)}, the rows before it others", "values")
        except DataError as error:
            raise error.at(file=path, record=number) from None
        seen.add(key)
        ratings.append(one)
    if not ratings:
        raise DataError("expected at least one rating", file=path)
    return ratings


def _rating(row: Mapping[str, Any]) -> TurnRating:
    values = {
        system: dict(as_object(part, f"values.{system}"))
        for system, part in as_object(get_field(row, "values"), "values").items()
    }
    return TurnRating(
        require_text(get_field(row, "conv_id"), "conv_id"),
        turn_number(get_field(row, "turn_id")),
        require_text(get_field(row, "rater"), "rater"),
        values,
        frozenset(text_list(get_field(row, "most"), "most")),
        frozenset(text_list(get_field(row, "least"), "least")),
    )


Turn = tuple[str, int]
TurnMeans = Mapping[Turn, Mapping[str, Mapping[str, float]]]
"""By turn, system and measure, the mean of the raters."""


def turn_means(ratings: Sequence[TurnRating]) -> TurnMeans:
    """Points of evidence, facts and coherence, and the rank of comprehensiveness, of which less is better."""
    of_turn: dict[Turn, list[TurnRating]] = {}
    for one in ratings:
        of_turn.setdefault(one.key, []).append(one)
    return {
        turn: {
            system: {
                **{scale: fmean(points(scale, one.values[system][scale]) for one in rated) for scale in SCALES},
                "comprehensiveness": fmean(one.rank(system) for one in rated),
            }
            for system in rated[0].values
        }
        for turn, rated in of_turn.items()
    }


def compared_turns(means: TurnMeans, first: str, second: str, measure: str, tolerance: float) -> dict[str, int]:
    """In how many turns the first system wins, ties and loses; a difference of at most `tolerance` is a tie."""
    counts = {"win": 0, "tie": 0, "lose": 0}
    for systems in means.values():
        gap = systems[first][measure] - systems[second][measure]
        ahead = -gap if measure == "comprehensiveness" else gap
        counts["tie" if abs(ahead) <= tolerance + 1e-9 else "win" if ahead > 0 else "lose"] += 1
    return counts


def raters_alpha(ratings: Sequence[TurnRating], measure: str) -> float | None:
    """Krippendorff's α of a measure over turns and systems, of points or ranks as numbers."""
    raters = list(dict.fromkeys(one.rater for one in ratings))
    units = list(dict.fromkeys((one.key, system) for one in ratings for system in one.values))
    numbers: dict[tuple[str, tuple[Turn, str]], float] = {}
    for one in ratings:
        for system, values in one.values.items():
            number = one.rank(system) if measure == "comprehensiveness" else points(measure, values[measure])
            numbers[one.rater, (one.key, system)] = float(number)
    return krippendorff_alpha([[numbers.get((rater, unit)) for unit in units] for rater in raters], "interval")


def human_scores(
    ratings: Sequence[TurnRating], tolerance: float = 0.0, draws: int = 1000, seed: int = 0
) -> dict[str, Any]:
    """All figures of ratings, as JSON values that are not rounded.

    Args:
        ratings: at least one, all of the same systems.
        tolerance: what counts as a tie.
        draws: samples of the conversations for 95% intervals; 0 makes none.
        seed: of the draws.
    """
    means, systems = turn_means(ratings), list(ratings[0].values)
    conversations: dict[str, list[Turn]] = {}
    for turn in means:
        conversations.setdefault(turn[0], []).append(turn)
    return {
        "conversations": len(conversations),
        "turns": len(means),
        "ratings": len(ratings),
        "raters": sorted({one.rater for one in ratings}),
        "systems": {
            system: _system(means, list(conversations.values()), ratings, system, draws, seed) for system in systems
        },
        "pairs": {
            f"{first} against {second}": {
                measure: compared_turns(means, first, second, measure, tolerance) for measure in MEASURES
            }
            for first, second in combinations(systems, 2)
        },
        "alpha": {measure: raters_alpha(ratings, measure) for measure in MEASURES},
    }


def _system(
    means: TurnMeans,
    conversations: Sequence[Sequence[Turn]],
    ratings: Sequence[TurnRating],
    system: str,
    draws: int,
    seed: int,
) -> dict[str, Any]:
    scores: dict[str, Any] = {}
    for measure in MEASURES:

        def mean(drawn: Sequence[Sequence[Turn]], measure: str = measure) -> float:
            return fmean(means[turn][system][measure] for turns in drawn for turn in turns)

        scores[measure] = mean(conversations)
        if draws:
            made = bootstrap_interval(conversations, mean, draws=draws, seed=seed)
            scores[f"{measure}_interval"] = [made.low, made.high]
    for scale in ("evidence_utility", "factual_consistency"):
        nothing = [one.values[system][scale] == NOTHING_TO_RATE for one in ratings]
        scores[f"{scale}_nothing_to_rate"] = sum(nothing) / len(nothing)
    return scores


@dataclass(frozen=True, kw_only=True)
class ScoreHumanEvaluation(Settings):
    """The job of `finegrained score-human-evaluation`.

    Attributes:
        ratings: JSON-lines file of ratings.
        tolerance: a difference of mean points, or ranks, of at most so much is a tie.
        draws: samples of the conversations for 95% intervals; 0 makes none.
        seed: of the draws.
        format: `table`, or `json` for one JSON document.
        output: JSON file for the figures; None writes none.
    """

    ratings: InputFile
    tolerance: Annotated[float, at_least(0)] = 0.0
    draws: Annotated[int, at_least(0)] = 1000
    seed: Seed = 0
    format: PrintFormat = "table"
    output: OutputFile | None = None

    def run(self) -> dict[str, Any]:
        """Read, score, print. Raises DataError where the file is damaged."""
        scores = human_scores(read_ratings(self.ratings), self.tolerance, self.draws, self.seed)
        if self.output is not None:
            write_json(self.output, scores)
        print(json.dumps(scores, indent=2, ensure_ascii=False) if self.format == "json" else human_tables(scores))
        return scores


def human_tables(scores: Mapping[str, Any]) -> str:
    """The figures for people."""
    rows = []
    for system, values in scores["systems"].items():
        row = {"system": system}
        for measure in MEASURES:
            interval = values.get(f"{measure}_interval")
            between = f" [{interval[0]:.2f}, {interval[1]:.2f}]" if interval and None not in interval else ""
            row[measure.replace("_", " ")] = f"{values[measure]:.2f}{between}"
        rows.append(row)
    rows.append({"system": "Krippendorff's α", **{m.replace("_", " "): cell(scores["alpha"][m]) for m in MEASURES}})
    pairs = [
        {"pair": pair, "measure": measure.replace("_", " "), **{key: str(count) for key, count in counts.items()}}
        for pair, measures in scores["pairs"].items()
        for measure, counts in measures.items()
    ]
    head = f"{scores['turns']} turns of {scores['conversations']} conversations, {len(scores['raters'])} raters"
    note = "Points from 1 to 5; of comprehensiveness the mean rank, of which less is better."
    parts = [head, markdown_table(rows, list(rows[0])), note]
    return "\n\n".join([*parts, *([markdown_table(pairs, list(pairs[0]))] if pairs else [])])
