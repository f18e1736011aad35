"""From the finished points of a sweep to one table: rows, spread, the Pareto front, and the baselines beside.

A sweep leaves `points/NAME/` with `point.json` and `evaluation.json`, and `baselines/NAME/` with an `evaluation.json`.
Trains and measures nothing, and knows no task: metrics are names.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import read_json, write_json, write_text
from finegrained_rlhf.core.markers import OutputFile
from finegrained_rlhf.report.charts.plots import INK, load_pyplot
from finegrained_rlhf.report.sweeps.markdown import metric_words, sweep_table_page
from finegrained_rlhf.runtime.loop.checkpoints import exported_step
from finegrained_rlhf.text.tables import summarise_rows

# Okabe and Ito's colours, which the colour-blind tell apart; trained points first, each baseline with its own marker.
_LOOKS = (("#0072b2", "o"), ("#d55e00", "D"), ("#009e73", "s"), ("#cc79a7", "^"), ("#e69f00", "v"))
_ARROWS = {"higher": "→", "lower": "←"}


def pareto_svg(result: Mapping[str, Any]) -> str:
    """The plot as one `<svg>` element, white under dark ink; "" where no axes are set or nothing is finished.

    Args:
        result: of `SweepTable.collect`.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    axes, summary = result["pareto"], result["summary"]
    if axes is None or not summary:
        return ""
    pyplot = load_pyplot("the Pareto plot", "sweeps")
    figure, axis = pyplot.subplots(figsize=(6.4, 4.6), layout="constrained", facecolor="white")
    _draw_front(axis, [entry for entry in summary if entry["front"]], axes)
    systems = list(dict.fromkeys(entry["system"] for entry in summary))
    for number, system in enumerate(systems):
        colour, marker = _LOOKS[number % len(_LOOKS)]
        # Baselines are larger open marks below the trained points, so that neither hides the other.
        look = {"markersize": 5, "zorder": 3} if number == 0 else {"markersize": 10, "mfc": "none", "zorder": 2}
        for entry in (entry for entry in summary if entry["system"] == system):
            x, y = (entry["metrics"][axes[name]] for name in ("x", "y"))
            axis.errorbar(
                x["mean"], y["mean"], xerr=x["std"], yerr=y["std"], fmt=marker, color=colour, elinewidth=0.7, **look
            )
        axis.plot([], [], marker, color=colour, label=system, **look)
    for place, label in _labels(summary, axes).items():
        axis.annotate(label, place, (8, 6), textcoords="offset points")
    labels = result["metrics"]
    for name, put in (("x", axis.set_xlabel), ("y", axis.set_ylabel)):
        put(f"{labels.get(axes[name], metric_words(axes[name]))}  (better {_ARROWS[axes[f'{name}_better']]})")
    axis.set_title(result["title"], fontsize=10)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(linewidth=0.5, alpha=0.5)
    axis.margins(0.12)
    figure.legend(loc="outside lower center", ncols=4, frameon=False)
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    pyplot.close(figure)
    markup = text.getvalue()
    return markup[markup.index("<svg") :]  # without the prologue it can stand in a page as well


def _draw_front(axis: Any, front: Sequence[Mapping[str, Any]], axes: Mapping[str, str]) -> None:
    """Steps through the points of the front: what lies on the worse side of them is dominated."""
    points = sorted((entry["metrics"][axes["x"]]["mean"], entry["metrics"][axes["y"]]["mean"]) for entry in front)
    where = "pre" if axes["x_better"] == "higher" else "post"
    xs, ys = zip(*points, strict=True)
    axis.step(xs, ys, where=where, color=INK, linewidth=1.0, linestyle="--", label="Pareto front", zorder=1)


def _labels(summary: Sequence[Mapping[str, Any]], axes: Mapping[str, str]) -> dict[tuple[float, float], str]:
    """What stands beside each place of the plot: all points that lie there, in one text."""
    at_place: dict[tuple[float, float], list[str]] = {}
    for entry in summary:
        place = entry["metrics"][axes["x"]]["mean"], entry["metrics"][axes["y"]]["mean"]
        label = point_label(entry["swept"])
        if entry.get("exported") and set(entry["exported"]) == {0}:
            label = f"{label} = initial policy".strip()
        if label and label not in at_place.setdefault(place, []):
            at_place[place].append(label)
    return {place: "; ".join(labels) for place, labels in at_place.items() if labels}


def point_label(swept: Mapping[str, Any]) -> str:
    """What a point is called beside its mark: its values, with the keys where there are several."""
    if len(swept) == 1:
        return str(next(iter(swept.values())))
    return ", ".join(f"{key.rpartition('.')[2]}={value}" for key, value in swept.items())


Better = Literal["higher", "lower"]
TRAINED = "PPO"
INITIAL = "initial policy"
_NOT_MEASURED = {"examples", "best_of", "temperature", "top_k", "top_p", "seed"}
"""Numbers in an evaluation that say how it was made."""
_NOT_TRAINING = ("sweep.", "hydra.")


@dataclass(frozen=True)
class ParetoAxes(Settings):
    """Two metrics that pull against each other.

    Attributes:
        x: metric of the horizontal axis, as `finegrained evaluate` names it.
        y: metric of the vertical axis.
        x_better: `higher` or `lower`.
        y_better: `higher` or `lower`.
    """

    x: str
    y: str
    x_better: Better = "higher"
    y_better: Better = "higher"


@dataclass(frozen=True)
class SweepTable(Settings):
    """What a sweep's table shows, and the collecting of it.

    Attributes:
        title: heading of table, plot and report.
        description: a sentence or two under it; empty adds none.
        average_over: keys of the configuration over whose values points are averaged.
        metrics: heading of each column by metric, as `finegrained evaluate` names it; None shows every metric but raw
            sums.
        pareto: axes of the Pareto plot; None draws none.
        results: JSON file for a committed results table, with its page beside; written when every point is done.
    """

    title: str = "Sweep"
    description: str = ""
    average_over: Sequence[str] = ("seed",)
    metrics: Mapping[str, str] | None = None
    pareto: ParetoAxes | None = field(default=None)
    results: OutputFile | None = None

    def collect(self, directory: str | Path, points: Sequence[Mapping[str, Any]], command: str) -> dict[str, Any]:
        """Write `sweep.json`, `sweep.md`, `pareto.svg` and `report.html` into a sweep's directory.

        Args:
            directory: of the sweep.
            points: records of its points (`point.json`), in their order.
            command: what was run.

        Returns:
            The content of `sweep.json`: `title`, `description`, `command`, `commit`, `seeds`, `swept` (keys, without
            those that are averaged over), `average_over`, `metrics` (heading by metric), `pareto` (axes; None without),
            `rows` (`system`, `swept`, `seed`, `weights`, `run`, `metrics`; of a trained one `exported`, the step of its
            policy), `summary` (`system`, `swept`, `weights`, `n`, `front`, and `mean`, `std`, `min`, `max` of each of
            the `metrics`; of trained ones `exported`), `minutes` (of all points together), `failed` (`name`, `stage`,
            `error`, `log`).

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
            "swept": [k for k in (_of_training(done[0]["swept"]) if done else ()) if k not in self.average_over],
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
            names = [name for name in names if name in common and not name.endswith(("/raw", "/segments"))]
            return {name: metric_words(name) for name in names}
        return {name: label for name, label in self.metrics.items() if name in common}

    def _write(self, root: Path, result: Mapping[str, Any], runs: Sequence[tuple[str, Path]]) -> None:
        from finegrained_rlhf.report.sweeps.page import sweep_page  # here: `finegrained sweep --help` writes no page

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
        wanted = [*(self.metrics or ()), *((self.pareto.x, self.pareto.y) if self.pareto else ())]
        common = _common(result["rows"])
        return sorted({name for name in wanted if name not in common}) if result["rows"] else []


def _rows(root: Path, points: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each point, then one for each baseline; of a baseline that points share, what they agree in."""
    rows: dict[str, dict[str, Any]] = {}
    for point in points:
        places = {f"points/{point['name']}": TRAINED}
        places |= {place: INITIAL if n == "1" else f"best of {n}" for n, place in point["baselines"].items()}
        for place, system in places.items():
            named = {**{k: point[k] for k in ("seed", "weights")}, "swept": _of_training(point["swept"])}
            shared = rows.setdefault(place, {"system": system, **named})
            for key in ("swept", "weights"):
                shared[key] = _agreed([shared[key], named[key]])
    for place, row in rows.items():
        measured = read_json(root / place / "evaluation.json")
        numbers = {k: v for k, v in measured.items() if isinstance(v, int | float) and k not in _NOT_MEASURED}
        if row["system"] == INITIAL:  # the same for all weights, but for the sum that they make
            row["weights"] = {}
            row["swept"] = {k: v for k, v in row["swept"].items() if not k.startswith("reward.weights.")}
            numbers.pop("reward/total", None)
        if row["system"] == TRAINED:
            row["exported"] = exported_step(root / place / "policy")
        row |= {"run": place, "metrics": numbers}
    systems = list(dict.fromkeys(row["system"] for row in rows.values()))
    return sorted(_once(rows.values()), key=lambda row: systems.index(row["system"]))


def _of_training(swept: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a point that decide what is trained; those of the sweep itself do not."""
    return {key: value for key, value in swept.items() if not key.startswith(_NOT_TRAINING)}


def _once(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows without initial policies that are listed already: the same one, measured for another point."""
    seen: list[Any] = []
    kept = []
    for row in rows:
        what = (row["swept"], row["seed"], row["metrics"])
        if row["system"] != INITIAL or what not in seen:
            kept.append(row)
        if row["system"] == INITIAL:
            seen.append(what)
    return kept


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
            **({"exported": [row["exported"] for row in members]} if system == TRAINED else {}),
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
