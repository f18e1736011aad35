"""A project: items, a taxonomy, and who annotates what in which order. One directory holds it."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from finegrained_rlhf.annotation.project.items import AnnotationItem, item_row, parse_item, suggestion_row
from finegrained_rlhf.core.checks import get_field, require, require_text
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import read_json, read_jsonl, write_json, write_jsonl
from finegrained_rlhf.core.seeding import stable_hash
from finegrained_rlhf.feedback.outputs import passages_to_lists
from finegrained_rlhf.feedback.taxonomy import Taxonomy

FORMAT = "finegrained-annotation-project/1"
TASKS_FORMAT = "finegrained-annotation-tasks/1"
EXPORT_FORMAT = "finegrained-annotation-export/1"


@dataclass(frozen=True)
class Assignment:
    """An item in an annotator's list.

    Attributes:
        item: its id.
        order: the answer at each shown place, as an index into the item's answers.
    """

    item: str
    order: tuple[int, ...]


@dataclass(frozen=True)
class Project:
    """What is annotated, by whom.

    Attributes:
        name: of the project; tools show it.
        taxonomy: what is marked.
        items: by id, in the order in which they were chosen.
        annotators: each one's assignments, in the order in which they are shown.
        id: of this project alone, whatever its name: a browser keeps an annotator's work under it. A project that is
            made anew in its directory keeps it. Projects that differ in it alone are equal.
    """

    name: str
    taxonomy: Taxonomy
    items: Mapping[str, AnnotationItem]
    annotators: Mapping[str, tuple[Assignment, ...]]
    id: str = field(default_factory=lambda: secrets.token_hex(8), compare=False)

    @property
    def guideline_version(self) -> str:
        """A hash of the taxonomy: annotations under other guidelines are not mixed."""
        values = asdict(self.taxonomy)
        if values["comparison"] == "ranking":
            del values["comparison"]  # projects from before there was another one keep their version
        text = json.dumps(values, ensure_ascii=True)
        return hashlib.blake2b(text.encode("ascii"), digest_size=4).hexdigest()

    def payload(self, annotator: str) -> dict[str, Any]:
        """What a tool is given for one annotator.

        Raises:
            ConfigError: nobody of that name.
        """
        if annotator not in self.annotators:
            raise ConfigError(f"project {self.name} has no annotator {annotator!r}")
        return {
            "format": TASKS_FORMAT,
            "project": self.name,
            "project_id": self.id,
            "annotator": annotator,
            "guideline_version": self.guideline_version,
            "taxonomy": shown_taxonomy(self.taxonomy),
            "tasks": [self._task(assignment) for assignment in self.annotators[annotator]],
        }

    def _task(self, assignment: Assignment) -> dict[str, Any]:
        item = self.items[assignment.item]
        return {
            "item": item.id,
            "hash": item.digest,
            "question": item.question,
            "passages": passages_to_lists(item.passages),
            "reference": item.reference,
            "answers": [item.answers[i] for i in assignment.order],
            "order": list(assignment.order),
            "marked": None if item.marked is None else assignment.order.index(item.marked),
            "suggestions": [suggestion_row(one) for one in item.suggestions],
        }

    def write(self, directory: Path) -> None:
        """Write the two files."""
        write_jsonl(directory / "items.jsonl", [item_row(item) for item in self.items.values()])
        write_json(
            directory / "manifest.json",
            {
                "format": FORMAT,
                "project": self.name,
                "project_id": self.id,
                "guideline_version": self.guideline_version,
                "taxonomy": asdict(self.taxonomy),
                "annotators": {
                    name: [{"item": one.item, "order": list(one.order)} for one in rows]
                    for name, rows in self.annotators.items()
                },
            },
        )

    @classmethod
    def read(cls, directory: str | Path) -> Project:
        """Read what `write` wrote.

        Raises:
            DataError: a file is missing, damaged or of another format, or a list names an item that is not there.
        """
        path = Path(directory) / "manifest.json"
        manifest = read_json(path)
        if not isinstance(manifest, Mapping) or manifest.get("format") != FORMAT:
            raise DataError(f"expected format {FORMAT!r}, as finegrained make-annotation-tasks writes it", file=path)
        items: dict[str, AnnotationItem] = {}
        for number, row in enumerate(read_jsonl(path.with_name("items.jsonl"))):
            try:
                item = parse_item(row)
                require(item.id not in items, f"id {item.id!r} occurs twice", "id")
            except DataError as error:
                raise error.at(file=path.with_name("items.jsonl"), record=number) from None
            items[item.id] = item
        try:
            annotators = {
                name: tuple(Assignment(row["item"], tuple(row["order"])) for row in rows)
                for name, rows in get_field(manifest, "annotators").items()
            }
            for one in (assignment for assignments in annotators.values() for assignment in assignments):
                require(one.item in items, f"item {one.item!r} is not in items.jsonl", "annotators")
            taxonomy = Taxonomy(**get_field(manifest, "taxonomy"))
            name = require_text(get_field(manifest, "project"), "project")
            return cls(name, taxonomy, items, annotators, _id_of(manifest))
        except (KeyError, TypeError, AttributeError, ConfigError) as error:
            raise DataError(f"not a manifest of annotation tasks ({error})", file=path) from None
        except DataError as error:
            raise error.at(file=path) from None


def id_in(directory: Path) -> str | None:
    """The id of the project in a directory; None where there is none that can be read."""
    try:
        manifest = read_json(directory / "manifest.json")
        return _id_of(manifest) if isinstance(manifest, Mapping) and manifest.get("format") == FORMAT else None
    except DataError:
        return None


def _id_of(manifest: Mapping[str, Any]) -> str:
    if manifest.get("project_id") is not None:
        return require_text(manifest["project_id"], "project_id")
    text = json.dumps(manifest, ensure_ascii=True)  # from before projects had ids
    return hashlib.blake2b(text.encode("ascii"), digest_size=8).hexdigest()


def shown_taxonomy(taxonomy: Taxonomy) -> dict[str, Any]:
    """A taxonomy as tools are given it: lists in their order."""
    return {
        "name": taxonomy.name,
        "categories": [
            {
                "name": category.name,
                "title": category.title or category.name,
                "density": category.density,
                "types": [asdict(kind) for kind in category.types.values()],
            }
            for category in taxonomy.categories.values()
        ],
        "missing": [asdict(kind) for kind in taxonomy.missing.values()],
        "correction": taxonomy.correction,
        "preferences": taxonomy.preferences,
        "comparison": taxonomy.comparison,
    }


def assign(items: Sequence[AnnotationItem], annotators: Sequence[str], seed: int) -> dict[str, tuple[Assignment, ...]]:
    """Deal items out: qualification items to everybody, first; overlap items to everybody; single ones in turn.

    Behind the qualification items each annotator has an order of items, and of each item's answers, of his own.

    Args:
        items: of a project.
        annotators: their names, each once.
        seed: of the orders.
    """
    import numpy as np

    single = [item for item in items if item.role == "single"]
    generator = np.random.default_rng(stable_hash(seed, "dealing"))
    dealt = {single[place].id: turn for turn, place in enumerate(generator.permutation(len(single)).tolist())}
    assignments = {}
    for number, name in enumerate(annotators):
        own = np.random.default_rng(stable_hash(seed, "order", name))
        first = [item for item in items if item.role == "qualification"]
        rest = [
            item
            for item in items
            if item.role == "overlap" or (item.role == "single" and dealt[item.id] % len(annotators) == number)
        ]
        shown = [*first, *(rest[i] for i in own.permutation(len(rest)).tolist())]
        assignments[name] = tuple(
            Assignment(item.id, tuple(own.permutation(len(item.answers)).tolist())) for item in shown
        )
    return assignments
