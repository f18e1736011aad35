"""From the finished points of a sweep to one table: rows, spread, the Pareto front, and the baselines beside.

Knows the files that a sweep leaves: `points/NAME/` with `point.json` and `evaluation.json`, and `baselines/NAME/` with
an `evaluation.json`. Trains and measures nothing, and knows no task: metrics are names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.files import read_json, write_json, write_text
from finegrained_rlhf.core.tables import cell, markdown_table, summarise_rows
from finegrained_rlhf.report.sweep import sweep_page
from finegrained_rlhf.report.sweep_plot import pareto_svg

Better = Literal["higher", "lower"]
TRAINED = "PPO"
INITIAL = "initial policy"
_NOT_MEASURED = {"examples", "best_of", "temperature", "top_k", "top_p", "seed"}
"""Numbers in an evaluation that say how it was made."""


@dataclass(frozen=True)
class ParetoAxes:
    """Two metrics that pull against each other.

    Attributes:
        x: metric of the horizontal axis, as `evaluate.py` names it.
        y: metric of the vertical axis.
        x_better: `higher` or `lower`.
        y_better: `higher` or `lower`.
    """

    x: str
    y: str
    x_better: Better = "higher"
    y_better: Better = "higher"

    def __post_init__(self) -> None:
        for name in ("x_better", "y_better"):
            if getattr(self, name) not in ("higher", "lower"):
                raise ConfigError(f"pareto.{name}: expected higher or lower, got {getattr(self, name)!r}")


@dataclass(frozen=True)
class SweepTable:
    """What a sweep's table shows, and the collecting of it.

    Attributes:
        title: heading of table, plot and report.
        description: a sentence or two under it; empty adds none.
        average_over: keys of the configuration over whose values points are averaged.
        metrics: heading of each column by metric, as `evaluate.py` names it; None shows every metric but raw sums.
        pareto: axes of the Pareto plot; None draws none.
        results: JSON file for a committed results table, with its page beside; written when every point is done.
    """

    title: str = "Sweep"
    description: str = ""
    average_over: Sequence[str] = ("seed",)
    metrics: Mapping[str, str] | None = None
    pareto: ParetoAxes | None = field(default=None)
    results: str | None = None

    def collect(self, directory: str | Path, points: Sequence[Mapping[str, Any]], command: str) -> dict[str, Any]:
        """Write `sweep.json`, `sweep.md`, `pareto.svg` and `report.html` into a sweep's directory.

        Args:
            directory: of the sweep.
            points: records of its points (`point.json`), in their order.
            command: what was run.

        Returns:
            The content of `sweep.json`: `title`, `description`, `command`, `commit`, `seeds`, `swept` (keys, without
            those that are averaged over), `average_over`, `metrics` (heading by metric), `pareto` (axes; None without),
            `rows` (`system`, `swept`, `seed`, `weights`, `run`, `metrics`), `summary` (`system`, `swept`, `weights`,
            `n`, `front`, and `mean`, `std`, `min`, `max` of each of the `metrics`), `minutes` (of all points together),
            `failed` (`name`, `stage`, `error`, `log`).

        Raises:
            DataError: an evaluation is missing or broken.
        """
        root = Path(directory)
        done = [point for point in points if point["status"] == "done"]
        rows = _rows(root, done)
        metrics = self._metrics(rows)
        axes = self.pareto if self.pareto and {self.pareto.x, self.pareto.y} <= _common(rows) else None
        shown = {**metrics, **({axes.x: axes.x, axes.y: axes.y} if axes else {})}
        summary = _summary(rows, list(shown), self.average_over)
        for entry, front in zip(summary, _front(summary, axes), strict=True):
            entry["front"] = front
        result = {
            "title": self.title,
            "description": self.description,
            "command": command,
            "commit": ", ".join(sorted({point["commit"] for point in done})),
            "seeds": sorted({point["seed"] for point in done}),
            "swept": [key for key in (done[0]["swept"] if done else ()) if key not in self.average_over],
            "average_over": list(self.average_over),
            "metrics": metrics,
            "pareto": None if axes is None else vars(axes),
            "rows": rows,
            "summary": summary,
            "minutes": round(sum(point["minutes"] for point in done), 1),
            "failed": [_failure(point) for point in points if point["status"] != "done"],
        }
        self._write(root, result, [(point["name"], root / "points" / point["name"]) for point in done])
        return result

    def _metrics(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        common = _common(rows)
        if self.metrics is None:
            names = rows[0]["metrics"] if rows else {}
            return {name: name for name in names if name in common and not name.endswith(("/raw", "/segments"))}
        return {name: label for name, label in self.metrics.items() if name in common}

    def _write(self, root: Path, result: Mapping[str, Any], runs: Sequence[tuple[str, Path]]) -> None:
        page, plot = sweep_table_page(result), pareto_svg(result)
        for path, text in ((root / "sweep.md", page), (root / "pareto.svg", plot)):
            if text:
                write_text(path, text)
            else:
                path.unlink(missing_ok=True)
        write_json(root / "sweep.json", result)
        if self.results is not None and result["rows"] and not result["failed"]:
            write_json(self.results, result)
            write_text(Path(self.results).with_suffix(".md"), page)
        write_text(root / "report.html", sweep_page(self.title, dict(result), plot, runs))

    def missing(self, result: Mapping[str, Any]) -> list[str]:
        """Metrics that were asked for and that not every evaluation holds."""
        asked = [*(self.metrics or ()), *((self.pareto.x, self.pareto.y) if self.pareto else ())]
        common = _common(result["rows"])
        return sorted({name for name in asked if name not in common}) if result["rows"] else []


def _rows(root: Path, points: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each point, then one for each baseline; of a baseline that points share, what they agree in."""
    rows: dict[str, dict[str, Any]] = {}
    for point in points:
        places = {f"points/{point['name']}": TRAINED}
        places |= {place: INITIAL if n == "1" else f"best of {n}" for n, place in point["baselines"].items()}
        for place, system in places.items():
            shared = rows.setdefault(place, {"system": system, **{k: point[k] for k in ("swept", "seed", "weights")}})
            for key in ("swept", "weights"):
                shared[key] = _agreed([shared[key], point[key]])
    for place, row in rows.items():
        measured = read_json(root / place / "evaluation.json")
        numbers = {k: v for k, v in measured.items() if isinstance(v, int | float) and k not in _NOT_MEASURED}
        if row["system"] == INITIAL:  # the same for all weights, but for the sum that they make
            row["weights"] = {}
            numbers.pop("reward/total", None)
        row |= {"run": place, "metrics": numbers}
    systems = list(dict.fromkeys(row["system"] for row in rows.values()))
    return sorted(rows.values(), key=lambda row: systems.index(row["system"]))


def _failure(point: Mapping[str, Any]) -> dict[str, Any]:
    return {key: point[key] for key in ("name", "stage", "error", "log")}


def _common(rows: Sequence[Mapping[str, Any]]) -> set[str]:
    """Metrics that every row has."""
    return set.intersection(*(set(row["metrics"]) for row in rows)) if rows else set()


def _summary(
    rows: Sequence[Mapping[str, Any]], metrics: Sequence[str], average_over: Sequence[str]
) -> list[dict[str, Any]]:
    """Mean and spread of the rows that differ in `average_over` only."""
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        kept = tuple((key, value) for key, value in row["swept"].items() if key not in average_over)
        groups.setdefault((row["system"], kept), []).append(row)
    return [
        {
            "system": system,
            "swept": dict(kept),
            "weights": _agreed([row["weights"] for row in members]),
            "n": len(members),
            "metrics": summarise_rows([row["metrics"] for row in members], metrics),
        }
        for (system, kept), members in groups.items()
    ]


def _agreed(mappings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The items that all have."""
    return {k: v for k, v in mappings[0].items() if all(m.get(k) == v for m in mappings)}


def _front(summary: Sequence[Mapping[str, Any]], axes: ParetoAxes | None) -> list[bool]:
    if axes is None:
        return [False] * len(summary)
    signs = [1.0 if better == "higher" else -1.0 for better in (axes.x_better, axes.y_better)]
    means = [[entry["metrics"][name]["mean"] for name in (axes.x, axes.y)] for entry in summary]
    return pareto_front([(signs[0] * x, signs[1] * y) for x, y in means])


def pareto_front(points: Sequence[tuple[float, float]]) -> list[bool]:
    """Which points no other is better than in one value without being worse in the other; higher is better."""
    return [
        not any(x2 >= x and y2 >= y and (x2 > x or y2 > y) for x2, y2 in points)  # a point never beats itself
        for x, y in points
    ]


def sweep_table_page(result: Mapping[str, Any]) -> str:
    """The page of a sweep or of its results file, in Markdown."""
    labels, rows, averaged = result["metrics"], result["rows"], result["average_over"]
    told = {f"reward.weights.{name}" for row in rows for name in row["weights"]} & {*result["swept"], *averaged}
    weights = [name for row in rows for name in row["weights"] if f"reward.weights.{name}" not in told]
    swept = [*result["swept"], *(f"w {name}" for name in dict.fromkeys(weights))]
    keys = [*swept, *(key for key in averaged if any(key in row["swept"] for row in rows))]

    def line(entry: Mapping[str, Any], numbers: Mapping[str, Any]) -> dict[str, Any]:
        named = {f"w {name}": f"{value:g}" for name, value in entry["weights"].items()}
        return {"system": entry["system"], **named, **entry["swept"], **{labels[k]: v for k, v in numbers.items()}}

    means = [
        {**line(entry, {name: spread(entry["metrics"][name], entry["n"]) for name in labels}), "n": entry["n"]}
        | {"front": "*" if entry["front"] else ""}
        for entry in result["summary"]
    ]
    runs = [line(row, {name: row["metrics"][name] for name in labels}) for row in rows]
    seeds = ", ".join(map(str, result["seeds"]))
    over = f"seed{'s' * (len(result['seeds']) > 1)} {seeds}" if averaged == ["seed"] else ", ".join(averaged)
    front = ["front"] if result["pareto"] else []
    parts = [f"# {result['title']}\n", f"{result['description']}\n" if result["description"] else ""]
    parts += [f"`{result['command']}` at commit `{result['commit']}`\n"]
    if rows:
        parts += [f"## Mean ± standard deviation over {over}\n" if averaged else "## Points\n"]
        parts += [
            markdown_table(means, ["system", *swept, "n", *labels.values(), *front]),
            _axes_line(result["pareto"]),
        ]
        parts += ["## Every run\n", markdown_table(runs, ["system", *keys, *labels.values()])]
        parts += [f"The minutes of all points add up to {result['minutes']:.0f}; points may have run side by side.\n"]
    if result["failed"]:
        failed = [{**point, "error": point["error"].replace("|", r"\|")} for point in result["failed"]]
        parts += ["## Failed\n", markdown_table(failed, ["name", "stage", "error", "log"])]
    return "\n".join(part for part in parts if part)


def _axes_line(axes: Mapping[str, str] | None) -> str:
    if axes is None:
        return ""
    return (
        f"`*`: on the Pareto front of `{axes['x']}` ({axes['x_better']} is better) and `{axes['y']}` "
        f"({axes['y_better']} is better).\n"
    )


def spread(values: Mapping[str, float], n: int) -> str:
    """Mean and standard deviation of n values as a table shows them; one value alone has none."""
    mean = cell(values["mean"])
    return f"{mean} ± {cell(values['std'])}" if n > 1 else mean
