"""The oracle against answers with planted errors, each expectation worked out by hand."""

from __future__ import annotations

import random

import pytest

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.factworld.grammar import (
    Clause,
    parse_clause,
    parse_question,
    parse_source,
    split_passages,
)
from finegrained_rlhf.factworld.make import MakeFactWorld, to_passages
from finegrained_rlhf.factworld.oracle import (
    Judgement,
    judge,
    judge_answer,
    pool,
    to_feedback,
    true_error_rates,
)
from finegrained_rlhf.feedback.outputs import OutputRecord
from finegrained_rlhf.text.segmentation import SpacySegmenter

SEGMENTER = SpacySegmenter()
PASSAGE = Passage(
    "",
    "Arlo",
    (
        "The color of Arlo is blue.",
        "The city of Arlo is Rome.",
        "The job of Arlo is pilot.",
        "The metal of Arlo is zinc.",
    ),
)
QUESTION = "What are the color, the city and the metal of Arlo?"
SOURCE = parse_source(QUESTION, [PASSAGE])


def marks(text: str) -> list[tuple[str, str]]:
    """(marked text, error type) of every span the oracle marks in `text`."""
    feedback = to_feedback(judge(SOURCE, text, SEGMENTER), SOURCE)
    return [(text[e.start : e.end], e.error_type) for e in feedback.errors]


def missing(text: str) -> list[tuple[str, int, tuple[int, ...]]]:
    """(type, passage, sentences) of all that the oracle misses in `text`."""
    feedback = to_feedback(judge(SOURCE, text, SEGMENTER), SOURCE)
    return [(m.error_type, m.passage_id, m.sentence_ids) for m in feedback.missing_info]


def judged(text: str) -> Judgement:
    """The judgement of `text` as an answer to the module's question."""
    return judge(SOURCE, text, SEGMENTER)


def test_perfect_answer_has_no_error() -> None:
    text = "The color of Arlo is blue. The city of Arlo is Rome. The metal of Arlo is zinc."
    judgement = judged(text)
    assert text == SOURCE.gold
    assert marks(text) == [] and missing(text) == []
    assert judgement.errors == 0 and judgement.judged_sentences == 3
    assert to_feedback(judgement, SOURCE).corrected_prediction == text


def test_every_kind_of_error_with_exact_offsets() -> None:
    text = (
        "The color of Arlo is red, and the job of Arlo is pilot. "  # wrong value; true but not asked
        "The city of Arlo is Rome, and the city of Arlo is Rome. "  # repeated
        "The shape of Arlo is cube. "  # not asked and not in the passage
        "Arlo zinc zinc."  # no clause
    )
    feedback = to_feedback(judged(text), SOURCE)
    assert [(e.start, e.end, e.error_type) for e in feedback.errors] == [
        (0, 25, "Wrong-Grounding"),
        (26, 55, "Irrelevant"),
        (82, 111, "Redundant"),
        (112, 138, "Irrelevant"),
        (112, 138, "Unverifiable"),
        (139, 154, "Incoherent"),
    ]
    assert text[26:55] == "and the job of Arlo is pilot." and text[139:154] == "Arlo zinc zinc."
    assert missing(text) == [("Missing-Answer", 1, (4,))]
    assert feedback.corrected_prediction == (
        "The color of Arlo is blue. The city of Arlo is Rome. The metal of Arlo is zinc."
    )
    judgement = judged(text)
    assert (judgement.relevance_errors, len(judgement.sub_sentences)) == (4, 6)
    # Sentence 1 has C2, 2 only C1 (left out), 3 C1 and C2, 4 only C1 (left out).
    assert (judgement.factual_errors, judgement.judged_sentences) == (2, 2)
    assert judgement.given == (True, True, False) and judgement.correct == (False, True, False)
    assert judgement.errors == 4 + 2 + 1


def test_false_and_irrelevant_clause_carries_both() -> None:
    assert marks("The job of Arlo is baker.") == [
        ("The job of Arlo is baker.", "Irrelevant"),
        ("The job of Arlo is baker.", "Wrong-Grounding"),
    ]


def test_another_entity_is_unverifiable_and_gives_nothing() -> None:
    assert marks("The color of Bela is blue.") == [("The color of Bela is blue.", "Unverifiable")]
    assert missing("The color of Bela is blue.") == [("Missing-Answer", 1, (k,)) for k in (1, 2, 4)]
    assert to_feedback(judged("The color of Bela is blue."), SOURCE).corrected_prediction == SOURCE.gold


def test_second_statement_is_redundant_even_with_another_value() -> None:
    text = "The color of Arlo is red. The color of Arlo is blue."
    assert marks(text) == [
        ("The color of Arlo is red.", "Wrong-Grounding"),
        ("The color of Arlo is blue.", "Redundant"),
    ]
    assert judged(text).correct[0]


def test_value_outside_the_lexicon_is_judged_by_the_passage() -> None:
    assert marks("The color of Arlo is ultramarine.") == [("The color of Arlo is ultramarine.", "Wrong-Grounding")]
    assert judged("The color of Arlo is ultramarine.").given == (True, False, False)


def test_case_does_not_matter() -> None:
    assert marks("the COLOR of arlo is Blue") == []


@pytest.mark.parametrize(
    ("text", "piece"),
    [
        ("The color of Arlo is", "The color of Arlo is"),
        ("The color of Arlo is blue, and the city", "The color of Arlo is blue, and the city"),
        ("The color of Arlo is blue red.", "The color of Arlo is blue red."),
        ("blue", "blue"),
        ("Ünïcödé 日本語 🙂", "Ünïcödé 日本語 🙂"),
        ("<unk>, the the of of", "<unk>, the the of of"),
    ],
)
def test_broken_text_is_incoherent(text: str, piece: str) -> None:
    assert marks(text) == [(piece, "Incoherent")]
    judgement = judged(text)
    assert judgement.judged_sentences == 0 and judgement.given == (False,) * 3


@pytest.mark.parametrize("text", ["", "   ", "\n\t"])
def test_empty_text_misses_everything(text: str) -> None:
    judgement = judged(text)
    assert judgement.sub_sentences == () and len(judgement.missing) == 3
    rates = pool([judgement])
    assert (rates.relevance_error_rate, rates.factual_error_rate, rates.completeness) == (0, 0, 0)


def test_garbage_never_fails_and_spans_lie_on_text() -> None:
    rng = random.Random(0)
    alphabet = [
        "the",
        "color",
        "of",
        "Arlo",
        "is",
        "red",
        ",",
        ".",
        ", and",
        " ",
        "!",
        "?",
        "é",
        "🙂",
        "\u200b",
        "\n",
        "'",
    ]
    for _ in range(300):
        text = "".join(rng.choice(alphabet) + rng.choice(["", " "]) for _ in range(rng.randint(0, 30)))
        feedback = to_feedback(judged(text), SOURCE)
        assert all(0 <= e.start < e.end <= len(text) and text[e.start : e.end].strip() for e in feedback.errors)


def test_rates_are_pooled_by_hand() -> None:
    good = SOURCE.gold
    bad = "The color of Arlo is red, and the job of Arlo is pilot. The city of Arlo is Rome."
    record = OutputRecord("a", QUESTION, (PASSAGE,), (good,), "", (good, bad))
    rates = true_error_rates([record], SEGMENTER)
    assert (rates.relevance_errors, rates.sub_sentences) == (1, 6)
    assert (rates.factual_errors, rates.sentences) == (1, 5)
    assert (rates.given, rates.correct, rates.asked) == (5, 4, 6)
    assert rates.relevance_error_rate == pytest.approx(1 / 6)
    assert rates.factual_error_rate == pytest.approx(1 / 5)
    assert rates.completeness == pytest.approx(5 / 6) and rates.correct_share == pytest.approx(4 / 6)


def test_sentence_whose_only_error_is_relevance_is_left_out() -> None:
    judgement = judged("The color of Arlo is blue, and the job of Arlo is pilot. The city of Arlo is Paris.")
    assert (judgement.judged_sentences, judgement.factual_errors) == (1, 1)


def test_several_passages_and_uncut_passages() -> None:
    first, second = (
        Passage("", "Arlo", ("Arlo is nice.", "The color of Arlo is blue.")),
        Passage("", "X", ("The city of Arlo is Rome.",)),
    )
    source = parse_source(QUESTION, [first, second])
    places = [(f.passage_id, f.sentence_id) for f in source.asked_facts()]
    assert places == [(1, 2), (2, 1)]
    uncut = Passage("", "Arlo", (PASSAGE.text,))
    assert split_passages([uncut], SEGMENTER) == (PASSAGE,)
    assert judge_answer(QUESTION, [uncut], SOURCE.gold, SEGMENTER).errors == 0


def test_asked_but_nowhere_stated_is_no_gap() -> None:
    source = parse_source("What are the color and the shape of Arlo?", [PASSAGE])
    judgement = judge(source, "The shape of Arlo is cube.", SEGMENTER)
    assert [f.clause.attribute for f in judgement.missing] == ["color"]
    assert judgement.sub_sentences[0].c1 is None and judgement.sub_sentences[0].c2 == "Unverifiable"


def test_question_grammar() -> None:
    assert parse_question(QUESTION) == ("Arlo", ("color", "city", "metal"), ())
    assert parse_question("What is the color of Arlo?") == ("Arlo", ("color",), ())
    assert parse_question("what are the color and the city of Arlo ?") == ("Arlo", ("color", "city"), ())
    assert parse_question("Tell me about the metal, the Color and the tool of Arlo.") == (
        "Arlo",
        ("metal", "Color", "tool"),
        ("shape",),  # the tool is auxiliary to the metal, and asked for by name
    )
    wrong = ("Tell me about the color of Arlo?", "What is the color of Arlo.", "Tell me about color of Arlo.")
    for text in ("Who is Arlo?", "What are the color, city of Arlo?", "What is the color of Arlo", "", *wrong):
        with pytest.raises(DataError, match="question"):
            parse_question(text)
    assert parse_clause("and the color of Arlo is red,") == parse_clause("the color of Arlo is red")
    assert parse_clause("the color of Arlo is") is None
    for form in ("Arlo has red as its color.", "and Arlo has red as its color", "As its color Arlo has red,"):
        assert parse_clause(form) == Clause("color", "Arlo", "red")
    for broken in ("Arlo has red", "as its color Arlo has", "Arlo has red as color", "its color Arlo has red"):
        assert parse_clause(broken) is None


def test_an_open_question_asks_for_what_is_auxiliary() -> None:
    source = parse_source("Tell me about the job and the metal of Arlo.", [PASSAGE])
    assert (source.asked, source.auxiliary) == (("job", "metal", "city", "tool"), ("city", "tool"))
    text = "Arlo has pilot as its job, and the tool of Arlo is saw, and the color of Arlo is blue."
    judgement = judge(source, text, SEGMENTER)
    found = [(piece.c1, piece.c2) for piece in judgement.sub_sentences]
    assert found == [(None, None), (None, "Unverifiable"), ("Irrelevant", None)]
    feedback = to_feedback(judgement, source)
    # no passage states the tool: nothing is missing there
    assert [(m.error_type, m.sentence_ids) for m in feedback.missing_info] == [
        ("Missing-Answer", (4,)),
        ("Missing-Major-Auxiliary", (2,)),
    ]
    assert feedback.corrected_prediction == (
        "The job of Arlo is pilot. The metal of Arlo is zinc. The city of Arlo is Rome."
    )
    assert judge(source, source.gold, SEGMENTER).errors == 0


def test_errors_name_the_record() -> None:
    record = OutputRecord("q7", "Who is Arlo?", (PASSAGE,), (), "", ("x",))
    with pytest.raises(DataError, match="record q7, field question"):
        true_error_rates([record], SEGMENTER)
    record = OutputRecord("q8", QUESTION, (Passage("", "Arlo", ("Nothing.",)),), (), "", ("x",))
    with pytest.raises(DataError, match="record q8, field passages"):
        true_error_rates([record], SEGMENTER)


def test_gold_answers_of_a_world_are_perfect() -> None:
    splits = MakeFactWorld("unused", seed=3, train=200, dev=0, test=0, sft_train=0, sft_dev=0).draw()
    rates = pool(judge_answer(i.question, to_passages(i), i.gold, SEGMENTER) for i, _ in splits["train"])
    assert rates.relevance_errors == rates.factual_errors == 0
    assert rates.correct == rates.asked == sum(len(item.asked) for item, _ in splits["train"])
    assert rates.sub_sentences == rates.sentences == rates.asked
