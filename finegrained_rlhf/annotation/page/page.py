"""The annotation page of one annotator: one HTML file with its tasks inside.

Knows the page's assets and how data get into a page without getting out of their quotes. Does not know projects.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from importlib import resources
from typing import Any

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.report.elements.html import Html, el, join

_SCRIPTS = ("marks.js", "store.js", "view.js", "main.js")


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
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'; "
        "form-action 'none'"
    )
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=policy),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("meta", name="referrer", content="no-referrer"),
        el("title", f"{payload['project']} – {payload['annotator']}"),
        el("style", Html(_asset("annotate.css"))),
    )
    body = el(
        "body",
        el("div", id="app"),
        el("script", Html(data), type="application/json", id="tasks"),
        el("script", Html(script)),
    )
    return join(Html("<!DOCTYPE html>\n"), el("html", head, body, lang="en"), "\n")


def _asset(name: str) -> str:
    return resources.files("finegrained_rlhf.annotation.page").joinpath("assets", name).read_text(encoding="utf-8")
