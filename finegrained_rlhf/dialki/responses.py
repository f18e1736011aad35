"""What a response generator reads and learns: the dialogue and the knowledge of the next answer in one text.

`finegrained make-response-data` writes it as prompt files, which `finegrained train-sft`, `finegrained train-ppo` and
`finegrained evaluate` read. Source: thesis, 3.3.5; the layout is that of the baseline which the thesis builds on
(DialDoc 2021 shared task, `seq2seq_utils.py`: the newest turn first, then title and document), with words in place of
its tags, which a T5 tokenizer does not know.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import write_json
from finegrained_rlhf.core.markers import InputFile, ModelName, OutputDirectory, at_least, harmless
from finegrained_rlhf.core.sources import Part
from finegrained_rlhf.dialki.data import DialogueData
from finegrained_rlhf.dialki.records import NO_PASSAGE, DialogueExample
from finegrained_rlhf.dialki.scores import Coverage, score_answer, summary
from finegrained_rlhf.dialogue.records import Knowledge, Passage
from finegrained_rlhf.dialogue.tokens import plain_title
from finegrained_rlhf.feedback import records as feedback
from finegrained_rlhf.feedback.reading import write_examples
from finegrained_rlhf.runtime.console import ProgressBar
from finegrained_rlhf.runtime.process_config import ProcessConfig
from finegrained_rlhf.text.templates import squeeze

if TYPE_CHECKING:
    from finegrained_rlhf.dialki.finder import Finder, Found
    from finegrained_rlhf.runtime.processes import Processes

KnowledgeInput = Literal["none", "document", "span", "passage", "span_and_passage"]
KNOWLEDGE_INPUTS: tuple[KnowledgeInput, ...] = get_args(KnowledgeInput)


@dataclass(frozen=True)
class ResponseInput:
    """How a dialogue and its knowledge become the generator's input.

    `user: u_n agent: a_n-1 user: u_n-1 … | knowledge: SPANS | passage: TITLE: TEXT`. The newest turn comes first. A
    token limit cuts the end off: of a passage, or of a document, before anything else.

    Attributes:
        knowledge: what follows the dialogue: `none`; the whole `document`; the `span` (the run of spans); its
            `passage`; or both (`span_and_passage`).
        max_turns: the newest turns that are kept; None keeps all.
    """

    knowledge: KnowledgeInput
    max_turns: int | None = None

    def __post_init__(self) -> None:
        if self.knowledge not in KNOWLEDGE_INPUTS:
            raise ConfigError(f"knowledge: expected one of {', '.join(KNOWLEDGE_INPUTS)}, got {self.knowledge!r}")
        if self.max_turns is not None and self.max_turns < 1:
            raise ConfigError(f"max_turns: expected null or at least 1, got {self.max_turns}")

    @property
    def needs_places(self) -> bool:
        """Whether the input depends on where the knowledge is: not without any, and not with all of it."""
        return self.knowledge not in ("none", "document")

    def text(self, example: DialogueExample, places: Sequence[Knowledge] = ()) -> str:
        """The generator's input.

        Args:
            example: the dialogue with its passages.
            places: where the knowledge is, found or gold; not used where `needs_places` is False.

        Raises:
            DataError: the input needs a place, and there is none.
        """
        self._check(example, places)
        parts = [dialogue_text(example, self.max_turns)]
        if self.knowledge in ("span", "span_and_passage"):
            parts.append(f"knowledge: {squeeze(' '.join(map(example.text_of, places)))}")
        if self.knowledge in ("passage", "span_and_passage"):
            parts += [f"passage: {passage_text(passage)}" for passage in _passages_of(example, places)]
        elif self.knowledge == "document":
            parts += [f"passage: {passage_text(passage)}" for passage in example.passages if passage != NO_PASSAGE]
        return " | ".join(parts)

    def record(self, example: DialogueExample, places: Sequence[Knowledge] = ()) -> feedback.QAExample:
        """The prompt with the response as its reference, as SFT, PPO and evaluation read it.

        The question is the last user turn, the passages are what the input shows of them.

        Raises:
            DataError: the input needs a place and there is none, or the response is not known or blank.
        """
        if not has_response(example):
            raise DataError("expected the next agent turn in words, got none", record=example.id, field="response")
        assert example.response is not None
        return feedback.QAExample(
            id=example.id,
            question=example.turns[-1].text,
            text=self.text(example, places),
            references=(squeeze(example.response),),
            passages=self.shown(example, places),
        )

    def shown(self, example: DialogueExample, places: Sequence[Knowledge] = ()) -> tuple[Passage, ...]:
        """What the input shows of each passage, in the order of the input; empty without knowledge."""
        self._check(example, places)
        if self.knowledge == "none":
            return ()
        if self.knowledge == "span":
            return tuple(
                Passage(
                    "",
                    plain_title(passage.title),
                    tuple(example.text_of(place) for place in places if _at(example, place) is passage),
                )
                for passage in _passages_of(example, places)
            )
        passages = example.passages if self.knowledge == "document" else _passages_of(example, places)
        return tuple(
            Passage("", plain_title(passage.title), passage.spans) for passage in passages if passage != NO_PASSAGE
        )

    def _check(self, example: DialogueExample, places: Sequence[Knowledge]) -> None:
        if self.needs_places and not places:
            raise DataError(
                f"is not labelled; knowledge={self.knowledge} needs gold, or a DIALKI that finds it (dialki=RUN)",
                record=example.id,
                field="gold",
            )


def has_response(example: DialogueExample) -> bool:
    """Whether the next agent turn is known in words."""
    return bool(example.response and example.response.strip())


def dialogue_text(example: DialogueExample, max_turns: int | None = None) -> str:
    """`user: … agent: … user: …`: the newest turn first, at most `max_turns` of them."""
    turns = example.turns[::-1][:max_turns]
    return " ".join(f"{turn.role}: {squeeze(turn.text)}" for turn in turns)


def passage_text(passage: Passage) -> str:
    """`TITLE: TEXT`, without a title the text alone."""
    title, text = plain_title(passage.title), squeeze(" ".join(passage.spans))
    return f"{title}: {text}" if title else text


def _at(example: DialogueExample, place: Knowledge) -> Passage:
    return example.passages[place.passage]


def _passages_of(example: DialogueExample, places: Sequence[Knowledge]) -> list[Passage]:
    """The passages of places, each once, in the order of the places."""
    return [example.passages[i] for i in dict.fromkeys(place.passage for place in places)]


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
        format: of both: `jsonl`, or one that a package reads, as the laboratory `doc2dial`, `wow` and `dstc11`.
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
    format: str = "jsonl"
    documents: InputFile | None = None
    part: Part = "all"
    validation_part: Part = "all"
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
