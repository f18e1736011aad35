"""CIPHER whose preferences a small model chooses, on StyleWorld: what the user's edits cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from finegrained_lab.experiments.personalization.agent_runs import AgentRunsTable


@dataclass(frozen=True)
class ChosenPreferencesTable(AgentRunsTable):
    """CIPHER with one who chooses after the other; the directory of a run says who."""

    title: ClassVar[str] = "CIPHER whose preferences a small pretrained model chooses"
    stated_settings: ClassVar[tuple[str, ...]] = ("contexts", "shots", "model")
    systems: ClassVar[Mapping[str, tuple[str, str]]] = {
        "oracle": ("script", "oracle"),
        "no_learning": ("script", "no_learning"),
        **{kind: (kind, "cipher_5") for kind in ("script", "examples", "shuffled", "zero_shot", "chance")},
    }
    measures: ClassVar[tuple[str, ...]] = ("cost", "normalised", "untouched", "preference_accuracy")
    baselines: ClassVar[tuple[str, ...]] = ("chance", "shuffled")
    about: ClassVar[str] = (
        "{contexts} rounds of CIPHER with k = 5, a context each, of five sources in mixed order. What an edit shows "
        "is chosen among the five preferences that readers have: by {model} behind {shots} answered examples, by how "
        "far the edit raises an answer's log-probability (`examples`), behind the same with each other's answers "
        "(`shuffled`), behind a sentence alone (`zero_shot`), at random (`chance`), or by a script that reads the "
        "edit (`script`, the ceiling of who chooses). All else is scripted: the drafts, which follow the preference "
        "that they are given, how five preferences are combined, dimension by dimension, and the reader. `oracle` is "
        "told the true preference, `no_learning` learns none. `cost`: Levenshtein's distance of draft and edited text "
        "in words and marks, summed over rounds; `normalised`: over the longer text, mean; `untouched`: share of "
        "drafts that needed no edit; `preference_accuracy`: share of rounds whose preference is closer to the true "
        "one than to any other source's."
    )
