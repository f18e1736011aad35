"""The Pareto plot of a sweep: two metrics against each other, trained points and baselines, and the front.

The one module here that needs matplotlib.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from finegrained_rlhf.report.charts.plots import INK, load_pyplot
from finegrained_rlhf.report.sweeps.markdown import metric_words

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
