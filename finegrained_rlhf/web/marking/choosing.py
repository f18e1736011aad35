"""What is marked next: items that nobody has begun, ordered by a rule that may ask trained reward models.

A share is drawn by chance before the rule orders the others, as `finegrained make-annotation-tasks` does: what is
reported can rest on items that no rule chose, whenever people stop.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from finegrained_rlhf.annotation.items import LEAST_RANDOM, AnnotationItem, ItemSelection
from finegrained_rlhf.core.checks import require
from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.seeding import stable_hash
from finegrained_rlhf.launch.build import build
from finegrained_rlhf.web.marking.work import Work

RULES: Mapping[str, str] = {
    "uncertain": "reward_models.UncertainSelection",
    "disagree": "reward_models.DisagreeSelection",
    "diverse": "reward_models.DiverseSelection",
    "random": "finegrained_rlhf.annotation.RandomSelection",
}
"""The classes of `conf/select` that need nothing but trained reward models, by their names there."""
CHANCE = "random"
"""The rule that needs no model, and what items that no rule chose are said to be chosen by."""
_RECORD = "reward_model.json"
_CHOOSING = threading.Lock()


def trained_models(directory: Path) -> list[str]:
    """Runs and directories with a trained reward model below a directory, by their paths below it."""
    found = []
    for folder, children, files in os.walk(directory):
        children[:] = sorted(name for name in children if not name.startswith("."))
        place = Path(folder)
        if _RECORD in files or ("config.yaml" in files and (place / "model" / _RECORD).is_file()):
            children.clear()
            found.append(str(place.relative_to(directory)))
    return found


def choose_next(work: Work, key: str, rule: str, models: Sequence[str]) -> int:
    """Order the single items that nobody has begun by a rule; how many.

    A share of `LEAST_RANDOM` is drawn by chance and spread evenly among the others; it stays drawn where a rule is
    chosen again. The others are said to be chosen by the rule (`strategy`). Overlap and qualification items stay.

    Args:
        work: the projects.
        key: of the project.
        rule: one of `RULES`.
        models: of `trained_models`, below the served directory; the rule `random` asks none.

    Raises:
        ConfigError: another choice is being made, or the rule cannot be used with these models.
        DataError: an argument is none of these, or nothing is left to order.
        ModelError: a model cannot be read.
    """
    require(rule in RULES, f"expected one of {', '.join(RULES)}, got {rule!r}", "select")
    known = trained_models(work.directory)
    for name in models:
        require(name in known, f"expected a directory with a trained reward model, got {name!r}", "models")
    items = work.unbegun(key)
    require(bool(items), "everything that one person marks alone was begun", "items")
    if not _CHOOSING.acquire(blocking=False):
        raise ConfigError("what is marked next is being chosen already; try again when that is done")
    try:
        drawn, others = _divided(key, rule, items)
        ordered = _ordered(rule, [str(work.directory / name) for name in models], others)
    finally:
        _CHOOSING.release()
    chosen = {} if rule == CHANCE else {item.id: rule for item in ordered}
    return work.put_in_order(key, [item.id for item in _spread(drawn, ordered)], chosen)


def _divided(
    key: str, rule: str, items: Sequence[AnnotationItem]
) -> tuple[Sequence[AnnotationItem], Sequence[AnnotationItem]]:
    """Those that chance has, and those that the rule orders, each in an order of chance that is the project's own."""
    permuted = np.random.default_rng(stable_hash(key, "selection")).permutation(len(items))
    mixed = [sorted(items, key=lambda item: item.id)[place] for place in permuted.tolist()]
    if rule == CHANCE:
        return (), mixed
    by_chance = [item for item in mixed if item.strategy == CHANCE]
    if len(by_chance) == len(mixed):
        by_chance = mixed[: max(1, round(LEAST_RANDOM * len(mixed)))]
    names = {item.id for item in by_chance}
    return by_chance, [item for item in mixed if item.id not in names]


def _ordered(rule: str, models: Sequence[str], items: Sequence[AnnotationItem]) -> list[AnnotationItem]:
    config: dict[str, Any] = {"_target_": RULES[rule], **({} if rule == CHANCE else {"models": list(models)})}
    selection: ItemSelection = build(config)
    return [items[place] for place in selection.order(items)] if items else []


def _spread(drawn: Sequence[AnnotationItem], ordered: Sequence[AnnotationItem]) -> list[AnnotationItem]:
    """Both lists in one, each in its order and evenly spread."""
    placed = [((place + 0.5) / len(part), item) for part in (drawn, ordered) for place, item in enumerate(part)]
    return [item for _, item in sorted(placed, key=lambda one: one[0])]
