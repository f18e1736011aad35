"""Cutting answers into sentences and sub-sentences.

One implementation for label building, reward placement and evaluation: all three must cut a text identically. Knows
characters only: spans are offsets into the given text, end exclusive. Does not know tokens of any model.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from finegrained_rlhf.core.errors import ConfigError

if TYPE_CHECKING:
    from spacy.language import Language

Span = tuple[int, int]
"""Character offsets (start, end), end exclusive."""

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
"""Words after whose full stop a sentence goes on where a digit or a small letter follows (`abbreviations`)."""

_WORD = re.compile(r"\S+")


class Segmenter(Protocol):
    """Cuts a text. Spans are in order, do not overlap, hold every character that is not white space, and neither
    begin nor end with white space; a text without words has none.
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
        pipeline: `rules` for `blank("en")` with the rule-based `sentencizer` (no model needed); `abbreviations` for the
            same without a cut after a well-known abbreviation ("No. 5", "3 ft. long"); else the name or path of an
            installed spaCy pipeline (the original uses `en_core_web_sm`).

    Raises:
        ConfigError: spaCy or the pipeline is not installed, or the pipeline sets no sentence boundaries.
    """

    def __init__(self, pipeline: str = "rules") -> None:
        self.pipeline = pipeline
        self._nlp = _load_pipeline(pipeline)
        self._cached = lru_cache(maxsize=4096)(self._segment)

    def sentences(self, text: str) -> list[Span]:
        """Character spans of the sentences of `text`."""
        return list(self._cached(text)[0])

    def sub_sentences(self, text: str) -> list[Span]:
        """Character spans of the sub-sentences of `text`."""
        return list(self._cached(text)[1])

    def _segment(self, text: str) -> tuple[list[Span], list[Span]]:
        if not text.strip():
            return [], []
        boundaries = _boundaries(self._nlp(text))
        if self.pipeline == "abbreviations":
            boundaries = _joined_abbreviations(boundaries, text)
        trimmed = (trim(span, text) for span in boundaries)
        sentences = [span for span in trimmed if span is not None]
        return sentences, sub_sentence_spans(text, sentences)


def _boundaries(doc: Any) -> list[Span]:
    return [(sentence.start_char, sentence.end_char) for sentence in doc.sents]


def _joined_abbreviations(spans: Sequence[Span], text: str) -> list[Span]:
    """The spans, those joined between which an abbreviation is followed by a digit or a small letter."""
    joined: list[Span] = []
    for start, end in spans:
        words = text[joined[-1][0] : joined[-1][1]].split() if joined else []
        follows = text[start:end].lstrip()[:1]
        if words and words[-1].lstrip("([\"'").lower() in ABBREVIATIONS and (follows.isdigit() or follows.islower()):
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


@lru_cache(maxsize=8)
def _load_pipeline(name: str) -> Language:
    try:
        import spacy
    except ImportError:
        raise ConfigError("sentence segmentation needs spaCy: pip install spacy") from None
    if name in ("rules", "abbreviations"):
        nlp = spacy.blank("en")
        nlp.add_pipe("sentencizer")
    else:
        try:
            nlp = spacy.load(name)
        except OSError:
            raise ConfigError(
                f"the spaCy pipeline {name!r} is not installed: python -m spacy download {name}, or use 'rules'"
            ) from None
        if not {"parser", "senter", "sentencizer"} & set(nlp.pipe_names):
            raise ConfigError(f"the spaCy pipeline {name!r} sets no sentence boundaries")
    nlp.max_length = 10**9
    return nlp


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
