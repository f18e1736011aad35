"""matplotlib as the project uses it: no display, colours for everyone, the same bytes for the same numbers.

matplotlib is imported when a plot is asked for; without it, one error says what to install.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.files import atomic_path

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Okabe and Ito's, which the colour-blind tell apart."""
INK = "#222222"


def load_pyplot(what: str = "the figure", extra: str = "plots") -> ModuleType:
    """Matplotlib's pyplot, drawing into files alone.

    Args:
        what: needs it, for the error.
        extra: of this package that holds it, for the error.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError:
        raise ConfigError(f"{what} needs matplotlib: pip install -e '.[{extra}]' in a checkout") from None
    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.hashsalt": "finegrained-rlhf", "font.size": 9, "text.color": INK})
    from matplotlib import pyplot

    return pyplot


def row_of_axes(pyplot: ModuleType, count: int, columns: int | None = None) -> tuple[Any, list[Any]]:
    """A white figure with `count` plots, `columns` a row or all in one, without frames at the top and the right."""
    columns = columns or count
    rows = -(-count // columns)
    figure, axes = pyplot.subplots(
        rows, columns, figsize=(4.4 * columns, 3.9 * rows), layout="constrained", facecolor="white", squeeze=False
    )
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
    for axis in axes.flat[count:]:
        axis.set_visible(False)
    return figure, list(axes.flat[:count])


def save_figure(pyplot: ModuleType, figure: Any, *paths: Path) -> None:
    """Write a figure as SVG or PNG, by the end of each path, and close it."""
    for path in paths:
        with atomic_path(path) as temporary:
            if path.suffix == ".svg":
                figure.savefig(temporary, format="svg", metadata={"Date": None})
            else:
                figure.savefig(temporary, format="png", dpi=150)
    pyplot.close(figure)
