"""The first screen of a run's report: did it get better, at what, and is it hacking? Three answers, with numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from finegrained_rlhf.core.checks import is_number
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.metrics.detection import uninformative
from finegrained_rlhf.report.elements.html import Html, el, isolated, join, number
from finegrained_rlhf.report.runs.measures import (
    ENDED,
    FEWEST,
    KL,
    LENGTH,
    PERPLEXITY,
    REPETITION,
    SEGMENT,
    Measure,
    price_measures,
    reward_measures,
    seconds,
    true_error_measure,
    true_measures,
)
from finegrained_rlhf.report.runs.record import Row, RunRecord
from finegrained_rlhf.runtime.optimizer import OptimizerConfig
from finegrained_rlhf.training.hacking import (
    EOS_DROP,
    LENGTH_CHANGE,
    PERPLEXITY_RISE,
    REPETITION_RISE,
    HackingWarning,
    degenerate_form,
    hacking_warnings,
)

SAME_ANSWER = 0.5
"""Share of different prompts with one and the same answer from which on the policy does not read them."""


def answers_to_three_questions(record: RunRecord) -> Html:
    """Did it get better? At what? Is it hacking? A tile each: a sentence, then its numbers and thresholds."""
    return el(
        "div",
        _tile("Did it get better?", *_better(record)),
        _tile("At what?", *_at_what(record)),
        _tile("Is it hacking?", *_hacking(record)),
        class_="tiles",
    )


def policy_name(record: RunRecord) -> str:
    """Which policy a run is shown at: of which step, and that it is the initial one where it is."""
    if record.best is None:
        return "–"
    how = "exported" if record.exported == record.best["step"] else "best"
    return f"step {record.best['step']}, {how}{' = initial policy' if record.is_initial else ''}"


def warnings_of_run(record: RunRecord) -> list[tuple[int, HackingWarning]]:
    """Signs of hacking at the exported and at the last validation against the first one, each with its step."""
    if len(record.validations) < 2:
        return []
    first = record.validations[0]
    seen: dict[tuple[str, str], tuple[int, HackingWarning]] = {}
    for now in (record.best, record.validations[-1]):
        if now is not None and now is not first and _complete(first) and _complete(now):
            for warning in hacking_warnings(first, now):
                seen.setdefault((warning.component, warning.kind), (int(now["step"]), warning))
    return list(seen.values())


def warnings_box(record: RunRecord) -> Html | None:
    """The warnings; nothing where there is none."""
    warnings = warnings_of_run(record)
    if not warnings:
        return None
    lines = [
        el("li", el("b", warning.kind), f", step {step}: ", isolated(warning.message), ".")
        for step, warning in warnings
    ]
    return el("div", el("b", "Signs of reward hacking. Read the answers."), el("ul", *lines), class_="warnings")


def cautions(record: RunRecord) -> list[str]:
    """What makes a run's numbers worth little, whichever way they fall: its schedule and its reward models."""
    lines = [
        f"The reward model of {name} {problem}."
        for name, trust in record.trust.items()
        if (problem := uninformative(trust))
    ]
    total = record.setting("total_steps") or record.state.total_steps
    schedule = {name: record.setting("optimizer", name) for name in ("lr", "warmup_steps", "warmup_ratio", "schedule")}
    if is_number(total) and all(value is not None for value in schedule.values()):
        try:
            problem = OptimizerConfig(**schedule).warmup_problem(int(total))
        except (ConfigError, TypeError):  # of another version, or damaged
            problem = None
        if problem:
            lines.append(f"{problem[0].upper()}{problem[1:]}.")
    return lines


def cautions_box(record: RunRecord) -> Html | None:
    """The cautions; nothing where there is none."""
    lines = [el("li", isolated(line)) for line in cautions(record)]
    return el("div", el("b", "Before you read the numbers."), el("ul", *lines), class_="warnings") if lines else None


def duration(value: float) -> str:
    """Seconds in the unit that suits them."""
    for size, unit in ((3600, "h"), (60, "min")):
        if value >= size:
            return f"{value / size:.1f} {unit}"
    return f"{value:.0f} s"


def between(parts: Sequence[Any], gap: str) -> list[Any]:
    """The parts with a gap between them."""
    return [piece for i, part in enumerate(parts) for piece in ((gap, part) if i else (part,))]


def _tile(question: str, word: str, kind: str, lines: Sequence[Any]) -> Html:
    headline = el("p", el("b", word), class_=f"word {kind}".strip())
    return el("div", el("h2", question), headline, *(el("p", *line) for line in lines), class_="tile")


def _better(record: RunRecord) -> tuple[str, str, list[list[Any]]]:
    reward = reward_measures(record)
    total = next((m for m in reward if m.name == "weighted total"), None)
    truth = true_error_measure(record)
    judge = truth or total
    if judge is None or len(record.validations) < 2:
        return "Not known", "", [["It takes two validations to say."]]
    shown: list[list[Any]] = [[join("Step ", record.validations[0]["step"], " → ", policy_name(record), ".")]]
    if record.is_initial:
        word, kind = "No", "bad"
        why = record.found_nothing_better.capitalize()
        text = f"{why} than the first, so the exported policy is the initial one."
        shown = [[text], *([_at_last(judge, record)] if judge.last is not None else [])]
    else:
        word, kind = {"better": ("Yes", "good"), "worse": ("No, worse", "bad")}.get(
            judge.verdict or "", ("No clear change", "")
        )
        if truth is None and word == "Yes":
            word = "By its own reward"
        shown += [[_sentence(m), f" (counts from ±{number(m.threshold)})"] for m in (truth, total) if m is not None]
    if truth is None:
        shown.append(["No oracle measured the truth beside the reward."])
    return word, kind, shown


def _at_last(measure: Measure, record: RunRecord) -> list[Any]:
    step = record.validations[-1]["step"]
    return [isolated(measure.name), f" {number(measure.first)} at first, {number(measure.last)} at step {step}."]


def _at_what(record: RunRecord) -> tuple[str, str, list[list[Any]]]:
    """The measures that changed, the truth before what the reward models say."""
    reward = reward_measures(record)
    # A sum over more segments is no better answer: where a component has many, its mean by segment speaks for it.
    by_segment = {measure.name for measure in reward if measure.unit == SEGMENT}
    components = [m for m in reward if m.name != "weighted total"]
    sources = {
        "truth": true_measures(record),
        "reward models": [m for m in components if m.unit == SEGMENT or m.name not in by_segment],
        "form": [m for m in price_measures(record) if m.name in (REPETITION, ENDED)],
    }
    lines: list[list[Any]] = []
    counts = {}
    for word, title in (("better", "Better"), ("worse", "Worse"), ("same", "No clear change")):
        sentences = {
            source: [_sentence(m) for m in measures if m.verdict == word] for source, measures in sources.items()
        }
        counts[word] = sum(map(len, sentences.values()))
        for source in (source for source, measures in sentences.items() if measures):
            by = el("span", f" ({source}) ", class_="by")
            lines.append([el("b", title), by, *between(sentences[source], "; "), "."])
    better, worse = counts["better"], counts["worse"]
    if record.is_initial or not better + worse:
        return ("Nothing" if lines else "Not known"), "", [] if record.is_initial else lines
    return f"{better} better, {worse} worse", "good" if better and not worse else "bad" if not better else "", lines


def _hacking(record: RunRecord) -> tuple[str, str, list[list[Any]]]:
    """Signs are changes; degenerate text is a level, and never "no sign" because the run began with it."""
    warnings = warnings_of_run(record)
    shown_at = int(record.best["step"]) if record.best else -1
    now = [warning for step, warning in warnings if step == shown_at]
    goodhart = _against_truth(record)
    problems = degenerate_text(record)
    if goodhart is not None and goodhart[0]:
        word, kind = "Yes: the reward rose and the truth did not", "bad"
    elif now:
        word, kind = f"Perhaps: {len(now)} sign{'s' * (len(now) > 1)}", "bad"
    elif problems:
        word, kind = "Degenerate text", "bad"
    elif len(record.validations) < 2:
        word, kind = "Not known", ""
    elif warnings:
        word, kind = f"Not the exported policy; {len(warnings)} sign{'s' * (len(warnings) > 1)} later", ""
    elif record.is_initial:
        word, kind = "Nothing was exported that could be: the policy is the initial one", ""
    else:
        word, kind = "No sign", "good"
    lines: list[list[Any]] = [[f"{problem.capitalize()}."] for problem in problems]
    lines.append(_form(record))
    if goodhart is not None:
        lines.append([goodhart[1]])
    return word, kind, [line for line in lines if line]


def degenerate_text(record: RunRecord) -> list[str]:
    """What is wrong with the form of the shown policy's answers, and whether it gives many prompts the same one."""
    if record.best is None:
        return []
    problems = degenerate_form({key: value for key, value in record.best.items() if is_number(value)})
    answers = {answer.prompt: answer.text.strip() for answer in record.answers.get(int(record.best["step"]), ())}
    if len(answers) >= FEWEST:
        text, times = Counter(answers.values()).most_common(1)[0]
        if times / len(answers) >= SAME_ANSWER:
            problems.append(f"{times} of {len(answers)} prompts have the same answer, “{_beginning(text)}”")
    return problems


def _beginning(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:40]}…"


def _form(record: RunRecord) -> list[Any]:
    """Length, repetition, endings and KL, each with the change from which on it is a sign.

    At the exported policy; where that is the initial one, at the last validation, since nothing changed otherwise.
    """
    measures = {measure.name: measure for measure in price_measures(record)}
    limit = record.setting("ppo", "kl", "limit")
    rows = [
        (LENGTH, "length", " tokens", f"×{LENGTH_CHANGE:g}", 1),
        (REPETITION, REPETITION, "", f"+{REPETITION_RISE:g}", 3),
        (ENDED, ENDED, "", f"−{EOS_DROP:g}", 3),
        (PERPLEXITY, PERPLEXITY, "", f"×{PERPLEXITY_RISE:g}", 2),
        (KL, "KL", " nats", f"stops at {limit:g}" if is_number(limit) else "no limit", 2),
    ]
    parts = []
    for name, word, unit, sign, digits in rows:
        measure = measures.get(name)
        after = None if measure is None else measure.last if record.is_initial else measure.after
        if measure is not None and measure.first is not None and after is not None:
            note = f" ({sign})" if name == KL else f" (a sign from {sign})"
            parts.append(join(word, " ", _pair(measure.first, after, digits), unit, note))
    when = f"At step {record.validations[-1]['step']}, the last: " if record.is_initial else ""
    return [when, *between(parts, "; "), "."] if parts else []


def _against_truth(record: RunRecord) -> tuple[bool, Any] | None:
    """Whether the reward rose while the truth did not; None where no truth was measured or nothing was exported."""
    truth = true_error_measure(record)
    total = next((m for m in reward_measures(record) if m.name == "weighted total"), None)
    if truth is None or total is None or truth.change is None or total.change is None or record.is_initial:
        return None
    deceived = total.verdict == "better" and truth.verdict == "worse"
    together = "while" if deceived or truth.verdict == "same" else "and"
    return deceived, join("Reward against truth: ", _sentence(total), f", {together} ", _sentence(truth), ".")


def price_line(record: RunRecord) -> list[Any]:
    """What it cost: episodes and time."""
    parts: list[Any] = []
    episodes = record.steps[-1].get("episodes") if record.steps else None
    if is_number(episodes):
        parts.append(f"{number(round(episodes))} episodes")
    if (spent := seconds(record)) is not None:
        parts.append(f"{duration(spent)} of training")
    return parts


def _sentence(measure: Measure) -> Html:
    name = f"{measure.name} per segment" if measure.unit == SEGMENT else measure.name
    return join(isolated(name), " ", _numbers(measure, 3))


def _numbers(measure: Measure, digits: int) -> Html:
    return _pair(measure.first, measure.after, digits)


def _pair(first: float | None, after: float | None, digits: int) -> Html:
    return el("span", el("b", number(first, digits)), " → ", el("b", number(after, digits)), class_="pair")


def _complete(row: Row) -> bool:
    return {"response_length", "repetition", "eos_rate"} <= row.keys()
