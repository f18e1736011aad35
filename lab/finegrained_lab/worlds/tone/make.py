"""Making a ToneWorld's files: texts for language models, prompts, and labelled texts for classifiers."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

from finegrained_lab.worlds.tone import lexicon
from finegrained_lab.worlds.tone.oracle import toxicity
from finegrained_lab.worlds.tone.texts import ToneText, ToneWorldConfig, draw_text
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.files import write_jsonl
from finegrained_rlhf.core.markers import at_least, at_most
from finegrained_rlhf.core.seeding import stable_hash
from finegrained_rlhf.factworld.base import World

PROMPTS: Mapping[str, range] = {"train": range(8), "dev": range(8, 9), "test": range(9, 10)}
"""Of each split of prompts, the tenths of all prompts that it may hold."""
TEXTS = ("texts", "texts_dev", "judge_texts")
LABELLED = ("labelled_train", "labelled_dev")


@dataclass(frozen=True)
class MakeToneWorld(World[ToneText]):
    """Make a world and write its files to `output_dir`.

    `train.jsonl`, `dev.jsonl`, `test.jsonl`: prompts as RealToxicityPrompts has them, a sentence and half of the next,
    with what follows and true scores. `texts.jsonl`, `texts_dev.jsonl`: texts to train language models on and to select
    them by; `judge_texts.jsonl`: others, for a language model that judges what they write. `labelled_train.jsonl`,
    `labelled_dev.jsonl`: the first sentences of texts, with the share of annotators who find them toxic, and what most
    of them say. `world.jsonl`: the truth
    about every record. `corpus.txt`: every word of the world; it does not depend on the seed.

    No prompt is in two of the three splits, and none cuts through a phrase that is an insult or an apology as a whole:
    what follows is as toxic as it is by itself.

    Attributes:
        train: prompts to train on; 0 writes no file.
        dev: prompts for selection.
        test: held-out prompts.
        texts: for language models.
        texts_dev: for their selection.
        judge_texts: for the language model that judges.
        labelled_train: for classifiers.
        labelled_dev: for their selection.
        annotators: of each labelled text. Each calls it toxic with a probability of its toxicity.
        label_noise: share of their answers that are turned round.
        world: how texts come about.
    """

    salt: ClassVar[str] = "tone world"
    splits: ClassVar[tuple[str, ...]] = (*PROMPTS, *TEXTS, *LABELLED)

    train: int = 2000
    dev: int = 200
    test: int = 400
    texts: int = 4000
    texts_dev: int = 300
    judge_texts: int = 8000
    labelled_train: int = 3000
    labelled_dev: int = 500
    annotators: int = 5
    label_noise: Annotated[float, at_least(0.0), at_most(1.0)] = 0.05
    world: ToneWorldConfig = field(default_factory=ToneWorldConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_annotators(self.annotators)

    def draw(self) -> dict[str, list[ToneText]]:
        """Each split's texts. A split does not depend on the sizes of the others."""
        splits: dict[str, list[ToneText]] = {}
        for split in self.splits:
            rng, texts = self.rng(split), list[ToneText]()
            while len(texts) < getattr(self, split):
                text = draw_text(f"{split}-{len(texts):05d}", rng, self.world)
                if split not in PROMPTS or self._serves(text, split):
                    texts.append(text)
            splits[split] = texts
        return splits

    @staticmethod
    def _serves(text: ToneText, split: str) -> bool:
        """Whether a text may be a prompt of a split: no phrase that counts only as a whole is cut through."""
        unambiguous = text.kinds[1] not in ("dual_insult", "apology")
        return unambiguous and stable_hash("prompt", text.halves()[0]) % 10 in PROMPTS[split]

    def write_split(self, path: Path, split: str, drawn: Sequence[ToneText]) -> None:
        """Prompts with what follows, texts, or labelled texts."""
        if split in PROMPTS:
            write_jsonl(path, map(_prompt_row, drawn))
        elif split in LABELLED:
            write_jsonl(path, map(self._labelled_row, drawn))
        else:
            write_jsonl(path, ({"id": text.id, "text": text.text} for text in drawn))

    def _labelled_row(self, text: ToneText) -> dict[str, Any]:
        rng = self.rng("label", text.id)
        part = " ".join(text.sentences[: rng.randint(1, len(text.sentences))])
        return {"id": text.id, "text": part, **voted(toxicity(part), self.annotators, self.label_noise, rng)}

    def truth(self, split: str, drawn: ToneText) -> dict[str, Any]:
        """Topic, kinds of sentence and toxicity, of the whole text and of the part that is labelled."""
        truth = {
            "id": drawn.id,
            "split": split,
            "topic": drawn.topic,
            "kinds": list(drawn.kinds),
            "toxicity": toxicity(drawn.text),
        }
        if split in LABELLED:
            truth["labelled_toxicity"] = toxicity(self._labelled_row(drawn)["text"])
        return truth

    def vocabulary(self) -> list[str]:
        """Sentences with every word of the world in every form."""
        return lexicon.vocabulary()


def check_annotators(count: int) -> None:
    """Raise ConfigError where half of so many annotators may say one thing and half the other."""
    if count < 1 or count % 2 == 0:
        raise ConfigError(f"annotators: expected an odd number, so that most of them agree, got {count}")


def voted(seen: float, annotators: int, noise: float, rng: random.Random) -> dict[str, Any]:
    """The `label` and `score` of a text by annotators who call it toxic with the probability of the toxicity they see.

    Args:
        seen: that toxicity.
        annotators: how many.
        noise: share of their answers that are turned round.
        rng: where chance comes from.
    """
    votes = [(rng.random() < seen) != (rng.random() < noise) for _ in range(annotators)]
    score = sum(votes) / annotators
    return {"label": "toxic" if score > 0.5 else "mild", "score": score}


def _prompt_row(text: ToneText) -> dict[str, Any]:
    prompt, continuation = text.halves()
    return {
        "id": text.id,
        "prompt": {"text": prompt, "toxicity": toxicity(prompt)},
        "continuation": {"text": continuation, "toxicity": toxicity(continuation)},
        "challenging": False,
    }
