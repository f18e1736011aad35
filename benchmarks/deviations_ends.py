"""How far segment ends drift when decoded prefixes are tokenised again, as the original code does (DEVIATIONS.md).

Knows tokenizers, sampled ids and the project's segmenter. Does not know policies or where the ids come from. The
original's rule is that of `process_one_generation` and `split_text_to_subsentences` (allenai/FineGrainedRLHF); its
policy's tokenizer (T5) drops the space at the end of a prefix, and so do these prefixes, whatever the tokenizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from finegrained_rlhf.text.alignment import segment_end_tokens, token_ends
from finegrained_rlhf.text.segmentation import Segmenter, SpacySegmenter, Span


@dataclass(frozen=True)
class Drift:
    """Segment ends of one rule against the other.

    Attributes:
        responses: rows looked at.
        resampled: rows whose ids are not those that the tokenizer gives for their text.
        segments: segments looked at.
        moved: segments whose reward the original puts on another token.
        distance: sum of the distances of the moved ones, in tokens.
    """

    responses: int = 0
    resampled: int = 0
    segments: int = 0
    moved: int = 0
    distance: int = 0

    def __add__(self, other: Drift) -> Drift:
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Drift(*(mine + theirs for mine, theirs in pairs))

    def __str__(self) -> str:
        share, mean = self.moved / max(self.segments, 1), self.distance / max(self.moved, 1)
        return (
            f"{self.moved} of {self.segments} segment ends ({share:.1%}) on another token, {mean:.1f} away on average; "
            f"the ids of {self.resampled} of {self.responses} responses are not those of their text"
        )


def counted_ends(tokenizer: Any, text: str, stops: Sequence[int], length: int) -> list[int]:
    """The original's rule: the number of tokens of each prefix of `text`, less one, and at most the last token."""
    return [min(len(tokenizer.tokenize(text[:stop].rstrip())) - 1, length - 1) for stop in stops]


def original_stops(spans: Sequence[Span], text: str, sub_sentences: bool) -> list[int]:
    """Where the original cuts its prefixes: sentences at their end, sub-sentences where the next one begins."""
    if not sub_sentences:
        return [end for _, end in spans]
    return [*(start for start, _ in spans[1:]), len(text)]


def drift_of(tokenizer: Any, ids: Sequence[int], segmenter: Segmenter) -> Drift:
    """The drift of one response.

    Args:
        tokenizer: the policy's.
        ids: sampled ids, end of sequence included.
        segmenter: cuts the text for both rules.
    """
    text, ends = token_ends(tokenizer, ids)
    canonical = tokenizer(text, add_special_tokens=False).input_ids
    special = set(tokenizer.all_special_ids)
    segments = moved = distance = 0
    for cut, sub_sentences in ((segmenter.sub_sentences, True), (segmenter.sentences, False)):
        ours = segment_end_tokens(ends, cut(text))
        theirs = counted_ends(tokenizer, text, original_stops(cut(text), text, sub_sentences), len(ids))
        segments += len(ours)
        gaps = [abs(a - b) for a, b in zip(ours, theirs, strict=True)]
        moved += sum(gap > 0 for gap in gaps)
        distance += sum(gaps)
    return Drift(1, int([i for i in ids if i not in special] != list(canonical)), segments, moved, distance)


def total_drift(tokenizer: Any, rows: Sequence[Sequence[int]]) -> Drift:
    """The drift of several responses, sub-sentences and sentences together."""
    segmenter = SpacySegmenter("rules")
    return sum((drift_of(tokenizer, ids, segmenter) for ids in rows), Drift())
