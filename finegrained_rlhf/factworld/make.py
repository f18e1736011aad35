"""Making a world's files: prompts, demonstrations and the facts behind them.

Every split has passages of its own.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.factworld import lexicon
from finegrained_rlhf.factworld.base import World
from finegrained_rlhf.factworld.world import Item, WorldConfig, make_items
from finegrained_rlhf.factworld.writer import GoldConfig, WriterConfig, write, write_gold
from finegrained_rlhf.feedback.reading import write_examples
from finegrained_rlhf.feedback.records import QAExample
from finegrained_rlhf.text.templates import task_text


@dataclass(frozen=True)
class MakeFactWorld(World[tuple[Item, str]]):
    """Make a world and write its files to `output_dir`.

    `train.json`, `dev.json`, `test.json`: prompts with gold answers. `sft_train.json`, `sft_dev.json`: demonstrations,
    prompts whose answer is the imperfect writer's. `gold_train.json`: more prompts with gold answers, in no
    other split. `world.jsonl`: the facts behind every prompt. `corpus.txt`: every word
    of the world in every form, to build a tokenizer from; it does not depend on the seed.

    Attributes:
        seed: of the world and the writer; another seed is another draw of everything.
        train: prompts to sample, annotate and train on; 0 writes no file.
        dev: prompts for selection.
        test: held-out prompts.
        sft_train: demonstrations.
        sft_dev: demonstrations for the SFT's validation.
        gold_train: gold answers to questions of no other split.
        world: what a passage and a question look like.
        gold: how gold answers are written.
        writer: the habits of the demonstrations' writer.
    """

    salt: ClassVar[str] = "factworld"
    splits: ClassVar[tuple[str, ...]] = ("train", "dev", "test", "sft_train", "sft_dev", "gold_train")
    suffix: ClassVar[str] = ".json"

    train: int = 3000
    dev: int = 200
    test: int = 500
    sft_train: int = 3000
    sft_dev: int = 200
    gold_train: int = 0
    world: WorldConfig = field(default_factory=WorldConfig)
    gold: GoldConfig = field(default_factory=GoldConfig)
    writer: WriterConfig = field(default_factory=WriterConfig)

    def draw(self) -> dict[str, list[tuple[Item, str]]]:
        """Each split's items with the answer that its file gives them."""
        taken: set[object] = set()
        splits = {}
        for split in self.splits:
            rng = self.rng(split)
            items = make_items(getattr(self, split), split, rng, self.world, taken)
            splits[split] = [(item, self._answer(split, item, rng)) for item in items]
        return splits

    def _answer(self, split: str, item: Item, rng: random.Random) -> str:
        if split.startswith("sft"):
            return write(item, rng, self.writer, self.world.forms)
        return write_gold(item, rng, self.gold, self.world.forms)

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
        } | ({"auxiliary": list(item.auxiliary)} if item.is_open else {})

    def vocabulary(self) -> list[str]:
        """Texts in which every word of the world occurs in every form that prompts and answers use."""
        texts = [*self._words_of_other_forms()]
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

    def _words_of_other_forms(self) -> Iterator[str]:
        """Of open questions and of the forms beyond the first; nothing in a world without them."""
        attribute, entity = lexicon.ATTRIBUTES[0], lexicon.ENTITIES[0]
        if self.world.open_rate:
            yield lexicon.entity_question([attribute], entity, is_open=True)
        for form in range(1, self.world.forms):
            clause = lexicon.clause(attribute, entity, lexicon.POPULAR[attribute], form)
            yield f"{lexicon.sentence([clause] * 2)} {lexicon.sentence([clause])}"


def to_passages(item: Item) -> tuple[Passage, ...]:
    """The item's one passage, titled with its entity."""
    return (Passage("", item.entity, item.sentences),)


def to_example(item: Item, answer: str) -> QAExample:
    """The prompt record of an item with `answer` as its only reference."""
    passages = to_passages(item)
    return QAExample(item.id, item.question, task_text(item.question, passages), (answer,), passages)
