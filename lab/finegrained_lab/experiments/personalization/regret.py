"""PAHF's statements about regret: what was measured of their policies, beside formulas and the paper's bounds.

Reads what the steps of the experiment wrote; simulates nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from finegrained_lab.experiments.results_table import ResultsTable, setting_of
from finegrained_lab.figures import Lines, band, draw_lines
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json
from finegrained_rlhf.text.tables import markdown_table

FINDINGS = """\
What the statements need, and do not all say:

- **Proposition 1, below.** That who is never corrected makes Ω(T) errors holds for who asks on no round that is
  taken to be unambiguous. `asks on every round` is never corrected and makes no error. The proof's own
  environment is not what its premise says: with the switch uniform over T rounds, the best guess in round t is
  wrong with probability min(t, T − t)/T, so that all but a share of about 2 ε₀ of the rounds are ambiguous by
  the paper's definition, where it supposes that none is. The count, ⌊T²/4⌋/T, is right: who knows the prior and
  learns nothing reaches it.
- **Proposition 1, above.** At most one error a switch needs an agent that is right before the first switch, and
  a correction that says all that has changed (A2 read so). Where a switch changes S situations and a correction
  speaks of one of them, there are up to S errors a switch, as many as situations are met.
- **Lemma 1, and proposition 2, above.** m⁻ᵏ is assumed (A1) and not derived, and balanced questions do not give
  it: of n equally likely actions they leave an error of 1 − mᵏ/n, until mᵏ = n. A1 holds for the geometric
  prior with r = 1/2, where the error is r^(mᵏ), far below the bound; and for the power law P(h ≥ mᵏ) = q m⁻ᵏ,
  where it is q m⁻ᵏ with q up to m/(m + 1): the rate m⁻ᵏ is reached, and cannot be improved by A1 alone.
- **Proposition 2, below.** γ belongs to the policy, not to the world: situations that come again stop being
  ambiguous for who is corrected. With the γ of one who never asks, Ω(γT) is wrong of one who is corrected; with
  their own it is right.

Theorem 1 joins both and needs the same. Its k = ⌈log_m T⌉ takes γ T ⌈log_m T⌉ questions, which regret does not
count."""
PANELS = {
    "proposition 1: one switch, by T": {
        "neither": ("one switch, T", "keeps its memory"),
        "post": ("one switch, T", "is corrected"),
    },
    "proposition 1: 8 situations, by K": {"post": ("8 situations, K", "is corrected")},
    "proposition 2: equally likely actions, by k": {"pre": ("uniform prior, m = 2, k", "asks")},
    "theorem 1: geometric prior, by T": {
        "pre": ("theorem 1, T", "pre"),
        "post": ("theorem 1, T", "post"),
        "both": ("theorem 1, T", "both"),
    },
}
"""Title of a panel → label → group and policy of a line."""


@dataclass(frozen=True)
class RegretTable(ResultsTable):
    """Every case of the statements: formula, bound, and what was measured with each seed."""

    title: ClassVar[str] = "PAHF's statements about regret, where regret can be computed"
    world: ClassVar[str] = "the world of regret"
    runs: ClassVar[tuple[str, ...]] = ()
    caption: ClassVar[str] = "Measured errors of the policies of four statements, and the paper's bounds"
    about: ClassVar[str] = (
        "Liang et al. 2026, section 3.3, state bounds on the expected number of errors. Here the policies of the "
        "statements are played in rounds where their expected errors can be computed. A round is ambiguous with "
        "probability γ, with a right action of its own from a known prior; or it is of one of S situations, whose "
        "preferred action each of K switches changes. Questions ask the digits of the right action to base m. The "
        "oracle makes no error, so that errors are regret. There is no language model here. `errors`: mean over the "
        "runs of all seeds; `se`: its standard error; `z`: (errors of a seed − formula) / standard error, or `exact` "
        "where every run has the formula's number; `bound`: the paper's, with the constants of its proof; `kept`: by "
        "what was measured, within 3 standard errors, or, where the bound is the formula, as a formula (`=`); `needs`: "
        "`more` where the case lacks what a statement needs."
    )

    def conditions(self, roots: Mapping[int, Path]) -> dict[str, Any]:
        """Runs of each case."""
        return {"settings": {"runs": setting_of(roots, "runs")}}

    def introduction(self, result: Mapping[str, Any]) -> str:
        """What was played, and how often."""
        return f"{self.about} {result['settings']['runs']} runs of each case with each seed."

    def measure(self, roots: Mapping[int, Path]) -> dict[str, Any]:
        """A row a case with the numbers of each seed, the curves of the figure, and how formulas and figures agree.

        Raises:
            DataError: the seeds have different cases or formulas, or a file is of another seed.
        """
        summaries = {}
        for seed, root in roots.items():
            file = root / "run" / "summary.json"
            summaries[seed] = read_json(file)
            if summaries[seed]["seed"] != seed:
                raise DataError(f"expected seed {seed}, got {summaries[seed]['seed']}", file=file, field="seed")
        same = ("statement", "group", "x", "policy", "formula", "side", "bound", "is_bound", "follows")
        first = [{name: case[name] for name in same} for case in next(iter(summaries.values()))["cases"]]
        rows: list[dict[str, Any]] = [{**case, "seeds": {}} for case in first]
        for seed, summary in summaries.items():
            if [{name: case[name] for name in same} for case in summary["cases"]] != first:
                raise DataError("the seeds have different cases", file=roots[seed] / "run" / "summary.json")
            for row, case in zip(rows, summary["cases"], strict=True):
                row["seeds"][str(seed)] = {
                    name: case[name] for name in ("errors", "error_se", "questions", "z", "agrees", "kept")
                }
        for row in rows:
            row |= _pooled(list(row["seeds"].values()))
        return {"rows": rows, "agreement": _agreement(rows)}

    def body(self, result: Mapping[str, Any]) -> str:
        """How formulas and figures agree, what the statements need, and every case."""
        tally = result["agreement"]
        verdict = (
            f"{tally['measured']} figures ({tally['cases']} cases, each with every seed): {tally['exact']} are the "
            f"formula's number in every run; of the {tally['random']} others {tally['beyond_2']} lie more than 2 "
            f"standard errors from it ({0.0455 * tally['random']:.1f} are expected of true formulas), the furthest "
            f"{tally['furthest']:.1f}. Of {tally['bounded']} cases with a bound and all that it needs, "
            f"{tally['bounded_kept']} keep it in every seed, {tally['is_bound']} of them as formulas, since the "
            f"formula is the bound; of {tally['outside']} that lack something, "
            f"{tally['outside_broken']} break it in every seed."
        )
        seeds = [str(seed) for seed in result["seeds"]]
        columns = ["case", "policy", "formula", "errors", "se", *(f"z, seed {seed}" for seed in seeds), "bound"]
        tables = [
            f"### {statement[0].upper()}{statement[1:]}\n\n"
            + markdown_table(
                [_shown(row, seeds) for row in result["rows"] if row["statement"] == statement],
                [*columns, "kept", "needs", "questions"],
            )
            for statement in dict.fromkeys(row["statement"] for row in result["rows"])
        ]
        return f"## As found\n\n{verdict}\n\n{FINDINGS}\n\n## Every case\n\n" + "\n".join(tables)

    def draw(self, result: Mapping[str, Any], path: Path) -> None:
        """Errors of some policies: mean and range over seeds, and the bounds of those that have one."""
        panels = []
        for title, lines in PANELS.items():
            bands, bounds = {}, dict[str, list[dict[int, float]]]()
            for label, (group, policy) in lines.items():
                rows = [row for row in result["rows"] if (row["group"], row["policy"]) == (group, policy)]
                seeds = [str(seed) for seed in result["seeds"]]
                bands[label] = band([{row["x"]: row["seeds"][seed]["errors"] for row in rows} for seed in seeds])
                side = {"≤": "bound from above", "≥": "bound from below", "": ""}[rows[0]["side"]]
                if side:
                    bounds[side] = [{row["x"]: row["bound"] for row in rows}]
            panels.append(Lines(title, "errors", bands=bands, runs=bounds))
        draw_lines(path, panels, x_label="")

    def took(self, result: Mapping[str, Any]) -> str:
        """That nothing is trained."""
        return "No model is trained or loaded; the cases of a seed take some seconds on a CPU core."


def _pooled(seeds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Mean over seeds of equally many runs, its standard error, and whether each seed keeps the bound."""
    kept = [one["kept"] for one in seeds]
    return {
        "errors": sum(one["errors"] for one in seeds) / len(seeds),
        "se": math.sqrt(sum(one["error_se"] ** 2 for one in seeds)) / len(seeds),
        "questions": sum(one["questions"] for one in seeds) / len(seeds),
        "kept": None if kept[0] is None else sum(kept),
    }


def _agreement(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    figures = [one for row in rows for one in row["seeds"].values()]
    scores = [abs(one["z"]) for one in figures if one["z"] is not None]
    exact = sum(one["agrees"] for one in figures if one["z"] is None)
    if exact + len(scores) < len(figures):
        raise DataError("a case whose runs are all alike does not have the formula's number")
    within = [row for row in rows if row["follows"] and row["kept"] is not None]
    outside = [row for row in rows if not row["follows"]]
    return {
        "cases": len(rows),
        "measured": len(figures),
        "exact": exact,
        "random": len(scores),
        "beyond_2": sum(score > 2 for score in scores),
        "furthest": max(scores),
        "bounded": len(within),
        "is_bound": sum(row["is_bound"] for row in within),
        "bounded_kept": sum(row["kept"] == len(row["seeds"]) for row in within),
        "outside": len(outside),
        "outside_broken": sum(row["kept"] == 0 for row in outside),
    }


def _shown(row: Mapping[str, Any], seeds: Sequence[str]) -> dict[str, Any]:
    scores = {f"z, seed {seed}": row["seeds"][seed]["z"] for seed in seeds}
    kept = "" if row["kept"] is None else "yes" if row["kept"] == len(seeds) else f"{row['kept']} of {len(seeds)}"
    return {
        **{name: row[name] for name in ("policy", "formula", "errors", "se", "questions")},
        "case": f"{row['group']} = {row['x']}",
        **{name: "exact" if score is None else f"{score:+.2f}" for name, score in scores.items()},
        "bound": "" if row["bound"] is None else f"{row['side']} {row['bound']:.1f}",
        "kept": "no" if row["kept"] == 0 else kept + " (=)" * row["is_bound"],
        "needs": "" if row["follows"] else "more",
    }
