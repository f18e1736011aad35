"""Making a DialogueWorld's files: dialogues with their documents, and the words to build a tokenizer from.

Knows file names, split sizes and which documents a split is about.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.files import write_jsonl, write_text
from finegrained_rlhf.core.seeding import stable_hash
from finegrained_rlhf.dialki.readers.jsonl import dialogue_row, write_dialogues
from finegrained_rlhf.worlds.dialogue import lexicon
from finegrained_rlhf.worlds.dialogue.dialogues import (
    MAX_PASSAGES,
    DialogueWorldConfig,
    WorldDialogue,
    WorldDocument,
    draw_dialogue,
    draw_document,
)

SPLITS = ("train", "dev", "test", "unseen")


@dataclass(frozen=True)
class MakeDialogueWorld:
    """Make a world and write its files to `output_dir`.

    `train.jsonl`, `dev.jsonl`, `test.jsonl`: dialogues about one set of documents; agents
    digress in training only. `unseen.jsonl`: dialogues about
    other documents, whose places have names that occur in no document of the other splits. `world.jsonl`: how each
    user turn asks. `corpus.txt`: every word of the world in every form; it does not depend on the seed.

    Attributes:
        output_dir: where the files go.
        seed: of the world; another seed is another draw of everything, the held-out names too.
        documents: documents of the first three splits.
        unseen_documents: documents of `unseen.jsonl`.
        held_out: share of the names that only `unseen.jsonl` uses.
        train: dialogues to train on; 0 writes no file.
        dev: dialogues for selection.
        test: held-out dialogues about the same documents.
        unseen: dialogues about unseen documents.
        answers: `last`: a dialogue ends with a question, whose answer is to be found, and the labels of the turns
            before it are its history; `all`: it ends with an answer, and the knowledge of each answer is to be found.
        world: what a document and a dialogue look like.
    """

    output_dir: str
    seed: int = 0
    documents: int = 300
    unseen_documents: int = 60
    held_out: float = 0.2
    train: int = 4000
    dev: int = 250
    test: int = 500
    unseen: int = 500
    answers: Literal["last", "all"] = "last"
    world: DialogueWorldConfig = field(default_factory=lambda: DialogueWorldConfig(digression=0.3))

    def __post_init__(self) -> None:
        for name in SPLITS:
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must be 0 or more, got {getattr(self, name)}")
        if self.answers not in ("last", "all"):
            raise ConfigError(f"answers: expected last or all, got {self.answers!r}")
        if min(self.documents, self.unseen_documents) < 1:
            raise ConfigError("documents and unseen_documents must be 1 or more")
        held = round(self.held_out * len(lexicon.NAMES))
        if not MAX_PASSAGES <= held <= len(lexicon.NAMES) - MAX_PASSAGES:
            raise ConfigError(
                f"held_out must leave {MAX_PASSAGES} of {len(lexicon.NAMES)} names or more on each side, "
                f"got {self.held_out}"
            )

    def run(self) -> None:
        """Draw the world and write every file whole; prints one line."""
        directory, splits = Path(self.output_dir), self.draw()
        for split, dialogues in splits.items():
            if dialogues:
                write_dialogues(directory / f"{split}.jsonl", [self._row(one, split) for one in dialogues])
        rows = (world_row(one, split) for split, dialogues in splits.items() for one in dialogues)
        write_jsonl(directory / "world.jsonl", rows)
        write_text(directory / "corpus.txt", "\n".join(lexicon.corpus()) + "\n")
        print(f"{', '.join(f'{len(dialogues)} {split}' for split, dialogues in splits.items())} -> {self.output_dir}")

    def draw(self) -> dict[str, list[WorldDialogue]]:
        """Each split's dialogues. A split does not depend on the sizes of the others."""
        names = list(lexicon.NAMES)
        self._rng("names").shuffle(names)
        held = round(self.held_out * len(names))
        seen = self._documents("seen", names[held:], self.documents)
        unseen = self._documents("unseen", names[:held], self.unseen_documents)
        splits = {}
        for split in SPLITS:
            rng, documents = self._rng(split), unseen if split == "unseen" else seen
            world = self.world if split == "train" else replace(self.world, digression=0.0)
            splits[split] = [
                draw_dialogue(f"{split}-{i:05d}", rng.choice(documents), rng, world)
                for i in range(getattr(self, split))
            ]
        return splits

    def _row(self, dialogue: WorldDialogue, split: str) -> dict[str, Any]:
        return to_row(dialogue, split == "unseen", self.answers == "last")

    def _documents(self, kind: str, names: Sequence[str], count: int) -> list[WorldDocument]:
        rng = self._rng("documents", kind)
        return [draw_document(f"{kind}-{i:04d}", names, rng, self.world) for i in range(count)]

    def _rng(self, *parts: str) -> random.Random:
        return random.Random(stable_hash(self.seed, "dialogue world", *parts))


def to_row(dialogue: WorldDialogue, unseen: bool, last: bool) -> dict[str, Any]:
    """One line of a split's file; with `last` the last answer is what is to be found."""
    document = dialogue.document
    turns, answer = (dialogue.turns[:-1], dialogue.turns[-1]) if last else (dialogue.turns, None)
    return dialogue_row(dialogue.id, turns, document.passages, unseen, document.id, answer)


def world_row(dialogue: WorldDialogue, split: str) -> dict[str, Any]:
    """One line of `world.jsonl`."""
    return {
        "id": dialogue.id,
        "split": split,
        "document": dialogue.document.id,
        "kinds": list(dialogue.kinds),
        "places": [dialogue.document.names[turn.knowledge.passage] for turn in dialogue.turns[::2] if turn.knowledge],
    }
