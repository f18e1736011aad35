"""Edits into training on StyleWorld: what drafts for new readers cost before and after. Reads what the steps wrote."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from finegrained_lab.experiments.compared_table import CurvesTable
from finegrained_rlhf.core.files import read_json
from finegrained_rlhf.text.tables import cell, markdown_table

WRITER = "writer"
TRAINED = ("ppo", "rloo", "rloo_whole", "rloo_shuffled", "sft_rloo")
KINDS = ("irrelevant", "wrong", "missing")
SETTINGS = ("writing", "used", "new", "foreign")


@dataclass(frozen=True)
class StyleEditsTable(CurvesTable):
    """A writer before it is trained on the edits of its drafts, and after, by the edits of readers it has never met."""

    world: ClassVar[str] = "StyleWorld"
    baseline: ClassVar[str] = WRITER
    columns: ClassVar[tuple[str, ...]] = ("cost", "normalised", "untouched", "style", "taken", "words")
    validated: ClassVar[tuple[str, ...]] = ("reward/total", "truth/cost", "truth/untouched")
    caption: ClassVar[str] = "What edits of drafts for dev contexts would cost while rewards train"

    def row(self, root: Path, system: str, seed: int) -> dict[str, Any]:
        """What the reader's edits cost."""
        measures = read_json(root / "edits" / f"{system}.json")
        return {"system": system, "seed": seed, **{name: measures[name] for name in self.columns}}

    def draw(self, result: Mapping[str, Any], path: Path) -> None:
        """Cost and reward by step: mean and range over seeds."""
        self.draw_bands(result, path, {"truth/cost": "cost of an edit", "reward/total": "reward"})


@dataclass(frozen=True)
class StyleTrainingTable(StyleEditsTable):
    """Marked edits as rewards, dense, whole and shuffled, and the edited texts as answers."""

    title: ClassVar[str] = "StyleWorld: what users' edits teach a policy"
    stated_settings: ClassVar[tuple[str, ...]] = SETTINGS
    systems: ClassVar[tuple[str, ...]] = (WRITER, "majority", "sft", *TRAINED)
    runs: ClassVar[tuple[str, ...]] = (
        *("writer", "sft", *TRAINED),
        *(f"{directory}/{kind}" for directory in ("reward_models", "shuffled_models") for kind in KINDS),
    )
    curved: ClassVar[tuple[str, ...]] = TRAINED
    about: ClassVar[str] = (
        "Reader and world are scripted: the table says what the way from edits to training is worth, and nothing about "
        "language. `cost`: Levenshtein's distance of draft and edited text in words and marks, mean; `normalised`: "
        "over those of the longer text; `untouched`: share of drafts that needed no edit; `style`: share of the six "
        "dimensions in which a draft is as its reader wants it; `taken`: share of a draft's sentences that are the "
        "context's; `words`: of a draft. `majority`: the one style that most of the edited texts have, for "
        "everybody. `sft`: the writer trained on the edited texts themselves. `ppo`: the writer trained by PPO, with a "
        "reward where a segment ends from three reward models that learnt from the marked edits (what would be taken "
        "out, replaced, added to); `rloo`: by RLOO, which compares what follows a token with the other drafts of the "
        "context, and learns no value model; `rloo_whole`: the same rewards at the last token; `rloo_shuffled`: with "
        "reward models that learnt from labels in random order; `sft_rloo`: RLOO that begins with `sft`, held to it."
    )

    def introduction(self, result: Mapping[str, Any]) -> str:
        """What was written and edited, by the settings, and what is measured."""
        settings = result["settings"]
        return (
            f"A tiny T5 learns from {settings['writing']} texts in random styles to write any style. It writes drafts "
            "of "
            f"{settings['used']} contexts of five sources, and each source's reader edits them into the style that "
            "they "
            "want. What is learnt from these edits is measured on "
            f"{settings['new']} other contexts, whose readers have no memory of their own; of a context's sentences "
            f"{settings['foreign']:.0%} are another source's. Greedy decoding. {self.about}"
        )

    def measure(self, roots: Mapping[int, Path]) -> dict[str, Any]:
        """Rows with their spread, the differences from the writer, reward models, and how training went."""
        models = [
            {"model": directory, "kind": kind, "seed": seed, **_trust(root / directory / kind)}
            for directory in ("reward_models", "shuffled_models")
            for kind in KINDS
            for seed, root in roots.items()
        ]
        return {**super().measure(roots), "reward_models": models, **self.training(roots)}

    def body(self, result: Mapping[str, Any]) -> str:
        """Spread, differences, every run; the reward models; minutes."""
        rows = [{key: cell(value) for key, value in row.items()} for row in result["reward_models"]]
        models = f"## Reward models on dev edits\n\n{markdown_table(rows, list(rows[0])).strip()}"
        return "\n\n".join([super().body(result), models, self.longest(result)])


def _trust(directory: Path) -> dict[str, float]:
    """What a reward model says of dev edits, against their marks."""
    trust = read_json(directory / "trust.json")
    errors = trust["confusion"]["found"] + trust["confusion"]["missed"]
    measured = {name: trust[name] for name in ("accuracy", "precision", "recall", "f1")}
    return {"segments": trust["items"], "with_error": errors / trust["items"], **measured}
