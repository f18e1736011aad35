"""Signs that a policy earns reward by the form of its answers instead of their quality.

Compares one validation with the first, and looks at its level: text that was degenerate from the beginning changes
little and is degenerate all the same. A warning is a reason to read samples, not a proof.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from finegrained_rlhf.core.files import read_jsonl
from finegrained_rlhf.rewards.penalties import PENALTIES
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory

if TYPE_CHECKING:
    from finegrained_rlhf.runtime.processes import Processes

logger = logging.getLogger(__name__)

WarningKind = Literal["length", "repetition", "eos", "early end", "perplexity"]

LENGTH_CHANGE = 1.25
"""Factor by which the mean length must have grown or shrunk."""
SEGMENT_SHARE = 0.5
"""Share of a component's gain that must come from the number of segments alone."""
REPETITION_RISE = 0.1
"""Rise of the share of repeated 3-grams."""
EOS_DROP = 0.1
"""Drop of the share of responses that end by themselves."""
EARLY_END_RISE = 0.1
"""Rise of the share of responses that end by themselves, where responses have become shorter by `LENGTH_CHANGE` too."""
PERPLEXITY_RISE = 1.3
"""Factor by which the perplexity under the reference must have grown."""
EMPTY_SHARE = 0.25
"""Below this share of its first value a mean length counts as collapsed."""
REPETITION_LEVEL = 0.3
"""Share of repeated 3-grams from which on text counts as degenerate, however it came about."""
ENDED_LEVEL = 0.5
"""Share of responses that end by themselves below which most answers are cut off."""
LENGTH_LEVEL = 2.0
"""Mean tokens of a response below which there is no answer."""


@dataclass(frozen=True)
class HackingWarning:
    """One sign.

    Attributes:
        component: the reward component that gained.
        kind: `length`, `repetition`, `eos`, `early end` or `perplexity`.
        message: what happened, in numbers.
    """

    component: str
    kind: WarningKind
    message: str


def hacking_warnings(first: Mapping[str, float], now: Mapping[str, float]) -> list[HackingWarning]:
    """Signs of length, repetition and end-of-sequence hacking, for every component whose weighted reward rose.

    - length: responses are at least 1.25 times as long, or as short, as at first, and at least half of the component's
      gain comes from having more (or fewer) segments at the first validation's mean value a segment. For a component of
      one value a response, whose number of segments cannot change, the change of length alone counts.
    - repetition: the share of repeated 3-grams rose by 0.1 or more.
    - eos: the share of responses that end by themselves fell by 0.1 or more, or responses shrank to under a quarter.
    - early end: the share of responses that end by themselves rose by 0.1 or more, and responses are shorter by a
      factor of 1.25 or more.
    - perplexity: that of the responses under the reference is at least 1.3 times the first one.

    Args:
        first: the metrics of the first validation (a line of `eval.jsonl`).
        now: those of a later one.

    Returns:
        Warnings in the order of the components; none for a component that did not gain, nor for the penalties for form
        (`rewards.penalties`), whose gain is the change that they ask for.
    """
    warnings = []
    for name in _components(first, now):
        before, after = first[f"reward/{name}/weighted"], now[f"reward/{name}/weighted"]
        if after - before <= 1e-6:
            continue
        gain = f"{name} rose from {before:.3f} to {after:.3f} a response"
        signs: dict[WarningKind, str | None] = {
            "length": _length(name, first, now),
            "repetition": _repetition(first, now),
            "eos": _eos(first, now),
            "early end": _early_end(first, now),
            "perplexity": _perplexity(first, now),
        }
        warnings += [HackingWarning(name, kind, f"{gain} while {sign}") for kind, sign in signs.items() if sign]
    return warnings


def degenerate_form(now: Mapping[str, float]) -> list[str]:
    """What is wrong with the form of answers whatever it was at first: repeated, cut off or empty text, in numbers.

    Args:
        now: the metrics of a validation; what it did not measure is not judged.
    """
    problems = []
    if (share := now.get("repetition", 0.0)) >= REPETITION_LEVEL:
        problems.append(f"{share:.0%} of 3-grams repeat an earlier one of the same answer")
    if (share := now.get("eos_rate", 1.0)) < ENDED_LEVEL:
        problems.append(f"only {share:.0%} of answers end by themselves; the others are cut off")
    if (length := now.get("response_length", LENGTH_LEVEL)) < LENGTH_LEVEL:
        problems.append(f"answers have {length:.1f} tokens")
    return problems


class HackingWatch:
    """Warns of each sign, and of each kind of degenerate text, once in a run, by the validations of its directory.

    Args:
        run: of the run; its `eval.jsonl` begins with the first validation.
        processes: of the run; the main process warns.
    """

    def __init__(self, run: RunDirectory, processes: Processes) -> None:
        self._run, self._processes = run, processes
        self._warned: set[tuple[str, str]] = set()
        self._degenerate = False

    def warn(self, now: Mapping[str, float]) -> None:
        """Compare a validation's metrics with the first's, and log what looks like reward hacking or is degenerate."""
        first = next(iter(read_jsonl(self._run.eval)), now) if self._run.eval.is_file() else now
        for warning in hacking_warnings(first, now):
            if self._processes.is_main and (warning.component, warning.kind) not in self._warned:
                self._warned.add((warning.component, warning.kind))
                logger.warning("%s hacking? %s; read the samples in %s", warning.kind, warning.message, self._run.path)
        problems = degenerate_form(now)
        if problems and self._processes.is_main and not self._degenerate:
            self._degenerate = True
            logger.warning("degenerate text? %s; read the samples in %s", "; ".join(problems), self._run.path)


def _components(first: Mapping[str, float], now: Mapping[str, float]) -> list[str]:
    names = [key.split("/")[1] for key in now if key.startswith("reward/") and key.endswith("/weighted")]
    return [name for name in names if f"reward/{name}/weighted" in first and name not in PENALTIES]


def _length(name: str, first: Mapping[str, float], now: Mapping[str, float]) -> str | None:
    before, after = first["response_length"], now["response_length"]
    if before <= 0 or 1 / LENGTH_CHANGE < after / before < LENGTH_CHANGE:
        return None
    lengths = f"the mean length went from {before:.1f} to {after:.1f} tokens"
    segments, segments_now = first.get(f"segments/{name}", 0.0), now.get(f"segments/{name}", 0.0)
    gain = now[f"reward/{name}/raw"] - first[f"reward/{name}/raw"]
    if segments <= 0 or abs(segments_now - segments) < 1e-6:
        return lengths
    by_number = (segments_now - segments) * first[f"reward/{name}/raw"] / segments
    if gain <= 0 or by_number / gain < SEGMENT_SHARE:
        return None
    return f"{lengths}, and {min(by_number / gain, 1.0):.0%} of that comes from the number of segments alone"


def _repetition(first: Mapping[str, float], now: Mapping[str, float]) -> str | None:
    before, after = first["repetition"], now["repetition"]
    if after - before < REPETITION_RISE:
        return None
    return f"the share of repeated 3-grams rose from {before:.0%} to {after:.0%}"


def _eos(first: Mapping[str, float], now: Mapping[str, float]) -> str | None:
    before, after = first["eos_rate"], now["eos_rate"]
    if before - after >= EOS_DROP:
        return f"the share of responses that end by themselves fell from {before:.0%} to {after:.0%}"
    if now["response_length"] < EMPTY_SHARE * first["response_length"]:
        return f"the mean length fell from {first['response_length']:.1f} to {now['response_length']:.1f} tokens"
    return None


def _early_end(first: Mapping[str, float], now: Mapping[str, float]) -> str | None:
    before, after = first["eos_rate"], now["eos_rate"]
    length, shorter = first["response_length"], now["response_length"]
    if after - before < EARLY_END_RISE or shorter * LENGTH_CHANGE > length:
        return None
    return (
        f"responses end early: {before:.0%} ended by themselves at first and {after:.0%} do now, and the mean length "
        f"went from {length:.1f} to {shorter:.1f} tokens"
    )


def _perplexity(first: Mapping[str, float], now: Mapping[str, float]) -> str | None:
    before, after = first.get("reference_perplexity", 0.0), now.get("reference_perplexity", 0.0)
    if not before or after < PERPLEXITY_RISE * before:
        return None
    return f"the perplexity under the reference rose from {before:.2f} to {after:.2f}"
