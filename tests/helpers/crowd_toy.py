"""A few users who take turns in threads, and whose names stand in prompts and notes."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from finegrained_rlhf.personalization.store.protocol import ForgottenUserError, StoreError

USERS = tuple(f"owner{number}" for number in range(4))


def named(text: str) -> set[str]:
    """The users whom a text names."""
    return set(re.findall(r"owner\d", text))


class Crowd:
    """Whose turn it is in each thread, and how many prompts there were."""

    def __init__(self) -> None:
        self._own, self._prompts = threading.local(), list[str]()

    def __len__(self) -> int:
        return len(self._prompts)

    def turn_of(self, user: str) -> None:
        """From here on this thread is a user's."""
        self._own.user = user

    def heard(self, prompt: str) -> str:
        """A prompt, which names who has the turn and nobody else."""
        assert named(prompt) == {self._own.user}, (named(prompt), self._own.user)
        self._prompts.append(self._own.user)
        return prompt

    def interleave(self, steps: int, step: Callable[[int], None]) -> None:
        """Do numbered steps in four threads; a user who was forgotten meanwhile is passed over."""

        def once(number: int) -> None:
            try:
                step(number)
            except ForgottenUserError:
                pass  # another thread was quicker
            except StoreError as error:
                assert "not yet overwritten" in str(error)

        with ThreadPoolExecutor(len(USERS)) as pool:
            list(pool.map(once, range(steps)))
