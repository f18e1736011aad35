"""Making a RewriteWorld's files: a corpus, dialogues over it, and the words to build a tokenizer from.

Knows file names, split sizes and which dialogues belong to a split.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from finegrained_rlhf.conqrr.readers.jsonl import write_rewrite_jsonl
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.files import write_jsonl, write_text
from finegrained_rlhf.core.seeding import stable_hash
from finegrained_rlhf.worlds.rewrite import lexicon
from finegrained_rlhf.worlds.rewrite.dialogues import (
    RewriteDialogue,
    RewriteWorldConfig,
    WorldFact,
    draw_facts,
    draw_rewrite_dialogue,
)

SPLITS = ("train", "dev", "test")
_OPENINGS = {"train": range(8), "dev": range(8, 9), "test": range(9, 10)}
"""Tenths of the openings that a split's dialogues begin with."""


@dataclass(frozen=True)
class MakeRewriteWorld:
    """Make a world and write its files to `output_dir`.

    `corpus.jsonl`: the passages. `train.jsonl`, `dev.jsonl`, `test.jsonl`: the questions of dialogues, each with its
    human rewrite, answer and gold passage. `world.jsonl`: how each question asks. `corpus.txt`: every word of the world
    in every form; it does not depend on the seed.

    Dialogues of different splits never begin with the same two questions, so no question that needs its history occurs
    in two splits with the same one.

    Attributes:
        output_dir: where the files go.
        seed: of the world; another seed is another draw of everything.
        train: dialogues to train on; 0 writes no file.
        dev: dialogues for selection.
        test: held-out dialogues over the same corpus.
        world: what the corpus and a dialogue look like.
    """

    output_dir: str
    seed: int = 0
    train: int = 150
    dev: int = 60
    test: int = 250
    world: RewriteWorldConfig = field(default_factory=RewriteWorldConfig)

    def __post_init__(self) -> None:
        for name in SPLITS:
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must be 0 or more, got {getattr(self, name)}")

    def run(self) -> None:
        """Draw the world and write every file whole; prints one line."""
        directory, facts, splits = Path(self.output_dir), self.facts(), self.draw()
        write_jsonl(directory / "corpus.jsonl", ({"id": fact.id, "text": fact.text} for fact in facts.values()))
        for split, dialogues in splits.items():
            if dialogues:
                examples = [example for dialogue in dialogues for example in dialogue.examples()]
                write_rewrite_jsonl(directory / f"{split}.jsonl", examples)
        write_text(directory / "corpus.txt", "\n".join(lexicon.corpus()) + "\n")
        write_jsonl(directory / "world.jsonl", _world_rows(splits))
        counts = [f"{sum(len(one.questions) for one in found)} {split}" for split, found in splits.items()]
        print(f"{len(facts)} passages, questions: {', '.join(counts)} -> {self.output_dir}")

    def facts(self) -> dict[tuple[str, str], WorldFact]:
        """Every fact of the world, one passage each."""
        return draw_facts(self._rng("facts"), self.world)

    def draw(self) -> dict[str, list[RewriteDialogue]]:
        """Each split's dialogues. A split does not depend on the sizes of the others."""
        facts = self.facts()
        splits: dict[str, list[RewriteDialogue]] = {}
        for split in SPLITS:
            rng, found = self._rng(split), list[RewriteDialogue]()
            while len(found) < getattr(self, split):
                dialogue = draw_rewrite_dialogue(f"{split}-{len(found):05d}", facts, rng, self.world)
                if stable_hash("opening", *_opening(dialogue)) % 10 in _OPENINGS[split]:
                    found.append(dialogue)
            splits[split] = found
        return splits

    def _rng(self, name: str) -> random.Random:
        return random.Random(stable_hash(self.seed, "rewrite world", name))


def _opening(dialogue: RewriteDialogue) -> Sequence[str]:
    return [question.text for question in dialogue.questions[:2]]


def _world_rows(splits: Mapping[str, Sequence[RewriteDialogue]]) -> Iterator[dict[str, Any]]:
    """One line of `world.jsonl` a dialogue."""
    for split, dialogues in splits.items():
        for one in dialogues:
            yield {
                "id": one.id,
                "split": split,
                "kinds": [question.kind for question in one.questions],
                "names": [question.fact.name for question in one.questions],
                "attributes": [question.fact.attribute for question in one.questions],
            }
