"""Many requests to one service over HTTP: JSON in, JSON out, several at once, within a quota and patience."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import urlsplit

from finegrained_rlhf.core.errors import ConfigError, FineGrainedError
from finegrained_rlhf.core.fields import Settings
from finegrained_rlhf.core.generation.outcomes import FailedReplyError, ReplyError
from finegrained_rlhf.core.markers import above, at_least, harmless
from finegrained_rlhf.runtime.remote.answers import (
    BUSY,
    UnintelligibleAnswer,
    excerpt,
    json_object,
    retry_after,
    stream_choices,
    wait_before,
)

logger = logging.getLogger(__name__)
_JSON = {"Content-Type": "application/json"}
_OF_THE_SERVICE = frozenset({401, 403, 404, 405})
"""Refusals that every request would get."""
_TRIES_OF_AN_ITEM = 5
_NOT_IN_TIME = "no answer in time"
"""How often a service that answers others may fail at one request before that request is set aside."""
_WARNS_EVERY_S = 30.0
"""Seconds from one line that says that a service is waited for to the next."""
_KEPT_S = 60.0
"""Seconds that a connection without a request is kept."""
_STARTING = threading.Lock()
_RUN = 24  # equal bytes that make a quotation


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


class RemoteError(FineGrainedError):
    """A service cannot be reached, stays busy, refuses a request, or answers what cannot be understood."""


@dataclass(frozen=True)
class RemoteConfig(Settings):
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
        longest_answer_mib: most MiB (2^20 bytes) of an answer that are read; a longer one is cut off and is none.
    """

    url: str
    key_variable: Annotated[str | None, harmless] = None
    concurrency: Annotated[int, at_least(1), harmless] = 8
    items_per_s: Annotated[float | None, above(0), harmless] = None
    burst: Annotated[int, at_least(1), harmless] = 1
    timeout_s: Annotated[float, above(0), harmless] = 60.0
    budget_s: Annotated[float, above(0), harmless] = 600.0
    backoff_s: Annotated[float, above(0), harmless] = 0.5
    longest_wait_s: Annotated[float, above(0), harmless] = 30.0
    longest_answer_mib: Annotated[float, above(0)] = 8.0

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError("url: expected http://HOST… or https://HOST…")
        if parts.username is not None or parts.query:
            raise ConfigError("url: expected no user, password or key in it; name the variable of a key: key_variable")

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
        take: is given the pieces of an answer that comes as a stream of events; it is asked for once that has begun.
    """

    body: Mapping[str, Any]
    items: int = 1
    take: Callable[[str], None] | None = None


class _TooLong(Exception):
    """An answer has more bytes than are read."""


class RemoteClient:
    """A service that is asked by POST, in JSON.

    A service that cannot be reached is waited for: a line says so at once, and again while it lasts. Connections are
    kept from one call of `ask` to the next; several threads may ask at once.

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
        self._answered, self._warned = 0, -_WARNS_EVERY_S
        self._loop: asyncio.AbstractEventLoop | None = None
        self._http: Any = None
        self._turn: Any = None
        self._process = 0

    def ask(
        self,
        calls: Sequence[Call],
        read: Callable[[dict[str, Any]], Any],
        keep: Callable[[int, Any], None],
        fail: Callable[[int, ReplyError], None] | None = None,
    ) -> None:
        """Send every call until it is answered; `begin`, and wait. Arguments and errors are those of `begin`."""
        self.begin(calls, read, keep, fail)()

    def begin(
        self,
        calls: Sequence[Call],
        read: Callable[[dict[str, Any]], Any],
        keep: Callable[[int, Any], None],
        fail: Callable[[int, ReplyError], None] | None = None,
    ) -> Callable[[], None]:
        """Send every call until it is answered, and wait for none.

        Args:
            calls: what to ask.
            read: makes of an answer what is wanted of it; one of which it raises `UnintelligibleAnswer` is asked for
                again, one of which it raises `ReplyError` is not.
            keep: takes the number of a call and what was read, as soon as it is there. It runs in another thread, as do
                `read` and `fail`.
            fail: takes the number of a call that has no answer while others may have one, and why: what `read` raised,
                or `FailedReplyError` where the service refuses that request, answers it with more than is read, or
                fails at it again and again while it answers others. None makes it the end of all.

        Returns:
            A function that waits for all answers; it raises the errors below.

        Raises:
            RemoteError: unreachable, busy or unintelligible until the patience was spent; or a request is refused. What
                was answered until then has been kept.
            ConfigError: the key is refused.
        """
        if not calls:
            return lambda: None
        with _STARTING:
            if self._loop is None or self._process != os.getpid():  # a forked process has none of its threads
                self._start()
            assert self._loop is not None
            asked = asyncio.run_coroutine_threadsafe(self._ask(self._http, calls, read, keep, fail), self._loop)

        def wait() -> None:
            try:
                asked.result()
            finally:
                asked.cancel()  # where this thread was interrupted

        return wait

    def _start(self) -> None:
        """Make the client, whose connections are kept, and the loop in which it lives, a thread of its own."""
        import httpx

        most = self.config.concurrency
        limits = httpx.Limits(max_connections=most, max_keepalive_connections=most, keepalive_expiry=_KEPT_S)
        self._http = httpx.AsyncClient(headers=self._headers, timeout=self.config.timeout_s, limits=limits)
        self._loop, self._turn, self._process = asyncio.new_event_loop(), asyncio.Lock(), os.getpid()
        threading.Thread(target=self._loop.run_forever, name="remote_client", daemon=True).start()
        weakref.finalize(self, self._loop.call_soon_threadsafe, self._loop.stop)

    async def _ask(
        self,
        http: Any,
        calls: Sequence[Call],
        read: Callable[[dict[str, Any]], Any],
        keep: Callable[[int, Any], None],
        fail: Callable[[int, ReplyError], None] | None,
    ) -> None:
        waiting = iter(enumerate(calls))

        async def work() -> None:
            for number, call in waiting:
                try:
                    answer = await self._answer(http, call, read, alone=fail is not None)
                except ReplyError as error:
                    if fail is None:
                        raise RemoteError(f"{self.config.url}: {error}") from None
                    fail(number, error)
                else:
                    keep(number, answer)

        tasks = [asyncio.create_task(work()) for _ in range(min(self.config.concurrency, len(calls)))]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _answer(self, http: Any, call: Call, read: Callable[[dict[str, Any]], Any], alone: bool) -> Any:
        """The answer to a call; with `alone`, its failure may be its own and no end of the others."""
        content = json.dumps(call.body).encode()
        tries, at_it, began, answered = 0, 0, 0.0, self._answered
        while True:
            await self._bucket.take(call.items, self._turn)
            began = began or time.monotonic()
            status, answer, retry_after_s = await self._post(http, content, call.take)
            reason = answer if isinstance(answer, str) else ""
            if isinstance(answer, bytes) and 200 <= status < 300:
                try:
                    value = read(json_object(answer))
                except UnintelligibleAnswer as error:
                    reason = str(error)
                except ReplyError:
                    self._answered += 1
                    raise
                else:
                    self._answered += 1
                    return value
            elif isinstance(answer, bytes):
                reason = f"status {status}, {excerpt(answer)}"
                if status not in BUSY:
                    self._refused(status, reason, answer, content)
            tries += 1
            at_it += status == 500 or 200 <= status < 300 or answer == _NOT_IN_TIME
            seconds = wait_before(tries, self.config.backoff_s, self.config.longest_wait_s, retry_after_s)
            if retry_after_s is not None:
                self._bucket.close(seconds)
            spent = time.monotonic() - began
            over = spent + seconds > self.config.budget_s
            if over or (alone and at_it >= _TRIES_OF_AN_ITEM and self._answered):
                tried = f"given up after {tries} {'try' if tries == 1 else 'tries'} in {spent:.0f} s"
                if alone and (not over or self._answered > answered):
                    raise FailedReplyError(f"{tried}, the last one: {_without_texts(reason, status)}", reason)
                raise RemoteError(f"{self.config.url}: {tried}, the last one: {reason}")
            self._say(reason, tries, self.config.budget_s - spent)
            await asyncio.sleep(seconds)

    async def _post(
        self, http: Any, content: bytes, take: Callable[[str], None] | None
    ) -> tuple[int, bytes | str, float | None]:
        """One request: its status, its answer or why there is none, and the seconds that are asked for."""
        import httpx

        given: list[str] = []
        try:
            async with (
                asyncio.timeout(self.config.timeout_s),
                http.stream("POST", self.config.url, content=content, headers=_JSON) as response,
            ):
                answer = self._without_key(await self._body(response, take, given))
        except _TooLong:
            limit = f"{self.config.longest_answer_mib:g} MiB (longest_answer_mib)"
            raise FailedReplyError(f"an answer of more than {limit} is not read") from None
        except (TimeoutError, httpx.RequestError) as error:
            if given:
                raise FailedReplyError("an answer that broke off", "".join(given)) from None
            if isinstance(error, TimeoutError | httpx.TimeoutException):
                return 0, _NOT_IN_TIME, None
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                raise ConfigError(f"{self.config.url}: its certificate is not trusted ({error})") from None
            return 0, str(error) or type(error).__name__, None
        return response.status_code, answer, retry_after(response.headers.get("Retry-After"))

    async def _body(self, response: Any, take: Callable[[str], None] | None, given: list[str]) -> bytes:
        """The answer; of a stream of events the answer that their pieces make, which are taken and `given`."""
        if take is not None and response.headers.get("Content-Type", "").startswith("text/event-stream"):
            ended: str | None = None
            async for line in response.aiter_lines():
                ended = ended or ("stop" if line.strip() == "data: [DONE]" else None)
                choices = stream_choices(line)
                if choices and choices[0].get("finish_reason"):
                    ended = choices[0]["finish_reason"]
                piece = (choices[0].get("delta") or {}).get("content") if choices else None
                if isinstance(piece, str) and piece:
                    given.append(piece)
                    take(piece)
                    if sum(map(len, given)) > self.config.longest_answer_mib * 2**20:
                        raise _TooLong
            if ended is None:
                raise FailedReplyError("an answer that broke off", "".join(given))
            message = {"role": "assistant", "content": "".join(given)}
            return json.dumps({"choices": [{"finish_reason": ended, "message": message}]}).encode()
        parts, size = [], 0
        async for part in response.aiter_bytes():
            size += len(part)
            if size > self.config.longest_answer_mib * 2**20:
                raise _TooLong
            parts.append(part)
        return b"".join(parts)

    def _say(self, reason: str, tries: int, left_s: float) -> None:
        """Say that the service is waited for: a refused connection at once, anything else from the third try on."""
        now = time.monotonic()
        unreachable = not reason.startswith(("status", "an answer", "no answer"))
        if now - self._warned < _WARNS_EVERY_S or not (unreachable or tries > 2):
            return
        self._warned = now
        what = "cannot be reached" if unreachable else "gives no answer that can be used"
        logger.warning(
            "%s %s (%s): tried again for another %.0f s (budget_s=%g)",
            self.config.url,
            what,
            reason,
            max(left_s, 0.0),
            self.config.budget_s,
        )

    def _refused(self, status: int, reason: str, answer: bytes, content: bytes) -> None:
        message = f"{self.config.url}: the request was refused: {reason}"
        if status in (401, 403):
            where = f"the key is that of {self.config.key_variable}" if self._key else "no key was given: key_variable"
            raise ConfigError(f"{message}; {where}")
        if status in _OF_THE_SERVICE:
            raise RemoteError(message)
        quotes = _quotes(answer, content)
        raise FailedReplyError(f"the request was refused: {f'status {status}' if quotes else reason}", reason)

    def _without_key(self, answer: bytes) -> bytes:
        """An answer in which the key, should the service repeat it, is struck out before anything else is done."""
        return answer if self._key is None else answer.replace(self._key.encode(), b"[key]")


def _without_texts(reason: str, status: int) -> str:
    """Why there is no answer, without what an answer says."""
    return f"status {status}" if reason.startswith("status") else reason.partition(":")[0]


def _quotes(answer: bytes, content: bytes) -> bool:
    """Whether a refusal repeats some of the request's texts, so that it is not for a log."""
    answer = answer[:2000]
    runs = (answer[start : start + _RUN] for start in range(max(len(answer) - _RUN + 1, 0)))
    return any(run in content for run in runs)
