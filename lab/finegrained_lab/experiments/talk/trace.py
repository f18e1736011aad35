"""Whether the trace of a run names the wrong turn: read from the samples that the run kept."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from pathlib import Path

from finegrained_lab.worlds.talk import KINDS, TURNS, verdict
from finegrained_rlhf.core.files import read_jsonl
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.directory.samples import SampleRecord, read_samples, sample_files


def named_turns(run: RunDirectory, truth: Path, component: str) -> dict[str, float]:
    """Of the conversations drawn in training whose one wrong turn is the planted one: does the trace name it?

    Turns of luck are left aside. A turn is named by the lowest number of the others; of m turns that share the lowest,
    each is named by 1/m, so that a trace that says nothing has 1 over the number of turns.

    Returns:
        `conversations`: how many there are. `reward`: share of them in which the reward that is paid at the turn names
        the planted turn; `advantage`: the same by the component's share in the advantage at the turn's last word;
        `added`: by that share less the share at the next turn, which is what the turn itself brings into it.
    """
    planted, first = {row["id"]: row["planted"] for row in read_jsonl(truth)}, min(KINDS.values())
    named: dict[str, list[float]] = {"reward": [], "advantage": [], "added": []}
    for path in sample_files(run).values():
        for record in read_samples(path):
            wrong = [
                number for number, right in enumerate(_verdicts(record, component)) if not right and number >= first
            ]
            if len(record.of(component)) == TURNS and wrong == [planted[record.id]]:
                shares = _shares(record, component)
                added = [now - then for now, then in zip(shares, [*shares[1:], 0.0], strict=True)]
                for name, numbers in (("reward", _paid(record, component)), ("advantage", shares), ("added", added)):
                    named[name].append(_named(numbers[first:], wrong[0] - first))
    count = len(named["reward"])
    return {"conversations": count, **{name: sum(each) / max(count, 1) for name, each in named.items()}}


def _named(numbers: Sequence[float], turn: int) -> float:
    lowest = [number for number, value in enumerate(numbers) if value <= min(numbers) + 1e-6]
    return (turn in lowest) / len(lowest)


def _verdicts(record: SampleRecord, component: str) -> list[bool]:
    """The oracle's of each turn, against the message before it: what stands between two turns is the tool's."""
    return [
        verdict(record.id, f"{record.prompt} {record.text[: turn.start]}", record.text[turn.start : turn.end])
        for turn in record.of(component)
    ]


def _paid(record: SampleRecord, component: str) -> list[float]:
    """What is paid between where a turn begins and where the next one does."""
    assert record.tokens is not None
    turns = record.of(component)
    begins = [bisect_left(record.tokens.ends, turn.start + 1) for turn in turns]
    paid = [0.0] * len(turns)
    for segment in turns:
        assert segment.token is not None
        paid[bisect_right(begins, segment.token) - 1] += segment.weighted
    return paid


def _shares(record: SampleRecord, component: str) -> list[float]:
    assert record.tokens is not None
    ends, shares = record.tokens.ends, record.tokens.shares[component]
    return [shares[bisect_left(ends, turn.end)] for turn in record.of(component)]
