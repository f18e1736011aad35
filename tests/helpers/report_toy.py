"""A small PPO run on disk, with hostile text wherever text can come from data, and what a reader sees of HTML."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from finegrained_rlhf.core.files import write_json, write_text

HOSTILE = (
    "<script>window.pwned = 1; alert(1)</script> is no tag.",
    '</script></style><img src=x onerror="window.pwned = 1"> "quoted" & \'quoted\' &lt;b&gt;.',
    '"><svg onload="window.pwned = 1"><a href="https://evil.example/">link</a> https://evil.example/x.png',
    "مرحبا بالعالم 12. שלום! \u202edesrever \u2067isolated",
    "👩‍👩‍👧‍👦 and 😀🏳️‍🌈, then é and e\u0301. 😀😀",
    "bell \x07, escape \x1b[31m, null \x00, C1 \x9b, half \ud83d, line\nbreak\tand tab.",
    "w" * 150 + " " + "Donaudampfschifffahrtsgesellschaft" * 3,
    "",
)
COMPONENTS = ("relevance", '<img src=y onerror="window.pwned = 2">', "completeness")


def tokens(text: str) -> dict[str, list[Any]]:
    """Tokens of three characters, one without characters among them, and one for the end of the sequence."""
    ends = sorted([*range(3, len(text), 3), len(text), len(text)] + ([3] if len(text) > 3 else []))
    count = len(ends)
    return {
        "ends": ends,
        "kl": [0.01 * (i % 7) for i in range(count)],
        "value": [1.5 - 0.1 * (i % 9) for i in range(count)],
        "reward": [0.0] * (count - 1) + [2.25],
        "advantage": [(-1.0) ** i * (i % 8) / 7 for i in range(count)],
    }


def response(number: int, text: str, *, sign: float = 1.0, with_tokens: bool = True) -> dict[str, Any]:
    """One line of a samples file: two halves for the segment components, one value for the last component."""
    half = len(text) // 2
    spans = [(0, half), (half, len(text))] if half else []
    segments = []
    for component in COMPONENTS[:2]:
        for i, (start, end) in enumerate(spans):
            raw = sign if i == 0 else -1.0
            segments.append({"component": component, "start": start, "end": end, "raw": raw, "weighted": 0.5 * raw})
    segments.append(
        {"component": COMPONENTS[2], "start": 0, "end": len(text), "raw": 0.125 * number, "weighted": 0.025 * number}
    )
    row = {"id": f"prompt-{number}", "prompt": f"question: {text[:300]}", "response": text, "segments": segments}
    return {**row, "sample": 0, "tokens": tokens(text)} if with_tokens else row


def write_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """JSON lines in ASCII, so that halves of surrogate pairs survive."""
    write_text(path, "".join(json.dumps(row) + "\n" for row in rows))


def step_row(step: int) -> dict[str, Any]:
    """One line of `metrics.jsonl`."""
    row: dict[str, Any] = {"step": step, "episodes": 8.0 * step, "kl": 0.5 * (step - 1), "beta": 0.3, "entropy": 0.25}
    for name in COMPONENTS:
        row |= {f"reward/{name}/raw": 0.1 * step, f"reward/{name}/weighted": 0.05 * step, f"segments/{name}": 2.0}
    row |= {"reward/total": 0.15 * step, "response_length": 20.0 + step, "eos_rate": 1.0, "repetition": 0.1}
    row |= {"alignment": 1.0, "explained_variance": 0.02 * step, "loss/value": 3.0 / step}
    for phase, seconds in {"rollout": 1.0, "rewards": 0.5, "scoring": 0.5, "update": 2.0}.items():
        row |= {f"time/{phase}_s": seconds, f"time/{phase}_tokens_per_s": 100.0 / seconds}
    return row


def validation_row(step: int) -> dict[str, Any]:
    """One line of `eval.jsonl`: better in truth and in reward until step 4, deceived and long at step 6."""
    value = {0: 0.5, 2: 1.0, 4: 2.0, 6: 3.0}[step]
    row: dict[str, Any] = {"step": step, "score": value, "examples": 200, "reward/total": value}
    for name in COMPONENTS:
        row |= {f"reward/{name}/raw": value, f"reward/{name}/weighted": value / 3, f"segments/{name}": 2.0}
    row[f"segments/{COMPONENTS[2]}"] = 1.0
    row |= {"response_length": 40.0 if step == 6 else 20.0, "eos_rate": 0.5 if step == 6 else 1.0, "repetition": 0.1}
    row |= {"relevance_error_rate": 0.4 - 0.05 * step, "factual_error_rate": {0: 0.5, 2: 0.3, 4: 0.2, 6: 0.6}[step]}
    return row | {"completeness": 0.5 + 0.05 * step}


def trust(segments: bool) -> dict[str, Any]:
    """What a reward model's run says of itself."""
    bins = [
        {"low": 0.5, "high": 0.75, "count": 30, "predicted": 0.625, "observed": 0.5},
        {"low": 0.75, "high": 1.0, "count": 70, "predicted": 0.875, "observed": 0.9},
        {"low": 0.0, "high": 0.5, "count": 0, "predicted": None, "observed": None},
    ]
    row: dict[str, Any] = {"reward_model": "relevance", "examples": 40, "items": 100, "accuracy": 0.75}
    if segments:
        row |= {"confusion": {"found": 31, "missed": 9, "false_alarms": 16, "clean": 44}}
        row |= {"precision": 0.66, "recall": 0.775, "f1": 0.713, "span": {"f1": 0.6125}}
    return row | {"calibration": {"ece": 0.055, "bins": bins}}


def write_toy_run(directory: Path) -> Path:
    """A whole run: 6 steps, 4 validations, the one of step 4 exported; reward models with trust, and drift."""
    models = {name: str(directory.parent / "models" / str(i)) for i, name in enumerate(COMPONENTS)}
    config = {
        "output_dir": "outputs/toy",
        "seed": 3,
        "total_steps": 6,
        "reward": {
            "components": {
                name: {"_target_": "reward_models.scorers.X", "path": path} for name, path in models.items()
            },
            "weights": dict.fromkeys(COMPONENTS, 0.5),
            "settings": {},
        },
    }
    write_json(directory / "config.yaml", config)  # JSON is YAML
    write_json(directory / "run.json", {"step": 6, "total_steps": 6, "best_step": 4})
    write_json(directory / "provenance.json", {"starts": [{"command": ["train_ppo.py"]}]})
    write_lines(directory / "metrics.jsonl", [step_row(step) for step in range(1, 7)])
    write_lines(directory / "eval.jsonl", [validation_row(step) for step in (0, 2, 4, 6)])
    for step in (0, 2, 4, 6):
        rows = [response(i, text, sign=1.0 if step else -1.0) for i, text in enumerate(HOSTILE)]
        write_lines(directory / "samples" / f"validation_step_{step}.jsonl", rows)
    for step in (1, 3, 6):
        write_lines(directory / "samples" / f"step_{step}.jsonl", [response(i, t) for i, t in enumerate(HOSTILE)])
    write_json(directory / "policy" / "export.json", {"step": 4})
    for number, path in enumerate(models.values()):
        write_json(Path(path) / "trust.json", trust(segments=number < 2))
    rows = [
        {"step": s, "items": 9, "agreement": 1 - s / 9, "precision": None, "recall": None, "f1": None} for s in (1, 6)
    ]
    write_json(directory / "drift.json", {"oracle": "toy", "components": {COMPONENTS[0]: rows}})
    return directory


def write_old_run(directory: Path) -> Path:
    """A run of an earlier version, still under way: no tokens, no validation answers, no trust, half a last line."""
    write_json(
        directory / "config.yaml", {"seed": 0, "reward": {"components": {"length": {}}, "weights": {"length": 1.0}}}
    )
    row = {"step": 1, "reward/length/raw": 1.0, "reward/length/weighted": 1.0, "reward/total": 1.0, "kl": 0.0}
    write_text(directory / "metrics.jsonl", json.dumps(row) + "\n" + '{"step": 2, "rew')
    write_lines(directory / "samples" / "step_1.jsonl", [response(1, "Two. Parts.", with_tokens=False)])
    return directory


def text_of(html: str) -> str:
    """What a reader sees of a fragment, tags dropped and entities read."""
    return "".join(ElementTree.fromstring(f"<x>{html}</x>").itertext())


def tags_of(page: str) -> list[tuple[str, dict[str, str]]]:
    """Every element of a page with its attributes."""
    found: list[tuple[str, dict[str, str]]] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            found.append((tag, {name: value or "" for name, value in attrs}))

    Reader(convert_charrefs=True).feed(page)
    return found
