"""The table of a sweep in Markdown, and the words for its columns."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from finegrained_rlhf.text.tables import cell, markdown_table

EXPORTED = "exported step"
"""Heading of the column that says which policy a row is measured at."""
_WORDS = {
    "rouge_lsum": "RougeLSum",
    "mean_words": "words an answer",
    "mean_tokens": "tokens an answer",
    "finished_share": "finished",
    "reward/total": "weighted total",
}


def metric_words(metric: str) -> str:
    """A metric of `finegrained evaluate` in words: `reward/facts/error_free_share` is "facts: error free share"."""
    if metric in _WORDS:
        return _WORDS[metric]
    if match := re.fullmatch(r"reward/(.+)/([^/]+)", metric):
        return f"{match[1]}: {match[2].replace('_', ' ')}"
    return metric.replace("_", " ")


def key_words(key: str) -> str:
    """A swept key in words: a weight by its component, another key by its last part."""
    if key.startswith("reward.weights."):
        return f"weight of {key.removeprefix('reward.weights.')}"
    return key.rpartition(".")[2].replace("_", " ")


def exported_words(steps: Sequence[int | None]) -> str:
    """Which steps the exported policies of a row are of, and that one is the initial policy where it is."""
    known = sorted({step for step in steps if step is not None})
    if not known:
        return ""
    if known == [0]:
        return "0 = initial policy"
    shown = str(known[0]) if len(known) == 1 else f"{known[0]}–{known[-1]}"
    initial = sum(step == 0 for step in steps)
    return f"{shown} ({initial} of {len(steps)} = initial policy)" if initial else shown


def sweep_table_page(result: Mapping[str, Any]) -> str:
    """The page of a sweep or of its results file, in Markdown."""
    labels, rows, averaged = result["metrics"], result["rows"], result["average_over"]
    in_columns = {f"reward.weights.{name}" for row in rows for name in row["weights"]} & {*result["swept"], *averaged}
    weights = [name for row in rows for name in row["weights"] if f"reward.weights.{name}" not in in_columns]
    swept = [*result["swept"], *(f"w {name}" for name in dict.fromkeys(weights))]
    keys = [*swept, *(key for key in averaged if any(key in row["swept"] for row in rows))]

    def line(entry: Mapping[str, Any], numbers: Mapping[str, Any]) -> dict[str, Any]:
        named = {f"w {name}": f"{value:g}" for name, value in entry["weights"].items()}
        policy = entry.get("exported")
        step = exported_words(policy if isinstance(policy, list) else [policy])
        which = {EXPORTED: step} if step else {}
        return {
            "system": entry["system"],
            **named,
            **entry["swept"],
            **which,
            **{labels[k]: v for k, v in numbers.items()},
        }

    means = [
        {**line(entry, {name: spread(entry["metrics"][name], entry["n"]) for name in labels}), "n": entry["n"]}
        | {"front": "*" if entry["front"] else ""}
        for entry in result["summary"]
    ]
    runs = [line(row, {name: row["metrics"][name] for name in labels}) for row in rows]
    seeds = ", ".join(map(str, result["seeds"]))
    which = [EXPORTED] if any(EXPORTED in line for line in runs) else []
    over = f"seed{'s' * (len(result['seeds']) > 1)} {seeds}" if averaged == ["seed"] else ", ".join(averaged)
    front = ["front"] if result["pareto"] else []
    parts = [f"# {result['title']}\n", f"{result['description']}\n" if result["description"] else ""]
    parts += [f"`{result['command']}` at commit `{result['commit']}`\n"]
    if rows:
        parts += [f"## Mean ± standard deviation over {over}\n" if averaged else "## Points\n"]
        parts += [
            markdown_table(means, ["system", *swept, *which, "n", *labels.values(), *front]),
            _axes_line(result["pareto"]),
        ]
        parts += ["## Every run\n", markdown_table(runs, ["system", *keys, *which, *labels.values()])]
        sides = "points may have run side by side"
        parts += [f"The minutes of all points add up to {result['minutes']:.0f}; {sides}.\n"]
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
