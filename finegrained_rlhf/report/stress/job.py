"""A stress test as a configuration: what `finegrained stress-test` builds and runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import DataName, InputFile, ModelName, OutputFile, at_least
from finegrained_rlhf.inference.config import DecodingConfig
from finegrained_rlhf.inference.jobs import AnswersPrompts
from finegrained_rlhf.rewards.config import RewardConfig
from finegrained_rlhf.rewards.stress.changes import MakesChanges


@dataclass(frozen=True)
class StressTestConfig(Settings):
    """What is changed, and how long a price is searched for.

    Attributes:
        families: makers of changes of one's own (`rewards.stress.MakesChanges`), each a class by `_target_`.
        built_in: make the built-in changes too.
        roles: which component is `relevance`, `factuality` or `completeness`, where its name does not say.
        answers: unmarked answers of models that are changed for each question, beside the gold one.
        edits: answers without truth that are scored for each question; 0 searches for no price.
        searched: questions for which a price is searched for.
        samples: answers that `checkpoint` samples for each question.
    """

    families: Sequence[MakesChanges] = ()
    built_in: bool = True
    roles: Mapping[str, str] = field(default_factory=dict)
    answers: Annotated[int, at_least(0)] = 1
    edits: Annotated[int, at_least(0)] = 200
    searched: Annotated[int, at_least(1)] = 50
    samples: Annotated[int, at_least(2)] = 64

    def __post_init__(self) -> None:
        for place, maker in enumerate(self.families):
            if not isinstance(maker, MakesChanges):
                expected = "a class with `name`, `family` and a call that makes a Change"
                raise ConfigError(f"stress_test.families[{place}]: expected {expected}, got {type(maker).__name__}")
        if not self.built_in and not self.families:
            raise ConfigError("stress_test.built_in=false leaves nothing: name stress_test.families")


@dataclass(frozen=True, kw_only=True)
class StressTest(AnswersPrompts):
    """Attack a reward with changes to answers whose effect is known. Further fields: see `AnswersPrompts`.

    Attributes:
        reward: components and weights, as training has them.
        data: feedback or prompt file with gold answers, or data set of the Hub (`org/name:split`).
        samples: JSON lines of a policy's outputs (`finegrained sample-outputs`), to which the price is compared.
        checkpoint: policy that samples them: run directory, checkpoint, model directory or Hub name.
        output: JSON file for the report, with its page beside it; None writes `stress.json` beside each model of the
            reward.
        records: use at most so many questions, drawn by the seed; None uses all.
        format: what is printed: `table`, or `json`.
        stress_test: what is changed.
        decoding: of `checkpoint`; None samples as training does.
    """

    reward: RewardConfig
    data: DataName
    samples: InputFile | None = None
    checkpoint: ModelName | None = None
    output: OutputFile | None = None
    records: Annotated[int | None, at_least(1)] = 100
    format: Literal["table", "json"] = "table"
    stress_test: StressTestConfig = StressTestConfig()
    decoding: DecodingConfig = DecodingConfig()

    def __post_init__(self) -> None:
        if self.samples is not None and self.checkpoint is not None:
            raise ConfigError("samples, checkpoint: name one of them, a file of samples or the policy that makes them")

    def run(self) -> Mapping[str, Any]:
        """Change, score and search; writes the report and its page, and prints it.

        Returns:
            The report, as `stress.json` has it.

        Raises:
            ConfigError: nowhere to write to, or a family or role that does not fit.
            DataError: no question with a gold answer, or one that the reward cannot score.
            ModelError: a model cannot be read.
        """
        from finegrained_rlhf.report.stress.run import stress_test

        return stress_test(self)
