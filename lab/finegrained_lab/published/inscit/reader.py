"""Readers that answer a turn from passages: what they are given, what they are taught to say, what they said.

A prompt file has a conversation, the passages that may answer its last turn, and what is to be said: `evidence: id1 |
id2 answer: RESPONSE`. What is too long is cut by the policy that reads it (`inference/inputs.py`). The answers that
`finegrained generate` writes to such a file become predictions in the published format. Source: thesis, section 5.4;
INSCIT's reader.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from finegrained_lab.published.inscit.data import (
    INSCIT_DATA,
    InscitLabel,
    InscitTurn,
    check_corpus_keys,
    earlier_ids,
    passages_by_id,
    read_inscit,
    read_known_inscit,
    turns_of,
    with_gold,
)
from finegrained_lab.published.inscit.predictions import (
    InscitPrediction,
    read_predictions,
    read_retrieved,
    write_predictions,
)
from finegrained_rlhf.core.checks import get_field, require
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import read_jsonl, write_jsonl
from finegrained_rlhf.core.markers import CorpusPath, InputFile, OutputFile, at_least
from finegrained_rlhf.feedback.outputs import read_texts
from finegrained_rlhf.feedback.prompt_files import read_prompt_file
from finegrained_rlhf.inscit.conversation import (
    RESPONSE_TYPES,
    EvidencePassage,
    ReaderReply,
    joint_target,
    read_joint,
    unique,
    with_type,
)

ReaderTask = Literal["joint", "response"]
ReaderLabels = Literal["first", "all"]
ORACLE = "oracle"
"""The `types` that are those of the labels."""


@dataclass(frozen=True, kw_only=True)
class MakeReaderInputs(Settings):
    """Write a prompt file for a reader; the job of `finegrained make-reader-inputs`.

    A prompt has the name of its turn, its `turns`, its `passages` and its `answer`s: what each label of the turn would
    have the reader say.

    Attributes:
        data: file of conversations.
        output: JSON-lines file.
        task: `joint` teaches to name the evidence and to answer; `response` to answer alone.
        retrieved: file of ranked passages (`[{conv_id, turn_id, ctxs: [{id, score}]}]`); None: none.
        evidence: `gold`, the evidence of the label, or a file of predictions whose evidence is read; in place of
            `retrieved`. None: no such.
        passages: at most so many passages of a turn.
        earlier: whether the evidence of earlier turns comes before what was retrieved, the newest turn's first.
        add_gold: put the label's evidence among the passages where it is not, as INSCIT's reader is trained.
        labels: `first`: a prompt a turn; `all`: a prompt a label, with its target first.
        types: `oracle`, the type of the label, or a JSON-lines file of `id` and `label` by the name of the turn; told
            to the reader at the end of the context. None tells none.
        corpus: of the passages that the data does not hold.
        store: directory of the corpus's `PassageStore`; None reads the corpus once from its beginning.
        known_passages: corpus, or directory of its `PassageStore`, that must have all evidence of the data; None checks
            nothing.
    """

    data: InputFile
    output: OutputFile
    task: ReaderTask = "joint"
    retrieved: InputFile | None = None
    evidence: Literal["gold"] | InputFile | None = None
    passages: Annotated[int, at_least(1)] = 50
    earlier: bool = True
    add_gold: bool = False
    labels: ReaderLabels = "first"
    types: Literal["oracle"] | InputFile | None = None
    corpus: CorpusPath | None = None
    store: InputFile | None = None
    known_passages: InputFile | None = None

    input_checks: ClassVar[Mapping[str, Any]] = INSCIT_DATA

    def __post_init__(self) -> None:
        if (self.retrieved is None) == (self.evidence is None):
            raise ConfigError("retrieved or evidence: expected exactly one of them")
        if self.evidence is not None and (self.add_gold or self.task == "joint"):
            key = "add_gold=true" if self.add_gold else "task=joint"
            raise ConfigError(f"{key}: a reader that is given its evidence answers alone (task=response)")
        check_corpus_keys(self.corpus, self.store)

    def run(self) -> int:
        """Read, choose, write; prints one line, and returns how many prompts there are.

        Raises:
            DataError: a file is damaged, or lacks a turn, or a passage is nowhere.
        """
        turns = turns_of(read_known_inscit(self.data, self.known_passages).conversations)
        labelled = list(_labelled_turns(turns, self.labels))
        ids = self._passages(labelled, turns)
        known = passages_by_id({name for row in ids for name in row}, turns, self.corpus, self.store)
        types = None if self.types in (None, ORACLE) else read_type_file(self.types, turns)
        rows = []
        for one, names in zip(labelled, ids, strict=True):
            missing = [name for name in names if name not in known]
            if missing:
                problem = f"passage {missing[0]!r} is not in the data: name the corpus that it was retrieved from"
                raise DataError(problem, file=self.retrieved or self.evidence, record=one.turn.name, field="corpus")
            kind = one.label.response_type if types is None else types[one.turn.name]
            context = one.turn.context if self.types is None else with_type(one.turn.context, kind)
            rows.append(_row(one, context, [known[name] for name in names], self.task))
        write_jsonl(self.output, rows)
        mean = sum(map(len, ids)) / len(ids)
        print(f"{len(rows)} prompts of {len(turns)} turns, {mean:.1f} passages a prompt -> {self.output}")
        return len(rows)

    def _passages(self, labelled: Sequence[LabelledTurn], turns: Sequence[InscitTurn]) -> list[list[str]]:
        """The ids of the passages of each prompt."""
        if self.evidence == "gold":
            return [unique(one.gold)[: self.passages] for one in labelled]
        if self.evidence is not None:
            predictions = read_predictions(self.evidence, turns)
            return [unique(predictions[one.turn.key].evidence)[: self.passages] for one in labelled]
        assert self.retrieved is not None
        run = read_retrieved(self.retrieved, turns)
        passages = []
        for one in labelled:
            before = earlier_ids(one.turn, newest_first=True) if self.earlier else []
            ids = unique([*before, *(hit.id for hit in run[one.turn.name])])[: self.passages]
            passages.append(with_gold(ids, one.gold, self.passages) if self.add_gold else ids)
        return passages


@dataclass(frozen=True)
class LabelledTurn:
    """A turn with the label that its prompt teaches.

    Attributes:
        name: of the prompt.
        turn: that is to be answered.
        label: what it is to teach.
    """

    name: str
    turn: InscitTurn
    label: InscitLabel

    @property
    def gold(self) -> list[str]:
        """The ids of the label's evidence, each once."""
        return unique(passage.id for passage in self.label.evidence)


def _labelled_turns(turns: Sequence[InscitTurn], labels: str) -> Iterator[LabelledTurn]:
    for turn in turns:
        chosen = turn.labels if labels == "all" else turn.labels[:1]
        for number, label in enumerate(chosen, start=1):
            yield LabelledTurn(f"{turn.name}_{number}" if len(chosen) > 1 else turn.name, turn, label)


def _row(
    one: LabelledTurn, context: Sequence[str], passages: Sequence[EvidencePassage], task: ReaderTask
) -> dict[str, Any]:
    labels = [one.label, *(label for label in one.turn.labels if label is not one.label)]
    answers = [joint_target(label.response, label.passages) if task == "joint" else label.response for label in labels]
    return {
        "id": one.name,
        "turns": list(context),
        "passages": [{"id": p.id, "title": "|".join(p.titles), "text": " ".join(p.text.split())} for p in passages],
        "answer": answers,
        "conv_id": one.turn.conversation,
        "turn_id": one.turn.number,
    }


def read_type_file(path: str, turns: Sequence[InscitTurn]) -> Mapping[str, Any]:
    """The type that a classifier says each turn's response has, by the name of the turn.

    Raises:
        DataError: a turn is missing or there twice, or a label is no type.
    """
    types: dict[str, Any] = {}
    for number, row in enumerate(read_jsonl(path)):
        try:
            name, kind = get_field(row, "id"), get_field(row, "label")
            require(kind in RESPONSE_TYPES, f"expected one of {', '.join(RESPONSE_TYPES)}, got {kind!r}", "label")
            require(name not in types, f"turn {name!r} is there twice", "id")
        except DataError as error:
            raise error.at(file=path, record=number) from None
        types[name] = kind
    for turn in turns:
        if turn.name not in types:
            raise DataError(f"turn {turn.name!r} has no type", file=path)
    return types


@dataclass(frozen=True, kw_only=True)
class ReadReaderOutputs(Settings):
    """Write predictions; the job of `finegrained read-reader-outputs`.

    Attributes:
        data: file of conversations.
        inputs: prompt file that the reader answered, a prompt a turn.
        responses: its answers, JSON lines of `id` and `response`.
        output: JSON file of predictions.
        task: `joint`: the answers name their evidence; `response`: their evidence is all that the reader was given.
    """

    data: InputFile
    inputs: InputFile
    responses: InputFile
    output: OutputFile
    task: ReaderTask = "joint"

    input_checks: ClassVar[Mapping[str, Any]] = INSCIT_DATA

    def run(self) -> dict[str, int]:
        """Read, take apart, write, print one line.

        Returns:
            How many turns there are, how many ids were `unknown` or `repeated`, and how many answers are missing.

        Raises:
            DataError: a file is damaged, or a turn is missing or there twice.
        """
        turns = turns_of(read_inscit(self.data).conversations)
        passages = {
            item.id: [passage.id for passage in item.metadata.get("passages", ())]
            for item in read_prompt_file(self.inputs)
        }
        responses = read_texts(self.responses, "response")
        counts, predictions = Counter[str](), {}
        for turn in turns:
            for name, file in ((turn.name in passages, self.inputs), (turn.name in responses, self.responses)):
                if not name:
                    raise DataError(f"has nothing for turn {turn.name!r}", file=file)
            text, ids = responses[turn.name], passages[turn.name]
            one = read_joint(text, ids) if self.task == "joint" else ReaderReply(text.strip(), tuple(ids))
            counts.update(unknown=one.unknown, repeated=one.repeated, unanswered=not one.answered)
            predictions[turn.key] = InscitPrediction(one.response, one.evidence)
        write_predictions(self.output, turns, predictions)
        read_predictions(self.output, turns)
        summary = {"turns": len(turns), **{name: int(counts[name]) for name in ("unknown", "repeated", "unanswered")}}
        problems = f"{summary['unknown']} ids of passages that were not given, {summary['repeated']} named again"
        print(f"{len(turns)} turns, {problems}, {summary['unanswered']} without an answer -> {self.output}")
        return summary
