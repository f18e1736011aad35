"""Whether the trace of a run names the wrong turn: read from the samples that the run kept."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path

from finegrained_lab.worlds.talk import verdict
from finegrained_rlhf.core.files import read_jsonl
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.directory.samples import SampleRecord, read_samples, sample_files


def named_turns(run: RunDirectory, truth: Path, component: str) -> dict[str, float]:
    """Of the conversations drawn in training whose one wrong turn is the planted one: does the trace name it?

    A turn is named by the lowest number of the conversation's turns; of m turns that share the lowest, each is named by
    1/m, so that a trace that says nothing has 1/4.

    Returns:
        `conversations`: how many there are. `reward`: share of them in which the reward that is paid at the turn names
        the planted turn; `advantage`: the same by the component's share in the advantage at the turn's last word;
        `told`, `advantage_told`: the share of them whose advantages are not all one number, and `advantage` of those.
    """
    planted = {row["id"]: row["planted"] for row in read_jsonl(truth)}
    rewards, advantages, told = [], [], []
    for path in sample_files(run).values():
        for record in read_samples(path):
            turns = record.of(component)
            wrong = [number for number, right in enumerate(_verdicts(record, component)) if not right]
            if len(turns) == 4 and wrong == [planted[record.id]]:
                paid, shares = _paid(record, component), _shares(record, component)
                rewards.append(_named(paid, wrong[0]))
                advantages.append(_named(shares, wrong[0]))
                told.append(max(shares) - min(shares) > 1e-9)
    count = max(len(rewards), 1)
    known = [value for value, is_told in zip(advantages, told, strict=True) if is_told]
    return {
        "conversations": len(rewards),
        "reward": sum(rewards) / count,
        "advantage": sum(advantages) / count,
        "told": sum(told) / count,
        "advantage_told": sum(known) / max(len(known), 1),
    }


def _named(numbers: Sequence[float], turn: int) -> float:
    lowest = [number for number, value in enumerate(numbers) if value <= min(numbers) + 1e-9]
    return (turn in lowest) / len(lowest)


def _verdicts(record: SampleRecord, component: str) -> list[bool]:
    """The oracle's of each turn, against the message before it: what stands between two turns is the tool's."""
    return [
        verdict(f"{record.prompt} {record.text[: turn.start]}", record.text[turn.start : turn.end])
        for turn in record.of(component)
    ]


def _paid(record: SampleRecord, component: str) -> list[float]:
    assert record.tokens is not None
    turns = record.of(component)
    return [sum(other.weighted for other in turns if other.token == turn.token) for turn in turns]


def _shares(record: SampleRecord, component: str) -> list[float]:
    assert record.tokens is not None
    ends, shares = record.tokens.ends, record.tokens.shares[component]
    return [shares[bisect_left(ends, turn.end)] for turn in record.of(component)]
