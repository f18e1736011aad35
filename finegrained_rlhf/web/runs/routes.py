"""Routes of the section "Runs"."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from finegrained_rlhf.web.page import Section, render

router = APIRouter()
SECTION = Section("Runs", "/runs", router)


@router.get("/runs")
def runs(request: Request) -> HTMLResponse:
    """The table of runs."""
    return render(request, "runs/table.html")
