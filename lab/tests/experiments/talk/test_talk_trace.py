"""Whether a run's trace names the planted turn: by hand on conversations whose one wrong turn is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from finegrained_lab.experiments.talk.trace import named_turns
from finegrained_lab.worlds.talk.oracle import KINDS, STEPS, TURNS
from finegrained_rlhf.core.files import write_jsonl
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.directory.samples import (
    QUANTITIES,
    SampleRecord,
    SampleSegment,
    SampleTokens,
    write_samples,
)

PLANTED = 10
LATE = TURNS - min(KINDS.values())
"""The turns that are no luck."""


def conversation(wrong: int, shares: list[float], at_end: bool) -> SampleRecord:
    """A word a token; the tool's words stand between the turns. `shares` are of the turns behind those of luck."""
    text, ends, spans, last = "", list[int](), list[tuple[int, int]](), list[int]()
    token_shares: list[float] = []
    for turn in range(TURNS):
        late = turn >= TURNS - LATE
        words = ["shut" if late else "open", "box" if turn == wrong else "key"]
        if turn + 1 < TURNS:
            words += [STEPS[turn + 1], *(["shut", "key"] if turn + 1 >= TURNS - LATE else ["open", "any"])]
        start = len(text) + (turn > 0)
        for number, word in enumerate(words):
            text += (" " if text else "") + word
            ends.append(len(text))
            token_shares.append((shares[turn - TURNS] if late else -9.0) if number < 2 else 0.0)
            if number == 1:
                spans.append((start, len(text)))
                last.append(len(ends) - 1)
    values = [-1.0 if turn == wrong or turn in range(0, TURNS - LATE, 2) else 1.0 for turn in range(TURNS)]
    segments = [
        SampleSegment("turns", *span, value, value, token=last[-1] if at_end else token)
        for span, value, token in zip(spans, values, last, strict=True)
    ]
    numbers = {name: [0.0] * len(ends) for name in QUANTITIES}
    return SampleRecord(
        "a", 0, "red one open any", text, segments, SampleTokens(ends, numbers, {"turns": token_shares})
    )


@pytest.mark.parametrize(
    ("shares", "at_end", "reward", "advantage", "added"),
    [
        ([0.2, 0.1, -2.0, 0.3], False, 1.0, 1.0, 1.0),
        ([-1.5, -1.5, -1.0, 0.5], False, 1.0, 0.0, 1.0),
        ([0.5] * LATE, True, 1 / (LATE - 1), 1 / LATE, 1 / (LATE - 1)),
    ],
)
def test_the_trace_names_a_turn(
    shares: list[float], at_end: bool, reward: float, advantage: float, added: float, tmp_path: Path
) -> None:
    """The second conversation is wrong elsewhere, and does not count."""
    write_jsonl(tmp_path / "world.jsonl", [{"id": "a", "planted": PLANTED}])
    run = RunDirectory(tmp_path / "run")
    path = run.samples_path(1)
    path.parent.mkdir(parents=True)
    write_samples(path, [conversation(PLANTED, shares, at_end), conversation(PLANTED - 1, shares, at_end)])
    named = named_turns(run, tmp_path / "world.jsonl", "turns")
    assert named == pytest.approx({"conversations": 1, "reward": reward, "advantage": advantage, "added": added})
