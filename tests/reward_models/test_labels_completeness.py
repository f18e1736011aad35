import time
from difflib import SequenceMatcher
from pathlib import Path

import pytest
from feedback_samples import LAKE, record
from hypothesis import given
from hypothesis import strategies as st

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.feedback.reading import read_feedback
from finegrained_rlhf.feedback.records import MissingInfo
from finegrained_rlhf.text.segmentation import SpacySegmenter
from reward_models.completeness import (
    TokenF1Matcher,
    WindowMatcher,
    completeness,
    mapped_sentences,
    passage_sentences,
    scores_to_preferences,
)
from reward_models.kinds import COMPLETENESS, PREFERENCE
from reward_models.pairs import CompletenessConfig, ordered_pairs

SEGMENTER = SpacySegmenter("rules")
WIDE, COLD, SWIM = LAKE.sentences


def naive_similarity(sentence: str, piece: str) -> float:
    """The original procedure with difflib itself, window by window."""
    width = len(piece.split()) + int(0.05 * len(piece.split()))
    missing = width - len(sentence.split()) + 1
    context = sentence + " #" * missing if missing > 0 else sentence
    if piece in context:
        return 1.0
    words, best = context.split(), 0.0
    for start in range(len(words) - width + 1):
        window = " ".join(words[start : start + width])
        best = max(best, SequenceMatcher(None, window, piece).quick_ratio())
    return best


PIECES = st.lists(
    st.sampled_from("the lake is wide, cold # é 東京 of a 1918 1981 swimming".split()), min_size=1, max_size=45
)


@given(st.lists(PIECES.map(" ".join) | st.just(""), min_size=1, max_size=6), PIECES.map(" ".join))
def test_windows_equal_difflib(sentences: list[str], piece: str) -> None:
    matcher = WindowMatcher({(1, j): text for j, text in enumerate(sentences, start=1)})
    expected = [naive_similarity(sentence, piece) for sentence in sentences]
    assert matcher.similarities(piece).tolist() == expected
    best = expected.index(max(expected))
    assert matcher.best(piece) == ((1, best + 1) if max(expected) >= 0.85 else None)


def test_real_pieces_equal_difflib(shared_data: Path) -> None:
    for row in read_feedback(shared_data / "qa_feedback/dev_feedback.json")[::100]:
        sentences = passage_sentences(row.passages)
        matcher = WindowMatcher(sentences)
        for piece, _ in mapped_sentences(row.predictions[1], matcher, SEGMENTER):
            expected = [naive_similarity(sentence, piece) for sentence in sentences.values()]
            assert matcher.similarities(piece).tolist() == expected


def test_real_pairs_and_time(shared_data: Path) -> None:
    rows = read_feedback(shared_data / "qa_feedback/dev_feedback.json")
    start = time.process_time()
    pairs = COMPLETENESS.pairs(rows, SEGMENTER)
    assert time.process_time() - start < 30, "measured 3 s on one core"
    assert (pairs.examples, len(pairs.pairs), pairs.first, pairs.second, pairs.ties) == (352, 859, 531, 328, 1253)
    preferences = PREFERENCE.pairs(rows, SEGMENTER)
    assert preferences.examples == 400 and preferences.first + preferences.second + preferences.ties == 2400
    assert len(preferences.pairs) == preferences.first + preferences.second


def test_matching_by_hand() -> None:
    matcher = WindowMatcher(passage_sentences([LAKE]))
    assert matcher.best("Its water stays cold") == (1, 2), "an exact substring"
    assert matcher.best("its water stays cold,") == (1, 2), "almost a substring"
    assert matcher.best("There is a monster in the deep") is None
    assert WindowMatcher({}).best("anything") is None
    twice = WindowMatcher({(1, 1): "It is cold.", (2, 1): "It is cold."})
    assert twice.best("It is cold.") == (1, 1), "the first of the best wins"


def test_token_f1_matching_by_hand() -> None:
    matcher = TokenF1Matcher({(1, 1): "The lake is wide.", (1, 2): "A wide, cold lake.", (2, 1): "Cold wide lake"})
    assert matcher.best("the lake: wide and cold") == (1, 2)
    assert matcher.best("swimming") is None
    assert matcher.best("the") is None, "nothing but an article"
    assert TokenF1Matcher({}).best("lake") is None


def test_scores_by_hand() -> None:
    row = record(f"{WIDE} {COLD}", others=(SWIM, f"{WIDE} Something else.", "No."), correction=f"{WIDE} {COLD}")
    result = completeness(row, SEGMENTER)
    assert result is not None and result.needed == {(1, 1), (1, 2)}
    assert result.scores == (1.0, 0.0, 0.5, 0.0)
    assert result.preferences == (1, 1, 1, 2, 0, 1)
    pairs = COMPLETENESS.pairs([row], SEGMENTER)
    assert [(pair.better, pair.worse) for pair in pairs.pairs] == [(0, 1), (0, 2), (0, 3), (2, 1), (2, 3)]
    assert (pairs.examples, pairs.first, pairs.second, pairs.ties) == (1, 4, 1, 1)
    longer = record(WIDE, others=(f"{WIDE} {COLD} {SWIM}", SWIM, "No."), correction=f"{WIDE} {COLD}")
    result = completeness(longer, SEGMENTER)
    assert result is not None and result.scores == (0.5, 1.0, 0.0, 0.0), "what is said beyond S costs nothing"
    assert pairs.pairs[3].better_text.startswith(WIDE) and pairs.pairs[3].worse_text == SWIM


def test_minor_sentences_count_only_where_prediction_1_has_them() -> None:
    minor = [MissingInfo("Missing-Minor-Auxiliary", 1, (2,))]
    major = [MissingInfo("Missing-Major-Auxiliary", 1, (2,))]
    both = f"{WIDE} {COLD}"

    def needed(first: str, missing: list[MissingInfo]) -> frozenset[tuple[int, int]] | None:
        result = completeness(record(first, correction=both, missing=missing), SEGMENTER)
        return None if result is None else result.needed

    assert needed(WIDE, minor) == {(1, 1)}
    assert needed(WIDE, major) == {(1, 1), (1, 2)}
    assert needed(both.upper(), minor) == {(1, 1), (1, 2)}, "contained, letter case aside"


def test_examples_without_needed_sentences_are_skipped() -> None:
    empty = record(WIDE, correction="")
    foreign = record(WIDE, correction="Something that no passage says at all.")
    only_minor = record(SWIM, correction=COLD, missing=[MissingInfo("Missing-Minor-Auxiliary", 1, (2,))])
    no_passages = record(WIDE, correction=COLD, passages=())
    pairs = COMPLETENESS.pairs([empty, foreign, only_minor, no_passages], SEGMENTER)
    assert (pairs.examples, pairs.pairs) == (0, ())


def test_white_space_does_not_matter() -> None:
    loose = Passage("", "The lake", (f"The lake\n\n{WIDE}", COLD.replace(" ", "  ")))
    row = record(f"{WIDE}\n{COLD}", correction=f" {WIDE}  {COLD} ", passages=(loose,))
    result = completeness(row, SEGMENTER)
    assert result is not None and result.scores[0] == 1.0


def test_token_f1_switch_differs_from_the_original() -> None:
    row = record("Wide water.", correction="Cold is the water, they say.", others=(COLD, SWIM, WIDE))
    assert completeness(row, SEGMENTER) is None
    switched = completeness(row, SEGMENTER, "token_f1")
    assert switched is not None and switched.needed == {(1, 2)}
    assert CompletenessConfig().matching == "original"
    with pytest.raises(ConfigError, match="expected one of original, token_f1, got 'f1'"):
        CompletenessConfig("f1")  # type: ignore[arg-type]


@given(st.lists(st.integers(0, 3), min_size=4, max_size=4))
def test_preferences_of_scores(scores: list[int]) -> None:
    names = [(i, j) for i in range(4) for j in range(i + 1, 4)]
    values = scores_to_preferences(scores)
    for (i, j), value in zip(names, values, strict=True):
        assert value == (0 if scores[i] == scores[j] else 1 if scores[i] > scores[j] else 2)
    for pair in ordered_pairs(record(WIDE), values):
        assert scores[pair.better] > scores[pair.worse]
    assert len(ordered_pairs(record(WIDE), values)) == 6 - values.count(0)


def test_human_pairs_drop_ties() -> None:
    pairs = PREFERENCE.pairs([record(WIDE, preferences=(0, 1, 2, 1, 0, 2))], SEGMENTER)
    assert [(pair.better, pair.worse) for pair in pairs.pairs] == [(0, 2), (3, 0), (1, 2), (3, 2)]
    assert (pairs.first, pairs.second, pairs.ties) == (2, 2, 2)
