"""What reweighing found, as text for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from finegrained_rlhf.text.tables import markdown_table

NUMBERS = ("total_before", "total_now", "tau", "best_changes", "advantage_correlation", "advantage_flips")
"""What is averaged over steps, in the order of the table."""
_HEADINGS = ("total before", "total now", "Kendall τ_b", "best changes", "advantages r", "signs change")

_SHOWN = 200
"""Characters of a prompt that are printed; the file has all."""


def report_text(report: Mapping[str, Any], examples: int) -> str:
    """The report for people: a table of the steps, one of the components, the prompts that change most."""
    before, now, mean, steps = report["before"], report["now"], report["mean"], report["steps"]
    rows = [{"step": step["step"], **_row(step)} for step in steps]
    rows += [{"step": "mean", **_row(mean)}] if len(steps) > 1 else []
    components = [
        {
            "component": name,
            "weight": weight,
            "now": now["weights"][name],
            "share of variance": mean["shares_before"].get(name),
            "share now": mean["shares_now"].get(name),
            "settings": _differences(before["settings"][name], now["settings"][name]) or None,
        }
        for name, weight in before["weights"].items()
    ]
    columns = [key for key in components[0] if key != "settings" or any(row[key] for row in components)]
    parts = [markdown_table(rows, ["step", *_HEADINGS]), markdown_table(components, columns)]
    if report["moved"]:
        parts.append("The run's weights moved from step to step: those of the table are means over the steps.\n")
    if before == now:
        parts.append("Nothing is changed: give reward.weights.NAME=NUMBER or reward.settings.NAME.aggregation=mean.\n")
    part = [str(step["step"]) for step in steps if not step["complete"]]
    if part:
        parts.append(
            f"Of step {', '.join(part)} not all responses were kept: rewards and advantages are whitened by the "
            "statistics of those that were, before and now.\n"
        )
    count = len(report["new_best"])
    if count and examples:
        parts.append(f"Prompts with a new best sample: {count}. Those that gain most:\n")
    return "\n".join([*parts, *(_example(example) for example in report["new_best"][:examples])])


def _row(step: Mapping[str, Any]) -> dict[str, Any]:
    return {heading: step[key] for key, heading in zip(NUMBERS, _HEADINGS, strict=True)}


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {before[key]} → {now[key]}" for key in before if before[key] != now[key])


def _example(example: Mapping[str, Any]) -> str:
    prompt = example["prompt"] if len(example["prompt"]) <= _SHOWN else f"{example['prompt'][:_SHOWN]}…"
    lines = [f"step {example['step']}, {example['id']}: {prompt}"]
    for which in ("before", "now"):
        best = example[which]
        totals = f"total {best['total_before']:.3f}, now {best['total_now']:.3f}"
        lines.append(f"  best {which} (sample {best['sample']}, {totals}): {best['response']}")
    return "\n".join(lines) + "\n"
