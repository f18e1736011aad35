"""Sampling noise: a function of names alone, uniform, and without visible dependence between its cells."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.core.seeding import seed_everything, stable_hash
from finegrained_rlhf.rollout.noise import uniform_noise
from finegrained_rlhf.training.order import number_occurrences


def test_a_cell_depends_on_its_names_alone() -> None:
    whole = uniform_noise(3, 5, ["a", "b", "b"], [0, 0, 1], positions=6)
    assert whole.shape == (3, 6) and whole.dtype == np.float64
    shuffled = uniform_noise(3, 5, ["b", "a", "b"], [1, 0, 0], positions=6)
    np.testing.assert_array_equal(shuffled, whole[[2, 0, 1]])
    np.testing.assert_array_equal(uniform_noise(3, 5, ["b"], [1], positions=4), whole[2:, :4])


def test_every_name_matters() -> None:
    base = uniform_noise(1, 1, ["a"], [0], positions=4)
    for other in (
        uniform_noise(2, 1, ["a"], [0], positions=4),
        uniform_noise(1, 2, ["a"], [0], positions=4),
        uniform_noise(1, 1, ["b"], [0], positions=4),
        uniform_noise(1, 1, ["a"], [1], positions=4),
    ):
        assert not np.isin(other, base).any()
    assert len(np.unique(base)) == 4


def test_global_generators_are_neither_used_nor_moved() -> None:
    seed_everything(0)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    first = uniform_noise(0, 0, ["p"], [0], positions=3)
    assert torch.equal(torch.get_rng_state(), before[0])
    np.testing.assert_array_equal(np.random.get_state()[1], before[1])
    seed_everything(1)
    np.testing.assert_array_equal(uniform_noise(0, 0, ["p"], [0], positions=3), first)


def test_the_numbers_are_uniform_in_the_open_interval() -> None:
    noise = uniform_noise(0, 0, [f"p{i}" for i in range(400)], [0] * 400, positions=100)
    assert 0 < noise.min() and noise.max() < 1
    counts = np.histogram(noise, bins=100, range=(0, 1))[0]
    chi_square = ((counts - 400) ** 2 / 400).sum()
    assert chi_square < 150  # 99 degrees of freedom: 150 has probability 7e-4
    assert abs(np.corrcoef(noise[:, 0], noise[:, 1])[0, 1]) < 0.2  # neighbours in a row
    assert abs(np.corrcoef(noise[0], noise[1])[0, 1]) < 0.35  # neighbouring prompts


def test_the_largest_word_stays_below_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from finegrained_rlhf.rollout import noise

    for word, expected in ((2**64 - 1, 1 - 2.0**-53), (0, 2.0**-53)):
        monkeypatch.setattr(noise, "_splitmix64", lambda x, word=word: np.full(x.shape, word, dtype=np.uint64))
        assert uniform_noise(0, 0, ["p"], [0], positions=1)[0, 0] == expected


def test_splitmix_is_the_published_one() -> None:
    """The first outputs of SplitMix64 from seed 1234567, as its reference implementation prints them."""
    from finegrained_rlhf.rollout.noise import _GOLDEN, _splitmix64

    with np.errstate(over="ignore"):
        states = np.uint64(1234567) + np.arange(1, 4, dtype=np.uint64) * _GOLDEN
    assert _splitmix64(states).tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_the_first_draw_of_a_prompt_keeps_its_name() -> None:
    first, second, other = (Prompt("a", "", (), occurrence=n) for n in (1, 2, 3))
    assert first.draw == "a" and len({first.draw, second.draw, other.draw, Prompt("a2", "", ()).draw}) == 4
    assert number_occurrences([first, Prompt("b", "", ()), first, first]) == [first, Prompt("b", "", ()), second, other]


def test_lengths_must_agree() -> None:
    with pytest.raises(ValueError, match="2 names but 1 sample"):
        uniform_noise(0, 0, ["a", "b"], [0], positions=1)


def test_hashes_tell_parts_apart() -> None:
    parts = [("a", "bc"), ("ab", "c"), ("abc",), ("1",), (1,), (1, ""), ()]
    assert len({stable_hash(*p) for p in parts}) == len(parts)
    assert stable_hash("a", 1) == stable_hash("a", 1)
    assert all(0 <= stable_hash(*p) < 2**63 for p in parts)
    with pytest.raises(TypeError, match="bool"):
        stable_hash(True)
    with pytest.raises(TypeError, match="float"):
        stable_hash(1.5)
