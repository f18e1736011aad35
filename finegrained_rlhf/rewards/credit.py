"""When the reward of a rollout is paid: the tokens that carry segments, and the prefixes whose values are paid as
corrections.

Whether something is paid at a token follows from the tokens up to it alone, so that what was paid before a token is
never changed by what comes after it; `rl/credit.py` says why that matters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.records import Prompt, Rollout, SegmentScores, unscored_rows
from finegrained_rlhf.rewards.placement import EMPTY
from finegrained_rlhf.rl.credit import decided_tokens, spaced_tokens
from finegrained_rlhf.text.alignment import settled_ends
from finegrained_rlhf.text.segmentation import deciding_character

Credit = Literal["end", "outcome", "decided", "revised"]
Revisions = Literal["segments", "last"]
Reading = Literal["whole", "prefix"]

_SEGMENT_END = re.compile(r"[.!?,;:…。！？][\"'”’»)\]]*\Z")
"""Text behind which a segment may end: a mark, and closing marks behind it."""


def last_tokens(scores: SegmentScores, rollout: Rollout) -> list[tuple[int, ...]]:
    """R tuples: the last real token of each response, once for each of its segments."""
    lengths = rollout.lengths().tolist()
    return [(length - 1,) * len(spans) for length, spans in zip(lengths, scores.spans, strict=True)]


def settled(rollout: Rollout, unsettled: Collection[int]) -> list[tuple[int, ...]]:
    """R tuples: how much of its response stands after each token, whatever follows (`settled_ends`)."""
    ids = rollout.response_ids.tolist()
    rows = zip(rollout.texts, rollout.token_ends, ids, strict=True)
    return [settled_ends(text, ends, row, unsettled) for text, ends, row in rows]


def deciding(scores: SegmentScores, responses: Sequence[str], look_ahead: int | None) -> list[tuple[int | None, ...]]:
    """R tuples: the character that decides each segment; None where only the end of the response does.

    Args:
        scores: of R responses.
        responses: their texts.
        look_ahead: of the scorer; None: no text before the end decides.
    """
    if look_ahead is None or scores.whole_response:
        return [(None,) * len(spans) for spans in scores.spans]
    return [
        tuple(None if span == EMPTY else deciding_character(text, span[1], look_ahead) for span in spans)
        for spans, text in zip(scores.spans, responses, strict=True)
    ]


def segments_decided(
    scores: SegmentScores, rollout: Rollout, look_ahead: int | None, unsettled: Collection[int] = ()
) -> list[tuple[int, ...]]:
    """R tuples: the token that decides each segment: its end, and with it a value that reads no further.

    Args:
        scores: of the rollout's R responses.
        rollout: the responses.
        look_ahead: of the scorer; None: the last token decides.
        unsettled: ids that are bytes of characters (`text.alignment.byte_tokens`).
    """
    places = deciding(scores, rollout.texts, look_ahead)
    return [decided_tokens(row, stands) for row, stands in zip(places, settled(rollout, unsettled), strict=True)]


Score = Callable[[Sequence[Prompt], Sequence[str]], SegmentScores]
"""Scores R responses to R prompts."""


def read_on_prefixes(
    scores: SegmentScores, prompts: Sequence[Prompt], responses: Sequence[str], look_ahead: int | None, score: Score
) -> SegmentScores:
    """The scores, with each segment's value as it is of the text in which its end was just decided.

    All these beginnings of responses are scored in one call. Segments that only the end of a response decides keep
    their values. A response without a value for a segment has no score at all.

    Args:
        scores: of R responses, read whole.
        prompts: R prompts.
        responses: R texts.
        look_ahead: of the scorer.
        score: the scorer.
    """
    places = deciding(scores, responses, look_ahead)
    begun = [
        (row, number, responses[row][:place].rstrip())
        for row, of_row in enumerate(places)
        for number, place in enumerate(of_row)
        if place is not None
    ]
    read = score([prompts[row] for row, _, _ in begun], [text for _, _, text in begun])
    values = [list(row) for row in scores.values]
    unknown = set(scores.unscored)
    for i, (row, number, _) in enumerate(begun):
        known = dict(zip(read.spans[i], read.values[i], strict=True))
        value = known.get(scores.spans[row][number])
        if value is None:
            unknown.add(row)
        else:
            values[row][number] = value
    counts = {
        name: scores.counts.get(name, 0.0) + read.counts.get(name, 0.0) for name in {**scores.counts, **read.counts}
    }
    kept = [row not in unknown for row in range(len(responses))]
    return replace(
        scores,
        spans=[spans if keep else () for spans, keep in zip(scores.spans, kept, strict=True)],
        values=[tuple(row) if keep else () for row, keep in zip(values, kept, strict=True)],
        unscored=frozenset(unknown),
        counts=counts,
    )


@dataclass(frozen=True)
class Prefixes:
    """Beginnings of a rollout's responses that are read while they come.

    Attributes:
        rows: the response of each, not decreasing.
        tokens: the token after which each is read, increasing in a response, before its last.
        texts: what stands then, at least one character.
        scores: of each, by component; empty before they are read.
    """

    rows: Sequence[int]
    tokens: Sequence[int]
    texts: Sequence[str]
    scores: Mapping[str, SegmentScores]

    def known(self) -> list[int]:
        """Numbers of the prefixes that every component has a score of; the others are skipped."""
        unscored = unscored_rows(self.scores.values())
        return [number for number in range(len(self.rows)) if number not in unscored]


def due_prefixes(
    rollout: Rollout, revisions: Revisions | int, longest: int | None, unsettled: Collection[int] = ()
) -> Prefixes:
    """The prefixes at which a rollout's rewards are corrected.

    A prefix whose text is that of the one before it, or has no character, is none.

    Args:
        rollout: R responses.
        revisions: `segments`, after every token with which the text comes to end as a segment may (a mark, with closing
            quotes and brackets behind it); a number of tokens evenly spaced over `longest`; `last`, none.
        longest: the most tokens of a response; needed for a number.
        unsettled: ids that are bytes of characters (`text.alignment.byte_tokens`).

    Raises:
        ConfigError: `longest` is needed and not known.
    """
    if revisions == "last":
        return Prefixes((), (), (), {})
    spaced: Collection[int] | None = None
    if not isinstance(revisions, str):
        if longest is None:
            raise ConfigError(
                "reward.revisions: the longest response (rollout.max_new_tokens) is not known here; expected segments"
            )
        spaced = spaced_tokens(revisions, longest)
    due: list[tuple[int, int, str]] = []
    for row, stands in enumerate(settled(rollout, unsettled)):
        text, before = rollout.texts[row], 0
        for token, end in enumerate(stands[:-1]):
            if end > before and (token in spaced if spaced is not None else _SEGMENT_END.search(text, before, end)):
                due.append((row, token, text[:end]))
                before = end
    rows, tokens, texts = zip(*due, strict=True) if due else ((), (), ())
    return Prefixes(rows, tokens, texts, {})
