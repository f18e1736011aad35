"""What a scorer gives is checked where it is given, so that an error names component, prompt and response.

Scorers are a user's own code: whatever is wrong with their result must be told in the user's words, not break somewhere
behind.
"""

from __future__ import annotations

import math
import numbers
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from finegrained_rlhf.core.errors import ConfigError, FineGrainedError
from finegrained_rlhf.core.generation.outcomes import FailureBudgetError
from finegrained_rlhf.core.records import Prompt, SegmentScores
from finegrained_rlhf.rewards.aggregation import ResponseValue
from finegrained_rlhf.rewards.placement import EMPTY
from finegrained_rlhf.rewards.protocol import Scorer

_SHOWN = 60


def check_scores(name: str, result: object, prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
    """What component `name` gave for R responses, if it is what the protocol asks for.

    Raises:
        ConfigError: it is no SegmentScores, has not one entry a response, a value that is no finite number, or a
            segment that is not a part of its response.
    """
    if not isinstance(result, SegmentScores):
        raise ConfigError(
            f"reward component {name} gave {type(result).__name__}, expected SegmentScores with spans and values of "
            f"{len(responses)} responses, first {_where(prompts[0], responses[0])}"
        )
    if len(result.values) != len(responses):
        raise ConfigError(f"reward component {name} scored {len(result.values)} responses, {len(responses)} were given")
    for prompt, response, spans, values in zip(prompts, responses, result.spans, result.values, strict=True):
        for span, value in zip(spans, values, strict=True):
            anywhere = result.whole_response or (tuple(spans) == (EMPTY,) and not response.strip())
            fault = _value_fault(value) or ("" if anywhere else _span_fault(span, len(response)))
            if fault:
                raise ConfigError(f"reward component {name} gave {fault} {_where(prompt, response)}")
    return result


def _value_fault(value: Any) -> str:
    import torch

    if not isinstance(value, numbers.Real | torch.Tensor):
        return f"{value!r} ({type(value).__name__}), expected a number,"
    return "" if math.isfinite(value) else f"a value that is not finite ({float(value)})"


def _span_fault(span: Any, length: int) -> str:
    try:
        start, end = span
        inside = 0 <= start < end <= length
    except (TypeError, ValueError):
        return f"{span!r} for a segment, expected (start, end) in characters,"
    return "" if inside else f"a segment {start}:{end} outside the response (0:{length}) or without characters"


def _where(prompt: Prompt, response: str) -> str:
    shown = response if len(response) <= _SHOWN else f"{response[:_SHOWN]}…"
    return f"for prompt {prompt.id!r}, response {shown!r}"


@contextmanager
def naming(name: str, scorer: Scorer, prompts: Sequence[Prompt], responses: Sequence[str]) -> Iterator[None]:
    """Turn an exception of a user's scorer into one error that names the component and the response it breaks on.

    Errors that are already for users pass, and so does running out of memory.

    Raises:
        ConfigError: the block raised something else.
    """
    import torch

    try:
        yield
    except FailureBudgetError as error:
        raise FailureBudgetError(f"reward.components.{name}.{error}") from None
    except (FineGrainedError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        culprit = _culprit(scorer, prompts, responses, type(error))
        where = _where(*culprit) if culprit else f"on {len(responses)} responses"
        frames = traceback.extract_tb(error.__traceback__)
        line = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
        raise ConfigError(
            f"reward component {name} broke {where}: {type(error).__name__}: {str(error) or 'no message'}{line}"
        ) from error


def _culprit(
    scorer: Scorer, prompts: Sequence[Prompt], responses: Sequence[str], kind: type[Exception]
) -> tuple[Prompt, str] | None:
    """The first response on which the scorer breaks in the same way when it is given alone."""
    for prompt, response in zip(prompts, responses, strict=True):
        try:
            scorer.score([prompt], [response])
        except kind:
            return prompt, response
        except Exception:
            return None
    return None


def error_free_from(scorer: Scorer) -> float:
    """The smallest value that this scorer gives to a segment without an error; 0 where it does not say."""
    return float(getattr(scorer, "error_free_from", 0.0))


def value_range(name: str, scorer: Scorer) -> tuple[float, float] | None:
    """The smallest and the largest value that this scorer can give to a segment; None where it does not say.

    Raises:
        ConfigError: what it says is no pair of numbers.
    """
    declared = getattr(scorer, "value_range", None)
    if declared is None:
        return None
    try:
        low, high = sorted(map(float, declared))
    except (TypeError, ValueError):
        raise ConfigError(
            f"reward.components.{name}: value_range must be the smallest and the largest value, got {declared!r}"
        ) from None
    return low, high


def look_ahead_of_scorer(name: str, scorer: Scorer) -> int | None:
    """The further words with which a scorer knows whether a segment ends; None where it does not say.

    Raises:
        ConfigError: what it says is no number of words.
    """
    words = getattr(scorer, "look_ahead", None)
    if words is not None and (not isinstance(words, int) or isinstance(words, bool) or words < 0):
        raise ConfigError(f"reward.components.{name}: look_ahead must be a number of words or None, got {words!r}")
    return words


def check_threshold(key: str, name: str, scorer: Scorer, at_least: float, of: ResponseValue, empty: float) -> None:
    """Require that some responses can reach a threshold and some can miss it, where that can be known beforehand.

    Args:
        key: of the threshold.
        name: of the component that is judged.
        scorer: of that component. A sum has no largest value but where no segment has one above 0.
        at_least: the threshold.
        of: what a response counts with.
        empty: value of a response without a segment.

    Raises:
        ConfigError: no response, or every response, can reach it; or see `value_range`.
    """
    value_bounds = value_range(name, scorer)
    if value_bounds is None:
        return
    low, high = min(value_bounds[0], empty, 0.0), max(value_bounds[1], empty, 0.0)  # 0 without a segment
    if of == "sum":
        low, high = (low if low >= 0 else -math.inf), (high if high <= 0 else math.inf)
    if at_least > high:
        raise ConfigError(f"{key}: {at_least:g} cannot be reached; {name} gives a response {high:g} at most")
    if at_least <= low:
        raise ConfigError(f"{key}: {at_least:g} is always reached; {name} gives a response {low:g} at least")
