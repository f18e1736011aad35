"""DSTC11 track 5: DIALKI and Multi-Sentence beside what word overlap alone finds, on held-out dialogues.

Reads what the steps of the experiment wrote; runs no model. BM25 is measured here.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from finegrained_lab.experiments.compared_table import ComparedTable, read_curve
from finegrained_lab.experiments.comparison import compared
from finegrained_lab.experiments.dialki.lexical import lexical_span, snowball
from finegrained_lab.experiments.results_table import setting_of
from finegrained_lab.published.dialogues.dstc11 import read_dstc11
from finegrained_rlhf.core.files import read_json, read_jsonl
from finegrained_rlhf.core.sources import Part
from finegrained_rlhf.dialki.records import DialogueExample
from finegrained_rlhf.dialki.scores import score_answer, summary
from finegrained_rlhf.text.tables import markdown_table

TURNS: dict[str, int | None] = {"last_turn": 1, "last_two_turns": 2, "all_turns": None}
"""How many of the last turns a BM25 row asks with."""
LEXICAL = tuple(f"{words}_{turns}" for words in ("bm25", "bm25_snowball") for turns in TURNS)
BASELINE = "bm25_snowball_last_turn"
"""The strongest BM25 on dev."""
SCORES = ("exact_match", "f1", "passage_accuracy")
ERROR = "exact_match_error"
PARTS: dict[Part, str] = {"test": "", "dev": "dev_"}
"""The parts that are measured, and what their columns begin with."""
TINY = ("dialki", "dialki_all_gold", "multi_sentence", "multi_sentence_all_gold")
PRETRAINED = ("minilm_dialki", "minilm_multi_sentence")
JOINT = "_joint"
"""Behind the name of a DIALKI: its weights, passage and sentence chosen together."""


def rows_of(runs: Sequence[str]) -> tuple[str, ...]:
    """The rows that these runs' weights give."""
    return tuple(row for run in runs for row in ((run,) if "multi" in run else (run, run + JOINT)))


_TASK = (
    "The best sentence (or FAQ) among all reviews and FAQs of the entities in question, for the knowledge-seeking "
    "turns of the held-out tenth `test`; `dev_…`: of the tenth that models were selected on. Exact match and F1 "
    "against the nearest of the turn's gold sentences; `passage_accuracy`: the review or FAQ of the sentence holds "
    "gold; `exact_match_error`: the standard error of the exact match over the turns. `bm25_…`: the sentence with "
    "the highest BM25 score for the words of the last turn, the last two, all, with Porter's stems and Lucene's 33 "
    "stop words; `bm25_snowball_…`: with Snowball's stems and 179 stop words. "
)
_JOINT = "`…_joint`: the same weights, passage and sentence chosen together instead of one after the other."


@dataclass(frozen=True)
class Dstc11Table(ComparedTable):
    """Trained models against the sentence that BM25 scores highest. Only what was run has a row."""

    title: ClassVar[str] = "DSTC11 track 5: DIALKI and Multi-Sentence against BM25"
    about: ClassVar[str] = (
        f"{_TASK}`dialki`: a BERT of two layers and "
        "width 128 from scratch, trained on the other eight tenths with the loss of the next turn and knowledge "
        "contextualization (this data set has no labels of earlier turns); `multi_sentence`: the same BERT reads "
        "sentence by sentence, with the next loss alone. Both read as much of the dialogue, for as many steps, with as "
        "many inputs a dialogue. `…_all_gold`: the marginal likelihood of all gold sentences instead of one drawn at "
        f"each step. {_JOINT}"
    )
    world: ClassVar[str] = "DSTC11"
    runs: ClassVar[tuple[str, ...]] = TINY
    systems: ClassVar[tuple[str, ...]] = (*LEXICAL, *rows_of(TINY))
    baseline: ClassVar[str] = BASELINE
    columns: ClassVar[tuple[str, ...]] = (*SCORES, ERROR, *(f"dev_{name}" for name in SCORES))

    def measure(self, roots: Mapping[int, Path]) -> dict[str, Any]:
        """Rows, their spread, the differences from the best BM25, the learning curves, and which rows were not run.

        Raises:
            DataError: a run was made for some seeds and not for others, or lacks an evaluation.
        """
        data = setting_of(roots, "data")
        examples = {part: read_dstc11(data, part).examples for part in PARTS}
        rows: list[dict[str, Any]] = []
        for system in LEXICAL:
            scores = _scores({part: lexical_scores(examples[part], system) for part in PARTS})
            rows += [{"system": system, "seed": seed, **scores} for seed in roots]
        known = rows_of(self.runs)
        made = [row for row in known if run_of(row) in self._made(roots)]
        rows += [self.row(root, system, seed) for system in made for seed, root in roots.items()]
        return {
            "rows": rows,
            "examples": {part: len(examples[part]) for part in PARTS},
            "not_run": [row for row in known if row not in made],
            **compared(rows, (*LEXICAL, *made), self.columns, self.baseline),
            "curves": [
                {"system": run, "seed": seed, **row}
                for run in self._made(roots)
                for seed, root in roots.items()
                for row in read_curve(root / run, ("passage_accuracy", "exact_match"))
            ],
        }

    def _made(self, roots: Mapping[int, Path]) -> tuple[str, ...]:
        """The runs that were made for a seed at least."""
        return tuple(run for run in self.runs if any((root / run).is_dir() for root in roots.values()))

    def _timed(self) -> dict[str, tuple[str, ...]]:
        return {"table": self._made({seed: Path(self.directory) / f"seed_{seed}" for seed in self.seeds or ()})}

    def row(self, root: Path, system: str, seed: int) -> dict[str, Any]:
        """What the evaluations of a trained system say."""
        scores = _scores({part: _measured(root, system, part) for part in PARTS})
        return {"system": system, "seed": seed, **scores}

    def body(self, result: Mapping[str, Any]) -> str:
        """What was not run, spread, differences, every run, and what the validations on dev said."""
        counts = ", ".join(f"{number} {part}" for part, number in result["examples"].items())
        columns = ["system", "seed", "step", "exact_match", "passage_accuracy"]
        missing = ", ".join(f"`{row}`" for row in result["not_run"] if row in self.systems)
        curves = f"\n## Validation on dev during training\n\n{markdown_table(result['curves'], columns)}"
        return (
            f"Turns: {counts}.{f' Not run yet, and so without a row: {missing}.' if missing else ''}\n\n"
            f"{super().body(result)}{curves if result['curves'] else ''}"
        )

    def took(self, result: Mapping[str, Any]) -> str:
        """How long the runs that were made took."""
        seconds = result["seconds"]["table"]
        if not seconds:
            return "BM25 alone: seconds."
        return (
            f"Training steps and validations of the runs ({', '.join(seconds)}), all seeds together: "
            f"{sum(seconds.values()) / 60:.1f} minutes, one run after the other. Loading and evaluating are left out."
        )


@dataclass(frozen=True)
class MinilmDstc11Table(Dstc11Table):
    """The same with a pretrained encoder."""

    title: ClassVar[str] = "DSTC11 track 5: DIALKI and Multi-Sentence on MiniLM against BM25"
    about: ClassVar[str] = (
        f"{_TASK}`minilm_dialki`: MiniLM, six pretrained layers of width 384, fine-tuned on the other eight tenths "
        "with the loss of the next turn, the marginal likelihood of all gold sentences, and knowledge "
        "contextualization; `minilm_multi_sentence`: the same MiniLM reads sentence by sentence, with the next loss "
        f"alone. Both for as many steps, with as many inputs a dialogue. {_JOINT}"
    )
    runs: ClassVar[tuple[str, ...]] = PRETRAINED
    systems: ClassVar[tuple[str, ...]] = (*LEXICAL, *rows_of(PRETRAINED))


def run_of(row: str) -> str:
    """The run whose weights a row's answers come from."""
    return row.removesuffix(JOINT)


def _measured(root: Path, system: str, part: Part) -> dict[str, float]:
    """What the evaluation of a system says of a part, and the error over its turns."""
    directory = root / "evaluation" / f"{system}_{part}"
    groups = read_json(directory / "evaluation.json")["groups"]
    exact = [float(row["exact_match"]) for row in read_jsonl(directory / "answers.jsonl")]
    return {**groups["all"], ERROR: standard_error(exact)}


def standard_error(values: Sequence[float]) -> float:
    """Of their mean; 0 for one value."""
    return statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0


def _scores(of_parts: Mapping[Part, Mapping[str, float]]) -> dict[str, float]:
    return {f"{prefix}{name}": of_parts[part][name] for part, prefix in PARTS.items() for name in (*SCORES, ERROR)}


def lexical_scores(examples: Sequence[DialogueExample], system: str) -> dict[str, float]:
    """Means over dialogues of the scores of BM25's best sentence, its passage being the answer's.

    Args:
        examples: with gold.
        system: one of `LEXICAL`: which words count, and how many of the last turns are the query.
    """
    words, turns = next((w, n) for w in ("bm25_snowball", "bm25") for t, n in TURNS.items() if system == f"{w}_{t}")
    config = snowball() if words == "bm25_snowball" else None
    spans = [(example, lexical_span(example, turns, config)) for example in examples]
    scores = [score_answer(example, span.passage, example.text_of(span)) for example, span in spans]
    return {**summary(scores), ERROR: standard_error([score.exact for score in scores])}
