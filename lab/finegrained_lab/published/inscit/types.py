"""Turns as texts with the type of their response, for `finegrained train-classifier`, and how well a classifier tells
it.

A text is the newest utterance, the evidence, then what was said before it, newest first: what a classifier has no
room for is the oldest. Labels of a turn that rest on the same passages are one instance. Measured are accuracy,
macro F1 and confusion, beside the majority's. Source: thesis, section 5.5.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from finegrained_lab.published.inscit.data import (
    INSCIT_DATA,
    InscitLabel,
    InscitTurn,
    read_inscit,
    read_known_inscit,
    turns_of,
)
from finegrained_lab.published.inscit.predictions import type_scores
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import write_json, write_jsonl
from finegrained_rlhf.core.markers import InputFile, ModelName, OutputFile, at_least, harmless
from finegrained_rlhf.feedback.labelled_texts import LabelledText
from finegrained_rlhf.inscit.conversation import RESPONSE_TYPES, evidence_text_of
from finegrained_rlhf.text.tables import PrintFormat, cell, markdown_table


def type_instances(turns: Sequence[InscitTurn]) -> list[LabelledText]:
    """An instance for each set of passages that labels of a turn rest on, with the type of the first such label."""
    instances = []
    for turn in turns:
        first: dict[frozenset[str], InscitLabel] = {}
        for label in turn.labels:
            first.setdefault(label.passages, label)
        for number, label in enumerate(first.values(), start=1):
            name = f"{turn.name}_{number}" if len(first) > 1 else turn.name
            instances.append(LabelledText(name, type_text(turn, label), label.response_type))
    return instances


def type_text(turn: InscitTurn, label: InscitLabel) -> str:
    """What a classifier reads of a turn and the evidence of a label."""
    return evidence_text_of(turn.context, label.evidence)


@dataclass(frozen=True)
class MakeResponseTypes(Settings):
    """Write a file of labelled texts; the job of `finegrained make-response-types`.

    Attributes:
        data: file of conversations.
        output: JSON-lines file with `id`, `text` and `label`.
        known_passages: corpus, or directory of its `PassageStore`, that must have all evidence of the data; None checks
            nothing.
    """

    data: InputFile
    output: OutputFile
    known_passages: InputFile | None = None

    input_checks: ClassVar[Mapping[str, Any]] = INSCIT_DATA

    def run(self) -> list[LabelledText]:
        """Read, write, print one line. Raises DataError where the file is damaged."""
        turns = turns_of(read_known_inscit(self.data, self.known_passages).conversations)
        instances = type_instances(turns)
        write_jsonl(self.output, [{"id": one.id, "text": one.text, "label": one.label} for one in instances])
        print(f"{len(instances)} instances of {len(turns)} turns -> {self.output}")
        return instances


@dataclass(frozen=True, kw_only=True)
class EvaluateResponseTypes(Settings):
    """The job of `finegrained evaluate-response-types`.

    Attributes:
        path: directory or run of a classifier whose labels are the response types, or a Hub name.
        data: file of conversations; their evidence is given.
        batch_size: texts in one forward pass.
        format: `table`, or `json` for one JSON document.
        output: JSON file for the scores; None writes none.
        predicted: JSON-lines file of `id`, the name of a turn, and `label`, the type by the evidence of its first
            label, as `finegrained make-reader-inputs types=FILE` reads it; None writes none.
    """

    path: ModelName
    data: InputFile
    batch_size: Annotated[int, at_least(1), harmless] = 32
    format: PrintFormat = "table"
    output: OutputFile | None = None
    predicted: OutputFile | None = None

    input_checks: ClassVar[Mapping[str, Any]] = INSCIT_DATA

    def run(self) -> dict[str, Any]:
        """Classify, score, print.

        Raises:
            DataError: the file is damaged.
            ModelError: no classifier, or one that has no label of a type's name.
        """
        import torch

        from finegrained_rlhf.models.encoders.classifier import TextClassifier

        turns = turns_of(read_inscit(self.data).conversations)
        texts = type_instances(turns)
        classifier = TextClassifier.open(self.path, RESPONSE_TYPES[0])
        classifier.to("cuda" if torch.cuda.is_available() else "cpu")
        names = [str(classifier.model.config.id2label[i]) for i in range(classifier.model.config.num_labels)]
        predicted = classifier.label_probabilities([one.text for one in texts], self.batch_size).argmax(dim=1).tolist()
        gold = [str(one.label) for one in texts]
        scores = {"instances": len(texts), **response_type_scores(gold, [names[i] for i in predicted])}
        if self.output is not None:
            write_json(self.output, scores)
        if self.predicted is not None:
            labels = {one.id: names[i] for one, i in zip(texts, predicted, strict=True)}
            first = {turn.name: labels.get(turn.name, labels.get(f"{turn.name}_1")) for turn in turns}
            write_jsonl(self.predicted, [{"id": name, "label": label} for name, label in first.items()])
        print(json.dumps(scores, indent=2) if self.format == "json" else response_type_tables(scores))
        return scores


def response_type_scores(gold: Sequence[str], predicted: Sequence[str]) -> dict[str, Any]:
    """`majority` (the share of the most frequent type), `accuracy`, `macro_f1` in percent, and `confusion`."""
    most = Counter(gold).most_common(1)[0][1]
    return {"majority": 100 * most / len(gold), **type_scores(list(zip(gold, predicted, strict=True)))}


def response_type_tables(scores: Mapping[str, Any]) -> str:
    """The scores for people."""
    shown = {name: cell(scores[name]) for name in ("instances", "majority", "accuracy", "macro_f1")}
    rows = [
        {"type": gold, **{f"said {name}": str(count) for name, count in row.items()}}
        for gold, row in scores["confusion"].items()
    ]
    return f"{markdown_table([shown], list(shown))}\n{markdown_table(rows, list(rows[0]))}"
