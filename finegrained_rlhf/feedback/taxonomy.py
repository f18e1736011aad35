"""What people mark in an answer: categories of errors with their types, and what can be missing.

A taxonomy is data alone, so that another task is annotated, and reward models are trained for it, with a file of
configuration (`conf/taxonomy/`) and no code. QA-FEEDBACK's is the default.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeVar, get_args

from finegrained_rlhf.core.errors import ConfigError
from finegrained_rlhf.core.fields import Settings

Density = Literal["sub_sentence", "sentence", "response", "own"]
"""What gets a label of its own: each sub-sentence, sentence, the whole answer, or each piece between separators."""
Comparison = Literal["ranking", "pairs"]
"""How people compare answers: all of them in one order, or each with each."""
_COLOUR = re.compile(r"#[0-9a-fA-F]{6}")
_PALETTE = (
    "#b45309",
    "#be123c",
    "#7c3aed",
    "#1d4ed8",
    "#0f766e",
    "#4d7c0f",
    "#a21caf",
    "#9a3412",
    "#0369a1",
    "#365314",
)
_Entry = TypeVar("_Entry", "ErrorType", "MissingType", "Category")


@dataclass(frozen=True)
class ErrorType:
    """A type of span.

    Attributes:
        name: in files.
        label: as people see it; "" is the name.
        description: what it means, for the guidelines.
        key: one character that marks with it; "" gets the next free digit or letter.
        colour: `#rrggbb`; "" gets one of a palette.
        needs_evidence: whether a mark names the passage sentences that show it.
        needs_quote: whether a mark quotes another place of the answer, as what is repeated.
    """

    name: str
    label: str = ""
    description: str = ""
    key: str = ""
    colour: str = ""
    needs_evidence: bool = False
    needs_quote: bool = False


@dataclass(frozen=True)
class MissingType:
    """A type of missing information, marked on sentences of the passages.

    Attributes:
        name: in files.
        label: as people see it; "" is the name.
        description: what it means, for the guidelines.
        key: one character that marks with it; "" gets the next free one.
        colour: `#rrggbb`; "" gets one of a palette.
        minor: whether an answer is as complete without it: it is no gap that a reward model learns.
    """

    name: str
    label: str = ""
    description: str = ""
    key: str = ""
    colour: str = ""
    minor: bool = False


@dataclass(frozen=True)
class Category:
    """Types of span that one reward model learns together, at one density.

    Attributes:
        name: in files, configurations and directories; of letters, digits and `_`.
        types: its types of span, by name.
        title: as people see it; "" is the name.
        density: what gets a label of its own.
        separator: of `density: own`: a regular expression that stands between the pieces of an answer.
        reads_passages: whether the reward model is shown the passages.
        hidden_by: categories whose marks kept people from looking for this one: a segment that only they touch teaches
            nothing.
        min_words: marks with fewer words, divided by white space, are dropped before labelling.
        words_up_to: above 0, a label is the number of words that the correction changes in a segment
            (`text.edits.edit_mass`), at most this, whatever was marked; 0: whether a mark touches the segment.
    """

    name: str
    types: Mapping[str, ErrorType]
    title: str = ""
    density: Density = "sentence"
    separator: str | None = None
    reads_passages: bool = False
    hidden_by: Sequence[str] = ()
    min_words: int = 0
    words_up_to: int = 0


@dataclass(frozen=True)
class Taxonomy(Settings):
    """What is marked in the answers of a task.

    Nested values may be given as plain mappings of their fields, as configurations do; they become what is declared.

    Attributes:
        name: of the task.
        categories: `Category` by name, in order of precedence: where two would overlap, the first one's mark stays.
        missing: `MissingType` by name; empty where nobody is asked what an answer leaves out.
        correction: whether people correct the answer.
        preferences: whether people compare the answers of a question.
        comparison: how: by one `ranking` with ties, or answer against answer in `pairs`.
    """

    name: str
    categories: Mapping[str, Any]
    missing: Mapping[str, Any] = field(default_factory=dict)
    correction: bool = True
    preferences: bool = True
    comparison: Comparison = "ranking"

    def __post_init__(self) -> None:
        where = f"taxonomy {self.name}"
        if not self.name.isidentifier():
            raise ConfigError(f"a taxonomy needs a name of letters, digits and _, got {self.name!r}")
        categories = {
            name: _built(Category, name, value, f"{where}: categories") for name, value in self.categories.items()
        }
        missing = {name: _built(MissingType, name, value, f"{where}: missing") for name, value in self.missing.items()}
        if not categories and not missing and not self.preferences:
            raise ConfigError(f"{where}: nothing is asked: no category, nothing missing and no preferences")
        for category in categories.values():
            _check_category(category, categories, where)
        self._set("categories", categories)
        self._set("missing", missing)
        names = [*self.error_types, *missing]
        twice = [name for name, count in Counter(names).items() if count > 1]
        if twice or sum(len(category.types) for category in categories.values()) != len(self.error_types):
            raise ConfigError(f"{where}: a type may be named once, {twice[0] if twice else 'one of them'} is twice")
        self._set_looks(where)

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _set_looks(self, where: str) -> None:
        """Give every type a key and a colour of its own where it has none."""
        types: list[ErrorType | MissingType] = [*self.error_types.values(), *self.missing.values()]
        taken = Counter(kind.key for kind in types if kind.key)
        if twice := [key for key, count in taken.items() if count > 1 or len(key) != 1]:
            raise ConfigError(f"{where}: a key is one character and belongs to one type, got {twice[0]!r}")
        if wrong := [kind for kind in types if kind.colour and not _COLOUR.fullmatch(kind.colour)]:
            raise ConfigError(f"{where}: colour of {wrong[0].name}: expected #rrggbb, got {wrong[0].colour!r}")
        free = iter(key for key in "123456789abcdefghijklmnopqrstuvwxyz" if key not in taken)
        for number, kind in enumerate(types):
            object.__setattr__(kind, "label", kind.label or kind.name)
            object.__setattr__(kind, "key", kind.key or next(free, ""))
            object.__setattr__(kind, "colour", kind.colour or _PALETTE[number % len(_PALETTE)])

    @property
    def error_types(self) -> Mapping[str, ErrorType]:
        """All types of span by name, category by category."""
        return {name: kind for category in self.categories.values() for name, kind in category.types.items()}

    @property
    def reads_passages(self) -> bool:
        """Whether passages are asked for: as evidence, as what is missing, or by the reward model of a category."""
        evidence = any(kind.needs_evidence for kind in self.error_types.values())
        return bool(self.missing) or evidence or any(category.reads_passages for category in self.categories.values())

    def category_of(self, error_type: str) -> Category:
        """The category of a type of span. Raises KeyError where there is none."""
        return next(category for category in self.categories.values() if error_type in category.types)

    def rank(self, error_type: str) -> int:
        """The place of a type's category in the order of precedence, from 0."""
        return list(self.categories).index(self.category_of(error_type).name)


def _built(kind: type[_Entry], name: str, value: Any, where: str) -> _Entry:
    """An entry from a mapping of its fields, with its name."""
    if isinstance(value, kind):
        return value
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where}.{name}: expected a mapping, got {value!r}")
    known = {entry.name for entry in fields(kind)}
    if unknown := sorted(set(value) - known):
        raise ConfigError(f"{where}.{name}: unknown key {unknown[0]}, expected some of {', '.join(sorted(known))}")
    if value.get("name", name) != name:
        raise ConfigError(f"{where}.{name}: it is also named {value['name']!r}")
    values = {**value, "name": name}
    if kind is Category:
        types = values.get("types")
        if not isinstance(types, Mapping) or not types:
            raise ConfigError(f"{where}.{name}.types: expected at least one type by name, got {types!r}")
        values["types"] = {
            key: _built(ErrorType, key, one if one is not None else {}, f"{where}.{name}.types")
            for key, one in types.items()
        }
        values["hidden_by"] = tuple(values.get("hidden_by", ()))
    return kind(**values)


def _check_category(category: Category, categories: Mapping[str, Category], where: str) -> None:
    at = f"{where}: category {category.name}"
    if not category.name.isidentifier():
        raise ConfigError(f"{at}: expected a name of letters, digits and _")
    if category.density not in get_args(Density):
        raise ConfigError(f"{at}: density must be one of {', '.join(get_args(Density))}, got {category.density!r}")
    if (category.density == "own") != (category.separator is not None):
        raise ConfigError(f"{at}: a separator belongs to density own, and density own needs one")
    if category.separator is not None:
        try:
            matches_nothing = re.compile(category.separator).match("") is not None
        except re.error as error:
            raise ConfigError(f"{at}: separator is no regular expression ({error})") from None
        if matches_nothing:
            raise ConfigError(f"{at}: the separator {category.separator!r} matches no characters at all")
    if min(category.min_words, category.words_up_to) < 0:
        raise ConfigError(f"{at}: min_words and words_up_to must be at least 0")
    if wrong := [name for name in category.hidden_by if name not in categories or name == category.name]:
        raise ConfigError(f"{at}: hidden_by names {wrong[0]!r}, which is no other category")


QA_FEEDBACK = Taxonomy(
    name="qa_feedback",
    categories={
        "relevance": Category(
            "relevance",
            {
                "Irrelevant": ErrorType("Irrelevant", description="Does not help to answer the question."),
                "Redundant": ErrorType(
                    "Redundant",
                    "Repetitive",
                    "Says again what the answer has said; quote what is repeated.",
                    needs_quote=True,
                ),
                "Incoherent": ErrorType(
                    "Incoherent", description="Cannot be understood, or does not go with what stands beside it."
                ),
            },
            title="Irrelevant, repetitive or incoherent",
            density="sub_sentence",
            min_words=5,
        ),
        "factuality": Category(
            "factuality",
            {
                "Wrong-Grounding": ErrorType(
                    "Wrong-Grounding",
                    "Inconsistent fact",
                    "Contradicts the passages; name the sentences that it contradicts.",
                    needs_evidence=True,
                ),
                "Unverifiable": ErrorType(
                    "Unverifiable", "Unverifiable fact", "Is not in the passages, whether it is true or not."
                ),
            },
            title="Wrong or unverifiable facts",
            density="sentence",
            reads_passages=True,
            hidden_by=("relevance",),
        ),
    },
    missing={
        "Missing-Answer": MissingType(
            "Missing-Answer", "Missing: answer", "Answers the question, or a part of it, and is left out."
        ),
        "Missing-Major-Auxiliary": MissingType(
            "Missing-Major-Auxiliary",
            "Missing: major auxiliary",
            "Is needed to understand the answer, or to choose between several, and is left out.",
        ),
        "Missing-Minor-Auxiliary": MissingType(
            "Missing-Minor-Auxiliary",
            "Missing: minor auxiliary",
            "Would be good to know beside the answer, and is left out.",
            minor=True,
        ),
    },
)
"""The thesis's categories C1 (relevance), C2 (factuality) and C3 (what is missing).

`conf/taxonomy/qa_feedback.yaml` says the same.
"""
