"""What `conf/` names is read without what computes: a class, its fields and their types load no torch."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import yaml

from finegrained_rlhf.core.fields import is_ours, named_class, settings_of
from finegrained_rlhf.core.markers import Reads, Writes, markers
from finegrained_rlhf.launch.configurations import conf_directories

_PATH = re.compile(r"(a |the )?(run |JSON-lines |JSON |SQLite |feedback |Python )?(file|directory)\b(?!s)")
"""How the documentation of a key begins that is a path."""

PACKAGES = ("finegrained_rlhf", "reward_models", "finegrained_lab")

READ_ALL = """
import dataclasses, importlib, json, sys, typing

HEAVY = "torch transformers datasets accelerate peft spacy scipy sklearn pandas matplotlib".split()
loaded, by_target = set(), {}
for target in json.load(sys.stdin):
    module, _, name = target.rpartition(".")
    kind = getattr(importlib.import_module(module), name)
    typing.get_type_hints(kind, include_extras=True)
    if isinstance(kind, type) and not dataclasses.is_dataclass(kind):
        typing.get_type_hints(kind.__init__, include_extras=True)
    new = sorted(package for package in HEAVY if package in sys.modules and package not in loaded)
    loaded.update(new)
    if new:
        by_target[target] = new
print(json.dumps(by_target))
"""


def targets_in(node: Any) -> Iterator[str]:
    """Every class of ours that a YAML names."""
    if isinstance(node, dict):
        target = node.get("_target_")
        if isinstance(target, str) and target.startswith(PACKAGES):
            yield target
        for value in node.values():
            yield from targets_in(value)
    elif isinstance(node, list):
        for value in node:
            yield from targets_in(value)


def test_a_class_that_a_configuration_names_is_read_without_torch() -> None:
    files = sorted(path for directory in conf_directories() for path in directory.rglob("*.yaml"))
    named = sorted({target for file in files for target in targets_in(yaml.safe_load(file.read_text("utf-8")))})
    assert len(named) > 130
    result = subprocess.run(
        [sys.executable, "-c", READ_ALL], input=json.dumps(named), capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == {}, "these load what they are to be read without (the first to load each)"


def classes() -> Iterator[str]:
    """Those of ours that a configuration names."""
    for directory in conf_directories():
        for path in directory.rglob("*.yaml"):
            yield from filter(is_ours, targets_in(yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)))


def test_what_is_said_to_be_a_path_is_marked_as_one() -> None:
    found = {
        (name, key): any(isinstance(mark, Reads | Writes) for mark in markers(setting.annotation))
        for name in set(classes())
        for key, setting in settings_of(named_class(name)).items()
        if _PATH.match(setting.documentation) and "str" in str(setting.annotation)
    }
    assert len(found) > 80
    assert sorted(place for place, marked in found.items() if not marked) == []
