"""Requests to a search server over HTTP: JSON in, JSON out, tried again while the server is busy, up to a limit.

Knows HTTP, passwords and patience. Does not know indexes or queries. Standard library only.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from finegrained_rlhf.core.errors import ConfigError, FineGrainedError
from finegrained_rlhf.runtime.remote.answers import (
    BUSY,
    UnintelligibleAnswer,
    excerpt,
    json_object,
    retry_after,
    wait_before,
)


class SearchServerError(FineGrainedError):
    """A search server cannot be reached, stays busy, or answers something that cannot be understood."""


@dataclass(frozen=True)
class SearchServerConfig:
    """Where a search server is and how long to wait for it.

    Attributes:
        url: `http://HOST:9200` or `https://…`, without a password.
        user: of basic authentication; null for none.
        password_variable: environment variable that holds the password, which is thereby never written down.
        ca_file: certificates to trust; null: those of the system.
        verify: check the server's certificate; false for a server that signed its own.
        timeout_s: seconds of silence after which a request is given up and tried again.
        retries: further tries of a request.
        backoff_s: seconds before the first of them; doubled each time, with some chance in it.
        longest_wait_s: most seconds between two tries, also where the server asks for more.
    """

    url: str = "http://localhost:9200"
    user: str | None = None
    password_variable: str = "OPENSEARCH_PASSWORD"
    ca_file: str | None = None
    verify: bool = True
    timeout_s: float = 60.0
    retries: int = 6
    backoff_s: float = 0.5
    longest_wait_s: float = 30.0

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"server.url: expected http://HOST:PORT or https://HOST:PORT, got {self.url!r}")
        if parts.username is not None:
            raise ConfigError("server.url: expected no user or password in it; give server.user and the variable")
        if self.retries < 0:
            raise ConfigError(f"server.retries: expected at least 0, got {self.retries}")
        for name in ("timeout_s", "backoff_s", "longest_wait_s"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"server.{name}: expected more than 0 seconds, got {getattr(self, name)}")


class Patience:
    """How often something may still be tried again.

    Args:
        config: the limits.
        what: is tried, for the error.
    """

    def __init__(self, config: SearchServerConfig, what: str) -> None:
        self._config, self._what = config, what
        self._started, self._failed = time.monotonic(), 0

    def restore(self) -> None:
        """Count from the beginning, after progress."""
        self._failed = 0

    def wait(self, reason: str, asked: float | None = None) -> None:
        """Sleep before the next try.

        Args:
            reason: why the last one failed.
            asked: seconds that the server asks for.

        Raises:
            SearchServerError: all tries are used up.
        """
        self._failed += 1
        if self._failed > self._config.retries:
            seconds = time.monotonic() - self._started
            raise SearchServerError(
                f"{self._what}: given up after {self._failed} tries in {seconds:.0f} s, the last one: {reason}"
            )
        time.sleep(wait_before(self._failed, self._config.backoff_s, self._config.longest_wait_s, asked))


class SearchServer:
    """A server that is spoken to in JSON.

    Args:
        config: where it is.

    Raises:
        ConfigError: a user is given and the password is not.
    """

    def __init__(self, config: SearchServerConfig) -> None:
        self.config = config
        self._headers = {"Accept": "application/json", "User-Agent": "finegrained-rlhf"}
        if config.user is not None:
            password = os.environ.get(config.password_variable)
            if password is None:
                raise ConfigError(f"server.user is {config.user}: expected a password in ${config.password_variable}")
            token = base64.b64encode(f"{config.user}:{password}".encode()).decode("ascii")
            self._headers["Authorization"] = f"Basic {token}"
        handlers: list[urllib.request.BaseHandler] = []
        if config.url.startswith("https"):
            handlers.append(urllib.request.HTTPSHandler(context=_tls(config)))
        self._opener = urllib.request.build_opener(*handlers)

    def patience(self, path: str) -> Patience:
        """For requests that are answered but have to be repeated in part."""
        return Patience(self.config, self.config.url + path)

    def request(
        self, method: str, path: str, body: Mapping[str, Any] | bytes | None = None, accept: Iterable[int] = ()
    ) -> tuple[int, dict[str, Any]]:
        """Send a request until it is answered.

        Args:
            method: of HTTP.
            path: from `/` on.
            body: a JSON object, or lines of them as `json_lines` makes them.
            accept: statuses besides 2xx that the caller deals with.

        Returns:
            The status and the answer, a JSON object.

        Raises:
            SearchServerError: unreachable, busy or unintelligible in all tries; or the request is refused.
            ConfigError: user or password are wrong, or the certificate is not trusted.
        """
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        kind = "application/x-ndjson" if isinstance(body, bytes) else "application/json"
        request = urllib.request.Request(
            self.config.url.rstrip("/") + path,
            data=content,
            method=method,
            headers=self._headers | ({} if content is None else {"Content-Type": kind}),
        )
        patience = self.patience(path)
        while True:
            try:
                status, answer, asked = self._once(request)
                if status in accept or (200 <= status < 300):
                    return status, json_object(answer)
                reason = f"status {status}, {excerpt(answer)}"
                if status not in BUSY:
                    self._refused(status, path, reason)
                patience.wait(reason, asked)
            except (OSError, http.client.HTTPException, UnintelligibleAnswer) as error:
                self._check_certificate(error)
                patience.wait(_told(error))

    def _once(self, request: urllib.request.Request) -> tuple[int, bytes, float | None]:
        """Status, answer and the seconds to wait that the server asks for."""
        try:
            with self._opener.open(request, timeout=self.config.timeout_s) as response:
                return response.status, response.read(), None
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read(), retry_after(error.headers.get("Retry-After"))

    def _refused(self, status: int, path: str, reason: str) -> None:
        if status in (401, 403):
            raise ConfigError(
                f"{self.config.url}: refuses the user {self.config.user} ({reason}); see server.user and "
                f"${self.config.password_variable}"
            )
        raise SearchServerError(f"{self.config.url}{path}: {reason}")

    def _check_certificate(self, error: BaseException) -> None:
        cause = getattr(error, "reason", error)
        if isinstance(cause, ssl.SSLCertVerificationError):
            raise ConfigError(
                f"{self.config.url}: its certificate is not trusted ({cause.verify_message}); give server.ca_file, or "
                "server.verify=false for one that it signed itself"
            ) from None


def json_lines(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """One JSON object a line, as `_bulk` and `_msearch` want it; half a surrogate pair becomes `?`."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode("utf-8", "replace")


def _tls(config: SearchServerConfig) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=config.ca_file)
    except (OSError, ssl.SSLError):
        raise ConfigError(f"server.ca_file: {config.ca_file} is no file of certificates") from None
    if not config.verify:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _told(error: BaseException) -> str:
    if isinstance(error, TimeoutError) or isinstance(getattr(error, "reason", None), TimeoutError):
        return "no answer in time"
    return str(getattr(error, "reason", error)) or type(error).__name__
