"""With how much further text a segment's end is known, and what of a text stands after each token."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from byte_toy import byte_fallback
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rl_toy import tokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from finegrained_rlhf.text.alignment import byte_tokens, decode_text, settled_ends, token_ends
from finegrained_rlhf.text.segmentation import (
    LOOK_AHEAD,
    Span,
    cutter,
    deciding_character,
    look_ahead_fault,
    look_ahead_of,
)

TEXTS = [
    'It ended. " Bloom" followed. He left (see (also) No. 5), and it was 3.5 ft. long. Maj. Gen. Smith said "Yes!"',
    "One, two three four five, six, seven eight nine, ten eleven twelve; thirteen fourteen fifteen sixteen. Yes, no.",
    "Wait... - - - what?! “Quoted.” ‘Twice.’ end.Next one.\n\nU.S. troops at 5 p.m. Mr. A. b; c, d! e? f, g h i j k.",
]
PIECES = (
    "a b, c; d. e! f? ... - \" ' ( ) “ ” ‘ [ ] No. 5 3. .5 Maj. U.S. end.Next ft. Ab . , x,y \u200b \x1c :- :) 。 é (“ "
    '"( !” .) p.m. col. Smith'
).split()
ODD = st.lists(st.tuples(st.sampled_from(PIECES), st.sampled_from(["", " ", "  ", "\n\n"])), max_size=24).map(
    lambda parts: "".join(piece + blank for piece, blank in parts)
)
DECLARED = [(pipeline, granularity) for pipeline, words in LOOK_AHEAD.items() for granularity in words]


@pytest.mark.parametrize(("pipeline", "granularity"), DECLARED)
@settings(max_examples=40, deadline=None)
@given(text=ODD)
@example(text=TEXTS[0])
@example(text=TEXTS[1])
@example(text=TEXTS[2])
def test_built_in_segmenters_look_no_further_than_they_say(pipeline: str, granularity: Any, text: str) -> None:
    words = look_ahead_of(pipeline, granularity)
    assert words is not None
    assert look_ahead_fault(cutter(pipeline, granularity), words, text) is None


def test_one_that_looks_further_than_it_says_is_caught() -> None:
    assert look_ahead_fault(cutter("english", "sentence"), 1, "It ended. ( See (also) No. 5.") == len("It ended.")
    assert look_ahead_fault(cutter("rules", "sentence"), 0, TEXTS[0]) is not None
    assert look_ahead_fault(cutter("english", "sub_sentence"), 4, TEXTS[1]) is not None

    def halves(text: str) -> list[Span]:
        """Cuts in the middle: every word moves every end."""
        middle = text.find(" ", len(text) // 2)
        return [(0, len(text))] if middle < 1 else [(0, middle), (middle + 1, len(text))]

    assert look_ahead_fault(halves, 5, "a b c d e f g h i j k l m n o p q r s t u v") is not None


def test_a_segmenter_of_ones_own_has_none_until_it_says() -> None:
    class Own:
        def sentences(self, text: str) -> list[Span]:
            return []

        sub_sentences = sentences

    class Saying(Own):
        def look_ahead(self, granularity: str) -> int:
            return 3 if granularity == "sentence" else 7

    assert look_ahead_of(Own(), "sentence") is None
    assert look_ahead_of(Saying(), "sub_sentence") == 7 and look_ahead_of("english", "sentence") == 2


def test_the_character_that_decides_by_hand() -> None:
    text = "So it ends.  Not yet, no"
    assert [deciding_character(text, 11, words) for words in range(4)] == [13, 17, 22, None]
    assert deciding_character(text, 9, 1) == 13  # the rest of a word is one
    assert deciding_character(text, len(text), 0) is None


def byte_level() -> Any:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made)


def word_pieces() -> Any:
    """BERT's decoder, which takes blanks away before full stops and clitics; of one token at a time, so these stay."""
    pieces = "[UNK] do not n ' ##'t t . , ? ! cat ##s n't 'm 's 've 're ##. ##n't".split()
    made = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    made.decoder = decoders.WordPiece(cleanup=True)
    found = PreTrainedTokenizerFast(tokenizer_object=made, unk_token="[UNK]", clean_up_tokenization_spaces=True)
    assert decode_text(found, [1, 13, 7]) == "don't." and found.decode([1, 3, 5], skip_special_tokens=True) == "don't"
    return found


def stands(words: Any, ids: Sequence[int], unsettled: frozenset[int]) -> list[str]:
    text, ends = token_ends(words, ids)
    return [text[:end] for end in settled_ends(text, ends, ids, unsettled)]


@pytest.mark.parametrize("kind", ["words", "word_pieces", "byte_level", "byte_fallback"])
def test_what_stands_after_a_token_is_a_function_of_the_tokens_up_to_it(kind: str) -> None:
    """Random ids: half a character, blanks, invalid bytes, special tokens; and then other ones from some token on."""
    words = {"words": tokenizer, "word_pieces": word_pieces, "byte_level": byte_level, "byte_fallback": byte_fallback}[
        kind
    ]()
    unsettled, rng, moved = byte_tokens(words), random.Random(0), 0
    assert len(unsettled) == (256 if kind == "byte_fallback" else 0)
    chosen = list(range(len(words)))
    if kind == "byte_fallback":
        chosen = [*range(7)] * 4 + [7 + byte for byte in (0xC3, 0xA9, 0xE2, 0x82, 0xAC, 0xFF, 0x2E, 0x20)]
    for _ in range(300):
        rows = [[rng.choice(chosen) for _ in range(16)] for _ in range(2)]
        cut = rng.randint(1, 15)
        one, two = rows[0], rows[0][:cut] + rows[1][cut:]
        before, after = stands(words, one, unsettled)[:cut], stands(words, two, unsettled)[:cut]
        assert before == after
        for t, text in enumerate(before):
            assert decode_text(words, one[: t + 1]).startswith(text) or one[t] in unsettled
        ends = [token_ends(words, row)[1][:cut] for row in (one, two)]
        moved += ends[0] != ends[1]
    assert (moved > 0) == (kind in ("byte_level", "byte_fallback"))  # where tokens end, later bytes do move
