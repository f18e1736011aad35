"""Three responses whose tokens and character ends anyone can count, for tests of rewards."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from rl_toy import tokenizer

from finegrained_rlhf.core.records import Prompt, Rollout, Sample, SegmentScores, pad_rows
from finegrained_rlhf.text.alignment import token_ends

TEXTS = ["the cat sat, one dog ran!", "red", ""]
# ids of row 0: the | cat | sat | , | one | dog | ran | ! | </s>; character ends 3 7 11 12 16 20 24 25 25


def rollout(texts: Sequence[str] = TEXTS, finished: Sequence[bool] = (True, False, True)) -> Rollout:
    words = tokenizer()
    rows = [
        words(text, add_special_tokens=False)["input_ids"] + ([1] if end else [])
        for text, end in zip(texts, finished, strict=True)
    ]
    ids, mask = pad_rows(rows, pad=0)
    count = len(rows)
    decoded = [token_ends(words, row) for row in rows]
    return Rollout(
        prompts=[Prompt(f"p{i}", "", (1,)) for i in range(count)],
        prompt_ids=torch.ones(count, 1, dtype=torch.long),
        prompt_mask=torch.ones(count, 1, dtype=torch.long),
        prompt_index=torch.arange(count),
        sample_index=torch.zeros(count, dtype=torch.long),
        decoding_index=torch.zeros(count, dtype=torch.long),
        decodings=(Sample(1),),
        response_ids=ids,
        response_mask=mask,
        logprobs=torch.zeros(ids.shape),
        texts=[text for text, _ in decoded],
        token_ends=[ends for _, ends in decoded],
    )


def whole(*values: float) -> SegmentScores:
    return SegmentScores([((0, len(t)),) for t in TEXTS], [(v,) for v in values], whole_response=True)
