"""Reading exports of annotation tools: what `finegrained read-annotations` runs.

Some faults are repaired and counted, others are refused. Refusals name project, task, annotator and region; nothing
is guessed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from finegrained_rlhf.annotation.annotations import Annotation, disjoint, located, write_annotations
from finegrained_rlhf.annotation.items import AnnotationItem
from finegrained_rlhf.annotation.project import EXPORT_FORMAT, Assignment, Project
from finegrained_rlhf.annotation.tools import TOOLS, tool_named
from finegrained_rlhf.core.checks import (
    as_flag,
    as_index,
    as_list,
    as_object,
    get_field,
    is_number,
    require,
    require_text,
)
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import InputFile, OutputFile
from finegrained_rlhf.feedback.records import (
    FIRST,
    SECOND,
    TIE,
    MissingInfo,
    SpanError,
    pair_order,
    ranking_preferences,
)

STATUSES = ("done", "draft", "skipped")


@dataclass
class Imported:
    """What came of exports.

    Attributes:
        annotations: of tasks that are done or were skipped.
        repairs: what was put right, and how often.
        flags: what looks odd and was left as it is, and how often.
        drafts: tasks that were begun and not finished: they count as nothing.
    """

    annotations: list[Annotation] = field(default_factory=list)
    repairs: Counter[str] = field(default_factory=Counter)
    flags: Counter[str] = field(default_factory=Counter)
    drafts: int = 0


def import_export(export: Any, project: Project, tool: str, strict: bool, into: Imported) -> None:
    """Add an annotator's export.

    Args:
        export: a JSON object as the tools give it.
        project: whose tasks these are.
        tool: its name.
        strict: refuse spans that overlap.
        into: takes annotations and counts.

    Raises:
        DataError: the export is damaged or of another project, or breaks a rule; names task, annotator and region.
    """
    document = as_object(export, "(export)")
    form = document.get("format")
    require(form == EXPORT_FORMAT, f"expected {EXPORT_FORMAT!r}, got {form!r}", "format")
    name = get_field(document, "project")
    require(name == project.name, f"expected project {project.name!r}, got {name!r}", "project")
    annotator = require_text(get_field(document, "annotator"), "annotator")
    require(annotator in project.annotators, f"project {project.name} has no annotator {annotator!r}", "annotator")
    version = get_field(document, "guideline_version")
    expected = project.guideline_version
    require(version == expected, f"other guidelines: expected {expected!r}, got {version!r}", "guideline_version")
    tasks = {one.item: one for one in project.annotators[annotator]}
    names: set[str] = set()
    for place, row in enumerate(as_list(get_field(document, "tasks"), "tasks")):
        task = f"project {project.name}, annotator {annotator}, task {_task_name(row, place)}"
        try:
            item = require_text(get_field(as_object(row, f"tasks[{place}]"), "item"), "item")
            require(item in tasks, "is not among this annotator's tasks", "item")
            require(item not in names, "occurs twice", "item")
            names.add(item)
            _import_task(row, project.items[item], tasks[item], project, annotator, tool, strict, into)
        except DataError as error:
            raise error.at(record=task) from None


def _task_name(row: Any, place: int) -> str:
    return repr(row["item"]) if isinstance(row, Mapping) and "item" in row else f"number {place}"


def _import_task(
    row: Mapping[str, Any],
    item: AnnotationItem,
    assignment: Assignment,
    project: Project,
    annotator: str,
    tool: str,
    strict: bool,
    into: Imported,
) -> None:
    require(
        get_field(row, "hash") == item.digest,
        "its text is not the one that was given out: it was edited, or imported anew from other data",
        "hash",
    )
    order = tuple(as_list(get_field(row, "order"), "order"))
    require(order == assignment.order, f"expected {list(assignment.order)}, got {list(order)}", "order")
    status = get_field(row, "status")
    require(status in STATUSES, f"expected one of {', '.join(STATUSES)}, got {status!r}", "status")
    if status == "draft":
        into.drafts += 1
        return
    seconds = row.get("seconds")
    require(seconds is None or (is_number(seconds) and seconds >= 0), f"expected seconds, got {seconds!r}", "seconds")
    shown = as_object(row.get("suggestions") or {}, "suggestions")
    common: dict[str, Any] = {
        "item": item.id,
        "annotator": annotator,
        "tool": tool,
        "guideline_version": project.guideline_version,
        "seconds": seconds,
        "answer": item.marked,
        "order": order,
        "suggestions_shown": as_index(shown.get("shown", 0), "suggestions.shown"),
        "suggestions_accepted": as_index(shown.get("accepted", 0), "suggestions.accepted"),
    }
    if status == "skipped":
        into.annotations.append(Annotation(**common, skipped=True))
        return
    marks: dict[str, Any] = {}
    if item.marked is not None:
        marks = _marks(row, item, item.answers[item.marked], project, strict, into)
    if project.taxonomy.preferences and len(item.answers) > 1:
        marks |= _compared(row, item, order)
    into.annotations.append(Annotation(**common, **marks))


def _marks(
    row: Mapping[str, Any], item: AnnotationItem, text: str, project: Project, strict: bool, into: Imported
) -> dict[str, Any]:
    taxonomy = project.taxonomy
    rows = as_list(get_field(row, "spans"), "spans")
    errors: tuple[SpanError, ...] = ()
    if taxonomy.categories:
        spans = [
            _span(as_object(one, f"spans[{i}]"), f"spans[{i}]", item, text, project, into) for i, one in enumerate(rows)
        ]
        errors = disjoint(spans, text, taxonomy, strict, into.repairs)
        ticked = bool(as_flag(row.get("no_error"), "no_error"))
        require(not (ticked and errors), "'no error' is ticked, and spans are marked", "no_error")
        require(ticked or bool(errors), "no span is marked, and 'no error' is not ticked", "no_error")
    missing = _missing(row, item, project)
    correction = row.get("correction")
    if taxonomy.correction:
        require_text(correction, "correction", empty=True)
        wrong = bool(errors or missing)
        into.flags["correction equal to the answer, though errors are marked"] += correction == text and wrong
        into.flags["correction unlike the answer, though no error is marked"] += correction != text and not wrong
    return {"errors": errors, "missing": missing, "correction": correction if taxonomy.correction else None}


def _span(
    one: Mapping[str, Any], at: str, item: AnnotationItem, text: str, project: Project, into: Imported
) -> SpanError:
    name = require_text(get_field(one, "type", f"{at}."), f"{at}.type")
    types = project.taxonomy.error_types
    require(name in types, f"unknown type {name!r}, expected one of {', '.join(types)}", f"{at}.type")
    start, end = (as_index(get_field(one, key, f"{at}."), f"{at}.{key}") for key in ("start", "end"))
    quoted = get_field(one, "text", f"{at}.")
    require(isinstance(quoted, str), f"expected text, got {quoted!r}", f"{at}.text")
    try:
        start, end = located(text, start, end, quoted, into.repairs)
    except DataError as error:
        raise DataError(error.problem, field=f"{at}.{error.field}") from None
    evidence = tuple(
        _place(place, item, f"{at}.evidence[{i}]")
        for i, place in enumerate(as_list(one.get("evidence") or [], f"{at}.evidence"))
    )
    if types[name].needs_evidence and not evidence:
        into.flags[f"{name} without evidence"] += 1
    note = one.get("note")
    require(note is None or isinstance(note, str), f"expected text, got {note!r}", f"{at}.note")
    if types[name].needs_quote and not note:
        into.flags[f"{name} without a quote"] += 1
    return SpanError(start, end, name, note, evidence)


def _place(place: Any, item: AnnotationItem, at: str) -> tuple[int, int]:
    pair = as_list(place, at)
    require(len(pair) == 2, f"expected [passage, sentence], got {pair}", at)
    passage, sentence = (as_index(number, at) for number in pair)
    _check_place(passage, sentence, item, at)
    return passage, sentence


def _check_place(passage: int, sentence: int, item: AnnotationItem, at: str) -> None:
    there = 1 <= passage <= len(item.passages) and sentence <= len(item.passages[passage - 1].sentences)
    require(there, f"there is no sentence {sentence} of passage {passage}", at)


def _missing(row: Mapping[str, Any], item: AnnotationItem, project: Project) -> tuple[MissingInfo, ...]:
    types = project.taxonomy.missing
    if not types or not item.passages:
        return ()
    missing = []
    for i, one in enumerate(as_list(get_field(row, "missing"), "missing")):
        at = f"missing[{i}]"
        gap = as_object(one, at)
        name = require_text(get_field(gap, "type", f"{at}."), f"{at}.type")
        require(name in types, f"unknown type {name!r}, expected one of {', '.join(types)}", f"{at}.type")
        passage = as_index(get_field(gap, "passage", f"{at}."), f"{at}.passage")
        sentences = as_list(get_field(gap, "sentences", f"{at}."), f"{at}.sentences")
        require(bool(sentences), "expected at least one sentence, got none", f"{at}.sentences")
        numbers = tuple(as_index(number, f"{at}.sentences") for number in sentences)
        for number in numbers:
            _check_place(passage, number, item, f"{at}.sentences")
        missing.append(MissingInfo(name, passage, numbers))
    ticked = bool(as_flag(row.get("nothing_missing"), "nothing_missing"))
    require(not (ticked and missing), "'nothing is missing' is ticked, and something is marked", "nothing_missing")
    require(ticked or bool(missing), "nothing is marked, and 'nothing is missing' is not ticked", "nothing_missing")
    return tuple(dict.fromkeys(missing))


def _compared(row: Mapping[str, Any], item: AnnotationItem, order: Sequence[int]) -> dict[str, Any]:
    """Preferences, of a ranking or pair by pair, in the item's own order of answers."""
    answers = len(item.answers)
    if row.get("preferences") is not None:
        require(row.get("ranking") is None, "expected a ranking or preferences, got both", "ranking")
        values = as_list(row["preferences"], "preferences")
        pairs = pair_order(answers)
        require(len(values) == len(pairs), f"expected {len(pairs)} judgements, got {len(values)}", "preferences")
        for i, value in enumerate(values):
            known = value is None or (value in (TIE, FIRST, SECOND) and not isinstance(value, bool))
            require(known, f"expected 0, 1, 2 or null, got {value!r}", f"preferences[{i}]")
        own = dict.fromkeys(pairs)
        for (i, j), value in zip(pairs, values, strict=True):
            turned = {FIRST: SECOND, SECOND: FIRST}.get(value, value) if order[i] > order[j] else value
            own[min(order[i], order[j]), max(order[i], order[j])] = turned
        return {"preferences": tuple(own.values())}
    groups = [as_list(group, "ranking") for group in as_list(get_field(row, "ranking"), "ranking")]
    shown = [[as_index(place, f"ranking[{i}]") for place in group] for i, group in enumerate(groups)]
    ranking_preferences(shown, answers)  # every answer once
    ranking = tuple(tuple(sorted(order[place] for place in group)) for group in shown if group)
    return {"preferences": ranking_preferences(ranking, answers), "ranking": ranking}


@dataclass(frozen=True)
class ReadAnnotations(Settings):
    """Check exports of a tool against their project, and write annotations, one (item, annotator) a line.

    Attributes:
        exports: files; a directory stands for the files in it. Of tools that do not name the annotator in the file
            (Label Studio), a file by annotator.
        tasks: directory of the project, as `finegrained make-annotation-tasks` wrote it.
        output: JSON-lines FILE of annotations.
        tool: which tool the exports come from.
        strict: refuse spans that overlap, instead of uniting them and letting the first category win.
    """

    exports: Sequence[InputFile] | Mapping[str, InputFile]
    tasks: InputFile
    output: OutputFile
    tool: str = "page"
    strict: bool = False

    def __post_init__(self) -> None:
        if self.tool not in TOOLS:
            raise ConfigError(f"tool: expected one of {', '.join(TOOLS)}, got {self.tool!r}")
        if not self.exports:
            raise ConfigError("exports: expected at least one file")

    def run(self) -> Imported:
        """Read all exports, or nothing; prints what was read, repaired and flagged.

        Raises:
            DataError: an export is damaged, is not of this project, or breaks a rule; nothing is written then.
        """
        project, imported = Project.read(self.tasks), Imported()
        for annotator, path in self._files():
            before = {(one.item, one.annotator) for one in imported.annotations}
            try:
                payload = None if annotator is None else project.payload(annotator)
                export = tool_named(self.tool).read_export(path, payload)
                import_export(export, project, self.tool, self.strict, imported)
                new = [(one.item, one.annotator) for one in imported.annotations[len(before) :]]
                if twice := before.intersection(new):
                    item, annotator = min(twice)
                    raise DataError(f"{annotator!r} on item {item!r} is in another export too", field="annotator")
            except DataError as error:
                raise error.at(file=path) from None
        write_annotations(self.output, imported.annotations)
        print(import_summary(imported, self.output))
        return imported

    def _files(self) -> Iterator[tuple[str | None, Path]]:
        named = self.exports.items() if isinstance(self.exports, Mapping) else ((None, name) for name in self.exports)
        for annotator, name in named:
            path = Path(name)
            files = sorted(path.glob("[!.]*")) if path.is_dir() else [path]
            if not files:
                raise DataError("there is no file in it", file=path)
            yield from ((annotator, one) for one in files)


def import_summary(imported: Imported, output: str) -> str:
    """What was imported, in lines."""
    done = sum(not one.skipped for one in imported.annotations)
    people = len({one.annotator for one in imported.annotations})
    skipped = len(imported.annotations) - done
    lines = [f"{done} annotations of {people} annotators, {skipped} skipped, {imported.drafts} drafts left out"]
    lines += [f"  repaired: {name}: {count}" for name, count in imported.repairs.items() if count]
    lines += [f"  odd: {name}: {count}" for name, count in imported.flags.items() if count]
    return "\n".join([*lines, f"-> {output}"])
