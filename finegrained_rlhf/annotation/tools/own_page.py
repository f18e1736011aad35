"""Our own annotation page: one HTML file an annotator, which works from the disk and saves what was marked as JSON.

The page itself is `annotation.page`'s.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from finegrained_rlhf.annotation.page.page import annotation_page
from finegrained_rlhf.core.checks import as_object
from finegrained_rlhf.core.files import read_json, write_text


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
