"""Draw the rooms of the package by floor, with who imports whom, from the code itself.

Example: python docs/site/house.py        (writes docs/images/house.svg)

The floors are the layers that import-linter checks (pyproject.toml); the arrows are the imports found in the source.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "docs/images/house.svg"
PACKAGE = "finegrained_rlhf"
_WIDTH, _ROW, _BOX_HEIGHT, _LEFT, _TOP, _SIDE = 1200, 92, 56, 60, 64, 190
_STYLE = """
    text { font: 13px system-ui, sans-serif; fill: #1f2933 }
    .name { font-weight: 600; font-size: 14px }
    .small { font-size: 11px; fill: #52606d }
    .title { font-weight: 600; font-size: 17px }
    rect { fill: #f5f7fa; stroke: #7b8794; rx: 6 }
    .beside { fill: #eef6ee; stroke: #5c8a5c }
    path { fill: none; stroke: #3e63dd; stroke-opacity: .28 }
    @media (prefers-color-scheme: dark) {
      text { fill: #e4e7eb } .small { fill: #9aa5b1 } rect { fill: #1f2933; stroke: #7b8794 }
      .beside { fill: #1e2b1e } path { stroke: #9eb1ff }
    }"""


def floors() -> list[list[str]]:
    """The rooms of each floor, from the top floor down, as import-linter's contract names them."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contract = next(c for c in config["tool"]["importlinter"]["contracts"] if c["name"] == "Imports point down")
    return [layer.translate(str.maketrans("|:()", "    ")).split() for layer in contract["layers"]]


def modules(package: str) -> list[Path]:
    """The source files of a package below the root, those of rooms inside it included."""
    return sorted((ROOT / package).rglob("*.py"))


def imported(path: Path) -> Iterator[str]:
    """The dotted names that a file imports, type-checking imports included."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def arrows(rooms: list[str]) -> set[tuple[str, str]]:
    """(room, room that it imports); `reward_models` counts as a room."""
    found = set()
    for room in [*rooms, "reward_models"]:
        for path in modules(room if room == "reward_models" else f"{PACKAGE}/{room}"):
            for name in imported(path):
                parts = name.split(".")
                target = parts[1] if parts[0] == PACKAGE and len(parts) > 1 else parts[0]
                if target != room and target in rooms:
                    found.add((room, target))
    return found


def says(package: str) -> str:
    """What a package's docstring says of it: the first sentence, without the floor."""
    text = ast.get_docstring(ast.parse((ROOT / package / "__init__.py").read_text(encoding="utf-8"))) or ""
    first = " ".join(text.split("\n\n")[0].split())
    if first.startswith("Floor "):
        first = first.partition(": ")[2]
    return first.partition(". ")[0].rstrip(".")


def wrapped(text: str, width: int, lines: int = 2) -> list[str]:
    """A text in at most so many lines of about so many characters; what is left out becomes an ellipsis."""
    rows = [""]
    for word in text.split():
        if len(rows[-1]) + len(word) + 1 > width and rows[-1]:
            rows.append("")
        rows[-1] = f"{rows[-1]} {word}".strip()
    return rows if len(rows) <= lines else [*rows[: lines - 1], rows[lines - 1].rstrip(",;:") + " …"]


def boxes(layers: list[list[str]]) -> dict[str, tuple[float, float, float]]:
    """Room → left edge, top edge and width in pixels."""
    places = {}
    for row, rooms in enumerate(layers):
        width = (_WIDTH - _LEFT - _SIDE - 40) / len(rooms)
        for column, room in enumerate(rooms):
            places[room] = (_LEFT + column * width + 6, _TOP + row * _ROW, min(width - 12, 520))
    return places


def box(name: str, package: str, place: tuple[float, float, float], kind: str = "") -> str:
    """One room: its name, its number of modules and what it says of itself."""
    x, y, width = place
    count = sum(path.name != "__init__.py" for path in modules(package))
    lines = [f'<text class="name" x="{x + 10:.0f}" y="{y + 20:.0f}">{escape(name)}</text>']
    lines.append(f'<text class="small" x="{x + width - 8:.0f}" y="{y + 20:.0f}" text-anchor="end">{count}</text>')
    for number, line in enumerate(wrapped(says(package), int(width / 6.6))):
        lines.append(f'<text class="small" x="{x + 10:.0f}" y="{y + 36 + 13 * number:.0f}">{escape(line)}</text>')
    rect = f'<rect class="{kind}" x="{x:.0f}" y="{y:.0f}" width="{width:.0f}" height="{_BOX_HEIGHT}"/>'
    return "\n".join([rect, *lines])


def picture_of_the_house() -> str:
    """The picture as SVG."""
    layers = floors()
    places = boxes(layers)
    bottom = _TOP + len(layers) * _ROW
    side = (_WIDTH - _SIDE - 20.0, float(_TOP + (len(layers) - 4) * _ROW), float(_SIDE))
    lines = []
    for room, target in sorted(arrows([room for rooms in layers for room in rooms])):
        x, y, width = side if room == "reward_models" else places[room]
        to_x, to_y, to_width = places[target]
        start, end = (x + width / 2, y + _BOX_HEIGHT), (to_x + to_width / 2, to_y)
        if end[1] <= start[1]:  # beside it
            continue
        middle = (start[1] + end[1]) / 2
        lines.append(
            f'<path d="M{start[0]:.0f},{start[1]:.0f} C{start[0]:.0f},{middle:.0f} {end[0]:.0f},{middle:.0f} '
            f'{end[0]:.0f},{end[1]:.0f}"/>'
        )
    for row in range(len(layers)):
        y = _TOP + row * _ROW + _BOX_HEIGHT / 2 + 5
        lines.append(f'<text class="title" x="22" y="{y:.0f}">{len(layers) - 1 - row}</text>')
    lines += [box(room, f"{PACKAGE}/{room}", place) for room, place in places.items()]
    lines.append(box("reward_models", "reward_models", side, "beside"))
    head = f'<text class="title" x="{_LEFT}" y="32">{PACKAGE}: imports point down; the number is that of modules</text>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {bottom}" role="img" '
        f'aria-label="The rooms of {PACKAGE} by floor">\n<style>{_STYLE}\n</style>\n'
        + "\n".join([head, *lines])
        + "\n</svg>\n"
    )


if __name__ == "__main__":
    PICTURE.write_text(picture_of_the_house(), encoding="utf-8")
    print(PICTURE.relative_to(ROOT), file=sys.stderr)
