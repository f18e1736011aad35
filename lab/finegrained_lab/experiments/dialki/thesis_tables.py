"""Tables 3.1 to 3.3 and 3.6 of the thesis from Doc2Dial and Wizard of Wikipedia: DIALKI's parts and its baselines.

Reads what the steps of the experiments wrote; runs no model and measures nothing itself.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from finegrained_lab.experiments.compared_table import ComparedTable
from finegrained_lab.experiments.comparison import Claim
from finegrained_lab.experiments.dialki.dialogue_world import ADVERSARIAL, ALL, CONTEXT, HISTORY, NEXT, SCORES
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json

BERTQA, SPAN, MULTI = "bertqa", "bertqa_span", "multi_sentence"
NO_HISTORY, NO_CONTEXT = "no_history", "no_context"
DIALKI_ROWS = (NEXT, HISTORY, CONTEXT, ADVERSARIAL, ALL, NO_HISTORY, NO_CONTEXT)
GROUPS = {"all": "", "seen": "seen_", "unseen": "unseen_"}
"""Groups of an evaluation, and what their columns begin with."""
SPLITS = {"random_split": "seen_", "topic_split": "unseen_"}
"""Splits of Wizard of Wikipedia: topics that occur in training, and topics that do not."""
_ROWS = (
    "`multi_sentence`: the same BERT reads sentence by sentence, with the next loss alone. The others are DIALKI: "
    "`next_only` has the loss of the next turn alone; `history` adds the history loss, `context` knowledge "
    "contextualization to both (everything but regularization); `adversarial` adds posterior regularization to the "
    "next loss; `all` has everything; `no_history` and `no_context` lack the history loss and the contextualization. "
    "Regularized runs read fewer passages of a dialogue in training, as in the thesis (3.3.2)."
)


@dataclass(frozen=True)
class ThesisTable(ComparedTable):
    """Exact match, F1 and passage accuracy over all, seen and unseen documents or topics, of dev and test parts."""

    baseline: ClassVar[str] = NEXT
    needed: ClassVar[tuple[str, ...]]
    """Parts that must be evaluated."""

    @abstractmethod
    def found(self, groups: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
        """A row's numbers from the groups of its evaluations, by the part that was evaluated."""

    def row(self, root: Path, system: str, seed: int) -> dict[str, Any]:
        """What the evaluations of a run say of the parts that the experiment names.

        Raises:
            DataError: an evaluation, or a part that the table needs, is missing.
        """
        parts = read_json(root / "experiment.json")["settings"]["parts"]
        if not set(self.needed) <= set(parts):
            wanted = f"expected {', '.join(self.needed)}, got {', '.join(parts)}"
            raise DataError(wanted, file=root / "experiment.json", field="settings.parts")
        groups = {part: read_json(_evaluation_path(root, system, part))["groups"] for part in parts}
        return {"system": system, "seed": seed, **self.found(groups)}

    def shown_columns(self, rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
        """The columns that every row has: test parts and groups may be missing."""
        return tuple(name for name in self.columns if all(name in row for row in rows))


def _evaluation_path(root: Path, system: str, part: str) -> Path:
    """The results file of a run's evaluation on a part."""
    return root / "evaluation" / f"{system}_{part}" / "evaluation.json"


def columns_of(groups: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """The scores of all, seen and unseen dialogues that an evaluation has, as columns of a row."""
    return {
        f"{of_group}{name}": groups[group][name]
        for group, of_group in GROUPS.items()
        if group in groups
        for name in SCORES
    }


def weighted_scores(groups: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The scores of several evaluations as of one: means weighted by their numbers of dialogues.

    Raises:
        DataError: they have no dialogue.
    """
    total = sum(group["examples"] for group in groups)
    if not total:
        raise DataError("the evaluations have no dialogue", field="groups")
    return {name: sum(group["examples"] * group[name] for group in groups) / total for name in SCORES}


def _claims(thesis: Mapping[str, tuple[float, float]]) -> tuple[Claim, ...]:
    """The statements on DIALKI's parts, with the numbers that the thesis prints of a data set."""
    of = {
        "the history loss adds to the next loss": (HISTORY, NEXT, "exact_match", "table 3.3"),
        "regularization adds to the next loss": (ADVERSARIAL, NEXT, "exact_match", "table 3.3"),
        "everything is better than the next loss": (ALL, NEXT, "exact_match", "table 3.3"),
        "… than without regularization": (ALL, CONTEXT, "exact_match", "table 3.3"),
        "… in what is unseen too": (ALL, NEXT, "unseen_exact_match", "table 3.3"),
        "passages are better than sentences": (NEXT, MULTI, "exact_match", "table 3.3"),
        "everything finds the passage more often": (ALL, NEXT, "seen_passage_accuracy", "table 3.6"),
        "… where it is unseen too": (ALL, NEXT, "unseen_passage_accuracy", "table 3.6"),
    }
    return tuple(
        Claim(text, source, column, left, ">", right, thesis[text])
        for text, (left, right, column, source) in of.items()
    )


@dataclass(frozen=True)
class Doc2DialTable(ThesisTable):
    """Doc2Dial: dev with documents seen in training and unseen ones, and the test part where there is one."""

    title: ClassVar[str] = "Doc2Dial: DIALKI, its parts and its baselines (tables 3.1, 3.3 and 3.6)"
    about: ClassVar[str] = (
        "Exact match, F1 (SQuAD's, against the shared task's reference) and passage accuracy on the validation "
        "dialogues; `seen_…`, `unseen_…`: about documents with and without a training dialogue; `test_…`: on the test "
        "part. `bertqa`: BERTQA-Token, which reads the document as one string in windows and finds tokens; "
        "`bertqa_span`: BERTQA-Span, which reads it in one input of 2,048 tokens and finds spans. "
        f"{_ROWS}"
    )
    world: ClassVar[str] = "Doc2Dial"
    needed: ClassVar[tuple[str, ...]] = ("validation",)
    runs: ClassVar[tuple[str, ...]] = (BERTQA, SPAN, MULTI, *DIALKI_ROWS)
    systems: ClassVar[tuple[str, ...]] = (BERTQA, SPAN, MULTI, *DIALKI_ROWS)
    columns: ClassVar[tuple[str, ...]] = (
        *(f"{group}{name}" for group in GROUPS.values() for name in SCORES),
        *(f"test_{name}" for name in SCORES),
    )
    claims: ClassVar[tuple[Claim, ...]] = (
        *_claims(
            {
                "the history loss adds to the next loss": (0.630, 0.604),
                "regularization adds to the next loss": (0.644, 0.604),
                "everything is better than the next loss": (0.659, 0.604),
                "… than without regularization": (0.659, 0.638),
                "… in what is unseen too": (0.644, 0.571),
                "passages are better than sentences": (0.604, 0.595),
                "everything finds the passage more often": (0.885, 0.866),
                "… where it is unseen too": (0.875, 0.844),
            }
        ),
        Claim("contextualization adds to both", "table 3.3", "exact_match", CONTEXT, ">", HISTORY, (0.638, 0.630)),
        Claim("spans are better than tokens", "table 3.3", "exact_match", SPAN, ">", BERTQA, (0.463, 0.422)),
        Claim("sentences are better than a string", "table 3.3", "exact_match", MULTI, ">", SPAN, (0.595, 0.463)),
        Claim("sentences are better than windows", "table 3.3", "exact_match", MULTI, ">", BERTQA, (0.595, 0.422)),
    )

    def found(self, groups: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
        """Dev by group, the test part as a whole."""
        row = columns_of(groups["validation"])
        return row | ({f"test_{name}": groups["test"]["all"][name] for name in SCORES} if "test" in groups else {})


@dataclass(frozen=True)
class WowTable(ThesisTable):
    """Wizard of Wikipedia: dev and test, each with topics seen in training and unseen ones."""

    title: ClassVar[str] = "Wizard of Wikipedia: DIALKI, its parts and a baseline (tables 3.2, 3.3 and 3.6)"
    about: ClassVar[str] = (
        "Exact match, F1 and passage accuracy of the sentence behind a wizard's turn, on both validation parts; "
        "`seen_…`, `unseen_…`: on topics of the random and of the topic split; `test_…`: the same of the test parts. "
        f"{_ROWS} The thesis's other systems of table 3.2 are the numbers of their papers and have no row."
    )
    world: ClassVar[str] = "Wizard of Wikipedia"
    needed: ClassVar[tuple[str, ...]] = tuple(f"{part}_{split}" for part in ("valid", "test") for split in SPLITS)
    runs: ClassVar[tuple[str, ...]] = (MULTI, *DIALKI_ROWS)
    systems: ClassVar[tuple[str, ...]] = (MULTI, *DIALKI_ROWS)
    columns: ClassVar[tuple[str, ...]] = (
        *(f"{group}{name}" for group in GROUPS.values() for name in SCORES),
        *(f"test_{group}{name}" for group in SPLITS.values() for name in SCORES),
    )
    claims: ClassVar[tuple[Claim, ...]] = (
        *_claims(
            {
                "the history loss adds to the next loss": (0.336, 0.315),
                "regularization adds to the next loss": (0.329, 0.315),
                "everything is better than the next loss": (0.342, 0.315),
                "… than without regularization": (0.342, 0.336),
                "… in what is unseen too": (0.326, 0.298),
                "passages are better than sentences": (0.315, 0.292),
                "everything finds the passage more often": (0.734, 0.729),
                "… where it is unseen too": (0.697, 0.690),
            }
        ),
        Claim(
            "DIALKI beats sentences on seen topics",
            "table 3.2",
            "test_seen_exact_match",
            ALL,
            ">",
            MULTI,
            (0.329, 0.304),
        ),
        Claim("… and on unseen ones", "table 3.2", "test_unseen_exact_match", ALL, ">", MULTI, (0.355, 0.276)),
    )

    def found(self, groups: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
        """Dev as a whole and by split, test by split."""
        row = weighted_scores([groups[f"valid_{split}"]["all"] for split in SPLITS])
        for part, prefix in (("valid", ""), ("test", "test_")):
            for split, of_split in SPLITS.items():
                row |= {f"{prefix}{of_split}{name}": groups[f"{part}_{split}"]["all"][name] for name in SCORES}
        return row
