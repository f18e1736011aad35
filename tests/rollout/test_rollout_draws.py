"""Two draws of one prompt in one step: both engines name their noise by the draw."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rl_toy import policy, prompts

from finegrained_rlhf.core.records import Sample
from finegrained_rlhf.rollout.fast import FastEngine
from finegrained_rlhf.rollout.generate import GenerateEngine
from finegrained_rlhf.rollout.select import make_engine


@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_another_occurrence_gets_other_samples_and_both_engines_agree(kind: str) -> None:
    owner, (prompt,) = policy(kind), prompts(kind, 1)
    again = replace(prompt, occurrence=2)
    fast = make_engine(owner)
    assert isinstance(fast, FastEngine)
    texts = []
    for engine in (fast, GenerateEngine(owner)):
        drawn = engine.decode(engine.encode([prompt, again, prompt]), [Sample(4)], max_new_tokens=12, seed=3, step=2)
        texts.append(drawn.texts)
        first, second, same = drawn.texts[:4], drawn.texts[4:8], drawn.texts[8:]
        assert first == same and sum(a != b for a, b in zip(first, second, strict=True)) >= 3
    assert texts[0] == texts[1]
