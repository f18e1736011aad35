"""Figures of tables and runs as SVG or PNG: lines with a band, and bars with whiskers. They need matplotlib.

White paper under dark ink: a page shows them alike in light and in dark mode.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from finegrained_rlhf.report.charts.plots import COLOURS, INK, load_pyplot, row_of_axes, save_figure

_UPRIGHT = 6
"""More labels than these do not fit side by side below their bars."""


@dataclass(frozen=True)
class Lines:
    """One panel of lines.

    Attributes:
        title: above it.
        y_label: of its vertical axis.
        bands: by label of the line: `episodes` (the points), `mean`, `min` and `max`, lists of one length.
        runs: by label the curves of single runs, value by point: a line each.
        limits: of the vertical axis; None fits them to what is drawn.
    """

    title: str
    y_label: str
    bands: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)
    runs: Mapping[str, Sequence[Mapping[Any, float]]] = field(default_factory=dict)
    limits: tuple[float, float] | None = None


def band(curves: Sequence[Mapping[int, float]]) -> dict[str, list[float]]:
    """Mean, minimum and maximum over curves (value by point), at the points that all of them have.

    Returns:
        `episodes` (the points), `mean`, `min`, `max`: lists of one length. A run that was stopped early ends all of
        them.
    """
    points = sorted(set.intersection(*(set(curve) for curve in curves)))
    at = [[curve[point] for curve in curves] for point in points]
    return {
        "episodes": [float(point) for point in points],
        "mean": [statistics.fmean(values) for values in at],
        "min": [min(values) for values in at],
        "max": [max(values) for values in at],
    }


def curve_of(rows: Sequence[Mapping[str, float]], name: str) -> dict[int, float]:
    """What `band` takes, from rows with a `step`: the column `name` by step."""
    return {int(row["step"]): row[name] for row in rows}


@dataclass(frozen=True)
class Bars:
    """One panel of bars.

    Attributes:
        title: above it.
        bars: by label: `mean` (the bar), `min` and `max` (the whisker).
    """

    title: str
    bars: Mapping[str, Mapping[str, float]]


def draw_lines(
    path: Path,
    panels: Sequence[Lines],
    x_label: str = "episodes",
    ticks: Mapping[float, str] | None = None,
    columns: int | None = None,
) -> None:
    """Panels side by side; a label has the same colour and marker in all of them; those beyond the colours are dashed.

    Args:
        path: to write, `.svg` or `.png`.
        panels: from left to right.
        x_label: of all horizontal axes.
        ticks: words at places of the horizontal axes; None counts.
        columns: panels a row; None puts all into one.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    pyplot = load_pyplot()
    labels = list(dict.fromkeys(label for panel in panels for label in (*panel.bands, *panel.runs)))
    look = {label: (COLOURS[i % len(COLOURS)], "osD^vP"[i % 6]) for i, label in enumerate(labels)}
    dashed = set(labels[len(COLOURS) :])  # their colours are taken
    figure, axes = row_of_axes(pyplot, len(panels), columns)
    for axis, panel in zip(axes, panels, strict=True):
        for label, spread in panel.bands.items():
            colour, marker = look[label]
            line: dict[str, Any] = {
                "linestyle": "--" if label in dashed else "-",
                "marker": marker,
                "markersize": 4,
                "color": colour,
            }
            axis.plot(spread["episodes"], spread["mean"], label=label, **line)
            axis.fill_between(spread["episodes"], spread["min"], spread["max"], color=colour, alpha=0.15, linewidth=0)
        for label, runs in panel.runs.items():
            style = "--" if label in dashed else "-"
            for i, run in enumerate(runs):
                thin: dict[str, Any] = {
                    "color": look[label][0],
                    "alpha": 0.75,
                    "linewidth": 1.1,
                    "label": None if i else label,
                }
                axis.plot(sorted(run), [run[point] for point in sorted(run)], style, **thin)
        axis.set_title(panel.title, fontsize=10)
        axis.set_ylabel(panel.y_label)
        axis.set_xlabel(x_label)
        axis.set_ylim(panel.limits)
        if ticks is not None:
            axis.set_xticks(list(ticks), list(ticks.values()))
        axis.grid(linewidth=0.5, alpha=0.5)
    handles: dict[str, Any] = {}
    for axis in axes:
        handles |= dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
    figure.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=min(len(handles), 4), frameon=False
    )
    save_figure(pyplot, figure, path)


def draw_bars(path: Path, panels: Sequence[Bars]) -> None:
    """Panels side by side, each bar with its value, its whisker from the lowest to the highest seed.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    pyplot = load_pyplot()
    figure, axes = row_of_axes(pyplot, len(panels))
    for axis, panel in zip(axes, panels, strict=True):
        for i, bar in enumerate(panel.bars.values()):
            whisker = [[bar["mean"] - bar["min"]], [bar["max"] - bar["mean"]]]
            axis.bar(i, bar["mean"], 0.66, color=COLOURS[i % len(COLOURS)], yerr=whisker, ecolor=INK, capsize=3)
            axis.annotate(f"{bar['mean']:.3f}", (i, bar["max"]), (0, 4), textcoords="offset points", ha="center")
        many = len(panel.bars) > _UPRIGHT
        names = [label if many else label.replace(" ", "\n") for label in panel.bars]
        axis.set_xticks(range(len(panel.bars)), names, **({"rotation": 35, "ha": "right"} if many else {}))
        axis.set_title(panel.title, fontsize=10)
        axis.margins(y=0.15)
        axis.grid(axis="y", linewidth=0.5, alpha=0.5)
        axis.set_axisbelow(True)
    save_figure(pyplot, figure, path)


@dataclass(frozen=True)
class Points:
    """One panel of points.

    Attributes:
        x_label: of its horizontal axis.
        y_label: of its vertical axis.
        points: by label, (x, y) of each.
    """

    x_label: str
    y_label: str
    points: Mapping[str, Sequence[tuple[float, float]]]


def draw_points(path: Path, panels: Sequence[Points]) -> None:
    """Panels of points side by side; a label has the same colour and marker in all of them.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    pyplot = load_pyplot()
    figure, axes = row_of_axes(pyplot, len(panels))
    for axis, panel in zip(axes, panels, strict=True):
        for i, (label, points) in enumerate(panel.points.items()):
            xs, ys = zip(*points, strict=True) if points else ((), ())
            look = {"color": COLOURS[i % len(COLOURS)], "marker": "osD^vP"[i % 6], "alpha": 0.8}
            axis.scatter(xs, ys, s=22, linewidths=0, label=label, **look)
        axis.set_xlabel(panel.x_label)
        axis.set_ylabel(panel.y_label)
        axis.grid(linewidth=0.5, alpha=0.5)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    save_figure(pyplot, figure, path)
