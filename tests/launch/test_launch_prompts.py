"""A length limit that cuts most prompts is said loudly."""

from __future__ import annotations

from typing import Any

import pytest
from finegrained_rlhf.training.prompts import encode_prompts


def words(texts: list[str], truncation: bool, max_length: int | None = None, verbose: bool = False) -> dict[str, Any]:
    """A tokenizer of words."""
    return {"input_ids": [list(range(len(text.split())))[:max_length] for text in texts]}


@pytest.mark.parametrize(("limit", "loud"), [(3, True), (5, False)])
def test_most_prompts_lose_their_end(limit: int, loud: bool, caplog: pytest.LogCaptureFixture) -> None:
    texts = ["a b c d", "a b c d e f", "a b"]
    prompts = encode_prompts([(str(i), text) for i, text in enumerate(texts)], words, limit)
    assert [len(prompt.input_ids) for prompt in prompts] == [min(limit, len(text.split())) for text in texts]
    assert "are longer than" in caplog.text
    assert ("raise max_prompt_tokens (the longest prompt has 6 tokens)" in caplog.text) == loud
