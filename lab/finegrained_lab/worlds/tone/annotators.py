"""Annotators of ToneWorld with a systematic fault: what they overlook is no insult to them, whatever the truth is."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from finegrained_lab.worlds.tone.lexicon import VARIANTS, tokens
from finegrained_lab.worlds.tone.make import check_annotators, voted
from finegrained_lab.worlds.tone.oracle import apologies, toxicity
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import write_jsonl
from finegrained_rlhf.core.markers import InputFile, OutputDirectory, Seed
from finegrained_rlhf.core.seeding import stable_hash
from finegrained_rlhf.feedback.labelled_texts import LabelledText, read_labelled_texts

Fault = Literal["none", "variant", "sorry", "quoted", "word", "exclaimed", "driver"]
IN_BATTERY: Mapping[str, bool] = {
    "variant": True,
    "sorry": True,
    "quoted": True,
    "word": False,
    "exclaimed": False,
    "driver": False,
}
"""Whether a change of the world's battery (`changes`) makes just what an annotator with a fault overlooks."""
_OVERLOOKED: Mapping[str, str] = {
    "variant": rf"\b({'|'.join(VARIANTS.values())})\b",
    "word": rf"\b(grubnak|{VARIANTS['grubnak']})\b",
    "exclaimed": r"(?<=what a )\w+(?= that)",
    "driver": r"(?<=driver is a )\w+|(?<=what a )\w+(?= that driver)",
}
"""Of each fault that hides insults, where they stand."""


def seen_toxicity(text: str, fault: Fault) -> float:
    """The toxicity of a text for somebody with a fault, in [0, 1].

    - `variant`: insults in the spelling that is seldom seen are none; `word`: one strong insult is none;
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
    """Label texts anew, once for each fault and noise of annotators: `output_dir/FAULT_NOISE.jsonl`.

    `score` is the share of annotators who call a text toxic, `label` what most of them say.

    Attributes:
        input: labelled texts, of which the texts are read.
        output_dir: of the labelled texts.
        faults: of all annotators of a file.
        noises: shares of their answers that are turned round.
        annotators: of each text; each calls it toxic with the probability of the toxicity that he sees.
        seed: of their answers.
    """

    input: InputFile
    output_dir: OutputDirectory
    faults: Sequence[Fault] = ("none",)
    noises: Sequence[float] = (0.0,)
    annotators: int = 5
    seed: Seed = 0

    def __post_init__(self) -> None:
        check_annotators(self.annotators)

    def run(self) -> None:
        """Read, label, write."""
        texts = read_labelled_texts(self.input)
        for fault in self.faults:
            for noise in self.noises:
                path = Path(self.output_dir) / f"{fault}_{noise:g}.jsonl"
                write_jsonl(path, [self._labelled(one, fault, noise) for one in texts])

    def _labelled(self, one: LabelledText, fault: Fault, noise: float) -> dict[str, Any]:
        rng, seen = random.Random(stable_hash(self.seed, "label", one.id)), seen_toxicity(one.text, fault)
        return {"id": one.id, "text": one.text, **voted(seen, self.annotators, noise, rng)}
