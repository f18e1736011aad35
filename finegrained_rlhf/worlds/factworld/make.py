"""Making a world's files: prompts, demonstrations and the facts behind them.

Knows file names and split sizes. Every split has passages of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.feedback.reading import write_examples
from finegrained_rlhf.feedback.records import QAExample
from finegrained_rlhf.text.templates import task_text
from finegrained_rlhf.worlds.base import World
from finegrained_rlhf.worlds.factworld import lexicon
from finegrained_rlhf.worlds.factworld.world import Item, WorldConfig, make_items
from finegrained_rlhf.worlds.factworld.writer import WriterConfig, write


@dataclass(frozen=True)
class MakeFactWorld(World[tuple[Item, str]]):
    """Make a world and write its files to `output_dir`.

    `train.json`, `dev.json`, `test.json`: prompts with gold answers. `sft_train.json`, `sft_dev.json`: demonstrations,
    prompts whose answer is the imperfect writer's. `world.jsonl`: the facts behind every prompt. `corpus.txt`: every
    word of the world in every form, to build a tokenizer from; it does not depend on the seed.

    Attributes:
        seed: of the world and the writer; another seed is another draw of everything.
        train: prompts to sample, annotate and train on; 0 writes no file.
        dev: prompts for selection.
        test: held-out prompts.
        sft_train: demonstrations.
        sft_dev: demonstrations for the SFT's validation.
        world: what a passage and a question look like.
        writer: the habits of the demonstrations' writer.
    """

    salt: ClassVar[str] = "factworld"
    splits: ClassVar[tuple[str, ...]] = ("train", "dev", "test", "sft_train", "sft_dev")
    suffix: ClassVar[str] = ".json"

    train: int = 3000
    dev: int = 200
    test: int = 500
    sft_train: int = 3000
    sft_dev: int = 200
    world: WorldConfig = field(default_factory=WorldConfig)
    writer: WriterConfig = field(default_factory=WriterConfig)

    def draw(self) -> dict[str, list[tuple[Item, str]]]:
        """Each split's items with the answer that its file gives them."""
        taken: set[object] = set()
        splits = {}
        for split in self.splits:
            rng = self.rng(split)
            items = make_items(getattr(self, split), split, rng, self.world, taken)
            imperfect = split.startswith("sft")
            splits[split] = [(item, write(item, rng, self.writer) if imperfect else item.gold) for item in items]
        return splits

    def write_split(self, path: Path, split: str, drawn: Sequence[tuple[Item, str]]) -> None:
        """A prompt file, or one of demonstrations."""
        write_examples(path, [to_example(*pair) for pair in drawn])

    def truth(self, split: str, drawn: tuple[Item, str]) -> dict[str, Any]:
        """The facts behind a prompt, what it asks for, the gold answer and the one that its file gives."""
        item, answer = drawn
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

    def vocabulary(self) -> list[str]:
        """Texts in which every word of the world occurs in every form that prompts and answers use."""
        texts = []
        for number, entity in enumerate(lexicon.ENTITIES):
            attributes = [lexicon.ATTRIBUTES[(number + i) % len(lexicon.ATTRIBUTES)] for i in range(3)]
            question = lexicon.entity_question(attributes, entity)
            texts.append(f"question: {question} context: wikipage: {entity} text: {entity} | answer:")
            texts.append(lexicon.entity_question(attributes[:1], entity))
        for attribute, values in lexicon.VALUES.items():
            for i, value in enumerate(values):
                clause = lexicon.clause(attribute, lexicon.ENTITIES[i % len(lexicon.ENTITIES)], value)
                texts.append(f"{lexicon.sentence([clause] * 2)} {lexicon.sentence([clause])}")
        return texts


def to_passages(item: Item) -> tuple[Passage, ...]:
    """The item's one passage, titled with its entity."""
    return (Passage("", item.entity, item.sentences),)


def to_example(item: Item, answer: str) -> QAExample:
    """The prompt record of an item with `answer` as its only reference."""
    passages = to_passages(item)
    return QAExample(item.id, item.question, task_text(item.question, passages), (answer,), passages)
