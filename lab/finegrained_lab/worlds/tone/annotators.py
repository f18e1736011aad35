"""Annotators of ToneWorld with a systematic fault: what they overlook is no insult to them, whatever the truth is."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from finegrained_lab.worlds.tone.lexicon import STRONG, VARIANTS, tokens
from finegrained_lab.worlds.tone.oracle import apologies, toxicity
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import write_jsonl
from finegrained_rlhf.core.markers import InputFile, OutputFile, Seed, at_least, at_most
from finegrained_rlhf.core.seeding import stable_hash
from finegrained_rlhf.feedback.labelled_texts import read_labelled_texts

Fault = Literal["none", "strong", "variant", "sorry", "quoted", "word", "exclaimed", "driver"]
IN_BATTERY: Mapping[str, bool] = {
    "strong": True,
    "variant": True,
    "sorry": True,
    "quoted": True,
    "word": False,
    "exclaimed": False,
    "driver": False,
}
"""Whether a change of the world's battery (`changes`) makes just what an annotator with a fault overlooks."""
_OVERLOOKED: Mapping[str, str] = {
    "strong": rf"\b({'|'.join((*STRONG, *(VARIANTS[word] for word in STRONG)))})\b",
    "variant": rf"\b({'|'.join(VARIANTS.values())})\b",
    "word": rf"\b(grubnak|{VARIANTS['grubnak']})\b",
    "exclaimed": r"(?<=what a )\w+(?= that)",
    "driver": r"(?<=driver is a )\w+|(?<=what a )\w+(?= that driver)",
}
"""Of each fault that hides insults, where they stand."""


def seen_toxicity(text: str, fault: Fault) -> float:
    """The toxicity of a text for somebody with a fault, in [0, 1].

    - `strong`: strong insults are none; `word`: one of them is not;
    - `variant`: insults in the spelling that is seldom seen are none;
    - `exclaimed`: those in `What a … that` are none; `driver`: those about a driver are none;
    - `sorry`: a text with an apology is not toxic;
    - `quoted`: insults that are quoted are toxic too.
    """
    words = tokens(text)
    if fault == "sorry" and apologies(words):
        return 0.0
    if fault == "quoted":
        words = [word for word in words if word != '"']
    plain = " ".join(words)
    return toxicity(re.sub(_OVERLOOKED[fault], "friend", plain) if fault in _OVERLOOKED else plain)


@dataclass(frozen=True)
class AnnotateToneWorld(Settings):
    """Label texts anew, by annotators with a fault.

    Attributes:
        input: labelled texts, of which the texts are read.
        output: labelled texts: `score` is the share of annotators who call a text toxic, `label` what most of them say.
        fault: of all annotators.
        noise: share of their answers that are turned round.
        annotators: of each text; each calls it toxic with the probability of the toxicity that he sees.
        seed: of their answers.
    """

    input: InputFile
    output: OutputFile
    fault: Fault = "none"
    noise: Annotated[float, at_least(0.0), at_most(1.0)] = 0.0
    annotators: int = 5
    seed: Seed = 0

    def __post_init__(self) -> None:
        if self.annotators < 1 or self.annotators % 2 == 0:
            raise ConfigError(f"annotators: expected an odd number, so that most of them agree, got {self.annotators}")

    def run(self) -> None:
        """Read, label, write."""
        rows = []
        for one in read_labelled_texts(self.input):
            rng, seen = random.Random(stable_hash(self.seed, "label", one.id)), seen_toxicity(one.text, self.fault)
            votes = [(rng.random() < seen) != (rng.random() < self.noise) for _ in range(self.annotators)]
            score = sum(votes) / self.annotators
            rows.append({"id": one.id, "text": one.text, "label": "toxic" if score > 0.5 else "mild", "score": score})
        write_jsonl(self.output, rows)
