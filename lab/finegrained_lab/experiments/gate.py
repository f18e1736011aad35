"""When a table whose rows were judged by a learned model counts as evidence.

Its judge must pass the stress test on the table's questions, and rank people's answers no lower than SFT's, and SFT's
above the cut lead of the passages. Whatever a judge that fails says of two systems may be what the failure pays for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from finegrained_lab.experiments.intervals import difference_interval, share_interval
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.metrics.stress import WEAK, rows_of, weaknesses
from finegrained_rlhf.text.tables import markdown_table

GOLD, SFT, CUT_LEAD = "gold", "sft", "cut_lead"
_STAGES = ((GOLD, SFT), (SFT, CUT_LEAD))


def judge_gate(
    totals: Mapping[str, Sequence[float]],
    stress: Mapping[str, Any] | None,
    judge: str,
    roles: Sequence[str] = ("relevance", "factuality", "completeness", "total"),
) -> dict[str, Any]:
    """Whether a judge's verdicts count, and if not, why.

    Args:
        totals: what the judge gives each question's answer, [Q] in one order, by name: `gold`, `sft`, `cut_lead`, and
            whatever else is to be shown.
        stress: the report of `finegrained stress-test` on the same questions; None where the judge was not attacked.
        judge: what it is, in a few words.
        roles: of the report, that must hold.

    Returns:
        `passed`; `reasons`, one a failed condition; `judge`; `rows` by name (`mean`, `low`, `high`); `order`, the
        differences that must be above 0 (`value`, `low`, `high`, and `share`, of questions in which the first has
        more).

    Raises:
        DataError: one of the three is missing, or they have different numbers of questions.
    """
    if lacking := [name for name in (GOLD, SFT, CUT_LEAD) if not totals.get(name)]:
        raise DataError(f"a judge is known by what it gives {GOLD}, {SFT} and {CUT_LEAD}; {lacking[0]} is missing")
    ones = [1.0] * len(totals[GOLD])
    order, reasons = {}, []
    for better, worse in _STAGES:
        first, second = totals[better], totals[worse]
        difference = fmean(first) - fmean(second)
        low, high = difference_interval((first, ones), (second, ones))
        share = fmean(float(a > b) for a, b in zip(first, second, strict=True))
        order[f"{better} less {worse}"] = {"value": difference, "low": low, "high": high, "share": share}
        if difference < 0 or (worse == CUT_LEAD and low <= 0):
            reasons.append(
                f"{better} is not above {worse}: {difference:+.3f} [{low:+.3f}, {high:+.3f}], more in {share:.0%} of "
                f"{len(first)} questions"
            )
    if stress is None:
        reasons.append("no stress test of the judge on these questions")
    else:
        reasons += [f"stress test: {role}: {weak.words}" for role in roles for weak in weaknesses(stress, role)]
        if not any(True for role in roles for _ in rows_of(stress, role)):
            reasons.append("the stress test of the judge changed nothing")
    rows = {
        name: dict(zip(("mean", "low", "high"), (fmean(of), *share_interval(of, ones)), strict=True))
        for name, of in totals.items()
    }
    return {"passed": not reasons, "reasons": reasons, "judge": judge, "rows": rows, "order": order}


def gate_page(gate: Mapping[str, Any]) -> str:
    """The part of a page that says whether its judge's verdicts count."""
    verdict = (
        "**The judge passes**: these rows count as evidence."
        if gate["passed"]
        else "**The judge does not pass, so that no row of this page is evidence for or against a system:**\n\n"
        + "\n".join(f"- {reason}" for reason in gate["reasons"])
    )
    rows = [{"answer": name, "mean total [95% over questions]": _shown(of["mean"], of)} for name, of in _by_mean(gate)]
    order = [
        {"must be above 0": name, "difference": _shown(of["value"], of), "questions with more": f"{of['share']:.0%}"}
        for name, of in gate["order"].items()
    ]
    return (
        f"## Does the judge count?\n\nA judge counts if it gives people's answers no less than SFT's, SFT's more than "
        f"the first words of the first passage cut off (`cut_lead`), and ranks {WEAK:.0%} of every change of the "
        f"stress test (`finegrained stress-test`) right. Judge: {gate['judge']}.\n\n{verdict}\n\n"
        f"{markdown_table(order, list(order[0]))}\n{markdown_table(rows, list(rows[0]))}"
    )


def _by_mean(gate: Mapping[str, Any]) -> list[tuple[str, Mapping[str, float]]]:
    return sorted(gate["rows"].items(), key=lambda row: -row[1]["mean"])


def _shown(value: float, of: Mapping[str, float]) -> str:
    return f"{value:.3f} [{of['low']:.2f}, {of['high']:.2f}]"
