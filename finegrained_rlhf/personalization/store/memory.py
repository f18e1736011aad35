"""The memory of users in one SQLite file."""

from __future__ import annotations

from pathlib import Path

from finegrained_rlhf.personalization.store.database import Database
from finegrained_rlhf.personalization.store.records import MemoryLimits
from finegrained_rlhf.personalization.store.sql import SqlMemory


class UserMemory(SqlMemory):
    """A file in which users' events and notes are kept: a `MemoryStore`. Many processes and threads may write at once.

    When `forget` returns, the file and its log hold nothing of the user. Copies of the files, and blocks that the file
    system or the device has set free, are beyond it.

    Args:
        path: the SQLite file; it is made where there is none.
        limits: what is refused.
        durable: whether what was acknowledged survives a loss of power (a flush to disk for each write); it survives a
            kill of the process in any case.
        patience_s: seconds to wait for other processes.
        consent_required: whether nothing is stored of a user, the name neither, before `set_consent` has allowed it.
            By default users without a decision are stored: the application has asked them elsewhere.

    Raises:
        StoreError: it is another program's file, is damaged, or cannot be written.
    """

    def __init__(
        self,
        path: str | Path,
        limits: MemoryLimits | None = None,
        durable: bool = True,
        patience_s: float = 60.0,
        consent_required: bool = False,
    ) -> None:
        super().__init__(Database(path, durable, patience_s), limits, consent_required)
