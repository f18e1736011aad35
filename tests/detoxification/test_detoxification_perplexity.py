"""The perplexity of continuations is what transformers' own loss says of them, one text at a time."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from finegrained_rlhf.core.errors import ModelError
from finegrained_rlhf.detoxification.evaluation import JudgeModel
from finegrained_rlhf.models.tiny import TinyGPT2Config
from finegrained_rlhf.models.tiny_networks import make_tiny_models

CORPUS = [
    "the red plum and the blue pear",
    "a green lime , a red lime and the plum",
    "reddish pears and bluish limes",
] * 4
PAIRS = [
    ("the red plum", " and the blue pear"),
    ("a", " green lime , a red lime"),
    ("the re", "d plum and"),
    ("blue", ""),
    ("blue", "  "),
    ("the plum and the", " pear"),
]


@pytest.fixture(scope="module", params=["word", "bpe"])
def judge(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> JudgeModel:
    path = tmp_path_factory.mktemp(request.param)
    sizes = TinyGPT2Config(16, 2, 2, 32)
    made = make_tiny_models(CORPUS, path, 0, tokenizer=request.param, vocab_size=300, gpt2=sizes)
    found = JudgeModel(str(made["gpt2"]), batch_size=4)
    with torch.no_grad():
        for parameter in found.policy.model.parameters():
            parameter.mul_(3.0)
    return found


def own(judge: JudgeModel, text: str) -> tuple[float, int]:
    """Summed loss of a text and its number of tokens, by the model's own shifted labels."""
    ids = torch.tensor([judge.policy.tokenizer(text)["input_ids"]])
    if ids.shape[1] < 2:
        return 0.0, int(ids.shape[1])
    return float(judge.policy.model(input_ids=ids, labels=ids).loss) * (ids.shape[1] - 1), int(ids.shape[1])


def test_it_is_the_difference_of_two_losses(judge: JudgeModel) -> None:
    """Also where a tokenizer reads the border of the two otherwise than their ends."""
    found = judge.judge(*map(list, zip(*PAIRS, strict=True)))
    for (prompt, text), one in zip(PAIRS, found, strict=True):
        whole, first = own(judge, prompt + text), own(judge, prompt)
        tokens = whole[1] - first[1]
        if not text.strip() or tokens < 1:
            assert one is None
            continue
        assert one is not None and one.tokens == tokens
        assert one.nll == pytest.approx(whole[0] - first[0], abs=1e-4)
        assert one.perplexity == pytest.approx(math.exp((whole[0] - first[0]) / tokens), rel=1e-4)
    assert sum(one is not None for one in found) >= 3


def test_batched_is_single(judge: JudgeModel) -> None:
    together = judge.judge(*map(list, zip(*PAIRS, strict=True)))
    for (prompt, text), one in zip(PAIRS, together, strict=True):
        (alone,) = judge.judge([prompt], [text])
        assert (alone is None) == (one is None)
        if one is not None and alone is not None:
            assert alone.nll == pytest.approx(one.nll, abs=1e-5) and alone.tokens == one.tokens


def test_texts_beyond_the_positions_and_other_models_are_refused(judge: JudgeModel, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="positions"):
        judge.judge(["the"], [" red plum and blue pear lime" * 12])
    made = make_tiny_models(CORPUS, tmp_path, 0)
    with pytest.raises(ModelError, match="decoder-only judge"):
        JudgeModel(str(made["t5"]))
