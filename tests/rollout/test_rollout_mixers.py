"""Decoding that other models steer: by hand, against the engine without a cache, and where it must change nothing."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from rl_toy import model, policy, prompts, tokenizer
from torch import Tensor

from finegrained_rlhf.core.errors import ConfigError, DataError, ModelError
from finegrained_rlhf.core.records import Decoding, Greedy, Rollout, Sample
from finegrained_rlhf.models.distribution import warp_logits
from finegrained_rlhf.models.tiny import TinyGPT2Config
from finegrained_rlhf.models.tiny_networks import build_gpt2, build_tokenizer, causal_tokenizer
from finegrained_rlhf.rollout import DExperts, GeDi, LogitsMixer, WordList, make_engine
from finegrained_rlhf.rollout.mixers.class_weights import _Class, _GeDiMixing, weigh
from finegrained_rlhf.rollout.mixers.dexperts import _DExpertsMixing
from finegrained_rlhf.rollout.mixers.gedi import ClassCodes
from finegrained_rlhf.rollout.mixers.steppers import WholeTextStepper

DECODINGS: list[Decoding] = [Greedy(), Sample(3, 1.5, 0, 0.95), Sample(2, 1.0)]


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two guides and a class-conditional model with the policy's vocabulary, and one with another."""
    root = tmp_path_factory.mktemp("guides")
    found = {}
    for seed, name in enumerate(("expert", "anti", "classes"), start=11):
        found[name] = root / name
        model("gpt2", seed).save_pretrained(found[name])
        tokenizer("gpt2").save_pretrained(found[name])
    ClassCodes({"mild": (5,), "toxic": (6, 7)}, 1.7).write(found["classes"])
    other = causal_tokenizer(build_tokenizer(["other words here"]), 64)
    found["other"] = root / "other"
    build_gpt2(other, TinyGPT2Config(16, 2, 2, 64), 0).save_pretrained(found["other"])
    other.save_pretrained(found["other"])
    return found


def mixers(directories: dict[str, Path]) -> dict[str, LogitsMixer]:
    anti, expert, classes = (str(directories[name]) for name in ("anti", "expert", "classes"))
    return {
        "dexperts": DExperts(anti, expert, alpha=0.7, nucleus=0.9),
        "anti only": DExperts(anti, alpha=0.7, nucleus=1.0),
        "gedi": GeDi(classes, "mild", "toxic", omega=3.0, keep_from=0.8, class_bias=0.3),
        "gedi without filter": GeDi(classes, "mild", "toxic", omega=3.0, filter_share=0.0),
        "words": WordList(["cat", "blue green", "dog ran far"]),
    }


NAMES = ("dexperts", "anti only", "gedi", "gedi without filter", "words")


def roll(
    mixer: LogitsMixer | None, kind: Any = "auto", count: int = 5, decodings: list[Decoding] = DECODINGS
) -> Rollout:
    engine = make_engine(policy("gpt2"), kind, mixer)
    return engine.decode(engine.encode(prompts("gpt2", count)), decodings, max_new_tokens=10, seed=3, step=1)


@pytest.mark.parametrize("name", NAMES)
def test_the_fast_path_draws_what_the_plain_path_draws(directories: dict[str, Path], name: str) -> None:
    fast, plain = (roll(mixers(directories)[name], kind) for kind in ("auto", "generate"))
    assert torch.equal(fast.response_ids, plain.response_ids)
    assert torch.equal(fast.response_mask, plain.response_mask)
    unmixed = roll(None)
    assert not (fast.response_ids.shape == unmixed.response_ids.shape and fast.texts == unmixed.texts)


@pytest.mark.parametrize("name", NAMES)
def test_batched_is_single(directories: dict[str, Path], name: str) -> None:
    together = roll(mixers(directories)[name])
    rows = together.prompt_index.tolist()
    engine = make_engine(policy("gpt2"), "auto", mixers(directories)[name])
    for number, prompt in enumerate(prompts("gpt2", 5)):
        alone = engine.decode(engine.encode([prompt]), DECODINGS, max_new_tokens=10, seed=3, step=1)
        assert alone.texts == [text for row, text in zip(rows, together.texts, strict=True) if row == number]


@pytest.mark.parametrize("name", ["alpha", "omega", "no word"])
def test_without_weight_the_policys_own_distribution_is_drawn_from(directories: dict[str, Path], name: str) -> None:
    none: LogitsMixer = {
        "alpha": DExperts(str(directories["anti"]), str(directories["expert"]), alpha=0.0, nucleus=1.0),
        "omega": GeDi(str(directories["classes"]), "mild", "toxic", omega=0.0, filter_share=0.0),
        "no word": WordList(["mat mat mat mat mat mat"]),  # never drawn here
    }[name]
    mixed, own = roll(none), roll(None)
    assert mixed.texts == own.texts
    assert torch.equal(mixed.logprobs, own.logprobs)


def test_alpha_0_leaves_the_nucleus_of_the_policy(directories: dict[str, Path]) -> None:
    """Cut before the difference is added, sampled plainly: the same draws as nucleus sampling of the policy alone."""
    cut = DExperts(str(directories["anti"]), alpha=0.0, nucleus=0.8)
    mixed = roll(cut, decodings=[Sample(4, 1.0)])
    assert mixed.texts == roll(None, decodings=[Sample(4, 1.0, top_p=0.8)]).texts


class _Given:
    """A stepper that gives the same logits at every step."""

    def __init__(self, logits: list[float]) -> None:
        self.row, self.first_tokens = torch.tensor([logits]), torch.zeros(1, dtype=torch.long)

    def logits(self, tokens: Tensor, position: Tensor, window: int) -> Tensor:
        return self.row

    def keep(self, prompts: Tensor, rows: Tensor) -> None:
        """Nothing is kept."""


def logs(*probabilities: float) -> list[float]:
    return [math.log(p) for p in probabilities]


def test_dexperts_over_three_tokens_by_hand() -> None:
    """p = .6, .3, .1; expert .5, .25, .25; anti-expert .25, .5, .25; α 1: p · (2, ½, 1) over what the nucleus keeps."""
    steppers = _Given(logs(0.5, 0.25, 0.25)), _Given(logs(0.25, 0.5, 0.25))
    own, fed, place = torch.tensor([logs(0.6, 0.3, 0.1)]), torch.tensor([0]), torch.tensor([0])
    whole = _DExpertsMixing(*steppers, alpha=1.0, nucleus=1.0).mix(own, fed, place, 1).softmax(-1)
    torch.testing.assert_close(whole, torch.tensor([[1.2, 0.15, 0.1]]) / 1.45)
    cut = _DExpertsMixing(*steppers, alpha=1.0, nucleus=0.8).mix(own, fed, place, 1).softmax(-1)
    torch.testing.assert_close(cut, torch.tensor([[1.2, 0.15, 0.0]]) / 1.35)
    squared = _DExpertsMixing(None, steppers[1], alpha=2.0, nucleus=1.0).mix(own, fed, place, 1).softmax(-1)
    weights = torch.tensor([[0.6**3 / 0.25**2, 0.3**3 / 0.5**2, 0.1**3 / 0.25**2]])
    torch.testing.assert_close(squared, weights / weights.sum())


def test_gedi_over_three_tokens_by_hand() -> None:
    """A prompt of two tokens, then two steps: the class of the whole text, by its mean log-odds, weighs each token."""
    config = GeDi("unread", "mild", "toxic", omega=2.0, class_bias=0.5, filter_share=0.0)
    length = torch.tensor([2])
    wanted = _Class(_Given(logs(0.5, 0.25, 0.25)), torch.tensor([math.log(0.2)]), length)
    unwanted = _Class(_Given(logs(0.25, 0.5, 0.25)), torch.tensor([math.log(0.1)]), length)
    mixing = _GeDiMixing(config, 3.0, wanted, unwanted)
    own = torch.tensor([logs(0.6, 0.3, 0.1)])

    def expected(odds: list[float], count: int) -> Tensor:
        """Of each token p · P(mild)², where the odds of the whole text are `odds` to 1."""
        classes = [1 / (1 + math.exp(-(3.0 / count * math.log(one) + 0.5))) for one in odds]
        weights = torch.tensor([[p * c**2 for p, c in zip((0.6, 0.3, 0.1), classes, strict=True)]])
        return weights / weights.sum()

    first = mixing.mix(own, torch.tensor([9]), torch.tensor([0]), 1)
    torch.testing.assert_close(first.softmax(-1), expected([4.0, 1.0, 2.0], 3))
    second = mixing.mix(own, torch.tensor([1]), torch.tensor([1]), 2)  # token 1 was drawn: the odds halve
    torch.testing.assert_close(second.softmax(-1), expected([2.0, 0.5, 1.0], 4))


def test_gedi_takes_improbable_tokens_away_until_the_share_is_reached() -> None:
    """Weighed .5, .3, .2 with the class at .1, .5, .9: tokens go from the lowest class on while less than a share is
    gone, those at `keep_from` or above stay."""

    def kept(share: float, keep_from: float) -> list[bool]:
        config = GeDi("unread", "a", "b", omega=0.0, filter_share=share, keep_from=keep_from)
        found = weigh(torch.tensor([logs(0.5, 0.3, 0.2)]), torch.tensor([logs(0.1, 0.5, 0.9)]), config)
        return torch.isfinite(found[0]).tolist()

    assert kept(0.4, 1.0) == [True, True, True]  # the first alone is more than .4
    assert kept(0.6, 1.0) == [False, True, True]
    assert kept(0.81, 1.0) == [False, False, True]
    assert kept(0.81, 0.4) == [False, True, True]
    assert kept(0.99, 1.0) == [False, False, True]  # never all


def drawn(mixer: LogitsMixer | None) -> list[list[str]]:
    """The tokens of many draws, special ones among them."""
    rollout = roll(mixer, decodings=[Sample(60, 1.5)])
    rows = zip(rollout.response_ids.tolist(), rollout.lengths().tolist(), strict=True)
    named = [tokenizer("gpt2").convert_ids_to_tokens(ids[:length]) for ids, length in rows]
    return [[name.removeprefix("▁") for name in row] for row in named]


def test_a_word_of_the_list_is_never_written() -> None:
    """A word of one token, and one of two, of which each by itself may be written."""
    assert {"cat", "on dog"} <= {*of(drawn(None), 1), *of(drawn(None), 2)}
    held = drawn(WordList(["cat", "on dog"]))
    assert not {"cat", "on dog"} & {*of(held, 1), *of(held, 2)}
    assert {"on", "dog", "dog on"} <= {*of(held, 1), *of(held, 2)}


def of(rows: list[list[str]], length: int) -> set[str]:
    """The runs of so many tokens."""
    return {" ".join(row[i : i + length]) for row in rows for i in range(len(row) - length + 1)}


@pytest.mark.parametrize("kind", ["gpt2", "llama", "t5"])
def test_reading_everything_anew_gives_the_logits_of_the_policy(kind: str) -> None:
    ours, asked = policy(kind), prompts(kind, 3)
    memory = ours.encode(asked)
    stepper = WholeTextStepper(ours, memory, 2, 4)
    ids = torch.randint(3, len(tokenizer(kind)), (6, 3), generator=torch.Generator().manual_seed(0))
    index = torch.arange(3).repeat_interleave(2)
    expected = ours.logprobs(memory, index, ids, torch.ones_like(ids)).logprobs
    fed = torch.cat([stepper.first_tokens[:, None], ids[:, :-1]], dim=1)
    for step in range(3):
        logits = stepper.logits(fed[:, step], torch.tensor([step]), step + 1)
        found = logits.log_softmax(-1).gather(1, ids[:, step : step + 1]).squeeze(1)
        torch.testing.assert_close(found, expected[:, step], atol=1e-5, rtol=0)
    stepper.keep(torch.tensor([0, 2]), torch.tensor([1, 4]))
    kept = stepper.logits(ids[[1, 4], 2], torch.tensor([3]), 4)
    whole = ours.hidden(memory, torch.tensor([0, 2]), torch.cat([ids[[1, 4]], ids[[1, 4], :1]], dim=1))[:, 3]
    torch.testing.assert_close(kept, ours.head(whole), atol=1e-5, rtol=0)


def test_mixers_refuse_what_they_cannot_use(directories: dict[str, Path], tmp_path: Path) -> None:
    anti, classes, other = (str(directories[name]) for name in ("anti", "classes", "other"))
    with pytest.raises(ModelError, match="vocabulary"):
        DExperts(other).setup(policy("gpt2"))
    with pytest.raises(ModelError, match="no model here"):
        DExperts(str(tmp_path)).setup(policy("gpt2"))
    with pytest.raises(ModelError, match=r"class_codes\.json"):
        GeDi(anti, "mild", "toxic").setup(policy("gpt2"))
    (tmp_path / "class_codes.json").write_text('{"codes": {"mild": [1]}, "scale": 1}')
    with pytest.raises(ModelError, match="two classes"):
        ClassCodes.read(tmp_path)
    with pytest.raises(ConfigError, match="knows the classes mild, toxic, got 'rude'"):
        GeDi(classes, "mild", "rude").setup(policy("gpt2"))
    with pytest.raises(ConfigError, match="one class"):
        GeDi(classes, "mild", "mild").setup(policy("gpt2"))
    with pytest.raises(ConfigError, match="mixer=gedi: expected a decoder-only policy"):
        GeDi(classes, "mild", "toxic").setup(policy("t5"))
    with pytest.raises(ConfigError, match="nucleus"):
        DExperts(anti, nucleus=0.0)
    with pytest.raises(ConfigError, match="filter_share"):
        GeDi(classes, "mild", "toxic", filter_share=1.0)
    with pytest.raises(ConfigError, match="at least one word"):
        WordList([]).setup(policy("gpt2"))
    with pytest.raises(ConfigError, match="knows none"):
        WordList(["grubnak"]).setup(policy("gpt2"))
    with pytest.raises(DataError, match="no such file"):
        WordList(str(tmp_path / "absent.txt")).setup(policy("gpt2"))
    with pytest.raises(ConfigError, match="setup"):
        DExperts(anti).open(policy("gpt2").encode(prompts("gpt2", 1)), 1, 4, WholeTextStepper)
    with pytest.raises(ConfigError, match="continuous"):
        make_engine(policy("gpt2"), "continuous", DExperts(anti))


def test_words_come_from_a_file_too(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("cat\n\n  blue green \n", encoding="utf-8")
    listed = roll(WordList(tmp_path / "words.txt"), decodings=[Sample(9, 2.0)]).texts
    assert listed == roll(WordList(["cat", "blue green"]), decodings=[Sample(9, 2.0)]).texts


def test_the_cut_is_that_of_nucleus_sampling() -> None:
    logits = torch.tensor([logs(0.6, 0.3, 0.1)])
    assert torch.isfinite(warp_logits(logits, Sample(1, top_p=0.8))).tolist() == [[True, True, False]]
