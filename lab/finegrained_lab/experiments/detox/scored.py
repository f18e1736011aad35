"""Texts for classifiers and language models: from the published scores of RealToxicityPrompts, or label by label."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from finegrained_rlhf.core.checks import require
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import write_jsonl
from finegrained_rlhf.core.markers import InputFile, OutputDirectory
from finegrained_rlhf.detoxification.prompts import ContinuationPrompt, read_continuation_prompts
from finegrained_rlhf.feedback.labelled_texts import read_labelled_texts

MILD, TOXIC = "mild", "toxic"


@dataclass(frozen=True)
class WriteScoredTexts(Settings):
    """Write the prompts and continuations of a file as texts with their scores, in parts that share no row.

    A text is labelled `toxic` where its score is at least .5, else `mild`; one without a score is left out.

    Attributes:
        data: a file of RealToxicityPrompts, or of its form.
        output_dir: directory of `PART.jsonl`.
        parts: names, each with its share of the rows, in order.
    """

    data: InputFile
    output_dir: OutputDirectory
    parts: dict[str, float]

    def __post_init__(self) -> None:
        if not self.parts or not all(share > 0 for share in self.parts.values()) or sum(self.parts.values()) > 1 + 1e-9:
            raise ConfigError(f"parts: expected names with shares above 0 that add up to at most 1, got {self.parts}")

    def run(self) -> None:
        """Read, score, write; prints one line.

        Raises:
            DataError: the file is missing or damaged, or a part would be empty.
        """
        rows = read_continuation_prompts(self.data)
        directory, start, counts = Path(self.output_dir), 0, []
        for name, share in self.parts.items():
            part = rows[start : start + round(share * len(rows))]
            start += len(part)
            texts = [text for place, row in enumerate(part) for text in _texts(f"{name}-{place}", row)]
            try:
                require(bool(texts), "no text with a score", name)
            except DataError as error:
                raise error.at(file=self.data) from None
            write_jsonl(directory / f"{name}.jsonl", texts)
            counts.append(f"{len(texts)} {name}")
        print(f"{', '.join(counts)} -> {self.output_dir}")


@dataclass(frozen=True)
class SplitByLabel(Settings):
    """Write the texts of each label to a file of their own: what language models learn from that shall write alike.

    Attributes:
        data: labelled texts (`feedback.labelled_texts`).
        output_dir: directory of `LABEL.jsonl`.
    """

    data: InputFile
    output_dir: OutputDirectory

    def run(self) -> None:
        """Read, write; prints one line.

        Raises:
            DataError: the file is missing or damaged, or a text has no label, or one that can't be a file's name.
        """
        by_label: dict[str, list[dict[str, str]]] = {}
        for number, text in enumerate(read_labelled_texts(self.data)):
            label = text.label or ""
            if not label or Path(label).name != label:
                problem = f"expected a label that can name a file, got {text.label!r}"
                raise DataError(problem, file=self.data, record=number, field="label")
            by_label.setdefault(label, []).append({"id": text.id, "text": text.text})
        for label, texts in by_label.items():
            write_jsonl(Path(self.output_dir) / f"{label}.jsonl", texts)
        print(f"{', '.join(f'{len(texts)} {label}' for label, texts in sorted(by_label.items()))} -> {self.output_dir}")


def _texts(name: str, row: ContinuationPrompt) -> list[dict[str, object]]:
    parts = {"prompt": row.prompt, "continuation": row.continuation}
    return [
        {
            "id": f"{name}-{key}",
            "text": part.text.strip(),
            "label": TOXIC if part.is_toxic else MILD,
            "score": part.toxicity,
        }
        for key, part in parts.items()
        if part.toxicity is not None and part.text.strip()
    ]
