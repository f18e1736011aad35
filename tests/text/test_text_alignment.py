import os
import time
from functools import cache
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st
from text_samples import AWKWARD, CORPUS, KINDS, TEXTS, tokenizer

from finegrained_rlhf.core.errors import AlignmentError
from finegrained_rlhf.text.alignment import (
    AlignmentAudit,
    audit_alignment,
    decode_text,
    segment_end_tokens,
    token_ends,
)
from finegrained_rlhf.text.segmentation import SpacySegmenter

SEGMENTER = SpacySegmenter()
IDS = st.lists(st.integers(0, 1 << 16), max_size=60)


def reference_ends(kind: str, ids: list[int], text: str) -> tuple[int, ...]:
    """Where each token ends, from the tokens' own strings and no call of `decode`.

    Byte-level BPE: the characters of `text` that are complete after the bytes so far, and U+FFFD counted by Python's
    decoder. Metaspace: the lengths of the pieces, the first one without its space.
    """
    tok = tokenizer(kind)
    pieces = ["" if i >= len(tok) or i in tok.all_special_ids else tok.convert_ids_to_tokens(i) for i in ids]
    if kind == "bpe":
        to_byte = byte_of_character()
        data = [bytes(to_byte[c] for c in piece) for piece in pieces]
        whole = b"".join(data)
        ends, done = [], 0
        for piece in data:
            done += len(piece)
            so_far = whole[:done].decode("utf-8", errors="replace")
            ends.append(len(os.path.commonprefix([so_far, text])))
        return tuple(ends)
    lengths = [len(piece) for piece in pieces]
    first = next((i for i, i_ in enumerate(ids) if i_ < len(tok) and i_ not in tok.all_special_ids), None)
    if first is not None and pieces[first].startswith("▁"):
        lengths[first] -= 1
    return tuple(accumulate(lengths))


@cache
def byte_of_character() -> dict[str, int]:
    """GPT-2's printable stand-in of each byte: Latin-1's printable bytes stand for themselves, others follow at 256."""
    own = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in own]
    return {chr(b): b for b in own} | {chr(256 + n): byte for n, byte in enumerate(others)}


def check_row(kind: str, ids: list[int]) -> None:
    """What must hold for any ids of any tokenizer."""
    tok = tokenizer(kind)
    text, ends = token_ends(tok, ids)
    assert text == decode_text(tok, ids) and len(ends) == len(ids)
    assert list(ends) == sorted(ends) and (not ends or ends[-1] == len(text))
    assert ends == reference_ends(kind, ids, text)
    for spans in (SEGMENTER.sentences(text), SEGMENTER.sub_sentences(text)):
        tokens = segment_end_tokens(ends, spans)
        for (_, end), token in zip(spans, tokens, strict=True):
            before = ends[token - 1] if token else 0
            assert before < end <= ends[token]
        audit = audit_alignment([text], [ends], [spans], tokenizer=tok, ids=[ids])
        assert (audit.segments, audit.exact) == (len(spans), len(spans)) and audit.share == 1.0


@pytest.mark.parametrize("kind", KINDS)
@given(text=TEXTS)
def test_tokenised_texts_map_exactly(kind: str, text: str) -> None:
    tok = tokenizer(kind)
    check_row(kind, [*tok(text, add_special_tokens=False).input_ids, tok.eos_token_id])


@pytest.mark.parametrize("kind", KINDS)
@given(ids=IDS)
def test_any_sampled_ids_map_exactly(kind: str, ids: list[int]) -> None:
    """Ids that re-tokenise differently, special tokens in the middle, single bytes of a character, unknown ids."""
    size = len(tokenizer(kind)) + 3
    check_row(kind, [i % size for i in ids])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", AWKWARD + CORPUS)
def test_awkward_texts(kind: str, text: str) -> None:
    check_row(kind, tokenizer(kind)(text, add_special_tokens=False).input_ids)


class Counted:
    """A tokenizer that counts the calls of its `decode`, with or without its streaming form."""

    def __init__(self, kind: str, streams: bool) -> None:
        self._tokenizer, self.calls = tokenizer(kind), 0
        if streams:
            self.backend_tokenizer = self._tokenizer.backend_tokenizer

    def decode(self, token_ids: list[int], **options: bool) -> str:
        self.calls += 1
        return self._tokenizer.decode(token_ids, **options)


@pytest.mark.parametrize("kind", KINDS)
@given(text=TEXTS, ids=IDS)
def test_one_pass_gives_what_prefixes_give(kind: str, text: str, ids: list[int]) -> None:
    size = len(tokenizer(kind)) + 3
    for row in (tokenizer(kind)(text, add_special_tokens=False).input_ids, [i % size for i in ids]):
        assert token_ends(Counted(kind, True), row) == token_ends(Counted(kind, False), row)


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_with_characters_need_no_decoding_of_their_own(kind: str) -> None:
    ids = tokenizer(kind)("a wide lake and a wide, wide sea", add_special_tokens=False).input_ids
    calls = []
    for streams in (True, False):
        counted = Counted(kind, streams)
        token_ends(counted, ids)
        calls.append(counted.calls)
    assert calls[0] <= 2 and calls[1] == len(ids) >= 9  # the text, and a token that has none


def test_byte_level_by_hand() -> None:
    """One token a byte: é is two bytes; its first byte ends before it, its second after it."""
    tok = tokenizer("bpe")
    ids = [tok.convert_tokens_to_ids(c) for c in ("a", "Ã", "©", "!")]
    assert token_ends(tok, ids) == ("aé!", (1, 1, 2, 3))
    assert token_ends(tok, ids[:2]) == ("a\ufffd", (1, 2))


def test_other_tokenisation_of_the_same_text() -> None:
    """Letter by letter, although the tokenizer would join them."""
    tok = tokenizer("bpe")
    ids = [tok.convert_tokens_to_ids(c) for c in "The"]
    assert tok("The", add_special_tokens=False).input_ids != ids
    assert token_ends(tok, ids) == ("The", (1, 2, 3))


def test_special_tokens_are_empty() -> None:
    tok = tokenizer("word")
    lake, wide = tok("lake wide", add_special_tokens=False).input_ids[:2]
    text, ends = token_ends(tok, [tok.pad_token_id, lake, tok.sep_token_id, wide, tok.eos_token_id, tok.pad_token_id])
    assert text == "lake wide"
    assert ends == (0, 4, 4, 9, 9, 9)
    assert segment_end_tokens(ends, [(0, 9)]) == (3,)


def test_empty_response() -> None:
    tok = tokenizer("unigram")
    assert token_ends(tok, []) == ("", ())
    assert token_ends(tok, [tok.eos_token_id]) == ("", (0,))
    assert segment_end_tokens((0,), []) == ()


def test_segment_end_tokens_by_hand() -> None:
    ends = (3, 3, 7, 10)
    assert segment_end_tokens(ends, [(0, 1), (1, 3), (4, 7), (8, 9)]) == (0, 0, 2, 3)


@pytest.mark.parametrize("span", [(0, 11), (5, 5), (6, 5), (-1, 3)])
def test_segments_off_the_text_are_refused(span: tuple[int, int]) -> None:
    with pytest.raises(AlignmentError, match=f"{span[0]}:{span[1]}"):
        segment_end_tokens((3, 7, 10), [span])
    with pytest.raises(AlignmentError):
        segment_end_tokens((), [(0, 1)])


def test_audit_counts_what_does_not_map() -> None:
    audit = audit_alignment(["abcdef", "ab"], [(3, 6), (2,)], [[(0, 3), (3, 7)], [(0, 2)]])
    assert audit == AlignmentAudit(3, 2) and audit.share == pytest.approx(2 / 3)
    assert audit_alignment(["abcd"], [(3, 2, 4)], [[(0, 3)]]).exact == 0, "two tokens hold its last character"
    assert audit_alignment(["abcd"], [(2,)], [[(0, 2)]]).exact == 0, "the map ends before the text"
    assert (audit + audit).segments == 6
    assert AlignmentAudit(0, 0).share == 1.0
    assert "66.67%" in str(audit)
    with pytest.raises(AlignmentError, match="1 texts, 0 token maps"):
        audit_alignment(["a"], [], [[]])


@pytest.mark.parametrize("kind", KINDS)
def test_audit_fails_on_a_broken_map(kind: str) -> None:
    """Maps of the right form (not decreasing, ending with the text) that belong to other tokens."""
    tok = tokenizer(kind)
    text = " ".join(CORPUS)
    ids = tok(text, add_special_tokens=False).input_ids
    text, ends = token_ends(tok, ids)
    spans = SEGMENTER.sub_sentences(text)
    assert len(spans) > 3
    late = (*(end + 1 for end in ends[:-1]), len(text))
    shifted = (ends[0], *ends[:-2], len(text))
    equal = tuple(round((n + 1) * len(text) / len(ids)) for n in range(len(ids)))
    for broken in (late, shifted, equal):
        ordered = tuple(min(end, len(text)) for end in broken)
        assert audit_alignment([text], [ordered], [spans]).share == 1.0  # its form says nothing
        assert audit_alignment([text], [ordered], [spans], tokenizer=tok, ids=[ids]).share < 0.9
    rows = audit_alignment([text], [ends[:-1]], [spans], tokenizer=tok, ids=[ids])
    assert rows.share == 0.0  # another row's map


def test_ends_inside_a_token_are_counted() -> None:
    """By hand: the tokens end at 3 and 7; a segment that ends at 5 shares its token with what follows."""
    audit = audit_alignment(["abcdefg"], [(3, 7)], [[(0, 3), (3, 5), (5, 7)]])
    assert (audit.exact, audit.inside, audit.inside_share) == (3, 1, pytest.approx(1 / 3))
    assert "1 inside it (33.33%)" in str(audit) and (audit + audit).inside == 2


@pytest.mark.parametrize("kind", KINDS)
def test_fast_enough(kind: str) -> None:
    """32 responses of 200 tokens; measured 0.2 s on one core, the bound leaves room for a busy machine."""
    tok = tokenizer(kind)
    ids = (tok(" ".join(CORPUS * 10), add_special_tokens=False).input_ids * 2)[:200]
    assert len(ids) == 200
    start = time.process_time()
    for _ in range(32):
        token_ends(tok, ids)
    assert time.process_time() - start < 1.5
