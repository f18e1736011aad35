"""Expert iteration on real questions: three rounds of best of n distilled, by a reward and by chance."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

from finegrained_lab.experiments.comparison import spread_heading, spread_table
from finegrained_lab.experiments.gate import SFT, gate_page, judge_gate
from finegrained_lab.experiments.qa_feedback.distilled.demo import answers_page
from finegrained_lab.experiments.qa_feedback.distilled.pool import (
    CHANCE,
    COLUMNS,
    JUDGE,
    JUDGED_BY,
    MEASURES,
    PARTS,
    RECALLED,
    TOTAL,
    UNSUPPORTED,
    Pooled,
    curves,
    pool_of,
    preferred_by,
    totals_of_known,
)
from finegrained_lab.experiments.qa_feedback.distilled.systems import (
    Systems,
    differences_over_seeds,
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
from finegrained_rlhf.text.tables import markdown_table, summarise_rows

START, SAMPLES, WIDE, LAST, PREFERRED = "start", "sft.jsonl", "wide.jsonl", "round_3.jsonl", "preference_model"
_UP, _FINISHED = (RECALLED, JUDGE), "finished"


@dataclass
class _OfSeed:
    """What was measured of one seed, question by question.

    Attributes:
        pool: SFT's samples of all folds.
        wide: more of them, of the folds that have them.
        given: what the folds' judges give known answers.
        sampled: the systems that answered, and the best of n of their samples.
        trivial: gold answers and copies.
    """

    pool: list[Pooled] = field(default_factory=list)
    wide: list[Pooled] = field(default_factory=list)
    given: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    sampled: Systems = field(default_factory=lambda: defaultdict(list))
    trivial: Systems = field(default_factory=lambda: defaultdict(list))

    @property
    def systems(self) -> Systems:
        """All of them, in the order of the page."""
        return {**self.sampled, **self.trivial}


@dataclass(frozen=True)
class ExpertIterationTable(Results):
    """Every arm of `pipeline=qa_feedback/expert_iteration` in every seed and fold, beside SFT, gold and copies.

    Attributes:
        directory: of the seeds. A `seed_N/fold_K` has `start`, with `sft.jsonl`, `reward_model`, `judge` and, if any,
            `preference_model` and `wide.jsonl` (more samples, for the best of n), and by arm a directory with
            `round_3.jsonl`.
        arms: in the page's order; one that a seed or fold lacks is left out of the table.
        answers: HTML page of the first seed's and fold's answers before and after, by the first arm.
        shown: questions on that page.
        seed: of the choice by chance in the pool.
    """

    title: ClassVar[str] = "Real questions: three rounds of learning from the best of own samples"
    about: ClassVar[str] = (
        "SmolLM2-135M after SFT on gold answers (`sft`); then three rounds: training questions are answered, a sample "
        "of each is chosen, and the policy is trained on these. Arms: what chooses. `bottleneck`: a reward that learnt "
        "from people's marks; `completeness`: that part of it alone; `preference`: a model that learnt from the same "
        "people's preferences among whole answers; `chance`: any finished sample, the control of equal samples and "
        "steps. Rows are means "
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
            DataError: no arm is there in every seed and fold that was begun, one answered other questions, or the seeds
                have other folds.
            ModelError: a fold has no reward model, or no judge.
        """
        places = _places(Path(self.directory))
        every = [fold for folds in places.values() for fold in folds]
        arms = [arm for arm in self.arms if every and all((fold / arm / LAST).is_file() for fold in every)]
        if not arms:
            raise DataError("no arm has answered the questions of every fold that was begun", file=self.directory)
        of_seed = {seed: self._seed(folds, arms) for seed, folds in places.items()}
        first = next(iter(of_seed.values()))
        if any([one.record.id for one in of.pool] != [one.record.id for one in first.pool] for of in of_seed.values()):
            raise DataError("expected answers to the same questions from every seed", file=self.directory)
        write_text(Path(self.answers), self._answers(every[0], arms[0]))
        compared = [(name, SFT) for name in first.sampled if name != SFT]
        if CHANCE in arms:
            compared += [(arm, CHANCE) for arm in arms if arm != CHANCE]
        pool = [one for measured in of_seed.values() for one in measured.wide or measured.pool]
        most = min(len(one.measures) for one in pool)
        return self.write(
            {
                **self.made_by(),
                "seeds": list(of_seed),
                "folds": [fold.name for fold in next(iter(places.values()))],
                "questions": len(first.pool),
                "rows": [
                    {"system": name, "seed": seed, **means(measured.systems[name], COLUMNS)}
                    for name in first.systems
                    for seed, measured in of_seed.items()
                ],
                "differences": [
                    {"system": f"{name} − {base}", **differences_over_seeds(*_both(of_seed, name, base), COLUMNS)}
                    for name, base in compared
                ],
                "goals": [
                    {"seed": seed, **goal}
                    for arm in arms
                    if arm != CHANCE
                    for seed, measured in of_seed.items()
                    for goal in goals(arm, measured.sampled)
                ],
                "curves": curves(pool, [n for n in (1, 2, 4, 8, 16, 32, 64) if n <= most]),
                "curves_of": {"questions": len(pool), "samples": most},
                "gate": judge_gate(_mean_over_seeds(of_seed), self._stress(every), JUDGED_BY, PARTS),
            }
        )

    def _answers(self, fold: Path, arm: str) -> str:
        from reward_models.bottleneck.model import load_bottleneck

        before, after = (read_outputs(fold / name)[: self.shown] for name in (f"{START}/{SAMPLES}", f"{arm}/{LAST}"))
        return answers_page(load_bottleneck(str(fold / START / "reward_model")), before, after)

    def _seed(self, folds: Sequence[Path], arms: Sequence[str]) -> _OfSeed:
        """The folds of a seed, one behind the other."""
        from reward_models.bottleneck.model import load_bottleneck

        whole = _OfSeed()
        for fold in folds:
            model, judge = (load_bottleneck(str(fold / START / name)) for name in ("reward_model", JUDGE))
            records = {SFT: read_outputs(fold / START / SAMPLES)}
            records |= {arm: read_outputs(fold / arm / LAST) for arm in arms}
            for arm in arms:
                if [one.id for one in records[arm]] != [one.id for one in records[SFT]]:
                    raise DataError("expected answers to SFT's questions in the same order", file=fold / arm / LAST)
            preferred = preferred_by(str(path)) if (path := fold / START / PREFERRED).is_dir() else None
            pools = {name: pool_of(model, of, self.seed, judge, preferred) for name, of in records.items()}
            for name, given in totals_of_known(judge, pools[SFT], JUDGE).items():
                whole.given[name] += given
            for name, rows in sampled_systems(pools, COLUMNS, (4,)).items():
                whole.sampled[name] += rows
            for name, rows in trivial_systems({TOTAL: model, JUDGE: judge}, pools[SFT]).items():
                whole.trivial[name] += rows
            whole.pool += pools[SFT]
            if (wide := fold / START / WIDE).is_file():
                whole.wide += pool_of(model, read_outputs(wide), self.seed, judge, preferred)
        return whole

    def _stress(self, every: Sequence[Path]) -> dict[str, Any] | None:
        """The report of the judge's stress test; None where there is more than one judge, or no report."""
        place = every[0] / START / JUDGE / "stress.json"
        return read_json(place) if len(every) == 1 and place.is_file() else None

    def page(self, result: Mapping[str, Any]) -> str:
        """The rows, differences, goals, whether the judge counts, and the best of n by every reward."""
        reached = [{**goal, "reached": "yes" if goal["reached"] else "no"} for goal in result["goals"]]
        seeds: list[int] = result.get("seeds") or [result["configuration"]["seed"]]  # results of before name none
        parts = [
            self.opening(result, self.title, self.about),
            f"{result['questions']} held-out questions ({', '.join(result['folds'])}), {_training(seeds)}.",
            _rows_page(result["rows"], seeds),
            f"## Differences, with 95% intervals over questions{' and seeds' if len(seeds) > 1 else ''}",
            differences_page(result["differences"], COLUMNS),
            "## What had to be reached",
            markdown_table(reached, [*_named(result["goals"]), "goal", "value", "wanted", "reached"]),
            gate_page(result["gate"]),
            "## Best of n of SFT's samples\n\n"
            f"{_pooled(result)}In expectation over all subsets of n samples, by what chooses; `gold "
            "recall` is a bound that no reward knows, `itself` the reward that chooses. `facts/unsupported` is that "
            "of the best of the samples that state a name or number at all. Where `itself` rises and the others do "
            "not, the reward is bought.",
            markdown_table(result["curves"], ["reward", "n", "itself", *MEASURES]),
        ]
        return "\n\n".join(part.strip() for part in parts) + "\n"


def _places(directory: Path) -> dict[int, list[Path]]:
    """By seed its folds that were begun.

    Raises:
        DataError: two seeds have other folds.
    """
    places: dict[int, list[Path]] = defaultdict(list)
    for begun in sorted(directory.glob(f"seed_*/fold_*/{START}/{SAMPLES}")):
        places[int(begun.parents[2].name.removeprefix("seed_"))].append(begun.parents[1])
    names = {seed: [fold.name for fold in folds] for seed, folds in sorted(places.items())}
    for seed, folds in names.items():
        if folds != (wanted := next(iter(names.values()))):
            raise DataError(f"expected {', '.join(wanted)} of seed {seed} as of {next(iter(names))}", file=directory)
    return {seed: places[seed] for seed in names}


def _both(of_seed: Mapping[int, _OfSeed], *names: str) -> tuple[dict[int, list[Measured]], dict[int, list[Measured]]]:
    ours, theirs = ({seed: measured.systems[name] for seed, measured in of_seed.items()} for name in names)
    return ours, theirs


def _mean_over_seeds(of_seed: Mapping[int, _OfSeed]) -> dict[str, list[float]]:
    """What the judges of all seeds give each question's known answers: one number a question, as the gate draws it."""
    names = next(iter(of_seed.values())).given
    return {
        name: [fmean(values) for values in zip(*(one.given[name] for one in of_seed.values()), strict=True)]
        for name in names
    }


def _training(seeds: Sequence[int]) -> str:
    if len(seeds) == 1:
        return f"one seed of training ({seeds[0]}): nothing is known of the spread between runs"
    return f"seeds {', '.join(map(str, seeds))} of training"


def _pooled(result: Mapping[str, Any]) -> str:
    of = result.get("curves_of")  # results of before do not say
    return f"{of['samples']} samples of each of {of['questions']} questions. " if of else ""


def _named(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return [name for name in ("system", "seed") if not rows or name in rows[0]]


def _rows_page(rows: Sequence[Mapping[str, Any]], seeds: Sequence[int]) -> str:
    """Of several seeds their spread, then every run."""
    every = markdown_table(rows, [*_named(rows), *COLUMNS])
    if len(seeds) == 1:
        return every
    systems = dict.fromkeys(row["system"] for row in rows)
    summary = {}
    for name in systems:
        of = [row for row in rows if row["system"] == name]
        summary[name] = summarise_rows(of, [c for c in COLUMNS if all(row[c] is not None for row in of)])
    spread = spread_table(summary, "system", COLUMNS, seeds)
    return f"## {spread_heading(seeds)}\n\n{spread}\n## Every run\n\n{every}"


def goals(arm: str, systems: Mapping[str, Sequence[Measured]]) -> list[dict[str, Any]]:
    """What an arm had to reach: half of what best of n gains, and answers no worse grounded, finished, not copied."""
    most = max((name for name in systems if name.startswith(f"{SFT}, ")), key=lambda name: int(name.split()[-1]))
    before, after, best = (means(systems[name], COLUMNS) for name in (SFT, arm, most))
    wanted = [(f"{column}: half of the gain of {most}", column, _half(before, best, column), 1) for column in _UP]
    wanted += [
        ("no more names and numbers that no passage has", UNSUPPORTED, before[UNSUPPORTED], -1),
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
