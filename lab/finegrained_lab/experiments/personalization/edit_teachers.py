"""What StyleWorld's edits teach: as words changed, true and learnt, and as pairs. Reads what the steps wrote."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from finegrained_lab.experiments.personalization.style_training import StyleEditsTable
from finegrained_rlhf.core.files import read_json, read_jsonl
from finegrained_rlhf.factworld.report import exported_validation
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.text.tables import cell, markdown_table

PAIRS = ("dpo", "dpo_sft", "dpop", "dpo_spans", "dpo_shuffled")
FIRST = ("rloo_true", "rloo_noted", "rloo_mass", "rloo_plain", "rloo_shuffled")
REWARDED = (*FIRST, "rloo_true_3", "rloo_mass_3")
SFT_RLOO = "sft_rloo"
RUNS = ("rloo_true", *(f"rloo_true_{number}" for number in range(2, 7)))
MASSES = ("mass_noted", "mass", "mass_plain", "mass_shuffled")
SCORERS = {"exact": "ranked", **{name: "ranked_noted" if name == "mass_noted" else "ranked" for name in MASSES}}
SETTINGS = ("used", "new", "foreign")
LAST = 50
LIKELIHOODS = ("accuracy", "logprob/chosen", "logprob/rejected", "moved/chosen", "moved/rejected")


@dataclass(frozen=True)
class TaughtWriterTable(StyleEditsTable):
    """A table whose seeds share one writer."""

    stated_settings: ClassVar[tuple[str, ...]] = SETTINGS

    def introduction(self, result: Mapping[str, Any]) -> str:
        """What was written and edited, by the settings, and what is measured."""
        settings = result["settings"]
        return (
            f"A tiny T5 that writes any style writes drafts of {settings['used']} contexts of five sources, and each "
            "source's reader edits them into the style that they want. What is learnt from these edits is measured on "
            f"{settings['new']} other contexts; of a context's sentences {settings['foreign']:.0%} are another's. "
            "Greedy decoding. Reader and world are scripted, and one writer is shared by all seeds, as a pretrained "
            "model would be: the table says what the way from edits to training is worth, and nothing about language. "
            f"Columns as in [the first table](style_training.md). {self.about}"
        )

    def exported(self, roots: Mapping[int, Path], runs: Sequence[str], column: str = "step") -> list[dict[str, Any]]:
        """A column of the validation whose weights a run exported, by run and seed."""
        return [
            {
                "system": run,
                **{str(seed): exported_validation(RunDirectory(root / run))[column] for seed, root in roots.items()},
            }
            for run in runs
        ]


@dataclass(frozen=True)
class EditTeachersTable(TaughtWriterTable):
    """Rewards that are learnt from edits, and pairs of a draft and what became of it."""

    title: ClassVar[str] = "StyleWorld: edits as teachers, words changed and pairs"
    systems: ClassVar[tuple[str, ...]] = ("writer", "majority", "sft", *PAIRS, *REWARDED)
    runs: ClassVar[tuple[str, ...]] = (*MASSES, "sft", *PAIRS, *REWARDED)
    curved: ClassVar[tuple[str, ...]] = FIRST
    about: ClassVar[str] = (
        "`sft`: the writer trained on the edited texts; `dpo`: on pairs of an "
        "edited text and its draft; `dpo_sft`: with an SFT term; `dpop`: DPO-Positive; `dpo_spans`: on the tokens "
        "alone in which the two differ; `dpo_shuffled`: on pairs that a coin turns. `rloo_true`: RLOO with minus "
        "the true cost as the reward; `rloo_mass`: with minus the words that a reward model expects to "
        "be changed in each sub-sentence. That model, `mass`, learnt from the edited drafts, from three more drafts "
        "of each context that no reader saw, held against the same edited text, from the edited texts, and from "
        "all of them with words cut out (`hindsight=2`); `mass_plain` from the edited drafts alone; `mass_noted` as "
        "`mass`, and it reads the reader's true preference, which the policy of `rloo_noted` does not; "
        "`mass_shuffled` from labels in random order. `rloo_true_3`, `rloo_mass_3`: the same after two more runs of "
        "as many steps, each held by its KL to the policy that the one before exported."
    )

    def measure(self, roots: Mapping[int, Path]) -> dict[str, Any]:
        """Rows with their spread, how rewards rank drafts, likelihoods of pairs, and how training went."""
        ranked = [
            {"reward": name, "seed": seed, **read_json(root / f"{file}.json")["scorers"][name]}
            for name, file in SCORERS.items()
            for seed, root in roots.items()
        ]
        pairs = [{"system": run, "seed": seed, **_last(root / run)} for run in PAIRS for seed, root in roots.items()]
        return {
            **super().measure(roots),
            "ranked": ranked,
            "pairs": pairs,
            "exported": self.exported(roots, (*PAIRS, *REWARDED)),
            **self.training(roots),
        }

    def body(self, result: Mapping[str, Any]) -> str:
        """Spread, differences, every run; ranks; likelihoods; minutes."""
        return "\n\n".join(
            [
                super().body(result),
                f"## How rewards rank 16 drafts in random styles of each of 120 new contexts\n\n`within`: Spearman's "
                f"correlation with −cost among the drafts of a context, mean; `over`: among all; `best_of`: what the "
                f"best of 16 costs.\n\n{_table(result['ranked'])}",
                f"## Likelihoods of both answers at the last step, in nats an answer\n\n`moved`: from the writer, of "
                f"the tokens that are compared.\n\n{_table(result['pairs'])}",
                "## What was exported\n\nThe step that validations liked best, by seed: by the answers' RougeLSum "
                "where pairs are trained on, by the reward in RLOO. 0 is the writer itself.\n\n"
                + _table(result["exported"]),
                self.longest(result),
            ]
        )


@dataclass(frozen=True)
class EditTeachersLongerTable(TaughtWriterTable):
    """RL with the true cost as the reward, run after run, and RL that begins with SFT on the edited texts."""

    title: ClassVar[str] = "StyleWorld: how far RL comes with the true cost of edits"
    systems: ClassVar[tuple[str, ...]] = ("writer", "majority", "sft", SFT_RLOO, *RUNS)
    runs: ClassVar[tuple[str, ...]] = ("sft", SFT_RLOO, *RUNS)
    curved: ClassVar[tuple[str, ...]] = (SFT_RLOO, *RUNS)
    about: ClassVar[str] = (
        "`sft`: the writer trained on the edited texts; `sft_rloo`: RLOO with minus the true cost as the reward, which "
        "begins with it and is held to it; `rloo_true`: the same from the writer; `rloo_true_2` to `rloo_true_6`: "
        "as many more runs of as many steps, each held by its KL to the policy that the one before exported."
    )

    def measure(self, roots: Mapping[int, Path]) -> dict[str, Any]:
        """Rows with their spread, what was exported, and how training went."""
        return {
            **super().measure(roots),
            "exported": self.exported(roots, self.curved),
            "dev_cost": self.exported(roots, self.curved, "truth/cost"),
            "training_cost": [
                {"system": run, **{str(seed): _cost_while_trained(root / run) for seed, root in roots.items()}}
                for run in self.curved
            ],
            **self.training(roots),
        }

    def body(self, result: Mapping[str, Any]) -> str:
        """Spread, differences, every run; what was exported; minutes."""
        return "\n\n".join(
            [
                super().body(result),
                "## What was exported\n\nThe step that validations liked best, by the reward, by seed; 0 is what the "
                f"run began with.\n\n{_table(result['exported'])}",
                f"## The cost of its drafts of dev contexts\n\n{_table(result['dev_cost'])}",
                "## The cost of drafts of the contexts that it trains on\n\nSampled, mean over the last "
                f"{LAST} steps.\n\n{_table(result['training_cost'])}",
                self.longest(result),
            ]
        )


@dataclass(frozen=True)
class EditTeachersContextsTable(EditTeachersLongerTable):
    """The first three of these runs on more contexts."""

    title: ClassVar[str] = "StyleWorld: the true cost of edits on more contexts"
    systems: ClassVar[tuple[str, ...]] = ("writer", "majority", "sft", *RUNS[:3])
    runs: ClassVar[tuple[str, ...]] = ("sft", *RUNS[:3])
    curved: ClassVar[tuple[str, ...]] = RUNS[:3]
    about: ClassVar[str] = (
        "`sft`: the writer trained on the edited texts, for as many steps as [with 1,000 contexts]"
        "(edit_teachers_longer.md); `rloo_true`: RLOO with minus the true cost as the reward, likewise; `rloo_true_2`, "
        "`rloo_true_3`: as many more steps each, held by its KL to the policy that the one before exported."
    )


def _cost_while_trained(directory: Path) -> float:
    """What sampled drafts cost in the last steps of a run whose reward is minus the cost."""
    return -statistics.fmean(row["reward/total"] for row in list(read_jsonl(RunDirectory(directory).metrics))[-LAST:])


def _last(directory: Path) -> dict[str, float]:
    """What the last training step of a run on pairs says."""
    row = list(read_jsonl(RunDirectory(directory).metrics))[-1]
    return {name: row[name] for name in LIKELIHOODS}


def _table(rows: list[dict[str, Any]]) -> str:
    shown = [{key: cell(value) for key, value in row.items()} for row in rows]
    return markdown_table(shown, list(shown[0])).strip()
