"""What every annotation tool does (tasks for one annotator out, the export back, in forms that all share), which there
are, and our own page.

The page is one HTML file an annotator with its tasks inside, which works from the disk, without a server or a network,
and saves what was marked as JSON. Data get into it without getting out of their quotes. The other tools are imported
where they are used. docs/annotation.md describes them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from importlib import import_module, resources
from pathlib import Path
from typing import Any, Protocol

from finegrained_rlhf.core.checks import as_object
from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.files import read_json, write_text
from finegrained_rlhf.report.elements.html import Html, el
from finegrained_rlhf.report.elements.page import offline_document

_SCRIPTS = ("marks.js", "keep.js", "store.js", "select.js", "view.js", "main.js")


def annotation_page(payload: Mapping[str, Any]) -> str:
    """The whole HTML document.

    The tasks stand in it as JSON in which no character can end the element that holds them; scripts put them on the
    page as text, never as HTML. The page asks for nothing: its policy forbids the browser to fetch, or to run other
    scripts.

    Args:
        payload: tasks for one annotator, as `Project.payload` makes them.

    Raises:
        DataError: it holds what JSON cannot.
    """
    try:
        data = json.dumps(payload, ensure_ascii=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise DataError(f"tasks that are no JSON: {error}") from None
    for character, escaped in (("<", "\\u003c"), (">", "\\u003e"), ("&", "\\u0026")):
        data = data.replace(character, escaped)
    script = "\n".join(_asset(name) for name in _SCRIPTS)
    tasks = el("script", Html(data), type="application/json", id="tasks")
    return offline_document(page_title(payload), _asset("annotate.css"), script, [el("div", id="app"), tasks])


def page_title(payload: Mapping[str, Any]) -> str:
    """What an annotator is asked for, in which project, under whose name."""
    taxonomy = payload["taxonomy"]
    tasks = [("mark errors", taxonomy["categories"]), ("say what is missing", taxonomy["missing"])]
    tasks += [("correct", taxonomy["correction"]), ("compare answers", taxonomy["preferences"])]
    what = ", ".join(name for name, wanted in tasks if wanted) or "read"
    return f"{what[0].upper()}{what[1:]} – {payload['project']} ({taxonomy['name']}) – {payload['annotator']}"


def _asset(name: str) -> str:
    return resources.files("finegrained_rlhf.annotation").joinpath("assets", name).read_text(encoding="utf-8")


class OwnPage:
    """See `AnnotationTool`."""

    def write_tasks(self, directory: Path, payload: Mapping[str, Any]) -> list[Path]:
        """One HTML file."""
        path = directory / f"annotate_{re.sub(r'[^A-Za-z0-9_-]', '_', payload['annotator'])}.html"
        write_text(path, annotation_page(payload))
        return [path]

    def read_export(self, path: Path, payload: Mapping[str, Any] | None) -> dict[str, Any]:
        """The page saves the form that all tools share."""
        return dict(as_object(read_json(path), "(export)"))


class AnnotationTool(Protocol):
    """A tool in which people annotate."""

    def write_tasks(self, directory: Path, payload: Mapping[str, Any]) -> list[Path]:
        """Write the files that the tool needs for one annotator into a directory.

        Args:
            directory: that is there.
            payload: of `Project.payload`.
        """
        ...

    def read_export(self, path: Path, payload: Mapping[str, Any] | None) -> dict[str, Any]:
        """An export in the form that all tools share, offsets and texts as the tool gives them.

        Args:
            path: the file that the tool exported.
            payload: what the tool was given; None where the export itself names its annotator.

        Raises:
            DataError: the file is damaged, or holds what the tool should not have let happen.
        """
        ...


TOOLS = {"page": "tools.OwnPage", "label_studio": "label_studio.LabelStudio", "potato": "potato.Potato"}


def tool_named(name: str) -> AnnotationTool:
    """The tool of this name.

    Raises:
        ConfigError: there is none.
    """
    if name not in TOOLS:
        raise ConfigError(f"tool: expected one of {', '.join(TOOLS)}, got {name!r}")
    module, _, kind = TOOLS[name].rpartition(".")
    made: AnnotationTool = getattr(import_module(f"{__package__}.{module}"), kind)()
    return made
