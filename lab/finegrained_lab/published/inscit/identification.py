"""Predictions of a trained DIALKI for INSCIT, and the thresholds that they are made with.

The job of `finegrained identify-evidence` reads files of turns; the library's `EvidenceIdentifier` is for applications.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from finegrained_lab.published.inscit.candidates import TuneBy, candidate_recall, check_tune_by, tuned_selection
from finegrained_lab.published.inscit.data import INSCIT_DATA, InscitTurn, read_inscit, turns_of
from finegrained_lab.published.inscit.predictions import InscitPrediction, mean_percent, passage_f1, write_predictions
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import write_json
from finegrained_rlhf.core.markers import InputFile, ModelName, OutputFile, at_least, harmless
from finegrained_rlhf.dialki.data import read_dialogue_jsonl
from finegrained_rlhf.dialki.model.search import SelectBy
from finegrained_rlhf.dialki.records import DialogueExample
from finegrained_rlhf.dialki.scores import Coverage
from finegrained_rlhf.inscit.identifier import SELECTED, EvidenceSelection, read_selection
from finegrained_rlhf.runtime.console import ProgressBar
from finegrained_rlhf.runtime.process_config import ProcessConfig
from finegrained_rlhf.text.tables import cell, markdown_table

if TYPE_CHECKING:
    from finegrained_rlhf.dialki.finder import Finder

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class IdentifyEvidence(Settings):
    """Predict the evidence of turns with a trained DIALKI; the job of `finegrained identify-evidence`.

    Attributes:
        checkpoint: run directory or model directory of a trained DIALKI.
        data: file of conversations.
        input: their dialogues (`finegrained make-identifier-data`), one for each turn.
        output: JSON file of predictions in the published format; their responses are empty.
        results: JSON file for the thresholds (`selection`) and the figures; None writes none.
        score: what thresholds are compared with: `logits`, `probabilities` or `sigmoid`.
        tune: choose γ on these very turns: `repository` or `pi_f1` (`tuned_selection`); None chooses none.
        allow_empty: with `tune`, choose a second threshold, below which nothing is predicted.
        selection: the `results` of a run with `tune`, whose thresholds are taken; None takes the two below.
        threshold: γ; None selects the best candidate alone.
        empty: nothing is predicted where the best score does not exceed it; None predicts always.
        most: passages of a turn at most.
        batch_size: dialogues that are encoded together.
        processes: precision and CPU threads.
    """

    every_process: ClassVar[bool] = True

    checkpoint: ModelName
    data: InputFile
    input: InputFile
    output: OutputFile
    results: OutputFile | None = None
    score: SelectBy = "logits"
    tune: TuneBy | None = None
    allow_empty: bool = False
    selection: InputFile | None = None
    threshold: float | None = None
    empty: float | None = None
    most: int = SELECTED
    batch_size: Annotated[int, at_least(1), harmless] = 16
    processes: ProcessConfig = field(default_factory=ProcessConfig)

    input_checks: ClassVar[Mapping[str, Any]] = INSCIT_DATA

    def __post_init__(self) -> None:
        EvidenceSelection(self.score, self.threshold, self.empty, self.most)
        fixed = self.threshold is not None or self.empty is not None
        if (self.tune is not None) + (self.selection is not None) + fixed > 1:
            raise ConfigError("tune, selection, threshold: expected one of them, or none for the best candidate alone")
        if self.tune is not None:
            check_tune_by(self.tune, self.score)
        elif self.allow_empty:
            raise ConfigError(
                "allow_empty: the second threshold is chosen with tune; give it as empty=NUMBER otherwise"
            )

    def run(self) -> dict[str, Any]:
        """Answer, select, write, and print the figures.

        Returns:
            What `results` holds.

        Raises:
            ModelError: no readable model.
            DataError: a file is damaged, or the dialogues are not those of the turns.
        """
        from finegrained_rlhf.dialki.training.systems import load_finder
        from finegrained_rlhf.runtime.processes import Processes

        processes = Processes(self.processes)
        turns = turns_of(read_inscit(self.data).conversations)
        examples = read_identifier_data(self.input, turns)
        selection = None if self.selection is None else read_selection(self.selection)
        score = self.score if selection is None else selection.score
        finder = load_finder(self.checkpoint, processes, batch_size=self.batch_size)
        scored = self._scored(finder, examples, score)
        if self.tune is not None:
            labels = [[label.passages for label in turn.labels] for turn in turns]
            selection = tuned_selection(scored, labels, self.tune, score, self.most, self.allow_empty)
        selection = selection or EvidenceSelection(score, self.threshold, self.empty, self.most)
        predictions = {
            turn.key: InscitPrediction("", selection.of(row)) for turn, row in zip(turns, scored, strict=True)
        }
        results = {"tune": self.tune, **identified(turns, scored, selection)}
        if processes.is_main:
            write_predictions(self.output, turns, predictions)
            if self.results is not None:
                write_json(self.results, results)
            self._print(results)
        processes.barrier()
        return results

    def _scored(
        self, finder: Finder[Any], examples: Sequence[DialogueExample], score: SelectBy
    ) -> list[dict[str, float]]:
        """The score of each searched candidate of each dialogue by its id, in order, in every process."""
        processes = finder.processes
        share = [examples[i] for i in processes.share(len(examples))]
        rows, covered = [], []
        with ProgressBar("identifying", len(share), "dialogues", processes.is_main) as bar:
            answers = (answer for batch in finder.stream(share) for answer in batch)
            for example, answer in zip(share, answers, strict=True):
                ids = [example.passages[number].id for number in answer.searched]
                rows.append(dict(zip(ids, answer.scores(score), strict=True)))
                covered.append(answer.coverage)
                bar.update(1)
        searched = Coverage.of(processes.gather_objects(covered))
        if processes.is_main:
            searched.warn()
            logger.info("%s", finder.report)
        return processes.gather_objects(rows)

    def _print(self, results: Mapping[str, Any]) -> None:
        shown = {key: cell(value) for key, value in results.items() if not isinstance(value, Mapping) and key != "tune"}
        print(markdown_table([shown], list(shown)))
        bound, chosen = results["candidates"], results["selection"]
        where = f", chosen on these turns by {self.tune}" if self.tune is not None else ""
        print(f"{chosen['score']}: γ {cell(chosen['threshold'])}, empty {cell(chosen['empty'])}{where}")
        recall = f"{cell(bound['recall'])}% of the evidence is among the candidates"
        print(f"{recall}, PI-F1 {cell(bound['pi_f1_bound'])} at most -> {self.output}")


def read_identifier_data(path: str | Path, turns: Sequence[InscitTurn]) -> list[DialogueExample]:
    """The dialogues of these turns, in their order.

    Raises:
        DataError: the file is damaged, a turn has none or two, or another context.
    """
    known: dict[str, DialogueExample] = {}
    for example in read_dialogue_jsonl(path).examples:
        if example.id in known:
            raise DataError("is there twice", file=path, record=example.id)
        known[example.id] = example
    names = {turn.name for turn in turns}
    for name in known:
        if name not in names:
            raise DataError("no turn of the data has this name", file=path, record=name, field="id")
    for turn in turns:
        if turn.name not in known:
            raise DataError(f"has no dialogue for turn {turn.name!r}", file=path)
        if tuple(one.text for one in known[turn.name].turns) != turn.context:
            raise DataError("this turn has another context in the data", file=path, record=turn.name, field="turns")
    return [known[turn.name] for turn in turns]


def identified(
    turns: Sequence[InscitTurn], scored: Sequence[Mapping[str, float]], selection: EvidenceSelection
) -> dict[str, Any]:
    """How good selected passages are; PI-F1 in percent.

    Args:
        turns: at least one.
        scored: the score of each candidate of each turn by its id.
        selection: what is selected.

    Returns:
        `pi_f1`; `pi_f1_with_empty`, where an empty prediction counts 1 for a label without evidence; `best_alone` and
        `first_candidate`, PI-F1 of one passage a turn; `passages`, selected a turn; `empty_turns`; `selection`;
        `candidates` (`candidate_recall`).
    """
    selected = [selection.of(row) for row in scored]
    alone = EvidenceSelection(selection.score)
    return {
        "turns": len(turns),
        "pi_f1": _pi_f1(turns, selected),
        "pi_f1_with_empty": _pi_f1(turns, selected, 1.0),
        "best_alone": _pi_f1(turns, [alone.of(row) for row in scored]),
        "first_candidate": _pi_f1(turns, [tuple(row)[:1] for row in scored]),
        "passages": sum(map(len, selected)) / len(turns),
        "empty_turns": sum(not row for row in selected),
        "selection": selection.to_json(),
        "candidates": candidate_recall(
            turns, {turn.name: list(row) for turn, row in zip(turns, scored, strict=True)}, selection.most
        ),
    }


def _pi_f1(turns: Sequence[InscitTurn], predicted: Sequence[Sequence[str]], empty: float = 0.0) -> float | None:
    return mean_percent(
        [
            max(passage_f1(ids, label.passages, empty) for label in turn.labels)
            for turn, ids in zip(turns, predicted, strict=True)
        ]
    )
