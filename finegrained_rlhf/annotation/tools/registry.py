"""The tools in which people annotate, by name.

Each is imported where it is used.
"""

from __future__ import annotations

from importlib import import_module

from finegrained_rlhf.annotation.tools.protocol import AnnotationTool
from finegrained_rlhf.core.errors import ConfigError

TOOLS = {"page": "own_page.OwnPage", "label_studio": "label_studio.LabelStudio", "potato": "potato.tool.Potato"}


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
