import re
from functools import cache
from pathlib import Path

import pytest
import spacy
from hypothesis import given
from hypothesis import strategies as st
from text_samples import AWKWARD, CORPUS, TEXTS

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.text.segmentation import (
    ABBREVIATIONS,
    TITLES,
    SpacySegmenter,
    sub_sentence_spans,
    sub_sentence_starts,
    trim,
)

SEGMENTER = SpacySegmenter()


def cut(text: str) -> list[str]:
    """Sub-sentences of `text` taken as one sentence."""
    return [text[a:b] for a, b in sub_sentence_spans(text, [(0, len(text))])]


def naive_starts(words: list[str]) -> list[int]:
    """The rule in the words of the reference page: decide cut by cut, remembering every cut made."""
    cuts: list[int] = []
    for position in range(1, len(words)):
        ends_piece = re.search(r"[,;!?]$", words[position - 1]) is not None
        remaining_after_first_word = len(words) - position
        if not ends_piece or remaining_after_first_word <= 5:
            continue
        length = position - (cuts[-1] if cuts else 0)
        if length < 5:
            if cuts:
                cuts.pop()
                cuts.append(position)
        else:
            cuts.append(position)
    return [0, *cuts] if words else []


def test_cut_after_comma_by_hand() -> None:
    assert cut("one two three four five, six seven eight nine ten eleven") == [
        "one two three four five,",
        "six seven eight nine ten eleven",
    ]


def test_no_cut_where_only_five_words_remain() -> None:
    text = "one two three four five, six seven eight nine ten"
    assert cut(text) == [text]


def test_first_short_piece_is_merged_into_what_follows() -> None:
    text = "Yes, one two three four five six seven"
    assert cut(text) == [text]


def test_later_short_piece_replaces_the_cut_before_it() -> None:
    text = "one two three four five; six seven, eight nine ten eleven twelve thirteen"
    assert cut(text) == ["one two three four five; six seven,", "eight nine ten eleven twelve thirteen"]


@pytest.mark.parametrize("mark", ",;!?")
def test_every_cut_mark(mark: str) -> None:
    assert len(cut(f"a b c d e{mark} f g h i j k")) == 2


@pytest.mark.parametrize("mark", [".", ":", "-", ',"', ",)"])
def test_other_marks_do_not_cut(mark: str) -> None:
    assert len(cut(f"a b c d e{mark} f g h i j k")) == 1


def test_sentences_by_hand() -> None:
    text = "  The lake is wide.  It is cold! \n Who knows"
    assert [text[a:b] for a, b in SEGMENTER.sentences(text)] == ["The lake is wide.", "It is cold!", "Who knows"]


@pytest.mark.parametrize("text", ["", " ", "\n\t \u00a0"])
def test_text_without_words_has_no_segment(text: str) -> None:
    assert SEGMENTER.sentences(text) == [] and SEGMENTER.sub_sentences(text) == []


@given(st.lists(st.sampled_from(["w", "w,", "w;", "w!", "w?", "w."]), max_size=40))
def test_rule_equals_the_naive_loop(words: list[str]) -> None:
    assert sub_sentence_starts(words) == naive_starts(words)


@given(TEXTS)
def test_segments_hold_every_character_once(text: str) -> None:
    sentences, pieces = SEGMENTER.sentences(text), SEGMENTER.sub_sentences(text)
    for spans in (sentences, pieces):
        flat = [offset for span in spans for offset in span]
        assert flat == sorted(flat) and all(a < b for a, b in spans)
        assert all(text[a:b] == text[a:b].strip() for a, b in spans)
        assert "".join("".join(text[a:b] for a, b in spans).split()) == "".join(text.split())
    assert all(any(a <= c and d <= b for a, b in sentences) for c, d in pieces)


@given(TEXTS)
def test_only_the_sub_sentences_of_short_sentences_are_short(text: str) -> None:
    pieces = SEGMENTER.sub_sentences(text)
    for start, end in SEGMENTER.sentences(text):
        inside = [text[a:b] for a, b in pieces if start <= a < end]
        assert len(inside) == 1 or all(len(piece.split()) >= 5 for piece in inside)


@cache
def sentencizer() -> spacy.Language:
    """spaCy's own pipeline."""
    nlp = spacy.blank("en")
    nlp.add_pipe("sentencizer")
    return nlp


@pytest.mark.parametrize("text", AWKWARD + CORPUS)
def test_sentences_are_spacys(text: str) -> None:
    expected = [sentence.text.strip() for sentence in sentencizer()(text).sents if sentence.text.strip()]
    assert [text[a:b] for a, b in SpacySegmenter("rules").sentences(text)] == expected


def test_answers_do_not_share_state() -> None:
    first = SEGMENTER.sentences("One. Two.")
    first.append((0, 0))
    assert SEGMENTER.sentences("One. Two.") == [(0, 4), (5, 9)]


def test_trim() -> None:
    assert trim((0, 6), "  ab  ") == (2, 4)
    assert trim((0, 2), "  ab  ") is None


def test_pipeline_by_path_and_missing_pipeline(tmp_path: Path) -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe("sentencizer", config={"punct_chars": ["|"]})
    nlp.to_disk(tmp_path / "bars")
    assert SpacySegmenter(str(tmp_path / "bars")).sentences("a. b | c") == [(0, 6), (7, 8)]
    spacy.blank("en").to_disk(tmp_path / "bare")
    with pytest.raises(ConfigError, match="no sentence boundaries"):
        SpacySegmenter(str(tmp_path / "bare"))
    with pytest.raises(ConfigError, match="no_such_pipeline.*not installed"):
        SpacySegmenter("no_such_pipeline")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "It is No. 5 of them, approx. 3 ft. long. It is red.",
            ["It is No. 5 of them, approx. 3 ft. long.", "It is red."],
        ),
        ("See (fig. 2, p. 7) in Vol. 3 of it. Then Fig. 4.", ["See (fig. 2, p. 7) in Vol. 3 of it.", "Then Fig. 4."]),
        ("It is 3 ft. The lake is wide.", ["It is 3 ft.", "The lake is wide."]),  # a capital begins a sentence
        ("The year was 2018. 5 men came.", ["The year was 2018.", "5 men came."]),  # no abbreviation
        ("He met Lt. Col. Dean. They left.", ["He met Lt. Col. Dean.", "They left."]),
        ('It ended. "Bloom" followed. Good.', ["It ended.", '"Bloom" followed.', "Good."]),
        ('She said "Stop." (Nobody did.) So it went on.', ['She said "Stop."', "(Nobody did.)", "So it went on."]),
        ("He asked: “Why?” “Because.” That was all.", ["He asked: “Why?”", "“Because.”", "That was all."]),
        ("“Who?” she asked. [Nobody knew.] ( 5 )", ["“Who?”", "she asked.", "[Nobody knew.]", "( 5 )"]),
        ('He wrote "No. " and left.', ['He wrote "No. "', "and left."]),  # a mark between spaces closes
    ],
)
def test_english_mends_what_the_rules_cut_wrongly(text: str, expected: list[str]) -> None:
    segmenter = SpacySegmenter("english")
    assert [text[a:b] for a, b in segmenter.sentences(text)] == expected
    assert len(segmenter.sub_sentences(text)) >= len(expected)


@given(TEXTS)
def test_english_joins_sentences_of_the_rules_and_moves_marks_that_open(text: str) -> None:
    """No end is new but in front of marks that open, and none of the rules' is lost but for those and abbreviations."""
    english, rules = SpacySegmenter("english").sentences(text), SpacySegmenter("rules").sentences(text)
    new = {b for _, b in english} - {b for _, b in rules}
    assert all(re.match(r"\s+([\"'“‘(\[]+\S|[“‘(\[]+\s)", text[end:]) for end in new)
    lost = {b for _, b in rules} - {b for _, b in english}
    words = ABBREVIATIONS | TITLES
    assert all(
        re.search(r"\s[\"'“‘(\[]+\Z", text[:end]) or text[:end].split()[-1].lstrip("([\"'").lower() in words
        for end in lost
    )


@pytest.mark.parametrize(
    "text", ["The color of Arlo is blue, and the city is Rome. The job is pilot.", "Yes! No? Perhaps; who knows."]
)
def test_plain_text_is_cut_alike(text: str) -> None:
    english, rules = SpacySegmenter("english"), SpacySegmenter("rules")
    assert english.sentences(text) == rules.sentences(text)
    assert english.sub_sentences(text) == rules.sub_sentences(text)
