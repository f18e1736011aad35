"""Scenes of PAHF's protocol: read from files of ours or from the paper's scenario files."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finegrained_lab.protocols.sizes import require_name, require_passage
from finegrained_rlhf.core.checks import as_object, get_field, require, require_text
from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.files import read_json, read_jsonl

PICK_UP = "pick-up"
"""What the paper's files have as the location where an object is to be brought."""
OFFERS = ("A", "B", "C")
"""Products of a scene of the paper's shopping files."""
NO_PURCHASE = "buy none of them"
"""The option behind the products."""


@dataclass(frozen=True)
class Scene:
    """A task of one user.

    Attributes:
        id: unique in its file.
        user: whose it is.
        instruction: I_t.
        options: O_t, all different.
        intent: the option that the user wants, which no agent is told.
        preference: why, in the user's words; what a scripted user says.
    """

    id: str
    user: str
    instruction: str
    options: tuple[str, ...]
    intent: str
    preference: str


@dataclass(frozen=True)
class ShoppingScene(Scene):
    """A product to choose, of three, or none of them; the options are the three, then `NO_PURCHASE`.

    Attributes:
        product: what is to be bought.
        features: of each of the three, in the order of the options.
    """

    product: str = ""
    features: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class SceneFile:
    """The scenes of a file.

    Attributes:
        scenes: in their order.
        left_out: how many had an intent that is not among the options.
    """

    scenes: tuple[Scene, ...]
    left_out: int


def read_scenes(path: str | Path) -> SceneFile:
    """The scenes of a file whose intent is among their options; the others are counted.

    Args:
        path: `.jsonl`, one object a line with the fields of `Scene`; or `.json`, a list as in the paper's
            `data/embodied/scenarios/`, or of `ShoppingScene`s as in its `data/shopping/phase1.json`. Where something is
            to be put away, the options are the scene's other objects. Shopping scenes are numbered from 0.

    Raises:
        DataError: the file is missing, has no scene, or a record is not as it should be.
    """
    path = Path(path)
    rows = read_jsonl(path) if path.suffix == ".jsonl" else read_json(path)
    if not isinstance(rows, list) or not rows:
        raise DataError("expected at least one scene", file=path)
    parse: Callable[[Any, int], Scene] = _scene if path.suffix == ".jsonl" else _record
    scenes: list[Scene] = []
    seen: set[str] = set()
    for number, row in enumerate(rows):
        try:
            scene = parse(row, number)
            require(scene.id not in seen, "expected an id that is used once", "id")
            for name in ("id", "user"):
                require_name(getattr(scene, name), name)
            require_passage("\n".join((scene.instruction, *scene.options)), "instruction and options")
        except DataError as error:
            raise error.at(file=path, record=number) from None
        seen.add(scene.id)
        scenes.append(scene)
    kept = tuple(scene for scene in scenes if scene.intent in scene.options)
    if not kept:
        raise DataError("expected a scene whose intent is among its options", file=path)
    return SceneFile(kept, len(scenes) - len(kept))


def _scene(row: Any, number: int) -> Scene:
    row = as_object(row, "scene")
    texts = {name: require_text(get_field(row, name), name) for name in ("id", "user", "instruction", "intent")}
    preference = require_text(get_field(row, "preference"), "preference")
    return Scene(**texts, options=_options(row, "options"), preference=preference)


def _record(row: Any, number: int) -> Scene:
    """A record of the paper's files: of shopping, or of objects and places."""
    row = as_object(row, "scene")
    return _purchase(row, number) if "product" in row else _scenario(row)


def _purchase(row: Mapping[str, Any], number: int) -> ShoppingScene:
    user, instruction, product = (require_text(get_field(row, name), name) for name in ("User", "Task", "product"))
    features = tuple(_options(row, f"Option {letter}") for letter in OFFERS)
    options = (*(f"{product} with {' and '.join(own)}" for own in features), NO_PURCHASE)
    require(len(set(options)) == len(options), "expected products that are all different", "Option A")
    wanted = get_field(row, "gt")
    require(wanted is None or wanted in OFFERS, f"expected null or one of {', '.join(OFFERS)}", "gt")
    intent = NO_PURCHASE if wanted is None else options[OFFERS.index(wanted)]
    says = "None of these is right for me." if wanted is None else f"I want the {intent}."
    return ShoppingScene(f"{number}", user, instruction, options, intent, says, product, features)


def _scenario(row: Mapping[str, Any]) -> Scene:
    user, instruction = (require_text(get_field(row, name), name) for name in ("user", "task"))
    wanted, where = (require_text(get_field(row, f"user_intent_{name}"), name) for name in ("object", "location"))
    objects = _options(row, "scene_objects", empty=True)  # some have none, and are left out
    situation = require_text(get_field(row, "context"), "context")
    picks = where == PICK_UP
    if not picks and wanted in objects:
        objects = tuple(option for option in objects if option != wanted)
    elif not picks:
        objects = ()  # what is to be put away is not there: left out
    intent = wanted if picks else where
    says = f"{situation}: I want {intent}." if picks else f"{situation}: I want {wanted} at {intent}."
    return Scene(f"{get_field(row, 'index')}", user, instruction, objects, intent, says)


def _options(row: Mapping[str, Any], name: str, empty: bool = False) -> tuple[str, ...]:
    items = get_field(row, name)
    require(isinstance(items, list) and (empty or len(items) > 0), "expected a list of options", name)
    options = tuple(require_text(option, name) for option in items)
    require(len(set(options)) == len(options), "expected options that are all different", name)
    return options


def read_personas(path: str | Path) -> dict[str, str]:
    """The personas of a Python file: every `prompt_NAME = "…"` at its top, by name in lower case.

    The file is parsed and never run.

    Raises:
        DataError: the file is missing, is not Python, or has no persona.
    """
    try:
        tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError, RecursionError) as error:
        raise DataError(f"expected a readable Python file ({type(error).__name__})", file=path) from None
    personas = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            name, value = node.targets[0].id, node.value
            if name.startswith("prompt_") and isinstance(value, ast.Constant) and isinstance(value.value, str):
                personas[name.removeprefix("prompt_").lower()] = value.value
    if not personas:
        raise DataError("expected texts that are named prompt_NAME", file=path)
    return personas
