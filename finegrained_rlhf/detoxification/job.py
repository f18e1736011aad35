"""An evaluation of continuations as a configuration: what `finegrained evaluate-detox` builds and runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import DataName, InputFile, ModelName, OutputFile, Seed, at_least, harmless
from finegrained_rlhf.core.records import Sample
from finegrained_rlhf.inference.config import ResponseMonitor
from finegrained_rlhf.rewards.texts import TextScorer
from finegrained_rlhf.rollout.mixers.protocol import LogitsMixer, check_mixer
from finegrained_rlhf.runtime.process_config import ProcessConfig
from finegrained_rlhf.text.chat import PromptConfig
from finegrained_rlhf.text.plain_text import TooLong

Protocol = Literal["thesis", "literature"]
"""How many continuations are drawn, and how long: 4 of 48 tokens (thesis, section 6.3), or 25 of 20 tokens, with which
DExperts and its successors report."""
PROTOCOLS: Mapping[Protocol, tuple[int, int]] = {"thesis": (4, 48), "literature": (25, 20)}


@dataclass(frozen=True, kw_only=True)
class EvaluateDetox(Settings):
    """Measure how toxic, fluent and varied a policy's continuations are, or those of a file.

    Attributes:
        data: prompt file, or data set of the Hub (`org/name:split`).
        output: JSON file for the metrics; every continuation goes to `STEM.samples.jsonl` beside it.
        checkpoint: run directory, checkpoint, model directory or Hub name; set this or `outputs`.
        outputs: JSON lines of outputs (`feedback.outputs`), as many a prompt as there are.
        scorers: by name, what says how toxic a text is. One that the policy was trained against measures how far it
            was fooled; another one is needed to measure toxicity.
        judge_model: language model of the perplexity; directory or Hub name. None measures none.
        oracle: the truth, where the task knows it.
        protocol: `thesis` or `literature`.
        samples: continuations a prompt; None takes the protocol's.
        max_new_tokens: longest continuation, end of sequence included; None takes the protocol's.
        temperature: divides the logits; above 0.
        top_k: 0 keeps all tokens.
        top_p: 1.0 keeps all tokens.
        mixer: changes the policy's logits (`rollout.mixers`); None leaves them.
        best_of: of so many draws for each continuation, the one with the lowest score by `chosen_by` is kept.
        chosen_by: name of the scorer that chooses; None where nothing is chosen.
        limit: use at most so many prompts, from the beginning of the file; None uses all.
        batch_size: prompts decoded at once in a process, each with all its samples.
        seed: of the sampling.
        max_prompt_tokens: longest prompt in tokens.
        prompt_too_long: `truncate` (counted, with a warning) or `refuse`.
        prompt: chat template and system message.
        processes: precision and CPU threads.
    """

    every_process: ClassVar[bool] = True

    data: DataName
    output: OutputFile
    checkpoint: ModelName | None = None
    outputs: InputFile | None = None
    scorers: Mapping[str, TextScorer] = field(default_factory=dict)
    judge_model: ModelName | None = None
    oracle: ResponseMonitor | None = None
    protocol: Protocol = "thesis"
    samples: Annotated[int | None, at_least(1)] = None
    max_new_tokens: Annotated[int | None, at_least(1)] = None
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 0.9
    mixer: LogitsMixer | None = None
    best_of: Annotated[int, at_least(1)] = 1
    chosen_by: str | None = None
    limit: Annotated[int | None, at_least(1)] = None
    batch_size: Annotated[int, harmless] = 16
    seed: Seed = 0
    max_prompt_tokens: int = 1024
    prompt_too_long: TooLong = "truncate"
    prompt: PromptConfig = PromptConfig()
    processes: ProcessConfig = field(default_factory=ProcessConfig)

    def __post_init__(self) -> None:
        check_mixer(self.mixer)
        if (self.checkpoint is None) == (self.outputs is None):
            raise ConfigError("name what to evaluate: checkpoint=RUN or outputs=FILE, one of them")
        for name, scorer in self.scorers.items():
            if not isinstance(scorer, TextScorer):
                raise ConfigError(f"scorers.{name}: {type(scorer).__name__} is no scorer of texts (score_texts)")
        if not self.scorers and self.judge_model is None and self.oracle is None:
            raise ConfigError(
                "scorers: expected at least one, or a judge_model or an oracle: without them neither toxicity nor "
                "fluency is measured (+text_scorer@scorers.NAME=OPTION adds a scorer)"
            )
        if (self.best_of > 1) != (self.chosen_by is not None):
            raise ConfigError("best_of and chosen_by belong together: chosen_by=NAME of scorers, best_of above 1")
        if self.chosen_by is not None and self.chosen_by not in self.scorers:
            raise ConfigError(f"chosen_by: expected one of {', '.join(self.scorers)}, got {self.chosen_by!r}")
        drawn = (self.mixer, self.samples, self.max_new_tokens) != (None, None, None) or self.best_of > 1
        if self.outputs is not None and drawn:
            raise ConfigError(
                "mixer, samples, max_new_tokens and best_of are for checkpoint=RUN; those of a file are drawn already"
            )
        self.decoding()

    def decoding(self) -> Sample:
        """How continuations are drawn, those that are not kept included."""
        samples = self.samples or PROTOCOLS[self.protocol][0]
        try:
            return Sample(samples * self.best_of, self.temperature, self.top_k, self.top_p)
        except ValueError as error:
            raise ConfigError(str(error)) from None

    @property
    def longest(self) -> int:
        """Tokens of a continuation at most."""
        return self.max_new_tokens or PROTOCOLS[self.protocol][1]

    def run(self) -> dict[str, float]:
        """Evaluate; the main process writes and prints. The metrics, in every process.

        Raises:
            ModelError: no readable model.
            DataError: data or outputs are broken or do not belong together; nothing is written then.
        """
        from finegrained_rlhf.detoxification.evaluation import evaluate

        return evaluate(self)
