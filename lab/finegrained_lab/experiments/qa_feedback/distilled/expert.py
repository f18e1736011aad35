"""Expert iteration on real questions: three rounds of best of n distilled, by a reward and by chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from finegrained_lab.experiments.gate import SFT, gate_page, judge_gate
from finegrained_lab.experiments.qa_feedback.distilled.demo import answers_page
from finegrained_lab.experiments.qa_feedback.distilled.pool import (
    CHANCE,
    JUDGE,
    MEASURES,
    PARTS,
    TOTAL,
    Pooled,
    curves,
    pool_of,
    totals_of_known,
)
from finegrained_lab.experiments.qa_feedback.distilled.systems import (
    Systems,
    differences,
    differences_page,
    means,
    sampled_systems,
    trivial_systems,
)
from finegrained_lab.experiments.qa_feedback.measures import Measured
from finegrained_lab.experiments.results_table import Results
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json, write_text
from finegrained_rlhf.core.markers import Seed
from finegrained_rlhf.feedback.outputs import read_outputs
from finegrained_rlhf.text.tables import markdown_table

T = TypeVar("T")
START, SAMPLES, LAST = "start", "sft.jsonl", "round_3.jsonl"
_COLUMNS = (JUDGE, TOTAL, *MEASURES)
_JUDGE = "a bottleneck on all-mpnet-base-v2, its total by the head of preferences; `sft` is the mean of the samples"
_UP, _DOWN, _FINISHED = ("facts/recalled", JUDGE), "facts/unsupported", "finished"


@dataclass(frozen=True)
class ExpertIterationTable(Results):
    """Every arm of `pipeline=qa_feedback/expert_iteration` in every fold that has it, beside SFT, gold and copies.

    Attributes:
        directory: of the folds. A `fold_K` has `start`, with `sft.jsonl`, `reward_model` and `judge`, and by arm a
            directory with `round_3.jsonl`.
        arms: in the page's order; one that a fold lacks is left out of the table.
        answers: HTML page of the first fold's answers before and after, by the first arm.
        shown: questions on that page.
        seed: of the choice by chance in the pool.
    """

    title: ClassVar[str] = "Real questions: three rounds of learning from the best of own samples"
    about: ClassVar[str] = (
        "SmolLM2-135M after SFT on gold answers (`sft`); then three rounds: training questions are answered, a sample "
        "of each is chosen, and the policy is trained on these. Arms: what chooses. `bottleneck`: a reward that learnt "
        "from people's marks; `chance`: any finished sample, the control of equal samples and steps. Rows are means "
        "over the samples of held-out questions; `…, best of n`: what the reward likes best of n. `judge` is another "
        "encoder's bottleneck, which learnt from feedback on other questions without planted changes; `bottleneck` the "
        "reward itself, no judge of what was trained on it; the other columns need none (`measures.md`). `gold`: the "
        "human answer, `cut_gold` its first 30 words, `cut_lead` the first 35 words of the first passage, "
        "`best_sentence` the passage sentence nearest to the question."
    )

    directory: str
    arms: Sequence[str]
    answers: str
    shown: int = 20
    seed: Seed = 0

    def run(self) -> dict[str, Any]:
        """Measure what is there, write results, page and answers.

        Raises:
            DataError: no arm is there in every fold that was begun, or one answered other questions.
            ModelError: a fold has no reward model, or no judge.
        """
        folds = sorted(place.parent.parent for place in Path(self.directory).glob(f"fold_*/{START}/{SAMPLES}"))
        arms = [arm for arm in self.arms if folds and all((fold / arm / LAST).is_file() for fold in folds)]
        if not arms:
            raise DataError("no arm has answered the questions of every fold that was begun", file=self.directory)
        pool, given, sampled, trivial = self._folds(folds, arms)
        rows = sampled | trivial
        compared = [(name, SFT) for name in sampled if name != SFT]
        if CHANCE in arms:
            compared += [(arm, CHANCE) for arm in arms if arm != CHANCE]
        return self.write(
            {
                **self.made_by(),
                "folds": [fold.name for fold in folds],
                "questions": len(pool),
                "rows": [{"system": name, **means(of, _COLUMNS)} for name, of in rows.items()],
                "differences": [
                    {"system": f"{name} − {base}", **differences(rows[name], rows[base], _COLUMNS)}
                    for name, base in compared
                ],
                "goals": [goal for arm in arms if arm != CHANCE for goal in goals(arm, sampled)],
                "curves": curves(pool, [n for n in (1, 2, 4, 8, 16, 32, 64) if n <= len(pool[0].measures)]),
                "gate": judge_gate(given, self._stress(folds), _JUDGE, PARTS),
            }
        )

    def _folds(
        self, folds: Sequence[Path], arms: Sequence[str]
    ) -> tuple[list[Pooled], dict[str, list[float]], Systems, Systems]:
        """SFT's samples of all folds; what their judges give known answers; the systems, question by question."""
        from reward_models.bottleneck.model import load_bottleneck

        pool: list[Pooled] = []
        given: dict[str, list[float]] = {}
        sampled: Systems = {}
        trivial: Systems = {}
        for fold in folds:
            model, judge = (load_bottleneck(str(fold / START / name)) for name in ("reward_model", JUDGE))
            records = {SFT: read_outputs(fold / START / SAMPLES)}
            records |= {arm: read_outputs(fold / arm / LAST) for arm in arms}
            for arm in arms:
                if [one.id for one in records[arm]] != [one.id for one in records[SFT]]:
                    raise DataError("expected answers to SFT's questions in the same order", file=fold / arm / LAST)
            if not pool:
                before, after = records[SFT][: self.shown], records[arms[0]][: self.shown]
                write_text(Path(self.answers), answers_page(model, before, after))
            pools = {name: pool_of(model, of, self.seed, judge) for name, of in records.items()}
            _extend(given, totals_of_known(judge, pools[SFT], JUDGE))
            _extend(sampled, sampled_systems(pools, _COLUMNS, (4,)))
            _extend(trivial, trivial_systems({TOTAL: model, JUDGE: judge}, pools[SFT]))
            pool += pools[SFT]
        return pool, given, sampled, trivial

    def _stress(self, folds: Sequence[Path]) -> dict[str, Any] | None:
        """The report of the judge's stress test; None where there is more than one fold, or no report."""
        place = folds[0] / START / JUDGE / "stress.json"
        return read_json(place) if len(folds) == 1 and place.is_file() else None

    def page(self, result: Mapping[str, Any]) -> str:
        """The rows, differences, goals, whether the judge counts, and the best of n by every reward."""
        reached = [{**goal, "reached": "yes" if goal["reached"] else "no"} for goal in result["goals"]]
        parts = [
            self.opening(result, self.title, self.about),
            f"{result['questions']} held-out questions ({', '.join(result['folds'])}), one seed of training: nothing "
            "is known of the spread between runs.",
            markdown_table(result["rows"], ["system", *_COLUMNS]),
            "## Differences, with 95% intervals over questions",
            differences_page(result["differences"], _COLUMNS),
            "## What had to be reached",
            markdown_table(reached, ["system", "goal", "value", "wanted", "reached"]),
            gate_page(result["gate"]),
            "## Best of n of SFT's samples\n\nIn expectation over all subsets of n samples, by what chooses; `gold "
            "recall` is a bound that no reward knows, `itself` the reward that chooses. Where `itself` rises and the "
            "others do not, the reward is bought.",
            markdown_table(result["curves"], ["reward", "n", "itself", *MEASURES]),
        ]
        return "\n\n".join(part.strip() for part in parts) + "\n"


def _extend(whole: dict[str, list[T]], part: Mapping[str, list[T]]) -> None:
    for name, of in part.items():
        whole.setdefault(name, []).extend(of)


def goals(arm: str, systems: Mapping[str, Sequence[Measured]]) -> list[dict[str, Any]]:
    """What an arm had to reach: half of what best of n gains, and answers no worse grounded, finished, not copied."""
    most = max((name for name in systems if name.startswith(f"{SFT}, ")), key=lambda name: int(name.split()[-1]))
    before, after, best = (means(systems[name], _COLUMNS) for name in (SFT, arm, most))
    wanted = [(f"{column}: half of the gain of {most}", column, _half(before, best, column), 1) for column in _UP]
    wanted += [
        ("no more names and numbers that no passage has", _DOWN, before[_DOWN], -1),
        ("finished", _FINISHED, 0.9, 1),
        ("copied no more than SFT + .05", "copied/share", (before["copied/share"] or 0.0) + 0.05, -1),
    ]
    rows = []
    for goal, column, border, sign in wanted:
        value = after[column]
        known = value is not None and border is not None
        reached = known and sign * (value - border) >= 0  # type: ignore[operator]
        rows.append({"system": arm, "goal": goal, "value": value, "wanted": border, "reached": reached})
    return rows


def _half(before: Mapping[str, float | None], best: Mapping[str, float | None], column: str) -> float | None:
    first, last = before[column], best[column]
    return None if first is None or last is None else first + (last - first) / 2
