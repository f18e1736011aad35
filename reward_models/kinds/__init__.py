"""The kinds of reward model by name: a taxonomy's categories, what it says is missing, and its preferences.

Everything else in `reward_models` asks the kind and never compares its name. Files and configurations hold the name.
"""

from __future__ import annotations

from collections.abc import Mapping

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.feedback.taxonomy import QA_FEEDBACK, Taxonomy
from reward_models.kinds.base import Form, Kind
from reward_models.kinds.pairwise import PREFERENCE, PairKind, completeness_kind
from reward_models.kinds.segment import SegmentKind

__all__ = [
    "COMPLETENESS",
    "FACTUALITY",
    "KINDS",
    "PREFERENCE",
    "RELEVANCE",
    "Form",
    "Kind",
    "PairKind",
    "SegmentKind",
    "kind_named",
    "kinds_of",
]


def kinds_of(taxonomy: Taxonomy) -> Mapping[str, Kind]:
    """The kinds of reward model that learn from feedback with a taxonomy, by name.

    One a category; `completeness` where missing information is asked for, and corrections with it; `preference` where
    answers are compared.

    Raises:
        ConfigError: a category has the name of another kind.
    """
    kinds: dict[str, Kind] = {
        name: SegmentKind.of(category, taxonomy) for name, category in taxonomy.categories.items()
    }
    more: list[Kind] = [completeness_kind(taxonomy)] if taxonomy.missing and taxonomy.correction else []
    more += [PREFERENCE] if taxonomy.preferences else []
    for kind in more:
        if kind.name in kinds:
            raise ConfigError(f"taxonomy {taxonomy.name}: no category may be named {kind.name}")
        kinds[kind.name] = kind
    return kinds


RELEVANCE, FACTUALITY = (SegmentKind.of(QA_FEEDBACK.categories[n], QA_FEEDBACK) for n in ("relevance", "factuality"))
COMPLETENESS = completeness_kind(QA_FEEDBACK)
KINDS = kinds_of(QA_FEEDBACK)
"""Those of QA-FEEDBACK."""


def kind_named(name: str, kinds: Mapping[str, Kind] = KINDS) -> Kind:
    """The kind of this name.

    Raises:
        ConfigError: there is none.
    """
    if name not in kinds:
        raise ConfigError(f"reward model kind must be one of {', '.join(kinds)}, got {name!r}")
    return kinds[name]
