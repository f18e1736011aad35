"""What every reward model of the experiment is shown: samples, changed answers, trivial ones, bought ones.

Made once a world from files and seeds; which texts there are depends on no reward.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from finegrained_lab.worlds.factworld.changes import BATTERY
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.core.seeding import stable_hash
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.factworld.grammar import split_passages
from finegrained_rlhf.feedback.outputs import OutputRecord, read_outputs
from finegrained_rlhf.rewards.stress.changes import Change, StressRecord, run_changes
from finegrained_rlhf.text.segmentation import DEFAULT_SEGMENTER, shared_segmenter

FILLERS = ("Tell me about it.", "What is it?", "It is.", "The answer is as its question.")
"""Words of the world that state no fact."""


@dataclass(frozen=True)
class Shown:
    """All texts of a world.

    Attributes:
        pool: questions with their samples from the first policy.
        changes: to answers of dev questions.
        edits: by question of the pool, answers that somebody makes who knows no truth.
        trivial: by dev question: `lead`, the first sentences of its passage; `restated`, the question; `gold`.
        prompts: of all questions, by id.
    """

    pool: Sequence[OutputRecord]
    changes: Sequence[Change]
    edits: dict[str, list[str]]
    trivial: dict[str, dict[str, str]]
    prompts: dict[str, Prompt]

    def texts(self) -> Iterator[tuple[str, str]]:
        """(question's id, text), each once."""
        seen = dict.fromkeys((record.id, text) for record in self.pool for text in record.outputs)
        seen |= dict.fromkeys(
            (change.record, text) for change in self.changes for text in (change.base, change.changed)
        )
        seen |= dict.fromkeys((name, text) for name, texts in self.edits.items() for text in texts)
        seen |= dict.fromkeys((name, text) for name, texts in self.trivial.items() for text in texts.values())
        yield from seen


def read_shown(
    pool: str | Path, outputs: str | Path, *, questions: int, changed: int, bought: int, edits: int, seed: int
) -> Shown:
    """The texts of a world.

    Args:
        pool: JSONL of many samples a question (test questions).
        outputs: JSONL of a few outputs a question (dev questions).
        questions: of the pool, from its beginning.
        changed: dev questions whose answers are changed, from the beginning.
        bought: questions of the pool whose answers are edited without a truth.
        edits: how many edits each of them gets.
        seed: of changes and edits.
    """
    samples = read_outputs(pool)[:questions]
    dev = read_outputs(outputs)
    records = [stress_record(record) for record in dev]
    others = [stress_record(record) for record in samples]
    return Shown(
        samples,
        run_changes(records[:changed], BATTERY, seed),
        {record.id: free_edits(record, others, edits, seed) for record in others[:bought]},
        {record.id: trivial_answers(record) for record in records[:questions]},
        {record.id: prompt_of(record) for record in [*samples, *dev]},
    )


def stress_record(record: OutputRecord) -> StressRecord:
    """A question as the stress test sees it, a fact a sentence."""
    passages = split_passages(record.passages, shared_segmenter(DEFAULT_SEGMENTER))
    rows = tuple((passage.title, *passage.sentences) for passage in passages)
    return StressRecord(record.id, record.question, rows, record.references[0], record.outputs)


def prompt_of(record: OutputRecord) -> Prompt:
    """What a scorer is told of a question."""
    passages: tuple[Passage, ...] = split_passages(record.passages, shared_segmenter(DEFAULT_SEGMENTER))
    known = {"question": record.question, "passages": passages, "references": record.references}
    return Prompt(record.id, record.text, (), known)


def trivial_answers(record: StressRecord) -> dict[str, str]:
    """Answers that take no skill, and the gold one."""
    segmenter = shared_segmenter(DEFAULT_SEGMENTER)
    lead = record.passages[0][1 : 1 + len(segmenter.sentences(record.gold))]
    return {"lead": " ".join(lead), "restated": record.question, "gold": record.gold}


def free_edits(record: StressRecord, others: Sequence[StressRecord], count: int, seed: int) -> list[str]:
    """Answers made without knowing what is asked or true: windows of passages, of others too, repeats, and fillers."""
    rng = random.Random(stable_hash(seed, "edits", record.id))
    strangers = [other for other in others if other.id != record.id]
    made: dict[str, None] = {}
    while len(made) < count:
        own, foreign = record.passages[0][1:], rng.choice(strangers).passages[0][1:]
        sentences = list(rng.choice([own, own, foreign]))
        first, length = rng.randrange(len(sentences)), rng.randint(1, 6)
        window = sentences[first : first + length]
        extra = rng.choice(["nothing", "repeat", "filler", "foreign"])
        window += {
            "nothing": [],
            "repeat": [rng.choice(window)],
            "filler": [rng.choice(FILLERS)],
            "foreign": [rng.choice(foreign)],
        }[extra]
        made[" ".join(window)] = None
    return list(made)
