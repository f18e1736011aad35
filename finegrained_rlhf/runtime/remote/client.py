"""Many requests to one service over HTTP: JSON in, JSON out, several at once, within a quota and a limit of patience.

Knows HTTP, keys and time. Does not know what is asked: callers read the answers, and keep them as they come.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from finegrained_rlhf.core.checks import is_number
from finegrained_rlhf.core.errors import ConfigError, FineGrainedError
from finegrained_rlhf.runtime.remote.answers import (
    BUSY,
    UnintelligibleAnswer,
    excerpt,
    json_object,
    retry_after,
    wait_before,
)
from finegrained_rlhf.runtime.remote.quota import TokenBucket

_JSON = {"Content-Type": "application/json"}


class RemoteError(FineGrainedError):
    """A service cannot be reached, stays busy, refuses a request, or answers what cannot be understood."""


@dataclass(frozen=True)
class RemoteConfig:
    """Where a service is, how fast it may be asked and how long to wait for it.

    Attributes:
        url: of the service, without a key or password.
        key_variable: environment variable that holds the key, which is thereby never written down; null for a service
            without one.
        concurrency: requests under way at once, in one process.
        items_per_s: the quota: items (not requests) a second, in one process; null: none.
        burst: items that may go at once after a pause.
        timeout_s: seconds after which a request without a whole answer is given up and tried again.
        budget_s: seconds after which a request that was tried in vain is not tried again, and the run ends.
        backoff_s: seconds before the second try; doubled each time, with some chance in it.
        longest_wait_s: most seconds between two tries, also where the server asks for more.
    """

    url: str
    key_variable: str | None = None
    concurrency: int = 8
    items_per_s: float | None = None
    burst: int = 1
    timeout_s: float = 60.0
    budget_s: float = 600.0
    backoff_s: float = 0.5
    longest_wait_s: float = 30.0

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError("url: expected http://HOST… or https://HOST…")
        if parts.username is not None or parts.query:
            raise ConfigError("url: expected no user, password or key in it; name the variable of a key: key_variable")
        for name in ("concurrency", "burst"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise ConfigError(f"{name}: expected a whole number from 1 on, got {getattr(self, name)!r}")
        for name in ("items_per_s", "timeout_s", "budget_s", "backoff_s", "longest_wait_s"):
            value = getattr(self, name)
            if not (value is None and name == "items_per_s") and not (is_number(value) and value > 0):
                raise ConfigError(f"{name}: expected a number above 0, got {value!r}")

    def key(self) -> str | None:
        """The key of the service.

        Raises:
            ConfigError: its variable is not set, is empty, or holds what no header can carry.
        """
        if self.key_variable is None:
            return None
        key = os.environ.get(self.key_variable, "").strip()
        if not key or not key.isascii() or not key.isprintable():
            raise ConfigError(f"{self.url}: expected a key in the environment variable {self.key_variable}")
        return key


@dataclass(frozen=True)
class Call:
    """One request.

    Attributes:
        body: of the POST, a JSON object.
        items: that it counts for in the quota.
    """

    body: Mapping[str, Any]
    items: int = 1


class RemoteClient:
    """A service that is asked by POST, in JSON.

    Args:
        config: where it is.
        headers: the headers that carry the key, by the key; none for a service without one.

    Raises:
        ConfigError: the key is not there.
    """

    def __init__(self, config: RemoteConfig, headers: Callable[[str], Mapping[str, str]] = lambda key: {}) -> None:
        self.config = config
        self._key = config.key()
        self._headers = {"Accept": "application/json", "User-Agent": "finegrained-rlhf"}
        if self._key is not None:
            self._headers |= headers(self._key)
        self._bucket = TokenBucket(config.items_per_s, config.burst)

    def ask(
        self,
        calls: Sequence[Call],
        read: Callable[[dict[str, Any]], Any],
        keep: Callable[[int, Any], None],
    ) -> None:
        """Send every call until it is answered.

        Args:
            calls: what to ask.
            read: makes of an answer what is wanted of it; one of which it raises `UnintelligibleAnswer` is asked for
                again.
            keep: takes the number of a call and what was read, as soon as it is there.

        Raises:
            RemoteError: unreachable, busy or unintelligible until the patience was spent; or a request is refused. What
                was answered until then has been kept.
            ConfigError: the key is refused.
        """
        if not calls:
            return
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            asyncio.run(self._ask(calls, read, keep))
        else:  # in a notebook
            with ThreadPoolExecutor(1) as thread:
                thread.submit(lambda: asyncio.run(self._ask(calls, read, keep))).result()

    async def _ask(
        self, calls: Sequence[Call], read: Callable[[dict[str, Any]], Any], keep: Callable[[int, Any], None]
    ) -> None:
        import httpx

        turn, waiting = asyncio.Lock(), iter(enumerate(calls))

        async def work(http: httpx.AsyncClient, waiting: Iterator[tuple[int, Call]]) -> None:
            for number, call in waiting:
                keep(number, await self._answer(http, call, read, turn))

        workers = min(self.config.concurrency, len(calls))
        limits = httpx.Limits(max_connections=workers, max_keepalive_connections=workers)
        async with httpx.AsyncClient(headers=self._headers, timeout=self.config.timeout_s, limits=limits) as http:
            tasks = [asyncio.create_task(work(http, waiting)) for _ in range(workers)]
            try:
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _answer(self, http: Any, call: Call, read: Callable[[dict[str, Any]], Any], turn: asyncio.Lock) -> Any:
        import httpx

        content, tries, began = json.dumps(call.body).encode(), 0, 0.0
        while True:
            await self._bucket.take(call.items, turn)
            began = began or time.monotonic()
            asked = None
            try:
                async with asyncio.timeout(self.config.timeout_s):
                    response = await http.post(self.config.url, content=content, headers=_JSON)
            except (TimeoutError, httpx.TimeoutException):
                reason = "no answer in time"
            except httpx.RequestError as error:
                if "CERTIFICATE_VERIFY_FAILED" in str(error):
                    raise ConfigError(f"{self.config.url}: its certificate is not trusted ({error})") from None
                reason = str(error) or type(error).__name__
            else:
                answer = self._without_key(response.content)
                if response.is_success:
                    try:
                        return read(json_object(answer))
                    except UnintelligibleAnswer as error:
                        reason = str(error)
                else:
                    reason = f"status {response.status_code}, {excerpt(answer)}"
                    if response.status_code not in BUSY:
                        self._refused(response.status_code, reason)
                    asked = retry_after(response.headers.get("Retry-After"))
            tries += 1
            seconds = wait_before(tries, self.config.backoff_s, self.config.longest_wait_s, asked)
            if asked is not None:
                self._bucket.close(seconds)
            spent = time.monotonic() - began
            if spent + seconds > self.config.budget_s:
                tried = f"{tries} {'try' if tries == 1 else 'tries'} in {spent:.0f} s"
                message = f"{self.config.url}: given up after {tried}, the last one: {reason}"
                raise RemoteError(message)
            await asyncio.sleep(seconds)

    def _refused(self, status: int, reason: str) -> None:
        message = f"{self.config.url}: the request was refused: {reason}"
        if status in (401, 403):
            where = f"the key is that of {self.config.key_variable}" if self._key else "no key was given: key_variable"
            raise ConfigError(f"{message}; {where}")
        raise RemoteError(message)

    def _without_key(self, answer: bytes) -> bytes:
        """An answer in which the key, should the service repeat it, is struck out before anything else is done."""
        return answer if self._key is None else answer.replace(self._key.encode(), b"[key]")
