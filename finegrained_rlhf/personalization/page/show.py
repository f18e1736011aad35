"""A user's memory as an HTML file: what `finegrained show-user-memory` runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from finegrained_rlhf.core.errors import DataError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.files import write_text
from finegrained_rlhf.core.markers import OutputFile, at_least
from finegrained_rlhf.personalization.page.user_page import user_page
from finegrained_rlhf.personalization.store.opening import open_memory


@dataclass(frozen=True)
class ShowUserMemory(Settings):
    """Write one HTML page about one user: notes, what they were derived from, rounds, and what each rested on.

    The page is a copy of what a user said: `forget` does not reach it.

    Attributes:
        memory: FILE of a `UserMemory`, or `postgresql://…`.
        user: whose memory, by name.
        output: HTML file.
        last: of all events, so many of the latest are shown; the curve has all.
    """

    every_process: ClassVar[bool] = False

    memory: str
    user: str
    output: OutputFile
    last: Annotated[int, at_least(1)] = 500

    def run(self) -> None:
        """Write the page and say where.

        Raises:
            DataError: there is no such memory or no such user.
            StoreError: the memory cannot be read.
        """
        memory = open_memory(self.memory)
        try:
            handle = memory.known(self.user)
            if handle is None:
                raise DataError("there is no such user in the memory", field="user")
            text = user_page(self.user, memory.consent(self.user), handle, self.last)
        finally:
            memory.close()
        write_text(Path(self.output), text)
        print(f"memory of one user: {self.output}")
