"""What a rewrite is worth: whether a retriever ranks the right passage first among those of the batch.

Knows passage labels and a scorer of given passages. Does not know how rewrites are made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from finegrained_rlhf.conqrr.records import PassageLabel
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.records import Prompt
from finegrained_rlhf.core.seeding import stable_hash
from finegrained_rlhf.retrieval.protocol import PoolScorer


def pool_ids(labels: Sequence[PassageLabel]) -> list[str]:
    """The passages of a batch: every positive and every negative once, in order of first occurrence."""
    return list(dict.fromkeys(passage for label in labels for passage in (label.positive, label.negative)))


def ranked_first(scores: NDArray[np.float32], positives: Sequence[int]) -> NDArray[np.bool_]:
    """Whether the positive scores strictly higher than every other passage of the pool (thesis, eq. 4.2).

    Args:
        scores: fp32 [Q, P].
        positives: Q columns.

    Returns:
        bool [Q]. A tie is a loss, so that a query that says nothing, or a retriever that knows nothing, earns nothing.
    """
    rows = np.arange(len(positives))
    own = scores[rows, list(positives)]
    others = scores.copy()
    others[rows, list(positives)] = -np.inf
    return np.asarray((others < own[:, None]).all(axis=1))


class PoolReward:
    """score(q) = 1 where the retriever ranks the positive above every other passage of the step's pool, else 0.

    Satisfies `ResponseReward`. The pool holds the positives and negatives of all rewarded questions of the step, so
    every process scores against the same one; all of a step's rewrites go to `score_pool` in one call, equal ones once.

    Args:
        scorer: scores queries against passages.
        labels: by question id.
        shuffled: a control: the scores are dealt out to the rewrites anew, at random, so that they say nothing.
        seed: of that.
    """

    def __init__(
        self, scorer: PoolScorer, labels: Mapping[str, PassageLabel], *, shuffled: bool = False, seed: int = 0
    ) -> None:
        self.scorer, self.labels, self.shuffled, self.seed = scorer, labels, shuffled, seed

    def score(self, step_prompts: Sequence[Prompt], prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float]:
        """See `ResponseReward.score`.

        Raises:
            DataError: a question has no label, or a label names a passage that the corpus does not have.
        """
        pool = pool_ids([self._label(prompt) for prompt in step_prompts])
        column = {passage: number for number, passage in enumerate(pool)}
        queries = list(dict.fromkeys(texts))
        row = {query: number for number, query in enumerate(queries)}
        table = self.scorer.score_pool(queries, pool)
        positives = [column[self._label(prompt).positive] for prompt in prompts]
        scores = ranked_first(table[[row[text] for text in texts]], positives).astype(float)
        if self.shuffled:
            names = [prompt.id for prompt in prompts]
            scores = np.random.default_rng(stable_hash(self.seed, "shuffle", *names)).permutation(scores)
        return [float(score) for score in scores]

    def _label(self, prompt: Prompt) -> PassageLabel:
        if prompt.id not in self.labels:
            raise DataError("expected a passage label", record=prompt.id, field="positive")
        return self.labels[prompt.id]
