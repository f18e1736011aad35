"""What a configuration builds and a command runs."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol, runtime_checkable

RESERVED_KEYS = frozenset({"prepare", "settings", "overwrite", "trust"})
"""Top-level keys of a configuration that belong to what launches a job and never reach it: the steps that run before
it, free values for interpolation, whether what exists may be replaced, and which classes the reward of a run may name
beside the project's own. No job has a field of such a name, but one that decides itself what it replaces has
`overwrite`."""


@runtime_checkable
class Job(Protocol):
    """Something that a configuration describes by `_target_` and that does its work when it is run.

    Attributes:
        every_process: whether every process of a launch runs it, because it shares its work among them; else the main
            process alone does.
    """

    every_process: ClassVar[bool]

    def run(self) -> Any:
        """Do the work."""
