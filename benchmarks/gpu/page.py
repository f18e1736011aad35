"""The page of what was measured: every item, whether it passed, and its numbers. Knows results, not how they came."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.gpu.items import Item, Result, passed
from finegrained_rlhf.text.tables import markdown_table

_LEFT_OUT = {"settings", "seconds", "equal", "targets", "phases", "model", "error", "cut_off", "response_tokens"}
_TABLES = ("warm_up", "rounds", "rows", "steps", "kernels", "operations")
"""Keys under which results have rows."""


def page(machine: Mapping[str, Any], results: Sequence[tuple[Item, Result | None]]) -> str:
    """Markdown of all items in order."""
    name = machine["gpu"] or machine["cpu"]
    lines = [f"# {name}", "", ", ".join(f"{key} {value}" for key, value in machine.items() if value is not None), ""]
    lines += [_overview(results)]
    for part in dict.fromkeys(item.part for item, _ in results):
        lines += [f"## {part}", ""]
        for item, result in results:
            if item.part == part and result is not None:
                lines += [f"### {item.name}", "", *_section(result)]
    return "\n".join(lines).rstrip() + "\n"


def _overview(results: Sequence[tuple[Item, Result | None]]) -> str:
    rows = []
    for part in dict.fromkeys(item.part for item, _ in results):
        mine = [result for item, result in results if item.part == part]
        begun = [result for result in mine if result is not None]
        done = [result for result in begun if "cut_off" not in result]
        seconds = sum(result["seconds"] for result in done)
        rows.append(
            {
                "part": part,
                "measured": f"{len(done)} of {len(mine)}",
                "passed": f"{sum(map(passed, done))} of {len(done)}",
                "cut off": str(len(begun) - len(done)),
                "seconds": f"{seconds:.0f}",
            }
        )
    return markdown_table(rows, list(rows[0])) + "\n"


def _section(result: Result) -> list[str]:
    lines: list[str] = []
    if "error" in result:
        lines += [f"Failed: {result['error']}", ""]
    if "cut_off" in result:
        lines += [f"Cut off after {result['seconds']:.0f} s: not measured whole, this is what there was.", ""]
    if "model" in result:
        lines += [f"{result['model']}:", ""]
    checks = {**result.get("equal", {}), **result.get("targets", {})}
    if checks:
        rows = [
            {"check": name, "value": _number(check["value"]), "at most": _number(check["tolerance"]),
             "": "passed" if check["ok"] else "FAILED"}
            for name, check in checks.items()
        ]  # fmt: skip
        lines += _table(rows)
    if result.get("phases"):
        lines += _table([{"phase": name, **phase} for name, phase in result["phases"].items()])
    tables = [name for name in _TABLES if isinstance(result.get(name), list)]
    for name in tables:
        if result[name]:
            lines += [f"{name}:", "", *_table(result[name])]
    lines += [
        f"- {name}: {_shown(value)}" for name, value in result.items() if name not in _LEFT_OUT and name not in tables
    ]
    return [*lines, ""]


def _table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """With a line after it."""
    shown = [{key: _number(value) for key, value in row.items()} for row in rows]
    return [markdown_table(shown, list(shown[0])), ""]


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_shown(part)}" for key, part in value.items())
    return _number(value)


def _number(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
