"""DSTC11 track 5: a tiny DIALKI and Multi-Sentence beside what word overlap alone finds, on held-out dialogues.

Reads what the steps of the experiment wrote; runs no model. BM25 is measured here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from finegrained_rlhf.core.files import read_json
from finegrained_rlhf.dialki.evaluation.lexical import lexical_span
from finegrained_rlhf.dialki.finding.scores import score_answer, summary
from finegrained_rlhf.dialki.readers.dstc11 import Dstc11Part, read_dstc11
from finegrained_rlhf.dialki.records import DialogueExample
from finegrained_rlhf.experiments.compared_table import ComparedTable, read_curve
from finegrained_rlhf.experiments.results_table import setting_of
from finegrained_rlhf.text.tables import markdown_table

LEXICAL: dict[str, int | None] = {"bm25_last_turn": 1, "bm25_last_two_turns": 2, "bm25_all_turns": None}
"""How many of the last turns each BM25 row asks with."""
SCORES = ("exact_match", "f1", "passage_accuracy")
PARTS: dict[Dstc11Part, str] = {"test": "", "dev": "dev_"}
"""The parts that are measured, and what their columns begin with."""
TRAINED = ("dialki", "multi_sentence")


@dataclass(frozen=True)
class Dstc11Table(ComparedTable):
    """Trained models against the sentence that BM25 scores highest."""

    title: ClassVar[str] = "DSTC11 track 5: tiny BERTs as DIALKI and Multi-Sentence against BM25"
    about: ClassVar[str] = (
        "The best sentence (or FAQ) among all reviews and FAQs of the entities in question, for the knowledge-seeking "
        "turns of the held-out tenth `test`; `dev_…`: of the tenth that models were selected on. Exact match and F1 "
        "against the nearest of the turn's gold sentences; `passage_accuracy`: the review or FAQ of the sentence holds "
        "gold. `bm25_…`: the sentence with the highest BM25 score for the words of the last turn, the last two, all. "
        "`dialki`: a BERT of two layers and width 128 from scratch, trained on the other eight tenths with the loss of "
        "the next turn and knowledge contextualization (this data set has no labels of earlier turns); "
        "`multi_sentence`: the same BERT reads sentence by sentence behind the last turn, with the next loss alone."
    )
    world: ClassVar[str] = "DSTC11"
    runs: ClassVar[tuple[str, ...]] = TRAINED
    systems: ClassVar[tuple[str, ...]] = (*LEXICAL, *TRAINED)
    baseline: ClassVar[str] = next(iter(LEXICAL))
    columns: ClassVar[tuple[str, ...]] = tuple(f"{prefix}{name}" for prefix in PARTS.values() for name in SCORES)

    def measure(self, roots: Mapping[int, Path]) -> dict[str, Any]:
        """Rows, their spread, the differences from BM25 on the last turn, and the learning curves."""
        data = setting_of(roots, "data")
        examples = {part: read_dstc11(data, part).examples for part in PARTS}
        rows: list[dict[str, Any]] = []
        for system, turns in LEXICAL.items():
            found = _scores({part: lexical_scores(examples[part], turns) for part in PARTS})
            rows += [{"system": system, "seed": seed, **found} for seed in roots]
        rows += [self.row(root, run, seed) for run in TRAINED for seed, root in roots.items()]
        compared = self.compare(rows)
        return {
            "rows": compared.pop("rows"),
            "examples": {part: len(examples[part]) for part in PARTS},
            **compared,
            "curves": [
                {"system": run, "seed": seed, **row}
                for run in TRAINED
                for seed, root in roots.items()
                for row in read_curve(root / run, ("passage_accuracy", "exact_match"))
            ],
        }

    def row(self, root: Path, system: str, seed: int) -> dict[str, Any]:
        """What the evaluations of a trained system say."""
        found = _scores({part: _measured(root, system, part) for part in PARTS})
        return {"system": system, "seed": seed, **found}

    def body(self, result: Mapping[str, Any]) -> str:
        """Spread, differences, every run, and what the validations on dev said."""
        counts = ", ".join(f"{number} {part}" for part, number in result["examples"].items())
        columns = ["system", "seed", "step", "exact_match", "passage_accuracy"]
        return (
            f"Turns: {counts}.\n\n{super().body(result)}\n"
            f"## Validation on dev during training\n\n{markdown_table(result['curves'], columns)}"
        )


def _measured(root: Path, run: str, part: Dstc11Part) -> Mapping[str, float]:
    """What the evaluation of a run says of a part."""
    groups = read_json(root / "evaluation" / f"{run}_{part}" / "evaluation.json")["groups"]
    found: Mapping[str, float] = groups["all"]
    return found


def _scores(of_parts: Mapping[Dstc11Part, Mapping[str, float]]) -> dict[str, float]:
    return {f"{prefix}{name}": of_parts[part][name] for part, prefix in PARTS.items() for name in SCORES}


def lexical_scores(examples: Sequence[DialogueExample], turns: int | None) -> dict[str, float]:
    """Means over dialogues of the scores of BM25's best sentence, its passage being the answer's.

    Args:
        examples: with gold.
        turns: the last so many turns are the query; None takes all.
    """
    found = [(example, lexical_span(example, turns)) for example in examples]
    return summary([score_answer(example, span.passage, example.text_of(span)) for example, span in found])
