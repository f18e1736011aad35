"""Cutting answers into sentences and sub-sentences.

One implementation for label building, reward placement and evaluation: all three must cut a text identically. Spans are
offsets into the given text, end exclusive.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

from finegrained_rlhf.core.errors import ConfigError

if TYPE_CHECKING:
    from spacy.language import Language

Span = tuple[int, int]
"""Character offsets (start, end), end exclusive."""
Granularity = Literal["sub_sentence", "sentence"]

MIN_WORDS = 5
"""A sub-sentence has at least this many white-space words, unless its sentence is shorter."""
CUT_AFTER = ",;!?"
"""A sub-sentence may end after a word whose last character is one of these."""

ABBREVIATIONS = frozenset(
    (
        "al. approx. art. av. bros. ca. cap. capt. cf. ch. chap. cm. col. corp. dept. ed. eds. eq. est. etc. "
        "fig. figs. fl. ft. gal. govt. hr. hrs. ibid. illus. kg. km. lb. lbs. lt. max. mi. min. misc. mm. mt. "
        "no. nos. op. oz. p. para. pp. prof. pt. pts. rev. sec. sgt. sp. spp. sq. ss. tel. temp. vol. vols. "
        "vs. yd. yds. yr. yrs. u.k. u.n. u.s."
    ).split()
)
"""Words after whose full stop a sentence goes on where a digit or a small letter follows (`english`)."""
TITLES = frozenset("brig. capt. cmdr. col. cpl. gov. hon. lt. maj. pres. pvt. sgt. supt.".split())
"""Words after whose full stop a name follows, so that a sentence goes on (`english`)."""

ENGLISH, RULES = "english", "rules"
DEFAULT_SEGMENTER = ENGLISH
"""How answers are cut where nobody says otherwise: by labels, rewards and metrics alike."""

LOOK_AHEAD: Mapping[str, Mapping[str, int]] = {
    ENGLISH: {"sentence": 2, "sub_sentence": 11},
    RULES: {"sentence": 1, "sub_sentence": 10},
}
"""Words behind a character that tell whether a segment ends there; a parser reads the whole text and has none.

A sentence ends behind a full stop and the marks that follow it, so the next word tells; a mark that opens may be moved
to what it opens, so `english` needs one more. A sub-sentence needs the ends of sentences among the four words behind
it, at each of which another cut may replace its own, and at the five words behind that one which must remain.
"""

_UNREAD = ("tagger", "attribute_ruler", "lemmatizer", "ner")
"""Parts of a spaCy pipeline on which no sentence boundary depends: they would take two thirds of its time."""
_WORD = re.compile(r"\S+")
_OPENING = re.compile(r"\s([\"'“‘(\[]+)\Z")
_OPENING_APART = re.compile(r"\s([“‘(\[]+)\Z")
"""The same where white space follows: a straight mark then closes as often as it opens."""


class Segmenter(Protocol):
    """Cuts a text. Spans are in order, do not overlap, hold every character that is not white space, and neither
    begin nor end with white space; a text without words has none.

    It may have a `look_ahead(granularity)`: with how many further words of a text (divided by white space) it is known
    whether a segment ends at a character. None, or no such method: only the end of the text tells (`look_ahead_of`).
    """

    def sentences(self, text: str) -> list[Span]:
        """Character spans of the sentences."""
        ...

    def sub_sentences(self, text: str) -> list[Span]:
        """Character spans of the sub-sentences, each inside one sentence."""
        ...


class SpacySegmenter:
    """Sentences by spaCy, sub-sentences by the rule of the original code.

    Args:
        pipeline: `rules` for `blank("en")` with the rule-based `sentencizer` (no model needed); `english` for the same
            with its faults in English mended: no cut after a well-known abbreviation ("No. 5", "3 ft. long", "Maj.
            Gen."), and a quotation mark or bracket that opens belongs to what follows it; else the name or path of an
            installed spaCy pipeline (the original uses `en_core_web_sm`).

    Raises:
        ConfigError: spaCy or the pipeline is not installed, or the pipeline sets no sentence boundaries.
    """

    def __init__(self, pipeline: str = DEFAULT_SEGMENTER) -> None:
        self.pipeline = pipeline
        self._nlp = _load_pipeline(pipeline)
        self._cached = lru_cache(maxsize=4096)(self._segment)

    def sentences(self, text: str) -> list[Span]:
        """Character spans of the sentences of `text`."""
        return list(self._cached(text)[0])

    def sub_sentences(self, text: str) -> list[Span]:
        """Character spans of the sub-sentences of `text`."""
        return list(self._cached(text)[1])

    def look_ahead(self, granularity: Granularity) -> int | None:
        """Further words that tell whether a segment ends at a character; None where a parser reads the whole text."""
        return LOOK_AHEAD.get(self.pipeline, {}).get(granularity)

    def _segment(self, text: str) -> tuple[list[Span], list[Span]]:
        if not text.strip():
            return [], []
        boundaries = _boundaries(self._nlp(text))
        if self.pipeline == ENGLISH:
            boundaries = _joined_abbreviations(_moved_openings(boundaries, text), text)
        trimmed = (trim(span, text) for span in boundaries)
        sentences = [span for span in trimmed if span is not None]
        return sentences, sub_sentence_spans(text, sentences)


def _boundaries(doc: Any) -> list[Span]:
    return [(sentence.start_char, sentence.end_char) for sentence in doc.sents]


def _moved_openings(spans: Sequence[Span], text: str) -> list[Span]:
    """The spans with quotation marks and brackets that open at the end of one moved to the next.

    The rules end a sentence behind all punctuation that follows a full stop, so also behind the mark that opens the
    next one: `It ended. "` | `Bloom" followed.`
    """
    moved: list[Span] = []
    start = spans[0][0] if spans else 0
    for (_, end), (following, _) in zip(spans, [*spans[1:], (len(text), 0)], strict=True):
        pattern = _OPENING if following == end else _OPENING_APART
        opening = pattern.search(text, start, end) if following < len(text) else None
        cut = end if opening is None else opening.start(1)
        moved.append((start, cut))
        start = following if opening is None else cut
    return moved


def _joined_abbreviations(spans: Sequence[Span], text: str) -> list[Span]:
    """The spans, those joined that an abbreviation parts from a digit or a small letter, or a title from a name."""
    joined: list[Span] = []
    for start, end in spans:
        words = text[joined[-1][0] : joined[-1][1]].split() if joined else []
        last = words[-1].lstrip("([\"'").lower() if words else ""
        follows = text[start:end].lstrip()[:1]
        if last in ABBREVIATIONS and (follows.isdigit() or follows.islower()) or last in TITLES and follows.isupper():
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


@lru_cache(maxsize=8)
def shared_segmenter(pipeline: str) -> SpacySegmenter:
    """One segmenter a pipeline, so that whoever cuts the same texts does it once.

    Raises:
        ConfigError: as `SpacySegmenter`.
    """
    return SpacySegmenter(pipeline)


@lru_cache(maxsize=8)
def _load_pipeline(name: str) -> Language:
    try:
        import spacy
    except ImportError:
        raise ConfigError("sentence segmentation needs spaCy: pip install spacy") from None
    if name in (RULES, ENGLISH):
        nlp = spacy.blank("en")
        nlp.add_pipe("sentencizer")
    else:
        try:
            nlp = spacy.load(name, exclude=_UNREAD)
        except OSError:
            raise ConfigError(
                f"the spaCy pipeline {name!r} is not installed: python -m spacy download {name}, or use 'english'"
            ) from None
        if not {"parser", "senter", "sentencizer"} & set(nlp.pipe_names):
            raise ConfigError(f"the spaCy pipeline {name!r} sets no sentence boundaries")
    nlp.max_length = 10**9
    return nlp


def english_tokens(text: str) -> list[str]:
    """Tokens by spaCy's English rules, the same as those of its trained English pipelines.

    Raises:
        ConfigError: spaCy is not installed.
    """
    return [token.text for token in _load_pipeline(RULES).make_doc(text)]


def trim(span: Span, text: str) -> Span | None:
    """`span` without the white space at its ends; None when nothing else is in it."""
    start, end = span
    piece = text[start:end]
    stripped = piece.strip()
    if not stripped:
        return None
    start += len(piece) - len(piece.lstrip())
    return start, start + len(stripped)


def sub_sentence_starts(words: Sequence[str]) -> list[int]:
    """Indices of the words of one sentence that begin a sub-sentence (the exact rule of the original code).

    A cut is considered before word i when word i − 1 ends in `,` `;` `!` or `?` and more than 5 words remain
    (i + 5 < number of words). A cut that comes less than 5 words after the previous cut replaces it; before any cut
    was made it is dropped.

    Source: `get_subsentence_starts`, tasks/qa_feedback/reward_modeling/create_rel_fact_rm_files.py.
    """
    starts = [0] if words else []
    for i in range(1, len(words)):
        if words[i - 1][-1] not in CUT_AFTER or i + MIN_WORDS >= len(words):
            continue
        if i - starts[-1] >= MIN_WORDS:
            starts.append(i)
        elif len(starts) > 1:
            starts[-1] = i
    return starts


def sub_sentence_spans(text: str, sentence_spans: Sequence[Span]) -> list[Span]:
    """Character spans of the sub-sentences inside the given sentences of `text`."""
    spans: list[Span] = []
    for start, end in sentence_spans:
        words = [match.span() for match in _WORD.finditer(text, start, end)]
        starts = sub_sentence_starts([text[a:b] for a, b in words])
        ends = [*starts[1:], len(words)]
        spans += [(words[a][0], words[b - 1][1]) for a, b in zip(starts, ends, strict=True)]
    return spans


def cutter(segmenter: str | Segmenter, granularity: Granularity) -> Callable[[str], Sequence[Span]]:
    """What gives the spans of a text's segments.

    Args:
        segmenter: `english`, `rules`, a spaCy pipeline, or a segmenter of one's own.
        granularity: what a segment is: `sentence` or `sub_sentence`.

    Raises:
        ConfigError: the granularity is none of them.
    """
    if granularity not in get_args(Granularity):
        raise ConfigError(f"granularity must be {' or '.join(get_args(Granularity))}, got {granularity!r}")
    chosen = shared_segmenter(segmenter) if isinstance(segmenter, str) else segmenter
    return chosen.sentences if granularity == "sentence" else chosen.sub_sentences


def look_ahead_of(segmenter: str | Segmenter, granularity: Granularity) -> int | None:
    """How many further words tell a segmenter whether a segment ends at a character.

    Args:
        segmenter: as in `cutter`.
        granularity: what a segment is.

    Returns:
        The L of `deciding_character`; None where the segmenter declares none, so that only the end of the text tells.
    """
    chosen = shared_segmenter(segmenter) if isinstance(segmenter, str) else segmenter
    declared = getattr(chosen, "look_ahead", None)
    return None if declared is None else declared(granularity)


def deciding_character(text: str, end: int, look_ahead: int) -> int | None:
    """The character that shows that `look_ahead` words behind `end` are over: where the word behind them begins.

    Whether a segment ends at `end` is then known for good, by the text before this character. Words are divided by
    white space; the rest of a word in which `end` lies is one.

    Args:
        text: a response.
        end: a character of it, or its length.
        look_ahead: L words.

    Returns:
        The offset of the (L + 1)-th word behind `end`; None where the text has no such word.
    """
    word = next(islice(_WORD.finditer(text, end), look_ahead, None), None)
    return None if word is None else word.start()


def look_ahead_fault(cut: Callable[[str], Sequence[Span]], look_ahead: int, text: str) -> int | None:
    """The first character at which a text and its beginnings disagree whether a segment ends there, against a promise.

    Every beginning of the text is cut anew, so the cost is that of len(text) texts.

    Args:
        cut: gives the segments of a text (`cutter`).
        look_ahead: what is promised (`look_ahead_of`).
        text: any text.

    Returns:
        None where the promise holds: every beginning that has `look_ahead` whole words behind a character says of it
        what the text says.
    """
    ends = {end for _, end in cut(text)}
    for length in range(len(text)):
        for end in sorted({end for _, end in cut(text[:length])} ^ {end for end in ends if end <= length}):
            deciding = deciding_character(text, end, look_ahead)
            if deciding is not None and len(text[:deciding].rstrip()) <= length:
                return end
    return None
