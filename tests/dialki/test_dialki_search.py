"""Search: the best run of spans equals brute force; passages above a threshold."""

from __future__ import annotations

import pytest
import torch

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.dialki.model.search import SearchConfig, passages_above, tune_threshold
from finegrained_rlhf.dialki.model.spans import best_jointly, best_spans


def brute_force(begin: list[float], end: list[float], mask: list[bool], most: int) -> tuple[int, int, float]:
    best = (-1, -1, float("-inf"))
    for i in range(len(begin)):
        for j in range(i, min(len(end), i + most)):
            if mask[i] and mask[j] and begin[i] + end[j] > best[2]:
                best = (i, j, begin[i] + end[j])
    return best


def test_equal_to_brute_force_on_a_thousand_cases() -> None:
    generator = torch.Generator().manual_seed(0)
    for case in range(1000):
        rows, spans = 1 + case % 3, 1 + case % 12
        begin, end = (torch.randn(rows, spans, generator=generator) * 3 for _ in range(2))
        if case % 4 == 0:  # ties
            begin, end = begin.round(), end.round()
        mask = torch.rand(rows, spans, generator=generator) < 0.7
        mask[:, case % spans] = True
        most = 1 + case % 7
        if case % 2:
            begin, end = begin.softmax(-1), end.softmax(-1)
        found = best_spans(begin, end, mask, most)
        for row in range(rows):
            i, j, score = brute_force(begin[row].tolist(), end[row].tolist(), mask[row].tolist(), most)
            assert (int(found.begin[row]), int(found.end[row])) == (i, j), case
            assert float(found.score[row]) == pytest.approx(score, abs=1e-6)


def test_probabilities_and_logits_can_disagree() -> None:
    begin = torch.tensor([[4.0, 3.0, -9.0]])
    end = torch.tensor([[0.0, 0.5, 2.0]])
    mask = torch.ones(1, 3, dtype=torch.bool)
    by_logits = best_spans(begin, end, mask, 2)
    by_probability = best_spans(begin.softmax(-1), end.softmax(-1), mask, 2)
    assert (int(by_logits.begin), int(by_logits.end)) == (1, 2)
    assert float(by_logits.score) == 5.0
    probabilities = [[b + e for e in end.softmax(-1)[0].tolist()] for b in begin.softmax(-1)[0].tolist()]
    pairs = {(i, j): probabilities[i][j] for i in range(3) for j in range(i, min(3, i + 2))}
    assert (int(by_probability.begin), int(by_probability.end)) == max(pairs, key=lambda pair: pairs[pair])


def test_passage_and_spans_together_equal_brute_force() -> None:
    generator = torch.Generator().manual_seed(0)
    moved = 0
    for case in range(200):
        passages, spans, most = 1 + case % 4, 1 + case % 5, 1 + case % 3
        begin, end = (torch.randn(2, passages + 1, spans, generator=generator) * 3 for _ in range(2))
        mask = torch.rand(2, passages + 1, spans, generator=generator) < 0.7
        mask[..., 0] = True
        mask[:, passages] = False  # no passage stands there
        logits = torch.randn(2, passages + 1, generator=generator).masked_fill(~mask.any(-1), -torch.inf)
        logs = logits.log_softmax(-1)
        best, found = best_jointly(logs, begin.masked_fill(~mask, -1e9), end.masked_fill(~mask, -1e9), mask, most)
        for n in range(2):
            expected = max(
                (float(logs[n, p] + of_begin[i] + of_end[j]), -p, -i, -j)
                for p in range(passages)
                for of_begin, of_end in [
                    [x[n, p].masked_fill(~mask[n, p], -torch.inf).log_softmax(-1) for x in (begin, end)]
                ]
                for i in range(spans)
                for j in range(i, min(spans, i + most))
                if mask[n, p, i] and mask[n, p, j]
            )
            assert float(found.score[n]) == pytest.approx(expected[0], abs=1e-5)
            assert (int(best[n]), int(found.begin[n]), int(found.end[n])) == tuple(-x for x in expected[1:])
            moved += int(best[n]) != int(logs[n].argmax())
    assert moved > 20  # a sure run in a less probable passage wins


def test_shapes_are_checked() -> None:
    with pytest.raises(ValueError, match="expected three"):
        best_spans(torch.zeros(3), torch.zeros(3), torch.ones(3, dtype=torch.bool), 2)


def test_passages_above_a_threshold() -> None:
    row, names = [0.1, 0.5, 0.3, 0.1], [7, 3, 9, 5]
    assert passages_above(row, None, 4, names) == (3,)
    assert passages_above(row, 0.2, 4, names) == (3, 9)
    assert passages_above(row, 0.3, 4, names) == (3,)  # above, not at
    assert passages_above(row, 0.0, 3, names) == (3, 9, 7)
    assert passages_above(row, 0.9, 4, names) == (3,)  # the best one in any case


def test_threshold_with_the_highest_f1() -> None:
    rows = [[0.6, 0.3, 0.1], [0.45, 0.45, 0.1], [0.9, 0.06, 0.04]]
    gold = [frozenset({0}), frozenset({0, 1}), frozenset({0})]
    tuned = tune_threshold(rows, gold, most=4)
    assert tuned is not None and tuned.f1 == 1.0 and 0.3 <= tuned.value < 0.45
    for row, right in zip(rows, gold, strict=True):
        assert frozenset(passages_above(row, tuned.value, 4, range(3))) == right
    alone = tune_threshold(rows, [frozenset({0})] * 3, most=4)
    assert alone is not None and alone.f1 == 1.0 and alone.value > 0.99
    unreachable = tune_threshold([[1.0]], [frozenset({-1})], most=4)
    assert unreachable is not None and unreachable.f1 == 0.0
    assert tune_threshold([], [], most=4) is None


@pytest.mark.parametrize("change", [{"max_spans": 0}, {"score_by": "luck"}, {"max_passages": 0}, {"most": 0}])
def test_bad_settings_are_refused(change: dict) -> None:
    with pytest.raises(ConfigError):
        SearchConfig(**change)
