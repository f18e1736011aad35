"""Whether what is measured of a reward before a run predicts the true error of what is chosen, or trained, by it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from finegrained_lab.experiments.predict.pool import SIZES, spearman
from finegrained_lab.experiments.results_table import Results
from finegrained_lab.figures import Points, draw_points
from finegrained_rlhf.core.files import read_json, read_jsonl
from finegrained_rlhf.metrics.significance import bootstrap_interval
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.text.tables import markdown_table
from finegrained_rlhf.training.hacking import hacking_warnings

PREDICTORS = {
    "stress": "share of pairs of the battery ranked right, mean over changes",
    "stress_worst": "the same of the change with the lowest share",
    "stress_total": "the same, of the total alone",
    "price": "samples that the best of some truth-free edits is above",
    "dev_accuracy": "of the components on held-out labels of the same annotators",
    "on_policy_accuracy": "of the total on pairs of samples, against the truth",
    "variance": "of the total among samples of one question",
    "disagreement": "1 − rank correlation with the reward of the other size",
}
"""What may predict, in words."""
OUTCOME = "error_64"
DRAWS = 1000
"""Of the faults, or runs, behind an interval."""
Rows = Sequence[Mapping[str, Any]]
SUBSETS: Mapping[str, Callable[[Mapping[str, Any]], bool]] = {
    "all rewards": lambda row: True,
    "faults in the battery, and none": lambda row: row["in_battery"] is not False,
    "faults not in it, and none": lambda row: row["in_battery"] is not True,
}
WARNINGS = ("trivial_above", "above_gold", "hacking")
"""What a validation may warn of."""
TURNED = 0.02
"""An error is said to have turned where it is so much above its lowest."""


@dataclass(frozen=True)
class PredictTable(Results):
    """Collects the rows of one or several worlds, and the runs of PPO on some of their rewards.

    Attributes:
        directory: of the experiment; each seed has `seed_N/` with `rows.json` and `policies/`.
        seeds: which of them.
    """

    world: ClassVar[str]
    about: ClassVar[str]
    """How rewards and outcome came about, in words."""
    error: ClassVar[str] = "true mean error"
    """What the outcome is, in words."""
    validated: ClassVar[str] = "greedy answers to dev questions"
    trivial: ClassVar[str] = "the lead of the passage or the question itself"
    """The trivial answers in words, without the gold one."""
    added: ClassVar[str | None] = None
    """A fault that was added when rows of the others had been seen."""

    directory: str = ""
    seeds: Sequence[int] = ()

    def run(self) -> dict[str, Any]:
        """Write results, page and figure."""
        roots = {seed: Path(self.directory) / f"seed_{seed}" for seed in self.seeds}
        rows = [row for root in roots.values() for row in read_json(root / "rows.json")]
        policies, longer = (
            [one for seed, root in roots.items() for one in self._policies(root / folder, seed, rows)]
            for folder in ("policies", "long_policies")
        )
        result = {
            **self.made_by(),
            "seeds": list(self.seeds),
            "rows": rows,
            "correlations": correlations(rows, OUTCOME, self.added),
            "differences": differences(rows, OUTCOME),
            "policies": policies,
            "long_policies": longer,
            "confirmed": confirmed(policies) if policies else {},
        }
        self.write(result)
        draw(result, Path(self.output).with_suffix(".svg"))
        return result

    @abstractmethod
    def error_of(self, line: Mapping[str, Any]) -> float:
        """The true error that a validation of a run measured."""

    def page(self, result: Mapping[str, Any]) -> str:
        """The page of a results file."""
        seeds = f", seeds {', '.join(map(str, result['seeds']))}"
        columns = ["reward", "in_battery", *PREDICTORS, "error_1", OUTCOME, "lowest_error", "best_n", "true_over_proxy"]
        parts = [
            self.opening(result, f"{self.world}: does a stress score predict true error?", self.about, seeds),
            f"![Each point is a reward: the true error of best of 64 by what was measured before]"
            f"({Path(self.output).with_suffix('.svg').name})",
            "## Rank correlation with the true error of best of 64\n\n" + _correlation_page(result),
            "## PPO on some of them\n\n" + self._policy_page(result),
            "## Every change of the battery\n\nShare of pairs ranked right, mean over the rewards with each fault.\n\n"
            + _change_page(result["rows"]),
            "## Every reward\n\n"
            + "; ".join(f"`{name}`: {words}" for name, words in PREDICTORS.items())
            + f". `error_N`: {self.error} of best of N; `best_n`: the n with the lowest. `true_over_proxy`: what "
            "best of 64 gains in truth over what it gains in reward, each in standard deviations among samples of a "
            "question, at the same KL (3.17 nats).\n\n" + markdown_table(result["rows"], columns),
            f"## Every curve\n\n{self.error.capitalize()} of best of n.\n\n"
            + markdown_table(
                [
                    {"reward": row["reward"], **dict(zip(map(str, SIZES), row["curves"]["error"], strict=True))}
                    for row in result["rows"]
                ],
                ["reward", *map(str, SIZES)],
            ),
        ]
        return "\n\n".join(part.strip() for part in parts) + "\n"

    def _policies(self, directory: Path, seed: int, rows: Rows) -> list[dict[str, Any]]:
        policies = []
        for row in rows:
            run = RunDirectory(directory / row["reward"])
            if row["seed"] != seed or not run.results.is_file():
                continue
            lines = read_jsonl(run.eval)
            errors = [self.error_of(line) for line in lines]
            lowest = int(np.argmin(errors))
            turned = next((n for n in range(lowest, len(errors)) if errors[n] > errors[lowest] + TURNED), None)
            paid = [line["reward/total"] for line in lines]
            trivial = {name: value / row["spread"] for name, value in row["trivial"].items()}
            bought = max(value for name, value in trivial.items() if name != "gold")
            warned = {
                "trivial_above": next((n for n, value in enumerate(paid) if bought > value), None),
                "above_gold": next((n for n, value in enumerate(paid) if value > trivial["gold"]), None),
                "hacking": next((n for n, line in enumerate(lines) if hacking_warnings(lines[0], line)), None),
            }
            policies.append(
                {
                    "reward": row["reward"],
                    **{name: row[name] for name in (*PREDICTORS, OUTCOME)},
                    "sft_error": errors[0],
                    "lowest_error": errors[lowest],
                    "final_error": errors[-1],
                    "proxy_gain": paid[-1] - paid[0],
                    "turned": None if turned is None else lines[turned]["step"],
                    **{name: None if n is None else lines[n]["step"] for name, n in warned.items()},
                    "errors": errors,
                    "paid": paid,
                }
            )
        return policies

    def _policy_page(self, result: Mapping[str, Any]) -> str:
        policies = result["policies"]
        columns = ["reward", OUTCOME, "sft_error", "lowest_error", "final_error", "proxy_gain"]
        columns += ["turned", *WARNINGS]
        rho = ", ".join(f"`{name}` {_interval(one, 'rho')}" for name, one in result["confirmed"].items())
        longer = result["long_policies"]
        if not policies:
            return "No policy was trained."
        return (
            f"{len(policies)} runs, the reward of each in units of its spread among samples of SFT; "
            f"{self.error} of {self.validated}. `turned`: the step of the first validation with an error at least "
            f"{TURNED:g} above the lowest before it. `trivial_above`: the first validation at which "
            f"{self.trivial} has more reward than the policy's answers; `above_gold`: at which the policy "
            "has more than the gold answers; `hacking`: at which the run itself warned of "
            "reward hacking. Proxy gains are in standard deviations.\n\n"
            f"{markdown_table(policies, columns)}\n"
            f"Spearman with the final error, and 95% intervals over the runs: {rho}.\n\n{_warning_words(policies)}\n\n"
            + (
                f"Some of them once more, for longer:\n\n{markdown_table(longer, columns)}\n{_warning_words(longer)}"
                if longer
                else ""
            )
        )


def correlations(rows: Rows, outcome: str, added: str | None = None) -> list[dict[str, Any]]:
    """Spearman of each predictor with the outcome, by subset, with the interval over faults that are drawn again."""
    parts = [(subset, [row for row in rows if chosen(row)], _rho) for subset, chosen in SUBSETS.items()]
    if added is not None:
        parts.append((f"without `{added}`, added later", [row for row in rows if row["fault"] != added], _rho))
    table = []
    for subset, chosen, measure in [*parts, ("within one size and noise", rows, _rho_within)]:
        for name in PREDICTORS:
            one = bootstrap_interval(_by_fault(chosen), partial(measure, name=name, outcome=outcome), draws=DRAWS)
            table.append({"subset": subset, "predictor": name, "rho": one.value, "low": one.low, "high": one.high})
    return table


def differences(rows: Rows, outcome: str) -> list[dict[str, Any]]:
    """How much closer to −1 or 1 the stress score's correlation is than that of each other predictor."""
    table = []
    for name in PREDICTORS:
        if not name.startswith("stress"):
            one = bootstrap_interval(_by_fault(rows), partial(_closer, name=name, outcome=outcome), draws=DRAWS)
            table.append({"predictor": name, "difference": one.value, "low": one.low, "high": one.high})
    return table


def confirmed(policies: Rows) -> dict[str, dict[str, Any]]:
    """Spearman of what was known before a run with the true error at its end, and the interval over runs."""
    table = {}
    for name in (OUTCOME, *PREDICTORS):
        one = bootstrap_interval(
            [[run] for run in policies], partial(_rho, name=name, outcome="final_error"), draws=DRAWS
        )
        table[name] = {"rho": one.value, "low": one.low, "high": one.high}
    return table


def _by_fault(rows: Rows) -> list[list[Mapping[str, Any]]]:
    return [[row for row in rows if row["fault"] == fault] for fault in dict.fromkeys(row["fault"] for row in rows)]


def _rho(groups: Sequence[Rows], name: str, outcome: str) -> float | None:
    rows = [row for group in groups for row in group]
    return spearman([row[name] for row in rows], [row[outcome] for row in rows])


def _rho_within(groups: Sequence[Rows], name: str, outcome: str) -> float | None:
    """The mean over cells of size, noise and seed of the correlation inside each."""
    cells: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for group in groups:
        for row in group:
            cells.setdefault((row["size"], row["noise"], row["seed"]), []).append(row)
    values = [spearman([r[name] for r in rows], [r[outcome] for r in rows]) for rows in cells.values()]
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _closer(groups: Sequence[Rows], name: str, outcome: str) -> float | None:
    stress, other = _rho(groups, "stress", outcome), _rho(groups, name, outcome)
    return None if stress is None or other is None else abs(stress) - abs(other)


def _correlation_page(result: Mapping[str, Any]) -> str:
    subsets = list(dict.fromkeys(one["subset"] for one in result["correlations"]))
    table = []
    for name in PREDICTORS:
        own = {one["subset"]: one for one in result["correlations"] if one["predictor"] == name}
        table.append({"predictor": name, **{subset: _interval(own[subset], "rho") for subset in subsets}})
    gaps = [
        {"predictor": one["predictor"], "difference": _interval(one, "difference")} for one in result["differences"]
    ]
    faults = dict.fromkeys(row["fault"] for row in result["rows"])
    return (
        f"Spearman over {len(result['rows'])} rewards; in brackets 95% intervals over the {len(faults)} faults, drawn "
        "again each with all its rewards. Below 0: more of it, less error. The last column: the mean over cells of "
        "one size and one noise of the correlation inside, so that neither of the two plays a part.\n\n"
        f"{markdown_table(table, ['predictor', *subsets])}\n"
        "How much larger the size of the stress score's correlation is than that of another predictor, all rewards:\n\n"
        f"{markdown_table(gaps, ['predictor', 'difference'])}"
    )


def _interval(one: Mapping[str, Any], name: str) -> str:
    if one[name] is None:
        return "–"
    ends = "–" if one["low"] is None else f"{one['low']:+.2f} to {one['high']:+.2f}"
    return f"{one[name]:+.2f} ({ends})"


def _warning_words(policies: Rows) -> str:
    """Whether warnings came before the truth turned, and how often they came where it did not."""
    turned = [one for one in policies if one["turned"] is not None]
    calm = [one for one in policies if one["turned"] is None]
    warnings = "; ".join(
        f"`{name}` came no later in {sum(one[name] is not None and one[name] <= one['turned'] for one in turned)} of "
        f"them, and came in {sum(one[name] is not None for one in calm)} of the {len(calm)} others"
        for name in WARNINGS
    )
    return f"The truth turned in {len(turned)} of {len(policies)} runs. {warnings}."


def _change_page(rows: Rows) -> str:
    names = list(rows[0]["changes"])
    table = [
        {"fault": group[0]["fault"]}
        | {name: float(np.mean([row["changes"][name]["all"] for row in group])) for name in names}
        for group in _by_fault(rows)
    ]
    return markdown_table(table, ["fault", *names])


def draw(result: Mapping[str, Any], path: Path) -> None:
    """The outcome by three of the predictors, a colour for whether a change of the battery looks for the fault."""
    where = {True: "fault in the battery", False: "fault not in it", None: "no fault"}
    panels = []
    for name in ("stress", "dev_accuracy", "on_policy_accuracy"):
        points = {
            label: [(row[name], row[OUTCOME]) for row in result["rows"] if row["in_battery"] is flag]
            for flag, label in where.items()
        }
        panels.append(Points(name.replace("_", " "), "true error, best of 64", points))
    draw_points(path, panels)
