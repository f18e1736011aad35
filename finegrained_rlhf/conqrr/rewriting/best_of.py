"""Of several sampled rewrites of a question, the one whose search ranks a gold passage best.

It reads the answer key: what it finds is an upper bound for any choice among the same samples, and no system.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from finegrained_rlhf.conqrr.records import RewriteExample
from finegrained_rlhf.conqrr.rewards.passages import hit_rank
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import Seed, at_least
from finegrained_rlhf.core.records import Sample
from finegrained_rlhf.retrieval.protocol import Hit, Retriever

_SEARCHED_AT_ONCE = 64


@dataclass(frozen=True)
class BestOfRank(Settings):
    """How rewrites are drawn, and how deep their gold passages are looked for.

    Attributes:
        n: samples a question.
        temperature: divides the logits.
        top_k: 0 keeps all tokens.
        top_p: 1.0 keeps all tokens.
        seed: of the sampling; a question's samples depend on it and on the question alone.
        depth: passages that a search finds; a passage beyond it counts as not found.
    """

    n: int = 8
    temperature: float = 1.0
    top_k: int = 20
    top_p: float = 1.0
    seed: Seed = 0
    depth: Annotated[int, at_least(1)] = 100

    def __post_init__(self) -> None:
        try:
            self.decoding()
        except ValueError as error:
            raise ConfigError(f"by_rank: {error}") from None

    def decoding(self) -> Sample:
        """What the rollout engine draws."""
        return Sample(self.n, self.temperature, self.top_k, self.top_p)


def best_by_rank(
    examples: Sequence[RewriteExample], texts: Sequence[Sequence[str]], retriever: Retriever, depth: int
) -> list[int]:
    """For each question the number of the text that ranks one of its gold passages best, the first of equal ones.

    Ties of scores count against a gold passage. A question without gold passages gets its first text.

    Args:
        examples: the questions.
        texts: of each question, at least one; blank ones find nothing.
        retriever: searches the corpus.
        depth: passages that a search finds.

    Raises:
        DataError: no question has a gold passage.
    """
    if not any(example.gold for example in examples):
        raise DataError("no question has a gold passage: there is no rank to choose by", field="gold")
    judged = [group if example.gold else () for example, group in zip(examples, texts, strict=True)]
    queries = list(dict.fromkeys(text for group in judged for text in group if text.strip()))
    hits: dict[str, list[Hit]] = {}
    for start in range(0, len(queries), _SEARCHED_AT_ONCE):
        batch = queries[start : start + _SEARCHED_AT_ONCE]
        hits.update(zip(batch, retriever.search(batch, depth), strict=True))
    best = []
    for example, group in zip(examples, judged, strict=True):
        ranks = [min(hit_rank(hits.get(text, ()), gold) for gold in example.gold) for text in group]
        best.append(ranks.index(min(ranks)) if ranks else 0)
    return best
