"""Scores of segments by what a judge quotes: where a quote lies, what has none, and how many may have none.

Words that a model quotes a little otherwise are found, too: first the words as they are; then without case, marks and
forms of letters; then the parts around an ellipsis; last the place that has most of the quoted words. Two places that
are as good are none.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Literal, get_args

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.generation.outcomes import Outcome, OutcomeCounts
from finegrained_rlhf.core.records import Prompt, SegmentScores
from finegrained_rlhf.rewards.judge import Judge, Judgement
from finegrained_rlhf.text.segmentation import DEFAULT_SEGMENTER, Granularity, Segmenter, Span, cutter, look_ahead_of

if TYPE_CHECKING:
    import torch


OVERLAP = 0.6
"""Share of a quote's words that a place must have, at least `FEWEST` of them, to be what a paraphrase means."""
FEWEST = 3
_LONGEST = 400  # words of a quote that is compared word by word
_ALONE = r"\u3040-\u30ff\u3400-\u9fff"  # letters of scripts without blanks, each a word of its own
_WORD = re.compile(rf"[{_ALONE}]|(?:[^\W{_ALONE}][\u0300-\u036f]*)+")
_ELLIPSIS = re.compile(r"\s*(?:\[\s*(?:…|\.{3,})\s*\]|…|\.{3,})\s*")


def spans_of(quotes: Sequence[str], text: str) -> list[Span | None]:
    """Where quotes lie in a text; None where one cannot be found.

    The same quote for the second time lies in its second place; once more than it has places, in its last one.
    """
    before = Counter[str]()
    spans = []
    for quote in quotes:
        place = span_of(quote, text, before[quote])
        if place is None and before[quote]:
            place = next((p for n in range(before[quote] - 1, -1, -1) if (p := span_of(quote, text, n))), None)
        spans.append(place or near_span_of(quote, text))
        before[quote] += 1
    return spans


def span_of(quote: str, text: str, occurrence: int = 0) -> Span | None:
    """Where a quote lies in a text, in whole words, any white space for any other; None where it does not.

    Args:
        quote: some words of the text.
        text: the text.
        occurrence: which place of several, from 0.
    """
    words = quote.split()
    if not words:
        return None
    edges = (r"(?<!\w)" if re.match(r"\w", words[0]) else "", r"(?!\w)" if re.search(r"\w$", words[-1]) else "")
    pattern = edges[0] + r"\s+".join(map(re.escape, words)) + edges[1]
    matches = [match.span() for match in re.finditer(pattern, text)]
    return matches[occurrence] if occurrence < len(matches) else None


def near_span_of(quote: str, text: str) -> Span | None:
    """Where a quote lies that is not word for word in a text; None where it is nowhere, or in two places as well."""
    words = _words(text)
    parts = [part for part in (_words(part) for part in _ELLIPSIS.split(quote)) if part]
    if not parts or sum(map(len, parts)) > _LONGEST:
        return None
    place, spans = 0, []
    for part in parts:
        at = _find([word.plain for word in part], [word.plain for word in words], place)
        if at is None:
            return _nearest([word.plain for part in parts for word in part], words)
        spans.append((words[at].start, words[at + len(part) - 1].end))
        place = at + len(part)
    return spans[0][0], spans[-1][1]


@dataclass(frozen=True)
class _Word:
    """A word of a text: without case and form, and where it stands."""

    plain: str
    start: int
    end: int


def _words(text: str) -> list[_Word]:
    return [
        _Word(unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", match[0]).casefold()), *match.span())
        for match in _WORD.finditer(text)
    ]


def _find(part: Sequence[str], words: Sequence[str], place: int) -> int | None:
    """The first place from `place` on at which the words of a part stand one after the other."""
    wanted = list(part)
    ends = range(place, len(words) - len(part) + 1)
    return next((at for at in ends if words[at] == wanted[0] and list(words[at : at + len(part)]) == wanted), None)


def _nearest(quoted: Sequence[str], words: Sequence[_Word]) -> Span | None:
    """The words of the window of the quote's length that has most of the quoted words, if they are enough."""
    size = min(len(quoted), len(words))
    wanted = Counter(quoted)
    best, places, here = 0, list[int](), Counter(word.plain for word in words[:size])
    shared = sum((wanted & here).values())
    for at in range(len(words) - size + 1):
        if at:
            shared += _moved(words[at - 1].plain, words[at + size - 1].plain, here, wanted)
        if shared >= best:
            best, places = shared, [*places, at] if shared == best else [at]
    enough = best >= max(OVERLAP * len(quoted), FEWEST)
    if not enough or places[-1] - places[0] >= size:  # windows that do not meet are two places
        return None
    inside = [word for word in words[places[0] : places[-1] + size] if word.plain in wanted]
    return inside[0].start, inside[-1].end


def _moved(left: str, come: str, here: Counter[str], wanted: Counter[str]) -> int:
    """Take a word out of a window and another in; returns by how much the window shares more with the quote."""
    change = -(here[left] <= wanted[left])
    here[left] -= 1
    here[come] += 1
    return change + (here[come] <= wanted[come])


Unlocated = Literal["mask", "charge"]
UNLOCATED, SPLIT = "unlocated", "split"


class JudgeScorer:
    """Scores segments by what a judge quotes: −1 where a quote of a kind that counts lies, 1 elsewhere.

    A response that has no judgement has no score. Of several samples (`Judge.samples`) a segment has the mean of those
    that judge it, and `split` counts the responses about which they differ. A quote is looked for word for word, then
    without case and marks, then by most of its words (`spans_of`). An error that is reported and found nowhere is never
    taken for none: the response has no score (`mask`), or all of its segments have the error (`charge`). A quote that
    occurs several times is its first place, the same quote again the next one.

    Args:
        judge: that reads the answers.
        counts: the kinds of error that make a segment wrong; None counts all of the judge's.
        granularity: what a segment is.
        segmenter: `english`, `rules`, a spaCy pipeline, or a segmenter of one's own.
        failures: the share of the latest 500 responses that may have no score; beyond it, and beyond chance, the run
            ends (`OutcomeCounts`).
        unlocated: what becomes of a response with an error that is reported and not found.

    Raises:
        ConfigError: the granularity is unknown, a kind is none of the judge's, or a setting is outside its range.
    """

    counted: tuple[str, ...] = (*(outcome.value for outcome in Outcome), UNLOCATED)
    error_free_from = 0.0
    value_range = (-1.0, 1.0)

    def __init__(
        self,
        judge: Judge,
        counts: Sequence[str] | None = None,
        granularity: Granularity = "sentence",
        segmenter: str | Segmenter = DEFAULT_SEGMENTER,
        failures: float = 0.2,
        unlocated: Unlocated = "mask",
    ) -> None:
        if unlocated not in get_args(Unlocated):
            raise ConfigError(f"unlocated must be {' or '.join(get_args(Unlocated))}, got {unlocated!r}")
        if unknown := sorted(set(counts or ()) - set(judge.taxonomy)):
            raise ConfigError(f"counts: the judge's taxonomy has {', '.join(judge.taxonomy)}, not {unknown[0]!r}")
        self.judge, self.counts = judge, frozenset(judge.taxonomy if counts is None else counts)
        self.granularity, self.unlocated, self._cut = granularity, unlocated, cutter(segmenter, granularity)
        self.look_ahead = look_ahead_of(segmenter, granularity)
        if judge.samples > 1:
            self.counted = (*type(self).counted, SPLIT)
        self.outcomes = OutcomeCounts(failures)
        self.quoted, self.unmatched = 0, 0

    def setup(self, device: torch.device | str = "cpu") -> None:
        """Open the judge's file of kept quotes."""
        self.judge.open()

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        """Refuse prompts that lack what the judge reads.

        Raises:
            DataError: there is one.
        """
        for prompt in prompts:
            self.judge.check(prompt)

    def score(self, prompts: Sequence[Prompt], responses: Sequence[str]) -> SegmentScores:
        """Score each segment of R responses; a response without a segment is not asked about.

        Raises:
            FineGrainedError: more responses have no score than may; or there is no endpoint.
        """
        spans = [tuple(self._cut(response)) for response in responses]
        judged_rows = [i for i, row in enumerate(spans) if row]
        judged = self.judge.sampled([prompts[i] for i in judged_rows], [responses[i] for i in judged_rows])
        values: list[tuple[float, ...]] = [()] * len(responses)
        unscored: dict[int, str] = {}
        counted = dict.fromkeys(self.counted, 0.0)
        for i, samples in zip(judged_rows, judged, strict=True):
            read = [one for one in samples if one.outcome is Outcome.READ]
            outcome = (read or samples)[0].outcome
            rows = [row for one in read if (row := self._values(one, responses[i], spans[i])) is not None]
            counted[outcome.value] += 1
            counted[UNLOCATED] += bool(read) and not rows
            if self.unlocated == "charge":
                rows += [(-1.0,) * len(spans[i])] * (len(read) - len(rows))
            if not rows:
                unscored[i] = UNLOCATED if read else outcome.value
                spans[i] = ()
            elif len(set(rows)) > 1:
                counted[SPLIT] += 1
            values[i] = tuple(fmean(votes) for votes in zip(*rows, strict=True))
        self.outcomes.add(unscored.get(i, Outcome.READ.value) for i in judged_rows)
        problems = [one.problem for samples in judged for one in samples if one.problem]
        self.outcomes.check(f"the judge {self.judge.model}", problems[-1] if problems else "")
        return SegmentScores(spans, values, unscored=frozenset(unscored), counts=counted)

    def _values(self, judgement: Judgement, text: str, segments: Sequence[Span]) -> tuple[float, ...] | None:
        """The value of each segment; None where an error of it lies in no segment."""
        quotes = [quote for quote, kind in judgement.quotes if kind in self.counts]
        wrong, missed = set[int](), 0
        for span in spans_of(quotes, text):
            hit = [] if span is None else [n for n, (a, b) in enumerate(segments) if span[0] < b and a < span[1]]
            wrong.update(hit)
            missed += not hit
        self.quoted, self.unmatched = self.quoted + len(quotes), self.unmatched + missed
        return None if missed else tuple(-1.0 if n in wrong else 1.0 for n in range(len(segments)))
