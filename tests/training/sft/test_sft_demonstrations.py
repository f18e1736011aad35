"""Demonstrations that a model cannot read are one error before the first step."""

from __future__ import annotations

import copy

import pytest
from families_toy import family_policy
from rl_toy import prompts

from finegrained_rlhf.core.errors import ModelError
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.training.sft.trainer import demonstrations


def answered(text: str) -> list[Prompt]:
    return [Prompt(p.id, p.text, p.input_ids, {"references": [text]}) for p in prompts("gpt2", 2)]


def test_a_prompt_and_its_answer_fit_the_table_of_positions() -> None:
    ours = family_policy("gpt2", n_positions=16)
    asked = answered("one dog ran far away; who saw it?")  # cut to the limit, behind a prompt of 11 tokens
    assert len(demonstrations(asked, ours, 5)[0].answer_ids) == 5
    with pytest.raises(ModelError, match=r"have 17 tokens together, but this gpt2 model has 16 positions"):
        demonstrations(asked, ours, 6)


def test_the_tokens_of_answers_have_embeddings() -> None:
    ours = family_policy("llama")
    ours.tokenizer = copy.deepcopy(ours.tokenizer)
    ours.tokenizer.add_tokens(["giraffe"])
    rows = ours.model.config.vocab_size
    with pytest.raises(ModelError, match=f"the tokenizer gives id {rows} but the model has {rows} embeddings"):
        demonstrations(answered("one giraffe"), ours, 8)
