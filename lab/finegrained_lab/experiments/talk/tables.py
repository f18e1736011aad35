"""The table of TalkWorld: every run of a grid or of unseen seeds, one after the other, each row written as it ends."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from finegrained_lab.experiments.results_table import Results
from finegrained_lab.experiments.talk.runs import ARMS, PrepareTalk, TrainTalk
from finegrained_rlhf.core.files import read_json
from finegrained_rlhf.text.tables import markdown_table

TRACE = ("reward", "advantage", "added")
BASE = "demonstrations"


@dataclass(frozen=True, kw_only=True)
class TalkTable(Results):
    """Runs that are there already are read. The file and its page are written after every row.

    Attributes:
        directory: of the runs, `seed_N/` each.
        seeds: of world, weights and training.
        points: of each arm, its pairs of learning rate and β.
        steps: of each RLOO run.
        split: prompts to measure on: `dev` for a choice, `test` for a result.
        title: of the page.
    """

    directory: str
    seeds: Sequence[int]
    points: Mapping[str, Sequence[Sequence[float]]]
    steps: int
    split: Literal["dev", "test"] = "test"
    title: str = field(default="Turns: rewards where they end, against one at the end of the conversation")

    def run(self) -> dict[str, Any]:
        """Make what is missing."""
        rows: list[dict[str, Any]] = []
        result: dict[str, Any] = {}
        wanted = len(self.seeds) * (1 + sum(map(len, self.points.values())))
        for seed in self.seeds:
            root = Path(self.directory) / f"seed_{seed}"
            if not (root / "sft.json").is_file():
                PrepareTalk(str(root), seed=seed).run()
            rows.append({"system": BASE, "seed": seed, **read_json(root / "sft.json")[self.split]})
            for arm in ARMS:
                for lr, beta in self.points[arm]:
                    rows.append(self._row(root, seed, arm, lr, beta))
                    result = self.write(self._result(rows, wanted))
        return result

    def _row(self, root: Path, seed: int, arm: Any, lr: float, beta: float) -> dict[str, Any]:
        out = root / f"{arm}_lr{lr:g}_beta{beta:g}"
        if not (out / "measured.json").is_file():
            TrainTalk(str(root), str(out), arm, lr, beta, self.steps, seed, (self.split,)).run()
        measured = read_json(out / "measured.json")
        trace = {f"named by {name}": measured["trace"][name] for name in TRACE}
        counted = {"traced": measured["trace"]["conversations"]}
        return {"system": arm, "lr": lr, "beta": beta, "seed": seed, **measured[self.split], **trace, **counted}

    def _result(self, rows: Sequence[Mapping[str, Any]], wanted: int) -> dict[str, Any]:
        return {
            **self.made_by(),
            "configuration": {"points": self.points, "steps": self.steps, "split": self.split},
            "seeds": list(self.seeds),
            "rows": list(rows),
            "missing": wanted - len(rows),
            "summary": _summary(rows),
        }

    def page(self, result: Mapping[str, Any]) -> str:
        """Means with spread, what was chosen or how the arms differ, and every run."""
        about = (
            "A tiny Llama talks with a tool that asks for one call after the other, twelve in all. In the first eight "
            "turns every second call is right, whatever the policy does: luck. The last four say what is to be shut. "
            "It learnt from demonstrations that open in one of the four, by the kind of task, nine times in ten (the "
            "planted turn), and shut any thing in the others one time in four. RLOO then trains it on an oracle's "
            "verdicts, 1 or −1 a turn and 2 or −2 a turn of luck, with equal episodes. `dense`: each verdict where "
            "its turn ends; `outcome`: their sum at the end, in which luck drowns the planted turn; controls with a "
            "sum as large: `sooner`, each verdict a turn too soon (the first one's at the end); `shuffled`, dealt out "
            "anew among all turns of a step. One sampled conversation a prompt. `errors`: wrong turns of a "
            "conversation, without luck; `planted`, `others`, `luck`: share of wrong turns among those that "
            "demonstrations get wrong, among the rest of the last four, and among the first eight; `perfect`: "
            "conversations without an error. Of the `traced` conversations drawn in training whose one wrong turn of "
            "the last four was the planted one: share in which of these four it has the lowest `reward` paid, the "
            "lowest `advantage`, and the lowest advantage less that of the next turn (`added`); a trace that says "
            "nothing names it in 0.25."
        )
        every = [{key: _cell(value) for key, value in row.items()} for row in result["rows"]]
        columns = list(dict.fromkeys(["system", "seed", *(key for row in every for key in row)]))
        seeds = ", ".join(map(str, result["seeds"]))
        parts = [
            self.opening(result, self.title, about, f", {self.split} prompts, seeds {seeds}"),
            f"Rows that are still missing: {result['missing']}." if result["missing"] else "",
            _spread(result["summary"]) if len(result["seeds"]) > 1 else "",
            _lowest(result["summary"]) if any(len(pairs) > 1 for pairs in self.points.values()) else "",
            _pairs(result["rows"]) if len(result["seeds"]) > 1 else "",
            f"## Every run\n\n{markdown_table(every, columns).strip()}",
        ]
        return "\n\n".join(part for part in parts if part) + "\n"


def _spread(summary: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    lines = [
        {"system": name, **{key: f"{mean:.3f} ± {spread:.3f}" for key, (mean, spread) in point.items()}}
        for name, point in summary.items()
    ]
    columns = list(dict.fromkeys(key for line in lines for key in line))
    return f"## Means ± standard deviations over seeds\n\n{markdown_table(lines, columns).strip()}"


def _lowest(summary: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    lines = []
    for arm in ARMS:
        own = [name for name in summary if name.startswith(arm)]
        if own:
            lines.append(f"- {min(own, key=lambda name: summary[name]['errors'][0])}")
    return "## The fewest wrong turns of each arm, by the mean over seeds\n\n" + "\n".join(lines)


def _name(row: Mapping[str, Any]) -> str:
    return row["system"] if "lr" not in row else f"{row['system']} (rate {row['lr']:g}, β {row['beta']:g})"


def _summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, list[float]]]:
    """System and point → column → mean and standard deviation over seeds."""
    summary: dict[str, dict[str, list[float]]] = {}
    for name in dict.fromkeys(map(_name, rows)):
        own = [row for row in rows if _name(row) == name]
        for column in own[0]:
            if column not in ("system", "seed", "lr", "beta"):
                values = [float(row[column]) for row in own]
                spread = statistics.stdev(values) if len(values) > 1 else 0.0
                summary.setdefault(name, {})[column] = [statistics.fmean(values), spread]
    return summary


def _pairs(rows: Sequence[Mapping[str, Any]]) -> str:
    """Dense less every other arm, seed by seed, where each arm has one point."""
    by = {(row["system"], row["seed"]): row for row in rows if "lr" in row}
    if len(by) != sum("lr" in row for row in rows):
        return ""
    lines = []
    for arm in ARMS[1:]:
        seeds = [seed for system, seed in by if system == arm and ("dense", seed) in by]
        for column in ("errors", "planted"):
            gaps = [by["dense", seed][column] - by[arm, seed][column] for seed in seeds]
            if gaps:
                better = sum(gap < 0 for gap in gaps)
                lines.append(
                    f"- `{column}` of dense less {arm}: {statistics.fmean(gaps):+.3f} on the mean "
                    f"({', '.join(f'{gap:+.3f}' for gap in gaps)}); dense is lower in {better} of {len(gaps)} seeds."
                )
    return "## Dense against each other arm, seed by seed\n\n" + "\n".join(lines) if lines else ""


def _cell(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:g}" if value < 0.01 else f"{value:.3f}"
