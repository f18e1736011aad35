"""What is measured of PAHF's rounds: success, how often the user was needed, errors so far; and constant answers.

Source: Liang et al. 2026, section 4.2.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from finegrained_lab.protocols.pahf.scenes import Scene

LEARNING = (1, 3)
"""The phases in which users can be asked and give feedback."""


@dataclass(frozen=True)
class SceneRound:
    """One scene, acted on once.

    Attributes:
        setting: which feedback the agent used.
        phase: from 1 to 4.
        iteration: of the phase, from 1.
        scene: its id.
        user: whose it is.
        option: that was chosen.
        correct: whether it is the intent.
        asked: whether the user was asked before.
        given: whether the user gave feedback afterwards, whatever the agent made of it.
        question: q_t; empty where none was asked.
        cues: that the agent acted by.
        calls: of the agent's language model.
        tokens_in: of their prompts.
        tokens_out: of their replies.
        odd: of their replies, those that could not be used, asked for again or not.
        unanswered: who gave no reply that can be used at all, the agent or the user, and why; empty where none lacked.
            Without an action the option is empty, and the round counts as an error.
    """

    setting: str
    phase: int
    iteration: int
    scene: str
    user: str
    option: str
    correct: bool
    asked: bool
    given: bool
    question: str
    cues: str
    calls: int
    tokens_in: int
    tokens_out: int
    odd: int = 0
    unanswered: str = ""


MEASURES = {"success": "success rate", "frequency": "feedback frequency", "acpe": "ACPE"}
"""The figures of a learning phase by what they are called, as in the paper's figures 5 and 6."""


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and its standard error s / √n with s the sample deviation; an error of 0 of a single value.

    Raises:
        ValueError: there is no value.
    """
    if not values:
        raise ValueError("expected at least one value")
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return statistics.fmean(values), error


def phase_figures(rounds: Sequence[SceneRound]) -> dict[str, list[float]]:
    """The figures of one phase of one setting, each a list over iterations t.

    Returns:
        `success`: SR, share of correct actions; `frequency`: FF, share of scenes in which the user was asked or gave
        feedback; `acpe`: average cumulative personalization error, 1/t Σ_{s ≤ t} (1 − SR_s). Each is a mean over users
        of their own shares, and `NAME_se` its standard error over users.

    Raises:
        ValueError: there is no round, or users lack an iteration.
    """
    by_user: dict[str, dict[int, list[SceneRound]]] = defaultdict(lambda: defaultdict(list))
    for one in rounds:
        by_user[one.user][one.iteration].append(one)
    iterations = sorted({one.iteration for one in rounds})
    curves: dict[str, list[list[float]]] = {"success": [], "frequency": [], "acpe": []}
    for played in by_user.values():
        if sorted(played) != iterations:
            raise ValueError("expected every iteration of every user")
        success = [statistics.fmean(one.correct for one in played[t]) for t in iterations]
        errors = accumulate(1.0 - share for share in success)
        curves["success"].append(success)
        curves["frequency"].append([statistics.fmean(one.asked or one.given for one in played[t]) for t in iterations])
        curves["acpe"].append([total / t for t, total in enumerate(errors, start=1)])
    figures: dict[str, list[float]] = {}
    for name, users in curves.items():
        pairs = [mean_and_error(values) for values in zip(*users, strict=True)]
        figures[name], figures[f"{name}_se"] = [mean for mean, _ in pairs], [error for _, error in pairs]
    if not figures["success"]:
        raise ValueError("expected at least one round")
    return figures


def success_by_user(rounds: Sequence[SceneRound]) -> dict[str, dict[tuple[int, int], float]]:
    """The share of correct actions of each user, by phase and iteration, of one setting."""
    played: dict[str, dict[tuple[int, int], list[bool]]] = defaultdict(lambda: defaultdict(list))
    for one in rounds:
        played[one.user][one.phase, one.iteration].append(one.correct)
    return {
        user: {turn: statistics.fmean(own) for turn, own in turns.items()} for user, turns in sorted(played.items())
    }


def setting_figures(rounds: Sequence[SceneRound]) -> dict[str, Any]:
    """The figures of one setting: `phase1` to `phase4`, and `calls`, `tokens_in`, `tokens_out`."""
    phases = sorted({one.phase for one in rounds})
    figures: dict[str, Any] = {
        f"phase{phase}": phase_figures([one for one in rounds if one.phase == phase]) for phase in phases
    }
    for name in ("calls", "tokens_in", "tokens_out"):
        figures[name] = sum(getattr(one, name) for one in rounds)
    return figures


def without_agent(scenes: Sequence[Scene]) -> dict[str, float]:
    """How often one is right who looks at nothing, on the scenes of a phase.

    Returns:
        `chance`: an option at random; `constant`: always the same place in the list, the best one in hindsight;
        `constant_option`: always the same option where it is there, the best one in hindsight;
        `oracle`: the intent.

    Raises:
        ValueError: there is no scene.
    """
    if not scenes:
        raise ValueError("expected at least one scene")
    places = Counter(scene.options.index(scene.intent) for scene in scenes)
    options = Counter(scene.intent for scene in scenes)
    return {
        "chance": statistics.fmean(1 / len(scene.options) for scene in scenes),
        "constant": max(places.values()) / len(scenes),
        "constant_option": max(options.values()) / len(scenes),
        "oracle": 1.0,
    }
