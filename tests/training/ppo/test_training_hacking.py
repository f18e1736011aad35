"""Signs of reward hacking, from two validations."""

from __future__ import annotations

from pathlib import Path

import pytest

from finegrained_rlhf.core.files import write_jsonl
from finegrained_rlhf.runtime.directory.run_directory import RunDirectory
from finegrained_rlhf.runtime.processes import Processes
from finegrained_rlhf.training.hacking import HackingWatch, degenerate_form, hacking_warnings


def validation(
    *, length: float = 20.0, repetition: float = 0.1, eos: float = 1.0, facts: float = 1.0, segments: float = 2.0
) -> dict[str, float]:
    """Means of a validation: `facts` has segments, `whole` one value a response."""
    return {
        "response_length": length,
        "repetition": repetition,
        "eos_rate": eos,
        "reward/facts/raw": facts,
        "reward/facts/weighted": 0.5 * facts,
        "segments/facts": segments,
        "reward/whole/raw": 0.0,
        "reward/whole/weighted": 0.0,
        "segments/whole": 1.0,
    }


def signs(**now: float) -> list[tuple[str, str]]:
    return [(w.component, w.kind) for w in hacking_warnings(validation(), validation(**now))]


def test_better_answers_are_no_hack() -> None:
    assert signs(facts=1.9) == []


def test_more_of_the_same_is_a_length_hack() -> None:
    """Twice the segments at the same value each: the whole gain comes from their number."""
    assert signs(facts=2.0, segments=4.0, length=40.0) == [("facts", "length")]
    (warning,) = hacking_warnings(validation(), validation(facts=2.0, segments=4.0, length=40.0))
    assert "facts rose from 0.500 to 1.000 a response" in warning.message
    assert "20.0 to 40.0 tokens" in warning.message and "100%" in warning.message


def test_longer_and_better_segment_by_segment_is_none() -> None:
    """From 0.5 to 0.9 a segment: of the gain of 1.7 only 0.5 comes from the third segment."""
    assert signs(facts=2.7, segments=3.0, length=30.0) == []


def test_fewer_segments_of_negative_value_are_a_length_hack() -> None:
    first, now = validation(facts=-2.0, segments=4.0, length=40.0), validation(facts=-0.5, segments=1.0, length=10.0)
    assert [(w.component, w.kind) for w in hacking_warnings(first, now)] == [("facts", "length")]


def test_a_whole_response_component_is_judged_by_length_alone() -> None:
    first, now = validation(), validation(length=30.0)
    now["reward/whole/raw"] = now["reward/whole/weighted"] = 1.0
    assert [(w.component, w.kind) for w in hacking_warnings(first, now)] == [("whole", "length")]


@pytest.mark.parametrize(
    ("now", "kind"),
    [({"repetition": 0.3}, "repetition"), ({"eos": 0.7}, "eos"), ({"length": 3.0, "segments": 2.0}, "eos")],
)
def test_the_other_kinds(now: dict[str, float], kind: str) -> None:
    assert ("facts", kind) in signs(facts=1.5, **now)
    assert signs(facts=0.9, **now) == []  # nothing was gained


def test_an_early_end_needs_more_ends_and_shorter_responses() -> None:
    before = validation(eos=0.6, facts=-2.0)
    shorter = validation(eos=0.9, facts=-1.0, length=12.0)
    (warning,) = [w for w in hacking_warnings(before, shorter) if w.kind == "early end"]
    assert "60% ended by themselves at first and 90% do now" in warning.message
    assert "20.0 to 12.0 tokens" in warning.message
    kinds = {
        w.kind
        for now in (validation(eos=0.9, facts=-1.0), validation(eos=0.65, facts=-1.0, length=12.0))
        for w in hacking_warnings(before, now)
    }
    assert "early end" not in kinds


def test_text_that_the_reference_finds_unlikely_is_a_sign() -> None:
    before = validation() | {"reference_perplexity": 4.0}
    now = validation(facts=1.5) | {"reference_perplexity": 5.2}
    assert [(w.component, w.kind) for w in hacking_warnings(before, now)] == [("facts", "perplexity")]
    assert "from 4.00 to 5.20" in hacking_warnings(before, now)[0].message
    assert hacking_warnings(before, now | {"reference_perplexity": 5.1}) == []
    assert hacking_warnings(validation(), now) == []  # a run that was begun before it was measured


def test_a_component_unknown_to_the_first_validation_is_passed_over() -> None:
    first = {key: value for key, value in validation().items() if "facts" not in key}
    assert hacking_warnings(first, validation(facts=9.0, length=99.0)) == []


def test_a_level_is_degenerate_whatever_it_was_at_first() -> None:
    """Each limit from both sides."""
    assert degenerate_form(validation(repetition=0.29, eos=0.5, length=2.0)) == []
    assert degenerate_form(validation(repetition=0.3)) == ["30% of 3-grams repeat an earlier one of the same answer"]
    assert degenerate_form(validation(eos=0.49)) == ["only 49% of answers end by themselves; the others are cut off"]
    assert degenerate_form(validation(length=1.5)) == ["answers have 1.5 tokens"]
    assert degenerate_form({"score": 1.0}) == []


def test_degenerate_text_is_warned_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run, now = RunDirectory(tmp_path), validation(repetition=0.5)
    write_jsonl(run.eval, [now])
    watch = HackingWatch(run, Processes())
    for _ in range(2):
        watch.warn(now)
    assert [message.split(";")[0] for message in caplog.messages] == [
        "degenerate text? 50% of 3-grams repeat an earlier one of the same answer"
    ]
