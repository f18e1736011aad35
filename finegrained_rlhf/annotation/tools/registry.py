"""What every annotation tool does (tasks for one annotator out, the export back, in forms that all share), and which
there are.

Each is imported where it is used. docs/annotation.md describes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from finegrained_rlhf.core.errors import ConfigError


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


TOOLS = {"page": "own_page.OwnPage", "label_studio": "label_studio.LabelStudio", "potato": "potato.Potato"}


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
