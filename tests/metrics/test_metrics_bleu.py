"""BLEU: numbers worked by hand, sacrebleu's published example, and several references."""

from __future__ import annotations

import math

import pytest

import finegrained_rlhf.metrics as metrics


def score(predictions: list[str], references: list[list[str]]) -> float:
    return metrics.sacre_bleu(predictions, references)[0]


def test_bleu_by_hand() -> None:
    # n-grams found: 5 of 6, 3 of 5, 1 of 4, 0 of 3, which smoothing makes 1 of 6; the lengths are equal
    expected = 100 * (5 / 6 * 3 / 5 * 1 / 4 * 1 / 6) ** 0.25
    assert score(["the cat sat on the mat"], [["the cat is on the mat"]]) == pytest.approx(expected)
    # all n-grams are found; four tokens for five
    assert score(["one two three four"], [["one two three four five"]]) == pytest.approx(100 * math.exp(1 - 5 / 4))


def test_bleu_of_equal_texts_is_100_and_of_nothing_0() -> None:
    texts = ["The color of Amber Mill is red.", "Friday."]
    assert score(texts, [[text] for text in texts]) == pytest.approx(100)
    assert score(["", ""], [[text] for text in texts]) == 0
    assert score([], []) == 0
    assert score(["red."], [["red."]]) == 0, "two tokens have no n-gram of four"


def test_bleu_counts_over_the_corpus_not_over_sentences() -> None:
    first, second = ("one two three four five", "one two three four five"), ("six seven", "six eight")
    together = score([first[0], second[0]], [[first[1]], [second[1]]])
    # 5 + 1 of 7, 4 + 0 of 5, 3 of 3, 2 of 2
    assert together == pytest.approx(100 * (6 / 7 * 4 / 5) ** 0.25)


def test_bleu_of_the_published_example() -> None:
    """sacrebleu's README: BLEU = 48.53 82.4/50.0/45.5/37.5 (BP = 0.943)."""
    predictions = ["The dog bit the man.", "It wasn't surprising.", "The man had just bitten him."]
    references = [
        ["The dog bit the man.", "The dog had bit the man."],
        ["It was not unexpected.", "No one was surprised."],
        ["The man bit him first.", "The man had bitten the dog."],
    ]
    assert score(predictions, references) == pytest.approx(48.53, abs=0.005)


def test_references_need_not_be_equally_many() -> None:
    prediction, both = "a b c d e", ["x y z", "a b c d e"]
    assert score([prediction, "f g h i"], [both, ["f g h i"]]) == pytest.approx(100)
    with pytest.raises(ValueError, match="one or more references"):
        metrics.sacre_bleu(["a"], [[]])
    with pytest.raises(ValueError, match="one or more references"):
        metrics.sacre_bleu(["a"], [])


def test_the_metric_class_equals_the_function() -> None:
    predictions, references = ["the cat sat on the mat", "a dog"], [["the cat is on the mat", "no"], ["the dog"]]
    metric = metrics.SacreBLEU()
    found = metric.compute(predictions=predictions, references=references)
    assert (found["bleu"], found["bleu_signature"]) == metrics.sacre_bleu(predictions, references)
    assert "tok:13a" in found["bleu_signature"]
    for text, group in zip(predictions, references, strict=True):
        metric.add_batch(predictions=[text], references=[group])
    assert metric.compute() == found
