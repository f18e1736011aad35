"""The report of one run, put together."""

from __future__ import annotations

from finegrained_rlhf.core.checks import is_number
from finegrained_rlhf.report.charts.curves import reward_curves, training_curves, truth_curves
from finegrained_rlhf.report.charts.heatmap import heat_style
from finegrained_rlhf.report.elements.html import Html, el, isolated, join, number
from finegrained_rlhf.report.elements.page import PageSection, page, table
from finegrained_rlhf.report.pages.audit import alignment_part, timing_part
from finegrained_rlhf.report.pages.overview import components_table, header, run_summary
from finegrained_rlhf.report.pages.samples import before_and_after, by_step
from finegrained_rlhf.report.pages.timeline import timelines
from finegrained_rlhf.report.pages.trust import drift_parts, injection_parts, trust_parts
from finegrained_rlhf.report.runs.record import RunRecord
from finegrained_rlhf.report.runs.settings import configuration_details

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


def run_page(record: RunRecord) -> Html:
    """The whole document."""
    parts = [
        PageSection("summary", "First and exported", SUMMARY, run_summary(record)),
        PageSection("truth", "Proxy reward and true error", TRUTH, truth_curves(record)),
        PageSection("answers", "Before and after", HEAT, before_and_after(record)),
        PageSection("rewards", "Rewards", CURVES, join(components_table(record), reward_curves(record))),
        PageSection("training", "Training", CURVES, training_curves(record)),
        PageSection("history", "Answers over time", HISTORY, timelines(record)),
        PageSection("samples", "Samples during training", "Drawn at the training temperature.", by_step(record)),
        PageSection("trust", "Reward models on labelled data", TRUST, trust_parts(record)),
        PageSection("drift", "Reward models during training", DRIFT, drift_parts(record)),
        PageSection("injections", "The judge under attack", INJECTIONS, injection_parts(record)),
        PageSection("alignment", "Segments on tokens", ALIGNMENT, alignment_part(record)),
        PageSection("time", "Time", "", timing_part(record)),
        PageSection("evaluation", "Evaluation", "What finegrained evaluate measured of this run.", _evaluation(record)),
        PageSection("configuration", "Configuration", "", configuration_details(record)),
        PageSection("missing", "What is missing", "", _missing(record)),
    ]
    return page(f"{record.name}: report", header(record), parts, heat_style())


def _evaluation(record: RunRecord) -> Html | None:
    if not record.evaluation:
        return None
    rows = [[isolated(key), number(value)] for key, value in record.evaluation.items() if is_number(value)]
    return el("div", table(["measure", "value"], rows), class_="fit")


def _missing(record: RunRecord) -> Html | None:
    return el("ul", *(el("li", line) for line in record.missing)) if record.missing else None
