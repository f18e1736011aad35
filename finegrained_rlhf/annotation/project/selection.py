"""Which items are annotated: a strategy's scores, mixed with chance, so that every item's probability is known.

Strategies that ask models are `reward_models.selection`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from finegrained_rlhf.annotation.project.items import AnnotationItem
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.seeding import stable_hash

LEAST_RANDOM = 0.3
"""Share of the chosen items that are chosen by chance at least: what is reported must rest on some of them."""


@runtime_checkable
class ItemSelection(Protocol):
    """Says which items are worth annotating first."""

    @property
    def name(self) -> str:
        """What items that it chose are said to be chosen by."""
        ...

    def order(self, items: Sequence[AnnotationItem]) -> Sequence[int]:
        """The places of all items, the most wanted first."""
        ...


@dataclass(frozen=True)
class RandomSelection(Settings):
    """Chance alone.

    Attributes:
        name: in the items.
    """

    name: str = "random"

    def order(self, items: Sequence[AnnotationItem]) -> Sequence[int]:
        """In their own order; all that is chosen is chosen by chance anyway."""
        return range(len(items))


def choose_items(
    items: Sequence[AnnotationItem], count: int | None, selection: ItemSelection, random_share: float, seed: int
) -> list[AnnotationItem]:
    """Choose items without replacement: a share by chance from all, the others by the strategy from those left.

    An item's `probability` is that of its being chosen by chance; of those that the strategy chose (`strategy`), 1,
    since another seed would mostly choose them again: what is reported rests on the random ones.

    Args:
        items: to choose from.
        count: how many; None or more than there are takes all.
        selection: the strategy.
        random_share: of the chosen ones, by chance; at least `LEAST_RANDOM`.
        seed: of chance.

    Raises:
        ConfigError: a share below the least or above 1, or a count below 1.
    """
    import numpy as np

    if not LEAST_RANDOM <= random_share <= 1:
        raise ConfigError(f"random_share: expected {LEAST_RANDOM} to 1, got {random_share}")
    if count is not None and count < 1:
        raise ConfigError(f"count: expected at least 1, got {count}")
    if count is None or count >= len(items):
        return [replace(item, strategy="random", probability=1.0) for item in items]
    by_chance = count if isinstance(selection, RandomSelection) else round(random_share * count)
    by_chance = max(1, by_chance)
    generator = np.random.default_rng(stable_hash(seed, "selection"))
    drawn = generator.permutation(len(items)).tolist()[:by_chance]
    wanted = [place for place in selection.order(items) if place not in set(drawn)][: count - by_chance]
    share = by_chance / len(items)
    chosen = {place: replace(items[place], strategy="random", probability=share) for place in drawn}
    chosen |= {place: replace(items[place], strategy=selection.name, probability=1.0) for place in wanted}
    return [chosen[place] for place in sorted(chosen)]
