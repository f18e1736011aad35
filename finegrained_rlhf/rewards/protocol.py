"""What a reward component must offer. Reward models, rules and a user's own classes all satisfy it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from finegrained_rlhf.core.records import Prompt, SegmentScores

if TYPE_CHECKING:
    import torch


@runtime_checkable
class Scorer(Protocol):
    """Scores segments of responses, or responses as a whole.

    A scorer of segments may have a number `error_free_from`: the smallest value that it gives to a segment without an
    error. Without one it is 0, so that only negative values are errors. Evaluation counts by it. Any scorer may have a
    pair `value_range`, the smallest and the largest value it can give; thresholds of gates and constraints are checked
    against it before a run.

    Two more say when a segment can be paid (`reward.credit=decided`), and are read after `setup`: `reads_on`, whether
    text behind what decides a segment's end may change its value, True where it is not said; and `look_ahead`, the
    further words that decide it (`text.segmentation.look_ahead_of`), None where only the end of the response does.
    """

    def setup(self, device: torch.device) -> None:
        """Load what is heavy and move it to `device`. Called once, before the first `score`."""

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
        """Score R responses.

        Args:
            prompts: R prompts, one a response; their metadata holds `question`, `passages` and `references`.
            responses: R texts, some of which may be empty.

        Returns:
            Spans and values of each response. Values must be finite.
        """


@runtime_checkable
class PromptCheckingScorer(Scorer, Protocol):
    """A scorer that knows before a run whether it can judge answers to its prompts."""

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        """Refuse prompts to which no response can be scored. Called once, after `setup`.

        Raises:
            DataError: there is one; the error names it.
        """


@runtime_checkable
class StartableScorer(Scorer, Protocol):
    """A scorer that can leave its work to the device: the composer starts all of these before it waits for any."""

    def start(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> Callable[[], SegmentScores]:
        """Prepare the inputs and launch the work on them without waiting for the device.

        Args:
            prompts: as in `score`.
            responses: as in `score`.

        Returns:
            A function that waits and gives what `score` would have given; called once. Bad input is refused by `start`.
        """


@runtime_checkable
class BegunScorer(Scorer, Protocol):
    """A scorer that knows a response that goes on from one that has ended, such as one that compares with a text."""

    def score_begun(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
        """Score R beginnings of responses, by what they are worth whatever follows; `credit=revised` asks for it.

        Args:
            prompts: as in `score`.
            responses: R texts, each the beginning of a response.
        """


@runtime_checkable
class VersionedScorer(Scorer, Protocol):
    """A scorer whose values come from elsewhere, where they may change while a run goes on.

    Attributes:
        served_version: of what gives the values, after `setup`; a checkpoint keeps it.
    """

    served_version: str

    def resume(self, version: str) -> None:
        """Take up a run whose values so far came from `version`. Called after `setup`.

        Raises:
            ConfigError: they would come from another one now.
        """


class BaseScorer:
    """A convenient base for scorers that have nothing to load.

    Attributes:
        error_free_from: the smallest value of a segment without an error.
        value_range: smallest and largest value of a segment, or of a response; None where it is not known.
        reads_on: whether text behind what decides a segment's end may change the segment's value.
        look_ahead: further words that decide whether a segment ends; None: the end of the response does.
    """

    error_free_from: float = 0.0
    value_range: tuple[float, float] | None = None
    reads_on: bool = True
    look_ahead: int | None = None

    def setup(self, device: torch.device) -> None:
        """Nothing to load."""
