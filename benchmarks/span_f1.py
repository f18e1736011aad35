"""The best span of a passage for an answer: time of the exact search and of two that look at every span.

Example: python benchmarks/span_f1.py out=benchmarks/results/span_f1.json

Passages of 378 tokens (the average of QReCC's corpus in the thesis) and answers of 20, words drawn by Zipf's law from a
vocabulary of 5,000, so that common words of the answer stand all over the passage. `every_span` counts the words of
each span anew, as the function that scores a span does; `growing_spans` keeps counts while a span grows, which is what
a careful loop would do. All must give the same F1. `bound` is what a passage costs that the bound alone rules out.
Times are processor time, which other programs on the machine disturb less.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.command import read_arguments, run_main
from benchmarks.machine import describe_machine
from finegrained_rlhf.core.files import write_json
from finegrained_rlhf.text.scores import SpanMatcher, bag_f1
from finegrained_rlhf.text.tables import markdown_table

TOKENS, ANSWER, VOCABULARY = 378, 20, 5000
CASES = {"every_span": 3, "growing_spans": 15, "ours": 200, "bound": 200}
"""How many passages each side is timed on; all sides get the same first ones."""

Words = Sequence[str]


def every_span(passage: Words, answer: Words) -> float:
    """The highest F1 over all spans, each counted anew: O(L³)."""
    ends = range(1, len(passage) + 1)
    return max((bag_f1(passage[i:j], answer) for j in ends for i in range(j)), default=0.0)


def growing_spans(passage: Words, answer: Words) -> float:
    """The same in O(L²): from each start, the span grows by a word at a time and counts go along."""
    limits, best = Counter(answer), 0.0
    for start in range(len(passage)):
        left, shared = dict(limits), 0
        for length, word in enumerate(passage[start:], 1):
            if left.get(word, 0) > 0:
                left[word] -= 1
                shared += 1
                best = max(best, 2.0 * shared / (length + len(answer)))
    return best


def ours(passage: Words, answer: Words) -> float:
    """This project's."""
    return SpanMatcher(answer).best(passage).f1


def bound(passage: Words, answer: Words) -> float:
    """What no span of the passage exceeds."""
    return SpanMatcher(answer).bound(passage)


def cases(number: int, tokens: int) -> list[tuple[Words, Words]]:
    """Passages with answers; always the same ones."""
    draw = np.random.default_rng(0)
    weights = 1 / np.arange(1, VOCABULARY + 1)
    weights /= weights.sum()

    def words(count: int) -> list[str]:
        return [f"w{i}" for i in draw.choice(VOCABULARY, count, p=weights)]

    return [(words(tokens), words(ANSWER)) for _ in range(number)]


def milliseconds(side: Callable[[Words, Words], float], given: Sequence[tuple[Words, Words]]) -> float:
    """Median processor time of one passage."""
    times = []
    for passage, answer in given:
        start = time.process_time()
        side(passage, answer)
        times.append(time.process_time() - start)
    return 1000 * statistics.median(times)


def measure(tokens: int, numbers: Mapping[str, int]) -> dict[str, float]:
    """Milliseconds a passage of each side.

    Args:
        tokens: of a passage.
        numbers: how many passages each side is timed on.

    Raises:
        SystemExit: two sides found spans of different F1.
    """
    given = cases(max(numbers.values()), tokens)
    for side in (every_span, growing_spans):
        for passage, answer in given[: numbers[side.__name__]]:
            if side(passage, answer) != ours(passage, answer):
                raise SystemExit(f"{side.__name__} and ours differ")
    sides = (every_span, growing_spans, ours, bound)
    return {name: milliseconds(side, given[: numbers[name]]) for name, side in zip(numbers, sides, strict=True)}


def main(arguments: Sequence[str]) -> None:
    """Measure all sides, print a table, write JSON.

    Raises:
        ConfigError: a wrong argument.
    """
    given = read_arguments(arguments, ("out",), needed=("out",))
    found = measure(TOKENS, CASES)
    times = {name: value / found["ours"] for name, value in found.items()}
    rows = [{"search": name, "ms a passage": found[name], "times ours": times[name]} for name in found]
    print(markdown_table(rows, ["search", "ms a passage", "times ours"]))
    result = {
        "machine": describe_machine(torch.device("cpu"), "fp64"),
        "passage_tokens": TOKENS,
        "answer_tokens": ANSWER,
        "passages": CASES,
        "milliseconds": found,
        "times_ours": times,
    }
    write_json(given["out"], result)


if __name__ == "__main__":
    run_main(main)
