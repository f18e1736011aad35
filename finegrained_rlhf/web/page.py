"""Sections of the application and the pages that they answer with.

A section is a module with a `router` and a `SECTION` that names its entry in the navigation; `application.SECTIONS`
lists them. Its templates extend `base.html`, escape what enters them, and hold no script and no style of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse
from fastapi.templating import Jinja2Templates

HERE = Path(__file__).parent
_templates = Jinja2Templates(directory=HERE / "templates")
_templates.env.trim_blocks = _templates.env.lstrip_blocks = True


@dataclass(frozen=True)
class Section:
    """One part of the application.

    Attributes:
        title: in the navigation.
        path: of its first page; pages below it belong to it.
        router: its routes.
    """

    title: str
    path: str
    router: APIRouter


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
