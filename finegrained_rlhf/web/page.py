"""Sections of the application and the pages that they answer with.

A section is a module with a `router` and a `SECTION` that names its entry in the navigation; `application.SECTIONS`
lists them. Its templates extend `base.html`, escape what enters them, and hold no script and no style of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import HTMLResponse
from fastapi.templating import Jinja2Templates

from finegrained_rlhf.report.elements.html import escape

HERE = Path(__file__).parent


def address(path: str, **query: Any) -> str:
    """A path of the application with its query; lists give a key several times, None leaves one out."""
    kept = {key: value for key, value in query.items() if value is not None}
    return f"{path}?{urlencode(kept, doseq=True, errors='surrogateescape')}" if kept else path


_templates = Jinja2Templates(directory=HERE / "templates")
_templates.env.trim_blocks = _templates.env.lstrip_blocks = True
# Text is escaped as in offline pages, whose controls and halves of characters are visible; what is HTML stays as it is.
_templates.env.finalize = lambda value: (
    escape(value) if isinstance(value, str) and not hasattr(value, "__html__") else value
)
_templates.env.globals["address"] = address


@dataclass(frozen=True)
class Section:
    """One part of the application.

    Attributes:
        title: in the navigation.
        path: of its first page; pages below it belong to it.
        router: its routes.
        begin: called with the application before it serves, with `app.state.settings` set; keeps what the routes share
            in `app.state`.
    """

    title: str
    path: str
    router: APIRouter
    begin: Callable[[FastAPI], None] = lambda app: None


def render(request: Request, template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
    """A page of a template.

    Args:
        request: that is answered; its application knows the sections.
        template: file in `templates/`.
        status: of the answer.
        values: by name in the template. Text is escaped; `Html` of `report.elements` stays as it is.
    """
    sections: Sequence[Section] = request.app.state.sections
    here = max((s for s in sections if _within(request.url.path, s.path)), key=lambda s: len(s.path), default=None)
    context = {"sections": sections, "section": here, "directory": request.app.state.settings.directory, **values}
    return _templates.TemplateResponse(request, template, context, status_code=status)


def _within(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")
