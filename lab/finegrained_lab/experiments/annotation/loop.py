"""Three rounds of answers, annotation, reward models and PPO on FactWorld.

Reads what the steps of the experiment wrote; runs no model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from finegrained_lab.experiments.compared_table import CurvesTable
from finegrained_lab.experiments.comparison import Claim, compared_page
from finegrained_rlhf.core.files import read_json
from finegrained_rlhf.text.tables import cell, markdown_table

ROUNDS = (1, 2, 3)
KINDS = ("relevance", "factuality", "completeness")
DIRECTORIES = {
    "sft": "sft",
    **{f"round_{number}": f"round_{number}/policy" for number in ROUNDS},
    **{f"restarted_{number}": f"restarted_{number}" for number in ROUNDS[1:]},
}
"""Systems, and where their evaluation lies."""
RATES = ("relevance_error_rate", "factual_error_rate", "completeness")
COLUMNS = (*RATES, "correct_share", "mean_words", "finished_share")
_ROUNDS = (
    "Agreement: share of the units that both people annotated alike. Accuracy of the reward models against the oracle, "
    "on the annotated policy's answers to the dev questions (`_f1`: of has error)."
)


@dataclass(frozen=True)
class FeedbackLoopTable(CurvesTable):
    """The policies of three rounds, how far their annotators agreed, and how right their reward models are."""

    title: ClassVar[str] = "FactWorld: three rounds of answers, annotation, reward models and PPO"
    world: ClassVar[str] = "FactWorld"
    runs: ClassVar[tuple[str, ...]] = tuple(path for name, path in DIRECTORIES.items() if name != "sft")
    curved: ClassVar[tuple[str, ...]] = runs
    validated: ClassVar[tuple[str, ...]] = ("score", "response_length")
    systems: ClassVar[tuple[str, ...]] = tuple(DIRECTORIES)
    baseline: ClassVar[str] = "sft"
    columns: ClassVar[tuple[str, ...]] = COLUMNS
    about: ClassVar[str] = (
        "True rates by the oracle, greedy answers to the test questions. `round_1`: the SFT policy's answers to "
        "{annotated} questions are annotated by two simulated people (noise {noise} each; {overlap:.0%} of the "
        "questions by both), adjudicated, learnt by three reward models, and PPO goes on from SFT. `round_2` and "
        "`round_3`: the same with the policy "
        "of the round before, whose answers are annotated, the reward models learning from all rounds so far, and PPO "
        "going on from that policy, which is its reference as well. `restarted_2` and `restarted_3`: the reward models "
        "of those rounds, with PPO from SFT again. All PPO runs have the settings of "
        "`experiment=factworld/fine_grained`, which were chosen for one round."
    )
    claims: ClassVar[tuple[Claim, ...]] = ()

    def measure(self, roots: Mapping[int, Path]) -> dict[str, Any]:
        """Rows and their differences, agreement and accuracy by round, curves and minutes."""
        return {
            **super().measure(roots),
            "rounds": [_round(root, seed, number) for seed, root in roots.items() for number in ROUNDS],
            **self.training(roots),
        }

    def row(self, root: Path, system: str, seed: int) -> dict[str, Any]:
        """True rates of a policy."""
        metrics = read_json(root / "evaluation" / f"{DIRECTORIES[system]}.json")
        return {"system": system, "seed": seed, **{name: metrics[name] for name in COLUMNS}}

    def body(self, result: Mapping[str, Any]) -> str:
        """Rounds, differences, every run, minutes."""
        rows = [{name: cell(value) for name, value in row.items()} for row in result["rounds"]]
        return "\n\n".join(
            [
                f"## People and reward models, round by round\n\n{_ROUNDS}\n\n"
                f"{markdown_table(rows, list(rows[0])).strip()}",
                _reached(result["rows"]),
                compared_page(result, self.columns, self.baseline).strip(),
                self.longest(result),
            ]
        )


def _round(root: Path, seed: int, number: int) -> dict[str, Any]:
    directory = root / f"round_{number}"
    labels = read_json(directory / "agreement.json")["labels"]
    row: dict[str, Any] = {"seed": seed, "round": number}
    row |= {f"agree_{unit}": values["percent"]["value"] for unit, values in labels.items()}
    for kind in KINDS:
        trust = read_json(directory / f"accuracy_{kind}.json")
        row[kind] = trust["accuracy"]
        if "f1" in trust:
            row[f"{kind}_f1"] = trust["f1"]
    return row


def _reached(rows: Sequence[Mapping[str, Any]]) -> str:
    """In how many seeds each system has fewer errors of both kinds, and gives more, than SFT and than round 1."""
    lines = []
    for reference in ("sft", "round_1"):
        before = {row["seed"]: row for row in rows if row["system"] == reference}
        for system in DIRECTORIES:
            if system in ("sft", reference):
                continue
            of_system = [row for row in rows if row["system"] == system]
            better = [all(_gain(name, row, before[row["seed"]]) > 0 for name in RATES) for row in of_system]
            verdict = f"{sum(better)} of {len(of_system)} seeds"
            lines.append({"system": system, "against": reference, "better in all three": verdict})
    return "## Better in all three rates\n\n" + markdown_table(lines, list(lines[0])).strip()


def _gain(name: str, row: Mapping[str, Any], before: Mapping[str, Any]) -> float:
    """How much better a rate is: of errors the fall, of completeness the rise."""
    rise: float = row[name] - before[name]
    return rise if name == "completeness" else -rise
