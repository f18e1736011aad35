"""Errors that a user can act on.

Every error a user may cause derives from `FineGrainedError`; commands print its message as one line and exit
with status 2, without a traceback. Everything else is a bug and keeps its traceback.
"""

from __future__ import annotations

from pathlib import Path


class FineGrainedError(Exception):
    """Base class: something outside the code is wrong and the message says what was expected."""


class ConfigError(FineGrainedError):
    """A configuration value is missing, unknown or contradicts another one."""


class DataError(FineGrainedError):
    """A data file holds something other than what its format promises.

    Args:
        problem: what is wrong and what was expected, in one sentence.
        file: the file that was read.
        record: which record, counted from 0, or its id.
        field: the field inside the record, dotted (`feedback.errors[2].start`).
    """

    def __init__(
        self, problem: str, *, file: str | Path | None = None, record: int | str | None = None, field: str | None = None
    ) -> None:
        self.problem, self.file, self.record, self.field = problem, file, record, field
        where = [
            f"{name} {value}"
            for name, value in (("file", file), ("record", record), ("field", field))
            if value is not None
        ]
        super().__init__(f"{', '.join(where)}: {problem}" if where else problem)

    def at(self, *, file: str | Path | None = None, record: int | str | None = None) -> DataError:
        """The same error with the file or record filled in where it was not known yet."""
        return DataError(
            self.problem,
            file=self.file if self.file is not None else file,
            record=self.record if self.record is not None else record,
            field=self.field,
        )


class ModelError(FineGrainedError):
    """A model directory is missing, unreadable or of another architecture than the one asked for."""


class CheckpointError(FineGrainedError):
    """A checkpoint is damaged, incomplete or belongs to another run."""


class AlignmentError(FineGrainedError):
    """A text segment does not end at exactly one response token."""


class ConsistencyError(FineGrainedError):
    """A quantity that must hold by construction does not: ratio 1 before any update, rewards that add up."""
