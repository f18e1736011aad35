"""For applications that serve many users at once: agents and stores in asyncio, and learning outside of requests."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Concatenate, ParamSpec, TypeVar

from finegrained_rlhf.core.errors import ConfigError, FineGrainedError
from finegrained_rlhf.personalization.learners.base import UNLEARNT, MemoryAgent
from finegrained_rlhf.personalization.store.protocol import (
    Consent,
    Event,
    ForgottenUserError,
    MemoryStore,
    Note,
    NoteDecision,
    UserHandle,
)

_LOG = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")


class BusyError(FineGrainedError):
    """As much work waits as may wait, or the threads have ended: nothing of this was begun."""


class UserThreads:
    """Blocking work in a bounded number of threads: that of one user in turns, in the order in which it was given.

    A child of `os.fork` begins with none of its parent's work, and with threads of its own.

    Args:
        threads: at once.
        waiting: most pieces of work that wait or run; more are refused.

    Raises:
        ConfigError: no thread, or no room.
    """

    def __init__(self, threads: int = 8, waiting: int = 10_000) -> None:
        for name, value in (("threads", threads), ("waiting", waiting)):
            if value < 1:
                raise ConfigError(f"{name}: expected at least 1, got {value}")
        self._threads, self._waiting, self._closed = threads, waiting, False
        self._begin()
        _USED.add(self)

    def _begin(self) -> None:
        self._pool = ThreadPoolExecutor(self._threads, "users")
        self._lock = threading.Lock()
        self._work: dict[Hashable, deque[tuple[Future[Any], Callable[[], Any]]]] = {}
        self._room = self._waiting

    def submit(self, user: Hashable, work: Callable[[], T]) -> Future[T]:
        """Give work.

        Args:
            user: whose it is.
            work: that a thread does.

        Raises:
            BusyError: there is no room, or the threads have ended.
        """
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise BusyError("the threads have ended (close)")
            if not self._room:
                raise BusyError("as much work waits as may wait (waiting)")
            self._room -= 1
            queue = self._work.setdefault(user, deque())
            queue.append((future, work))
            if len(queue) == 1:
                self._pool.submit(self._next, user)
        return future

    def _next(self, user: Hashable) -> None:
        """Do one piece of a user's work; then others have their turn."""
        future, work = self._work[user][0]
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(work())
            except BaseException as error:  # the one who waits for it gets it
                future.set_exception(error)
        with self._lock:
            queue = self._work[user]
            queue.popleft()
            self._room += 1
            if queue:
                self._pool.submit(self._next, user)
            else:
                del self._work[user]

    def settle(self) -> None:
        """Wait until nothing waits or runs."""
        while self._work:
            time.sleep(0.005)

    def close(self) -> None:
        """Wait for what was given, and end the threads; what is given from now on is refused."""
        with self._lock:
            self._closed = True
        self.settle()
        self._pool.shutdown()


def _begin_all() -> None:
    for threads in _USED:
        threads._begin()


_USED: weakref.WeakSet[UserThreads] = weakref.WeakSet()
if hasattr(os, "register_at_fork"):  # threads do not outlive a fork, and a lock may be held by one of them
    os.register_at_fork(after_in_child=_begin_all)


class AsyncUsers:
    """Agents in asyncio: what their methods do, in threads, so that the event loop is never blocked.

        users = AsyncUsers()
        draft = await users.call(cipher.respond, "ada", context)

    Args:
        threads: in which it is done, shared by all that one process serves; None makes some.
    """

    def __init__(self, threads: UserThreads | None = None) -> None:
        self.threads = threads or UserThreads()

    async def call(self, method: Callable[Concatenate[str, P], T], user: str, *values: P.args, **keys: P.kwargs) -> T:
        """What a method gives; calls of one user in their order.

        Args:
            method: of an agent or a store, whose first argument is a user.
            user: who it is.
            *values: further arguments.
            **keys: and those by name.

        Raises:
            BusyError: as much work waits as may wait.
            FineGrainedError: what the method raises.
        """
        return await asyncio.wrap_future(self.threads.submit(user, lambda: method(user, *values, **keys)))


class AsyncUserMemory(AsyncUsers):
    """A memory of users in asyncio.

    Args:
        memory: a `UserMemory` or `PostgresMemory`.
        threads: as for `AsyncUsers`.
    """

    def __init__(self, memory: MemoryStore, threads: UserThreads | None = None) -> None:
        super().__init__(threads)
        self.memory = memory

    async def notes(self, user: str, unused: bool = False) -> list[Note]:
        """As `UserHandle.notes`; none where there is no such user."""
        return await self.call(lambda name: self.memory.reader(name).notes(unused), user)

    async def history(self, user: str, key: str | None = None) -> list[Note]:
        """As `UserHandle.history`."""
        return await self.call(lambda name: self.memory.reader(name).history(key), user)

    async def decide(self, user: str, decision: NoteDecision, key: str | None = None) -> Event:
        """As `UserHandle.decide`."""
        return await self.call(lambda name: self.memory.reader(name).decide(decision, key), user)

    async def record(
        self, user: str, key: str, kind: str, body: Mapping[str, Any], used: Mapping[str, Any] | None = None
    ) -> Event:
        """As `UserHandle.record`, of a user who is entered where there is none of that name."""
        return await self.call(lambda name: self.memory.user(name).record(key, kind, body, used), user)

    async def set_consent(self, user: str, *, store: bool, train: bool) -> Consent:
        """As `MemoryStore.set_consent`."""
        return await self.call(self.memory.set_consent, user, store=store, train=train)

    async def export_user(self, user: str) -> dict[str, Any]:
        """As `MemoryStore.export_user`."""
        return await self.call(self.memory.export_user, user)

    async def import_user(self, user: str, data: Any) -> None:
        """As `MemoryStore.import_user`."""
        await self.call(lambda name: self.memory.import_user(data, name), user)

    async def forget(self, user: str) -> bool:
        """As `MemoryStore.forget`; an agent that keeps answers or an index forgets by `call(agent.forget, user)`."""
        return await self.call(self.memory.forget, user)


class LearningWorker:
    """Learns from events that agents have written down, in threads of its own; nobody waits for it.

    An agent is told by `agent.worker = worker`. What could not be learnt is tried again, `learn_tries` of the agent in
    all, then it is set aside as ever; where the language model stays out of reach, or there is no room, the event waits
    in the log for `catch_up`.

    Args:
        threads: at once; events of one user in turns.
        waiting: most events that wait here.
        pause_s: seconds before the second try where the language model is out of reach, twice as many before the next.
    """

    def __init__(self, threads: int = 1, waiting: int = 10_000, pause_s: float = 1.0) -> None:
        self._threads, self._pause_s = UserThreads(threads, waiting), pause_s

    def put(self, agent: MemoryAgent, handle: UserHandle, event: Event) -> None:
        """Learn from an event, later."""
        try:
            self._threads.submit(handle.identity, lambda: self._learn(agent, handle, event))
        except BusyError as error:
            _LOG.warning("event %d waits for catch_up: %s", event.id, error)

    def _learn(self, agent: MemoryAgent, handle: UserHandle, event: Event) -> None:
        for again in range(agent.learn_tries):
            try:
                agent.learn(handle, event)
                return
            except UNLEARNT:
                continue
            except ForgottenUserError:
                return
            except FineGrainedError as error:
                _LOG.warning("event %d waits: %s", event.id, type(error).__name__)
                if again + 1 < agent.learn_tries:
                    time.sleep(self._pause_s * 2**again)
            except Exception:
                _LOG.exception("event %d waits for catch_up", event.id)
                return

    def settle(self) -> None:
        """Wait until every event was learnt from, set aside or left for `catch_up`."""
        self._threads.settle()

    def close(self) -> None:
        """Settle, and end the threads."""
        self._threads.close()
