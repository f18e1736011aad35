"""PAHF's rounds as curves: how often an agent is right, and how often it needed the user, through the four phases.

Reads `rounds.jsonl`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from finegrained_lab.figures import Lines, draw_lines
from finegrained_lab.protocols.pahf.measures import LEARNING, SceneRound, phase_figures
from finegrained_rlhf.core.files import read_jsonl

MEASURES = {"success": "success rate", "frequency": "feedback frequency"}
_GAP = 0.6  # between phases


def phase_curves(rounds: Path) -> tuple[dict[str, dict[str, dict[str, list[float]]]], dict[float, str]]:
    """The figures of every iteration of every phase.

    Args:
        rounds: FILE of rounds, as `RunPahf` writes it.

    Returns:
        By measure and setting: `episodes` (places on the axis), `mean` over users, `min` and `max`, one standard error
        over users below and above it; NaN for feedback in a test, where nobody is asked. And the word at each place:
        `1.2` is iteration 2 of phase 1.

    Raises:
        DataError: the file is missing or damaged.
    """
    played = [SceneRound(**one) for one in read_jsonl(rounds)]
    turns = sorted({(one.phase, one.iteration) for one in played})
    places = {turn: place + _GAP * (turn[0] - 1) for place, turn in enumerate(turns)}
    several = {phase for phase, iteration in turns if iteration > 1}
    words = {places[turn]: f"{turn[0]}.{turn[1]}" if turn[0] in several else f"{turn[0]}" for turn in turns}
    curves: dict[str, dict[str, dict[str, list[float]]]] = {name: {} for name in MEASURES}
    for setting in dict.fromkeys(one.setting for one in played):
        own = [one for one in played if one.setting == setting]
        phases = sorted({one.phase for one in own})
        by_phase = {phase: phase_figures([one for one in own if one.phase == phase]) for phase in phases}
        for name in MEASURES:
            means, errors = (_in_turn(by_phase, key, name == "success") for key in (name, f"{name}_se"))
            curves[name][setting] = _with_errors([places[turn] for turn in turns], means, errors)
    return curves, words


def draw_phase_curves(rounds: Path, path: Path) -> None:
    """Success rate and feedback frequency of every setting, side by side.

    Args:
        rounds: FILE of rounds.
        path: to write, `.svg` or `.png`.

    Raises:
        ConfigError: matplotlib is not installed.
        DataError: the file is missing or damaged.
    """
    curves, words = phase_curves(rounds)
    panels = [Lines(title, "share of scenes", bands=curves[name]) for name, title in MEASURES.items()]
    draw_lines(path, panels, x_label="phase.iteration (learn, test, learn what has changed, test)", ticks=words)


def _in_turn(by_phase: Mapping[int, Mapping[str, Sequence[float]]], key: str, tests_too: bool) -> list[float]:
    """A figure through all iterations of all phases."""
    return [
        value if tests_too or phase in LEARNING else math.nan
        for phase, figures in by_phase.items()
        for value in figures[key]
    ]


def _with_errors(places: list[float], means: list[float], errors: list[float]) -> dict[str, list[float]]:
    low = [mean - error for mean, error in zip(means, errors, strict=True)]
    high = [mean + error for mean, error in zip(means, errors, strict=True)]
    return {"episodes": places, "mean": means, "min": low, "max": high}
