"""A length limit that cuts most prompts is said loudly."""

from __future__ import annotations

import pytest

from finegrained_rlhf.inference.inputs import encode_prompts
from finegrained_rlhf.models.tiny_networks import build_tokenizer


@pytest.mark.parametrize(("limit", "loud"), [(4, True), (6, False)])
def test_most_prompts_lose_their_end(limit: int, loud: bool, caplog: pytest.LogCaptureFixture) -> None:
    texts = ["a b c d", "a b c d e f", "a b"]
    tokenizer = build_tokenizer(texts)
    prompts = encode_prompts([(str(i), text) for i, text in enumerate(texts)], tokenizer, limit)
    whole = [len(text.split()) + 1 for text in texts]  # and the end of sequence
    assert [len(prompt.input_ids) for prompt in prompts] == [min(limit, length) for length in whole]
    assert "are longer than" in caplog.text
    assert ("raise max_prompt_tokens (the longest prompt has 7 tokens)" in caplog.text) == loud
