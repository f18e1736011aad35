"""The Pareto plot of a sweep: two metrics against each other, trained points and baselines, and the front.

Knows the rows of a sweep's table. The one module here that needs matplotlib.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from finegrained_rlhf.core.plots import INK, load_pyplot

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
        for entry in (entry for entry in summary if entry["system"] == system):
            x, y = (entry["metrics"][axes[name]] for name in ("x", "y"))
            filled = {} if number == 0 else {"markerfacecolor": "white"}
            axis.errorbar(
                x["mean"], y["mean"], xerr=x["std"], yerr=y["std"], fmt=marker, color=colour, elinewidth=0.7, **filled
            )
            axis.annotate(point_label(entry["swept"]), (x["mean"], y["mean"]), (6, 5), textcoords="offset points")
        axis.plot([], [], marker, color=colour, label=system, **filled)
    axis.set_xlabel(f"{axes['x']}  (better {_ARROWS[axes['x_better']]})")
    axis.set_ylabel(f"{axes['y']}  (better {_ARROWS[axes['y_better']]})")
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


def point_label(swept: Mapping[str, Any]) -> str:
    """What a point is called beside its mark: its values, with the keys where there are several."""
    if len(swept) == 1:
        return str(next(iter(swept.values())))
    return ", ".join(f"{key.rpartition('.')[2]}={value}" for key, value in swept.items())
