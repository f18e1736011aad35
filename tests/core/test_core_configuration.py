"""Settings as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from finegrained_rlhf.runtime.job import as_config


@dataclass(frozen=True)
class Inner:
    rate: float = 0.5


@dataclass(frozen=True)
class Outer:
    path: Path
    inner: Inner = field(default_factory=Inner)
    names: tuple[str, ...] = ("a",)
    more: Mapping[str, Any] = field(default_factory=dict)


def test_settings_name_their_classes_and_defaults() -> None:
    found = as_config(Outer(Path("x/y"), more={"set": {"b", "a"}, 3: [Inner(1.0), None]}))
    own = {"_target_": f"{__name__}.Inner"}
    assert found == {
        "_target_": f"{__name__}.Outer",
        "path": "x/y",
        "inner": {**own, "rate": 0.5},
        "names": ["a"],
        "more": {"set": ["a", "b"], "3": [{**own, "rate": 1.0}, None]},
    }
    assert json.loads(json.dumps(found)) == found
