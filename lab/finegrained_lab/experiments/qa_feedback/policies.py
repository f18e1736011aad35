"""A pretrained policy on QA-FEEDBACK's questions: what reward models say that it was not optimised for.

Reads what the steps of the experiment wrote; runs no model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

from finegrained_lab.experiments.compared_table import ComparedTable
from finegrained_lab.experiments.gate import CUT_LEAD, GOLD, gate_page, judge_gate
from finegrained_lab.experiments.intervals import difference_interval
from finegrained_lab.experiments.qa_feedback.trivial import BEST_SENTENCE
from finegrained_lab.experiments.results_table import setting_of
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json, read_jsonl
from finegrained_rlhf.feedback.outputs import read_outputs
from finegrained_rlhf.metrics.functions import repeated_bigram_share, words_with_letters
from finegrained_rlhf.metrics.stress import read_stress
from finegrained_rlhf.text.tables import markdown_table

SFT, BEST_OF, PREFERENCE, FINE_GRAINED = "sft", "best_of", "preference_rlhf", "fine_grained_rlhf"
REWARDS = {
    "relevance": "reward/relevance/error_free_share",
    "factuality": "reward/factuality/error_free_share",
    "completeness": "reward/completeness/mean_score",
    "total": "reward/total",
}
"""What is shown of each set of reward models, by metric of the evaluation."""
WEIGHTS: Mapping[str, float] = {"relevance": 0.3, "factuality": 0.5, "completeness": 0.3}
"""Of `reward=fine_grained`."""
JUDGES = {"judge": "{}_judge", "own": "{}"}
"""Set of reward models → name of the evaluation by it: those of other folds, and those that training optimised."""
MEASURES = {"rouge_lsum": "rouge_lsum", "words": "mean_words", "tokens": "mean_tokens", "finished": "finished_share"}
REPEATS = "repeats"
_AGAINST = f"{FINE_GRAINED} less {PREFERENCE}"
SAMPLES = 4
"""Held-out questions whose answers the page shows."""

Measured = tuple[list[float], list[float]]
"""(found, of how many) of each question."""


@dataclass(frozen=True)
class RealPolicyTable(ComparedTable):
    """SFT, best of n, preference RLHF and fine-grained RLHF on a held-out fold of questions."""

    title: ClassVar[str] = "QA-FEEDBACK: a pretrained policy, judged by reward models that it was not optimised for"
    world: ClassVar[str] = "QA-FEEDBACK"
    runs: ClassVar[tuple[str, ...]] = (SFT, PREFERENCE, FINE_GRAINED)
    systems: ClassVar[tuple[str, ...]] = (SFT, BEST_OF, PREFERENCE, FINE_GRAINED)
    baseline: ClassVar[str] = SFT
    columns: ClassVar[tuple[str, ...]] = (
        *(f"{judge}_{name}" for judge in JUDGES for name in REWARDS),
        *MEASURES,
        REPEATS,
    )
    about: ClassVar[str] = (
        "SmolLM2-135M-Instruct on questions of the published dev file, real human feedback, greedy answers to a fifth "
        "of the questions that neither a policy nor a reward model has seen. `own_…`: reward models trained on two of "
        "the other four fifths, which training optimises (and by which `best_of` chooses); `judge_…`: the same kinds "
        "trained on the other two, which nothing optimises; where the first rise and the second do not, the reward was "
        "hacked. `relevance`, `factuality`: share of sub-sentences, of sentences, found free of error; `completeness`: "
        "mean score; `total`: the weighted sum of fine-grained RLHF. The judges are of the same kinds and count the "
        "same words: what fools both halves alike shows in neither, so read the answers, `finished` (the share that "
        "ended within the limit of tokens) and `repeats` (of an answer's pairs of neighbouring words, how many it has "
        "said before). `sft`: adapters trained on the gold answers of the other questions; `best_of`: the best of its "
        "samples by the own reward models; `preference_rlhf` has one reward an answer from the same half of the "
        "feedback."
    )

    def introduction(self, result: Mapping[str, Any]) -> str:
        """What was measured on what, and of what the judges were made where the results say it."""
        judge = ((result.get("configuration") or {}).get("settings") or {}).get("judge")
        made = f" Judges here: `{Path(judge['encoder']).name}`, `counts={judge['counts']}`." if judge else ""
        return super().introduction(result) + made

    def conditions(self, roots: Mapping[int, Path]) -> dict[str, Any]:
        """The budget, the forecast of the first seed, and how the questions were split."""
        first = next(iter(roots.values()))
        return {
            "budget": setting_of(roots, "budget"),
            "forecast": read_json(first / "forecast.json"),
            "split": read_json(first / "questions" / "split.json"),
        }

    def row(self, root: Path, system: str, seed: int) -> dict[str, Any]:
        """What both sets of reward models say of a system, and what its answers are like.

        Raises:
            DataError: an evaluation is missing or lacks a number.
        """
        row: dict[str, Any] = {"system": system, "seed": seed}
        for judge, name in JUDGES.items():
            path = root / "evaluation" / f"{name.format(system)}.json"
            measured = read_json(path)
            wanted = {f"{judge}_{key}": field for key, field in REWARDS.items()}
            for column, field in (wanted | (MEASURES if judge == "own" else {})).items():
                if field not in measured:
                    raise DataError("is not among what was measured", file=path, field=field)
                row[column] = measured[field]
        row[REPEATS] = fmean(_repeats([root], system))
        return row

    def measure(self, roots: Mapping[int, Path]) -> dict[str, Any]:
        """Rows, differences, their intervals over the questions of all seeds, and samples of the first seed."""
        table = self.compare(self.rows(roots))
        table["intervals"] = {
            system: intervals(list(roots.values()), system, self.baseline)
            for system in self.systems
            if system != self.baseline
        }
        table["against_preference"] = intervals(list(roots.values()), FINE_GRAINED, PREFERENCE)
        table["gate"] = gate_of(list(roots.values()))
        table["samples"] = samples(next(iter(roots.values())), self.systems)
        return table

    def body(self, result: Mapping[str, Any]) -> str:
        """Machine and budget, the rows, intervals over questions, samples."""
        machine, split, forecast = result["hardware"], result["split"], result["forecast"]
        where = ", ".join(machine["gpus"]) or f"{machine['processor']}, {machine['cores']} cores"
        worked = f", {forecast['processor_s']:.0f} s of a processor," if "processor_s" in forecast else ""
        counts = ", ".join(f"{name} {number}" for name, number in split.items())
        rows = [
            {
                "system": system,
                **{name: _with_borders(*interval) for name, interval in by.items()},
            }
            for system, by in (result["intervals"] | {_AGAINST: result["against_preference"]}).items()
        ]
        shown = "\n\n".join(
            f"**{sample['question']}**\n\n{markdown_table(sample['answers'], ['system', 'answer'])}".strip()
            for sample in result["samples"]
        )
        return (
            f"Budget `{result['budget']}` on {where}; a step took {forecast['step_s']:.0f} s{worked} when it was "
            f"measured. Questions and feedback records: {counts}.\n\n{gate_page(result['gate'])}\n"
            f"{super().body(result)}\n"
            f"## Difference from {self.baseline}, with 95% intervals over the held-out questions\n\n"
            f"{markdown_table(rows, ['system', *next(iter(result['intervals'].values()))])}\n"
            f"## Answers side by side\n\nThe first held-out questions, seed {result['seeds'][0]}.\n\n{shown}"
        )


def gate_of(roots: Sequence[Path]) -> dict[str, Any]:
    """Whether the judges count, by what they give gold answers, all systems and trivial answers of all seeds.

    Raises:
        DataError: an evaluation by them is missing.
    """
    names = (*RealPolicyTable.systems, GOLD, BEST_SENTENCE, CUT_LEAD)
    totals = {
        name: [
            sum(weight * row["rewards"][part]["sum"] for part, weight in WEIGHTS.items())
            for row in _questions(roots, JUDGES["judge"].format(name))
        ]
        for name in names
    }
    stress = read_stress(roots[0] / "judges")
    return judge_gate(totals, stress, "reward models trained on the other half of the feedback")


def intervals(roots: Sequence[Path], system: str, baseline: str) -> dict[str, list[float]]:
    """How far a system lies from the baseline in rewards, RougeLSum and repetition: difference and 95% borders.

    Questions are drawn again, both systems' answers to one together; those of all seeds are taken as questions of one
    set, so that the interval says nothing of how training varies.

    Raises:
        DataError: an evaluation is missing, or the two answered other questions.
    """
    by_label = {}
    for judge, name in JUDGES.items():
        of_system, of_baseline = (_questions(roots, name.format(which)) for which in (system, baseline))
        if [row["id"] for row in of_system] != [row["id"] for row in of_baseline]:
            raise DataError(f"{system} and {baseline} answered other questions", file=roots[0] / "evaluation")
        for column in (*(key for key in REWARDS if key != "total"), *(["rouge_lsum"] if judge == "own" else [])):
            pair = _measured(of_system, column), _measured(of_baseline, column)
            mean = sum(pair[0][0]) / sum(pair[0][1]) - sum(pair[1][0]) / sum(pair[1][1])
            label = column if column == "rouge_lsum" else f"{judge}_{column}"
            by_label[label] = [mean, *difference_interval(*pair)]
    repeats = [_repeats(roots, which) for which in (system, baseline)]
    ones = [1.0] * len(repeats[0])
    by_label[REPEATS] = [
        fmean(repeats[0]) - fmean(repeats[1]),
        *difference_interval((repeats[0], ones), (repeats[1], ones)),
    ]
    return by_label


def _repeats(roots: Sequence[Path], system: str) -> list[float]:
    """Of each answer the share of its pairs of neighbouring words that it has said before."""
    answers = (record for root in roots for record in read_outputs(root / "evaluation" / f"{system}.outputs.jsonl"))
    return [repeated_bigram_share(words_with_letters(record.outputs[0])) for record in answers]


def _with_borders(difference: float, low: float, high: float) -> str:
    return f"{difference:+.3f} [{low:+.3f}, {high:+.3f}]"


def _questions(roots: Sequence[Path], name: str) -> list[dict[str, Any]]:
    return [row for root in roots for row in read_jsonl(root / "evaluation" / f"{name}.questions.jsonl")]


def _measured(rows: Sequence[Mapping[str, Any]], column: str) -> Measured:
    if column == "rouge_lsum":
        return [row["rouge_lsum"] for row in rows], [1.0] * len(rows)
    rewards = [row["rewards"][column] for row in rows]
    if column == "completeness":
        return [reward["sum"] for reward in rewards], [1.0] * len(rows)
    return [reward["error_free"] for reward in rewards], [reward["segments"] for reward in rewards]


def samples(root: Path, systems: Sequence[str]) -> list[dict[str, Any]]:
    """The answers of all systems to the first held-out questions: `question`, `answers` (`system`, `answer`)."""
    answers = {system: read_outputs(root / "evaluation" / f"{system}.outputs.jsonl")[:SAMPLES] for system in systems}
    shown = []
    for place, record in enumerate(answers[systems[0]]):
        rows = [{"system": "gold", "answer": _line(record.references[0])}]
        rows += [{"system": system, "answer": _line(answers[system][place].outputs[0])} for system in systems]
        shown.append({"question": _line(record.question), "answers": rows})
    return shown


def _line(text: str) -> str:
    """A text in one line of a table."""
    return " ".join(text.split()).replace("|", r"\|")
