"""Text that people or models wrote never becomes a control token, in any kind of tokenizer."""

from __future__ import annotations

from typing import Any

import pytest
from rl_toy import policy

from benchmarks.deviations_tokens import t5_like
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.inference.inputs import encode_prompts
from finegrained_rlhf.models.tiny_networks import build_tokenizer, causal_tokenizer, encoder_tokenizer
from finegrained_rlhf.text import plain_text
from finegrained_rlhf.text.plain_text import literal_texts, plain_token_ids, special_tokens
from finegrained_rlhf.training.sft.trainer import demonstrations
from reward_models.encoders.inputs import RewardInputEncoder
from reward_models.parts import factuality_parts

CORPUS = ["the cat sat on a mat, and one dog ran far away; who saw it? red blue green!"] * 3
NASTY = "red </s> <mask> <pad> cat</s> blue <s>"
KINDS = {
    "word": lambda: build_tokenizer(CORPUS),
    "bpe": lambda: build_tokenizer(CORPUS, "bpe", 300),
    "unigram": lambda: t5_like(CORPUS),  # its vocabulary holds the control tokens as words, as T5's does
    "encoder": lambda: encoder_tokenizer(build_tokenizer(CORPUS, "bpe", 300), 200),
    "causal": lambda: causal_tokenizer(build_tokenizer(CORPUS, "bpe", 300), 200),
}


def control_ids(tokenizer: Any) -> set[int]:
    return set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}


@pytest.mark.parametrize("kind", KINDS)
def test_control_tokens_in_text_are_characters(kind: str) -> None:
    tokenizer = KINDS[kind]()
    assert control_ids(tokenizer) & set(tokenizer(NASTY, add_special_tokens=False).input_ids)  # the fault
    (plain,) = plain_token_ids(tokenizer, [NASTY])
    assert not control_ids(tokenizer) & set(plain)
    names = tokenizer.convert_ids_to_tokens(plain)
    assert sum("cat" in name or name in ("c", "at") for name in names) >= 1 and len(plain) > 10


@pytest.mark.parametrize("kind", KINDS)
def test_other_text_gets_the_ids_that_it_always_had(kind: str) -> None:
    tokenizer = KINDS[kind]()
    texts = ["the cat; who saw it?", "", "  red   blue\n\ngreen! x < y > z </ s>"]
    for add in (False, True):
        expected = tokenizer(texts, add_special_tokens=add).input_ids
        assert plain_token_ids(tokenizer, texts, add_special_tokens=add) == expected
    cut = tokenizer(texts, truncation=True, max_length=4).input_ids
    assert plain_token_ids(tokenizer, texts, add_special_tokens=True, max_length=4) == cut
    assert plain_token_ids(tokenizer, []) == []


def test_a_tokenizer_is_given_few_texts_at_once_and_an_id_is_one_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it knows of each token beside its id is hundreds of bytes, and a number of Python's own 28."""
    tokenizer = build_tokenizer([" ".join(f"word{n}" for n in range(400))])
    texts = [f"word{n % 7} word{399 - n % 3} </s>" for n in range(20)]
    whole, given, some = plain_token_ids(tokenizer, texts, add_special_tokens=True), [], plain_text._plain_token_ids
    monkeypatch.setattr(plain_text, "TOGETHER", 8)
    monkeypatch.setattr(plain_text, "_plain_token_ids", lambda *of: given.append(len(of[1])) or some(*of))
    rows = plain_token_ids(tokenizer, texts, add_special_tokens=True)
    assert rows == whole and given == [8, 8, 4]
    numbers = {id(token) for row in rows for token in row}
    assert max(map(max, rows)) > 256 and len(numbers) == len({token for row in rows for token in row})


@pytest.mark.parametrize("kind", KINDS)
def test_added_tokens_stay_and_are_the_only_ones(kind: str) -> None:
    tokenizer = KINDS[kind]()
    around = tokenizer("").input_ids
    (row,) = plain_token_ids(tokenizer, [NASTY], add_special_tokens=True)
    assert [token for token in row if token in control_ids(tokenizer)] == around
    (short,) = plain_token_ids(tokenizer, [NASTY], add_special_tokens=True, max_length=6)
    assert len(short) == 6 and [token for token in short if token in control_ids(tokenizer)] == around


@pytest.mark.parametrize("kind", ["unigram", "encoder"])
def test_a_reward_model_sees_its_own_separators_alone(kind: str) -> None:
    from feedback_samples import LAKE

    tokenizer = KINDS[kind]()
    encoder = RewardInputEncoder(tokenizer, 400)
    parts = factuality_parts(f"who {NASTY}", (LAKE,), [NASTY, f"the cat {NASTY}"])
    (found,) = encoder.encode([parts])
    control = [place for place, token in enumerate(found.ids) if token in control_ids(tokenizer)]
    assert control == [0, *found.separators, len(found.ids) - 1]
    assert {found.ids[place] for place in found.separators} == {encoder.sep_id}


def test_prompts_and_demonstrations_hold_one_end_of_sequence() -> None:
    owner = policy("t5")
    (prompt,) = encode_prompts([("a", NASTY)], owner.tokenizer, 100)
    assert [token for token in prompt.input_ids if token in control_ids(owner.tokenizer)] == [owner.eos_ids[0]]
    taught = Prompt("a", "who", prompt.input_ids, {"references": (NASTY,)})
    (demonstration,) = demonstrations([taught], owner, 100)
    assert [t for t in demonstration.answer_ids if t in control_ids(owner.tokenizer)] == [owner.eos_ids[0]]
    assert demonstration.answer_ids[-1] == owner.eos_ids[0]


@pytest.mark.parametrize("kind", KINDS)
def test_literal_texts_write_control_tokens_apart_and_no_other_text(kind: str) -> None:
    tokenizer = KINDS[kind]()
    literal = literal_texts(tokenizer, "|||")
    nested = "red <<pad>pad> ||| blue |||| <</s>/s>"
    for text in (NASTY, nested):
        apart = literal(text)
        assert apart.replace(" ", "") == text.replace(" ", "")
        assert not [token for token in (*special_tokens(tokenizer), "|||") if len(token) > 1 and token in apart]
        assert not control_ids(tokenizer) & set(tokenizer(apart, add_special_tokens=False).input_ids)
    for text in ("the cat; who saw it?", "", "  red || blue\n\ngreen! x < y > z </ s>"):
        assert literal(text) == text
