"""Table 3.4 of the thesis on DialogueWorld: how well answers from each kind of knowledge are scored.

Reads the scores that `finegrained generate-responses` wrote for each seed; runs no model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from finegrained_lab.experiments.compared_table import ComparedTable, read_curve
from finegrained_lab.experiments.comparison import Claim
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json
from finegrained_rlhf.text.tables import markdown_table

NONE, DOCUMENT = "none", "document"
GOLD = ("span", "passage", "span_and_passage")
GENERATORS = (NONE, DOCUMENT, *GOLD)
STEPS = ("generator_steps", "document_steps")
FOUND = tuple(f"{knowledge}_found" for knowledge in GOLD)
COLUMNS = ("bleu", "exact_match", "token_f1", "rouge_lsum")
KNOWLEDGE = ("knowledge_passage_accuracy", "knowledge_exact_match", "knowledge_f1")
"""How well DIALKI found the knowledge of the answered turns."""


@dataclass(frozen=True)
class ResponseTable(ComparedTable):
    """Answers from no knowledge, from the document, and from the labels' or DIALKI's span and passage."""

    title: ClassVar[str] = "DialogueWorld: answers from knowledge (table 3.4)"
    about: ClassVar[str] = (
        "Greedy answers to held-out dialogues by a tiny T5, which learnt from the labels' knowledge. A system is named "
        "for what the T5 reads beside the dialogue: nothing, the whole document, the span, its passage, or both; "
        "`_found` by DIALKI, else the label's. `bleu`: corpus BLEU, 0 to 100; the others are means in 0 to 1, "
        "`exact_match` and `token_f1` after SQuAD's normalisation."
    )
    world: ClassVar[str] = "DialogueWorld"
    runs: ClassVar[tuple[str, ...]] = ("dialki", *(f"generators/{name}" for name in GENERATORS))
    stated_settings: ClassVar[tuple[str, ...]] = STEPS
    systems: ClassVar[tuple[str, ...]] = (NONE, DOCUMENT, *FOUND, *GOLD)
    baseline: ClassVar[str] = DOCUMENT
    columns: ClassVar[tuple[str, ...]] = COLUMNS
    claims: ClassVar[tuple[Claim, ...]] = (
        Claim(
            "the span that DIALKI finds is worth more than the document",
            "table 3.4",
            "bleu",
            "span_found",
            ">",
            DOCUMENT,
            (25.16, 22.84),
        ),
        Claim(
            "its passage beside the span adds to it",
            "table 3.4",
            "bleu",
            "span_and_passage_found",
            ">",
            "span_found",
            (25.84, 25.16),
        ),
    )

    def introduction(self, result: Mapping[str, Any]) -> str:
        """With the training steps."""
        steps, document = (result["settings"][name] for name in STEPS)
        other = "" if steps == document else f", the one that reads the document {document}"
        return f"{self.about} Every generator was trained for {steps} steps{other}."

    def measure(self, roots: Mapping[int, Path]) -> dict[str, Any]:
        """Rows, their spread, differences from the document, how well knowledge was found, generators' validations.

        Raises:
            DataError: a score is missing, or the seeds' BLEU was measured in different ways.
        """
        rows = self.rows(roots)
        signatures = {row.pop("bleu_signature") for row in rows}
        if len(signatures) > 1:
            different = ", ".join(sorted(signatures))
            raise DataError(f"BLEU was measured in different ways: {different}", file=Path(self.directory))
        validations = {
            name: [read_curve(root / "generators" / name, ("score",)) for root in roots.values()] for name in GENERATORS
        }
        return {"bleu_signature": signatures.pop(), **self.compare(rows), "validations": validations}

    def row(self, root: Path, system: str, seed: int) -> dict[str, Any]:
        """The scores of a system, with `bleu_signature`, how BLEU was measured."""
        path = root / "answers" / f"{system}.metrics.json"
        metrics = read_json(path)
        names = (*COLUMNS, *(KNOWLEDGE if system in FOUND else ()))
        missing = [name for name in (*names, "bleu_signature") if name not in metrics]
        if missing:
            raise DataError("is not among the scores", file=path, field=missing[0])
        numbers = {name: float(metrics[name]) for name in names}
        return {"system": system, "seed": seed, **numbers, "bleu_signature": metrics["bleu_signature"]}

    def body(self, result: Mapping[str, Any]) -> str:
        """Spread, differences, every run, DIALKI's own scores, and how generators rose."""
        rows = [row for row in result["rows"] if row["system"] == FOUND[0]]
        rose = [
            {"generator": name, "seed": seed, **{f"step {int(row['step'])}": row["score"] for row in curve}}
            for name, curves in result["validations"].items()
            for seed, curve in zip(result["seeds"], curves, strict=True)
        ]
        columns = list(dict.fromkeys(key for row in rose for key in row))
        return (
            f"BLEU by sacrebleu, `{result['bleu_signature']}`.\n\n{super().body(result)}\n"
            f"## Knowledge that DIALKI found\n\n{markdown_table(rows, ('seed', *KNOWLEDGE))}\n"
            "## Generators on the dev dialogues\n\nROUGE-Lsum of their answers from the labels' knowledge. The best is "
            f"kept; the learning rate falls to 0 at the last step.\n\n{markdown_table(rose, columns)}"
        )
