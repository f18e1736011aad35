import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from feedback_samples import record
from hypothesis import assume, given
from hypothesis import strategies as st
from text_samples import WORDS

from finegrained_rlhf.feedback.labels import SegmentLabels
from finegrained_rlhf.feedback.reading import read_feedback
from finegrained_rlhf.feedback.records import Feedback, FeedbackRecord, SpanError
from finegrained_rlhf.text.segmentation import SpacySegmenter
from reward_models.kinds import FACTUALITY, RELEVANCE

SEGMENTER = SpacySegmenter("rules")
TEXT = "The lake is three km wide, and there are some very old boats. It is cold. Nobody swims in it."


@pytest.fixture(scope="module")
def real(shared_data: Path) -> list[FeedbackRecord]:
    return read_feedback(shared_data / "qa_feedback/dev_feedback.json")


@pytest.mark.parametrize(
    ("kind", "build", "counts"),
    [("relevance", RELEVANCE.labels, (400, 1131, 1052)), ("factuality", FACTUALITY.labels, (347, 218, 418))],
)
def test_real_labels_segment_by_segment(
    shared_data: Path, real: list[FeedbackRecord], kind: str, build: Callable[..., Any], counts: tuple[int, ...]
) -> None:
    golden = json.loads((shared_data / "qa_feedback/labels_golden.json").read_text())[kind]
    labels = [build(row, SEGMENTER) for row in real]
    assert {str(i): list(row.labels) for i, row in enumerate(labels) if row.teaches} == golden
    taught = [row for row in labels if row.teaches]
    assert (len(taught), sum(r.has_error for r in taught), sum(r.no_error for r in taught)) == counts


def test_relevance_by_hand() -> None:
    row = record(TEXT, [("and there are some very old boats.", "Irrelevant"), ("three", "Wrong-Grounding")])
    labels = RELEVANCE.labels(row, SEGMENTER)
    pieces = [TEXT[a:b] for a, b in labels.spans]
    assert pieces == [
        "The lake is three km wide,",
        "and there are some very old boats.",
        "It is cold.",
        "Nobody swims in it.",
    ]
    assert labels.labels == (0, 1, 0, 0)


def test_factuality_by_hand() -> None:
    row = record(TEXT, [("and there are some very old boats.", "Redundant"), ("swims", "Unverifiable")])
    assert FACTUALITY.labels(row, SEGMENTER).labels == (None, 0, 1)
    both = record(TEXT, [("and there are some very old boats.", "Redundant"), ("three", "Wrong-Grounding")])
    assert FACTUALITY.labels(both, SEGMENTER).labels == (1, 0, 0)


def test_short_c1_spans_are_dropped_and_short_c2_spans_are_not() -> None:
    four = record(TEXT, [("some very old boats.", "Irrelevant"), ("It is cold.", "Incoherent")])
    assert RELEVANCE.labels(four, SEGMENTER).labels == (0, 0, 0, 0)
    assert FACTUALITY.labels(four, SEGMENTER).labels == (0, 0, 0), "a dropped span must not make a sentence ignored"
    assert RELEVANCE.with_min_words(4).labels(four, SEGMENTER).labels == (0, 1, 0, 0)
    five = record(TEXT, [("are some very old boats.", "Irrelevant")])
    assert RELEVANCE.labels(five, SEGMENTER).labels == (0, 1, 0, 0)
    assert len(FACTUALITY.marks(record(TEXT, [("cold.", "Unverifiable")]))) == 1


def test_a_span_over_two_segments_marks_both() -> None:
    row = record(TEXT, [("boats. It is cold. Nobody", "Irrelevant")])
    assert RELEVANCE.labels(row, SEGMENTER).labels == (0, 1, 1, 1)


def test_white_space_between_segments_belongs_to_neither() -> None:
    text = "It is wide and very cold. Nobody swims in it at all."
    row = record(text, [("It is wide and very cold. ", "Irrelevant")])
    assert RELEVANCE.labels(row, SEGMENTER).labels == (1, 0)


def test_example_with_nothing_to_learn() -> None:
    labels = FACTUALITY.labels(record("It is wide and cold.", [("It is wide and cold.", "Irrelevant")]), SEGMENTER)
    assert labels.labels == (None,) and not labels.teaches
    assert (labels.has_error, labels.no_error) == (0, 0)


def test_labels_and_spans_must_agree() -> None:
    with pytest.raises(ValueError, match="2 segments and 1 labels"):
        SegmentLabels(((0, 1), (1, 2)), (0,))


def naive_labels(row: FeedbackRecord, spans: Any, categories: tuple[str, ...]) -> list[bool]:
    """Character by character: paint the marked characters, then look at each segment's."""
    text = row.predictions[0]
    painted = [False] * len(text)
    for error in row.feedback.errors:
        words = len(text[error.start : error.end].split())
        c1 = error.error_type in ("Irrelevant", "Redundant", "Incoherent")
        if error.error_type in categories and not (c1 and words < 5):
            for i in range(error.start, error.end):
                painted[i] = True
    return [any(painted[i] and not text[i].isspace() for i in range(a, b)) for a, b in spans]


@given(
    WORDS.map(" ".join),
    st.lists(st.tuples(st.integers(0, 200), st.integers(1, 80), st.sampled_from(["Redundant", "Unverifiable"]))),
)
def test_labels_equal_painted_characters(text: str, marks: list[tuple[int, int, str]]) -> None:
    assume(text.strip())
    spans = [(a % len(text), min(len(text), a % len(text) + length), kind) for a, length, kind in marks]
    errors = tuple(SpanError(a, b, kind) for a, b, kind in spans if text[a:b].strip())
    base = record(text)
    row = replace(base, feedback=Feedback(errors, (), ""))
    relevance, factuality = RELEVANCE.labels(row, SEGMENTER), FACTUALITY.labels(row, SEGMENTER)
    c1 = ("Irrelevant", "Redundant", "Incoherent")
    assert [label == 1 for label in relevance.labels] == naive_labels(row, relevance.spans, c1)
    factual = naive_labels(row, factuality.spans, ("Wrong-Grounding", "Unverifiable"))
    irrelevant = naive_labels(row, factuality.spans, c1)
    expected = [1 if f else None if i else 0 for f, i in zip(factual, irrelevant, strict=True)]
    assert list(factuality.labels) == expected
