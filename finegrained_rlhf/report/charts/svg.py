"""Line charts as SVG elements that take their colours from the page, so that they work on light and dark ground.

The same input gives the same markup.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from finegrained_rlhf.core.checks import is_number
from finegrained_rlhf.report.elements.html import MINUS, Html, el, join

SLOTS = 8
"""Colours of lines (`--s0` … in the style sheet); further lines repeat them dashed."""
WIDTH, HEIGHT = 360, 216
_TOP, _BOTTOM, _LEFT, _RIGHT = 12, 36, 50, 12
_AXIS_RIGHT = 44
_POINTS = 240
_DOTS = 80
"""Points of a line that each have a dot; a line of more has none."""
STEP, ROUND = "step", "round"
"""Labels of axes of training steps and of rounds, whose ticks are whole numbers."""
Point = tuple[float, float]


@dataclass(frozen=True)
class Line:
    """One series.

    Attributes:
        name: as the key shows it.
        points: (x, y) in the order in which they are joined; those that are not finite are left out.
        slot: colour; lines that belong together share one.
        style: `line`; `rough` (of every step, noisy); `dots` (now and then: joined points); `faint` (background).
        right: belongs to the axis on the right.
        labels: a word at each point, or nothing.
        radii: radius of each dot in px, or nothing.
    """

    name: str
    points: Sequence[Point]
    slot: int = 0
    style: Literal["line", "rough", "dots", "faint"] = "line"
    right: bool = False
    labels: Sequence[str] = ()
    radii: Sequence[float] = ()

    @cached_property
    def finite(self) -> list[Point]:
        """The points that can be drawn."""
        return [(float(x), float(y)) for x, y in self.points if is_number(x) and is_number(y)]


@dataclass(frozen=True)
class Chart:
    """Lines and their axes.

    Attributes:
        title: what is shown.
        lines: series; a chart of none says that there is no data.
        x_label: under the axis.
        y_label: what the left axis counts, with its unit.
        y_label_right: what the right axis counts.
        x_range: of the axis; None fits the data.
        y_range: of the left axis; None fits the data.
        marks: (x, word) of vertical marks.
        note: a sentence below.
        key: name the lines.
    """

    title: str
    lines: Sequence[Line]
    x_label: str = STEP
    y_label: str = ""
    y_label_right: str = ""
    x_range: Point | None = None
    y_range: Point | None = None
    marks: Sequence[tuple[float, str]] = field(default=())
    note: str = ""
    key: bool = True


@dataclass(frozen=True)
class _Scale:
    """Maps [low, high] to pixels."""

    low: float
    high: float
    first: float
    last: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return round(self.first + share * (self.last - self.first), 1)

    def words(self) -> str:
        """Low, high, first and last pixel: what the script needs to read a value from a place."""
        return " ".join(f"{value:g}" for value in (self.low, self.high, self.first, self.last))


def figure(chart: Chart) -> Html:
    """The chart with its title above and the key of its lines."""
    lines = [line for line in chart.lines if line.finite]
    named = [line for line in lines if line.name and line.style != "faint"]
    key = key_of(named) if chart.key and len(named) > 1 else None
    body = _draw(chart, lines) if lines else el("p", "No data.", class_="none")
    note = el("p", chart.note, class_="note") if chart.note else None
    return el("figure", el("figcaption", el("b", chart.title), key), body, note or el("p", class_="note"))


def key_of(lines: Sequence[Line]) -> Html:
    """Colour and name of each line."""
    return el("span", *(_key(line) for line in lines), class_="key")


def sparkline(points: Sequence[Point], *, slot: int = 0) -> Html:
    """A word-sized line without axes; nothing for fewer than two points."""
    points = Line("", points).finite
    if len(points) < 2:
        return Html("")
    x = _Scale(*_spread([p[0] for p in points]), 2, 94)
    y = _Scale(*_spread([p[1] for p in points]), 19, 3)
    last = points[-1]
    return el(
        "svg",
        el("path", d=_path(points, x, y), class_=f"line s{slot}"),
        el("circle", cx=x(last[0]), cy=y(last[1]), r=2.2, class_=f"dot s{slot}"),
        viewBox="0 0 96 22",
        class_="spark",
        aria_hidden="true",
    )


def thinned(points: Sequence[Point], limit: int = _POINTS) -> list[Point]:
    """At most `limit` points; where there are more, the means of equal bins."""
    if len(points) <= limit:
        return list(points)
    bins = [points[i * len(points) // limit : (i + 1) * len(points) // limit] for i in range(limit)]
    return [(sum(p[0] for p in b) / len(b), sum(p[1] for p in b) / len(b)) for b in bins]


def smoothed(points: Sequence[Point]) -> list[Point]:
    """The centred means over a tenth of the series; nothing for a series too short to need them."""
    half = len(points) // 20
    if half < 1:
        return []
    means = []
    for i, (px, _) in enumerate(points):
        reach = min(half, i, len(points) - 1 - i)  # narrower at the ends, so that it stays centred
        window = [y for _, y in points[i - reach : i + reach + 1]]
        means.append((px, sum(window) / len(window)))
    return means


def _shown(value: float) -> str:
    return f"{value:.4g}".replace("-", MINUS)


def ticks(low: float, high: float, count: int = 4, *, whole: bool = False) -> list[float]:
    """About `count` round numbers (1, 2 or 5 times a power of ten apart) within [low, high]; `whole` ones if asked."""
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= 0.6 * rough)
    step = max(step, 1.0) if whole else step
    first, last = math.ceil(low / step - 1e-6), math.floor(high / step + 1e-6)
    return [round(i * step, 12) for i in range(first, last + 1)]


def tick_text(value: float) -> str:
    """A tick as short as it can be: 0.25, 40, 12k, 3e−4."""
    if value and abs(value) < 1e-3:
        mantissa, exponent = f"{value:e}".split("e")
        shown = f"{float(mantissa):g}e{int(exponent)}"
    else:
        shown = f"{value / 1000:g}k" if abs(value) >= 10_000 else f"{value:g}"
    return shown.replace("-", MINUS)


def _spread(values: Sequence[float]) -> Point:
    low, high = min(values), max(values)
    if high - low < 1e-9 * max(1.0, abs(high)):
        pad = abs(high) * 0.1 or 1.0
        return low - pad, high + pad
    return low, high


def _padded(values: Sequence[float]) -> Point:
    low, high = _spread(values)
    pad = 0.06 * (high - low)
    return (0.0 if 0 <= low < 4 * pad else low - pad), high + pad


def _draw(chart: Chart, lines: Sequence[Line]) -> Html:
    right = [line for line in lines if line.right]
    left = [line for line in lines if not line.right]
    edge = WIDTH - (_AXIS_RIGHT if right else _RIGHT)
    x = _Scale(*(chart.x_range or _spread([p[0] for line in lines for p in line.finite])), _LEFT, edge)
    span = (HEIGHT - _BOTTOM, _TOP)
    of_left = chart.y_range or (_padded([p[1] for line in left for p in line.finite]) if left else (0.0, 1.0))
    y = _Scale(*of_left, *span)
    parts = [_y_axis(y, edge, chart.y_label), _x_axis(x, chart.x_label, edge)]
    y_right = y
    if right:
        y_right = _Scale(*_padded([p[1] for line in right for p in line.finite]), *span)
        parts.append(_right_axis(y_right, edge, chart.y_label_right))
    parts += [_mark(x, at, word) for at, word in chart.marks if x.low <= at <= x.high]
    parts += [_line(line, x, y_right if line.right else y) for line in lines]
    summary = "; ".join(
        f"{line.name or chart.title} from {line.finite[0][1]:.4g} to {line.finite[-1][1]:.4g}" for line in lines
    )
    size = f"0 0 {WIDTH} {HEIGHT}"
    label = f"{chart.title}: {summary}"
    of_x = {"data_x": x.words(), "data_label": chart.x_label}
    return el("svg", *parts, viewBox=size, role="img", aria_label=label, class_="chart", **of_x)


def _y_axis(y: _Scale, edge: float, label: str) -> Html:
    parts: list[Html] = []
    for value in ticks(y.low, y.high):
        parts.append(el("path", d=f"M{_LEFT} {y(value)}H{edge}", class_="zero" if value == 0 else "grid"))
        parts.append(el("text", tick_text(value), x=_LEFT - 6, y=y(value) + 4, class_="end"))
    if label:
        parts.append(_turned(label, 10, -90))
    return join(*parts)


def _right_axis(y: _Scale, edge: float, label: str) -> Html:
    parts = [el("text", tick_text(value), x=edge + 6, y=y(value) + 4) for value in ticks(y.low, y.high)]
    return join(*parts, _turned(label, WIDTH - 8, 90) if label else None)


def _turned(label: str, at: float, angle: int) -> Html:
    middle = (HEIGHT - _BOTTOM + _TOP) / 2
    return el("text", label, x=at, y=middle, transform=f"rotate({angle} {at} {middle})", class_="mid label")


def _x_axis(x: _Scale, label: str, edge: float) -> Html:
    base = HEIGHT - _BOTTOM
    parts = [el("path", d=f"M{_LEFT} {base}H{edge}", class_="axis")]
    for value in ticks(x.low, x.high, 5, whole=label in (STEP, ROUND)):
        parts.append(el("path", d=f"M{x(value)} {base}v3", class_="axis"))
        parts.append(el("text", tick_text(value), x=x(value), y=base + 15, class_="mid"))
    parts.append(el("text", label, x=(_LEFT + edge) / 2, y=HEIGHT - 5, class_="mid label"))
    return join(*parts)


def _mark(x: _Scale, at: float, word: str) -> Html:
    near_end = x(at) > WIDTH * 0.75
    text = el("text", word, x=x(at) + (-4 if near_end else 4), y=_TOP + 6, class_="end label" if near_end else "label")
    return join(el("path", d=f"M{x(at)} {_TOP}V{HEIGHT - _BOTTOM}", class_="mark"), text)


def _line(line: Line, x: _Scale, y: _Scale) -> Html:
    dotted = line.style == "dots" and len(line.finite) <= _DOTS
    points = line.finite if dotted else thinned(line.finite)
    dashed = " dashed" if line.slot >= SLOTS else ""
    colour = f"s{line.slot % SLOTS}"
    path = el(
        "path", d=_path(points, x, y), class_=f"{line.style} {colour}{dashed}", data_name=line.name, data_y=y.words()
    )
    parts = [path]
    if dotted:
        for number, (px, py) in enumerate(points):
            radius = line.radii[number] if line.radii else 2.6
            title = el("title", f"{line.name}: " if line.name else "", f"{tick_text(px)}, {_shown(py)}")
            parts.append(el("circle", title, cx=x(px), cy=y(py), r=round(radius, 1), class_=f"dot {colour}"))
    if line.style == "rough" and (smooth := smoothed(points)):
        parts.append(el("path", d=_path(smooth, x, y), class_=f"smooth {colour}{dashed}"))
    for (px, py), word in zip(points, line.labels, strict=False):
        parts.append(el("text", word, x=x(px) + 5, y=y(py) - 5, class_="label"))
    return join(*parts)


def _path(points: Sequence[Point], x: Callable[[float], float], y: Callable[[float], float]) -> str:
    return "M" + "L".join(f"{x(px):g} {y(py):g}" for px, py in points)


def _key(line: Line) -> Html:
    dashed = " dashed" if line.slot >= SLOTS else ""
    sample = el(
        "svg",
        el("path", d="M1 5H17", class_=f"line s{line.slot % SLOTS}{dashed}"),
        el("circle", cx=9, cy=5, r=2.6, class_=f"dot s{line.slot % SLOTS}") if line.style == "dots" else None,
        viewBox="0 0 18 10",
        aria_hidden="true",
    )
    return el("span", sample, el("bdi", line.name))
