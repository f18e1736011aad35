"""The report of one run, put together: its state, its course, the answers to one prompt over time, alignment and
timing.

The order of answers is given without a script; search, sorting and filters need one.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from finegrained_rlhf.core.checks import is_number
from finegrained_rlhf.report.charts.curves import reward_curves, training_curves, truth_curves
from finegrained_rlhf.report.charts.heatmap import heat_style, sum_of
from finegrained_rlhf.report.charts.svg import sparkline
from finegrained_rlhf.report.elements.html import Html, el, isolated, join, number, signed
from finegrained_rlhf.report.elements.page import PageSection, heading_row, list_tools, page, sort_values, table
from finegrained_rlhf.report.pages.samples import before_and_after, by_step, shown_export, step_name
from finegrained_rlhf.report.pages.trust import drift_parts, injection_parts, trust_parts
from finegrained_rlhf.report.pages.verdict import (
    answers_to_three_questions,
    between,
    cautions_box,
    duration,
    policy_name,
    price_line,
    warnings_box,
)
from finegrained_rlhf.report.runs.measures import Measure, price_measures, reward_measures, series, true_measures
from finegrained_rlhf.report.runs.record import RunRecord
from finegrained_rlhf.report.runs.settings import configuration_details, moving_words
from finegrained_rlhf.runtime.directory.samples import SampleRecord
from finegrained_rlhf.text.alignment import AlignmentAudit, audit_alignment

OPEN = 3
"""Prompts that are open; the rest unfolds."""
AGAIN = 12
"""Training prompts that are shown, of those that were drawn again."""


def timelines(record: RunRecord) -> Html | None:
    """Every kept validation prompt with its answers over training, then training prompts that were drawn again."""
    validation = _by_prompt(record.answers)
    again = {key: rows for key, rows in _by_prompt(record.samples).items() if len(rows) > 1}
    if not validation and not again:
        return None
    best = shown_export(record)
    parts: list[Html | None] = []
    if validation:
        order = sorted(validation, key=lambda key: _shown(validation[key], best).total)
        parts.append(_list(record, "history", {key: validation[key] for key in order}, validation=True))
    lead = (
        f"Training prompts that were drawn in several of the {len(record.samples)} steps read here: {len(again)}."
        if again
        else "No training prompt was drawn twice in the steps whose samples are read here."
    )
    if record.samples:
        parts.append(el("h3", "Sampled answers to training prompts"))
        parts.append(el("p", lead, class_="note"))
    if again:
        parts.append(_list(record, "again", dict(list(again.items())[:AGAIN]), validation=False))
    return join(*parts)


def changed_words(before: str, now: str) -> list[tuple[str, bool]]:
    """`now` in pieces, each with whether it is new against `before`: words are compared, white space is kept."""
    old, new = (re.findall(r"\s+|\S+", text) for text in (before, now))
    pieces: list[tuple[str, bool]] = []
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for tag, _, _, start, end in matcher.get_opcodes():
        if start < end:
            pieces.append(("".join(new[start:end]), tag != "equal"))
    return pieces


def _list(record: RunRecord, name: str, prompts: Mapping[str, Mapping[int, SampleRecord]], *, validation: bool) -> Html:
    drawn = [_prompt(record, rows, validation=validation) for rows in prompts.values()]
    rest = el("details", el("summary", f"{len(drawn) - OPEN} more"), *drawn[OPEN:]) if len(drawn) > OPEN else None
    tools = list_tools(name, record.components)
    return el("div", tools, el("div", *drawn[:OPEN], rest, class_="body"), class_="list", data_open=OPEN)


def _prompt(record: RunRecord, rows: Mapping[int, SampleRecord], *, validation: bool) -> Html:
    shown = _shown(rows, shown_export(record) if validation else None)
    references = record.references.get(shown.prompt, ())
    entries, before = [], None
    for step, row in rows.items():
        # A training sample is drawn before its step's update: no policy that is exported wrote it.
        heading = step_name(record, step) if validation else f"step {step}"
        entries.append(_entry(record, heading, row, before))
        before = row
    reference = [el("p", el("b", "reference "), isolated(text), class_="reference") for text in references[:1]]
    prompt = el("div", isolated(shown.prompt), class_="prompt clamp")
    return el(
        "article", prompt, *reference, el("ol", *entries, class_="steps"), **sort_values(shown, record.components)
    )


def _entry(record: RunRecord, heading: str, row: SampleRecord, before: SampleRecord | None) -> Html:
    sums = [join(isolated(name), " ", el("b", sum_of(row, name))) for name in record.components]
    total = join("weighted total ", el("b", signed(row.total)))
    head = el("div", el("b", heading), *(el("span", s) for s in (*sums, total)), class_="sums")
    if before is not None and before.text == row.text:
        return el("li", head, el("p", "the same answer", class_="none"))
    pieces = changed_words(before.text, row.text) if before is not None else [(row.text, False)]
    text = [el("ins", piece) if new and piece.strip() else join(piece) for piece, new in pieces]
    return el("li", head, el("p", *(text or [el("span", "(empty)", class_="none")]), class_="said", dir="auto"))


def _shown(rows: Mapping[int, SampleRecord], best: int | None) -> SampleRecord:
    """The answer of the exported policy, or the last one."""
    return rows[best] if best is not None and best in rows else list(rows.values())[-1]


def _by_prompt(steps: Mapping[int, Sequence[SampleRecord]]) -> dict[str, dict[int, SampleRecord]]:
    """The first answer to each prompt by step."""
    by_prompt: dict[str, dict[int, SampleRecord]] = {}
    for step, rows in steps.items():
        for row in rows:
            by_prompt.setdefault(row.id, {}).setdefault(step, row)
    return by_prompt


def header(record: RunRecord) -> Html:
    """Title, what the run is, the three answers, warnings."""
    return el(
        "header",
        el("h1", isolated(record.name)),
        el("p", *_about(record), class_="about"),
        _stopped(record),
        cautions_box(record),
        answers_to_three_questions(record),
        warnings_box(record),
    )


def run_summary(record: RunRecord) -> Html:
    """First validation against that of the exported policy, measure by measure; the last one beside."""
    groups = [
        ("True quality, measured beside the reward", true_measures(record)),
        ("What the reward models say (validation)", reward_measures(record)),
        ("Price", price_measures(record)),
    ]
    if not record.validations:
        return el("p", "No validation to compare.", class_="none")
    with_last = record.validations[-1] is not record.best
    head = [f"step {record.validations[0]['step']}", policy_name(record), "change", "counts from"]
    head += [f"step {record.validations[-1]['step']}, last"] if with_last else []
    head_row = el("tr", el("th"), *(el("th", cell, class_="num") for cell in head), _course("th"))
    columns = len(head) + 2
    rows = [
        part
        for title, measures in groups
        if measures
        for part in (heading_row(title, columns), *(_row(measure, with_last) for measure in measures))
    ]
    return el("div", el("table", el("thead", head_row), el("tbody", *rows)), class_="scroll", tabindex=0)


def components_table(record: RunRecord) -> Html:
    """Weight and settings of each reward component."""
    rows = []
    for name in record.components:
        parts = (record.setting("reward", place, name) for place in ("settings", "components"))
        settings, scorer = (part if isinstance(part, Mapping) else {} for part in parts)
        rows.append(
            [
                isolated(name),
                _word(record.setting("reward", "weights", name)),
                _word(settings.get("normalisation", "none")),
                _word(settings.get("aggregation", "sum")),
                _word(settings.get("density", "segment")),
                _word(scorer.get("granularity")),
                isolated(scorer.get("path", scorer.get("_target_", "–"))),
            ]
        )
    head = ["component", "weight", "normalisation", "aggregation", "density", "segments", "scorer"]
    moving = [moving_words(record.config, name) for name in record.components]
    if any(moving):
        head.insert(2, "in training")
        for row, words in zip(rows, moving, strict=True):
            row.insert(2, isolated(words or "–"))
    return table(head, rows, words=len(head))


def _about(record: RunRecord) -> list[Any]:
    done = record.steps[-1]["step"] if record.steps else 0
    total = record.setting("total_steps")
    parts: list[Any] = [
        isolated(record.path),
        f"{number(done)} of {number(total)} steps" if total else f"{number(done)} steps",
        policy_name(record) if record.best else "no validation",
        *price_line(record),
        f"seed {record.setting('seed')}" if record.config else None,
        f"commit {record.commit}" if record.commit else None,
    ]
    weights = record.setting("reward", "weights") or {}
    if weights:
        parts.append(join("weights ", *between([join(isolated(k), " ", _word(v)) for k, v in weights.items()], ", ")))
    return between([part for part in parts if part is not None], " · ")


def _stopped(record: RunRecord) -> Html | None:
    """Why the run ended before its last step, or that it has not ended."""
    state = record.state
    if state.stop_reason:
        word = "Damaged: " if state.status == "damaged" else "Stopped early: "
        return el("p", el("b", word), isolated(state.stop_reason), ".", class_="state")
    if state.locked:
        return el("p", "Still training when this page was made.", class_="state")
    return None


def _row(measure: Measure, with_last: bool) -> Html:
    verdict = measure.verdict
    change = "–" if measure.change is None else signed(measure.change, 3, trim=False)
    colour = {"better": "good", "worse": "bad"}.get(verdict or "", "")
    word = f" {verdict}" if verdict in ("better", "worse") else ""
    return el(
        "tr",
        el("td", isolated(measure.name), el("span", measure.unit, class_="unit") if measure.unit else None),
        el("td", number(measure.first), class_="num"),
        el("td", number(measure.after), class_="num"),
        el("td", change, word, class_=f"num {colour}".strip()),
        el(
            "td",
            f"±{number(measure.threshold)}" if measure.better and measure.change is not None else "–",
            class_="num",
        ),
        el("td", number(measure.last), class_="num") if with_last else None,
        _course("td", sparkline(measure.points)),
    )


def _course(tag: str, content: Any = "over training") -> Html:
    return el(tag, content, class_="num course")


def _word(value: Any) -> Any:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else value


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
    ends = [100 * sum(list(sums.values())[:i]) / total_s for i in range(len(sums) + 1)]
    shares = [
        el("path", d=f"M{start:.2f} 0H{end:.2f}V10H{start:.2f}Z", class_=f"s{i}")
        for i, (start, end) in enumerate(zip(ends, ends[1:], strict=False))
    ]
    bar = el("svg", *shares, viewBox="0 0 100 10", preserveAspectRatio="none", class_="bar", aria_hidden="true")
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


CURVES = "Lines: the rollouts of each training step, sampled. Dots: validation, greedy. "
SUMMARY = (
    "A change counts when it is larger than “counts from”: 1.96 standard errors of the difference over the validation "
    "answers (at most, for shares), and one per cent."
)
HISTORY = (
    "The same prompts, step under step: what the policy answered, with the words that were not in the step before. The "
    "exported policy's worst answers come first."
)
HEAT = (
    "The worst answers of the exported policy first. "
    "The text is coloured by what one reward component said of each segment, and its value stands where the segment "
    "ends: blue is good, orange is bad. Or colour single tokens by what training made of them. Point at a token, tap "
    "it, or move to a text with Tab and through it with the arrow keys to read its numbers. A wavy line is an error "
    "that an oracle found, where finegrained measure-drift asked one."
)
TRUTH = (
    "The reward is a proxy. What was measured beside it, and never trained on, says whether a higher reward still "
    "means fewer errors."
)
TRUST = (
    "On the labelled data that was measured last, usually the dev set. Calibration: each dot is a bin of predicted "
    "probabilities, its area how many there are. On the grey line a probability means what it says; below it the model "
    "is too sure. The expected calibration error (ECE) is the mean distance from the line, weighted by the bins' sizes."
)
DRIFT = (
    "A reward model learnt from answers of the first policy. Falling agreement says that it no longer judges well what "
    "the policy writes now. Where errors become rare, precision and recall rest on few segments."
)
INJECTIONS = (
    "The same answers, plain and with a text in them that is meant for the judge. “Fewer errors” is the share of pairs "
    "in which the judge takes back an error of the plain answer’s own sentences; “control” asks for nothing and says "
    "how often it changes its mind by itself. A policy that is trained on a judge can find what it obeys."
)
ALIGNMENT = "Each segment's value is paid at the token in which the segment ends. It has to be exactly one."


def _evaluation(record: RunRecord) -> Html | None:
    if not record.evaluation:
        return None
    rows = [[isolated(key), number(value)] for key, value in record.evaluation.items() if is_number(value)]
    return el("div", table(["measure", "value"], rows), class_="fit")


def _missing(record: RunRecord) -> Html | None:
    return el("ul", *(el("li", line) for line in record.missing)) if record.missing else None


def _rewards(record: RunRecord) -> Html:
    return join(components_table(record), reward_curves(record))


_SECTIONS: Mapping[str, tuple[str, str, Callable[[RunRecord], Html | None]]] = {
    "summary": ("First and exported", SUMMARY, run_summary),
    "truth": ("Proxy reward and true error", TRUTH, truth_curves),
    "answers": ("Before and after", HEAT, before_and_after),
    "rewards": ("Rewards", CURVES, _rewards),
    "training": ("Training", CURVES, training_curves),
    "history": ("Answers over time", HISTORY, timelines),
    "samples": ("Samples during training", "Drawn at the training temperature.", by_step),
    "trust": ("Reward models on labelled data", TRUST, trust_parts),
    "drift": ("Reward models during training", DRIFT, drift_parts),
    "injections": ("The judge under attack", INJECTIONS, injection_parts),
    "alignment": ("Segments on tokens", ALIGNMENT, alignment_part),
    "time": ("Time", "", timing_part),
    "evaluation": ("Evaluation", "What finegrained evaluate measured of this run.", _evaluation),
    "configuration": ("Configuration", "", configuration_details),
    "missing": ("What is missing", "", _missing),
}


def run_sections(record: RunRecord, *names: str) -> list[PageSection]:
    """The named sections of a run's page; all of them where none is named."""
    sections = {name: _SECTIONS[name] for name in names or _SECTIONS}
    return [PageSection(name, title, lead, body(record)) for name, (title, lead, body) in sections.items()]


def run_page(record: RunRecord) -> Html:
    """The whole document."""
    return page(f"{record.name}: report", header(record), run_sections(record), heat_style())
