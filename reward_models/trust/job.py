"""Measuring a reward model against labels of people: what `finegrained evaluate-reward-model` builds and runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import InputFile, ModelName, OutputFile, at_least, harmless
from finegrained_rlhf.feedback.taxonomy import QA_FEEDBACK, Taxonomy
from finegrained_rlhf.runtime.process_config import ProcessConfig
from reward_models.kinds import kind_named, kinds_of
from reward_models.labels.pairs import CompletenessConfig, Matching

if TYPE_CHECKING:
    from reward_models.trust.measure import TrustReport


@dataclass(frozen=True)
class EvaluateRewardModel(Settings):
    """Measure a reward model against people's labels on any feedback file.

    Attributes:
        path: directory of the model or of the run that trained it, or a Hub name.
        data: feedback file; best one that the model did not learn from.
        output: JSON file for the report.
        items: JSON-lines file for what the model said of each record (`trust/items.py`); None writes none.
        kind: of a model made elsewhere, which says nothing of itself, or which component of a bottleneck; None takes
            the model's own.
        taxonomy: what was marked in `data`.
        matching: how completeness labels are made; None takes that of the run in `path`, else `original`.
        min_span_words: spans with fewer words are dropped, of categories that drop short ones; None takes that of the
            run in `path`, else the taxonomy's (5 for relevance).
        segmenter: `rules` or a spaCy pipeline; None takes the one of training.
        prefixes: judge each segment in the prefix of the answer that decides where it ends, or (False) in the whole
            answer; None takes the way of training.
        batch_size: inputs in one forward pass.
        processes: precision and CPU threads.
    """

    every_process: ClassVar[bool] = True

    path: ModelName
    data: InputFile
    output: OutputFile
    items: OutputFile | None = None
    kind: str | None = None
    taxonomy: Taxonomy = QA_FEEDBACK
    matching: Matching | None = None
    min_span_words: Annotated[int | None, at_least(0)] = None
    segmenter: str | None = None
    prefixes: bool | None = None
    batch_size: Annotated[int, at_least(1), harmless] = 32
    processes: ProcessConfig = ProcessConfig()

    def __post_init__(self) -> None:
        if self.kind is not None:
            kind_named(self.kind, kinds_of(self.taxonomy))
        if self.matching is not None:
            CompletenessConfig(self.matching)

    def run(self) -> TrustReport:
        """Measure; the main process writes the report and prints it as a table.

        Raises:
            ModelError: no readable reward model.
            DataError: broken feedback, or no record has a label for this kind of model; nothing is written then.
        """
        from reward_models.trust.evaluate import evaluate_reward_model

        return evaluate_reward_model(self)
