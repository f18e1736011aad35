"""Scored texts for classifiers, from the published scores of RealToxicityPrompts.

Knows continuation prompts and the files of labelled texts. Knows no model.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from finegrained_rlhf.core.checks import require
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import write_jsonl
from finegrained_rlhf.detoxification.prompts.reading import read_continuation_prompts
from finegrained_rlhf.detoxification.prompts.records import ContinuationPrompt

MILD, TOXIC = "mild", "toxic"


@dataclass(frozen=True)
class WriteScoredTexts:
    """Write the prompts and continuations of a file as texts with their scores, in parts that share no row.

    A text is labelled `toxic` where its score is at least .5, else `mild`; one without a score is left out. With
    `by_label`, the toxic and the mild texts of the first part also get a file each, as language models need them that
    shall write alike.

    Attributes:
        data: a file of RealToxicityPrompts, or of its form.
        output_dir: directory of `PART.jsonl`, of `toxic.jsonl` and `mild.jsonl`.
        parts: names, each with its share of the rows; a row goes to the first parts first.
        by_label: whether to write the texts of each label of the first part.
    """

    data: str
    output_dir: str
    parts: dict[str, float]
    by_label: bool = False

    def __post_init__(self) -> None:
        if not self.parts or not all(share > 0 for share in self.parts.values()) or sum(self.parts.values()) > 1 + 1e-9:
            raise ConfigError(f"parts: expected names with shares above 0 that add up to at most 1, got {self.parts}")

    def run(self) -> None:
        """Read, score, write; prints one line.

        Raises:
            DataError: the file is missing or damaged, or a part would be empty.
        """
        rows = read_continuation_prompts(self.data)
        directory, start, said = Path(self.output_dir), 0, []
        for number, (name, share) in enumerate(self.parts.items()):
            part = rows[start : start + round(share * len(rows))]
            start += len(part)
            texts = [text for place, row in enumerate(part) for text in _texts(f"{name}-{place}", row)]
            try:
                require(bool(texts), "no text with a score", name)
            except DataError as error:
                raise error.at(file=self.data) from None
            write_jsonl(directory / f"{name}.jsonl", texts)
            said.append(f"{len(texts)} {name}")
            if self.by_label and number == 0:
                for label in (TOXIC, MILD):
                    chosen = ({"id": one["id"], "text": one["text"]} for one in texts if one["label"] == label)
                    write_jsonl(directory / f"{label}.jsonl", chosen)
        print(f"{', '.join(said)} -> {self.output_dir}")


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
