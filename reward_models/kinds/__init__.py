"""The kinds of reward model by name. A module a kind says its labels, its input, its density and the paper's settings.

Everything else in `reward_models` asks the kind and never compares its name. Files and configurations hold the name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from finegrained_rlhf.core.errors import ConfigError
from reward_models.kinds.base import Form, Kind, LabelDensity, PairKind, Recipe, SegmentKind
from reward_models.kinds.completeness import COMPLETENESS
from reward_models.kinds.factuality import FACTUALITY
from reward_models.kinds.preference import PREFERENCE
from reward_models.kinds.relevance import RELEVANCE

__all__ = [
    "COMPLETENESS",
    "FACTUALITY",
    "KINDS",
    "PREFERENCE",
    "RELEVANCE",
    "LabelDensity",
    "Form",
    "Kind",
    "KindName",
    "PairKind",
    "Recipe",
    "SegmentKind",
    "kind_named",
]

KindName = Literal["relevance", "factuality", "completeness", "preference"]
"""The names of `KINDS`, for annotations: configurations are checked against them before anything is imported."""
KINDS: Mapping[str, Kind] = {kind.name: kind for kind in (RELEVANCE, FACTUALITY, COMPLETENESS, PREFERENCE)}


def kind_named(name: str) -> Kind:
    """The kind of this name.

    Raises:
        ConfigError: there is none.
    """
    if name not in KINDS:
        raise ConfigError(f"reward model kind must be one of {', '.join(KINDS)}, got {name!r}")
    return KINDS[name]
