"""Which queries and passages a training step compares: a function of (seed, step) alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from finegrained_rlhf.core.seeding import stable_hash
from finegrained_rlhf.dialogue.records import Passage
from finegrained_rlhf.models.encoders.towers import TwoTowers
from finegrained_rlhf.training.dpr.job import DprSampling
from finegrained_rlhf.training.dpr.records import DprRecord
from finegrained_rlhf.training.order import items_of_step


@dataclass(frozen=True)
class DprExample:
    """A query as its tower reads it, and its passages as places in the table of a `DprSet`.

    Attributes:
        id: of the record.
        ids: token ids of the query.
        positives: at least one.
        negatives: the others.
        hard_negatives: those that a retriever takes for positives.
    """

    id: str
    ids: tuple[int, ...]
    positives: tuple[int, ...]
    negatives: tuple[int, ...]
    hard_negatives: tuple[int, ...]


@dataclass(frozen=True)
class DprSet:
    """Examples and the passages that they point at.

    Attributes:
        examples: in the order of the file.
        passages: token ids of each different passage.
    """

    examples: Sequence[DprExample] = ()
    passages: Sequence[tuple[int, ...]] = ()

    @classmethod
    def of(cls, records: Sequence[DprRecord], towers: TwoTowers) -> DprSet:
        """Records as two towers read them."""
        table: dict[str, int] = {}
        texts: list[tuple[str, str]] = []

        def places(passages: Iterable[Passage]) -> tuple[int, ...]:
            rows = []
            for passage in passages:
                if passage.id not in table:
                    table[passage.id] = len(texts)
                    texts.append((passage.title, passage.text))
                rows.append(table[passage.id])
            return tuple(rows)

        queries = towers.query.query_ids([record.turns for record in records])
        examples = [
            DprExample(one.id, ids, places(one.positives), places(one.negatives), places(one.hard_negatives))
            for one, ids in zip(records, queries, strict=True)
        ]
        return cls(examples, towers.passage.passage_ids(texts))


@dataclass(frozen=True)
class DprBatch:
    """Queries and the passages that each is compared with.

    Attributes:
        examples: Q queries.
        passages: P different places in the table of passages, in the order in which the queries bring them.
        targets: int64 [Q], where among the P the passage is that a query shall find.
        left_out: bool [Q, P], the query's other positives.
    """

    examples: Sequence[DprExample]
    passages: Sequence[int]
    targets: Tensor
    left_out: Tensor

    @classmethod
    def of(cls, examples: Sequence[DprExample], brought: Sequence[Sequence[int]]) -> DprBatch:
        """Compare queries with all that they bring.

        Args:
            examples: Q queries.
            brought: the passages of each, that which it shall find first.
        """
        columns = {place: i for i, place in enumerate(dict.fromkeys(place for row in brought for place in row))}
        left_out = torch.zeros(len(examples), len(columns), dtype=torch.bool)
        for row, (example, places) in enumerate(zip(examples, brought, strict=True)):
            others = [columns[place] for place in example.positives if place != places[0] and place in columns]
            left_out[row, others] = True
        targets = torch.tensor([columns[places[0]] for places in brought], dtype=torch.long)
        return cls(examples, list(columns), targets, left_out)

    def of_queries(self, chosen: range) -> DprBatch:
        """The same passages for some of the queries."""
        rows = slice(chosen.start, chosen.stop)
        return DprBatch(self.examples[rows], self.passages, self.targets[rows], self.left_out[rows])


def dpr_batch(data: DprSet, sampling: DprSampling, step: int, count: int, seed: int) -> DprBatch:
    """The batch of training step `step` (from 1), over all processes: the same in each.

    Args:
        data: at least one example.
        sampling: what a query brings.
        step: from 1.
        count: queries.
        seed: of the run.
    """
    examples = items_of_step(data.examples, step, count, seed)
    brought = []
    for example in examples:
        draw = np.random.default_rng(stable_hash(seed, "passages", step, example.id))
        first = 0 if sampling.positives == "first" else int(draw.integers(len(example.positives)))
        negatives = _drawn(draw, example.hard_negatives, sampling.hard_negatives)
        negatives += _drawn(draw, example.negatives, sampling.other_negatives)
        brought.append([example.positives[first], *negatives])
    return DprBatch.of(examples, brought)


def ranking_batch(data: DprSet, negatives: int) -> DprBatch:
    """All queries of a set, each to find its first positive among the passages of all.

    Args:
        data: at least one example.
        negatives: taken of each kind from each record, the first ones; all positives are taken.
    """
    brought = [[*one.positives, *one.hard_negatives[:negatives], *one.negatives[:negatives]] for one in data.examples]
    return DprBatch.of(data.examples, brought)


def _drawn(draw: np.random.Generator, places: Sequence[int], count: int) -> list[int]:
    return [places[i] for i in draw.permutation(len(places))[:count].tolist()]
