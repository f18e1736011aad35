"""Reading exports of annotation tools: what `finegrained read-annotations` runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from finegrained_rlhf.annotation.project.project import Project
from finegrained_rlhf.annotation.reading.annotations import write_annotations
from finegrained_rlhf.annotation.reading.rules import Imported, import_export
from finegrained_rlhf.annotation.tools.registry import TOOLS, tool_named
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.markers import InputFile, OutputFile


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
