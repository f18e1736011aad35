"""An annotation project: items, a taxonomy, and who annotates what in which order, in one directory.

`finegrained make-annotation-tasks` makes one of a policy's outputs. What annotators are told is a page of guidelines,
made of a taxonomy.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from finegrained_rlhf.annotation.items import (
    AnnotationItem,
    ItemSelection,
    RandomSelection,
    SpanSuggester,
    choose_items,
    item_row,
    parse_item,
    suggestion_row,
)
from finegrained_rlhf.annotation.tools import tool_named
from finegrained_rlhf.core.checks import get_field, records_by_id, require, require_text
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import atomic_directory, read_json, read_jsonl, write_json, write_jsonl, write_text
from finegrained_rlhf.core.markers import InputFile, OutputDirectory, Seed, at_least, at_most
from finegrained_rlhf.core.seeding import stable_hash
from finegrained_rlhf.dialogue.records import cut_passages
from finegrained_rlhf.feedback.outputs import OutputRecord, passages_to_lists, read_outputs
from finegrained_rlhf.feedback.reading import read_feedback
from finegrained_rlhf.feedback.records import FeedbackRecord
from finegrained_rlhf.feedback.taxonomy import QA_FEEDBACK, Category, ErrorType, MissingType, Taxonomy
from finegrained_rlhf.report.elements.html import Html, el, join
from finegrained_rlhf.report.elements.page import PageSection, page, table
from finegrained_rlhf.text.segmentation import DEFAULT_SEGMENTER, Segmenter, SpacySegmenter

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
        file = path.with_name("items.jsonl")
        items = records_by_id(read_jsonl(file), lambda row, _: parse_item(row), file)
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
    single = [item for item in items if item.role == "single"]
    import numpy as np

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


_STYLE = ".swatch{display:inline-block;width:1em;height:1em;border-radius:3px;vertical-align:-2px;margin-right:.4em}"
_UNITS = {
    "sub_sentence": "Mark the shortest words that hold the error; one piece of information and one type each.",
    "sentence": "Mark the words that hold the error; what counts later is the sentence that they stand in.",
    "response": "Any mark counts for the answer as a whole.",
    "own": "Mark the step, or the piece, that holds the error.",
}


def guidelines_page(taxonomy: Taxonomy, project: str) -> str:
    """A whole HTML document: what to mark, in which order, and what to do beside it."""
    categories = list(taxonomy.categories.values())
    order = el(
        "p",
        "Marks do not overlap. Where two kinds of error fall on the same words, mark the one that stands first here: ",
        ", then ".join(category.title or category.name for category in categories),
        ".",
    )
    sections = [_category(category) for category in categories]
    if taxonomy.missing:
        rows = [_row(kind, ()) for kind in taxonomy.missing.values()]
        lead = "Highlight the sentences of the passages that the answer should have used and did not."
        sections.append(PageSection("missing", "What is missing", lead, table(["type", "key", "meaning"], rows)))
    steps = [el("li", text) for text in _steps(taxonomy)]
    sections.append(PageSection("steps", "Step by step", "", el("ol", *steps)))
    header = join(el("h1", f"Guidelines: {project}"), order if len(categories) > 1 else None)
    return page(f"Guidelines: {project}", header, sections, _STYLE)


def _category(category: Category) -> PageSection:
    rows = [
        _row(
            kind, [name for name, needed in (("evidence", kind.needs_evidence), ("quote", kind.needs_quote)) if needed]
        )
        for kind in category.types.values()
    ]
    body = table(["type", "key", "meaning"], rows)
    return PageSection(category.name, category.title or category.name, _UNITS[category.density], body)


def _row(kind: ErrorType | MissingType, needs: Sequence[str]) -> list[Html | str]:
    needed = ", ".join(needs)
    meaning = f"{kind.description} (name the {needed})" if needed else kind.description
    swatch = el("span", class_="swatch", style=f"background:{kind.colour}")
    return [join(swatch, kind.label), el("kbd", kind.key), meaning]


def _steps(taxonomy: Taxonomy) -> list[str]:
    steps = ["Read the question, the passages where there are any, and the answer."]
    if taxonomy.categories:
        steps.append("Mark the errors; tick that there is none only after you have looked for each type.")
    if taxonomy.missing:
        steps.append("Highlight what is missing; tick that nothing is only after you have read all passages.")
    if taxonomy.correction:
        steps.append(
            "Correct the answer with as few changes as you can; leave it empty where nothing of it can be kept."
        )
    if taxonomy.preferences and taxonomy.comparison == "pairs":
        steps.append("Say of each pair of answers which is better, all errors weighed, or that they are equally good.")
    elif taxonomy.preferences:
        steps.append("Rank the answers, all errors weighed; answers that are equally good share a place.")
    return steps


_IN_PATHS = re.compile(r"[/\\\x00-\x1f\x7f]")
_OUR_FILES = re.compile(
    r"\..*|items\.jsonl|manifest\.json|guidelines\.html"
    r"|annotator_\d+/(annotate_[^/]*\.html|tasks\.json|label_config\.xml|config\.yaml)"
)


@dataclass(frozen=True, kw_only=True)
class MakeAnnotationTasks(Settings):
    """Choose outputs, deal them out to annotators, and write the files of a tool.

    Writes `items.jsonl`, `manifest.json`, `guidelines.html` and a directory an annotator.

    Attributes:
        outputs: JSON lines of outputs (`finegrained sample-outputs`).
        output_dir: directory of the project; made whole or not at all.
        annotators: their names.
        project: name of the project; None takes that of `output_dir`.
        tool: `page` (a file that works from the disk) or `label_studio`.
        taxonomy: what is marked.
        overlap: share of the items that everybody annotates, in [0, 1].
        qualification: feedback file of records that everybody annotates first; it is known what is right.
        count: how many items are chosen; None takes all.
        select: what chooses them.
        random_share: of the chosen items, by chance alone; at least 0.3.
        reference: whether people are shown the reference answer, where there is one.
        preannotate: suggests spans, on a random half of the items that one annotator sees alone: on the rest, and on
            overlap and qualification items, never; None suggests nothing.
        segmenter: cuts passages that are one text into sentences, so that people can point at them.
        seed: of everything random.
    """

    outputs: InputFile
    output_dir: OutputDirectory
    annotators: Sequence[str]
    project: str | None = None
    tool: str = "page"
    taxonomy: Taxonomy = QA_FEEDBACK
    overlap: Annotated[float, at_least(0), at_most(1)] = 0.1
    qualification: InputFile | None = None
    count: int | None = None
    select: ItemSelection = field(default_factory=RandomSelection)
    random_share: float = 0.3
    reference: bool = True
    preannotate: SpanSuggester | None = None
    segmenter: str = DEFAULT_SEGMENTER
    seed: Seed = 0

    def __post_init__(self) -> None:
        names = list(self.annotators)
        if not names or not all(name.strip() for name in names) or len(set(names)) < len(names):
            raise ConfigError(f"annotators: expected one name or more, each once, got {names}")
        if paths := [name for name in names if _IN_PATHS.search(name) or not name.strip(". ")]:
            raise ConfigError(f"annotators: {paths[0]!r} is a path; expected a name without / and \\")
        if not isinstance(self.select, ItemSelection):
            raise ConfigError(f"select: {type(self.select).__name__} is no selection of items (name, order)")
        if not isinstance(self.preannotate, SpanSuggester | None):
            raise ConfigError(f"preannotate: {type(self.preannotate).__name__} suggests no spans (suggest)")
        tool_named(self.tool)

    def run(self) -> Project:
        """Choose, deal out, write; prints what was made.

        Raises:
            DataError: outputs or the qualification file are missing or damaged, every output is empty, or `output_dir`
                holds something else than tasks, such as what people did in them.
        """
        _refuse_other_files(Path(self.output_dir))
        items = self._chosen()
        items = self._with_suggestions(self._with_roles(items))
        items = [*self._qualification(items), *items]
        name = self.project or Path(self.output_dir).name
        dealt = assign(items, list(self.annotators), self.seed)
        project = Project(name, self.taxonomy, {item.id: item for item in items}, dealt)
        if known := id_in(Path(self.output_dir)):
            project = replace(project, id=known)
        with atomic_directory(Path(self.output_dir)) as directory:
            project.write(directory)
            write_text(directory / "guidelines.html", guidelines_page(self.taxonomy, name))
            for number, annotator in enumerate(project.annotators):
                folder = directory / f"annotator_{number + 1}"
                folder.mkdir()
                tool_named(self.tool).write_tasks(folder, project.payload(annotator))
        for number, (annotator, rows) in enumerate(project.annotators.items()):
            print(f"{annotator}: {len(rows)} tasks -> {self.output_dir}/annotator_{number + 1}")
        return project

    def _chosen(self) -> list[AnnotationItem]:
        items, empty, segmenter = [], 0, SpacySegmenter(self.segmenter)
        for record in read_outputs(self.outputs, need_passages=self.taxonomy.reads_passages):
            if all(text.strip() for text in record.outputs):
                items.append(self._item(record, segmenter))
            else:
                empty += 1
        if not items:
            raise DataError("every record has an empty output: there is nothing to annotate", file=self.outputs)
        if empty:
            print(f"{empty} of {len(items) + empty} records left out: an output is empty")
        return choose_items(items, self.count, self.select, self.random_share, self.seed)

    def _item(self, record: OutputRecord, segmenter: Segmenter) -> AnnotationItem:
        reference = record.references[0] if self.reference and record.references else None
        marks = bool(self.taxonomy.categories or self.taxonomy.missing)
        answers = record.outputs if self.taxonomy.preferences else record.outputs[:1]
        passages = cut_passages(record.passages, segmenter.sentences)
        return AnnotationItem(record.id, record.question, passages, answers, reference, marked=0 if marks else None)

    def _with_roles(self, items: Sequence[AnnotationItem]) -> list[AnnotationItem]:
        """The same items, of which a share, drawn from those chosen by chance first, is for everybody."""
        if len(self.annotators) < 2:
            return list(items)
        count = round(self.overlap * len(items))
        drawn = sorted(_drawn(self.seed, "overlap", len(items)), key=lambda place: items[place].strategy != "random")
        shared = set(drawn[:count])
        return [replace(item, role="overlap") if i in shared else item for i, item in enumerate(items)]

    def _with_suggestions(self, items: Sequence[AnnotationItem]) -> list[AnnotationItem]:
        if self.preannotate is None:
            return list(items)
        single = [i for i, item in enumerate(items) if item.role == "single" and item.marked is not None]
        half = [single[place] for place in _drawn(self.seed, "suggestions", len(single))[: len(single) // 2]]
        suggested = self.preannotate.suggest([items[i] for i in half], self.taxonomy)
        suggestions = dict(zip(half, map(tuple, suggested), strict=True))
        return [replace(item, suggestions=suggestions.get(i, ())) for i, item in enumerate(items)]

    def _qualification(self, items: Sequence[AnnotationItem]) -> list[AnnotationItem]:
        if self.qualification is None:
            return []
        known = {item.id for item in items}
        records = read_feedback(self.qualification, self.taxonomy)
        for record in records:
            if record.id in known:
                raise DataError(f"item {record.id!r} is among the outputs too", file=self.qualification, field="id")
        return [item_of_record(record, self.taxonomy, self.reference) for record in records]


def _refuse_other_files(directory: Path) -> None:
    """Tasks are made anew in the place of tasks alone."""
    files = sorted(path for path in directory.rglob("*") if not path.is_dir()) if directory.is_dir() else []
    if other := [path for path in files if not _OUR_FILES.fullmatch(str(path.relative_to(directory).as_posix()))]:
        problem = "is no file of tasks, and making them anew would remove it: move it, or name another output_dir"
        raise DataError(problem, file=other[0])


def item_of_record(record: FeedbackRecord, taxonomy: Taxonomy, reference: bool = True) -> AnnotationItem:
    """The qualification item of a record whose feedback is known to be right."""
    answers = record.predictions if taxonomy.preferences else record.predictions[:1]
    marked = 0 if record.feedback is not None else None
    gold = record.gold if reference else None
    return AnnotationItem(record.id, record.question, record.passages, answers, gold, marked, role="qualification")


def _drawn(seed: int, purpose: str, count: int) -> list[int]:
    """The places of so many items in an order of chance."""
    import numpy as np

    return np.random.default_rng(stable_hash(seed, purpose)).permutation(count).tolist()
