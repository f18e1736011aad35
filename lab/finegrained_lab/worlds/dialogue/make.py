"""Making a DialogueWorld's files: dialogues with their documents, and the words to build a tokenizer from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from finegrained_lab.worlds.dialogue import lexicon
from finegrained_lab.worlds.dialogue.dialogues import (
    MAX_PASSAGES,
    DialogueWorldConfig,
    WorldDialogue,
    WorldDocument,
    draw_dialogue,
    draw_document,
    with_noise,
)
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.markers import at_least
from finegrained_rlhf.dialki.data import dialogue_row, write_dialogues
from finegrained_rlhf.factworld.base import World


@dataclass(frozen=True)
class MakeDialogueWorld(World[WorldDialogue]):
    """Make a world and write its files to `output_dir`.

    `train.jsonl`, `dev.jsonl`, `test.jsonl`: dialogues about one set of documents; labels are noisy in training only.
    `unseen.jsonl`: dialogues about other documents, whose places have names that occur in no document of the other
    splits. `world.jsonl`: how each user turn asks, and what each answer truly rests on. `corpus.txt`: every word of the
    world in every form; it does not depend on the seed. Dialogues are the same whatever `world.noise` is.

    Attributes:
        seed: of the world; another seed is another draw of everything, the held-out names too.
        documents: documents of the first three splits.
        unseen_documents: documents of `unseen.jsonl`.
        held_out: share of the names that only `unseen.jsonl` uses.
        train: dialogues to train on; 0 writes no file.
        dev: dialogues for selection.
        test: held-out dialogues about the same documents.
        unseen: dialogues about unseen documents.
        train_answers: `all`: a training dialogue ends with an answer, and the knowledge of each of its answers is to be
            found, as on Doc2Dial, with the labels of the turns before it as its history; `last`: it ends with a
            question, and only what the answer to that rests on is to be found.
        answers: the same for the other splits.
        world: what a document and a dialogue look like.
    """

    salt: ClassVar[str] = "dialogue world"
    splits: ClassVar[tuple[str, ...]] = ("train", "dev", "test", "unseen")

    documents: Annotated[int, at_least(1)] = 300
    unseen_documents: Annotated[int, at_least(1)] = 60
    held_out: float = 0.2
    train: int = 2000
    dev: int = 250
    test: int = 500
    unseen: int = 500
    train_answers: Literal["last", "all"] = "all"
    answers: Literal["last", "all"] = "last"
    world: DialogueWorldConfig = field(default_factory=lambda: DialogueWorldConfig(noise=0.2))

    def __post_init__(self) -> None:
        super().__post_init__()
        held = round(self.held_out * len(lexicon.NAMES))
        if not MAX_PASSAGES <= held <= len(lexicon.NAMES) - MAX_PASSAGES:
            raise ConfigError(
                f"held_out must leave {MAX_PASSAGES} of {len(lexicon.NAMES)} names or more on each side, "
                f"got {self.held_out}"
            )

    def draw(self) -> dict[str, list[WorldDialogue]]:
        """Each split's dialogues. A split does not depend on the sizes of the others."""
        names = list(lexicon.NAMES)
        self.rng("names").shuffle(names)
        held = round(self.held_out * len(names))
        seen = self._documents("seen", names[held:], self.documents)
        unseen = self._documents("unseen", names[:held], self.unseen_documents)
        splits = {}
        for split in self.splits:
            rng, documents = self.rng(split), unseen if split == "unseen" else seen
            splits[split] = [
                draw_dialogue(f"{split}-{i:05d}", rng.choice(documents), rng, self.world)
                for i in range(getattr(self, split))
            ]
        return splits

    def write_split(self, path: Path, split: str, drawn: Sequence[WorldDialogue]) -> None:
        """A file in the project's dialogue format. Training labels are noisy."""
        noise = self.rng("noise", split)
        training = split == "train"
        labelled = [with_noise(one, noise, self.world.noise) if training else one for one in drawn]
        last = (self.train_answers if training else self.answers) == "last"
        write_dialogues(path, [to_row(one, split == "unseen", last) for one in labelled])

    def truth(self, split: str, drawn: WorldDialogue) -> dict[str, Any]:
        """How each user turn of a dialogue asks, and what each answer rests on: the place, and the span, from 0."""
        document = drawn.document
        return {
            "id": drawn.id,
            "split": split,
            "document": document.id,
            "kinds": list(drawn.kinds),
            "places": [document.names[turn.knowledge.passage] for turn in drawn.turns[1::2] if turn.knowledge],
            "spans": [turn.knowledge.begin for turn in drawn.turns[1::2] if turn.knowledge],
        }

    def vocabulary(self) -> list[str]:
        """Texts in which every word of the world occurs in every form that passages and turns use."""
        texts = [*lexicon.NAMES]
        for number, name in enumerate(lexicon.NAMES):
            attribute = lexicon.ATTRIBUTES[number % len(lexicon.ATTRIBUTES)]
            texts += [lexicon.user_turn(kind, attribute, name) for kind in lexicon.KINDS]
        for attribute, values in lexicon.VALUES.items():
            for value in values:
                turns = [lexicon.agent_turn(value), lexicon.agent_turn(value, lexicon.NAMES[0])]
                texts += [lexicon.fact(attribute, value), *turns]
        return texts

    def _documents(self, kind: str, names: Sequence[str], count: int) -> list[WorldDocument]:
        rng = self.rng("documents", kind)
        return [draw_document(f"{kind}-{i:04d}", names, rng, self.world) for i in range(count)]


def to_row(dialogue: WorldDialogue, unseen: bool, last: bool) -> dict[str, Any]:
    """One line of a split's file; with `last` the last answer is what is to be found."""
    document = dialogue.document
    turns, answer = (dialogue.turns[:-1], dialogue.turns[-1]) if last else (dialogue.turns, None)
    return dialogue_row(dialogue.id, turns, document.passages, unseen, document.id, answer)
