"""The annotation page of one annotator: one HTML file with its tasks inside.

Data get into a page without getting out of their quotes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources
from typing import Any

from finegrained_rlhf.core.errors import DataError
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
    return resources.files("finegrained_rlhf.annotation.page").joinpath("assets", name).read_text(encoding="utf-8")
