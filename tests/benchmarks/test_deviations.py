"""The measurements behind DEVIATIONS.md, on inputs small enough to see the answer."""

import random

import pytest
from feedback_samples import LAKE, record

from benchmarks.deviations_ends import drift_of
from benchmarks.deviations_labels import FirstWins, no_shared_word, published_ends
from benchmarks.deviations_reward_models import WithoutBar, pairs_apart, spread
from benchmarks.deviations_tokens import SHARE_CUT, cut_otherwise, padded_share, t5_like
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.models.tiny_networks import build_tokenizer, encoder_tokenizer
from finegrained_rlhf.text.alignment import decode_text
from finegrained_rlhf.text.segmentation import SpacySegmenter
from reward_models.data.examples import RewardExample
from reward_models.encoders.inputs import EncodedInput, RewardInputEncoder
from reward_models.parts import answer_parts

ANSWER = "The old red house stands there, and nobody has ever lived in it. It is blue."


def test_a_token_cut_in_two_moves_every_end_behind_it_by_one() -> None:
    tokenizer = build_tokenizer([ANSWER] * 3, "bpe", 400)
    ids = tokenizer(ANSWER).input_ids
    exact = drift_of(tokenizer, ids, SpacySegmenter())
    assert (exact.responses, exact.resampled, exact.segments, exact.moved) == (
        1,
        0,
        5,
        0,
    )  # 3 sub-sentences, 2 sentences
    pieces = tokenizer.convert_ids_to_tokens(ids)
    place = pieces.index("Ġnobody")
    halves = tokenizer.convert_tokens_to_ids(["Ġ", "n", "o", "b", "o", "d", "y"])
    # the first sub-sentence ends before "nobody"; the other two and both sentences end behind it, six tokens later
    late = drift_of(tokenizer, [*ids[:place], *halves, *ids[place + 1 :]], SpacySegmenter())
    assert (late.resampled, late.segments, late.moved, late.distance) == (1, 5, 4, 24)
    assert (exact + late).responses == 2 and "4 of 5 segment ends (80.0%)" in str(late)


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_tokens_that_are_cut_give_the_same_text(kind: str) -> None:
    corpus = [ANSWER, "A blue house stands in the old town; nobody lives there."] * 5
    tokenizer = t5_like(corpus) if kind == "unigram" else build_tokenizer(corpus, "bpe", 400)
    ids = tokenizer(ANSWER).input_ids * 40
    changed = cut_otherwise(tokenizer, ids, random.Random(1))
    assert decode_text(tokenizer, changed) == decode_text(tokenizer, ids)
    assert 0 < len(changed) - len(ids) < 4 * SHARE_CUT * len(ids)


def encoded(*lengths: int) -> list[EncodedInput]:
    return [EncodedInput(tuple(range(length)), ()) for length in lengths]


def test_padding_and_pairs_are_counted_by_hand() -> None:
    three = RewardExample(tuple(encoded(2, 4, 6)), pairs=((0, 1), (2, 1)))
    one = RewardExample(tuple(encoded(8)))
    assert padded_share([[three]]) == pytest.approx(1 - 12 / 18)
    assert padded_share([[three], [one]]) == pytest.approx(1 - 20 / 26)
    apart = pairs_apart([three])
    assert [[len(item.ids) for item in example.inputs] for example in apart] == [[2, 4], [6, 4]]
    assert all(example.pairs == ((0, 1),) for example in apart)
    assert spread([1.0, 2.0, 3.0]) == "2.000 ± 1.000"


def test_the_bar_between_passages_is_all_that_is_left_out() -> None:
    passages = (LAKE, Passage("", "A | B", ("One | two.",)))
    parts = answer_parts("What?", passages, "It is cold.")
    tokenizer = encoder_tokenizer(build_tokenizer([parts.context, parts.before, parts.after], "word"), 200)
    ours, theirs = (make(tokenizer, 200).encode([parts])[0].ids for make in (RewardInputEncoder, WithoutBar))
    bar = tokenizer("a | b", add_special_tokens=False).input_ids[1]
    assert len(ours) - len(theirs) == 1
    assert (ours.count(bar), theirs.count(bar)) == (3, 2)


def test_a_piece_without_a_shared_word_maps_to_the_first_sentence() -> None:
    matcher = FirstWins({(1, 1): "red house", (1, 2): "blue town"})
    assert [matcher.best(piece) for piece in ("a town", "green", "")] == [(1, 2), (1, 1), (1, 1)]
    # the correction needs the lake's first sentence; "Zebras sleep." says nothing of it, and gets it by default
    strange = record(
        "The lake is three kilometres wide.", others=("Zebras sleep.",) * 3, correction="It is three kilometres wide."
    )
    found = no_shared_word([strange], SpacySegmenter())
    assert found.startswith("3 of 5 sub-sentences") and found.endswith("3 of 6 comparisons change")


def test_published_sentence_ends_are_found_again_or_not() -> None:
    whole = record("x.", passages=(Passage("", "t", ("It is cold.", "It is wide.", "It is deep.")),))
    assert published_ends([whole], SpacySegmenter()).startswith(
        "100.0% of 2 published sentence ends found, 100.0% of 2"
    )
    joined = record("x.", passages=(Passage("", "t", ("It is cold. It is wide.", "It is deep.")),))
    assert published_ends([joined], SpacySegmenter()).endswith("50.0% of 2 correct")
