"""Prompt files for response generation from dialogues: the job behind `finegrained make-response-data`.

What comes out is what `finegrained train-sft`, `finegrained train-ppo` and `finegrained evaluate` read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import write_json
from finegrained_rlhf.core.markers import InputFile, ModelName, OutputDirectory, at_least, harmless
from finegrained_rlhf.dialki.finding.coverage import Coverage
from finegrained_rlhf.dialki.finding.scores import score_answer, summary
from finegrained_rlhf.dialki.readers.dstc11 import Dstc11Part
from finegrained_rlhf.dialki.readers.reading import DialogueData, Format
from finegrained_rlhf.dialki.records import DialogueExample
from finegrained_rlhf.dialki.responses.inputs import KnowledgeInput, ResponseInput, has_response
from finegrained_rlhf.dialogue.records import Knowledge
from finegrained_rlhf.feedback.reading import write_examples
from finegrained_rlhf.runtime.console import ProgressBar
from finegrained_rlhf.runtime.process_config import ProcessConfig

if TYPE_CHECKING:
    from finegrained_rlhf.dialki.finding.finder import Finder, Found
    from finegrained_rlhf.runtime.processes import Processes

REPORT = "response_data.json"
"""Beside the prompt files: how they were made, and counts."""


@dataclass(frozen=True)
class MakeResponseData(Settings):
    """Write prompts with their responses for a generator to learn.

    A dialogue without a response is skipped, and one without gold where the input needs it and no DIALKI finds it; both
    are counted.

    Attributes:
        data: dialogues (a directory for `dstc11`); their prompts go to `output_dir/train.json`.
        output_dir: of the prompt files and `response_data.json`, which says how they were made.
        knowledge: what the input holds beside the dialogue: `none`, `document`, `span`, `passage` or
            `span_and_passage`.
        dialki: run directory or model directory of the DIALKI (or baseline) that finds span and passage; None takes the
            gold.
        max_turns: the newest turns that are kept; None keeps all.
        validation_data: dialogues whose prompts go to `output_dir/dev.json`; None writes none.
        format: of both: `jsonl`, `doc2dial`, `wow` or `dstc11`.
        documents: `doc2dial` only: the document file.
        part: `dstc11` only: the part of `data`.
        validation_part: `dstc11` only: the part of `validation_data`.
        batch_size: dialogues that DIALKI reads together.
        processes: precision and CPU threads.
    """

    every_process: ClassVar[bool] = True

    data: InputFile
    output_dir: OutputDirectory
    knowledge: KnowledgeInput = "span"
    dialki: ModelName | None = None
    max_turns: int | None = None
    validation_data: InputFile | None = None
    format: Format = "jsonl"
    documents: InputFile | None = None
    part: Dstc11Part = "all"
    validation_part: Dstc11Part = "all"
    batch_size: Annotated[int, at_least(1), harmless] = 16
    processes: ProcessConfig = field(default_factory=ProcessConfig)

    def __post_init__(self) -> None:
        ResponseInput(self.knowledge, self.max_turns)
        self._sources()

    def _sources(self) -> dict[str, DialogueData]:
        files = {"train": (self.data, self.part), "dev": (self.validation_data, self.validation_part)}
        return {
            name: DialogueData(path, self.format, documents=self.documents, part=part)
            for name, (path, part) in files.items()
            if path is not None
        }

    def run(self) -> dict[str, Any]:
        """Write the files; the main process prints what they hold.

        Raises:
            DataError: broken dialogues, or none that gives a prompt; nothing is written then.
            ModelError: there is no DIALKI.
        """
        from finegrained_rlhf.runtime.processes import Processes

        processes = Processes(self.processes)
        layout = ResponseInput(self.knowledge, self.max_turns)
        finder = None
        if self.dialki is not None and layout.needs_places:
            from finegrained_rlhf.dialki.training.systems import load_finder

            finder = load_finder(self.dialki, processes, batch_size=self.batch_size)
        read = {name: (source.path, source.read().examples) for name, source in self._sources().items()}
        made = {
            name: self._records(path, examples, layout, finder, processes) for name, (path, examples) in read.items()
        }
        report: dict[str, Any] = {**asdict(layout), "dialki": self.dialki}
        report |= {name: counts for name, (_, counts) in made.items()}
        if processes.is_main:
            for name, (records, counts) in made.items():
                path = Path(self.output_dir) / f"{name}.json"
                write_examples(path, records)
                shown = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in counts.items())
                print(f"{shown} -> {path}")
            write_json(Path(self.output_dir) / REPORT, report)
        return report

    def _records(
        self,
        path: str,
        examples: Sequence[DialogueExample],
        layout: ResponseInput,
        finder: Finder[Any] | None,
        processes: Processes,
    ) -> tuple[list[Any], dict[str, Any]]:
        """The prompts of one file and their counts, the same in every process."""
        skipped: Counter[str] = Counter()
        kept = []
        for example in examples:
            if not has_response(example):
                skipped["without_response"] += 1
            elif layout.needs_places and finder is None and not example.gold:
                skipped["without_gold"] += 1
            else:
                kept.append(example)
        if not kept:
            why = ", ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in skipped.items())
            raise DataError(f"no dialogue gives a prompt ({why})", file=path)
        answers = None if finder is None else find_knowledge(finder, kept, processes)
        places = places_of(kept, answers)
        records = [layout.record(example, known) for example, known in zip(kept, places, strict=True)]
        return records, {"prompts": len(kept), **dict(sorted(skipped.items())), **knowledge_scores(kept, answers)}


def find_knowledge(
    finder: Finder[Any], examples: Sequence[DialogueExample], processes: Processes, progress: bool = True
) -> list[Found]:
    """What DIALKI finds for each dialogue, in order, in every process; the processes share the work."""
    share = [examples[i] for i in processes.share(len(examples))]
    answers: list[Found] = []
    with ProgressBar("identifying", len(share), "dialogues", progress and processes.is_main) as bar:
        for batch in finder.stream(share):
            answers += batch
            bar.update(len(batch))
    everyone = processes.gather_objects(answers)
    if processes.is_main:
        Coverage.of(answer.coverage for answer in everyone).warn()
    return everyone


def places_of(examples: Sequence[DialogueExample], answers: Sequence[Found] | None) -> list[tuple[Knowledge, ...]]:
    """Where the knowledge of each dialogue is: where it was found, or its gold, which may be empty."""
    if answers is None:
        return [example.gold for example in examples]
    return [(answer.knowledge,) for answer in answers]


def knowledge_scores(examples: Sequence[DialogueExample], answers: Sequence[Found] | None) -> dict[str, float]:
    """How well knowledge was found, and in how much of the documents.

    `knowledge_exact_match`, `knowledge_f1` and `knowledge_passage_accuracy` of the labelled dialogues, if any;
    `knowledge_partly_searched` (dialogues) and `knowledge_dropped_spans` where DIALKI found it.
    """
    pairs = [(e, answer) for e, answer in zip(examples, answers or (), strict=answers is not None) if e.gold]
    scores = summary([score_answer(example, answer.knowledge.passage, answer.text) for example, answer in pairs])
    searched = Coverage.of(answer.coverage for answer in answers or ())
    left_out = {"partly_searched": searched.partly_searched, "dropped_spans": searched.dropped_spans}
    means = {key: value for key, value in scores.items() if key != "examples"} if pairs else {}
    return {f"knowledge_{key}": value for key, value in {**means, **(left_out if answers else {})}.items()}
