"""DIALKI's losses one by one on DialogueWorld: table 3.3 of the thesis, and history labels for fewer turns.

Reads what the steps of the experiment wrote; runs no model. What word overlap alone finds is measured here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

from finegrained_lab.experiments.compared_table import CurvesTable
from finegrained_lab.experiments.comparison import Claim
from finegrained_lab.experiments.dialki.lexical import lexical_passage, lexical_span
from finegrained_lab.figures import Bars, draw_bars
from finegrained_lab.worlds.dialogue import lexicon
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json, read_jsonl
from finegrained_rlhf.dialki.data import DialogueData
from finegrained_rlhf.dialki.scores import score_answer, summary

NEXT, HISTORY, CONTEXT, ADVERSARIAL, ALL = "next_only", "history", "context", "adversarial", "all"
AGENT, HALF = "labels_agent", "labels_half"
CURRENT, EARLIER, RANDOM = "labels_current", "labels_earlier", "labels_random"
RIGHT, LAST_TURN = "next_right", "last_turn"
RUNS = (NEXT, HISTORY, CONTEXT, ADVERSARIAL, ALL, AGENT, HALF, CURRENT, EARLIER, RANDOM, RIGHT, LAST_TURN)
LEXICAL: dict[str, int | None] = {"bm25_last_turn": 1, "bm25_all_turns": None}
"""How many of the last turns each BM25 row asks with."""
SCORES = ("passage_accuracy", "exact_match", "f1")
KINDS = tuple(f"exact_{kind}" for kind in lexicon.KINDS)


@dataclass(frozen=True)
class DialogueWorldTable(CurvesTable):
    """Every loss alone and all of them, fewer history labels, and controls, on held-out dialogues."""

    title: ClassVar[str] = "DialogueWorld: what each part of DIALKI adds (tables 3.3 and 3.6, section 3.3.5)"
    about: ClassVar[str] = (
        "Passage accuracy, exact match and F1 of the knowledge of the next agent turn in the test dialogues of each "
        "seed's world; `unseen_…`: in documents about places that no training dialogue names; `exact_KIND`: exact "
        "match by how the last turn asks. Training labels are noisy, targets and history alike; those of test and "
        "unseen are right. Rows as in the thesis: `next_only` has the loss of the next turn alone; `history` adds the "
        "history loss; `context` adds knowledge contextualization to both; `adversarial` adds posterior regularization "
        "to the next loss; `all` has everything. The others are as `history`, with history labels for agent turns "
        "(`labels_agent`) or half of them (`labels_half`), and as controls for the last user turn alone "
        "(`labels_current`), for all turns but that one (`labels_earlier`), or with a random span in place of every "
        "label (`labels_random`, which must not help). `next_right`: as `next_only`, with every training label right. "
        "`last_turn`: as `next_only`, and reads no turn but the last. `bm25_…`: the passage, and the span, with the "
        "highest BM25 score for the last turn, or for all. One tiny BERT from scratch for all runs of a seed."
    )
    world: ClassVar[str] = "DialogueWorld"
    runs: ClassVar[tuple[str, ...]] = RUNS
    curved: ClassVar[tuple[str, ...]] = RUNS
    validated: ClassVar[tuple[str, ...]] = ("passage_accuracy", "exact_match")
    systems: ClassVar[tuple[str, ...]] = (*LEXICAL, *RUNS)
    baseline: ClassVar[str] = NEXT
    columns: ClassVar[tuple[str, ...]] = (*SCORES, *(f"unseen_{name}" for name in SCORES[:2]), *KINDS)
    caption: ClassVar[str] = "Passage accuracy and exact match by what DIALKI is trained with"
    claims: ClassVar[tuple[Claim, ...]] = (
        Claim("the history loss adds to the next loss", "table 3.3", "exact_match", HISTORY, ">", NEXT, (0.630, 0.604)),
        Claim("contextualization adds to both", "table 3.3", "exact_match", CONTEXT, ">", HISTORY, (0.638, 0.630)),
        Claim(
            "regularization adds to the next loss", "table 3.3", "exact_match", ADVERSARIAL, ">", NEXT, (0.644, 0.604)
        ),
        Claim("everything is better than the next loss", "table 3.3", "exact_match", ALL, ">", NEXT, (0.659, 0.604)),
        Claim("… than without regularization", "table 3.3", "exact_match", ALL, ">", CONTEXT, (0.659, 0.638)),
        Claim("… finds the passage more often", "table 3.6", "passage_accuracy", ALL, ">", NEXT),
        Claim("… in unseen documents too", "table 3.3", "unseen_exact_match", ALL, ">", NEXT, (0.644, 0.571)),
        Claim("labels of agent turns alone help too", "3.3.5", "exact_match", AGENT, ">", NEXT, (0.627, 0.604)),
        Claim("… of half of them too", "3.3.5", "exact_match", HALF, ">", NEXT, (0.624, 0.604)),
        Claim("labels of all turns are a little better", "3.3.5", "exact_match", HISTORY, ">", AGENT, (0.630, 0.627)),
        Claim("… and all of the agent's than half", "3.3.5", "exact_match", AGENT, ">", HALF, (0.627, 0.624)),
    )

    def measure(self, roots: Mapping[int, Path]) -> dict[str, Any]:
        """Rows, their spread, the differences from `next_only`, and the learning curves."""
        return {**super().measure(roots), **self.training(roots)}

    def row(self, root: Path, system: str, seed: int) -> dict[str, Any]:
        """What the evaluations of a run say; BM25 is measured here."""
        return _lexical_row(root, system, seed) if system in LEXICAL else _row(root, system, seed)

    def body(self, result: Mapping[str, Any]) -> str:
        """Learning curves, spread, differences, every run, minutes."""
        return f"{self.curves_image}\n\n{super().body(result)}\n{self.longest(result)}\n"

    def draw(self, result: Mapping[str, Any], path: Path) -> None:
        """Bars of the scores, and the learning curves in a file of their own."""
        short = {
            "bm25_last_turn": "BM25",
            LAST_TURN: "last turn",
            NEXT: "next",
            HISTORY: "+hist.",
            CONTEXT: "+hist. +ctx.",
            ADVERSARIAL: "+adv.",
            ALL: "all",
            RANDOM: "random",
            RIGHT: "next, right",
        }
        named = {"passage_accuracy": "passage accuracy", "exact_match": "exact match"}
        summary_of = result["summary"]
        draw_bars(path, [Bars(t, {short[s]: summary_of[s][name] for s in short}) for name, t in named.items()])
        self.draw_curves(result, {run: label for run, label in short.items() if run in RUNS}, named)


def _row(root: Path, run: str, seed: int) -> dict[str, Any]:
    """What the evaluations of a run say.

    Raises:
        DataError: an evaluation is missing.
    """
    row: dict[str, Any] = {"system": run, "seed": seed}
    for part, prefix in (("test", ""), ("unseen", "unseen_")):
        scores = read_json(root / "evaluation" / f"{run}_{part}" / "evaluation.json")["groups"]["all"]
        row |= {f"{prefix}{name}": scores[name] for name in SCORES}
    answers = read_jsonl(root / "evaluation" / f"{run}_test" / "answers.jsonl")
    right = {answer["id"]: bool(answer["exact_match"]) for answer in answers}
    return row | _by_kind(root, right)


def _by_kind(root: Path, right: Mapping[str, bool]) -> dict[str, float]:
    """Exact match by how the last turn of a dialogue asks."""
    kinds = {row["id"]: row["kinds"] for row in read_jsonl(root / "world" / "world.jsonl")}
    groups: dict[str, list[bool]] = {kind: [] for kind in lexicon.KINDS}
    for name, correct in right.items():
        if name not in kinds:
            raise DataError("is no dialogue of this world", file=root / "world" / "world.jsonl", record=name)
        groups[kinds[name][-1]].append(correct)
    return {f"exact_{kind}": fmean(members) for kind, members in groups.items()}


def _lexical_row(root: Path, system: str, seed: int) -> dict[str, Any]:
    """BM25 on the last turns; the best span need not stand in the best passage."""
    row: dict[str, Any] = {"system": system, "seed": seed}
    turns = LEXICAL[system]
    for part, prefix in (("test", ""), ("unseen", "unseen_")):
        examples = DialogueData(str(root / "world" / f"{part}.jsonl")).read().examples
        spans = [lexical_span(example, turns) for example in examples]
        scores = [
            score_answer(example, span.passage, example.text_of(span))
            for example, span in zip(examples, spans, strict=True)
        ]
        passages = [lexical_passage(example, turns) == example.gold[0].passage for example in examples]
        measures = {**summary(scores), "passage_accuracy": fmean(passages)}
        row |= {f"{prefix}{name}": measures[name] for name in SCORES}
        if part == "test":
            row |= _by_kind(root, {e.id: bool(s.exact) for e, s in zip(examples, scores, strict=True)})
    return row
