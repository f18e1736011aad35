"""Notes of a user, listed, decided on one by one, exported and imported: what `finegrained user-notes` runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, cast, get_args

from finegrained_rlhf.core.errors import ConfigError, DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import write_text
from finegrained_rlhf.personalization.store.opening import open_memory
from finegrained_rlhf.personalization.store.protocol import Note, NoteAction, NoteDecision, UserHandle
from finegrained_rlhf.text.tables import markdown_table

_OF_NOTES = get_args(NoteAction)
_ACTIONS = ("list", *_OF_NOTES, "export", "import")


@dataclass(frozen=True)
class UserNotes(Settings):
    """List the notes of a user, decide on one of them, or write or read all that is stored of the user as JSON.

    Attributes:
        memory: FILE of a `UserMemory`, or `postgresql://…`.
        user: whose memory, by name.
        action: `list`, `correct`, `delete`, `expire`, `hold`, `release`, `export` or `import`.
        note: key of the note that is decided on, as `list` shows it; the list shows this one alone, with its history.
        set: fields of the note, for `correct`: `{preference: short}`.
        until: when the note ends, for `expire`: a date or time in UTC, as ISO 8601 writes it; None is now.
        file: JSON FILE that `export` writes, where there is none, for its owner alone, and `import` reads.
    """

    every_process: ClassVar[bool] = False

    memory: str
    user: str
    action: str = "list"
    note: str | None = None
    set: Mapping[str, Any] | None = None
    until: str | None = None
    file: str | None = None

    def __post_init__(self) -> None:
        if self.action not in _ACTIONS:
            raise ConfigError(f"action: expected one of {', '.join(_ACTIONS)}, got {self.action!r}")
        if (self.file is None) != (self.action not in ("export", "import")):
            raise ConfigError("file: expected with action export or import, and with no other")
        if self.action in _OF_NOTES:
            if self.note is None:
                raise ConfigError("note: expected the key of a note, as action=list shows it")
            self._decision(self.note)

    def _decision(self, note: str) -> NoteDecision:
        until = None
        if self.until is not None:
            try:
                at = datetime.fromisoformat(self.until)
                until = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
            except (ValueError, OverflowError):
                raise ConfigError(f"until: expected a date or time like 2027-01-31, got {self.until!r}") from None
        return NoteDecision(note, cast(NoteAction, self.action), self.set or {}, until)

    def run(self) -> list[dict[str, Any]]:
        """Do it, and print what the notes are then.

        Returns:
            The rows that were printed.

        Raises:
            DataError: there is no such memory, user or note, or a file that is in the way or not of this form.
            StoreError: the memory cannot be read or written.
        """
        memory = open_memory(self.memory)
        try:
            if self.action == "import":
                return self._rows(memory.import_user(_read(Path(self.file or "")), self.user))
            handle = memory.known(self.user)
            if handle is None:
                raise DataError("there is no such user in the memory", field="user")
            if self.action == "export":
                path = Path(self.file or "")
                if path.exists():
                    raise DataError("it is there already; expected the name of a new file", file=path)
                data = json.dumps(memory.export_user(self.user), ensure_ascii=False, indent=1)
                write_text(path, data + "\n", 0o600)
            elif self.note is not None and self.action != "list":
                handle.decide(self._decision(self.note))
            return self._rows(handle)
        finally:
            memory.close()

    def _rows(self, handle: UserHandle) -> list[dict[str, Any]]:
        """The notes, or the versions of one note, the latest last, a row each."""
        notes = handle.notes(unused=True)
        if self.note is not None:
            notes = [*handle.history(self.note), *(note for note in notes if note.key == self.note)]
            if not notes:
                raise DataError("there is no such note of this user", record=self.note, field="note")
        evidence = handle.evidence()
        rows = [
            _row(note, [event for version, event in evidence.get(note.key, []) if version == note.version])
            for note in notes
        ]
        print(markdown_table(rows, list(rows[0])) if rows else "no notes")
        return rows


def _row(note: Note, evidence: list[int]) -> dict[str, Any]:
    return {
        "note": json.dumps(note.key)[1:-1],
        "version": note.version,
        "state": note.state,
        "valid from": _time(note.valid_from),
        "valid to": _time(note.valid_to),
        "events": ", ".join(map(str, evidence)),
        "body": json.dumps({name: value for name, value in note.body.items() if name != "encoder"}),
    }


def _time(at: float | None) -> str:
    return "" if at is None else datetime.fromtimestamp(at, UTC).isoformat(" ", "seconds")


def _read(path: Path) -> Any:
    """The JSON of a file.

    Raises:
        DataError: there is none, or it is no JSON.
    """
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"expected a JSON file that action=export wrote ({error})", file=path) from None
