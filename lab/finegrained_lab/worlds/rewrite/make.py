"""Making a RewriteWorld's files: a corpus, dialogues over it, and the words to build a tokenizer from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from finegrained_lab.worlds.rewrite import lexicon
from finegrained_lab.worlds.rewrite.dialogues import (
    RewriteDialogue,
    RewriteWorldConfig,
    WorldFact,
    draw_facts,
    draw_rewrite_dialogue,
)
from finegrained_rlhf.conqrr.data import write_rewrite_jsonl
from finegrained_rlhf.core.files import write_jsonl
from finegrained_rlhf.core.seeding import stable_hash
from finegrained_rlhf.dialogue.records import PART_SEPARATOR
from finegrained_rlhf.factworld.base import World

CORPUS = "corpus.jsonl"
_OPENINGS = {"train": range(8), "dev": range(8, 9), "test": range(9, 10)}
"""Tenths of the openings that a split's dialogues begin with."""


@dataclass(frozen=True)
class MakeRewriteWorld(World[RewriteDialogue]):
    """Make a world and write its files to `output_dir`.

    `corpus.jsonl`: the passages. `train.jsonl`, `dev.jsonl`, `test.jsonl`: the questions of dialogues, each with its
    human rewrite, answer and gold passage. `world.jsonl`: how each question asks. `corpus.txt`: every word of the world
    in every form; it does not depend on the seed.

    Dialogues of different splits never begin with the same two questions, so no question that needs its history occurs
    in two splits with the same one.

    Attributes:
        train: dialogues to train on; 0 writes no file.
        dev: dialogues for selection.
        test: held-out dialogues over the same corpus.
        world: what the corpus and a dialogue look like.
    """

    salt: ClassVar[str] = "rewrite world"
    splits: ClassVar[tuple[str, ...]] = ("train", "dev", "test")

    train: int = 150
    dev: int = 60
    test: int = 250
    world: RewriteWorldConfig = field(default_factory=RewriteWorldConfig)

    def facts(self) -> dict[tuple[str, str], WorldFact]:
        """Every fact of the world, one passage each."""
        return draw_facts(self.rng("facts"), self.world)

    def draw(self) -> dict[str, list[RewriteDialogue]]:
        """Each split's dialogues. A split does not depend on the sizes of the others."""
        facts = self.facts()
        splits: dict[str, list[RewriteDialogue]] = {}
        for split in self.splits:
            rng, dialogues = self.rng(split), list[RewriteDialogue]()
            while len(dialogues) < getattr(self, split):
                dialogue = draw_rewrite_dialogue(f"{split}-{len(dialogues):05d}", facts, rng, self.world)
                if stable_hash("opening", *_opening(dialogue)) % 10 in _OPENINGS[split]:
                    dialogues.append(dialogue)
            splits[split] = dialogues
        return splits

    def write_shared(self, directory: Path) -> list[str]:
        """The corpus of passages, one a fact."""
        rows = ({"id": fact.id, "text": fact.text} for fact in self.facts().values())
        write_jsonl(directory / CORPUS, rows)
        return [CORPUS]

    def write_split(self, path: Path, split: str, drawn: Sequence[RewriteDialogue]) -> None:
        """A file in the project's format of rewrites, one record a question."""
        write_rewrite_jsonl(path, [example for dialogue in drawn for example in dialogue.examples()])

    def truth(self, split: str, drawn: RewriteDialogue) -> dict[str, Any]:
        """How each question of a dialogue asks, and what for."""
        return {
            "id": drawn.id,
            "split": split,
            "kinds": [question.kind for question in drawn.questions],
            "names": [question.fact.name for question in drawn.questions],
            "attributes": [question.fact.attribute for question in drawn.questions],
        }

    def vocabulary(self) -> list[str]:
        """Texts in which every word of the world occurs in every form that passages, turns and rewrites use."""
        texts = []
        for number, name in enumerate(lexicon.NAMES):
            attribute = lexicon.ATTRIBUTES[number % len(lexicon.ATTRIBUTES)]
            texts += [lexicon.user_question(kind, attribute, name) for kind in lexicon.KINDS]
        for attribute, values in lexicon.VALUES.items():
            for number, value in enumerate(values):
                name = lexicon.NAMES[number % len(lexicon.NAMES)]
                texts += [lexicon.agent_answer(value), lexicon.passage(attribute, name, value)]
        return [*texts, PART_SEPARATOR.join(texts[:2])]

    def in_words(self, splits: Mapping[str, Sequence[RewriteDialogue]]) -> str:
        """How many passages and questions."""
        counts = [f"{sum(len(one.questions) for one in drawn)} {split}" for split, drawn in splits.items()]
        return f"{len(self.facts())} passages, questions: {', '.join(counts)}"


def _opening(dialogue: RewriteDialogue) -> Sequence[str]:
    return [question.text for question in dialogue.questions[:2]]
