"""Training curves of one run."""

from __future__ import annotations

from collections.abc import Sequence

from finegrained_rlhf.core.checks import is_number
from finegrained_rlhf.report.charts.svg import Chart, Line, figure
from finegrained_rlhf.report.elements.html import Html, el, join
from finegrained_rlhf.report.elements.page import details
from finegrained_rlhf.report.runs.measures import mean_true_error, series, true_errors
from finegrained_rlhf.report.runs.record import RunRecord

_MAIN = (
    ("kl", "KL to the starting policy", "nats an answer"),
    ("log_ratio", "log π − log π_ref of what was drawn", "nats an answer"),
    ("beta", "β, the weight of KL", ""),
    ("response_length", "Response length", "tokens"),
    ("eos_rate", "Responses that end", "share"),
    ("repetition", "Repeated 3-grams", "share"),
    ("entropy", "Entropy", "nats a token"),
    ("explained_variance", "Explained variance of values", "share"),
    ("groups/same_reward", "Prompts whose answers are all paid alike", "share"),
    ("groups/no_advantage", "Prompts of whose answers nothing is learnt", "share"),
    ("resample/further", "Prompts drawn in place of others", "a step"),
    ("importance/effective", "Effective sample of the importance weights", "share of tokens"),
)
_SHARES = ("eos_rate", "repetition", "alignment", "groups/same_reward", "groups/no_advantage", "importance/effective")
_NOT_CURVES = ("step", "episodes", "episodes_per_step", "processes", "examples", "score")


def headline_curves(record: RunRecord) -> Html:
    """Total reward, its components weighted, KL and length: what is looked at first."""
    charts = [
        _both(record, "reward/total", "Total reward, without KL", ""),
        _components(record, "Weighted, summed over a response", "reward/{}/weighted", None),
        *(_both(record, key, title, unit) for key, title, unit in _MAIN if key in ("kl", "response_length", "loss")),
    ]
    return _grid([chart for chart in charts if any(line.finite for line in chart.lines)])


def reward_curves(record: RunRecord) -> Html:
    """Every component raw, by segment and weighted, and their total."""
    charts = [
        _components(record, "Raw, summed over a response", "reward/{}/raw", None),
        _components(record, "Raw, mean of a segment", "reward/{}/raw", "segments/{}"),
        _components(record, "Weighted, summed over a response", "reward/{}/weighted", None),
        _both(record, "reward/total", "Total reward, without KL", ""),
        _components(record, "Segments of a response", "segments/{}", None),
        *_spreads(record),
        *_moving(record),
    ]
    return el("div", *map(figure, charts), class_="charts")


def _spreads(record: RunRecord) -> list[Chart]:
    """How far the answers to a prompt differ, where there are several."""
    if not any(series(record.steps, f"reward/{name}/spread") for name in record.components):
        return []
    return [_components(record, "Weighted, spread over the answers to a prompt", "reward/{}/spread", None)]


def _moving(record: RunRecord) -> list[Chart]:
    """The weights of training where one of them changed, and how often gates were open."""
    weights = {name: series(record.steps, f"reward/{name}/weight") for name in record.components}
    charts = []
    if any(len({weight for _, weight in points}) > 1 for points in weights.values()):
        charts.append(_components(record, "Weights of training", "reward/{}/weight", None))
    if any(series(record.steps, f"reward/{name}/open") for name in record.components):
        charts.append(_components(record, "Responses in which the component counts, share", "reward/{}/open", None))
    return charts


def truth_curves(record: RunRecord) -> Html | None:
    """Proxy reward against true error; None where no truth was measured."""
    errors, mean = true_errors(record.validations), mean_true_error(record.validations)
    if not errors:
        return None
    score = series(record.validations, "score")
    proxy = dict(score)
    lines = [Line("proxy reward (left)", score, 0, "dots"), Line("true error (right)", mean, 1, "dots", right=True)]
    path = Line("", [(proxy[s], e) for s, e in mean if s in proxy], 7, "dots", labels=_steps(record, mean, proxy))
    each = [Line(name, points, slot, "dots") for slot, (name, points) in enumerate(errors.items())]
    charts = [
        Chart("Proxy reward and true error", lines, y_label="reward", y_label_right="error", marks=_best(record)),
        Chart(
            "True error against proxy reward",
            [path],
            x_label="proxy reward",
            y_label="true error",
            note="One dot a validation, in their order, with some of the steps. Down and to the right is good; up and "
            "to the right, the reward model is being deceived.",
        ),
        Chart("True errors", each, y_label="share", marks=_best(record)),
    ]
    return el("div", *map(figure, charts), class_="charts")


def training_curves(record: RunRecord) -> Html:
    """KL, lengths and the state of the optimisation; everything else that was recorded unfolds."""
    betas = {value for _, value in series(record.steps, "beta")}
    shown = {key for key, _, _ in _MAIN}
    main = [
        _both(record, key, title, unit)
        for key, title, unit in _MAIN
        if series(record.steps, key) and not (key == "beta" and len(betas) == 1)
    ]
    fixed = el("p", f"β, the weight of KL, was {betas.pop():g} throughout.") if len(betas) == 1 else None
    others = []
    for key in dict.fromkeys(key for row in record.steps for key, value in row.items() if is_number(value)):
        if key not in shown and key not in _NOT_CURVES and not key.startswith(("reward/", "segments/")):
            others.append(_both(record, key, key, ""))
    rest = details("Everything else that was recorded", _grid(others)) if others else None
    return join(fixed, _grid(main), rest)


def _grid(charts: Sequence[Chart]) -> Html:
    return el("div", *map(figure, charts), class_="charts")


def _components(record: RunRecord, title: str, key: str, per: str | None) -> Chart:
    lines = []
    for slot, name in enumerate(record.components):
        keys = key.format(name), per.format(name) if per else None
        lines.append(Line(name, series(record.steps, *keys), slot, "rough"))
        lines.append(Line("", series(record.validations, *keys), slot, "dots"))
    return Chart(title, lines, marks=_best(record))


def _both(record: RunRecord, key: str, title: str, unit: str) -> Chart:
    lines = [
        Line("", series(record.steps, key), 0, "rough"),
        Line("", series(record.validations, key), 0, "dots"),
    ]
    top = max((y for line in lines for _, y in line.finite), default=0.0)
    share = (0.0, min(1.0, max(2 * top, 0.1))) if key in _SHARES and 0 <= top <= 1 else None
    return Chart(title, lines, y_label=unit, y_range=share, marks=_best(record))


def _best(record: RunRecord) -> list[tuple[float, str]]:
    word = "best" if record.exported is None else "exported"
    return [(float(record.best["step"]), word)] if record.best else []


def _steps(record: RunRecord, points: Sequence[tuple[float, float]], among: dict[float, float]) -> list[str]:
    """The step at the first, the exported and the last point; nothing at the others."""
    steps = [step for step, _ in points if step in among]
    labelled = {*steps[:1], *steps[-1:], *(step for step, _ in _best(record))}
    return [f"{step:g}" if step in labelled else "" for step in steps]
