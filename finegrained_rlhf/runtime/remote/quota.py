"""A token bucket: how fast items may be sent to a service."""

from __future__ import annotations

import asyncio
import time


class TokenBucket:
    """Lets `per_s` items a second through, and at most `burst` at once after a pause.

    Args:
        per_s: items a second; None lets all through.
        burst: how many items may go at once. A request of more items waits until so many would have come together.
    """

    def __init__(self, per_s: float | None, burst: int = 1) -> None:
        self._per_s, self._burst = per_s, float(burst)
        self._there, self._at = float(burst), time.monotonic()
        self._closed_until = 0.0

    async def take(self, items: int, turn: asyncio.Lock) -> None:
        """Wait until `items` may be sent.

        Args:
            items: of one request.
            turn: of all requests that share the bucket, so that they go in the order in which they came.
        """
        async with turn:
            while (seconds := self._missing(items)) > 0:
                await asyncio.sleep(seconds)
            self._there -= items

    def close(self, seconds: float) -> None:
        """Let nothing through for so long: the service said that it is too much."""
        self._closed_until = max(self._closed_until, time.monotonic() + seconds)

    def _missing(self, items: int) -> float:
        """Seconds until so many items are there."""
        now = time.monotonic()
        closed = self._closed_until - now
        if self._per_s is None:
            self._there = float(items)
            return closed
        most = max(self._burst, items)
        self._there, self._at = min(most, self._there + (now - self._at) * self._per_s), now
        return max(closed, (items - self._there) / self._per_s)
