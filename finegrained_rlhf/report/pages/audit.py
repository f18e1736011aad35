"""Do the segments lie on tokens, and where does the time of a step go?"""

from __future__ import annotations

from finegrained_rlhf.report.elements.html import Html, el, isolated, join, number
from finegrained_rlhf.report.elements.page import table
from finegrained_rlhf.report.pages.verdict import duration
from finegrained_rlhf.report.runs.measures import series
from finegrained_rlhf.report.runs.record import RunRecord
from finegrained_rlhf.runtime.directory.samples import SampleRecord
from finegrained_rlhf.text.alignment import AlignmentAudit, audit_alignment

PHASES = ("rollout", "rewards", "scoring", "update")


def alignment_part(record: RunRecord) -> Html:
    """Share of segments that end at exactly one token, over the run; by component what the kept samples can show.

    Samples hold offsets but no token ids: whether a map is sound in form, and which ends lie inside a token.
    """
    shares = [share for _, share in series([*record.steps, *record.validations], "alignment")]
    lowest = (
        f"Over all {len(shares)} steps and validations the lowest share was {min(shares):.2%}."
        if shares
        else "The metrics have no alignment."
    )
    responses = [r for kept in (record.samples, record.answers) for rows in kept.values() for r in rows]
    with_tokens = [response for response in responses if response.tokens is not None]
    rows = []
    for name in record.components:
        audit = _audit(with_tokens, name)
        counts = [sum(s.component == name for s in r.segments) for r in responses]
        mean = sum(counts) / len(counts) if counts else None
        share, inside = (f"{x:.2%}" if audit.segments else "–" for x in (audit.share, audit.inside_share))
        rows.append([isolated(name), number(sum(counts)), number(mean, 2), share, inside])
    head = ["component", "segments kept", "a response", "on a sound token map", "inside a token"]
    without = len(responses) - len(with_tokens)
    note = (
        f" {without} of {len(responses)} kept responses have no token records and are not counted." if without else ""
    )
    return join(el("p", lowest, note), el("div", table(head, rows), class_="fit"))


def timing_part(record: RunRecord) -> Html:
    """Where the time of a step goes."""
    by_phase = {phase: series(record.steps, f"time/{phase}_s") for phase in PHASES}
    sums = {phase: sum(value for _, value in points) for phase, points in by_phase.items() if points}
    total_s = sum(sums.values())
    if not total_s:
        return el("p", "No phase was timed.", class_="none")
    bar = el(
        "div",
        *(el("i", class_=f"s{i}", style=f"flex:{sums[p] / total_s:.4f}") for i, p in enumerate(sums)),
        class_="bar",
    )
    rows = []
    for i, phase in enumerate(sums):
        rate = [value for _, value in series(record.steps, f"time/{phase}_tokens_per_s")]
        mark = el("i", class_=f"swatch s{i}")
        mean = sums[phase] / len(by_phase[phase])
        speed = number(sum(rate) / len(rate), 0) if rate else "–"
        rows.append([join(mark, phase), f"{sums[phase] / total_s:.1%}", number(mean), speed])
    head = ["phase", "share", "seconds a step", "tokens a second"]
    total = f"{duration(total_s)} in these phases over {len(record.steps)} steps."
    return join(el("p", total), bar, table(head, rows))


def _audit(responses: list[SampleRecord], component: str) -> AlignmentAudit:
    texts, ends, spans = [], [], []
    for response in responses:
        if response.tokens is not None:
            texts.append(response.text)
            ends.append(response.tokens.ends)
            spans.append([(s.start, s.end) for s in response.segments if s.component == component and s.end > 0])
    return audit_alignment(texts, ends, spans)
