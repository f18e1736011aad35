"""What every annotation tool does: tasks for one annotator out, the export back, in the forms that all share.

docs/annotation.md describes both.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol


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
