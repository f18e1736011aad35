"""Making a world's files: prompts, demonstrations and the facts behind them.

Knows file names and split sizes. Every split has passages of its own.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.files import write_jsonl, write_text
from finegrained_rlhf.core.seeding import stable_hash
from finegrained_rlhf.feedback.reading import write_examples
from finegrained_rlhf.feedback.records import Passage, QAExample
from finegrained_rlhf.text.templates import task_text
from finegrained_rlhf.worlds.factworld import lexicon
from finegrained_rlhf.worlds.factworld.world import Item, WorldConfig, make_items
from finegrained_rlhf.worlds.factworld.writer import WriterConfig, write

SPLITS = ("train", "dev", "test", "sft_train", "sft_dev")


@dataclass(frozen=True)
class MakeFactWorld:
    """Make a world and write its files to `output_dir`.

    `train.json`, `dev.json`, `test.json`: prompts with gold answers. `sft_train.json`, `sft_dev.json`: demonstrations,
    prompts whose answer is the imperfect writer's. `world.jsonl`: the facts behind every prompt. `corpus.txt`: every
    word of the world in every form, to build a tokenizer from; it does not depend on the seed.

    Attributes:
        output_dir: where the files go.
        seed: of the world and the writer; another seed is another draw of everything.
        train: prompts to sample, annotate and train on; 0 writes no file.
        dev: prompts for selection.
        test: held-out prompts.
        sft_train: demonstrations.
        sft_dev: demonstrations for the SFT's validation.
        world: what a passage and a question look like.
        writer: the habits of the demonstrations' writer.
    """

    output_dir: str
    seed: int = 0
    train: int = 3000
    dev: int = 200
    test: int = 500
    sft_train: int = 3000
    sft_dev: int = 200
    world: WorldConfig = field(default_factory=WorldConfig)
    writer: WriterConfig = field(default_factory=WriterConfig)

    def __post_init__(self) -> None:
        for split in SPLITS:
            if getattr(self, split) < 0:
                raise ConfigError(f"{split} must be 0 or more, got {getattr(self, split)}")

    def run(self) -> None:
        """Draw the world and write every file whole; prints one line."""
        splits = self.draw()
        for split, pairs in splits.items():
            if pairs:
                write_examples(Path(self.output_dir) / f"{split}.json", [to_example(*pair) for pair in pairs])
        rows = (world_row(item, split, answer) for split, pairs in splits.items() for item, answer in pairs)
        write_jsonl(Path(self.output_dir) / "world.jsonl", rows)
        write_text(Path(self.output_dir) / "corpus.txt", "\n".join(lexicon.corpus()) + "\n")
        print(f"{', '.join(f'{len(pairs)} {split}' for split, pairs in splits.items())} -> {self.output_dir}")

    def draw(self) -> dict[str, list[tuple[Item, str]]]:
        """Each split's items with the answer that its file gives them."""
        taken: set[object] = set()
        splits = {}
        for split in SPLITS:
            rng = random.Random(stable_hash(self.seed, "factworld", split))
            items = make_items(getattr(self, split), split, rng, self.world, taken)
            imperfect = split.startswith("sft")
            splits[split] = [(item, write(item, rng, self.writer) if imperfect else item.gold) for item in items]
        return splits


def to_passages(item: Item) -> tuple[Passage, ...]:
    """The item's one passage, titled with its entity."""
    return (Passage(item.entity, item.sentences),)


def to_example(item: Item, answer: str) -> QAExample:
    """The prompt record of an item with `answer` as its only reference."""
    passages = to_passages(item)
    return QAExample(item.id, item.question, task_text(item.question, passages), (answer,), passages)


def world_row(item: Item, split: str, answer: str) -> dict[str, Any]:
    """One line of `world.jsonl`."""
    return {
        "id": item.id,
        "split": split,
        "entity": item.entity,
        "facts": [{"attribute": attribute, "value": value} for attribute, value in item.facts],
        "asked": list(item.asked),
        "question": item.question,
        "gold": item.gold,
        "answer": answer,
    }
